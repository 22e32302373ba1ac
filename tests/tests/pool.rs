//! The pool against a peer that overwrites everything it may.

use mempool::{Budget, Buf, ExposedBuf, Pool, SgList, sg};
use std::collections::BTreeMap;
use verbatim_tests::{
    Block, Control, Link, Side, fill, is_pattern, memory_files, second_process, second_process_with,
};
use verbs::{Pd, RemoteRegion, SendQueue};

fn pool(pd: &Pd) -> Pool {
    Pool::builder(pd)
        .budget(Budget::user(256 << 20))
        // The key of the whole arena, so that the peer can do its worst.
        .trusted_peers(true)
        .build()
        .unwrap()
}

/// The mapping that an address lies in: the whole arena, from `/proc/self/maps`.
fn mapping(address: u64) -> (u64, u64) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let ranges = maps.lines().filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        Some((number(start)?, number(end)?))
    });
    ranges
        .into_iter()
        .find(|(start, end)| (*start..*end).contains(&address))
        .expect("the address is mapped")
}

/// Sizes in every class, and beyond.
const SIZES: [usize; 12] = [
    1,
    64,
    65,
    500,
    4096,
    5000,
    30_000,
    65_536,
    300_000,
    1 << 20,
    (1 << 20) + 1,
    6 << 20,
];

#[test]
fn garbage_over_a_whole_exposed_arena_leaves_the_pool_sound() {
    garbage(
        "garbage_over_a_whole_exposed_arena_leaves_the_pool_sound",
        &[],
    );
}

#[test]
fn garbage_from_an_asynchronous_device_leaves_the_pool_sound() {
    garbage(
        "garbage_from_an_asynchronous_device_leaves_the_pool_sound",
        &[("VERBATIM_ASYNC", "11")],
    );
}

fn garbage(name: &str, variables: &[(&str, &str)]) {
    match second_process_with(name, variables) {
        Side::Child(mut control) => {
            let mut link: Link = Link::new(&mut control, 8);
            for round in 0..ROUNDS {
                let target = control.receive();
                let target = RemoteRegion::from_bytes(target.as_slice().try_into().unwrap());
                // Bytes that look like nothing, like pointers, like small numbers.
                let mut data = vec![0; target.len as usize];
                match round {
                    0 => data.fill(0xff),
                    1 => fill(&mut data, 99),
                    _ => data.fill(1),
                }
                let data = link.pd.register(data).unwrap();
                link.tx.write(data, target).signaled().post().unwrap();
                link.sent();
                control.send("written");
            }
            control.expect("done");
        }
        Side::Parent(mut peer) => {
            let link: Link = Link::new(&mut peer.control, 8);
            let pool = pool(&link.pd);
            let mut kept: Vec<ExposedBuf> = SIZES.map(|size| pool.exposed(size).unwrap()).into();
            let private = private_with_patterns(&pool);
            for _ in 0..ROUNDS {
                // Some in use, some free, some of them freed by another thread.
                let mut given_back = Vec::new();
                for (i, buf) in std::mem::take(&mut kept).into_iter().enumerate() {
                    if i % 2 == 0 {
                        kept.push(buf)
                    } else {
                        given_back.push(buf)
                    }
                }
                let elsewhere = given_back.split_off(given_back.len() / 2);
                drop(given_back);
                std::thread::spawn(move || drop(elsewhere)).join().unwrap();

                let of = kept[0].remote().expect("an arena with a key");
                let (start, end) = mapping(of.addr);
                let arena = RemoteRegion {
                    addr: start,
                    len: end - start,
                    rkey: of.rkey,
                };
                peer.control.send(arena.to_bytes());
                peer.control.expect("written");
                let mut now = [0; 1];
                kept[0].read_at(0, &mut now).unwrap();
                assert_ne!(now, [0], "the garbage has arrived");

                works(&pool, &mut kept);
                for (seed, buf) in private.iter().enumerate() {
                    assert!(is_pattern(buf, seed as u64), "private memory is as it was");
                }
            }
            peer.control.send("done");
            peer.finish();
        }
    }
}

const ROUNDS: usize = 3;

fn private_with_patterns(pool: &Pool) -> Vec<Buf> {
    let with_pattern = |(seed, size): (usize, usize)| {
        let mut buf = pool.alloc(size).unwrap();
        fill(&mut buf, seed as u64);
        buf
    };
    SIZES.into_iter().enumerate().map(with_pattern).collect()
}

