//! What the server does, and a record of it.

use crate::common::{ECHO, PANIC, SOURCE, pattern};
use mempool::Pool;
use rpc::{Code, Method, Request, Responder};
use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex};

/// Answered when somebody says [`GO`].
pub const HOLD: Method = Method(11);
pub const GO: Method = Method(12);
/// Keeps the core busy until [`Record::open`]: nobody returns credits meanwhile.
pub const BLOCK: Method = Method(13);

/// Length of what [`SOURCE`] answers with.
pub const LONG: usize = 150_000;

/// Which calls were executed, by the number in front of their payload; and a gate.
#[derive(Default)]
pub struct Record {
    ran: Mutex<HashMap<u64, u32>>,
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Record {
    /// How often a call was executed.
    pub fn ran(&self, call: u64) -> u32 {
        let ran = self.ran.lock().expect("no panic");
        ran.get(&call).copied().unwrap_or(0)
    }

    /// Forgets all calls.
    pub fn clear(&self) {
        self.ran.lock().expect("no panic").clear();
    }

    pub fn shut(&self) {
        *self.shut.lock().expect("no panic") = true;
    }

    pub fn open(&self) {
        *self.shut.lock().expect("no panic") = false;
        self.opened.notify_all();
    }

    fn note(&self, body: &[u8]) {
        let call = u64::from_le_bytes(body[..8].try_into().expect("eight"));
        *self.ran.lock().expect("no panic").entry(call).or_default() += 1;
    }

    fn wait(&self) {
        let mut shut = self.shut.lock().expect("no panic");
        while *shut {
            shut = self.opened.wait(shut).expect("no panic");
        }
    }
}

pub fn handler(record: Arc<Record>, pool: Pool) -> impl FnMut(Request<'_>, Responder) {
    let mut held: Vec<(Vec<u8>, Responder)> = Vec::new();
    move |request, responder| {
        record.note(request.body());
        match request.method() {
            ECHO => responder.reply(request.body()),
            SOURCE => match pool.alloc(LONG) {
                Ok(mut buf) => {
                    buf.copy_from_slice(&pattern(LONG, 5));
                    responder.reply(buf);
                }
                Err(error) => responder.fail(Code::OVERLOADED, error.to_string()),
            },
            HOLD => held.push((request.body().to_vec(), responder)),
            GO => {
                for (body, responder) in held.drain(..) {
                    responder.reply(body);
                }
                responder.reply("gone");
            }
            BLOCK => {
                record.wait();
                responder.reply("open");
            }
            PANIC => panic!("a handler's panic, on purpose"),
            _ => responder.fail(Code::UNIMPLEMENTED, "no such method"),
        }
    }
}
