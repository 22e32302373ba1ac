//! All of something that the device has. Alone in its process: what is made at the same time would fail.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_srq_init_attr;

/// All shared receive queues can be made, and no more; and anew when they are gone.
#[test]
fn shared_receive_queues() {
    let dev = Dev::open();
    let mut made = Vec::new();
    let errno = loop {
        let mut init = ibv_srq_init_attr::default();
        init.attr.max_wr = 1;
        let srq = unsafe { (api().ibv_create_srq)(dev.pd, &mut init) };
        if srq.is_null() {
            break std::io::Error::last_os_error().raw_os_error();
        }
        made.push(Srq(srq));
    };
    // Files are what runs out first where few may be open.
    let expected = [libc::ENOMEM, libc::EMFILE].map(Some);
    assert!(expected.contains(&errno), "{errno:?}");
    let count = made.len();
    drop(made);
    let again: Vec<_> = (0..count).map(|_| Srq::new(&dev, 1, 1)).collect();
    drop(again);
}
