//! Several requests with one doorbell.
//!
//! What is added is made ready at once, and stays here: a slot and credits are only taken when all of it is posted. So nothing has
//! happened when a batch is dropped, and nothing of it is waited for while it grows.

use super::flight::Flight;
use super::small_batch::SmallBatch;
use super::submit::Unsent;
use super::{Client, Pending};
use crate::clock::Moment;
use crate::deadline::Deadline;
use crate::destination::{Destination, Room};
use crate::error::{Buffers, CallError, NotSentReason};
use crate::link::{Link, Several, Together};
use crate::names::Method;
use crate::outgoing::Ready;
use crate::payload::Payload;
use crate::wire::{Header, Kind, SlotId};
use mempool::SgList;
use std::fmt;
use std::sync::Arc;

/// Requests that are sent together, with one doorbell: made by [`Client::batch`].
///
/// Each is a call of its own, with its own deadline, reply and error. Dropping the batch sends nothing, and frees what was added.
#[must_use = "nothing is sent before .post()"]
pub struct Batch<'c> {
    client: &'c mut Client,
}

/// What a batch holds. The memory stays with the client, for the next one.
#[derive(Default)]
pub(super) struct Batched {
    pub items: Vec<Item>,
    /// What they take of a ring.
    pub bytes: u64,
    /// Keys of the calls that are being posted.
    pub keys: Vec<usize>,
    /// Requests that are small: all of them, or none.
    pub small: SmallBatch,
}

impl Batched {
    fn clear(&mut self) {
        self.items.clear();
        self.bytes = 0;
        self.small.clear();
    }

    /// Requests in it.
    fn len(&self) -> usize {
        self.items.len() + self.small.len()
    }
}

/// A request that is ready.
pub(super) struct Item {
    method: Method,
    deadline: Deadline,
    ready: Ready,
    destination: Option<Room>,
}

impl Client {
    /// Begins a batch: requests that are sent together, with one doorbell of the device instead of one each.
    ///
    /// ```
    /// # use rpc::{Client, Deadline, Method, Server};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = Server::bind("127.0.0.1:0")?
    /// #     .serve(|_core| |request: rpc::Request<'_>, responder: rpc::Responder| responder.reply(request.body()))?;
    /// let mut client = Client::connect(server.local_addr())?;
    /// let deadline = Deadline::after_ms(10_000);
    /// let mut batch = client.batch();
    /// for name in ["one", "two", "three"] {
    ///     batch.add(Method(1), name, deadline)?;
    /// }
    /// for pending in batch.post() {
    ///     println!("{:?}", pending.wait(&mut client)?.bytes());
    /// }
    /// # Ok(()) }
    /// ```
    pub fn batch(&mut self) -> Batch<'_> {
        // Of a batch that was forgotten.
        self.batched.clear();
        Batch { client: self }
    }
}

impl Batch<'_> {
    /// Adds a request. It does not wait, but for a [new connection](crate::ClientBuilder::reconnect): where all slots or credits are taken, the request stays with the caller.
    ///
    /// # Errors
    /// [`CallError::NotSent`], with the payload's segments: [`NotSentReason::Full`] when no more can be sent at once now; what was added
    /// before stays in the batch.
    pub fn add(
        &mut self,
        method: Method,
        payload: impl Payload,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        self.add_with(method, payload, None, deadline)
    }

    /// Like [`add`](Self::add), with a destination as for [`Client::call_into`]; [`Reply::take_destination`](crate::Reply::take_destination)
    /// gives it back.
    ///
    /// # Errors
    /// As [`add`](Self::add); the destination comes back as well.
    pub fn add_into(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: impl Destination,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        self.add_with(method, payload, Some(destination.into_room()), deadline)
    }

    fn add_with(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: Option<Room>,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        if destination.is_none()
            && let Some(bytes) = payload.as_bytes()
            && self.client.add_small(method, bytes, deadline)
        {
            return Ok(());
        }
        self.client
            .add_other(method, payload, destination, deadline)
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.client.batched.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many more can be added now, however long they are; of short ones it may be more. Takes in what has arrived.
    pub fn room(&mut self) -> usize {
        // It may make progress, and so change what was counted.
        self.client.batched.small.look_again();
        self.client.room_in_batch()
    }

    /// Sends all of it; a pending call for each request, in the order in which they were added.
    ///
    /// If the connection has ended, or the device refuses a request, which ends it, the calls say so: with
    /// [`NotSent`](CallError::NotSent) where the request never left, with its buffers.
    pub fn post(self) -> Vec<Pending> {
        let mut calls = Vec::with_capacity(self.len());
        self.post_into(&mut calls);
        calls
    }

    /// As [`post`](Self::post), into a collection of the caller's, so that nothing need be allocated.
    pub fn post_into(self, calls: &mut impl Extend<Pending>) {
        let mut batched = std::mem::take(&mut self.client.batched);
        self.client.post_batch(&mut batched);
        let dropped = &self.client.dropped;
        calls.extend(batched.keys.drain(..).map(|key| Pending::new(key, dropped)));
        self.client.batched = batched;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        self.client.batched.clear();
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batch").field("len", &self.len()).finish()
    }
}

