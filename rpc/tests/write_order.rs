//! A device that does not keep WRITEs in order: rings on it are not polled.
//!
//! Faults are the whole process's, and so is what is known of a device: this is alone in its file.

mod common;

use common::*;
use rpc::{Client, ConnectError, ReplyPath, RequestPath, Server};
use softverbs::faults::{Fault, inject};
use std::time::Duration;
use verbs::Device;

#[test]
fn a_device_that_does_not_keep_the_order_is_found_out() {
    bounded(|| {
        let device = Device::open_spec("soft0").unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().device(&device));
        let connect = || Client::builder().device(&device).connect_timeout(hang());
        let disorder = inject(Fault::Reversed);
        let slow = inject(Fault::Delay {
            qp: None,
            by: Duration::from_millis(20),
        });
        // Asked for by name, it is an error that says what was tried.
        let asked = connect().request(RequestPath::WritePoll);
        let error = asked.connect(server.local_addr()).unwrap_err();
        assert!(
            matches!(
                error,
                ConnectError::WriteOrder {
                    path: "request",
                    ..
                }
            ),
            "{error}"
        );
        assert!(error.to_string().contains("was there before"), "{error}");
        drop((disorder, slow));
        // It stays so: what went wrong once can do so again.
        let asked = connect().reply(ReplyPath::WritePoll);
        let error = asked.connect(server.local_addr()).unwrap_err();
        assert!(
            error.to_string().contains("the reply path WritePoll"),
            "{error}"
        );

        // Without immediate data, there is only one way left.
        let fault = inject(Fault::NoImmediate);
        let device = Device::open_spec("soft0").unwrap();
        let server = serve(Server::bind("127.0.0.1:0").unwrap().device(&device));
        let connect = Client::builder().device(&device).connect_timeout(hang());
        let mut client = connect.connect(server.local_addr()).unwrap();
        assert_eq!(client.paths(), Some((RequestPath::Send, ReplyPath::Send)));
        assert_eq!(client.call(ECHO, "x", patient()).unwrap().bytes(), b"x");
        drop(fault);
    });
}
