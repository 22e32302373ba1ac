//! What the demonstration's calls carry. All numbers are little-endian.
//!
//! | method | request | reply |
//! |---|---|---|
//! | [`PUT`] | [`PutHead`], name, data: three segments | [`PutReply`] |
//! | [`GET`] | [`GetHead`], name | the bytes asked for |
//! | [`ECHO`] | bytes | the same bytes |
//!
//! A file longer than [`PIECE`] is sent as several pieces, in order, one at a time; the last one carries the
//! checksum of the whole file as the client read it, and is answered with that of the whole file as the server
//! received it.

use verbatim::rpc::Method;

/// Store a piece of a file.
pub const PUT: Method = Method(1);
/// Read a piece of a file back.
pub const GET: Method = Method(2);
/// Return the request.
pub const ECHO: Method = Method(3);

/// Longest piece of a file in one call, bytes.
pub const PIECE: usize = 4 << 20;

/// Checksum of a whole file: XXH3, 128 bits.
pub type Checksum = u128;

/// What stands before name and data in a [`PUT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PutHead {
    /// Length of the name, bytes.
    pub name_len: u16,
    /// Whether the file ends with this piece.
    pub last: bool,
    /// Where the piece begins in the file, bytes.
    pub offset: u64,
    /// Of the whole file, in the last piece; else 0.
    pub checksum: Checksum,
}

impl PutHead {
    /// Encoded length, bytes.
    pub const LEN: usize = 2 + 1 + 8 + 16;

    /// Encodes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..2].copy_from_slice(&self.name_len.to_le_bytes());
        out[2] = u8::from(self.last);
        out[3..11].copy_from_slice(&self.offset.to_le_bytes());
        out[11..].copy_from_slice(&self.checksum.to_le_bytes());
        out
    }

    /// Splits a request into head, name and data; `None` if the lengths do not fit or a value is not one.
    pub fn parse(request: &[u8]) -> Option<(PutHead, &[u8], &[u8])> {
        let (head, rest) = request.split_first_chunk::<{ Self::LEN }>()?;
        let head = PutHead {
            name_len: u16::from_le_bytes(*head.first_chunk()?),
            last: match head[2] {
                0 => false,
                1 => true,
                _ => return None,
            },
            offset: u64::from_le_bytes(*head[3..].first_chunk()?),
            checksum: u128::from_le_bytes(*head[11..].first_chunk()?),
        };
        let (name, data) = rest.split_at_checked(head.name_len.into())?;
        Some((head, name, data))
    }
}

/// What stands before the name in a [`GET`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GetHead {
    /// Where to read, bytes.
    pub offset: u64,
    /// How much, bytes; the reply is shorter at the end of the file.
    pub len: u32,
}

impl GetHead {
    /// Encoded length, bytes.
    pub const LEN: usize = 8 + 4;

    /// Encodes.
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.offset.to_le_bytes());
        out[8..].copy_from_slice(&self.len.to_le_bytes());
        out
    }

    /// Splits a request into head and name.
    pub fn parse(request: &[u8]) -> Option<(GetHead, &[u8])> {
        let (head, name) = request.split_first_chunk::<{ Self::LEN }>()?;
        let head = GetHead {
            offset: u64::from_le_bytes(*head.first_chunk()?),
            len: u32::from_le_bytes(*head[8..].first_chunk()?),
        };
        Some((head, name))
    }
}

/// The reply to a [`PUT`]: the checksum of the whole file as received if it was the last piece, else 0.
pub struct PutReply;

impl PutReply {
    /// Encodes.
    pub fn to_bytes(checksum: Checksum) -> [u8; 16] {
        checksum.to_le_bytes()
    }

    /// Decodes.
    pub fn parse(reply: &[u8]) -> Option<Checksum> {
        Some(u128::from_le_bytes(reply.try_into().ok()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_is_what_it_was() {
        for (last, name, data) in [
            (false, &b"a/b"[..], &b"data"[..]),
            (true, b"x", b""),
            (true, b"", b"1"),
        ] {
            let head = PutHead {
                name_len: name.len() as u16,
                last,
                offset: 1 << 40,
                checksum: u128::MAX / 3,
            };
            let request = [&head.to_bytes(), name, data].concat();
            assert_eq!(PutHead::parse(&request), Some((head, name, data)));
        }
    }

    #[test]
    fn requests_that_do_not_add_up_are_refused() {
        let head = PutHead {
            name_len: 5,
            last: true,
            offset: 0,
            checksum: 0,
        };
        let request = [&head.to_bytes()[..], b"12345"].concat();
        assert!(PutHead::parse(&request).is_some());
        for len in 0..request.len() {
            assert_eq!(PutHead::parse(&request[..len]), None, "{len}");
        }
        let mut odd = request.clone();
        odd[2] = 2;
        assert_eq!(PutHead::parse(&odd), None);
        assert_eq!(GetHead::parse(&[0; GetHead::LEN - 1]), None);
        assert_eq!(PutReply::parse(&[0; 15]), None);
    }

    #[test]
    fn a_get_is_what_it_was() {
        let head = GetHead { offset: 7, len: 9 };
        let request = [&head.to_bytes()[..], b"name"].concat();
        assert_eq!(GetHead::parse(&request), Some((head, &b"name"[..])));
    }
}