impl Client {
    /// Whether requests wait in a batch.
    pub(super) fn has_batch(&self) -> bool {
        self.batched.len() > 0
    }

    /// Adds a request, and makes it ready. Those that are small and were added before it become such as well: all of a batch are posted the same way.
    #[inline(never)]
    fn add_other(
        &mut self,
        method: Method,
        payload: impl Payload,
        destination: Option<Room>,
        deadline: Deadline,
    ) -> Result<(), CallError> {
        let made = match self.fits(deadline).and_then(|()| self.grow_up()) {
            Ok(()) => self.make_item(payload, deadline),
            Err(reason) => {
                let segments = payload.as_bytes().is_none();
                Err(Box::new((
                    reason,
                    segments.then(|| payload.into_segments()),
                )))
            }
        };
        match made {
            Ok(ready) => {
                self.push_item(Item {
                    method,
                    deadline,
                    ready,
                    destination,
                });
                Ok(())
            }
            Err(unsent) => {
                let (reason, segments) = *unsent;
                let buffers = Buffers::new(segments, destination);
                Err(CallError::not_sent(reason, buffers))
            }
        }
    }

    fn push_item(&mut self, item: Item) {
        let len = item.ready.header.len() + item.ready.body.len();
        let room = |link: &Link| link.room_of(len);
        self.batched.bytes += self.link.as_ref().map_or(0, room);
        self.batched.items.push(item);
    }

    /// Makes the small requests of the batch ready like others. On failure the batch is as it was.
    fn grow_up(&mut self) -> Result<(), NotSentReason> {
        if self.batched.small.len() == 0 {
            return Ok(());
        }
        let small = std::mem::take(&mut self.batched.small);
        let made = small.each().map(|(method, deadline, bytes)| {
            let outgoing = self.take_in(bytes)?;
            Ok(Item {
                method,
                deadline,
                ready: self.make(outgoing)?,
                destination: None,
            })
        });
        let made: Result<Vec<Item>, Unsent> = made.collect();
        self.batched.small = small;
        let items = made.map_err(|unsent| unsent.0)?;
        self.batched.small.clear();
        // What they take of a ring is counted anew.
        self.batched.bytes = 0;
        for item in items {
            self.push_item(item);
        }
        Ok(())
    }

    /// How many more requests could be posted together with those in the batch.
    pub(super) fn room_in_batch(&mut self) -> usize {
        let room = |client: &Client| {
            let Batched { bytes, .. } = &client.batched;
            let count = client.batched.len() as u32;
            let beyond = |link: &Link| link.requests_beyond(count, *bytes);
            let beyond = client.link.as_ref().map_or(0, beyond);
            beyond.min(client.slots.free().saturating_sub(count)) as usize
        };
        if room(self) == 0 {
            self.progress();
        }
        room(self)
    }

    /// Of a batch that has small requests: whether another one may be added, before these are turned into ordinary ones for it.
    fn fits(&mut self, deadline: Deadline) -> Result<(), NotSentReason> {
        if self.batched.small.len() == 0 {
            return Ok(());
        }
        // It may make progress.
        self.batched.small.look_again();
        match self.room_in_batch() {
            _ if deadline.is_past() => Err(NotSentReason::Deadline),
            0 if self.is_open() => Err(NotSentReason::Full),
            _ => Ok(()),
        }
    }

    fn make_item(&mut self, payload: impl Payload, deadline: Deadline) -> Result<Ready, Unsent> {
        // What is in the batch is made for the connection that has ended.
        if self.batched.items.is_empty()
            && self.wants_redial()
            && let Err(reason) = self.reconnect(deadline)
        {
            let segments = payload.as_bytes().is_none();
            let segments = segments.then(|| payload.into_segments());
            return Err(Box::new((reason, segments)));
        }
        let outgoing = self.take_in(payload)?;
        let room = self.room_in_batch();
        let reason = match () {
            () if self.draining || self.link.is_none() => self.closed(),
            () if deadline.is_past() => NotSentReason::Deadline,
            () if room == 0 => NotSentReason::Full,
            () => return self.make(outgoing),
        };
        Err(super::submit::unsent(reason, outgoing))
    }

