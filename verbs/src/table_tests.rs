//! Tables and registrations of devices that answer otherwise: the user-space device with single functions replaced.

use std::cell::Cell;
use std::ffi::{c_char, c_int, c_void};

use ibverbs_sys::{
    Api, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_mr, ibv_pd, ibv_wc, ibv_wc_opcode,
};

use crate::fault_tests::{fail_after, fails, forever, open, set_errno};
use crate::*;

unsafe extern "C" fn a_partition(
    _: *mut ibv_context,
    port: u8,
    index: c_int,
    pkey: *mut u16,
) -> c_int {
    if fails() {
        set_errno(libc::EIO);
        return -1;
    }
    assert_eq!((port, index), (1, 0));
    // SAFETY: the caller's result.
    unsafe { *pkey = 0x8001u16.to_be() };
    0
}

#[test]
fn partition_keys_are_in_host_byte_order() {
    let ctx = open(|api| api.ibv_query_pkey = a_partition);
    fail_after(1);
    assert_eq!(ctx.pkey_table(1).unwrap(), [0x8001]);
    let e = ctx.pkey_table(1).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EIO));
    assert!(e.to_string().contains("index 0"), "{e}");
}

/// Grants the change, under new keys.
unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    _: *mut ibv_pd,
    _: *mut c_void,
    _: usize,
    _: c_int,
) -> c_int {
    assert_eq!(flags, 4, "only the access");
    if fails() {
        set_errno(libc::EINVAL);
        return -1;
    }
    // SAFETY: a region of the caller's.
    unsafe { ((*mr).lkey, (*mr).rkey) = (77, 78) };
    0
}

#[test]
fn a_changed_registration_has_its_new_keys_and_a_refused_one_the_old() {
    let ctx = open(|api| api.ibv_rereg_mr = Some(rereg_mr));
    let pd = ctx.alloc_pd().unwrap();
    let mut region = pd.region(vec![0; 8], Access::LOCAL_WRITE).unwrap();
    let before = region.lkey();
    fail_after(0);
    let e = region.change_access(Access::REMOTE_READ).unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EINVAL));
    assert!(e.to_string().contains("code -1"), "{e}");
    assert_eq!(
        (region.lkey(), region.access()),
        (before, Access::LOCAL_WRITE)
    );
    fail_after(1);
    region.change_access(Access::REMOTE_WRITE).unwrap();
    assert_eq!(region.lkey(), LKey(77));
    let remote = region.remote().unwrap();
    assert_eq!((remote.rkey, remote.len), (RKey(78), 8));
    let mut without = open(|api| {
        api.ibv_rereg_mr = None;
        api.ibv_reg_mr_iova2 = None;
    })
    .alloc_pd()
    .unwrap()
    .region(vec![0; 8], Access::LOCAL_WRITE)
    .unwrap();
    let e = without.change_access(Access::REMOTE_READ).unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    let pd = without.pd().clone();
    let e = pd
        .region_at(vec![0; 8], Access::LOCAL_WRITE, 4096)
        .unwrap_err();
    assert!(matches!(e.into_error(), Error::Unsupported { .. }));
}

thread_local! {
    /// What was asked for: offset, length, address, descriptor, access.
    static ASKED: Cell<(u64, usize, u64, c_int, c_int)> = const { Cell::new((0, 0, 0, 0, 0)) };
    static ERRNO: Cell<c_int> = const { Cell::new(0) };
}

/// Registers something else, after taking note; or fails as told.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    ASKED.set((offset, length, iova, fd, access));
    if fails() {
        set_errno(ERRNO.get());
        return std::ptr::null_mut();
    }
    let stand_in = forever([0u8; 64]);
    let (start, len) = (stand_in.as_mut_ptr().cast(), stand_in.len());
    // SAFETY: memory that stays.
    unsafe { (softverbs::api().ibv_reg_mr)(pd, start, len, access) }
}

#[test]
fn a_dmabuf_is_registered_as_it_is_or_it_is_said_why_not() {
    use std::os::fd::{AsRawFd, OwnedFd};
    let exported = || OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let fd = exported();
    let number = fd.as_raw_fd();
    let memory = Dmabuf::new(fd, (5 << 20) + 17, 3000).unwrap();
    let pd = open(|api| api.ibv_reg_dmabuf_mr = Some(reg_dmabuf_mr))
        .alloc_pd()
        .unwrap();
    fail_after(1);
    let region = pd.register_dmabuf(&memory, Access::REMOTE_READ).unwrap();
    let (offset, len, iova, fd, access) = ASKED.get();
    assert_eq!((offset, len, fd), ((5 << 20) + 17, 3000, number));
    assert_eq!(access as u32, region.access().bits());
    // As devices want it, whatever the size of their pages.
    assert_eq!((iova ^ offset) % 65_536, 0);
    assert_eq!((region.iova(), memory.addr().addr() as u64), (iova, iova));
    let remote = region.remote().unwrap();
    assert_eq!((remote.addr, remote.len), (iova, 3000));
    let part = region.segment(100, 20).unwrap();
    assert_eq!((part.addr, part.lkey), (iova + 100, region.lkey()));
    assert!(region.segment(2990, 11).is_err());
    // Addresses are nobody else's as long as they are registered.
    drop(memory);
    let other = Dmabuf::new(exported(), (5 << 20) + 17, 3000).unwrap();
    assert_ne!(other.addr().addr() as u64, iova);
    let other = region.into_inner().unwrap();

    for (errno, unsupported) in [(libc::EOPNOTSUPP, true), (libc::EINVAL, false)] {
        fail_after(0);
        ERRNO.set(errno);
        let e = pd.register_dmabuf(&other, Access::empty()).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(errno));
        assert_eq!(matches!(e, Error::Unsupported { .. }), unsupported, "{e}");
        assert!(e.to_string().contains("ibv_reg_dmabuf_mr"), "{e}");
    }
    // A library that is older than that.
    let old = open(|api| api.ibv_reg_dmabuf_mr = None).alloc_pd().unwrap();
    let e = old.register_dmabuf(&other, Access::empty()).unwrap_err();
    assert!(matches!(e, Error::Unsupported { .. }), "{e}");
    assert_eq!(e.raw_os_error(), Some(libc::EOPNOTSUPP));
}

