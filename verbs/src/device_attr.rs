//! What a device can do.

use std::ffi::CStr;
use std::fmt;

use ibverbs_sys::{ibv_atomic_cap, ibv_device_attr, ibv_device_cap_flags as sys};

use crate::Error;
use crate::context::Opened;
use crate::errno;

bitflags::bitflags! {
    /// Abilities of a device.
    ///
    /// Source: `ibv_query_device(3)`.
    #[doc(alias = "ibv_device_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct DeviceCaps: u32 {
        /// Queues can be resized.
        const RESIZE_MAX_WR = sys::IBV_DEVICE_RESIZE_MAX_WR.0;
        /// Bad partition keys are counted.
        const BAD_PKEY_CNTR = sys::IBV_DEVICE_BAD_PKEY_CNTR.0;
        /// Bad queue keys are counted.
        const BAD_QKEY_CNTR = sys::IBV_DEVICE_BAD_QKEY_CNTR.0;
        /// Raw packets can be multicast.
        const RAW_MULTI = sys::IBV_DEVICE_RAW_MULTI.0;
        /// Connections can move to an alternate path by themselves.
        const AUTO_PATH_MIG = sys::IBV_DEVICE_AUTO_PATH_MIG.0;
        /// Queue pairs can change their port.
        const CHANGE_PHY_PORT = sys::IBV_DEVICE_CHANGE_PHY_PORT.0;
        /// The port of an address handle is checked.
        const UD_AV_PORT_ENFORCE = sys::IBV_DEVICE_UD_AV_PORT_ENFORCE.0;
        /// State changes can name the state they start from.
        const CURR_QP_STATE_MOD = sys::IBV_DEVICE_CURR_QP_STATE_MOD.0;
        /// Ports can be shut down.
        const SHUTDOWN_PORT = sys::IBV_DEVICE_SHUTDOWN_PORT.0;
        /// Ports can be set up in several ways.
        const INIT_TYPE = sys::IBV_DEVICE_INIT_TYPE.0;
        /// There is an event when a port becomes active.
        const PORT_ACTIVE_EVENT = sys::IBV_DEVICE_PORT_ACTIVE_EVENT.0;
        /// It has a system image GUID.
        const SYS_IMAGE_GUID = sys::IBV_DEVICE_SYS_IMAGE_GUID.0;
        /// Reliable connections tell senders that no receive is posted.
        const RC_RNR_NAK_GEN = sys::IBV_DEVICE_RC_RNR_NAK_GEN.0;
        /// Shared receive queues can be resized.
        const SRQ_RESIZE = sys::IBV_DEVICE_SRQ_RESIZE.0;
        /// Completion queues can tell after so many completions.
        const N_NOTIFY_CQ = sys::IBV_DEVICE_N_NOTIFY_CQ.0;
        /// It has memory windows of type 1.
        const MEM_WINDOW = sys::IBV_DEVICE_MEM_WINDOW.0;
        /// Checksums of datagrams are computed.
        const UD_IP_CSUM = sys::IBV_DEVICE_UD_IP_CSUM.0;
        /// It has extended reliable connections.
        const XRC = sys::IBV_DEVICE_XRC.0;
        /// It has the base memory management extensions, such as SEND with invalidation.
        const MEM_MGT_EXTENSIONS = sys::IBV_DEVICE_MEM_MGT_EXTENSIONS.0;
        /// It has memory windows of type 2A.
        const MEM_WINDOW_TYPE_2A = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2A.0;
        /// It has memory windows of type 2B.
        const MEM_WINDOW_TYPE_2B = sys::IBV_DEVICE_MEM_WINDOW_TYPE_2B.0;
        /// Checksums of reliable connections are computed.
        const RC_IP_CSUM = sys::IBV_DEVICE_RC_IP_CSUM.0;
        /// Checksums of raw packets are computed.
        const RAW_IP_CSUM = sys::IBV_DEVICE_RAW_IP_CSUM.0;
        /// Flows can be steered to queue pairs.
        const MANAGED_FLOW_STEERING = sys::IBV_DEVICE_MANAGED_FLOW_STEERING.0;
    }
}

