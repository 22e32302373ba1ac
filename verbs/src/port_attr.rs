//! Attributes of a port.

use std::fmt;

use ibverbs_sys::{ibv_port_attr, ibv_port_cap_flags as sys};

use crate::{LinkLayer, Mtu, PortState};

bitflags::bitflags! {
    /// Abilities of a port, as InfiniBand's `PortInfo` has them.
    #[doc(alias = "ibv_port_cap_flags")]
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct PortCaps: u32 {
        /// A subnet manager runs here.
        const SM = sys::IBV_PORT_SM.0;
        /// Notices.
        const NOTICE = sys::IBV_PORT_NOTICE_SUP.0;
        /// Traps.
        const TRAP = sys::IBV_PORT_TRAP_SUP.0;
        /// Optional inter-packet delays.
        const OPT_IPD = sys::IBV_PORT_OPT_IPD_SUP.0;
        /// Automatic migration to an alternate path.
        const AUTO_MIGR = sys::IBV_PORT_AUTO_MIGR_SUP.0;
        /// Service levels are mapped to virtual lanes.
        const SL_MAP = sys::IBV_PORT_SL_MAP_SUP.0;
        /// The management key survives a power cycle.
        const MKEY_NVRAM = sys::IBV_PORT_MKEY_NVRAM.0;
        /// Partition keys survive a power cycle.
        const PKEY_NVRAM = sys::IBV_PORT_PKEY_NVRAM.0;
        /// Lights can be asked for.
        const LED_INFO = sys::IBV_PORT_LED_INFO_SUP.0;
        /// A system image GUID.
        const SYS_IMAGE_GUID = sys::IBV_PORT_SYS_IMAGE_GUID_SUP.0;
        /// Traps of switches about partition keys.
        const PKEY_SW_EXT_PORT_TRAP = sys::IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP.0;
        /// Speeds beyond QDR.
        const EXTENDED_SPEEDS = sys::IBV_PORT_EXTENDED_SPEEDS_SUP.0;
        /// There is a second mask of abilities.
        const CAP_MASK2 = sys::IBV_PORT_CAP_MASK2_SUP.0;
        /// Communication management.
        const CM = sys::IBV_PORT_CM_SUP.0;
        /// Tunnelled SNMP.
        const SNMP_TUNNEL = sys::IBV_PORT_SNMP_TUNNEL_SUP.0;
        /// Setting the node up anew.
        const REINIT = sys::IBV_PORT_REINIT_SUP.0;
        /// Device management.
        const DEVICE_MGMT = sys::IBV_PORT_DEVICE_MGMT_SUP.0;
        /// Classes of makers.
        const VENDOR_CLASS = sys::IBV_PORT_VENDOR_CLASS_SUP.0;
        /// Notices by directed routes.
        const DR_NOTICE = sys::IBV_PORT_DR_NOTICE_SUP.0;
        /// Notices of changed abilities.
        const CAP_MASK_NOTICE = sys::IBV_PORT_CAP_MASK_NOTICE_SUP.0;
        /// Boot management.
        const BOOT_MGMT = sys::IBV_PORT_BOOT_MGMT_SUP.0;
        /// The link's latency is measured.
        const LINK_LATENCY = sys::IBV_PORT_LINK_LATENCY_SUP.0;
        /// Clients can be asked to subscribe anew.
        const CLIENT_REG = sys::IBV_PORT_CLIENT_REG_SUP.0;
        /// GIDs are made of IP addresses.
        const IP_BASED_GIDS = sys::IBV_PORT_IP_BASED_GIDS.0;
    }
}

/// What the link itself is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PhysState {
    /// Asleep.
    Sleep,
    /// Looking for a partner.
    Polling,
    /// Switched off.
    Disabled,
    /// Being trained.
    Training,
    /// Up.
    LinkUp,
    /// Recovering from an error.
    Recovery,
    /// Under test.
    Test,
    /// Not said, or a value this version does not know.
    Unknown(u8),
}

