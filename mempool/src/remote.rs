//! The list by which other threads give slabs back to the thread that owns them.
//!
//! Invariants:
//!
//! * A node is on at most one list, and whoever pushes it gives it away: it is not touched again by the
//!   pusher once the push has succeeded. That success is the pusher's last access to the list as well, because
//!   whoever takes the node may be the last to need the list.
//! * The link of a node is written by its pusher before the push and read by whoever took the whole list.
//!   Nodes are only ever taken all at once, so a head that has gone and come back does no harm.
//! * A closed list takes nothing. The pusher is told, and keeps the node; thus nothing is pushed to a thread that has
//!   ended. Closing and reopening are done under the lock of the pool's registry.

use crate::sync::{AtomicPtr, Ordering, UnsafeCell};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// Link of a node, in the node's private metadata.
#[derive(Debug)]
pub(crate) struct Link<T>(UnsafeCell<*mut T>);

impl<T> Link<T> {
    pub fn new() -> Self {
        Link(UnsafeCell::new(ptr::null_mut()))
    }

    /// # Safety
    /// The caller has the node to itself.
    #[inline]
    pub unsafe fn set(&self, next: *mut T) {
        // SAFETY: exclusive, by the caller's promise.
        self.0.with_mut(|p| unsafe { *p = next });
    }

    /// # Safety
    /// The caller has the node to itself.
    #[inline]
    pub unsafe fn get(&self) -> *mut T {
        // SAFETY: exclusive, by the caller's promise.
        self.0.with(|p| unsafe { *p })
    }
}

/// What can be on a [`RemoteList`].
pub(crate) trait Node: Sized {
    fn link(&self) -> &Link<Self>;
}

/// The list is closed; the node is still the caller's.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Closed;

/// Many push, one takes everything.
#[derive(Debug)]
pub(crate) struct RemoteList<T> {
    head: AtomicPtr<T>,
}

fn closed<T>() -> *mut T {
    ptr::without_provenance_mut(1)
}

impl<T: Node> RemoteList<T> {
    #[cfg(test)]
    pub fn new() -> Self {
        RemoteList {
            head: AtomicPtr::new(ptr::null_mut()),
        }
    }

    /// A list that takes nothing.
    pub fn new_closed() -> Self {
        RemoteList {
            head: AtomicPtr::new(closed()),
        }
    }

    /// Pushes `node`: one compare-and-swap when nobody else pushes.
    ///
    /// # Safety
    /// The caller has `node` to itself and gives it away; it stays allocated while it is on the list.
    #[inline]
    pub unsafe fn push(&self, node: NonNull<T>) -> Result<(), Closed> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head == closed() {
                return Err(Closed);
            }
            // SAFETY: the node is the caller's until the push has succeeded.
            unsafe { node.as_ref().link().set(head) };
            match self.head.compare_exchange_weak(
                head,
                node.as_ptr(),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => head = now,
            }
        }
    }

    /// Whether there is nothing to take.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        head.is_null() || head == closed()
    }

    /// Takes everything; a closed list stays closed.
    #[inline]
    pub fn drain(&self) -> Drained<T> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            if head.is_null() || head == closed() {
                return Drained::of(ptr::null_mut());
            }
            // Not a plain swap: that would reopen a list closed in between.
            match self.head.compare_exchange_weak(
                head,
                ptr::null_mut(),
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Drained::of(head),
                Err(now) => head = now,
            }
        }
    }

    /// Closes the list and takes what was on it.
    pub fn close(&self) -> Drained<T> {
        let head = self.head.swap(closed(), Ordering::AcqRel);
        Drained::of(if head == closed() {
            ptr::null_mut()
        } else {
            head
        })
    }

    /// Opens the list if it is closed.
    pub fn reopen_if_closed(&self) {
        let _ = self.head.compare_exchange(
            closed(),
            ptr::null_mut(),
            Ordering::Release,
            Ordering::Relaxed,
        );
    }
}

/// Nodes taken from a list; each is the caller's alone once it is yielded.
#[derive(Debug)]
pub(crate) struct Drained<T> {
    next: *mut T,
    _own: PhantomData<*mut T>,
}

impl<T> Drained<T> {
    fn of(next: *mut T) -> Self {
        Drained {
            next,
            _own: PhantomData,
        }
    }
}

impl<T: Node> Iterator for Drained<T> {
    type Item = NonNull<T>;

