//! A thread that polls may have to do work that waited, as the copying of much. Others who poll the same queue go on meanwhile.
//!
//! The copy is held up by a page that is missing until this test provides it (userfaultfd, for faults of user code only, which needs no rights). Where there
//! is no such thing, nothing is tested.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
use common::*;
use ibverbs_sys::ibv_wr_opcode as Op;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::mpsc::channel;

const PAGE: usize = 4096;
const ROUNDS: usize = 200;

/// A page of memory that can be made to be missing.
struct Missing {
    page: *mut u8,
    uffd: OwnedFd,
}

const UFFDIO_API: u64 = 0xc018_aa3f;
const UFFDIO_REGISTER: u64 = 0xc020_aa00;
const UFFDIO_ZEROPAGE: u64 = 0xc020_aa04;
const THREAD_ID: u64 = 1 << 8;
const USER_MODE_ONLY: i32 = 1;

impl Missing {
    /// `None` if the kernel does not let us.
    fn new() -> Option<Missing> {
        unsafe {
            let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
            let fd = libc::syscall(libc::SYS_userfaultfd, flags) as i32;
            if fd < 0 {
                return None;
            }
            let uffd = OwnedFd::from_raw_fd(fd);
            let mut api = [0xaa, THREAD_ID, 0u64];
            if libc::ioctl(fd, UFFDIO_API, api.as_mut_ptr()) != 0 {
                return None;
            }
            let page = libc::mmap(
                null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            // There when it is registered.
            page.cast::<u8>().write_volatile(1);
            let page = page.cast();
            Some(Missing { page, uffd })
        }
    }

    /// From here on who touches it waits.
    fn take_away(&self) {
        let mut register = [self.page.addr() as u64, PAGE as u64, 1, 0];
        unsafe {
            assert_eq!(
                libc::madvise(self.page.cast(), PAGE, libc::MADV_DONTNEED),
                0
            );
            let fd = self.uffd.as_raw_fd();
            assert_eq!(libc::ioctl(fd, UFFDIO_REGISTER, register.as_mut_ptr()), 0);
        }
    }

    /// The thread that waits for it, once there is one.
    fn waiter(&self) -> i32 {
        let mut fd = libc::pollfd {
            fd: self.uffd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut message = [0u32; 8];
        unsafe {
            assert_eq!(libc::poll(&mut fd, 1, HANG.as_millis() as i32), 1);
            let read = libc::read(fd.fd, message.as_mut_ptr().cast(), 32);
            assert_eq!(read, 32);
        }
        // Behind the event, the flags and the address.
        message[6] as i32
    }

    fn give_back(&self) {
        let mut range = [self.page.addr() as u64, PAGE as u64, 0, 0];
        let fd = self.uffd.as_raw_fd();
        assert_eq!(
            unsafe { libc::ioctl(fd, UFFDIO_ZEROPAGE, range.as_mut_ptr()) },
            0
        );
    }
}

impl Drop for Missing {
    fn drop(&mut self) {
        unsafe { libc::munmap(self.page.cast(), PAGE) };
    }
}

/// A completion queue in another thread.
#[derive(Clone, Copy)]
struct Cq(*mut ibverbs_sys::ibv_cq);
unsafe impl Send for Cq {}

impl Cq {
    // By value, so that closures take it whole.
    /// The id of the next completion, which must be a success.
    fn next(self) -> u64 {
        let begin = std::time::Instant::now();
        loop {
            let mut wc = ibverbs_sys::ibv_wc::default();
            if unsafe { ibverbs_sys::inline::ibv_poll_cq(self.0, 1, &mut wc) } == 1 {
                assert_eq!(wc.status, OK);
                return wc.wr_id;
            }
            assert!(begin.elapsed() < HANG, "no completion");
        }
    }
}

#[test]
fn who_polls_does_not_wait_for_the_copies_of_others() {
    let Some(missing) = Missing::new() else {
        return eprintln!("this kernel does not let us hold a copy up");
    };
    let dev = Dev::open();
    let o = Options::default();
    let (a, b) = pair(&dev, &o);
    // Sends of this one complete to the queue of the first.
    let c = End::with(&dev, &o, |init| unsafe {
        init.send_cq = a.cq;
        (api().ibv_create_qp)(dev.pd, init)
    });
    let d = End::new(&dev, &o);
    c.connect(d.qpn(), &o);
    d.connect(c.qpn(), &o);
    let mr = unsafe { (api().ibv_reg_mr)(dev.pd, missing.page.cast(), PAGE, LOCAL as i32) };
    assert!(!mr.is_null());
    let (to, exposed) = (
        Mem::plain(&dev, PAGE, LOCAL),
        Mem::plain(&dev, PAGE, LOCAL | WRITE),
    );
    let mut by_poller = 0;
    for _ in 0..ROUNDS {
        // Waits for its receive, and then for its memory.
        let mut from = [ibverbs_sys::ibv_sge {
            addr: missing.page.addr() as u64,
            length: PAGE as u32,
            lkey: unsafe { (*mr).lkey },
        }];
        assert_eq!(a.post(&mut wr(1, Op::IBV_WR_SEND, &mut from, SIGNALED)), 0);
        missing.take_away();
        let (cq, poller) = (Cq(a.cq), AtomicI32::new(0));
        std::thread::scope(|s| {
            let known = &poller;
            let first = s.spawn(move || {
                known.store(unsafe { libc::gettid() }, Ordering::Release);
                cq.next()
            });
            while poller.load(Ordering::Acquire) == 0 {
                std::thread::yield_now();
            }
            assert_eq!(b.recv(2, &mut [to.sge(0, PAGE)]), 0);
            // It may also be the process's watcher, and the device's helper in the asynchronous mode.
            let waiter = missing.waiter();
            let mut polled = Ok(3);
            if waiter == poller.load(Ordering::Acquire) {
                by_poller += 1;
                let mut sges = [to.sge(0, 8)];
                let (addr, key) = (exposed.addr(), exposed.key());
                let mut write = rdma(3, Op::IBV_WR_RDMA_WRITE, &mut sges, SIGNALED, addr, key);
                assert_eq!(c.post(&mut write), 0);
                let (give, taken) = channel();
                s.spawn(move || give.send(cq.next()));
                polled = taken.recv_timeout(HANG);
            }
            // First of all the others go on, whatever was seen.
            missing.give_back();
            assert_eq!(polled, Ok(3), "another poller waits for the copy");
            assert_eq!(first.join().unwrap(), 1);
        });
        assert_eq!(b.next().wr_id, 2);
        if by_poller == 3 {
            break;
        }
    }
    let helped = std::env::var_os("VERBATIM_ASYNC").is_some_and(|seed| !seed.is_empty());
    assert!(helped || by_poller > 0, "no poller came to do the work");
    assert_eq!(unsafe { (api().ibv_dereg_mr)(mr) }, 0);
    drop((c, d));
}
