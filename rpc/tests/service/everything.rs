//! A service that does all there is to do, and what its tests share.

use super::common::*;
use mempool::SgList;
use rpc::service::{
    Answer, Dispatcher, Failure, Method, Methods, Plain, Postcard, Reply, Service, ServiceClient,
    ServiceError,
};
use rpc::{CallError, Code, PartError, ServerHandle};
use serde::{Deserialize, Serialize};
use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

macro_rules! method {
    ($type:ident, $number:expr, $version:expr, $request:ty, $reply:ty) => {
        pub struct $type;
        impl Method for $type {
            const NUMBER: u16 = $number;
            const VERSION: u16 = $version;
            const NAME: &'static str = stringify!($type);
            type Request = $request;
            type Reply = $reply;
        }
    };
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Shape {
    Dot,
    Line { from: (i32, i32), to: (i32, i32) },
    Text(String, Option<bool>),
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, PartialEq)]
#[repr(C)]
pub struct Range {
    pub seed: U16,
    pub len: U64,
}

// In two versions that mean different things.
method!(Reverse, 1, 1, Postcard<Vec<Shape>>, Postcard<Vec<Shape>>);
method!(Count, 1, 3, Postcard<Vec<Shape>>, Postcard<u64>);
// Raw bytes both ways.
method!(Mirror, 2, 1, Plain<Range>, Plain<Range>);
method!(Make, 3, 1, Plain<Range>, Postcard<String>);
method!(Fails, 4, 1, Postcard<u16>, Postcard<()>);
method!(Later, 5, 1, Postcard<u32>, Postcard<u32>);
method!(Bombs, 6, 1, Postcard<()>, Postcard<()>);
// As many parts as the header says, of as many bytes as the rest has; by an iterator, and by hand.
method!(Streams, 7, 1, Postcard<u32>, Postcard<String>);
method!(Hands, 8, 1, Postcard<u32>, Plain<Range>);
// What only a client has.
method!(ReverseNew, 1, 2, Postcard<Vec<Shape>>, Postcard<Vec<Shape>>);
method!(ReverseOther, 1, 1, Plain<Range>, Postcard<Vec<Shape>>);
method!(Missing, 70, 1, Postcard<()>, Postcard<()>);

pub struct Everything {
    pool: mempool::Pool,
    waiting: Vec<(u32, Reply<Later>)>,
}

impl Service for Everything {
    const NAME: &'static str = "everything";

    fn methods(methods: &mut Methods<Self>) {
        methods.add::<Reverse>(|_, call| {
            Ok(Answer::new(call.header().iter().rev().cloned().collect()))
        });
        methods.add::<Count>(|_, call| Ok(Answer::new(call.header().len() as u64)));
        methods.add::<Mirror>(|_, call| {
            let header = Range {
                seed: call.header().seed,
                len: (call.rest().len() as u64).into(),
            };
            Ok(Answer::with(header, call.take_rest()?))
        });
        methods.add::<Make>(|this, call| {
            let len = call.header().len.get() as usize;
            let mut data = this.pool.alloc(len)?;
            data.copy_from_slice(&pattern(len, call.header().seed.get() as u8));
            Ok(Answer::with(format!("{len} bytes"), data))
        });
        methods.add::<Fails>(|_, call| Err(Failure::new(Code(*call.header()), "as you wish")));
        // Answers two at once, the later first.
        methods.add_deferred::<Later>(|this, call, reply| {
            this.waiting.push((*call.header(), reply));
            if this.waiting.len() == 2 {
                while let Some((number, reply)) = this.waiting.pop() {
                    reply.send(Answer::new(number + 1));
                }
            }
        });
        methods.add_deferred::<Streams>(|this, call, reply| {
            let (count, len, pool) = (*call.header(), call.rest().len(), this.pool.clone());
            reply.stream((0..=count).map(move |n| match n == count {
                true if count == 13 => Err(Failure::new(Code(13), "thirteen are too many")),
                true => Ok(Answer::new("the end".to_owned())),
                false => {
                    let mut data = pool.alloc(len)?;
                    data.copy_from_slice(&pattern(len, n as u8));
                    Ok(Answer::with(format!("part {n}"), data))
                }
            }));
        });
        methods.add_deferred::<Hands>(|this, call, reply| {
            let mut parts = reply.in_parts();
            let part = |n: u32| {
                let header = Range {
                    seed: (n as u16).into(),
                    len: 0.into(),
                };
                Answer::with(
                    header,
                    this.pool.alloc_from_slice(&n.to_le_bytes()).unwrap(),
                )
            };
            for n in 0..*call.header() {
                assert!(parts.part(part(n)).is_ok());
            }
            // What is not taken comes back as it was: a rest that leaves no segment for the header, and more parts than may wait.
            let mut many = SgList::new();
            for _ in 0..SgList::MAX {
                let byte = this.pool.alloc_zeroed(1).unwrap();
                assert!(many.push(byte).is_ok());
            }
            let (header, _) = part(0).into_parts();
            match parts.part(Answer::with(header, many)) {
                Err(PartError::Encode(answer, _)) => {
                    assert_eq!(answer.into_parts().1.len(), SgList::MAX)
                }
                other => panic!("{other:?}"),
            }
            let full = loop {
                match parts.part(part(77)) {
                    Ok(()) => {}
                    Err(PartError::Full(answer)) => break answer.into_parts(),
                    Err(error) => panic!("{error:?}"),
                }
            };
            assert_eq!(
                (full.0.seed.get(), full.1.copy_to_vec()),
                (77, vec![77, 0, 0, 0])
            );
            parts.finish();
        });
        methods.add::<Bombs>(|_, _| panic!("a handler's panic, on purpose"));
    }
}

pub fn everything() -> ServerHandle {
    let serve = server().serve(|core| {
        let service = Everything {
            pool: core.pool().clone(),
            waiting: Vec::new(),
        };
        Dispatcher::new(service, core.pool()).into_handler()
    });
    serve.expect("serve")
}

pub fn typed(server: &ServerHandle) -> ServiceClient {
    ServiceClient::new(client(server), patient()).expect("a listing")
}

pub fn shapes() -> Vec<Shape> {
    vec![
        Shape::Dot,
        Shape::Line {
            from: (-1, i32::MAX),
            to: (0, 300),
        },
        Shape::Text("long ".repeat(2000), Some(true)),
    ]
}

pub fn remote(error: ServiceError) -> (Code, String) {
    match error {
        ServiceError::Call(CallError::Remote { code, message, .. }) => (code, message),
        other => panic!("{other:?}"),
    }
}
