//! Ports of a device, and which one a context uses.

use std::fmt;

use ibverbs_sys::{ibv_mtu, ibv_port_attr, ibv_port_state};

use crate::context::Opened;
use crate::errno;
use crate::gid;
use crate::{Error, Gid, OpenError, PortAttr};

/// Largest payload of a packet on the path.
#[doc(alias = "ibv_mtu")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    B256 = 1,
    /// 512 bytes.
    B512 = 2,
    /// 1024 bytes.
    B1024 = 3,
    /// 2048 bytes.
    B2048 = 4,
    /// 4096 bytes.
    B4096 = 5,
}

impl Mtu {
    /// Size in bytes.
    pub fn bytes(self) -> u32 {
        128 << self as u32
    }

    /// From the code used by verbs and on the wire, 1 to 5.
    pub fn from_code(code: u8) -> Option<Mtu> {
        Some(match code {
            1 => Mtu::B256,
            2 => Mtu::B512,
            3 => Mtu::B1024,
            4 => Mtu::B2048,
            5 => Mtu::B4096,
            _ => return None,
        })
    }

    pub(crate) fn to_sys(self) -> ibv_mtu {
        ibv_mtu(self as u32)
    }

    /// Unknown codes are larger ones of the future: the largest known is safe to use.
    pub(crate) fn from_sys(mtu: ibv_mtu) -> Mtu {
        Mtu::from_code(u8::try_from(mtu.0).unwrap_or(0)).unwrap_or(if mtu.0 > 5 {
            Mtu::B4096
        } else {
            Mtu::B1024
        })
    }
}

impl fmt::Display for Mtu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().fmt(f)
    }
}

/// Whether a port can carry traffic.
#[doc(alias = "ibv_port_state")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PortState {
    /// No state change is happening.
    NoState,
    /// The link is down.
    Down,
    /// The link is up, the subnet manager has not set the port up.
    Init,
    /// Set up, not yet active.
    Armed,
    /// Usable.
    Active,
    /// Usable, with a link error that may recover.
    ActiveDefer,
    /// A value this version does not know.
    Unknown(u32),
}

impl PortState {
    pub(crate) fn from_sys(state: ibv_port_state) -> PortState {
        match state {
            ibv_port_state::IBV_PORT_NOP => PortState::NoState,
            ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ibv_port_state::IBV_PORT_INIT => PortState::Init,
            ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            ibv_port_state::IBV_PORT_ACTIVE_DEFER => PortState::ActiveDefer,
            other => PortState::Unknown(other.0),
        }
    }
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortState::NoState => f.write_str("no state"),
            PortState::Down => f.write_str("down"),
            PortState::Init => f.write_str("initialising"),
            PortState::Armed => f.write_str("armed"),
            PortState::Active => f.write_str("active"),
            PortState::ActiveDefer => f.write_str("active (deferred)"),
            PortState::Unknown(n) => write!(f, "state {n}"),
        }
    }
}

/// What a port speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkLayer {
    /// InfiniBand: peers are addressed by LID, GIDs are optional.
    InfiniBand,
    /// Ethernet (RoCE, iWARP, soft0): peers are addressed by GID.
    Ethernet,
    /// Not said, which means InfiniBand for old drivers.
    Unspecified,
}

impl LinkLayer {
    pub(crate) fn from_sys(layer: u8) -> LinkLayer {
        match u32::from(layer) {
            l if l == ibverbs_sys::IBV_LINK_LAYER_ETHERNET.0 => LinkLayer::Ethernet,
            l if l == ibverbs_sys::IBV_LINK_LAYER_INFINIBAND.0 => LinkLayer::InfiniBand,
            _ => LinkLayer::Unspecified,
        }
    }
}

impl fmt::Display for LinkLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LinkLayer::InfiniBand => "InfiniBand",
            LinkLayer::Ethernet => "Ethernet",
            LinkLayer::Unspecified => "unspecified",
        })
    }
}

/// Asks the device about one of its ports.
#[doc(alias = "ibv_query_port")]
pub(crate) fn query(ctx: &Opened, port_num: u8) -> Result<PortAttr, Error> {
    let mut attr = ibv_port_attr::default();
    // SAFETY: the context is open and `attr` is writable.
    let ret =
        unsafe { ibverbs_sys::inline::ibv_query_port(ctx.api, ctx.raw(), port_num, &mut attr) };
    errno::check(ret).map_err(|e| {
        Error::hinted(
            "ibv_query_port",
            e,
            format!("port {port_num} of {}", ctx.name),
        )
    })?;
    Ok(PortAttr::from_sys(port_num, &attr))
}

