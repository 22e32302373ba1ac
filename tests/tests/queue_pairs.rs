//! Queue pairs between two processes: every kind of work, sizes at every boundary of the device, refusals, and a peer that
//! dies.

use verbatim_tests::{
    Block, Control, Cut, Link, Side, is_pattern, pattern, second_process, second_process_with,
    until,
};
use verbs::{
    Access, Cq, Device, Endpoint, Exposed, OpenError, Pd, RemoteRegion, SendQueue, WcStatus,
};

/// Around what fits a lane's entry, around pages, and large.
const SIZES: [usize; 14] = [
    0,
    1,
    31,
    32,
    33,
    255,
    256,
    257,
    4095,
    4096,
    4097,
    65_537,
    1 << 20,
    (8 << 20) + 3,
];

fn region(control: &mut Control) -> RemoteRegion {
    let bytes = control.receive();
    RemoteRegion::from_bytes(bytes.as_slice().try_into().expect("a region"))
}

#[test]
fn messages_of_all_sizes_arrive_whole_and_in_order() {
    messages("messages_of_all_sizes_arrive_whole_and_in_order", &[]);
}

#[test]
fn messages_arrive_from_an_asynchronous_device() {
    messages(
        "messages_arrive_from_an_asynchronous_device",
        &[("VERBATIM_ASYNC", "7")],
    );
}

fn messages(name: &str, variables: &[(&str, &str)]) {
    match second_process_with(name, variables) {
        Side::Child(mut control) => {
            let mut link: Link<Cut> = Link::new(&mut control, 32);
            control.expect("send");
            for (i, len) in SIZES.into_iter().enumerate() {
                let message = Cut::pattern(&link.pd, len, i as u64);
                link.tx
                    .send(message)
                    .signaled()
                    .imm(i as u32)
                    .post()
                    .unwrap();
            }
            for _ in SIZES {
                link.sent();
            }
            control.expect("received");
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 32);
            for len in SIZES {
                let room = link.pd.register(vec![0xee; len + 1]).unwrap();
                link.rx.post(room).unwrap();
            }
            peer.control.send("send");
            for (i, len) in SIZES.into_iter().enumerate() {
                let message = link.received();
                assert_eq!(message.byte_len() as usize, len);
                assert_eq!(message.imm(), Some(i as u32));
                assert!(is_pattern(message.bytes(), i as u64), "size {len}");
                let room = message.into_inner();
                assert_eq!(room[len], 0xee, "size {len}: one byte too many");
            }
            peer.control.send("received");
            peer.finish();
        }
    }
}

#[test]
fn writes_and_reads_reach_the_memory_they_name_and_no_other() {
    const LEN: usize = 1 << 20;
    match second_process("writes_and_reads_reach_the_memory_they_name_and_no_other") {
        Side::Child(mut control) => {
            let mut link: Link = Link::new(&mut control, 8);
            let (target, source) = (region(&mut control), region(&mut control));
            for len in SIZES.into_iter().filter(|len| (1..=LEN / 2).contains(len)) {
                let data = link.pd.register(pattern(len, len as u64)).unwrap();
                let at = LEN as u64 / 4;
                let room = target.slice(at..at + len as u64).unwrap();
                link.tx
                    .write(data, room)
                    .signaled()
                    .imm(len as u32)
                    .post()
                    .unwrap();
                link.sent();
                // The other side has looked before the next one is written.
                control.expect("next");

                let into = link.pd.register(vec![0; len]).unwrap();
                let from = source.slice(0..len as u64).unwrap();
                link.tx.read(into, from).signaled().post().unwrap();
                assert!(is_pattern(&link.sent(), 42), "read of {len}");
            }
            control.send("done");
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 16);
            let shared: Exposed = link.pd.expose(LEN, Access::REMOTE_WRITE).unwrap();
            let readable = link.pd.readable(pattern(LEN, 42)).unwrap();
            peer.control.send(shared.remote().to_bytes());
            peer.control.send(readable.remote().to_bytes());
            for len in SIZES.into_iter().filter(|len| (1..=LEN / 2).contains(len)) {
                shared.write_at(0, &vec![0xee; LEN]).unwrap();
                let room = link.pd.register(vec![0; 1]).unwrap();
                link.rx.post(room).unwrap();
                if len != 1 {
                    peer.control.send("next");
                }
                let message = link.received();
                assert_eq!(message.imm(), Some(len as u32));
                let mut now = vec![0; LEN];
                shared.read_at(0, &mut now).unwrap();
                let (before, rest) = now.split_at(LEN / 4);
                let (written, after) = rest.split_at(len);
                assert!(is_pattern(written, len as u64), "write of {len}");
                assert!(
                    before.iter().chain(after).all(|&b| b == 0xee),
                    "write of {len}"
                );
            }
            peer.control.send("next");
            peer.control.expect("done");
            peer.finish();
        }
    }
}

