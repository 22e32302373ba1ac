//! Loading a shared library and finding versioned symbols in it.

use core::ffi::{CStr, c_void};
use core::fmt;
use core::ptr::NonNull;

/// A library that a table is filled from, and where to get it.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) soname: &'static CStr,
    pub(crate) debian: &'static str,
    pub(crate) fedora: &'static str,
}

pub(crate) const LIBIBVERBS: Source = Source {
    soname: c"libibverbs.so.1",
    debian: "libibverbs1 ibverbs-providers",
    fedora: "libibverbs",
};

pub(crate) const LIBRDMACM: Source = Source {
    soname: c"librdmacm.so.1",
    debian: "librdmacm1 ibverbs-providers",
    fedora: "librdmacm",
};

/// Why a library could not be used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LoadError {
    /// The library could not be loaded; usually it is not installed.
    #[non_exhaustive]
    Library {
        /// Name that was asked for, such as `libibverbs.so.1`.
        library: String,
        /// What the dynamic linker said.
        reason: String,
        /// Debian and Ubuntu packages with it.
        debian: &'static str,
        /// Fedora and RHEL packages with it.
        fedora: &'static str,
    },
    /// The library is there, but lacks a function that every supported release has.
    #[non_exhaustive]
    Symbol {
        /// Name that was asked for.
        library: String,
        /// The function.
        symbol: &'static str,
        /// The version of the function's signature.
        version: &'static str,
        /// The first release of rdma-core with it.
        rdma_core: u32,
    },
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Library {
                library,
                reason,
                debian,
                fedora,
            } => write!(
                f,
                "cannot load {library}: {reason}; to install it: `apt install {debian}` (Debian, Ubuntu) or \
                 `dnf install {fedora}` (Fedora, RHEL)"
            ),
            Self::Symbol {
                library,
                symbol,
                version,
                rdma_core,
            } => write!(
                f,
                "{library} has no function {symbol}@{version}: needed is the library of rdma-core {rdma_core} or newer"
            ),
        }
    }
}

impl core::error::Error for LoadError {}

/// A loaded library. It stays loaded: providers start threads and register handlers that must not lose their code.
pub(crate) struct Library {
    handle: NonNull<c_void>,
    name: String,
}

impl Library {
    /// Loads `name`, or finds it loaded already.
    ///
    /// # Safety
    ///
    /// The initialisers of the library run.
    pub(crate) unsafe fn open(name: &CStr, source: &Source) -> Result<Self, LoadError> {
        // SAFETY: `name` is a C string; what the initialisers do is the caller's contract.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        let name = name.to_string_lossy().into_owned();
        match NonNull::new(handle) {
            Some(handle) => Ok(Self { handle, name }),
            None => Err(LoadError::Library {
                library: name,
                reason: last_error(),
                debian: source.debian,
                fedora: source.fedora,
            }),
        }
    }

    /// The function `symbol` with the signature of `version`.
    pub(crate) fn find(&self, symbol: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the names are C strings.
        #[cfg(target_env = "gnu")]
        let found =
            unsafe { libc::dlvsym(self.handle.as_ptr(), symbol.as_ptr(), version.as_ptr()) };
        // SAFETY: as above. Only glibc can be asked for a version; others find the default one, which is the newest.
        #[cfg(not(target_env = "gnu"))]
        let found = {
            let _ = version;
            unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) }
        };
        NonNull::new(found)
    }

    /// As [`find`](Self::find), for a function that must be there.
    pub(crate) fn require(
        &self,
        symbol: &'static CStr,
        version: &'static CStr,
    ) -> Result<NonNull<c_void>, LoadError> {
        self.find(symbol, version).ok_or_else(|| {
            let text = |s: &'static CStr| s.to_str().unwrap_or("?");
            LoadError::Symbol {
                library: self.name.clone(),
                symbol: text(symbol),
                version: text(version),
                rdma_core: first_release(text(version)),
            }
        })
    }
}

/// The release of rdma-core that introduced a symbol version (from Debian's symbols files of libibverbs1 and librdmacm1).
pub(crate) fn first_release(version: &str) -> u32 {
    match version {
        "IBVERBS_1.5" => 20,
        "IBVERBS_1.6" => 24,
        "IBVERBS_1.7" => 25,
        "IBVERBS_1.8" => 28,
        "IBVERBS_1.9" => 30,
        "IBVERBS_1.10" | "RDMACM_1.3" => 31,
        "IBVERBS_1.11" => 32,
        "IBVERBS_1.12" => 34,
        "IBVERBS_1.13" => 35,
        "IBVERBS_1.14" => 36,
        "RDMACM_1.1" => 16,
        "RDMACM_1.2" => 23,
        // Older than rdma-core itself, whose first release was 12.
        _ => 12,
    }
}

