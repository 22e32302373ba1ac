//! How the two ends of a polled ring agree that one of them sleeps: rules without I/O.
//!
//! Where messages have no completion, a receiver that sleeps has to be woken by something else: an empty SEND, the *wake*. It is sent when it is
//! needed only, and nobody has to run for it but the two who have something to do: a sender that is busy elsewhere answers nothing.
//!
//! The sender keeps a [cell](CELL_LEN) that the receiver can reach: a *count* of the messages posted, for the receiver to READ, and a *flag*
//! for it to WRITE, the number of the sleep that the sender has to wake it from.
//!
//! ```text
//!   receiver, nothing for a while          sender, a message to post
//!   1 WRITE the flag (a new sleep)         1 store the count, with it
//!   2 when that is done, READ the count    2 post the message
//!   3 if all of these have come: asleep;   3 load the flag; if it is of a sleep that was not ended: post a wake
//!     if not: keep looking, and READ again
//! ```
//!
//! Either the sender's load sees the flag, or the receiver's READ sees the count: each end makes what it stores visible before it looks at
//! what the other stores (Dekker's algorithm). The sender has a full barrier between 1 and 3 by storing with an atomic swap; the
//! receiver begins the READ when the WRITE has completed, with a fence between. The message and then the wake go through
//! one queue pair, in this order.
//!
//! There is at most one wake for each flag, and the next flag is written only when the wake of the last one has arrived. So one receive
//! entry is enough for wakes. A flag of which no wake has come stays good: to sleep again takes only the READ.
//!
//! A receiver begins asleep, and its flag is in the sender's cell before the two are connected. So nothing is posted before the first message: whoever is
//! connected first would WRITE to a queue pair that takes nothing yet, and device and connection would give up if that took its time.
//!
//! A receiver that was told of messages that do not come (a sender that was stopped between 1 and 2, or that lies) does not sleep. After
//! a while it [dozes](Rest::Doze): its owner looks again each millisecond.

/// Length of the cell in bytes. The count is the first word, the flag the second.
pub const CELL_LEN: u64 = 64;
/// Where the flag is.
pub const FLAG_AT: u64 = 8;
/// The flag of the sleep that receivers begin with.
pub const FIRST_SLEEP: u64 = 1;

/// How often a receiver that was told of messages to come stays awake for them, before it dozes.
const WAITS_MAX: u32 = 3;

/// The sender's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Ringer {
    posted: u64,
    woken: u64,
}

impl Ringer {
    /// Messages posted so far.
    #[inline]
    pub fn posted(&self) -> u64 {
        self.posted
    }

    /// One more is about to be posted: the count to store before it is.
    #[inline]
    pub fn count(&mut self) -> u64 {
        self.posted += 1;
        self.posted
    }

    /// It has been posted, and this is the flag, loaded since the count was stored: whether to post a wake.
    #[inline]
    pub fn must_wake(&mut self, flag: u64) -> bool {
        let must = flag != self.woken;
        self.woken = flag;
        must
    }
}

/// What the receiver has to do next so as to sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// WRITE this flag.
    Announce(u64),
    /// READ the count.
    Ask,
    /// Wait for the WRITE or READ that is out, or for a message that is.
    Soon,
    /// Nothing; it can sleep, but is to look again in a while.
    Doze,
    /// Nothing; it can sleep until the wake comes.
    Asleep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum State {
    Awake,
    Announcing,
    Announced,
    Asking,
    Asleep,
}

/// The receiver's part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sleeper {
    state: State,
    /// Whether the WRITE or READ is out. It can be although the receiver was woken meanwhile.
    out: bool,
    /// The flag.
    sleep: u64,
    /// Whether its wake has not come.
    armed: bool,
    /// Messages taken when the READ was posted.
    at_ask: u64,
    /// The count that the READ brought last.
    owed: u64,
    /// How often there was nothing although more is owed.
    waits: u32,
}

/// The peer said what cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Impossible;

impl Default for Sleeper {
    fn default() -> Sleeper {
        Sleeper {
            state: State::Asleep,
            out: false,
            sleep: FIRST_SLEEP,
            armed: true,
            at_ask: 0,
            owed: 0,
            waits: 0,
        }
    }
}

