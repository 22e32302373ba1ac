//! Global identifiers: the addresses of ports.

use std::ffi::CStr;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use ibverbs_sys::{ibv_gid, ibv_gid_entry, ibv_gid_type};

use crate::context::Opened;

/// A 128-bit port address, in network byte order. For RoCE it is an IPv6 address, or an IPv4 address mapped into one.
#[doc(alias = "ibv_gid")]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Whether it is all zeroes, which no usable GID is.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; 16]
    }

    /// As an IPv6 address.
    pub fn to_ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// The IPv4 address mapped into it, if there is one.
    pub fn to_ipv4(&self) -> Option<Ipv4Addr> {
        self.to_ipv6().to_ipv4_mapped()
    }

    /// Whether it is link-local (`fe80::/64`).
    pub fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    pub(crate) fn from_sys(gid: &ibv_gid) -> Gid {
        // SAFETY: both members of the union are plain bytes, of the same size.
        Gid(unsafe { gid.raw })
    }

    pub(crate) fn to_sys(self) -> ibv_gid {
        ibv_gid { raw: self.0 }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_ipv6().fmt(f)
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// What a GID is for.
#[doc(alias = "ibv_gid_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GidKind {
    /// InfiniBand.
    InfiniBand,
    /// RoCE version 1: Ethernet frames, within one broadcast domain.
    RoceV1,
    /// RoCE version 2: UDP port 4791, routable.
    RoceV2,
    /// Not known: the library is too old to say, and sysfs does not either.
    Unknown,
}

impl GidKind {
    fn from_sys(kind: u32) -> GidKind {
        match ibv_gid_type(kind) {
            ibv_gid_type::IBV_GID_TYPE_IB => GidKind::InfiniBand,
            ibv_gid_type::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => GidKind::Unknown,
        }
    }

    /// From `/sys/class/infiniband/DEVICE/ports/N/gid_attrs/types/INDEX`.
    fn from_sysfs(text: &str) -> GidKind {
        match text.trim() {
            "RoCE v2" => GidKind::RoceV2,
            "IB/RoCE v1" => GidKind::RoceV1,
            _ => GidKind::Unknown,
        }
    }
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GidKind::InfiniBand => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
            GidKind::Unknown => "unknown type",
        })
    }
}

/// An entry of a port's GID table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u32,
    /// The address.
    pub gid: Gid,
    /// What it is for.
    pub kind: GidKind,
    /// Name of the network interface behind it, for RoCE, where known.
    pub netdev: Option<String>,
}

impl GidEntry {
    /// How well it suits as the default, smaller is better: routable RoCE v2 with an IPv4 address first, as most fabrics are
    /// set up for it; the old version and link-local addresses last.
    fn rank(&self) -> u32 {
        let scope = if self.gid.to_ipv4().is_some() {
            0
        } else if !self.gid.is_link_local() {
            1
        } else {
            2
        };
        match self.kind {
            GidKind::InfiniBand | GidKind::RoceV2 => scope,
            GidKind::Unknown => 3 + scope,
            GidKind::RoceV1 => 6 + scope,
        }
    }
}

impl fmt::Display for GidEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} {})", self.index, self.kind, self.gid)
    }
}

/// The entry to use when the user names none. Address handles hold the index in 8 bits.
pub(crate) fn choose(table: &[GidEntry]) -> Option<&GidEntry> {
    table
        .iter()
        .filter(|e| e.index <= u32::from(u8::MAX) && !e.gid.is_zero())
        .min_by_key(|e| (e.rank(), e.index))
}

/// All entries of a port's table that are not empty.
pub(crate) fn table(ctx: &Opened, port: u8, len: u32, ethernet: bool) -> Vec<GidEntry> {
    if let Some(all) = whole_table(ctx) {
        return all
            .iter()
            .filter(|e| e.port_num == u32::from(port))
            .map(|e| GidEntry {
                index: e.gid_index,
                gid: Gid::from_sys(&e.gid),
                kind: GidKind::from_sys(e.gid_type),
                netdev: interface_name(e.ndev_ifindex)
                    .or_else(|| sysfs(ctx, port, "ndevs", e.gid_index)),
            })
            .filter(|e| !e.gid.is_zero())
            .collect();
    }
    (0..len)
        .filter_map(|index| one_by_one(ctx, port, index, ethernet))
        .collect()
}