/// The port and GID that queue pairs of a context use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PortChoice {
    /// Number, from 1.
    pub port_num: u8,
    /// Index of the GID in the port's table.
    pub gid_index: u8,
    /// The GID; all zeroes when the port has none (InfiniBand without GIDs, or a port that is down).
    pub gid: Gid,
    /// MTU the port has.
    pub mtu: Mtu,
    /// Local identifier; 0 for Ethernet.
    pub lid: u16,
    /// What the port speaks.
    pub link_layer: LinkLayer,
    /// Whether the port can carry traffic.
    pub active: bool,
    /// Longest message in bytes.
    pub max_msg_sz: u32,
    /// Why this port and GID, as a sentence.
    pub reason: String,
}

impl PortChoice {
    /// Whether queue pairs on it can reach anybody: it is active, and has a GID where one is needed.
    pub fn usable(&self) -> bool {
        self.active && (self.link_layer != LinkLayer::Ethernet || !self.gid.is_zero())
    }
}

/// Picks the port (the first usable one, else the first) and the GID, unless they are given.
pub(crate) fn choose(
    ctx: &Opened,
    ports: u8,
    port: Option<u8>,
    gid_index: Option<u32>,
) -> Result<PortChoice, OpenError> {
    if let Some(port) = port {
        if port == 0 || port > ports {
            return Err(OpenError::NoSuchPort {
                device: ctx.name.clone(),
                port,
                ports,
            });
        }
        return choose_gid(ctx, port, gid_index, true);
    }
    let mut first = None;
    for port in 1..=ports.max(1) {
        let choice = choose_gid(ctx, port, gid_index, false)?;
        if choice.usable() {
            return Ok(choice);
        }
        first.get_or_insert(choice);
    }
    first.ok_or_else(|| OpenError::NoSuchPort {
        device: ctx.name.clone(),
        port: 1,
        ports,
    })
}

fn choose_gid(
    ctx: &Opened,
    port: u8,
    gid_index: Option<u32>,
    given: bool,
) -> Result<PortChoice, OpenError> {
    let attr = query(ctx, port).map_err(|error| OpenError::Device {
        device: ctx.name.clone(),
        error,
    })?;
    let table = gid::table(ctx, port, attr.gid_tbl_len, attr.is_ethernet());
    let entry =
        match gid_index {
            None => gid::choose(&table),
            Some(index) => Some(table.iter().find(|e| e.index == index).ok_or_else(|| {
                OpenError::NoSuchGid {
                    device: ctx.name.clone(),
                    port,
                    index,
                    what: if index < attr.gid_tbl_len {
                        "empty".to_owned()
                    } else {
                        format!(
                            "outside of the table, whose indexes are 0 to {}",
                            attr.gid_tbl_len.saturating_sub(1)
                        )
                    },
                    usable: table.iter().map(ToString::to_string).collect(),
                }
            })?),
        };
    let which = match (given, attr.is_active()) {
        (true, true) => "was asked for",
        (true, false) => "was asked for, and is not active",
        (false, true) => "is the first usable one",
        (false, false) => "is not active",
    };
    let gid_reason = match entry {
        None if attr.is_ethernet() => "it has no GID that could be used".to_owned(),
        None => "it has no GID and is addressed by LID".to_owned(),
        Some(e) if gid_index.is_some() => format!("GID {e} was asked for"),
        Some(e) => format!("GID {e} is the best of {}", table.len()),
    };
    Ok(PortChoice {
        port_num: port,
        gid_index: entry.map_or(0, |e| e.index as u8),
        gid: entry.map_or(Gid::default(), |e| e.gid),
        mtu: attr.active_mtu,
        lid: attr.lid,
        link_layer: attr.link_layer,
        active: attr.is_active(),
        max_msg_sz: attr.max_msg_sz,
        reason: format!("port {port} {which}; {gid_reason}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtu_codes_and_bytes() {
        for (code, bytes) in [(1, 256), (2, 512), (3, 1024), (4, 2048), (5, 4096)] {
            assert_eq!(Mtu::from_code(code).unwrap().bytes(), bytes);
        }
        assert_eq!(Mtu::from_code(0), None);
        assert_eq!(Mtu::from_code(6), None);
        assert_eq!(Mtu::from_sys(ibv_mtu(9)), Mtu::B4096);
    }
}
