//! Address vectors, and the header that tells a receiver where a datagram came from.

use crate::device::{self, GIDS};
use crate::process::Process;
use ibverbs_sys::{ibv_ah_attr, ibv_gid, ibv_grh, ibv_wc, ibv_wc_flags};

use super::GRH;

/// Bytes of the headers between that of the network and the message, and of the check after it: UDP, base and datagram transport
/// headers, the latter's check. Immediate data is four more.
const TRANSPORT: usize = 8 + 12 + 8 + 4;
const UDP: u8 = 17;

/// The way of a datagram: which GIDs of the device, and the fields of the network header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Address {
    sgid_index: u8,
    dgid_index: u8,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
}

impl Address {
    /// The address that attributes describe.
    ///
    /// # Errors
    ///
    /// `EINVAL`: no such port or GID index, no GID at all, which RoCE needs, or GIDs of different families. `ENETUNREACH`: the
    /// destination is not on this device.
    pub fn new(process: &Process, attr: &ibv_ah_attr) -> Result<Address, i32> {
        let grh = &attr.grh;
        if attr.port_num != 1 || attr.is_global == 0 || usize::from(grh.sgid_index) >= GIDS {
            return Err(libc::EINVAL);
        }
        // SAFETY: the union is plain bytes.
        let dgid = unsafe { grh.dgid.raw };
        let found = (0..GIDS).find(|&i| device::gid(process, i) == Some(dgid));
        let dgid_index = found.ok_or(libc::ENETUNREACH)? as u8;
        if dgid_index != grh.sgid_index {
            return Err(libc::EINVAL);
        }
        Ok(Address {
            sgid_index: grh.sgid_index,
            dgid_index,
            traffic_class: grh.traffic_class,
            hop_limit: grh.hop_limit,
            flow_label: grh.flow_label & 0xf_ffff,
        })
    }

    /// As a word.
    pub fn pack(self) -> u64 {
        let [hop, class] = [self.hop_limit, self.traffic_class].map(u64::from);
        u64::from(self.flow_label) << 32
            | hop << 24
            | class << 16
            | u64::from(self.dgid_index) << 8
            | u64::from(self.sgid_index)
    }

    /// Any word is an address: the numbers of GIDs are brought into range.
    pub fn unpack(word: u64) -> Address {
        let gid = |byte: u64| (byte as u8) % GIDS as u8;
        Address {
            sgid_index: gid(word),
            dgid_index: gid(word >> 8),
            traffic_class: (word >> 16) as u8,
            hop_limit: (word >> 24) as u8,
            flow_label: (word >> 32) as u32 & 0xf_ffff,
        }
    }

    /// The 40 bytes that are put before a message of `len` bytes: the network header of RoCE v2, of IPv6, or of IPv4 in the last
    /// 20 of them (annex A17 of IBTA, and as Linux's rxe does).
    pub fn header(self, process: &Process, len: usize, imm: bool) -> [u8; GRH] {
        let gid = |index: u8| device::gid(process, index.into()).unwrap_or_default();
        let (from, to) = (gid(self.sgid_index), gid(self.dgid_index));
        let payload = (TRANSPORT + len.next_multiple_of(4) + if imm { 4 } else { 0 }) as u16;
        let mut header = [0; GRH];
        if is_ipv4(&from) {
            let ip = &mut header[20..];
            ip[0] = 0x45;
            ip[1] = self.traffic_class;
            ip[2..4].copy_from_slice(&(payload + 20).to_be_bytes());
            // Not to be fragmented.
            ip[6] = 0x40;
            ip[8] = self.hop_limit;
            ip[9] = UDP;
            ip[12..16].copy_from_slice(&from[12..]);
            ip[16..20].copy_from_slice(&to[12..]);
            let sum = checksum(ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        } else {
            let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label;
            header[..4].copy_from_slice(&first.to_be_bytes());
            header[4..6].copy_from_slice(&payload.to_be_bytes());
            header[6] = UDP;
            header[7] = self.hop_limit;
            header[8..24].copy_from_slice(&from);
            header[24..].copy_from_slice(&to);
        }
        header
    }
}

/// Whether a GID is an IPv4 address.
fn is_ipv4(gid: &[u8; 16]) -> bool {
    gid[..10] == [0; 10] && gid[10..12] == [0xff; 2]
}

/// The checksum of an IPv4 header, computed with that field zero (RFC 791); 0 of one that carries its own.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2);
    let sum: u32 = words
        .map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])))
        .sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !((folded & 0xffff) + (folded >> 16)) as u16
}

