//! Making objects, and what is refused.

use crate::case::{Topic, case};
use crate::device::{Bed, Kind, Side};
use crate::memory::{ALL, ATOMIC, LOCAL, Mem, READ, WRITE};
use crate::names::errno;
use crate::queue::{End, Options, RC, init_attr};
use crate::sundry::{Cq, Srq};
use ibverbs_sys::{ibv_device_attr, ibv_qp_type as Type};

pub const TOPIC: Topic = Topic {
    name: "Creating",
    cases: &[
        case(
            "a queue pair gets what was asked for, or more",
            granted,
            "ibv_create_qp(3)",
            "enough of all",
        ),
        case(
            "more work requests than the device has",
            depth,
            "ibv_create_qp(3)",
            "EINVAL",
        ),
        case(
            "more segments than the device has",
            segments,
            "ibv_create_qp(3)",
            "EINVAL",
        ),
        case(
            "more inline data than any device has",
            inline,
            "ibv_create_qp(3)",
            "EINVAL",
        ),
        case(
            "raw packets, where the device has none",
            raw,
            "ibv_create_qp(3)",
            "EOPNOTSUPP",
        ),
        case(
            "a completion queue without entries",
            no_entries,
            "ibv_create_cq(3)",
            "EINVAL",
        ),
        case(
            "a completion queue larger than the device has",
            many_entries,
            "ibv_create_cq(3)",
            "EINVAL",
        ),
        case(
            "a completion vector that there is not",
            vector,
            "ibv_create_cq(3)",
            "EINVAL",
        ),
        case(
            "a shared receive queue larger than the device has",
            srq,
            "ibv_create_srq(3)",
            "EINVAL",
        ),
        case(
            "memory with remote writes but not local ones",
            remote_write,
            "ibv_reg_mr(3)",
            "EINVAL",
        ),
        case(
            "memory with remote atomics but not local writes",
            remote_atomic,
            "ibv_reg_mr(3)",
            "EINVAL",
        ),
        case(
            "memory that peers read only",
            remote_read,
            "ibv_reg_mr(3)",
            "OK",
        ),
        case("memory of no length", no_memory, "ibv_reg_mr(3)", "EINVAL").but(
            Kind::Rxe,
            "EFAULT",
            "the kernel finds no pages to pin, and says so with another error",
        ),
        case(
            "memory that is not there",
            unmapped,
            "ibv_reg_mr(3)",
            "EFAULT",
        ),
        case(
            "memory that cannot be written, for writing",
            constant,
            "ibv_reg_mr(3)",
            "EFAULT",
        ),
        case(
            "a port that there is not",
            port,
            "ibv_query_port(3)",
            "port 0 EINVAL, port 2 EINVAL",
        ),
        case(
            "an address that there is not",
            gid,
            "ibv_query_gid(3)",
            "-1",
        ),
        case(
            "the keys of memory regions",
            keys,
            "ibv_reg_mr(3)",
            "another for each",
        ),
    ],
};

fn result<T>(result: Result<T, i32>) -> String {
    errno(result.err().unwrap_or(0))
}

fn attributes(side: &Side) -> ibv_device_attr {
    let mut attr = ibv_device_attr::default();
    // SAFETY: the context is open, `attr` valid for writes.
    let result = unsafe { (side.api.ibv_query_device)(side.ctx, &mut attr) };
    assert_eq!(result, 0);
    attr
}

/// Makes a queue pair and destroys it.
fn make(bed: &Bed, options: &Options) -> String {
    let cq = Cq::new(&bed.a, 4);
    let created = End::create(&bed.a, &mut init_attr(options, &cq, None));
    // SAFETY: destroyed once.
    result(created.map(|qp| unsafe { (bed.a.api.ibv_destroy_qp)(qp) }))
}

fn granted(bed: &Bed) -> String {
    let end = End::new(&bed.a, &RC);
    let cap = end.query().1.cap;
    let enough = cap.max_send_wr >= RC.depth
        && cap.max_recv_wr >= RC.depth
        && cap.max_send_sge >= RC.sge
        && cap.max_recv_sge >= RC.sge
        && cap.max_inline_data >= RC.inline;
    if enough {
        "enough of all".to_owned()
    } else {
        format!("{cap:?}")
    }
}

