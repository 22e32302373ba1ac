//! Which methods a server has: the reply of the one method that every service has.
//!
//! ```text
//!   | 1 | length of the name, u8 | name | count, u16 | number, u16, version, u16, codecs of request and reply, u8 | ...
//! ```

use super::encoding::Encoding;
use super::error::DecodeError;
use super::method::Method;

const FORMAT: u8 = 1;

/// A method in one of its versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Offer {
    /// Its number.
    pub number: u16,
    /// Its version.
    pub version: u16,
    /// [`Encoding::CODEC`](super::Encoding::CODEC) of request and reply.
    pub codecs: [u8; 2],
}

impl Offer {
    /// What a server that has this method offers.
    pub fn of<M: Method>() -> Offer {
        Offer {
            number: M::NUMBER,
            version: M::VERSION,
            codecs: [M::Request::CODEC, M::Reply::CODEC],
        }
    }
}

/// What a server has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing {
    name: String,
    /// Ascending.
    offers: Vec<Offer>,
}

impl Listing {
    /// Of a service's name and methods, in any order.
    pub(crate) fn new(name: &str, mut offers: Vec<Offer>) -> Listing {
        offers.sort_unstable();
        Listing {
            name: name.to_owned(),
            offers,
        }
    }

    /// The service's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All methods, by number and version.
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Versions of a method, the lowest first; none if there is no such method.
    pub fn versions(&self, number: u16) -> impl Iterator<Item = u16> {
        let of_it = self.offers.iter().filter(move |o| o.number == number);
        of_it.map(|offer| offer.version)
    }

    /// Whether the method is there, in its version and encodings.
    pub fn has<M: Method>(&self) -> bool {
        self.offers.binary_search(&Offer::of::<M>()).is_ok()
    }

    /// The bytes of a reply. Of a long name, the first 255 bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let name = &self.name[..self.name.floor_char_boundary(255)];
        let mut out = vec![FORMAT, name.len() as u8];
        out.extend_from_slice(name.as_bytes());
        // Numbers and versions are 16 bits each, but nobody writes so many methods.
        out.extend_from_slice(&(self.offers.len() as u16).to_le_bytes());
        for offer in &self.offers {
            out.extend_from_slice(&offer.number.to_le_bytes());
            out.extend_from_slice(&offer.version.to_le_bytes());
            out.extend_from_slice(&offer.codecs);
        }
        out
    }

    /// The reverse of `encode`, for whatever a peer says.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Listing, DecodeError> {
        let short = || DecodeError::Short(bytes.len());
        let (&[format, name_len], rest) = bytes.split_first_chunk().ok_or_else(short)?;
        if format != FORMAT {
            return Err(DecodeError::Format(format));
        }
        let (name, rest) = rest.split_at_checked(name_len.into()).ok_or_else(short)?;
        let (&count, rest) = rest.split_first_chunk().ok_or_else(short)?;
        let (entries, left) = rest.as_chunks::<6>();
        let expected = usize::from(u16::from_le_bytes(count));
        if expected > entries.len() {
            return Err(short());
        }
        if !left.is_empty() || expected < entries.len() {
            return Err(DecodeError::Left(rest.len() - expected * 6));
        }
        let offers: Vec<Offer> = entries
            .iter()
            .map(|&[n0, n1, v0, v1, request, reply]| Offer {
                number: u16::from_le_bytes([n0, n1]),
                version: u16::from_le_bytes([v0, v1]),
                codecs: [request, reply],
            })
            .collect();
        let key = |offer: &Offer| (offer.number, offer.version);
        if !offers.is_sorted_by(|a, b| key(a) < key(b)) {
            return Err(DecodeError::Order);
        }
        Ok(Listing {
            name: std::str::from_utf8(name)
                .map_err(|e| DecodeError::Value(e.to_string()))?
                .to_owned(),
            offers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn offer(number: u16, version: u16) -> Offer {
        Offer {
            number,
            version,
            codecs: [1, 2],
        }
    }

    #[test]
    fn there_and_back() {
        let listing = Listing::new("files", vec![offer(9, 1), offer(2, 3), offer(2, 1)]);
        let bytes = listing.encode();
        assert_eq!(Listing::decode(&bytes).as_ref(), Ok(&listing));
        assert_eq!(listing.versions(2).collect::<Vec<_>>(), [1, 3]);
        for len in 0..bytes.len() {
            assert!(Listing::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        let mut longer = bytes.clone();
        longer.push(0);
        assert_eq!(Listing::decode(&longer), Err(DecodeError::Left(1)));
        let twice = Listing::new("files", vec![offer(1, 1), offer(1, 1)]);
        assert_eq!(Listing::decode(&twice.encode()), Err(DecodeError::Order));
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let listing = Listing::new(&"ü".repeat(200), vec![offer(1, 1)]);
        let there = Listing::decode(&listing.encode()).unwrap();
        assert_eq!(there.name(), "ü".repeat(127));
    }

    proptest! {
        /// Any bytes are an error, or a listing with just these bytes.
        #[test]
        fn any_bytes(bytes in proptest::collection::vec(any::<u8>(), 0..64), head: bool) {
            let mut bytes = bytes;
            if head && bytes.len() > 4 {
                (bytes[0], bytes[1], bytes[3]) = (FORMAT, bytes[1] % 4, 0);
            }
            if let Ok(listing) = Listing::decode(&bytes) {
                prop_assert_eq!(listing.encode(), bytes);
            }
        }
    }
}