    /// Posts all items; the keys of their calls, in order.
    fn post_batch(&mut self, batched: &mut Batched) {
        let Batched {
            items,
            keys,
            bytes,
            small,
        } = batched;
        keys.clear();
        *bytes = 0;
        if small.len() > 0 {
            return self.post_small_batch(small, keys);
        }
        if items.is_empty() {
            return;
        }
        self.quick = false;
        self.recorder.batches += u64::from(self.link.is_some());
        let now = Moment::now();
        let covered = match &mut self.link {
            Some(link) => link.cover(self.slots.in_use() + items.len() as u32),
            None => Ok(()),
        };
        if let Err(lost) = covered {
            self.fail(lost);
        }
        let Some(link) = &mut self.link else {
            for item in items.drain(..) {
                let key = self.calls.begin(now, item.deadline, SlotId::default());
                let buffers = Buffers::new(Some(item.ready.restore()), item.destination);
                let error = CallError::not_sent(self.closed(), buffers);
                self.calls.end(key, Err(error));
                keys.push(key);
            }
            return;
        };
        // None: their number was looked at when each was added, and nothing takes slots meanwhile.
        let surplus = items.split_off((self.slots.free() as usize).min(items.len()));
        let (slots, calls, flights) = (&mut self.slots, &mut self.calls, &mut self.flights);
        let (unreleased, recorder) = (&mut self.unreleased, &mut self.recorder);
        let fetcher = &mut self.fetcher;
        let requests = items.drain(..).map(|item| {
            let Item {
                ready, destination, ..
            } = &item;
            let copied = ready.body.is_empty() && ready.held.is_nothing();
            let slot = match copied {
                true => slots.acquire_sent(),
                false => slots.acquire(),
            };
            let slot = slot.unwrap_or_default();
            let small = copied && destination.is_none();
            unreleased.reused(slot.index);
            let mut header = Header::new(Kind::Request);
            header.method = item.method.0;
            header.slot = slot;
            header.remaining_us = item.deadline.to_wire(now);
            if let Some(fetcher) = fetcher {
                header.code = fetcher.policy.units();
                if header.code != 0 {
                    let long = item.ready.pieces > 0;
                    fetcher.expect(slot, (header.code, long), now, item.deadline);
                }
            }
            item.ready.describe(&mut header);
            recorder.calls += 1;
            recorder.batched += 1;
            recorder.bytes_sent += item.ready.body_len;
            let owner = (!item.ready.body.is_empty()).then_some(slot);
            if owner.is_none() && !copied {
                // Cannot free the slot: it has not been answered.
                let _ = slots.local_done(slot);
            }
            let key = calls.begin(now, item.deadline, slot);
            keys.push(key);
            flights[slot.index as usize] = Flight {
                call: Some(key),
                small,
                deadline: (!item.deadline.is_never()).then_some(item.deadline),
                held: item.ready.held,
                destination: item.destination,
                ..Flight::default()
            };
            Together {
                header,
                buf: item.ready.header,
                body: item.ready.body,
                owner,
            }
        });
        if let Err(several) = link.post_together(requests) {
            self.post_failed(keys, several);
        }
        for item in surplus {
            debug_assert!(false, "no slot for a request of a batch");
            let key = self.calls.begin(now, item.deadline, SlotId::default());
            let buffers = Buffers::new(Some(item.ready.restore()), item.destination);
            let error = CallError::not_sent(NotSentReason::Full, buffers);
            self.calls.end(key, Err(error));
            keys.push(key);
        }
    }

    /// The end of the connection, because of a batch that was not posted, or not all of it.
    #[cold]
    pub(super) fn post_failed(&mut self, keys: &[usize], several: Several) {
        let Several {
            lost,
            posted,
            bodies,
        } = several;
        let lost = Arc::new(lost);
        let mut bodies = bodies.into_iter();
        for &key in keys.get(posted..).unwrap_or_default() {
            let Some(slot) = self.calls.get(key).map(|call| call.slot) else {
                continue;
            };
            let flight = std::mem::take(&mut self.flights[slot.index as usize]);
            let body = bodies.next().unwrap_or_default();
            let list: SgList = flight.held.restore(body);
            let buffers = Buffers::new(Some(list), flight.destination);
            let reason = NotSentReason::Closed(Arc::clone(&lost));
            self.recorder.calls -= 1;
            self.calls
                .end(key, Err(CallError::not_sent(reason, buffers)));
        }
        self.fail_with(lost);
    }
}
