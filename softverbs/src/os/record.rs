//! The contents of a slot file: a record of fixed size, little-endian, with a checksum, so that a reader can tell a
//! slot from anything else that may lie in the folder, and a whole record from a part of one.

use super::incarnation::Incarnation;
use super::pull::FileId;

/// Where a process keeps its segment of advertisements, as told to its peers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlotInfo {
    /// The process that holds the slot.
    pub owner: Incarnation,
    /// Number of the segment's descriptor in that process.
    pub segment_fd: i32,
    /// The segment's file.
    pub segment: FileId,
    /// Layout version of the segment. Peers of another layout must not map it.
    pub layout: u32,
}

/// Bytes of a slot file.
pub(super) const LEN: usize = 64;
const MAGIC: [u8; 8] = *b"verbslot";
const CHECKED: usize = LEN - 8;

/// A slot file that is not a whole record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Malformed;

/// The record: the slot, and the PID namespace (inode of `/proc/self/ns/pid`) in which its pid means something.
pub(super) fn encode(info: &SlotInfo, pid_namespace: u64) -> [u8; LEN] {
    let mut bytes = [0; LEN];
    let mut at = 0;
    let mut put = |field: &[u8]| {
        bytes[at..at + field.len()].copy_from_slice(field);
        at += field.len();
    };
    put(&MAGIC);
    put(&info.layout.to_le_bytes());
    put(&info.owner.pid.to_le_bytes());
    put(&info.owner.start.to_le_bytes());
    put(&pid_namespace.to_le_bytes());
    put(&info.segment.dev.to_le_bytes());
    put(&info.segment.ino.to_le_bytes());
    put(&info.segment_fd.to_le_bytes());
    let sum = checksum(&bytes[..CHECKED]);
    bytes[CHECKED..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// The inverse of [`encode`].
pub(super) fn decode(bytes: &[u8; LEN]) -> Result<(SlotInfo, u64), Malformed> {
    let mut at = 0;
    let magic: [u8; 8] = take(bytes, &mut at);
    let layout = u32::from_le_bytes(take(bytes, &mut at));
    let pid = u32::from_le_bytes(take(bytes, &mut at));
    let start = u64::from_le_bytes(take(bytes, &mut at));
    let pid_namespace = u64::from_le_bytes(take(bytes, &mut at));
    let dev = u64::from_le_bytes(take(bytes, &mut at));
    let ino = u64::from_le_bytes(take(bytes, &mut at));
    let segment_fd = i32::from_le_bytes(take(bytes, &mut at));
    let sum = u64::from_le_bytes(take(bytes, &mut { CHECKED }));
    if magic != MAGIC || sum != checksum(&bytes[..CHECKED]) {
        return Err(Malformed);
    }
    let info = SlotInfo {
        owner: Incarnation { pid, start },
        segment_fd,
        segment: FileId { dev, ino },
        layout,
    };
    Ok((info, pid_namespace))
}

fn take<const N: usize>(bytes: &[u8; LEN], at: &mut usize) -> [u8; N] {
    let field = std::array::from_fn(|i| bytes[*at + i]);
    *at += N;
    field
}

/// 64-bit FNV-1a. Against accidents, not against attackers: the folder is the user's own.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            pid: u32, start: u64, segment_fd: i32, dev: u64, ino: u64, layout: u32, namespace: u64,
        ) {
            let info = SlotInfo {
                owner: Incarnation { pid, start },
                segment_fd,
                segment: FileId { dev, ino },
                layout,
            };
            prop_assert_eq!(decode(&encode(&info, namespace)), Ok((info, namespace)));
        }

        #[test]
        fn any_changed_byte_is_noticed(at in 0..LEN, change in 1..=u8::MAX) {
            let info = SlotInfo {
                owner: Incarnation { pid: 7, start: 8 },
                segment_fd: 9,
                segment: FileId { dev: 10, ino: 11 },
                layout: 12,
            };
            let mut bytes = encode(&info, 13);
            bytes[at] ^= change;
            prop_assert_eq!(decode(&bytes), Err(Malformed));
        }
    }

    #[test]
    fn an_empty_record_is_malformed() {
        assert_eq!(decode(&[0; LEN]), Err(Malformed));
    }
}