/// Says that there are two devices, and names none.
unsafe extern "C" fn null_devices(len: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller's own.
    unsafe { *len = 2 };
    forever([std::ptr::null_mut(); 3]).as_mut_ptr()
}

unsafe extern "C" fn free_nothing(_: *mut *mut ibv_device) {}

#[test]
fn null_devices_are_no_devices() {
    let api = forever(Api {
        ibv_get_device_list: null_devices,
        ibv_free_device_list: free_nothing,
        ..*softverbs::api()
    });
    assert!(list::of(api).is_empty());
}

unsafe extern "C" fn no_name(_: *mut ibv_device) -> *const c_char {
    std::ptr::null()
}

unsafe extern "C" fn no_context(_: *mut ibv_device) -> *mut ibv_context {
    set_errno(libc::ENODEV);
    std::ptr::null_mut()
}

#[test]
fn a_device_without_a_name_or_one_that_cannot_be_opened_is_an_error_at_worst() {
    let nameless = forever(Api {
        ibv_get_device_name: no_name,
        ..*softverbs::api()
    });
    let devices = list::of(nameless);
    assert_eq!((devices.len(), devices[0].name()), (1, ""));
    let gone = forever(Api {
        ibv_open_device: no_context,
        ..*softverbs::api()
    });
    let e = list::of(gone)[0].open().unwrap_err();
    assert!(e.to_string().contains("ibv_open_device"), "{e}");
}

unsafe extern "C" fn no_cq(
    _: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    set_errno(libc::ENOMEM);
    std::ptr::null_mut()
}

unsafe extern "C" fn no_channel(_: *mut ibv_context) -> *mut ibv_comp_channel {
    set_errno(libc::EMFILE);
    std::ptr::null_mut()
}

#[test]
fn what_the_device_does_not_make_is_an_error() {
    let ctx = open(|api| {
        api.ibv_create_cq = no_cq;
        api.ibv_create_comp_channel = no_channel;
    });
    let e = ctx.cq(4).build().unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::ENOMEM));
    assert!(e.to_string().contains("ibv_create_cq"), "{e}");
    let e = ctx.channel().unwrap_err();
    assert_eq!(e.raw_os_error(), Some(libc::EMFILE));
}

thread_local! {
    /// The work request that has completed, says the device, whenever it is asked.
    static CLAIMED: Cell<u64> = const { Cell::new(0) };
}

unsafe extern "C" fn claim(_: *mut ibv_cq, _: c_int, into: *mut ibv_wc) -> c_int {
    let wc = ibv_wc {
        wr_id: CLAIMED.get(),
        opcode: ibv_wc_opcode::IBV_WC_RECV,
        byte_len: 4,
        ..Default::default()
    };
    // SAFETY: the caller has room for one at least.
    unsafe { *into = wc };
    1
}

#[test]
fn completions_of_what_nobody_posted_are_stale() {
    let ctx = open(|_| {});
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(32).build().unwrap();
    let ready = pd.rc(&cq).send_depth(8).recv_depth(8).build().unwrap();
    let (_, mut tx, mut rx) = ready.split::<Private<Vec<u8>>, Private<Vec<u8>>>();
    // SAFETY: the context is open, and only this thread uses it.
    unsafe { (*ctx.raw()).ops.poll_cq = Some(claim) };
    // What would be the next, one in the middle of nowhere, and one before the first.
    for seq in [0, 5, crate::ring::SEQ_MASK] {
        CLAIMED.set(rx.id().wr_id(seq));
        let claimed = cq.poll().unwrap().unwrap();
        let stale = rx.redeem(claimed).unwrap_err();
        assert_eq!(stale.into_completion().queue(), rx.id());
        CLAIMED.set(tx.id().wr_id(seq));
        let claimed = cq.poll().unwrap().unwrap();
        let claimed = tx.redeem(claimed).unwrap_err().into_completion();
        assert!(tx.retire(claimed).is_err());
    }
    assert_eq!((rx.outstanding(), rx.free_slots()), (0, 8));
    assert_eq!((tx.outstanding(), tx.free_slots()), (0, 8));
    // What is posted afterwards has the id that was claimed before, and comes back with it.
    rx.post(pd.register(vec![7; 8]).unwrap()).unwrap();
    CLAIMED.set(rx.id().wr_id(0));
    let claimed = cq.poll().unwrap().unwrap();
    assert_eq!(rx.redeem(claimed).unwrap().unwrap().bytes(), [7; 4]);
}
