//! Arguments and results as numbers, recorders that stand in for a provider's functions, and C counterparts by signature.

use core::ffi::{c_int, c_void};
use std::cell::{Cell, RefCell};

use ibverbs_sys::*;

/// A value that passes through a register.
pub trait Word {
    fn word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

macro_rules! integers {
    ($($ty:ty),*) => { $( impl Word for $ty {
        fn word(self) -> u64 { self as u64 }
        fn from_word(word: u64) -> Self { word as Self }
    } )* };
}
integers!(u8, u16, u32, u64, usize, isize, c_int);

macro_rules! enums {
    ($($ty:ident),*) => { $( impl Word for $ty {
        fn word(self) -> u64 { u64::from(self.0) }
        fn from_word(word: u64) -> Self { $ty(word as u32) }
    } )* };
}
enums!(
    ibv_mw_type,
    ibv_wc_opcode,
    ibv_qp_type,
    ib_uverbs_advise_mr_advice
);

impl<T> Word for *mut T {
    fn word(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance_mut(word as usize)
    }
}

impl<T> Word for *const T {
    fn word(self) -> u64 {
        self.expose_provenance() as u64
    }
    fn from_word(word: u64) -> Self {
        core::ptr::with_exposed_provenance(word as usize)
    }
}

impl Word for () {
    fn word(self) -> u64 {
        0
    }
    fn from_word(_: u64) -> Self {}
}

/// A call that a recorder saw: which one, and its arguments.
pub type Call = (usize, Vec<u64>);

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
    static RESULT: Cell<u64> = const { Cell::new(0) };
}

/// What recorders return from now on, on this thread.
pub fn script(result: u64) {
    RESULT.set(result);
}

/// Calls since the last time.
pub fn take_calls() -> Vec<Call> {
    CALLS.take()
}

macro_rules! arity {
    ($recorder:ident $($arg:ident: $ty:ident),*) => {
        /// Remembers the call under the number `ID`, and returns what was scripted.
        pub extern "C" fn $recorder<const ID: usize, $($ty: Word,)* R: Word>($($arg: $ty),*) -> R {
            CALLS.with_borrow_mut(|calls| calls.push((ID, vec![$($arg.word()),*])));
            R::from_word(RESULT.get())
        }

        impl<$($ty,)* R> Signature for unsafe fn($($ty),*) -> R {
            type C = unsafe extern "C" fn($($ty),*) -> R;
            unsafe fn bind(self, address: *mut c_void) -> Self::C {
                // SAFETY: the caller says that there is such a function.
                unsafe { core::mem::transmute(address) }
            }
        }
    };
}

/// The signature of a Rust function, as the C function has it.
pub trait Signature {
    type C;
    /// # Safety
    ///
    /// At `address` there must be a C function of this signature.
    unsafe fn bind(self, address: *mut c_void) -> Self::C;
}

arity!(rec1 a: A);
arity!(rec2 a: A, b: B);
arity!(rec3 a: A, b: B, c: C0);
arity!(rec4 a: A, b: B, c: C0, d: D);
arity!(rec5 a: A, b: B, c: C0, d: D, e: E);
arity!(rec6 a: A, b: B, c: C0, d: D, e: E, f: F);
