//! Scopes on devices that break or refuse: the memory comes back, or the process ends.

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;

use ibverbs_sys::{Api, ibv_cq, ibv_qp, ibv_qp_attr, ibv_qp_state, ibv_wc};
use softverbs::faults::{Fault, inject};

use crate::*;

type Buf = Private<Vec<u8>>;

thread_local! {
    /// States that queue pairs are not taken to.
    static REFUSED: Cell<&'static [ibv_qp_state]> = const { Cell::new(&[]) };
    /// States that they were taken to, or would have been.
    static LAST: Cell<u32> = const { Cell::new(0) };
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller passes complete attributes.
    let state = unsafe { (*attr).qp_state };
    LAST.set(state.0);
    if REFUSED.get().contains(&state) {
        return libc::EIO;
    }
    // SAFETY: passed on.
    unsafe { (softverbs::api().ibv_modify_qp)(qp, attr, mask) }
}

fn connected() -> (Pd, Cq, SendQueue<Buf>, RecvQueue<Buf>) {
    static TABLE: OnceLock<Api> = OnceLock::new();
    let api = TABLE.get_or_init(|| Api {
        ibv_modify_qp: modify_qp,
        ..*softverbs::api()
    });
    let ctx = list::of(api)[0].open().unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let cq = ctx.cq(32).build().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (tx, rx) = ready.connect(&own).unwrap();
    (pd, cq, tx, rx)
}

#[test]
fn a_broken_completion_queue_costs_the_connection_and_not_the_memory() {
    let (pd, mut cq, mut tx, mut rx) = connected();
    // Never done: endless retries, and no receive.
    let mut lent = pd.register(b"lent".to_vec()).unwrap();
    // SAFETY: the queue is alive, and its handle does not change.
    let handle = unsafe { (*cq.shared().raw()).handle };
    let e = tx.scope(&mut cq, |s| {
        s.send(lent.part(..).unwrap()).unwrap();
        let _broken = inject(Fault::CqOverflow {
            cq: Some(handle),
            nth: 1,
        });
        let e = s.wait().unwrap_err();
        assert!(matches!(e, ScopeError::Broken), "{e}");
        assert_eq!(s.outstanding(), 0);
    });
    assert!(matches!(e, Err(ScopeError::Broken)));
    assert_eq!(LAST.get(), ibv_qp_state::IBV_QPS_RESET.0);
    lent.copy_from_slice(b"mine");
    // The queue pair is of no use, and safe to hold.
    let e = tx.send(lent).post().unwrap_err();
    assert_eq!(e.kind(), PostErrorKind::NotConnected);
    let posted = rx.post(pd.register(vec![0; 8]).unwrap());
    let (sends, receives) = destroy(tx, rx).unwrap();
    assert_eq!(
        (sends.len(), receives.len()),
        (0, usize::from(posted.is_ok()))
    );
}

#[test]
fn receives_are_had_back_from_a_broken_completion_queue_too() {
    let (pd, mut cq, _tx, mut rx) = connected();
    let mut lent = pd.register(vec![0; 4]).unwrap();
    // SAFETY: the queue is alive, and its handle does not change.
    let handle = unsafe { (*cq.shared().raw()).handle };
    let e = rx.scope(&mut cq, |s| {
        s.post(lent.part_mut(..).unwrap()).unwrap();
        let _broken = inject(Fault::CqOverflow {
            cq: Some(handle),
            nth: 1,
        });
        let e = s.next().unwrap_err();
        assert!(matches!(e, ScopeError::Broken), "{e}");
        assert_eq!(s.outstanding(), 0);
    });
    assert!(matches!(e, Err(ScopeError::Broken)));
    assert_eq!(LAST.get(), ibv_qp_state::IBV_QPS_RESET.0);
    lent.copy_from_slice(b"mine");
}

#[test]
fn what_one_half_resets_the_other_does_not_wait_for() {
    let (pd, mut cq, mut tx, mut rx) = connected();
    let mut lent = pd.register(vec![0; 4]).unwrap();
    let e = rx.scope(&mut cq, |s| {
        s.post(lent.part_mut(..).unwrap()).unwrap();
        assert!(tx.reset());
        let e = s.wait().unwrap_err();
        assert!(matches!(e, ScopeError::Broken), "{e}");
    });
    assert!(matches!(e, Err(ScopeError::Broken)));
    lent.copy_from_slice(b"mine");
    assert!(matches!(
        tx.send(lent).post().unwrap_err().kind(),
        PostErrorKind::NotConnected
    ));
}