#[test]
fn counts_of_two_processes_are_all_counted() {
    counts("counts_of_two_processes_are_all_counted", &[]);
}

#[test]
fn counts_of_an_asynchronous_device_are_all_counted() {
    counts(
        "counts_of_an_asynchronous_device_are_all_counted",
        &[("VERBATIM_ASYNC", "7")],
    );
}

/// A counter of one process that both count on through queue pairs of their own, as fast as they can.
fn counts(name: &str, variables: &[(&str, &str)]) {
    const EACH: u64 = 1000;
    fn connect(pd: &Pd, cq: &Cq, swap: impl FnOnce(Endpoint) -> Endpoint) -> SendQueue<Block> {
        let builder = pd.rc(cq).send_depth(8).recv_depth(0);
        let ready = builder.access(Access::REMOTE_ATOMIC).build().unwrap();
        let peer = swap(ready.endpoint());
        ready.connect::<Block, Block>(&peer).unwrap().0
    }
    /// Counts, and gives the values found.
    fn count(pd: &Pd, cq: &mut Cq, tx: &mut SendQueue<Block>, counter: RemoteRegion) -> Vec<u64> {
        let mut word = pd.register(vec![0; 8]).unwrap();
        let mut found = Vec::new();
        for _ in 0..EACH {
            tx.fetch_and_add(word, counter, 1)
                .signaled()
                .post()
                .unwrap();
            let completion = until("a count is counted", || cq.poll().unwrap());
            let mut done = tx.retire(completion).unwrap();
            let (back, result) = tx.take(&mut done).unwrap();
            result.unwrap();
            found.push(u64::from_ne_bytes(back[..].try_into().unwrap()));
            word = back;
        }
        found
    }
    fn exchange(control: &mut Control, own: Endpoint) -> Endpoint {
        control.send(own.to_bytes());
        Endpoint::from_bytes(&control.receive()).unwrap()
    }
    match second_process_with(name, variables) {
        Side::Child(mut control) => {
            let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
            let mut cq = pd.context().cq(16).build().unwrap();
            let mut tx = connect(&pd, &cq, |own| exchange(&mut control, own));
            let counter = region(&mut control);
            let found = count(&pd, &mut cq, &mut tx, counter);
            let bytes: Vec<u8> = found.iter().flat_map(|n| n.to_ne_bytes()).collect();
            control.send(bytes);
            control.expect("done");
        }
        Side::Parent(mut peer) => {
            let pd = Device::open_spec("soft0").unwrap().alloc_pd().unwrap();
            let mut cq = pd.context().cq(32).build().unwrap();
            let _theirs = connect(&pd, &cq, |own| exchange(&mut peer.control, own));
            let mut ours = connect(&pd, &cq, |own| own);
            let counter: Exposed = pd.expose(8, Access::REMOTE_ATOMIC).unwrap();
            peer.control.send(counter.remote().to_bytes());
            let mut found = count(&pd, &mut cq, &mut ours, counter.remote());
            let bytes = peer.control.receive();
            let words = bytes.chunks_exact(8);
            found.extend(words.map(|word| u64::from_ne_bytes(word.try_into().unwrap())));
            found.sort_unstable();
            assert_eq!(found, (0..2 * EACH).collect::<Vec<_>>(), "each count once");
            let word = counter.atomic_u64(0).unwrap();
            assert_eq!(word.load(std::sync::atomic::Ordering::SeqCst), 2 * EACH);
            peer.control.send("done");
            peer.finish();
        }
    }
}

