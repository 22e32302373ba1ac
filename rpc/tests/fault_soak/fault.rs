//! What goes wrong.

use crate::calls::Calls;
use crate::random::Random;
use crate::service::BLOCK;
use crate::stage::Stage;
use crate::wire::Wire;
use mempool::{Buf, Pool};
use rpc::{Client, Deadline};
use softverbs::faults::{Action, Fault, Injected, Step, Verb, inject};

/// Kinds of faults, and what is particular about each.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// A queue pair, of client or server, fails at a step.
    QueuePair,
    /// The peer has no receive entry, against all that credits say.
    NotReady,
    /// A verb fails: registration.
    Register,
    /// A verb fails while work is posted or waited for.
    Post,
    /// One fails while the client connects.
    Connect,
    /// The client's completion queue overflows.
    ClientQueue,
    /// The server's does, and with it go all connections of the core.
    ServerQueue,
    /// The control connection ends for one side.
    HalfOpen,
    /// It ends for both.
    Cut,
    /// The server takes nothing in: no replies, and no credits.
    Stuck,
    /// It is dropped, and another started.
    Restart,
    /// The client is dropped with its calls.
    Drop,
    /// The handler panics.
    Panic,
    /// The server's pool is used up.
    ServerMemory,
    /// The client's is.
    ClientMemory,
}

pub const KINDS: [Kind; 15] = [
    Kind::QueuePair,
    Kind::NotReady,
    Kind::Register,
    Kind::Post,
    Kind::Connect,
    Kind::ClientQueue,
    Kind::ServerQueue,
    Kind::HalfOpen,
    Kind::Cut,
    Kind::Stuck,
    Kind::Restart,
    Kind::Drop,
    Kind::Panic,
    Kind::ServerMemory,
    Kind::ClientMemory,
];

impl Kind {
    /// Whether others of the same core can be lost as well. A verb that fails does so for whoever calls it next: that can be the core, before it
    /// sleeps, or another of its connections.
    pub fn takes_all(self) -> bool {
        matches!(self, Kind::ServerQueue | Kind::Restart | Kind::Post)
    }

    /// Whether a call can be without an answer, and only its deadline ends it.
    pub fn is_silent(self) -> bool {
        matches!(self, Kind::Stuck | Kind::HalfOpen)
    }
}

/// A fault in force, until it is dropped.
#[derive(Default)]
pub struct InForce {
    _injected: Option<Injected>,
    _hog: Vec<Buf>,
}

/// Puts a fault of this kind in force, somewhere and at some time.
pub fn put(
    kind: Kind,
    random: &mut Random,
    stage: &mut Stage,
    client: &mut Client,
    wire: &Wire,
    calls: &mut Calls,
) -> InForce {
    let qp = Some(random.pick(&wire.queue_pairs));
    let nth = 1 + random.below(6);
    let fault = match kind {
        Kind::QueuePair => Fault::At {
            qp,
            step: random.pick(&Step::ALL),
            nth,
            // IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR, IBV_WC_RETRY_EXC_ERR, IBV_WC_REM_ACCESS_ERR.
            action: Action::Error(random.pick(&[11, 4, 12, 10])),
        },
        Kind::NotReady => Fault::ReceiverNotReady {
            qp,
            times: 1 + random.below(3),
        },
        Kind::Register => failing(random, &[Verb::RegMr], nth),
        Kind::Post => failing(
            random,
            &[Verb::PostSend, Verb::PostRecv, Verb::ReqNotifyCq],
            nth,
        ),
        Kind::ClientQueue => Fault::CqOverflow {
            cq: Some(stage.queue_of(client)),
            nth,
        },
        Kind::ServerQueue => Fault::CqOverflow {
            cq: Some(stage.queue_of_server(client)),
            nth,
        },
        Kind::HalfOpen => {
            wire.half_open(random.below(2) as usize);
            return InForce::default();
        }
        Kind::Cut => {
            wire.cut();
            return InForce::default();
        }
        Kind::Stuck => {
            stage.record.shut();
            calls.submit(client, BLOCK, 0, Deadline::after_ms(60));
            return InForce::default();
        }
        Kind::Restart => {
            stage.restart();
            return InForce::default();
        }
        Kind::ServerMemory => return InForce::hogging(&stage.server_host.pool),
        Kind::ClientMemory => return InForce::hogging(&stage.client_host.pool),
        // By the calls themselves; before there is a client; or after all calls have been made.
        Kind::Panic | Kind::Connect | Kind::Drop => return InForce::default(),
    };
    InForce::of(fault)
}

fn failing(random: &mut Random, verbs: &[Verb], nth: u64) -> Fault {
    Fault::Verb {
        verb: random.pick(verbs),
        nth,
        errno: random.pick(&[libc::ENOMEM, libc::EINVAL]),
    }
}

/// A verb that is needed to connect fails.
pub fn while_connecting(random: &mut Random) -> InForce {
    let verbs = [
        Verb::CreateCompChannel,
        Verb::CreateCq,
        Verb::CreateQp,
        Verb::ModifyQp,
        Verb::RegMr,
        Verb::PostRecv,
    ];
    let nth = 1 + random.below(3);
    InForce::of(failing(random, &verbs, nth))
}

impl InForce {
    fn of(fault: Fault) -> InForce {
        InForce {
            _injected: Some(inject(fault)),
            _hog: Vec::new(),
        }
    }

    /// Takes all memory for users there is.
    fn hogging(pool: &Pool) -> InForce {
        let mut hog = Vec::new();
        let mut len = 64 << 20;
        while len >= 64 {
            match pool.alloc(len) {
                Ok(buf) => hog.push(buf),
                Err(_) => len /= 2,
            }
        }
        InForce {
            _injected: None,
            _hog: hog,
        }
    }
}
