//! A device that copies nothing while posting: small messages go from buffers, as others do.
//!
//! Faults are the whole process's, so this is alone in its file.

mod common;

use common::*;
use rpc::{Client, Server};
use softverbs::faults::{Fault, Verb, inject};
use verbs::Device;

#[test]
fn either_end_does_without_copies_by_the_device() {
    bounded(|| {
        let device = Device::open_spec("soft0").unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().device(&device));
        // The client makes its queue pair first, then the server; which lengths a device copies shows when it refuses to make one.
        for nth in [1, 2] {
            let fault = inject(Fault::Verb {
                verb: Verb::CreateQp,
                nth,
                errno: libc::EINVAL,
            });
            let connect = Client::builder().device(&device).connect_timeout(hang());
            let mut client = connect.connect(server.local_addr()).unwrap();
            drop(fault);
            for round in 0..200u8 {
                let bytes = pattern(usize::from(round) * 3, round);
                let reply = client.call(ECHO, &bytes[..], patient()).unwrap();
                assert!(reply.bytes() == bytes);
            }
            assert_eq!(client.stats().rnr, 0);
        }
        assert_eq!(server.stats().calls, 400);
        assert_eq!(server.stats().broken, 0);
    });
}