#[test]
fn what_was_reset_while_it_was_connected_stays_reset() {
    let (_pd, _cq, mut tx, rx) = connected();
    assert!(tx.reset());
    let core = rx.half.core();
    core.connected(crate::qp::Sends::Everything);
    assert!(core.was_reset());
    assert_eq!(core.sends(), crate::qp::Sends::Nothing);
}

/// Devices may believe that the queue pair is in the state that the caller names (Soft-RoCE does): then it would receive again, into memory that nobody
/// waits for.
#[test]
fn what_was_reset_is_not_recovered() {
    let (pd, mut cq, _tx, _rx) = connected();
    let ready = pd.uc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let own = ready.endpoint();
    let (mut tx, mut rx) = ready.connect::<Buf, Buf>(&own).unwrap();
    let mut lent = pd.register(vec![0; 4]).unwrap();
    let e = rx.scope(&mut cq, |s| {
        s.post(lent.part_mut(..).unwrap()).unwrap();
        assert!(tx.reset());
    });
    assert!(matches!(e, Err(ScopeError::Broken)));
    assert_eq!(LAST.get(), ibv_qp_state::IBV_QPS_RESET.0);
    let e = tx.recover().unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
    // It was not even asked.
    assert_eq!(LAST.get(), ibv_qp_state::IBV_QPS_RESET.0);
    lent.copy_from_slice(b"mine");
}

#[test]
fn where_the_error_state_is_refused_reset_is_not() {
    let (pd, mut cq, mut tx, _rx) = connected();
    let lent = pd.register(b"lent".to_vec()).unwrap();
    REFUSED.set(&[ibv_qp_state::IBV_QPS_ERR]);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        tx.scope(&mut cq, |s| {
            s.send(lent.part(..).unwrap()).unwrap();
            panic!("on purpose");
        })
    }));
    REFUSED.set(&[]);
    assert!(caught.is_err());
    assert_eq!(LAST.get(), ibv_qp_state::IBV_QPS_RESET.0);
    drop(lent);
}

/// Nothing ever completes.
unsafe extern "C" fn poll_nothing(_: *mut ibv_cq, _: c_int, _: *mut ibv_wc) -> c_int {
    0
}

#[test]
fn a_process_whose_memory_cannot_be_had_back_ends() {
    aborts("a_process_whose_memory_cannot_be_had_back_ends", || {
        let (pd, mut cq, mut tx, _rx) = connected();
        // SAFETY: the context is open, and only this thread uses it.
        unsafe { (*pd.context().raw()).ops.poll_cq = Some(poll_nothing) };
        let lent = pd.register(b"lent".to_vec()).unwrap();
        REFUSED.set(&[ibv_qp_state::IBV_QPS_ERR, ibv_qp_state::IBV_QPS_RESET]);
        let _ = tx.scope(&mut cq, |s| {
            s.send(lent.part(..).unwrap()).unwrap();
            panic!("on purpose");
        });
    });
}

#[test]
fn what_is_lent_is_not_given_back_unwaited_for() {
    aborts("what_is_lent_is_not_given_back_unwaited_for", || {
        let (_pd, mut cq, mut tx, _rx) = connected();
        let mut lent = crate::lent::Lent::new(&mut tx, &mut cq);
        lent.post(|_, _, _| Ok(())).unwrap();
        drop(lent);
    });
}

/// Runs this in a process of its own, as the test of that name, and sees it end itself.
fn aborts(test: &str, run: impl FnOnce()) {
    const CHILD: &str = "VERBS_TEST_SCOPE_ABORTS";
    if std::env::var_os(CHILD).is_some() {
        run();
        std::process::exit(0);
    }
    let child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("scope_tests::{test}")])
        .env(CHILD, "1")
        .output()
        .unwrap();
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.status.signal(), Some(libc::SIGABRT), "{child:?}");
}
