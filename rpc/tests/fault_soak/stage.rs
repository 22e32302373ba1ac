//! A server, and what can be found out about the queues of both ends.

use crate::common::{ECHO, PATHS, client, hang, patient, serve, server};
use crate::host::Host;
use crate::random::Random;
use crate::service::{Record, handler};
use rpc::{Client, ConnectError, Server, ServerHandle};
use softverbs::faults::{Fault, Injected, inject};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

/// More completion queues than are made between two looks at their numbers, which ascend.
const FRESH: u32 = 256;

pub struct Stage {
    pub server_host: Host,
    pub client_host: Host,
    pub record: Arc<Record>,
    pub server: Option<ServerHandle>,
    /// A client of another server, with other memory.
    pub far: Client,
    _other: ServerHandle,
    /// The highest number of a completion queue seen so far.
    newest: u32,
}

fn start(host: &Host, record: &Arc<Record>) -> ServerHandle {
    let (record, pool) = (Arc::clone(record), host.pool.clone());
    Server::bind("127.0.0.1:0")
        .expect("bind")
        .pool(&host.pd, &host.pool)
        .serve(move |_core| handler(Arc::clone(&record), pool.clone()))
        .expect("serve")
}

impl Stage {
    pub fn new() -> Stage {
        let (server_host, record) = (Host::new(), Arc::<Record>::default());
        let other = serve(server());
        Stage {
            server: Some(start(&server_host, &record)),
            server_host,
            client_host: Host::new(),
            record,
            far: client(&other),
            _other: other,
            newest: 0,
        }
    }

    pub fn server(&self) -> &ServerHandle {
        self.server.as_ref().expect("it runs")
    }

    /// Drops the server, and starts another.
    pub fn restart(&mut self) {
        self.server = None;
        self.server = Some(start(&self.server_host, &self.record));
    }

    /// A client of the server, over any paths.
    pub fn connect(&self, random: &mut Random, addr: SocketAddr) -> Result<Client, ConnectError> {
        let (request, reply) = random.pick(&PATHS);
        Client::builder()
            .pool(&self.client_host.pd, &self.client_host.pool)
            .request(request)
            .reply(reply)
            .connect_timeout(hang())
            .connect(addr)
    }

    /// Waits until nobody is connected to it.
    pub fn settled(&self) {
        let start = Instant::now();
        while self.server().stats().connections > 0 {
            assert!(start.elapsed() < hang(), "{}", self.server().stats());
            thread::yield_now();
        }
    }

    /// The client's completion queue, by the number that faults know it by: the only one that is polled when nothing else happens.
    pub fn queue_of(&mut self, client: &mut Client) -> u32 {
        let queue = self.only(None, || {
            client.poll();
        });
        self.newest = self.newest.max(queue);
        queue
    }

    /// The one of the server's core, which nothing but this client keeps busy.
    pub fn queue_of_server(&mut self, client: &mut Client) -> u32 {
        let own = self.queue_of(client);
        self.only(Some(own), || {
            client
                .call(ECHO, u64::MAX.to_le_bytes(), patient())
                .expect("a reply");
        })
    }

    /// The one completion queue, beside this, that is polled when `act` is done; again until there is only one.
    fn only(&self, beside: Option<u32>, mut act: impl FnMut()) -> u32 {
        let start = Instant::now();
        loop {
            let watched: Vec<(u32, Injected)> = (0..self.newest + FRESH)
                .filter(|&queue| Some(queue) != beside)
                .map(|queue| {
                    let never = Fault::CqOverflow {
                        cq: Some(queue),
                        nth: u64::MAX,
                    };
                    (queue, inject(never))
                })
                .collect();
            act();
            let mut polled = watched.iter().filter(|(_, seen)| seen.count() > 0);
            if let (Some((queue, _)), None) = (polled.next(), polled.next()) {
                return *queue;
            }
            assert!(start.elapsed() < hang(), "others are never quiet");
            thread::yield_now();
        }
    }
}
