//! Receiving datagrams. Everything here runs under the lock of the receive queue's completion queue.

use super::address::Address;
use super::mailbox::{Label, Mailbox, Next, Reader};
use super::{GRH, MTU};
use crate::channel;
use crate::layout::QpAdvert;
use crate::qp::QpCore;
use crate::recv::Entries;
use core::sync::atomic::Ordering;
use ibverbs_sys::{ibv_wc, ibv_wc_flags, ibv_wc_status as Status};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::Arc;

/// The mailbox of a queue pair, with its owner.
pub(crate) struct Inbox {
    reader: Reader,
    /// Something in it made no sense, or a receive has failed: nothing more is taken from it.
    spoiled: bool,
}

impl Inbox {
    /// An empty one for `depth` receives, told to peers.
    ///
    /// # Errors
    ///
    /// No memory, or no descriptor.
    pub fn new(advert: &QpAdvert, depth: usize, generation: u64) -> io::Result<Inbox> {
        let order = depth.next_power_of_two().trailing_zeros();
        let mailbox = Mailbox::create(order)?;
        advert.lane_order.store(order, Ordering::Relaxed);
        let file = mailbox.file();
        channel::advertise(&advert.lane_file, file.fd().as_raw_fd(), file.id());
        advert.mail.0.skipped.store(0, Ordering::Relaxed);
        advert.mail.0.left.store(0, Ordering::Relaxed);
        advert.consumed.0.store(0, Ordering::Relaxed);
        advert.lane_generation.store(generation, Ordering::Release);
        Ok(Inbox {
            reader: Reader::new(mailbox),
            spoiled: false,
        })
    }

    /// Whether something may be there.
    pub fn waiting(&self) -> bool {
        !self.spoiled && self.reader.waiting()
    }

    /// How many messages wait, as far as nobody is in the way.
    pub fn count(&self) -> usize {
        match self.spoiled {
            true => 0,
            false => self.reader.count(),
        }
    }
}

/// What became of a message.
enum Taken {
    Completed,
    /// Its receive completed with an error, and the queue pair has failed.
    Failed,
    Dropped,
}

impl QpCore {
    /// Takes datagrams; `taken` counts receives.
    #[inline(never)]
    pub(crate) fn take_mail(
        self: &Arc<Self>,
        inbox: &mut Inbox,
        taken: &mut u64,
        out: &mut [ibv_wc],
    ) -> usize {
        let mut filled = 0;
        // A bound on places that make no completion.
        let mut budget = 2 * inbox.reader.mailbox.len();
        while filled < out.len() && budget > 0 && !inbox.spoiled {
            budget -= 1;
            let dropped = match inbox.reader.next() {
                Next::Nothing => break,
                Next::Blocked => {
                    if !self.mail_blocked.swap(true, Ordering::AcqRel) {
                        self.process.watcher.wait_for(self);
                    }
                    break;
                }
                Next::Rubbish => {
                    inbox.spoiled = true;
                    self.fail();
                    break;
                }
                Next::Lost => true,
                Next::Message { place, label } => {
                    let mailbox = &inbox.reader.mailbox;
                    match self.receive_mail(mailbox, place, &label, taken, &mut out[filled]) {
                        Taken::Dropped => true,
                        done => {
                            filled += 1;
                            // What came after it is lost, and the receives are flushed.
                            inbox.spoiled = matches!(done, Taken::Failed);
                            false
                        }
                    }
                }
            };
            if dropped {
                // Its receive is there for another.
                self.own.mail.0.skipped.fetch_add(1, Ordering::Release);
            }
            inbox.reader.pass();
        }
        self.entries.set_taken(*taken);
        let place = inbox.reader.place();
        let left = u32::from(inbox.reader.has_left());
        self.own.mail.0.left.store(left, Ordering::Relaxed);
        self.own.consumed.0.store(place, Ordering::Release);
        filled
    }

    fn receive_mail(
        &self,
        mailbox: &Mailbox,
        place: u64,
        label: &Label,
        taken: &mut u64,
        wc: &mut ibv_wc,
    ) -> Taken {
        let len = label.len as usize;
        if len > MTU {
            return Taken::Dropped;
        }
        let from = mailbox.payload(place);
        let status = match &self.srq {
            None => {
                if *taken == self.own.posted.0.load(Ordering::Acquire) {
                    return Taken::Dropped;
                }
                let status = self.deliver_mail(&self.entries, *taken, self.pd, label, from, wc);
                *taken += 1;
                Some(status)
            }
            Some(srq) => srq.take(self.index(), |entries, slot| {
                self.deliver_mail(entries, slot, srq.pd, label, from, wc)
            }),
        };
        match status {
            None => Taken::Dropped,
            Some(Status::IBV_WC_SUCCESS) => Taken::Completed,
            Some(_) => {
                self.fail();
                Taken::Failed
            }
        }
    }

    /// Completes a receive with a message. One that is too short fails, as with Linux's rxe: kept, one without room for the header
    /// would stand in the way of all messages for good.
    fn deliver_mail(
        &self,
        entries: &Entries,
        index: u64,
        pd: u32,
        label: &Label,
        from: *const u8,
        wc: &mut ibv_wc,
    ) -> Status {
        let len = label.len as usize;
        let (head, sges) = entries.get(index);
        let header = Address::unpack(label.address).header(self.process, len, label.imm.is_some());
        let parts = [(header.as_ptr(), GRH), (from, len)];
        let status = if (GRH + len) as u64 > head.total.load(Ordering::Relaxed) {
            Status::IBV_WC_LOC_LEN_ERR
        // SAFETY: a header on the stack, and the place's message of at most an MTU.
        } else if unsafe { self.scatter(&parts, sges, pd) } {
            Status::IBV_WC_SUCCESS
        } else {
            Status::IBV_WC_LOC_PROT_ERR
        };
        self.completed(entries.wr_id(index), status, wc);
        if status == Status::IBV_WC_SUCCESS {
            wc.byte_len = (GRH + len) as u32;
            wc.src_qp = label.from & 0xff_ffff;
            wc.wc_flags = ibv_wc_flags::IBV_WC_GRH.0;
            if let Some(imm) = label.imm {
                wc.wc_flags |= ibv_wc_flags::IBV_WC_WITH_IMM.0;
                wc.__bindgen_anon_1.imm_data = imm;
            }
        }
        status
    }

    /// For the watcher: whether a poll must be waited for because somebody is at work on the next place. Once it is not, whoever
    /// waits for completions is woken.
    pub(crate) fn mail_is_blocked(&self) -> bool {
        if !self.mail_blocked.load(Ordering::Acquire) {
            return false;
        }
        let blocked = self.recv_cq.exclusively(|| {
            // SAFETY: under the lock of the completion queue.
            let arrivals = unsafe { &mut *self.arrivals.get() };
            let inbox = arrivals.mail.as_mut();
            inbox.is_some_and(|inbox| !inbox.spoiled && inbox.reader.next() == Next::Blocked)
        });
        if !blocked {
            self.mail_blocked.store(false, Ordering::Release);
            self.recv_cq.wake_own(true);
        }
        blocked
    }
}