/// Towards whom atomics are atomic.
#[doc(alias = "ibv_atomic_cap")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicCap {
    /// There are none.
    None,
    /// Towards atomics of the same device.
    Device,
    /// Towards other devices and this machine's processors as well.
    Global,
    /// A value this version does not know: towards the device's own, at least.
    Unknown(u32),
}

impl AtomicCap {
    fn from_sys(cap: ibv_atomic_cap) -> AtomicCap {
        match cap {
            ibv_atomic_cap::IBV_ATOMIC_NONE => AtomicCap::None,
            ibv_atomic_cap::IBV_ATOMIC_HCA => AtomicCap::Device,
            ibv_atomic_cap::IBV_ATOMIC_GLOB => AtomicCap::Global,
            other => AtomicCap::Unknown(other.0),
        }
    }
}

impl fmt::Display for AtomicCap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AtomicCap::None => f.write_str("none"),
            AtomicCap::Device => f.write_str("within the device"),
            AtomicCap::Global => f.write_str("global"),
            AtomicCap::Unknown(n) => write!(f, "kind {n}"),
        }
    }
}

/// What a device can do. Counts and sizes are what it claims; resources shared with others may run out before.
///
/// Source: `ibv_query_device(3)`.
#[doc(alias = "ibv_device_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceAttr {
    /// Firmware version.
    pub fw_ver: String,
    /// Node GUID, in host byte order.
    pub node_guid: u64,
    /// GUID of the machine or board that several nodes may be part of, in host byte order.
    pub sys_image_guid: u64,
    /// Maker.
    pub vendor_id: u32,
    /// Model, as the maker numbers it.
    pub vendor_part_id: u32,
    /// Version of the hardware, as the maker numbers it.
    pub hw_ver: u32,
    /// Number of ports.
    pub phys_port_cnt: u8,
    /// Abilities.
    pub caps: DeviceCaps,
    /// Longest memory region in bytes.
    pub max_mr_size: u64,
    /// Page sizes of memory regions, a bit for each.
    pub page_size_cap: u64,
    /// Memory regions.
    pub max_mr: u32,
    /// Memory windows.
    pub max_mw: u32,
    /// Protection domains.
    pub max_pd: u32,
    /// Address handles.
    pub max_ah: u32,
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one queue.
    pub max_qp_wr: u32,
    /// Segments in one work request other than READ.
    pub max_sge: u32,
    /// Segments in one READ.
    pub max_sge_rd: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries in one completion queue.
    pub max_cqe: u32,
    /// Shared receive queues.
    pub max_srq: u32,
    /// Receives in one shared receive queue.
    pub max_srq_wr: u32,
    /// Segments in one receive of a shared receive queue.
    pub max_srq_sge: u32,
    /// READs and atomics that a queue pair can answer at once.
    pub max_qp_rd_atom: u8,
    /// READs and atomics that a queue pair can have outstanding.
    pub max_qp_init_rd_atom: u8,
    /// READs and atomics that all queue pairs together can answer at once.
    pub max_res_rd_atom: u32,
    /// Whether atomics are offered at all.
    pub atomics: bool,
    /// Towards whom they are atomic.
    pub atomic_cap: AtomicCap,
    /// Multicast groups.
    pub max_mcast_grp: u32,
    /// Queue pairs in one multicast group.
    pub max_mcast_qp_attach: u32,
    /// Queue pairs in all multicast groups.
    pub max_total_mcast_qp_attach: u32,
    /// Raw queue pairs for Ethernet.
    pub max_raw_ethy_qp: u32,
    /// Raw queue pairs for IPv6.
    pub max_raw_ipv6_qp: u32,
    /// End-to-end contexts, for reliable datagrams.
    pub max_ee: u32,
    /// READs and atomics that such a context can answer at once.
    pub max_ee_rd_atom: u32,
    /// READs and atomics that such a context can have outstanding.
    pub max_ee_init_rd_atom: u32,
    /// Reliable datagram domains.
    pub max_rdd: u32,
    /// Fast memory regions.
    pub max_fmr: u32,
    /// Remappings of a fast memory region before it must be unmapped.
    pub max_map_per_fmr: u32,
    /// Partition keys of a port.
    pub max_pkeys: u16,
    /// Time that the device takes to acknowledge, coded as [`RcBuilder::timeout`](crate::RcBuilder::timeout).
    pub local_ca_ack_delay: u8,
}

