//! Processes with tight limits: what soft0 does not need, and what it says when it lacks what it needs.

use mempool::{Budget, Pool};
use verbatim_tests::{Control, Link, Side, second_process};
use verbs::Device;

fn limit(resource: libc::__rlimit_resource_t, value: u64) {
    let limit = libc::rlimit {
        rlim_cur: value,
        rlim_max: value,
    };
    // SAFETY: a structure of our own, read during the call.
    let result = unsafe { libc::setrlimit(resource, &raw const limit) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Registering memory with a network card locks it, and fails where RLIMIT_MEMLOCK is too low (the error says so; that is tested
/// beside it, on a device that refuses). The user-space device locks nothing.
#[test]
fn soft0_needs_no_locked_memory() {
    match second_process("soft0_needs_no_locked_memory") {
        Side::Child(mut control) => {
            limit(libc::RLIMIT_MEMLOCK, 0);
            let mut link: Link = Link::new(&mut control, 8);
            let pool = Pool::builder(&link.pd)
                .budget(Budget::user(64 << 20))
                .build()
                .unwrap();
            drop(pool.alloc(32 << 20).unwrap());
            control.expect("send");
            let message = link.pd.register(vec![7; 1 << 20]).unwrap();
            link.tx.send(message).signaled().post().unwrap();
            link.sent();
            control.expect("received");
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 8);
            link.rx
                .post(link.pd.register(vec![0; 1 << 20]).unwrap())
                .unwrap();
            peer.control.send("send");
            assert!(link.received().bytes().iter().all(|&b| b == 7));
            peer.control.send("received");
            peer.finish();
        }
    }
}

/// Whatever is the first thing that a process without descriptors cannot do, it is an error with a sentence.
#[test]
fn without_descriptors_there_is_an_error_and_no_panic() {
    match second_process("without_descriptors_there_is_an_error_and_no_panic") {
        Side::Child(control) => starve(control),
        Side::Parent(mut peer) => {
            let text = String::from_utf8(peer.control.receive()).unwrap();
            assert!(text.contains("Too many open files"), "{text}");
            peer.finish();
        }
    }
}

fn starve(mut control: Control) {
    let mut texts = Vec::new();
    // With each further descriptor it comes a step further, until it works.
    for descriptors in 4..200 {
        limit_soft(libc::RLIMIT_NOFILE, descriptors);
        let outcome = Device::open_spec("soft0")
            .map_err(|e| e.to_string())
            .and_then(|ctx| {
                let pd = ctx.alloc_pd().map_err(|e| e.to_string())?;
                let pool = Pool::builder(&pd).build().map_err(|e| e.to_string())?;
                let buf = pool.alloc(4096).map_err(|e| e.to_string())?;
                drop(buf);
                let channel = ctx.channel().map_err(|e| e.to_string())?;
                let cq = ctx
                    .cq(64)
                    .channel(&channel)
                    .build()
                    .map_err(|e| e.to_string())?;
                pd.rc(&cq)
                    .send_depth(8)
                    .recv_depth(8)
                    .build()
                    .map_err(|e| e.to_string())
                    .map(drop)
            });
        match outcome {
            Ok(()) => break,
            Err(text) => texts.push(text),
        }
    }
    assert!(!texts.is_empty(), "it works with no descriptors at all");
    assert!(texts.len() < 150, "it never works: {texts:?}");
    control.send(texts[0].as_bytes());
}

fn limit_soft(resource: libc::__rlimit_resource_t, value: u64) {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a structure of our own, written and read during the calls.
    unsafe {
        assert_eq!(libc::getrlimit(resource, &raw mut limit), 0);
        limit.rlim_cur = value;
        assert_eq!(libc::setrlimit(resource, &raw const limit), 0);
    }
}