fn last_error() -> String {
    // SAFETY: dlerror returns NULL or a C string that lives until this thread's next dl call.
    unsafe {
        let text = libc::dlerror();
        if text.is_null() {
            "unknown error".into()
        } else {
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    }
}

/// A literal or identifier as a C string.
macro_rules! c_str {
    ($text:expr) => {
        match core::ffi::CStr::from_bytes_with_nul(concat!($text, "\0").as_bytes()) {
            Ok(text) => text,
            Err(_) => panic!("not a C string"),
        }
    };
}

/// A struct with one field per function of a library, and the functions that fill it.
macro_rules! define_table {
    (
        $(#[$doc:meta])*
        pub struct $table:ident from $source:ident;
        required { $( $(#[$rdoc:meta])* $rver:literal fn $rname:ident( $($rarg:ident : $rty:ty),* $(,)? ) -> $rret:ty; )* }
        optional { $( $(#[$odoc:meta])* $over:literal fn $oname:ident( $($oarg:ident : $oty:ty),* $(,)? ) -> $oret:ty; )* }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $table {
            $( $(#[$rdoc])* pub $rname: unsafe extern "C" fn($($rarg: $rty),*) -> $rret, )*
            $( $(#[$odoc])* pub $oname: Option<unsafe extern "C" fn($($oarg: $oty),*) -> $oret>, )*
        }

        impl $table {
            /// The system's library, loaded by the first call and for good. Later calls cost an atomic load, and a failed
            /// attempt is not repeated.
            pub fn system() -> Result<&'static Self, $crate::LoadError> {
                static TABLE: std::sync::OnceLock<Result<$table, $crate::LoadError>> = std::sync::OnceLock::new();
                // SAFETY: the library of this name is made to be loaded by any program; its initialisers only prepare it.
                let load = || unsafe { Self::load(crate::load::$source.soname) };
                TABLE.get_or_init(load).as_ref().map_err(Clone::clone)
            }

            /// Another library with the same functions, by name (searched for) or path. It stays loaded.
            ///
            /// # Safety
            ///
            /// Loading runs the library's initialisers, and its functions must have the signatures of the fields.
            pub unsafe fn load(library: &core::ffi::CStr) -> Result<Self, $crate::LoadError> {
                use core::mem::transmute;
                // SAFETY: the caller vouches for the library.
                let lib = unsafe { crate::load::Library::open(library, &crate::load::$source)? };
                // SAFETY: the library's function of this name and version has this signature; a data pointer and a function
                // pointer have one size on Linux.
                Ok(unsafe { Self {
                    $( $rname: {
                        const NAME: &core::ffi::CStr = crate::load::c_str!(stringify!($rname));
                        const VERSION: &core::ffi::CStr = crate::load::c_str!($rver);
                        transmute::<core::ptr::NonNull<c_void>, unsafe extern "C" fn($($rty),*) -> $rret>(
                            lib.require(NAME, VERSION)?
                        )
                    }, )*
                    $( $oname: {
                        const NAME: &core::ffi::CStr = crate::load::c_str!(stringify!($oname));
                        const VERSION: &core::ffi::CStr = crate::load::c_str!($over);
                        transmute::<Option<core::ptr::NonNull<c_void>>, Option<unsafe extern "C" fn($($oty),*) -> $oret>>(
                            lib.find(NAME, VERSION)
                        )
                    }, )*
                } })
            }

            /// Name, symbol version and result type of every function, the mandatory ones first.
            #[cfg(test)]
            pub(crate) const SYMBOLS: &'static [(&'static str, &'static str, &'static str)] =
                &[ $( (stringify!($rname), $rver, stringify!($rret)), )* $( (stringify!($oname), $over, stringify!($oret)), )* ];
        }
    };
}

pub(crate) use {c_str, define_table};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Api, CmApi};

    const ABSENT: &CStr = c"libibverbs-not-there.so.9";

    #[test]
    fn a_missing_library_is_named_with_its_packages() {
        // SAFETY: there is no such library.
        let error = unsafe { Api::load(ABSENT) }.expect_err("loaded a library that does not exist");
        let LoadError::Library {
            library, reason, ..
        } = &error
        else {
            panic!("unexpected {error:?}");
        };
        assert_eq!(library, "libibverbs-not-there.so.9");
        assert!(reason.contains("libibverbs-not-there.so.9"), "{reason}");
        let text = error.to_string();
        for part in [
            "libibverbs-not-there.so.9",
            reason,
            "libibverbs1 ibverbs-providers",
            "dnf install libibverbs",
        ] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        // SAFETY: as above.
        let error =
            unsafe { CmApi::load(ABSENT) }.expect_err("loaded a library that does not exist");
        assert!(error.to_string().contains("librdmacm1"), "{error}");
    }

    #[test]
    fn a_missing_symbol_is_named_with_its_release() {
        // SAFETY: the C library is loaded already.
        let lib = unsafe { Library::open(c"libc.so.6", &LIBIBVERBS) }.expect("no C library");
        assert!(lib.find(c"ibv_reg_mr_iova2", c"IBVERBS_1.8").is_none());
        let error = lib
            .require(c"ibv_reg_mr_iova2", c"IBVERBS_1.8")
            .expect_err("found in the C library");
        assert_eq!(
            error,
            LoadError::Symbol {
                library: "libc.so.6".into(),
                symbol: "ibv_reg_mr_iova2",
                version: "IBVERBS_1.8",
                rdma_core: 28
            }
        );
        let text = error.to_string();
        for part in ["libc.so.6", "ibv_reg_mr_iova2", "rdma-core 28"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
        // SAFETY: as above; nothing is called.
        let error =
            unsafe { Api::load(c"libc.so.6") }.expect_err("the C library passed for libibverbs");
        assert!(
            matches!(
                error,
                LoadError::Symbol {
                    symbol: "ibv_get_device_list",
                    ..
                }
            ),
            "{error:?}"
        );
    }

    #[cfg(target_env = "gnu")]
    #[test]
    fn a_symbol_of_another_version_is_not_taken() {
        // SAFETY: the C library is loaded already.
        let lib = unsafe { Library::open(c"libc.so.6", &LIBIBVERBS) }.expect("no C library");
        let right = if cfg!(target_arch = "x86_64") {
            c"GLIBC_2.2.5"
        } else {
            c"GLIBC_2.17"
        };
        assert!(lib.find(c"malloc", right).is_some());
        assert!(lib.find(c"malloc", c"IBVERBS_1.1").is_none());
    }

    #[test]
    fn every_symbol_version_has_its_release() {
        for (name, version, _) in Api::SYMBOLS.iter().chain(CmApi::SYMBOLS) {
            let old = matches!(*version, "IBVERBS_1.0" | "IBVERBS_1.1" | "RDMACM_1.0");
            assert_eq!(first_release(version) == 12, old, "{name}@{version}");
        }
    }

    /// With the library installed, the table holds the newest version of each function, not a compatibility one: the
    /// default version is what a plain `dlsym` finds.
    #[cfg(target_env = "gnu")]
    #[test]
    fn the_system_libraries_give_current_versions() {
        match (Api::system(), CmApi::system()) {
            (Ok(api), Ok(cm)) => {
                assert!(std::ptr::eq(api, Api::system().expect("loaded before")));
                assert!(std::ptr::eq(cm, CmApi::system().expect("loaded before")));
            }
            (ibverbs, rdmacm) => {
                println!("skipped: {:?} {:?}", ibverbs.err(), rdmacm.err());
                assert!(
                    std::env::var_os("VERBATIM_REQUIRE_HEADERS").is_none(),
                    "the libraries are required here"
                );
                return;
            }
        }
        for (source, symbols) in [(&LIBIBVERBS, Api::SYMBOLS), (&LIBRDMACM, CmApi::SYMBOLS)] {
            // SAFETY: loaded already.
            let lib = unsafe { Library::open(source.soname, source) }.expect("loaded before");
            for (name, version, _) in symbols {
                let (c_name, c_version) = (
                    std::ffi::CString::new(*name).expect("a name"),
                    std::ffi::CString::new(*version).expect("a version"),
                );
                let ours = lib.find(&c_name, &c_version);
                // SAFETY: the handle is open, the name a C string.
                let default =
                    NonNull::new(unsafe { libc::dlsym(lib.handle.as_ptr(), c_name.as_ptr()) });
                assert_eq!(ours, default, "{name}@{version} is not the default version");
            }
        }
    }
}