/// What a pool must do, as seen from outside: hand out memory that is nobody else's, of the length asked for, take it back from
/// any thread, and count right.
fn works(pool: &Pool, kept: &mut Vec<ExposedBuf>) {
    for round in 0..20 {
        for size in SIZES {
            kept.push(pool.exposed(size).unwrap());
        }
        disjoint(kept);
        for (i, buf) in kept.iter().enumerate() {
            let mark = [(i + round) as u8 | 1];
            buf.write_at(buf.len() - 1, &mark).unwrap();
            let mut now = [0];
            buf.read_at(buf.len() - 1, &mut now).unwrap();
            assert_eq!(now, mark);
            assert!(buf.read_at(buf.len(), &mut now).is_err());
        }
        // Half goes back, every other time by way of another thread.
        let back = kept.split_off(kept.len() - SIZES.len() + round % 2);
        if round % 2 == 0 {
            drop(back);
        } else {
            std::thread::spawn(move || drop(back)).join().unwrap();
        }
    }
    disjoint(kept);
    drop(private_with_patterns(pool));
}

fn disjoint(bufs: &[ExposedBuf]) {
    let by_start: BTreeMap<u64, u64> = bufs
        .iter()
        .map(|buf| buf.remote().unwrap())
        .map(|r| (r.addr, r.addr + r.len))
        .collect();
    assert_eq!(
        by_start.len(),
        bufs.len(),
        "no two begin at the same address"
    );
    for ((_, end), (start, _)) in by_start.iter().zip(by_start.iter().skip(1)) {
        assert!(end <= start, "no two overlap");
    }
}

#[test]
fn segments_of_every_origin_leave_as_one_message() {
    match second_process("segments_of_every_origin_leave_as_one_message") {
        Side::Child(mut control) => {
            let mut link: Link<SgList> = Link::new(&mut control, 8);
            let pool = pool(&link.pd);
            let (head, tail) = pool.alloc_from_slice(b"head and tail").unwrap().split_at(5);
            let shared = pool.alloc_from_slice(b"shared by many").unwrap().freeze();
            let registered = link.pd.register(b"registered by itself ".to_vec()).unwrap();
            control.expect("send");
            let message = sg![head, shared.slice(0..7), registered, tail];
            let tx: &mut SendQueue<SgList> = &mut link.tx;
            tx.send(message).signaled().post().unwrap();
            let back = link.sent();
            assert_eq!(back.segment_count(), 4, "the segments come back");
            control.expect("received");
        }
        Side::Parent(mut peer) => {
            let mut link: Link = Link::new(&mut peer.control, 8);
            let room: Block = link.pd.register(vec![0; 100]).unwrap();
            link.rx.post(room).unwrap();
            peer.control.send("send");
            let message = link.received();
            assert_eq!(
                std::str::from_utf8(message.bytes()).unwrap(),
                "head shared registered by itself and tail"
            );
            peer.control.send("received");
            peer.finish();
        }
    }
}

#[test]
fn arenas_of_a_pool_are_sealed() {
    match second_process("arenas_of_a_pool_are_sealed") {
        Side::Child(mut control) => {
            let ctx = verbs::Device::open_spec("soft0").unwrap();
            let pool = pool(&ctx.alloc_pd().unwrap());
            let mut buf = pool.alloc(4096).unwrap();
            fill(&mut buf, 5);
            made(&mut control);
            assert!(is_pattern(&buf, 5));
        }
        Side::Parent(mut peer) => {
            peer.control.expect("made");
            let mut arenas = 0;
            for (fd, name) in memory_files(peer.pid()) {
                let file = std::fs::File::options()
                    .read(true)
                    .write(true)
                    .open(format!("/proc/{}/fd/{fd}", peer.pid()));
                let Ok(file) = file else { continue };
                if file.metadata().unwrap().len() < 4 << 20 {
                    continue;
                }
                arenas += 1;
                assert!(file.set_len(0).is_err(), "{name} can be truncated");
                let written = std::os::unix::fs::FileExt::write_at(&file, b"x", 0);
                assert!(written.is_err(), "{name} can be written");
            }
            assert!(arenas > 0, "an arena is found");
            peer.control.send("tried");
            peer.finish();
        }
    }
}

fn made(control: &mut Control) {
    control.send("made");
    control.expect("tried");
}