fn depth(bed: &Bed) -> String {
    let depth = attributes(&bed.a).max_qp_wr as u32 + 1;
    make(bed, &Options { depth, ..RC })
}

fn segments(bed: &Bed) -> String {
    let sge = attributes(&bed.a).max_sge as u32 + 1;
    make(bed, &Options { sge, ..RC })
}

fn inline(bed: &Bed) -> String {
    make(
        bed,
        &Options {
            inline: 1 << 20,
            ..RC
        },
    )
}

fn raw(bed: &Bed) -> String {
    make(
        bed,
        &Options {
            service: Type::IBV_QPT_RAW_PACKET,
            ..RC
        },
    )
}

fn no_entries(bed: &Bed) -> String {
    result(Cq::try_new(&bed.a, 0, 0))
}

fn many_entries(bed: &Bed) -> String {
    result(Cq::try_new(&bed.a, attributes(&bed.a).max_cqe + 1, 0))
}

fn vector(bed: &Bed) -> String {
    // SAFETY: the context is open.
    let vectors = unsafe { (*bed.a.ctx).num_comp_vectors };
    result(Cq::try_new(&bed.a, 4, vectors))
}

fn srq(bed: &Bed) -> String {
    result(Srq::try_new(
        &bed.a,
        attributes(&bed.a).max_srq_wr as u32 + 1,
    ))
}

fn remote_write(bed: &Bed) -> String {
    result(Mem::try_new(&bed.a, 8, WRITE))
}

fn remote_atomic(bed: &Bed) -> String {
    result(Mem::try_new(&bed.a, 8, ATOMIC))
}

fn remote_read(bed: &Bed) -> String {
    result(Mem::try_new(&bed.a, 8, READ))
}

fn no_memory(bed: &Bed) -> String {
    result(Mem::try_new(&bed.a, 0, LOCAL))
}

/// Registers two pages of a mapping of one page.
fn map(bed: &Bed, protection: i32, pages: usize, access: u32) -> String {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a mapping of two pages of its own, one or two of which stay, and are given back after their registration has ended.
    unsafe {
        let memory = libc::mmap(std::ptr::null_mut(), 8192, protection, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        if pages < 2 {
            assert_eq!(libc::munmap(memory.byte_add(4096), 4096), 0);
        }
        let mr = (bed.a.api.ibv_reg_mr)(bed.a.pd, memory, 8192, access as i32);
        let seen = if mr.is_null() {
            crate::device::errno()
        } else {
            errno(0)
        };
        if !mr.is_null() {
            assert_eq!((bed.a.api.ibv_dereg_mr)(mr), 0);
        }
        libc::munmap(memory, 4096 * pages);
        seen
    }
}

fn unmapped(bed: &Bed) -> String {
    map(bed, libc::PROT_READ | libc::PROT_WRITE, 1, LOCAL)
}

fn constant(bed: &Bed) -> String {
    map(bed, libc::PROT_READ, 2, LOCAL)
}

fn port(bed: &Bed) -> String {
    let [zero, two] = [0, 2].map(|port| result(bed.a.port(port)));
    format!("port 0 {zero}, port 2 {two}")
}

fn gid(bed: &Bed) -> String {
    let mut gid = Default::default();
    // SAFETY: the context is open, `gid` valid for writes.
    unsafe { (bed.a.api.ibv_query_gid)(bed.a.ctx, 1, 1 << 20, &mut gid) }.to_string()
}

fn keys(bed: &Bed) -> String {
    let regions: Vec<_> = (0..8).map(|_| Mem::new(&bed.a, 8, ALL)).collect();
    let mut keys: Vec<_> = regions.iter().map(Mem::rkey).collect();
    keys.sort_unstable();
    keys.dedup();
    let different = keys.len() == regions.len();
    if different {
        "another for each"
    } else {
        "the same"
    }
    .to_owned()
}