fn mapped(address: &[u8]) -> [u8; 16] {
    let mut gid = [0; 16];
    gid[10..12].copy_from_slice(&[0xff; 2]);
    gid[12..].copy_from_slice(address);
    gid
}

/// `ibv_init_ah_from_wc`: how to answer the datagram of a completion.
///
/// # Errors
///
/// `EINVAL`: no such port, or the header names no GID of this device.
pub(crate) fn answer(
    process: &Process,
    port: u8,
    wc: &ibv_wc,
    grh: Option<&ibv_grh>,
) -> Result<ibv_ah_attr, i32> {
    let mut attr = ibv_ah_attr {
        dlid: wc.slid,
        sl: wc.sl,
        src_path_bits: wc.dlid_path_bits,
        port_num: port,
        ..ibv_ah_attr::default()
    };
    if port != 1 {
        return Err(libc::EINVAL);
    }
    if wc.wc_flags & ibv_wc_flags::IBV_WC_GRH.0 == 0 {
        return Ok(attr);
    }
    let grh = grh.ok_or(libc::EINVAL)?;
    // SAFETY: forty bytes without padding, all of them initialised.
    let bytes: [u8; GRH] = unsafe { core::mem::transmute_copy(grh) };
    let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    let ip = &bytes[20..];
    // What is no IPv4 header is one of IPv6.
    let (from, to, class, flow) = if ip[0] == 0x45 && checksum(ip) == 0 {
        (mapped(&ip[12..16]), mapped(&ip[16..20]), ip[1], 0)
    } else {
        let gid = |at: usize| core::array::from_fn(|i| bytes[at + i]);
        (gid(8), gid(24), (first >> 20) as u8, first & 0xf_ffff)
    };
    let ours = (0..GIDS).find(|&i| device::gid(process, i) == Some(to));
    attr.is_global = 1;
    attr.grh.dgid = ibv_gid { raw: from };
    attr.grh.sgid_index = ours.ok_or(libc::EINVAL)? as u8;
    attr.grh.flow_label = flow;
    attr.grh.hop_limit = 0xff;
    attr.grh.traffic_class = class;
    Ok(attr)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    #[test]
    fn headers_tell_the_way_back() {
        static_assertions::const_assert_eq!(size_of::<ibv_grh>(), GRH);
        let process = Process::get().unwrap();
        for (index, len, imm) in [(0, 0, false), (1, 0, true), (0, 77, true), (1, 4096, false)] {
            let address = Address {
                sgid_index: index,
                dgid_index: index,
                traffic_class: 0x24,
                hop_limit: 9,
                flow_label: 0xa_bcde,
            };
            assert_eq!(Address::unpack(address.pack()), address);
            let header = address.header(process, len, imm);
            // SAFETY: any bytes are a header.
            let grh: ibv_grh = unsafe { core::mem::transmute(header) };
            let wc = ibv_wc {
                wc_flags: ibv_wc_flags::IBV_WC_GRH.0,
                ..ibv_wc::default()
            };
            let attr = answer(process, 1, &wc, Some(&grh)).unwrap();
            let back = Address::new(process, &attr).unwrap();
            let flow_label = if index == 0 { address.flow_label } else { 0 };
            let expected = Address {
                hop_limit: 0xff,
                flow_label,
                ..address
            };
            assert_eq!(back, expected);
            assert_eq!(
                answer(process, 2, &wc, Some(&grh)).err(),
                Some(libc::EINVAL)
            );
            assert_eq!(answer(process, 1, &wc, None).err(), Some(libc::EINVAL));
        }
    }

    #[test]
    fn a_checksum_by_hand() {
        // The example of RFC 1071's method on a well-known header.
        let header = [
            0x45, 0x00, 0x00, 0x73, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0, 0, 0xc0, 0xa8, 0x00,
            0x01, 0xc0, 0xa8, 0x00, 0xc7,
        ];
        assert_eq!(checksum(&header), 0xb861);
    }

    proptest::proptest! {
        #[test]
        fn any_word_is_an_address(word: u64, len in 0usize..=4096, imm: bool) {
            let process = Process::get().unwrap();
            let address = Address::unpack(word);
            proptest::prop_assert_eq!(Address::unpack(address.pack()), address);
            let _ = address.header(process, len, imm);
        }
    }
}
