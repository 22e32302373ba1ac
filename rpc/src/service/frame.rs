//! What is in front of each header.

use super::encoding::Encoding;
use super::error::{DecodeError, EncodeError};
use std::ops::Range;

/// Bytes in front of a header.
pub const PREFIX: usize = 8;

/// A message that has been taken apart, but for its header's encoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    pub version: u16,
    codec: u8,
    header: u32,
}

impl Frame {
    /// Takes a message apart. Nothing behind the prefix is looked at.
    pub fn parse(message: &[u8]) -> Result<Frame, DecodeError> {
        let Some((&[v0, v1, codec, zero, h0, h1, h2, h3], rest)) =
            message.split_first_chunk::<PREFIX>()
        else {
            return Err(DecodeError::Short(message.len()));
        };
        let header = u32::from_le_bytes([h0, h1, h2, h3]);
        if zero != 0 {
            return Err(DecodeError::Reserved(zero));
        }
        if header as usize > rest.len() {
            return Err(DecodeError::Header {
                len: header,
                present: rest.len(),
            });
        }
        Ok(Frame {
            version: u16::from_le_bytes([v0, v1]),
            codec,
            header,
        })
    }

    /// Where in the message the header is. The rest begins where it ends.
    pub fn header(&self) -> Range<usize> {
        PREFIX..PREFIX + self.header as usize
    }

    /// Decodes the header; `message` is the one that was taken apart.
    pub fn decode<E: Encoding>(&self, message: &[u8]) -> Result<E::Held, DecodeError> {
        if self.codec != E::CODEC {
            return Err(DecodeError::Codec {
                codec: self.codec,
                expected: E::CODEC,
            });
        }
        E::decode(&message[self.header()])
    }
}

/// Writes prefix and header into `out`, in place of what was there.
pub fn encode<E: Encoding>(
    version: u16,
    value: &E::Value,
    out: &mut Vec<u8>,
) -> Result<(), EncodeError> {
    let [v0, v1] = version.to_le_bytes();
    out.clear();
    out.extend_from_slice(&[v0, v1, E::CODEC, 0, 0, 0, 0, 0]);
    E::encode(value, out)?;
    let len = u32::try_from(out.len() - PREFIX)
        .map_err(|_| EncodeError("longer than 4 GiB".to_owned()))?;
    out[4..PREFIX].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_that_cannot_be() {
        assert_eq!(Frame::parse(&[1; 7]), Err(DecodeError::Short(7)));
        assert_eq!(
            Frame::parse(&[1, 0, 1, 9, 0, 0, 0, 0]),
            Err(DecodeError::Reserved(9))
        );
        assert_eq!(
            Frame::parse(&[1, 0, 1, 0, 2, 0, 0, 0, 7]),
            Err(DecodeError::Header { len: 2, present: 1 })
        );
        let longest = [1, 0, 1, 0, 255, 255, 255, 255, 7];
        assert!(matches!(
            Frame::parse(&longest),
            Err(DecodeError::Header { .. })
        ));
        let frame = Frame::parse(&[2, 1, 1, 0, 1, 0, 0, 0, 7, 8, 9]).unwrap();
        assert_eq!((frame.version, frame.header()), (0x102, 8..9));
    }
}
