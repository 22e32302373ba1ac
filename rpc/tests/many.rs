//! Many connections: what the server keeps for each that is idle, and that all are served.

mod common;

use common::processors::allowed;
use common::*;
use mempool::{Budget, BudgetKind, Pool};
use rpc::{Client, ReplyPath, RequestPath, ServeError, Server};

/// Connections. Those of `rpc/examples/scale.rs` are more.
const COUNT: u64 = 100;

/// Bytes that are in use and not the user's; what threads keep at hand is nobody's.
fn kept(pool: &Pool) -> u64 {
    let budgets = pool.stats().budgets;
    let kept = budgets
        .iter()
        .filter(|budget| matches!(budget.budget, BudgetKind::Receive | BudgetKind::Control));
    kept.map(|budget| budget.in_use - budget.stocked).sum()
}

#[test]
fn an_idle_connection_takes_64_kib_of_the_server_and_gives_them_back() {
    if !memory().0.has_immediate_data() {
        return;
    }
    bounded(|| {
        let (context, _, clients) = memory();
        let pd = context.alloc_pd().unwrap();
        let pool = Pool::builder(&pd)
            .budget(Budget::receive(64 << 20))
            .budget(Budget::control(16 << 20))
            .build()
            .unwrap();
        let server = Server::bind("127.0.0.1:0").unwrap();
        let server = server.max_connections(COUNT as usize).pool(&pd, &pool);
        let server = serve(server);
        let connect = || {
            let client = Client::builder().window(16).pool(&memory().1, clients);
            let client = client
                .request(RequestPath::WriteImm)
                .reply(ReplyPath::WriteImm);
            client.connect(server.local_addr()).unwrap()
        };
        let before = kept(&pool);
        let mut all: Vec<Client> = (0..COUNT).map(|_| connect()).collect();
        assert!(
            kept(&pool) - before <= COUNT * (64 << 10),
            "{} bytes",
            kept(&pool) - before
        );
        // What a call took beyond is back afterwards: of small ones nothing is kept.
        for (n, client) in all.iter_mut().enumerate() {
            let body = [n as u8; 64];
            assert_eq!(client.call(ECHO, body, patient()).unwrap().bytes(), body);
        }
        assert!(kept(&pool) - before <= COUNT * (64 << 10));
        // Several at once, longer together than the ring.
        let client = &mut all[7];
        let long: Vec<_> = (0..100u8)
            .map(|n| client.submit(SUM, [n; 4000], patient()).unwrap())
            .collect();
        for (n, call) in (0..100u8).zip(long) {
            assert_eq!(call.wait(client).unwrap().bytes(), sum(&[n; 4000]));
        }
        drop(all);
        while server.stats().connections > 0 {
            std::thread::yield_now();
        }
        assert_eq!(kept(&pool), before);
    });
}

#[test]
fn cores_run_where_they_are_pinned_or_not_at_all() {
    bounded(|| {
        let mine = allowed();
        let last = *mine.last().unwrap();
        let server = server().cores(2).pin([last]).serve(move |_core| {
            assert_eq!(allowed(), [last]);
            |_request: rpc::Request<'_>, responder: rpc::Responder| {
                responder.reply((allowed().len() as u64).to_le_bytes());
            }
        });
        let server = server.unwrap();
        let mut client = client(&server);
        let reply = client.call(ECHO, "", patient()).unwrap();
        assert_eq!(reply.bytes(), 1u64.to_le_bytes());
        assert_eq!(allowed(), mine, "nobody else is pinned");
        for nowhere in [1023, 1 << 20] {
            match common::server()
                .pin([nowhere])
                .serve(|core| handler(core.pool().clone()))
            {
                Err(error @ ServeError::Start { .. }) => {
                    assert!(error.to_string().contains("pinned"), "{error}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}
