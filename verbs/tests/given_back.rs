//! What a queue gives back, in whatever way, no device touches any more.
#![cfg(feature = "soft")]

mod common;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use common::*;
use verbs::{
    Access, Completion, Cq, Exposed, Gather, Pd, Readable, RecvQueue, RemoteRegion, Scatter,
    SendQueue, SgeList, SharedRecvQueue, WcFields,
};

/// Buffers that came back, each full of one byte; looked at before they are freed.
#[derive(Default)]
struct Back(Mutex<(VecDeque<Buf>, usize)>);

impl Back {
    const KEPT: usize = 48;

    fn keep(&self, mut buffer: Buf) {
        let mut back = self.0.lock().unwrap();
        back.1 += 1;
        let mark = back.1 as u8;
        buffer.fill(mark);
        back.0.push_back(buffer);
        if back.0.len() > Back::KEPT {
            let oldest = back.0.pop_front().unwrap();
            drop(back);
            check(&oldest);
        }
    }

    fn check_all(&self) -> usize {
        let mut back = self.0.lock().unwrap();
        back.0.drain(..).for_each(|buffer| check(&buffer));
        back.1
    }
}

fn check(buffer: &[u8]) {
    let mark = buffer[0];
    let other = buffer.iter().position(|byte| *byte != mark);
    assert_eq!(other, None, "written after it was given back");
}

/// A buffer that is kept when it is dropped.
struct Kept(Option<Buf>, Arc<Back>);

impl Drop for Kept {
    fn drop(&mut self) {
        self.0
            .take()
            .into_iter()
            .for_each(|buffer| self.1.keep(buffer));
    }
}
// SAFETY: owned registered memory.
unsafe impl Gather for Kept {
    fn gather(&self, out: &mut SgeList) {
        self.0.iter().for_each(|buffer| buffer.gather(out));
    }
}
// SAFETY: as above.
unsafe impl Scatter for Kept {
    fn scatter(&mut self, out: &mut SgeList) {
        self.0.iter_mut().for_each(|buffer| buffer.scatter(out));
    }
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % bound
    }
}

enum Receives {
    Own(RecvQueue<Kept>),
    Shared(SharedRecvQueue<Kept>),
}

struct Side {
    pd: Pd,
    cq: Cq,
    tx: SendQueue<Kept>,
    rx: Receives,
    back: Arc<Back>,
    rng: Rng,
    readable: RemoteRegion,
    exposed: RemoteRegion,
}

impl Side {
    fn buffer(&mut self, most: u64) -> Kept {
        let len = 1 + self.rng.below(most) as usize;
        Kept(Some(buf(&self.pd, &vec![0xee; len])), self.back.clone())
    }

    fn post(&mut self) {
        let buffer = self.buffer(9000);
        let _ = match &mut self.rx {
            Receives::Own(rx) => rx.post(buffer),
            Receives::Shared(shared) => shared.post(buffer),
        };
    }

    fn send(&mut self) {
        let (what, often) = (self.rng.below(5), self.rng.below(4) > 0);
        let work = self.buffer(5000);
        macro_rules! post {
            ($wr:expr) => {{
                let wr = $wr;
                let _ = if often {
                    wr.signaled().post()
                } else {
                    wr.post()
                };
            }};
        }
        match what {
            0 | 1 => post!(self.tx.send(work)),
            2 => post!(self.tx.write(work, self.exposed)),
            3 => post!(self.tx.read(work, self.readable)),
            _ => {
                let mut batch = self.tx.batch();
                let _ = batch.write(work, self.exposed).add();
                let work = Kept(Some(buf(&self.pd, &[7; 64])), self.back.clone());
                let _ = batch.send(work).signaled().add();
                let _ = batch.post();
            }
        }
    }

    fn redeem(&mut self, wc: Completion) {
        let wc = match &mut self.rx {
            Receives::Own(rx) => match rx.redeem(wc) {
                Ok(done) => return drop(done),
                Err(stale) => stale.into_completion(),
            },
            Receives::Shared(shared) => match shared.redeem(wc) {
                Ok(done) => return drop(done),
                Err(stale) => stale.into_completion(),
            },
        };
        if let Ok(mut done) = self.tx.retire(wc) {
            while self.tx.take(&mut done).is_some() {}
        }
    }