impl PhysState {
    fn from_sys(code: u8) -> PhysState {
        match code {
            1 => PhysState::Sleep,
            2 => PhysState::Polling,
            3 => PhysState::Disabled,
            4 => PhysState::Training,
            5 => PhysState::LinkUp,
            6 => PhysState::Recovery,
            7 => PhysState::Test,
            other => PhysState::Unknown(other),
        }
    }
}

impl fmt::Display for PhysState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PhysState::Sleep => f.write_str("asleep"),
            PhysState::Polling => f.write_str("polling"),
            PhysState::Disabled => f.write_str("disabled"),
            PhysState::Training => f.write_str("training"),
            PhysState::LinkUp => f.write_str("link up"),
            PhysState::Recovery => f.write_str("recovering"),
            PhysState::Test => f.write_str("under test"),
            PhysState::Unknown(n) => write!(f, "physical state {n}"),
        }
    }
}

/// Attributes of a port.
///
/// Source: `ibv_query_port(3)`.
#[doc(alias = "ibv_port_attr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortAttr {
    /// Number, from 1.
    pub port_num: u8,
    /// Whether it can carry traffic.
    pub state: PortState,
    /// What the link itself is doing.
    pub phys_state: PhysState,
    /// Largest MTU it could have.
    pub max_mtu: Mtu,
    /// MTU it has.
    pub active_mtu: Mtu,
    /// Entries of the GID table, empty ones included.
    pub gid_tbl_len: u32,
    /// Entries of the table of partition keys.
    pub pkey_tbl_len: u16,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Local identifier; 0 for Ethernet.
    pub lid: u16,
    /// Low bits of the local identifier that are the port's to choose.
    pub lmc: u8,
    /// Local identifier of the subnet manager.
    pub sm_lid: u16,
    /// Service level of the subnet manager.
    pub sm_sl: u8,
    /// Time that packets take through the subnet, coded as [`RcBuilder::timeout`](crate::RcBuilder::timeout).
    pub subnet_timeout: u8,
    /// How the subnet manager set the port up.
    pub init_type_reply: u8,
    /// Virtual lanes, as coded in `PortInfo`.
    pub max_vl_num: u8,
    /// Packets with a bad partition key.
    pub bad_pkey_cntr: u32,
    /// Packets with a bad queue key.
    pub qkey_viol_cntr: u32,
    /// What it speaks.
    pub link_layer: LinkLayer,
    /// Lanes of the link, as coded in verbs.h: see [`lanes`](Self::lanes).
    pub active_width: u8,
    /// Speed of a lane, as coded in verbs.h: see [`lane_mbit`](Self::lane_mbit).
    pub active_speed: u8,
    /// Abilities.
    pub caps: PortCaps,
    /// Further abilities, as coded in verbs.h (`ibv_port_cap_flags2`).
    pub caps2: u16,
    /// Whether peers are always addressed with a global route (`IBV_QPF_GRH_REQUIRED`).
    pub grh_required: bool,
}

impl PortAttr {
    pub(crate) fn from_sys(port_num: u8, a: &ibv_port_attr) -> PortAttr {
        PortAttr {
            port_num,
            state: PortState::from_sys(a.state),
            phys_state: PhysState::from_sys(a.phys_state),
            max_mtu: Mtu::from_sys(a.max_mtu),
            active_mtu: Mtu::from_sys(a.active_mtu),
            gid_tbl_len: u32::try_from(a.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: a.pkey_tbl_len,
            max_msg_sz: a.max_msg_sz,
            lid: a.lid,
            lmc: a.lmc,
            sm_lid: a.sm_lid,
            sm_sl: a.sm_sl,
            subnet_timeout: a.subnet_timeout,
            init_type_reply: a.init_type_reply,
            max_vl_num: a.max_vl_num,
            bad_pkey_cntr: a.bad_pkey_cntr,
            qkey_viol_cntr: a.qkey_viol_cntr,
            link_layer: LinkLayer::from_sys(a.link_layer),
            active_width: a.active_width,
            active_speed: a.active_speed,
            caps: PortCaps::from_bits_retain(a.port_cap_flags),
            caps2: a.port_cap_flags2,
            grh_required: a.flags & ibverbs_sys::IBV_QPF_GRH_REQUIRED != 0,
        }
    }

    /// Whether it can carry traffic.
    pub fn is_active(&self) -> bool {
        matches!(self.state, PortState::Active | PortState::ActiveDefer)
    }

    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == LinkLayer::Ethernet
    }

