//! Lists on the user-space device: what was joined, parted, copied together or is of foreign make arrives, and READs fill several buffers.
#![cfg(not(loom))]

use mempool::{BudgetKind, Buf, Kind, Pool, ScatterList, Segment, SgList, sg};
use std::sync::Arc;
use std::time::{Duration, Instant};
use verbs::{Completion, Cq, Device, Pd, RecvQueue, SendQueue};

/// Nothing here takes a second; a test that reaches this hangs.
const HANG: Duration = Duration::from_secs(60);

/// A queue pair connected to itself, whose work requests take four segments.
struct Loop {
    cq: Cq,
    tx: SendQueue<SgList>,
    rx: RecvQueue<Buf>,
    pool: Pool,
    pd: Pd,
}

const MAX_SGE: usize = 4;

impl Loop {
    fn new() -> Loop {
        let device = Device::open_spec("soft0").expect("the user-space device opens anywhere");
        let pd = device.alloc_pd().unwrap();
        let cq = device.cq(64).build().unwrap();
        let ready = pd.rc(&cq).send_depth(16).recv_depth(16);
        let ready = ready.max_send_sge(MAX_SGE as u32).build().unwrap();
        let own = ready.endpoint();
        let (tx, rx) = ready.connect(&own).unwrap();
        let pool = Pool::builder(&pd).build().unwrap();
        Loop {
            cq,
            tx,
            rx,
            pool,
            pd,
        }
    }

    fn next(&mut self) -> Completion {
        let start = Instant::now();
        loop {
            if let Some(completion) = self.cq.poll().unwrap() {
                return completion;
            }
            assert!(start.elapsed() < HANG, "no completion");
            std::thread::yield_now();
        }
    }

    /// What arrives when this list is sent, and the list.
    fn send(&mut self, list: SgList) -> (Vec<u8>, SgList) {
        let room = self
            .pool
            .alloc_in(BudgetKind::Receive, Kind::Receive, 1 << 16);
        self.rx.post(room.unwrap()).unwrap();
        self.tx.send(list).signaled().post().unwrap();
        let (mut arrived, mut sent) = (None, None);
        while arrived.is_none() || sent.is_none() {
            let completion = self.next();
            if completion.queue() == self.rx.id() {
                let message = self.rx.redeem(completion).unwrap().unwrap();
                arrived = Some(message.bytes().to_vec());
            } else {
                let mut done = self.tx.retire(completion).unwrap();
                let (list, result) = self.tx.take(&mut done).unwrap();
                result.unwrap();
                sent = Some(list);
            }
        }
        (arrived.unwrap(), sent.unwrap())
    }
}

#[test]
fn a_list_of_too_many_segments_is_sent_after_joining_copying_or_as_several_messages() {
    let mut queue = Loop::new();
    let pool = queue.pool.clone();
    let long = |queue: &Loop| {
        let (head, tail) = pool.alloc_from_slice(&[1; 700]).unwrap().split_at(300);
        let readable = Arc::new(queue.pd.readable(vec![2u8; 900]).unwrap());
        let vec = pool.try_from_vec(vec![3; 5000], &queue.pd, 4096).unwrap();
        assert!(!vec.was_copied());
        sg![
            pool.alloc_from_slice(b"he").unwrap(),
            pool.alloc_from_slice(b"ader").unwrap(),
            head,
            tail,
            Segment::foreign(readable),
            vec,
        ]
    };
    let list = long(&queue);
    let bytes = list.copy_to_vec();
    // As it is, it does not fit, and comes back.
    let refused = queue.tx.send(list).signaled().post().unwrap_err();
    let mut list = refused.into_inner();
    assert_eq!(list.copy_to_vec(), bytes);

    assert_eq!(list.join_neighbours(), 1);
    assert_eq!(list.coalesce(&pool, 64).unwrap(), 6);
    assert_eq!(list.segment_count(), MAX_SGE);
    let (arrived, back) = queue.send(list);
    assert_eq!(
        (arrived, back.copy_to_vec()),
        (bytes.clone(), bytes.clone())
    );

    let mut arrived = Vec::new();
    for list in long(&queue).into_lists(MAX_SGE) {
        arrived.push(queue.send(list).0);
    }
    assert_eq!((arrived.len(), arrived.concat()), (2, bytes.clone()));

    let mut head = long(&queue);
    let tail = head.split_off(500).unwrap();
    let arrived = [queue.send(head).0, queue.send(tail).0];
    assert_eq!((arrived[0].len(), arrived.concat()), (500, bytes));
}

#[test]
fn a_read_fills_several_buffers() {
    let mut queue = Loop::new();
    let source: Vec<u8> = (0..12_000u32).map(|i| (i % 251) as u8).collect();
    let readable = queue.pd.readable(source.clone()).unwrap();
    let mut pages = ScatterList::new();
    for len in [4096, 100, 4096] {
        pages.push(queue.pool.alloc(len).unwrap()).unwrap();
    }
    let own = queue.pd.register(vec![0u8; 12_000 - 2 * 4096 - 100]);
    pages.push(own.unwrap()).unwrap();
    queue
        .tx
        .read(pages, readable.remote())
        .signaled()
        .post()
        .unwrap();
    let completion = queue.next();
    let mut done = queue.tx.retire(completion).unwrap();
    let (list, result) = queue.tx.take(&mut done).unwrap();
    result.unwrap();
    assert_eq!(list.copy_to_vec(), source);
    let first = list.into_segments().next().unwrap().into_buf().unwrap();
    assert_eq!(first[..], source[..4096]);
}

#[test]
fn a_vector_is_copied_up_to_the_length_given_and_registered_where_it_lies_beyond() {
    let queue = Loop::new();
    for (len, copied) in [(0, true), (99, true), (100, true), (101, false)] {
        let vec = vec![7; len];
        let at = vec.as_ptr();
        let made = queue.pool.try_from_vec(vec, &queue.pd, 100).unwrap();
        assert_eq!(made.was_copied(), copied, "{len}");
        assert_eq!(made.as_ref(), vec![7; len]);
        if len > 0 {
            assert_eq!(made.as_ref().as_ptr() != at, copied, "{len}");
        }
    }
}

#[test]
fn a_vector_that_cannot_be_copied_or_registered_comes_back() {
    let queue = Loop::new();
    let poor = Pool::builder(&queue.pd)
        .budget(mempool::Budget::user(0))
        .build()
        .unwrap();
    let refused = poor.try_from_vec(vec![1; 10], &queue.pd, 10).unwrap_err();
    assert_eq!(refused.vec, [1; 10]);
    let text = refused.to_string();
    assert!(
        text.contains("10 bytes") && text.contains("budget"),
        "{text}"
    );
    let empty = poor.try_from_vec(Vec::new(), &queue.pd, 0).unwrap();
    assert!(empty.was_copied() && empty.as_ref().is_empty());
}