/// What a peer with the wrong key, right or range is told; the connection is then broken at both ends.
#[test]
fn access_that_was_not_granted_is_refused() {
    match second_process("access_that_was_not_granted_is_refused") {
        Side::Child(mut control) => {
            for case in 0..CASES {
                let mut link: Link = Link::new(&mut control, 8);
                let (readable, writable) = (region(&mut control), region(&mut control));
                let data = link.pd.register(vec![0xbb; 64]).unwrap();
                let beyond = RemoteRegion {
                    addr: writable.addr + writable.len - 63,
                    len: 64,
                    ..writable
                };
                let elsewhere = RemoteRegion {
                    rkey: readable.rkey,
                    ..writable
                };
                match case {
                    0 => link.tx.write(data, readable).signaled().post(),
                    1 => link.tx.read(data, writable).signaled().post(),
                    2 => link.tx.write(data, beyond).signaled().post(),
                    _ => link.tx.write(data, elsewhere).signaled().post(),
                }
                .unwrap();
                let completion = link.completion();
                assert_eq!(completion.status(), WcStatus::REM_ACCESS_ERR, "case {case}");
                let mut done = link.tx.retire(completion).unwrap();
                assert!(link.tx.take(&mut done).unwrap().1.is_err());
                control.send("refused");
            }
        }
        Side::Parent(mut peer) => {
            for case in 0..CASES {
                let mut link: Link = Link::new(&mut peer.control, 8);
                let readable = link.pd.readable(vec![0xaa; 64]).unwrap();
                let writable = link.pd.expose(64, Access::REMOTE_WRITE).unwrap();
                writable.write_at(0, &[0xaa; 64]).unwrap();
                link.rx
                    .post(link.pd.register(vec![0; 64]).unwrap())
                    .unwrap();
                peer.control.send(readable.remote().to_bytes());
                peer.control.send(writable.remote().to_bytes());
                peer.control.expect("refused");
                assert_eq!(&readable[..], &[0xaa; 64], "case {case}");
                let mut now = [0; 64];
                writable.read_at(0, &mut now).unwrap();
                assert_eq!(now, [0xaa; 64], "case {case}");
                // This side's queue pair is in error too: the posted receive is flushed.
                let completion = link.completion();
                assert_eq!(completion.status(), WcStatus::WR_FLUSH_ERR, "case {case}");
            }
            peer.finish();
        }
    }
}

const CASES: usize = 4;

#[test]
fn work_for_a_dead_peer_fails_and_does_not_hang() {
    match second_process("work_for_a_dead_peer_fails_and_does_not_hang") {
        Side::Child(mut control) => {
            let link: Link = Link::new(&mut control, 8);
            let shared = link.pd.expose(4096, Access::REMOTE_WRITE).unwrap();
            control.send(shared.remote().to_bytes());
            control.expect("never sent: this process is killed here");
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 8);
            let target = region(&mut peer.control);
            peer.kill();
            for _ in 0..2 {
                let data = link.pd.register(vec![1; 4096]).unwrap();
                link.tx.write(data, target).signaled().post().unwrap();
                let completion = link.completion();
                assert!(!completion.is_ok(), "{completion:?}");
                let mut done = link.tx.retire(completion).unwrap();
                let (data, result) = link.tx.take(&mut done).unwrap();
                assert!(result.is_err());
                assert_eq!(data.len(), 4096, "the buffer comes back");
            }
        }
    }
}

#[test]
fn a_stopped_peer_delays_nobody_who_writes_to_it() {
    match second_process("a_stopped_peer_delays_nobody_who_writes_to_it") {
        Side::Child(mut control) => {
            let link: Link = Link::new(&mut control, 8);
            let shared = link.pd.expose(1 << 16, Access::REMOTE_WRITE).unwrap();
            control.send(shared.remote().to_bytes());
            control.expect("look");
            let mut now = vec![0; 1 << 16];
            shared.read_at(0, &mut now).unwrap();
            assert!(is_pattern(&now, 9));
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 8);
            let target = region(&mut peer.control);
            peer.stop();
            let data = link.pd.register(pattern(1 << 16, 9)).unwrap();
            link.tx.write(data, target).signaled().post().unwrap();
            link.sent();
            peer.resume();
            peer.control.send("look");
            peer.finish();
        }
    }
}

#[test]
fn an_unknown_device_is_named_together_with_those_there_are() {
    let error = Device::open_spec("no_such_device").unwrap_err();
    assert!(
        matches!(error, OpenError::UnknownDevice { .. }),
        "{error:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("no_such_device") && text.contains("soft0"),
        "{text}"
    );
    for spec in ["soft0:9", "soft0:1:99", "soft0:x", "soft0:1:2:3", ""] {
        let error = Device::open_spec(spec).unwrap_err().to_string();
        assert!(!error.is_empty(), "{spec}");
    }
}

#[test]
fn a_peer_that_is_not_there_is_an_error() {
    let ctx = Device::open_spec("soft0").unwrap();
    let pd = ctx.alloc_pd().unwrap();
    let mut cq = ctx.cq(128).build().unwrap();
    let ready = pd.rc(&cq).timeout(1).retry_cnt(1).build().unwrap();
    let own = ready.endpoint();
    let nobody = Endpoint::new(0xff_fffe, 1, 0, own.gid(), own.mtu(), 1).unwrap();
    // The device may notice at once, or when work is not answered; it must say so in either case.
    let Ok((mut tx, _rx)) = ready.connect::<Block, Block>(&nobody) else {
        return;
    };
    tx.send(pd.register(vec![1; 8]).unwrap())
        .signaled()
        .post()
        .unwrap();
    let completion = until("the failure is reported", || cq.poll().unwrap());
    assert!(!completion.is_ok(), "{completion:?}");
}
