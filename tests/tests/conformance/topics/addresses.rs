//! Address handles.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind};
use crate::names::errno;
use crate::sundry::Ah;
use ibverbs_sys::ibv_ah_attr;

pub const TOPIC: Topic = Topic {
    name: "Address handles",
    cases: &[
        case("an address handle", plain, "ibv_create_ah(3)", "OK"),
        case(
            "without a network header",
            local,
            "ibv_create_ah(3)",
            "EINVAL",
        ),
        case(
            "a port that there is not",
            port,
            "ibv_create_ah(3)",
            "EINVAL",
        ),
        case(
            "an own address that there is not",
            sgid,
            "ibv_create_ah(3)",
            "EINVAL",
        )
        .but(
            Kind::Rxe,
            "ENODATA",
            "the library looks the address up first, and says what it finds",
        ),
        case("to itself", itself, "ibv_create_ah(3)", "OK"),
    ],
};

fn made(bed: &Bed, change: impl Fn(&mut ibv_ah_attr)) -> String {
    let mut attr = Ah::attr(&bed.b);
    change(&mut attr);
    errno(Ah::try_new(&bed.a, attr).err().unwrap_or(0))
}

fn plain(bed: &Bed) -> String {
    made(bed, |_| {})
}

fn local(bed: &Bed) -> String {
    made(bed, |attr| attr.is_global = 0)
}

fn port(bed: &Bed) -> String {
    made(bed, |attr| attr.port_num = 2)
}

fn sgid(bed: &Bed) -> String {
    made(bed, |attr| attr.grh.sgid_index = 200)
}

fn itself(bed: &Bed) -> String {
    made(bed, |attr| attr.grh.dgid = bed.a.gid)
}