    fn poll(&mut self) {
        while let Some(wc) = self.cq.poll().unwrap() {
            match self.rng.below(16) {
                0 => drop(wc),
                _ => self.redeem(wc),
            }
        }
        if let Receives::Own(rx) = &mut self.rx {
            while rx.take_lost().is_some() {}
        }
    }

    /// Lends memory to scopes that panic, so that it is had back in the middle of the work.
    fn panics(&mut self) {
        let mut lent = [0; 3].map(|_| buf(&self.pd, &[0xee; 6000]));
        let (exposed, readable) = (self.exposed, self.readable);
        let [a, b, c] = &mut lent;
        let Side { cq, tx, rx, .. } = self;
        let silent = |f: &mut dyn FnMut()| {
            assert!(catch_unwind(AssertUnwindSafe(f)).is_err());
        };
        silent(&mut || {
            let _ = tx.scope(cq, |s| {
                let _ = s.read(a.part_mut(..4000).unwrap(), readable);
                let _ = s.write(b.part(..4000).unwrap(), exposed);
                std::panic::resume_unwind(Box::new(()));
            });
        });
        if let Receives::Own(rx) = rx {
            silent(&mut || {
                let _ = rx.scope(cq, |s| {
                    let _ = s.post(c.part_mut(..).unwrap());
                    std::panic::resume_unwind(Box::new(()));
                });
            });
        }
        lent.into_iter().for_each(|buffer| self.back.keep(buffer));
    }

    fn run(mut self) {
        for _ in 0..40 + self.rng.below(80) {
            match self.rng.below(16) {
                0..6 => self.post(),
                6..12 => self.send(),
                _ => self.poll(),
            }
        }
        match self.rng.below(8) {
            0 => self.tx.set_error().unwrap(),
            1 => self.panics(),
            _ => {}
        }
        let order = self.rng.below(4);
        let Side {
            cq, tx, rx, back, ..
        } = self;
        match (rx, order) {
            (Receives::Own(rx), 0) => drop(verbs::destroy(tx, rx).unwrap()),
            (Receives::Own(rx), 1) => drop((tx, rx, cq)),
            (Receives::Own(rx), _) => drop((cq, rx, tx)),
            (Receives::Shared(shared), 0) => drop((tx.destroy().unwrap(), shared)),
            (Receives::Shared(shared), 1) => drop((shared, tx)),
            (Receives::Shared(shared), _) => drop((cq, tx, shared)),
        }
        drop(back);
    }
}

fn pair_of_sides(pd: &Pd, back: &Arc<Back>, seed: u64, memory: &Memory) -> [Side; 2] {
    let mut rng = Rng(seed);
    let extended = rng.below(3) == 0;
    let cqs = [0, 1].map(|_| match pd.context().cq(256) {
        cq if extended => cq.extended(WcFields::empty()).build().unwrap(),
        cq => cq.build().unwrap(),
    });
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let make = |cq: &Cq, shared: bool| {
        let qp = match pd.rc(cq).send_depth(16).recv_depth(16).access(access) {
            qp if extended => qp.extended(),
            qp => qp,
        };
        match shared {
            true => {
                let queue = pd.shared_recv(16).build::<Kept>().unwrap();
                let ready = qp.shared_recv(&queue).build().unwrap();
                let end = ready.endpoint();
                let (setup, tx) = ready.split::<Kept>();
                (setup, end, tx, Receives::Shared(queue))
            }
            false => {
                let ready = qp.build().unwrap();
                let end = ready.endpoint();
                let (setup, tx, rx) = ready.split::<Kept, Kept>();
                (setup, end, tx, Receives::Own(rx))
            }
        }
    };
    let [a, b] = [0, 1].map(|at| make(&cqs[at], rng.below(3) == 0));
    a.0.connect(&b.1).unwrap();
    b.0.connect(&a.1).unwrap();
    let [cq_a, cq_b] = cqs;
    let side = |cq, tx, rx, rng| Side {
        pd: pd.clone(),
        cq,
        tx,
        rx,
        back: back.clone(),
        rng,
        readable: memory.0.remote(),
        exposed: memory.1.remote(),
    };
    let (one, other) = (Rng(rng.below(u64::MAX)), Rng(rng.below(u64::MAX)));
    [side(cq_a, a.2, a.3, one), side(cq_b, b.2, b.3, other)]
}