/// The table of all ports in one call, where the library can.
fn whole_table(ctx: &Opened) -> Option<Vec<ibv_gid_entry>> {
    let query = ctx.api._ibv_query_gid_table?;
    let mut entries = vec![ibv_gid_entry::default(); 1024];
    // SAFETY: the context is open; the array has as many entries of the size given as it says.
    let n = unsafe {
        query(
            ctx.raw(),
            entries.as_mut_ptr(),
            entries.len(),
            0,
            size_of::<ibv_gid_entry>(),
        )
    };
    entries.truncate(usize::try_from(n).ok()?);
    Some(entries)
}

fn one_by_one(ctx: &Opened, port: u8, index: u32, ethernet: bool) -> Option<GidEntry> {
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: the context is open and `gid` is writable.
    let ret = unsafe { (ctx.api.ibv_query_gid)(ctx.raw(), port, index as i32, &mut gid) };
    let gid = Gid::from_sys(&gid);
    if ret != 0 || gid.is_zero() {
        return None;
    }
    let kind = match sysfs(ctx, port, "types", index) {
        Some(text) if ethernet => GidKind::from_sysfs(&text),
        _ if !ethernet => GidKind::InfiniBand,
        _ => GidKind::Unknown,
    };
    Some(GidEntry {
        index,
        gid,
        kind,
        netdev: sysfs(ctx, port, "ndevs", index),
    })
}

/// An attribute of a GID as the kernel shows it; `None` where there is no such device in sysfs.
fn sysfs(ctx: &Opened, port: u8, attribute: &str, index: u32) -> Option<String> {
    if ctx.kind != crate::DeviceKind::Hardware {
        return None;
    }
    let path = format!(
        "/sys/class/infiniband/{}/ports/{port}/gid_attrs/{attribute}/{index}",
        ctx.name
    );
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|t| !t.is_empty())
}

fn interface_name(ifindex: u32) -> Option<String> {
    if ifindex == 0 {
        return None;
    }
    let mut name = [0 as libc::c_char; libc::IF_NAMESIZE];
    // SAFETY: the buffer has the size the function requires; on success it is NUL-terminated.
    unsafe {
        if libc::if_indextoname(ifindex, name.as_mut_ptr()).is_null() {
            return None;
        }
        Some(CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u32, gid: &str, kind: GidKind) -> GidEntry {
        GidEntry {
            index,
            gid: Gid(gid.parse::<Ipv6Addr>().unwrap().octets()),
            kind,
            netdev: None,
        }
    }

    #[test]
    fn routable_roce_v2_with_ipv4_is_chosen() {
        let table = [
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "::ffff:10.0.0.1", GidKind::RoceV1),
            entry(3, "::ffff:10.0.0.1", GidKind::RoceV2),
            entry(4, "::ffff:10.0.0.2", GidKind::RoceV2),
            entry(5, "2001:db8::1", GidKind::RoceV2),
        ];
        assert_eq!(choose(&table).unwrap().index, 3);
        assert_eq!(choose(&table[..2]).unwrap().index, 1);
        assert_eq!(choose(&table[..1]).unwrap().index, 0);
        assert_eq!(choose(&table[4..]).unwrap().index, 4);
        assert_eq!(choose(&[entry(0, "::", GidKind::RoceV2)]), None);
        assert_eq!(choose(&[entry(300, "2001:db8::1", GidKind::RoceV2)]), None);
    }

    #[test]
    fn gids_print_as_addresses() {
        let g = entry(0, "::ffff:192.0.2.7", GidKind::RoceV2).gid;
        assert_eq!(g.to_string(), "::ffff:192.0.2.7");
        assert_eq!(g.to_ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
        assert!(entry(0, "fe80::5", GidKind::RoceV2).gid.is_link_local());
        assert!(!g.is_link_local());
    }
}