impl DeviceAttr {
    pub(crate) fn query(dev: &Opened) -> Result<DeviceAttr, Error> {
        let mut a = ibv_device_attr::default();
        // SAFETY: the context is open and `a` is writable.
        errno::check(unsafe { (dev.api.ibv_query_device)(dev.raw(), &mut a) })
            .map_err(|e| Error::verb("ibv_query_device", e))?;
        Ok(DeviceAttr::from_sys(a))
    }

    fn from_sys(mut a: ibv_device_attr) -> DeviceAttr {
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let small = |n: i32| u8::try_from(n.clamp(0, 255)).unwrap_or(0);
        // Some devices put no terminator into a field that they fill.
        if let Some(last) = a.fw_ver.last_mut() {
            *last = 0;
        }
        // SAFETY: terminated above.
        let fw_ver = unsafe { CStr::from_ptr(a.fw_ver.as_ptr()) }
            .to_string_lossy()
            .into_owned();
        let atomic_cap = AtomicCap::from_sys(a.atomic_cap);
        DeviceAttr {
            fw_ver,
            node_guid: u64::from_be(a.node_guid),
            sys_image_guid: u64::from_be(a.sys_image_guid),
            vendor_id: a.vendor_id,
            vendor_part_id: a.vendor_part_id,
            hw_ver: a.hw_ver,
            phys_port_cnt: a.phys_port_cnt,
            caps: DeviceCaps::from_bits_retain(a.device_cap_flags),
            max_mr_size: a.max_mr_size,
            page_size_cap: a.page_size_cap,
            max_mr: count(a.max_mr),
            max_mw: count(a.max_mw),
            max_pd: count(a.max_pd),
            max_ah: count(a.max_ah),
            max_qp: count(a.max_qp),
            max_qp_wr: count(a.max_qp_wr),
            max_sge: count(a.max_sge),
            max_sge_rd: count(a.max_sge_rd),
            max_cq: count(a.max_cq),
            max_cqe: count(a.max_cqe),
            max_srq: count(a.max_srq),
            max_srq_wr: count(a.max_srq_wr),
            max_srq_sge: count(a.max_srq_sge),
            max_qp_rd_atom: small(a.max_qp_rd_atom),
            max_qp_init_rd_atom: small(a.max_qp_init_rd_atom),
            max_res_rd_atom: count(a.max_res_rd_atom),
            atomics: atomic_cap != AtomicCap::None,
            atomic_cap,
            max_mcast_grp: count(a.max_mcast_grp),
            max_mcast_qp_attach: count(a.max_mcast_qp_attach),
            max_total_mcast_qp_attach: count(a.max_total_mcast_qp_attach),
            max_raw_ethy_qp: count(a.max_raw_ethy_qp),
            max_raw_ipv6_qp: count(a.max_raw_ipv6_qp),
            max_ee: count(a.max_ee),
            max_ee_rd_atom: count(a.max_ee_rd_atom),
            max_ee_init_rd_atom: count(a.max_ee_init_rd_atom),
            max_rdd: count(a.max_rdd),
            max_fmr: count(a.max_fmr),
            max_map_per_fmr: count(a.max_map_per_fmr),
            max_pkeys: a.max_pkeys,
            local_ca_ack_delay: a.local_ca_ack_delay,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each field comes from the one of its name: all have values of their own.
    #[test]
    fn no_field_is_taken_for_another() {
        let mut n = 0;
        let mut next = || {
            n += 1;
            n
        };
        let a = ibv_device_attr {
            fw_ver: [b'x' as _; 64],
            node_guid: 1u64.to_be(),
            sys_image_guid: 2u64.to_be(),
            max_mr_size: 3,
            page_size_cap: 4,
            vendor_id: 5,
            vendor_part_id: 6,
            hw_ver: 7,
            max_qp: next(),
            max_qp_wr: next(),
            device_cap_flags: sys::IBV_DEVICE_XRC.0 | 1 << 31,
            max_sge: next(),
            max_sge_rd: next(),
            max_cq: next(),
            max_cqe: next(),
            max_mr: next(),
            max_pd: next(),
            max_qp_rd_atom: 300,
            max_ee_rd_atom: next(),
            max_res_rd_atom: next(),
            max_qp_init_rd_atom: -1,
            max_ee_init_rd_atom: next(),
            atomic_cap: ibv_atomic_cap::IBV_ATOMIC_GLOB,
            max_ee: next(),
            max_rdd: next(),
            max_mw: next(),
            max_raw_ipv6_qp: next(),
            max_raw_ethy_qp: next(),
            max_mcast_grp: next(),
            max_mcast_qp_attach: next(),
            max_total_mcast_qp_attach: next(),
            max_ah: next(),
            max_fmr: next(),
            max_map_per_fmr: next(),
            max_srq: next(),
            max_srq_wr: next(),
            max_srq_sge: -5,
            max_pkeys: 50,
            local_ca_ack_delay: 51,
            phys_port_cnt: 52,
        };
        let d = DeviceAttr::from_sys(a);
        assert_eq!(d.fw_ver, "x".repeat(63));
        assert_eq!((d.node_guid, d.sys_image_guid), (1, 2));
        assert_eq!((d.max_mr_size, d.page_size_cap), (3, 4));
        assert_eq!((d.vendor_id, d.vendor_part_id, d.hw_ver), (5, 6, 7));
        let in_order = [
            d.max_qp,
            d.max_qp_wr,
            d.max_sge,
            d.max_sge_rd,
            d.max_cq,
            d.max_cqe,
            d.max_mr,
            d.max_pd,
            d.max_ee_rd_atom,
            d.max_res_rd_atom,
            d.max_ee_init_rd_atom,
            d.max_ee,
            d.max_rdd,
            d.max_mw,
            d.max_raw_ipv6_qp,
            d.max_raw_ethy_qp,
            d.max_mcast_grp,
            d.max_mcast_qp_attach,
            d.max_total_mcast_qp_attach,
            d.max_ah,
            d.max_fmr,
            d.max_map_per_fmr,
            d.max_srq,
            d.max_srq_wr,
        ];
        assert_eq!(in_order.to_vec(), (1..=24).collect::<Vec<u32>>());
        assert_eq!((d.max_qp_rd_atom, d.max_qp_init_rd_atom), (255, 0));
        assert_eq!((d.atomics, d.atomic_cap), (true, AtomicCap::Global));
        assert_eq!(d.max_srq_sge, 0, "nonsense is nothing");
        assert_eq!(
            (d.max_pkeys, d.local_ca_ack_delay, d.phys_port_cnt),
            (50, 51, 52)
        );
        assert!(d.caps.contains(DeviceCaps::XRC) && !d.caps.contains(DeviceCaps::MEM_WINDOW));
        assert_eq!(d.caps.bits() >> 31, 1, "unknown ones are kept");
    }

    #[test]
    fn kinds_of_atomics() {
        for (code, want) in [
            (0, AtomicCap::None),
            (1, AtomicCap::Device),
            (2, AtomicCap::Global),
            (3, AtomicCap::Unknown(3)),
        ] {
            assert_eq!(AtomicCap::from_sys(ibv_atomic_cap(code)), want);
        }
    }
}