type Memory = (Readable<Vec<u8>>, Exposed);

#[test]
fn memory_that_came_back_stays_as_it_is() {
    let pd = device().alloc_pd().unwrap();
    let back = Arc::new(Back::default());
    let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    let memory = (
        pd.readable(vec![1; 8192]).unwrap(),
        pd.expose(8192, access).unwrap(),
    );
    let rounds = std::env::var("VERBATIM_CASES").map_or(40, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let sides = pair_of_sides(&pd, &back, seed, &memory);
        let threads = sides.map(|side| std::thread::spawn(move || side.run()));
        for thread in threads {
            thread.join().unwrap();
        }
    }
    assert!(back.check_all() > rounds as usize * 20);
}

/// A sender, and the queue pair behind it that takes from a shared queue.
fn link(pd: &Pd, cq: &Cq, shared: &SharedRecvQueue<Kept>) -> [SendQueue<Kept>; 2] {
    let builder = || pd.rc(cq).send_depth(8).recv_depth(0);
    let (a, b) = (
        builder().build().unwrap(),
        builder().shared_recv(shared).build().unwrap(),
    );
    let (to_a, to_b) = (a.endpoint(), b.endpoint());
    let (from, _nothing) = a.connect::<Kept, Kept>(&to_b).unwrap();
    [from, b.connect(&to_a).unwrap()]
}

/// Queue pairs come and go, and fail, while their shared queue stays.
#[test]
fn what_a_shared_queue_gave_back_stays_as_it_is() {
    let pd = device().alloc_pd().unwrap();
    let back = Arc::new(Back::default());
    let rounds = std::env::var("VERBATIM_CASES").map_or(20, |n| n.parse().unwrap());
    for seed in 0..rounds {
        let mut rng = Rng(seed);
        let mut cq = pd.context().cq(1024).build().unwrap();
        let mut shared = pd.shared_recv(32).build::<Kept>().unwrap();
        let mut links = [0; 4].map(|_| link(&pd, &cq, &shared));
        for _ in 0..400 {
            let at = rng.below(4) as usize;
            let len = 1 + rng.below(6000) as usize;
            let work = || Kept(Some(buf(&pd, &vec![0xee; len])), back.clone());
            match rng.below(24) {
                0..8 => drop(shared.post(work())),
                8..16 => drop(links[at][0].send(work()).signaled().post()),
                16 => links[at][rng.below(2) as usize].set_error().unwrap(),
                17 => {
                    // What it had may still be polled; room for it is given back when nothing is left.
                    let [from, to] = link(&pd, &cq, &shared);
                    let [old_from, old_to] = std::mem::replace(&mut links[at], [from, to]);
                    match rng.below(3) {
                        0 => drop((old_from, old_to)),
                        1 => drop((old_to.destroy().unwrap(), old_from)),
                        _ => drop((old_to, old_from)),
                    }
                }
                _ => {
                    while let Some(wc) = cq.poll().unwrap() {
                        let wc = match shared.redeem(wc) {
                            Ok(done) => {
                                drop(done);
                                continue;
                            }
                            Err(stale) => stale.into_completion(),
                        };
                        let mut wc = Some(wc);
                        for tx in links.iter_mut().flatten() {
                            match wc.take().map(|wc| tx.retire(wc)) {
                                Some(Ok(mut done)) => while tx.take(&mut done).is_some() {},
                                Some(Err(stale)) => wc = Some(stale.into_completion()),
                                None => break,
                            }
                        }
                    }
                }
            }
        }
        match rng.below(3) {
            0 => drop((links, shared)),
            1 => drop((shared, cq, links)),
            _ => drop((cq, links, shared)),
        }
    }
    assert!(back.check_all() > rounds as usize * 100);
}