impl Sleeper {
    /// Nothing has come for a while, `taken` messages so far: the next step.
    ///
    /// Call it with [`Announce`](Rest::Announce) or [`Ask`](Rest::Ask) as the result only if that is then posted.
    pub fn tire(&mut self, taken: u64) -> Rest {
        if self.out {
            return Rest::Soon;
        }
        match self.state {
            State::Asleep => Rest::Asleep,
            _ if self.owed > taken => {
                self.waits = WAITS_MAX.min(self.waits + 1);
                match self.waits {
                    WAITS_MAX => Rest::Doze,
                    _ => Rest::Soon,
                }
            }
            State::Awake if !self.armed => {
                self.sleep += 1;
                self.armed = true;
                self.out = true;
                self.state = State::Announcing;
                Rest::Announce(self.sleep)
            }
            _ => {
                self.at_ask = taken;
                self.out = true;
                self.state = State::Asking;
                Rest::Ask
            }
        }
    }

    /// The WRITE has completed: whether to go on at once.
    pub fn announced(&mut self) -> bool {
        self.out = false;
        let go_on = self.state == State::Announcing;
        if go_on {
            self.state = State::Announced;
        }
        go_on
    }

    /// The READ has brought the count; `taken` messages have come so far, and at most `window` can be on their way.
    ///
    /// # Errors
    /// The count cannot be.
    pub fn told(&mut self, count: u64, taken: u64, window: u32) -> Result<(), Impossible> {
        self.out = false;
        // What has been taken since may be among them or not; if it is, its room may be in use again.
        let most = taken.wrapping_sub(self.at_ask) + u64::from(window);
        if count.wrapping_sub(self.at_ask) > most {
            return Err(Impossible);
        }
        if self.state != State::Asking {
            return Ok(());
        }
        self.owed = count;
        self.state = match count == taken {
            true => State::Asleep,
            false => State::Awake,
        };
        Ok(())
    }

    /// A message has been taken.
    #[inline]
    pub fn heard(&mut self) {
        self.waits = 0;
        if self.state == State::Asleep {
            self.state = State::Awake;
        }
    }

    /// The wake has come.
    ///
    /// # Errors
    /// Nobody asked for one.
    pub fn woken(&mut self) -> Result<(), Impossible> {
        if !std::mem::take(&mut self.armed) {
            return Err(Impossible);
        }
        self.state = State::Awake;
        self.waits = 0;
        Ok(())
    }

    /// Whether it sleeps.
    #[cfg(test)]
    pub fn is_asleep(&self) -> bool {
        self.state == State::Asleep
    }
}

#[cfg(test)]
mod model;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_posted_before_the_first_message_which_wakes() {
        let (mut sleeper, mut ringer) = (Sleeper::default(), Ringer::default());
        assert_eq!(sleeper.tire(0), Rest::Asleep);
        ringer.count();
        assert!(ringer.must_wake(FIRST_SLEEP));
        assert_eq!(sleeper.woken(), Ok(()));
        assert_eq!(sleeper.woken(), Err(Impossible), "one");
    }

    /// A peer's count is read late: the READ is behind others. Meanwhile messages have been taken, their room has gone back (by answers that are
    /// fetched, or that pass the READ at the peer), and as many more have been posted.
    #[test]
    fn what_was_taken_while_the_read_was_out_gives_room_for_more() {
        let mut sleeper = Sleeper::default();
        assert_eq!(sleeper.woken(), Ok(()));
        assert_eq!(sleeper.tire(0), Rest::Announce(FIRST_SLEEP + 1));
        assert!(sleeper.announced());
        assert_eq!(sleeper.tire(0), Rest::Ask);
        for _ in 0..10 {
            sleeper.heard();
        }
        // 64 are on their way beside the 10.
        let mut more = sleeper;
        assert_eq!(more.told(75, 10, 64), Err(Impossible));
        assert_eq!(sleeper.told(74, 10, 64), Ok(()));
    }
}