    #[inline]
    fn next(&mut self) -> Option<NonNull<T>> {
        let node = NonNull::new(self.next)?;
        // SAFETY: the whole list was taken at once, so the node is ours; the acquire of the taking orders this read
        // after the pusher's write of the link.
        self.next = unsafe { node.as_ref().link().get() };
        Some(node)
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    struct N {
        link: Link<N>,
        payload: UnsafeCell<u32>,
    }

    impl Node for N {
        fn link(&self) -> &Link<N> {
            &self.link
        }
    }

    /// A node as a raw pointer that may cross threads.
    #[derive(Clone, Copy)]
    struct Raw(NonNull<N>);
    // SAFETY: the tests hand each node from thread to thread by the list under test only.
    unsafe impl Send for Raw {}

    fn node() -> Raw {
        let boxed = Box::new(N {
            link: Link::new(),
            payload: UnsafeCell::new(0),
        });
        Raw(NonNull::from(Box::leak(boxed)))
    }

    /// Writes the payload, then pushes; a refused node is freed here and counted.
    fn give(list: &RemoteList<N>, raw: Raw, value: u32) -> Option<u32> {
        // SAFETY: the node is this thread's until the push.
        unsafe { raw.0.as_ref().payload.with_mut(|p| *p = value) };
        // SAFETY: as above, and nodes live until taken.
        match unsafe { list.push(raw.0) } {
            Ok(()) => None,
            Err(Closed) => Some(take(raw.0)),
        }
    }

    fn take(node: NonNull<N>) -> u32 {
        // SAFETY: the caller took the node from the list, or was refused: it is the only user.
        let boxed = unsafe { Box::from_raw(node.as_ptr()) };
        // SAFETY: as above.
        boxed.payload.with(|p| unsafe { *p })
    }

    /// Each of the values is returned exactly once, by whichever way.
    fn check(mut values: Vec<u32>, expected: &[u32]) {
        values.sort_unstable();
        assert_eq!(values, expected);
    }

    #[test]
    fn loom_two_pushers_and_the_owner() {
        loom::model(|| {
            let list = Arc::new(RemoteList::new());
            let pushers: Vec<_> = [1, 2]
                .map(|value| {
                    let (list, raw) = (list.clone(), node());
                    thread::spawn(move || {
                        let raw = raw;
                        assert_eq!(give(&list, raw, value), None);
                    })
                })
                .into();
            let mut got: Vec<u32> = list.drain().map(take).collect();
            for p in pushers {
                p.join().unwrap();
            }
            got.extend(list.drain().map(take));
            check(got, &[1, 2]);
        });
    }

    #[test]
    fn loom_one_thread_pushes_two_while_two_take() {
        loom::model(|| {
            let list = Arc::new(RemoteList::new());
            let pusher = {
                let (list, a, b) = (list.clone(), node(), node());
                thread::spawn(move || {
                    let (a, b) = (a, b);
                    give(&list, a, 1);
                    give(&list, b, 2);
                })
            };
            let foreign = {
                let list = list.clone();
                thread::spawn(move || list.drain().map(take).collect::<Vec<_>>())
            };
            let mut got: Vec<u32> = list.drain().map(take).collect();
            pusher.join().unwrap();
            got.extend(foreign.join().unwrap());
            got.extend(list.drain().map(take));
            check(got, &[1, 2]);
        });
    }

    #[test]
    fn loom_nothing_is_lost_when_the_owner_ends() {
        loom::model(|| {
            let list = Arc::new(RemoteList::new());
            let pushers: Vec<_> = [1, 2]
                .map(|value| {
                    let (list, raw) = (list.clone(), node());
                    thread::spawn(move || {
                        let raw = raw;
                        give(&list, raw, value)
                    })
                })
                .into();
            let mut got: Vec<u32> = list.close().map(take).collect();
            for p in pushers {
                got.extend(p.join().unwrap());
            }
            assert!(list.is_empty());
            assert_eq!(list.drain().count(), 0);
            check(got, &[1, 2]);
        });
    }

    #[test]
    fn loom_taking_never_reopens_a_closed_list() {
        loom::model(|| {
            let list = Arc::new(RemoteList::new());
            let raw = node();
            assert_eq!(give(&list, raw, 1), None);
            let foreign = {
                let list = list.clone();
                thread::spawn(move || list.drain().map(take).collect::<Vec<_>>())
            };
            let mut got: Vec<u32> = list.close().map(take).collect();
            got.extend(foreign.join().unwrap());
            check(got, &[1]);
            assert_eq!(give(&list, node(), 2), Some(2));
            list.reopen_if_closed();
            assert_eq!(give(&list, node(), 3), None);
            check(list.drain().map(take).collect(), &[3]);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    struct N {
        link: Link<N>,
        value: u32,
    }

    impl Node for N {
        fn link(&self) -> &Link<N> {
            &self.link
        }
    }

    #[test]
    fn taken_in_reverse_order_and_refused_when_closed() {
        let nodes: Vec<N> = (0..3)
            .map(|value| N {
                link: Link::new(),
                value,
            })
            .collect();
        let list = RemoteList::new();
        for node in &nodes {
            // SAFETY: each node is pushed once and outlives the list.
            unsafe { list.push(NonNull::from(node)) }.unwrap();
        }
        // SAFETY: the nodes outlive the list.
        let values: Vec<u32> = list.drain().map(|n| unsafe { n.as_ref().value }).collect();
        assert_eq!(values, [2, 1, 0]);
        assert!(list.is_empty());
        assert_eq!(list.close().count(), 0);
        // SAFETY: the node is on no list.
        assert_eq!(unsafe { list.push(NonNull::from(&nodes[0])) }, Err(Closed));
    }
}
