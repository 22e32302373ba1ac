//! What typed services say.

use super::Random;
use crate::service::{Listing, Offer};

/// For [`service_listing`](crate::fuzzing::service_listing).
pub fn service_listing(random: &mut Random) -> Vec<u8> {
    let mut offers: Vec<Offer> = (0..random.below(12))
        .map(|_| Offer {
            number: random.below(20) as u16,
            version: random.below(4) as u16,
            codecs: [random.below(3) as u8, random.below(3) as u8],
        })
        .collect();
    let key = |offer: &Offer| (offer.number, offer.version);
    offers.sort_unstable_by_key(key);
    offers.dedup_by_key(|offer| key(offer));
    let name = "käse ".repeat(random.below(50) as usize);
    Listing::new(&name, offers).encode()
}

/// For [`service_message`](crate::fuzzing::service_message).
#[cfg(all(feature = "serde", feature = "zerocopy"))]
pub fn service_message(random: &mut Random) -> Vec<u8> {
    use crate::fuzzing::headers::{Poor, Rich};
    use crate::service::frame_bytes;

    let version = random.below(4) as u16;
    let mut out = Vec::new();
    let made = if random.once_in(3) {
        let mut value = [[0; 3]; 5];
        for row in &mut value {
            row.copy_from_slice(&random.bytes(3));
        }
        frame_bytes::<Poor>(version, &value, &mut out)
    } else {
        let list = (0..random.below(6))
            .map(|_| {
                let number = random.once_in(2).then(|| random.edge());
                let other = match random.once_in(2) {
                    true => Ok(random.word() as i16),
                    false => Err(random.pick(&['a', 'ß', '\u{10ffff}'])),
                };
                (number, other)
            })
            .collect();
        let map = (0..random.below(4))
            .map(|_| {
                (
                    random.word() as u8,
                    vec!["ü".repeat(random.below(9) as usize)],
                )
            })
            .collect();
        let name = "x".repeat(random.below(200) as usize);
        let floats = [f32::from_bits(random.word() as u32), 0.5];
        frame_bytes::<Rich>(version, &(name, list, map, floats), &mut out)
    };
    made.expect("such a value has an encoding");
    // What is behind a header is not looked at.
    let len = random.below(64) as usize;
    out.extend(random.bytes(len));
    out
}
