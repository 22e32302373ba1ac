//! Peers that have other methods, none, or one twice.

use super::common::*;
use super::everything::*;
use rpc::Code;
use rpc::service::{
    Answer, DecodeError, Dispatcher, Methods, Service, ServiceClient, ServiceError, UnsentReason,
};

#[test]
fn methods_that_the_peer_lacks_are_errors_here() {
    bounded(|| {
        let server = everything();
        let mut client = typed(&server);
        assert!(client.listing().has::<Reverse>() && !client.listing().has::<ReverseNew>());
        let calls = client.client().stats().calls;

        let reason = |error: ServiceError| match error {
            ServiceError::NotSent(unsent) => unsent.into_parts().0,
            other => panic!("{other:?}"),
        };
        let error = client.call::<ReverseNew>(&vec![], patient()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "not sent: ReverseNew: this end has version 2, the peer [1, 3]: upgrade the older end"
        );
        let UnsentReason::Version { ours, theirs } = reason(error) else {
            panic!("another reason");
        };
        assert_eq!((ours, theirs), (2, vec![1, 3]));
        let error = client.call::<Missing>(&(), patient()).unwrap_err();
        assert!(matches!(reason(error), UnsentReason::NoMethod));
        let header = Range {
            seed: 1.into(),
            len: 1.into(),
        };
        let error = client.call::<ReverseOther>(&header, patient()).unwrap_err();
        assert!(matches!(reason(error), UnsentReason::Encoding));
        assert_eq!(client.client().stats().calls, calls, "something was sent");
    });
}

#[test]
fn a_server_without_types_is_told_apart() {
    bounded(|| {
        let server = serve(server());
        let error = ServiceClient::new(client(&server), patient()).unwrap_err();
        assert_eq!(remote(error).0, Code::UNIMPLEMENTED);

        let server = super::common::server()
            .serve(|_| |_: rpc::Request<'_>, responder: rpc::Responder| responder.reply("hello"))
            .unwrap();
        let error = ServiceClient::new(client(&server), patient()).unwrap_err();
        assert!(matches!(
            error,
            ServiceError::Listing(DecodeError::Format(b'h'))
        ));
    });
}

struct Twice;

impl Service for Twice {
    const NAME: &'static str = "twice";

    fn methods(methods: &mut Methods<Self>) {
        methods.add::<Bombs>(|_, _| Ok(Answer::new(())));
        methods.add::<Bombs>(|_, _| Ok(Answer::new(())));
    }
}

#[test]
#[should_panic(expected = "Bombs is there twice in version 1")]
fn a_method_that_is_there_twice_is_refused() {
    Dispatcher::new(Twice, &memory().2);
}