    /// Lanes of the link; `None` for codes this version does not know.
    pub fn lanes(&self) -> Option<u8> {
        Some(match self.active_width {
            1 => 1,
            2 => 4,
            4 => 8,
            8 => 12,
            16 => 2,
            _ => return None,
        })
    }

    /// Signalling rate of a lane in megabits per second, rounded as the names of the speeds are; `None` for codes this version does not
    /// know.
    pub fn lane_mbit(&self) -> Option<u32> {
        Some(match self.active_speed {
            1 => 2_500,
            2 => 5_000,
            4 | 8 => 10_000,
            16 => 14_000,
            32 => 25_000,
            64 => 50_000,
            128 => 100_000,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use ibverbs_sys::{ibv_mtu, ibv_port_state};

    use super::*;

    /// Each field comes from the one of its name: all have values of their own.
    #[test]
    fn no_field_is_taken_for_another() {
        let a = ibv_port_attr {
            state: ibv_port_state::IBV_PORT_ARMED,
            max_mtu: ibv_mtu::IBV_MTU_2048,
            active_mtu: ibv_mtu::IBV_MTU_512,
            gid_tbl_len: 1,
            port_cap_flags: sys::IBV_PORT_CM_SUP.0 | 1 << 31,
            max_msg_sz: 2,
            bad_pkey_cntr: 3,
            qkey_viol_cntr: 4,
            pkey_tbl_len: 5,
            lid: 6,
            sm_lid: 7,
            lmc: 8,
            max_vl_num: 9,
            sm_sl: 10,
            subnet_timeout: 11,
            init_type_reply: 12,
            active_width: 16,
            active_speed: 64,
            phys_state: 4,
            link_layer: 1,
            flags: 1,
            port_cap_flags2: 13,
        };
        let p = PortAttr::from_sys(77, &a);
        assert_eq!((p.port_num, p.state), (77, PortState::Armed));
        assert_eq!((p.max_mtu, p.active_mtu), (Mtu::B2048, Mtu::B512));
        assert_eq!((p.gid_tbl_len, p.max_msg_sz), (1, 2));
        assert_eq!((p.bad_pkey_cntr, p.qkey_viol_cntr), (3, 4));
        assert_eq!((p.pkey_tbl_len, p.lid, p.sm_lid), (5, 6, 7));
        assert_eq!((p.lmc, p.max_vl_num, p.sm_sl), (8, 9, 10));
        assert_eq!((p.subnet_timeout, p.init_type_reply), (11, 12));
        assert_eq!((p.lanes(), p.lane_mbit()), (Some(2), Some(50_000)));
        assert_eq!(p.phys_state, PhysState::Training);
        assert_eq!(p.link_layer, LinkLayer::InfiniBand);
        assert!(p.grh_required && p.caps.contains(PortCaps::CM));
        assert!(!p.is_active() && !p.is_ethernet());
        assert_eq!((p.caps.bits() >> 31, p.caps2), (1, 13));
    }

    #[test]
    fn codes_that_are_not_known_say_so() {
        let p = PortAttr::from_sys(1, &ibv_port_attr::default());
        assert_eq!((p.lanes(), p.lane_mbit()), (None, None));
        assert_eq!(p.phys_state, PhysState::Unknown(0));
        assert_eq!(PhysState::from_sys(9).to_string(), "physical state 9");
    }
}
