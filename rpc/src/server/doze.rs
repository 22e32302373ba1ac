//! Connections whose rings are polled: awake, on the way to sleep, asleep.
//!
//! One that is awake is on the core's list of those with something to do, and is looked at in every pass. One that has been quiet goes to sleep by
//! itself, whatever the others do, so that connections without calls cost nothing; a core sleeps when all of them do.

use super::core_loop::CoreLoop;
use super::request::Request;
use super::responder::Responder;
use crate::bell::Rest;
use verbs::Completion;

impl<H> CoreLoop<H>
where
    H: FnMut(Request<'_>, Responder),
{
    /// Takes in the wake of a connection whose ring is polled: it is looked at again.
    #[cold]
    pub(super) fn wake(&mut self, key: usize, completion: Completion) {
        let Some(conn) = self.conns.get_mut(key) else {
            return;
        };
        match conn.link.received(completion) {
            Ok(_) => {
                if !std::mem::replace(&mut conn.awake, true) {
                    self.host.book.counters.woken.add(1);
                }
                if !std::mem::replace(&mut conn.listed, true) {
                    self.active.push(key);
                }
            }
            Err(lost) => self.close(key, &lost),
        }
    }

    /// Has connections go a step towards sleep whose rings are polled: those that were quiet since the last time, or all. What the core
    /// can do then.
    pub(super) fn tire(&mut self, all: bool) -> Rest {
        let mut rest = Rest::Asleep;
        for at in 0..self.active.len() {
            let key = self.active[at];
            let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.awake) else {
                continue;
            };
            if std::mem::take(&mut conn.heard) && !all {
                continue;
            }
            match conn.link.tire() {
                // It leaves the list at its next turn.
                Ok(Rest::Asleep) => {
                    conn.awake = false;
                    self.host.book.counters.rested.add(1);
                }
                Ok(Rest::Doze) if rest == Rest::Asleep => rest = Rest::Doze,
                Ok(Rest::Doze) => {}
                Ok(_) => rest = Rest::Soon,
                Err(lost) => {
                    rest = Rest::Soon;
                    self.close(key, &lost);
                }
            }
        }
        rest
    }
}
