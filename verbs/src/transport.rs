//! What a device speaks on the wire.

use std::fmt;

use ibverbs_sys::ibv_transport_type as sys;

/// The family of protocols that a device speaks.
///
/// Source: `struct ibv_device`.
#[doc(alias = "ibv_transport_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// InfiniBand's, also in the frames of Ethernet: InfiniBand, RoCE, `soft0`.
    InfiniBand,
    /// iWARP, over TCP. Its devices have no immediate data.
    Iwarp,
    /// Cisco usNIC, which has no reliable connections.
    Usnic,
    /// Something else that the maker does not say.
    Unspecified,
    /// A value this version does not know; -1 is the library's "unknown".
    Unknown(i32),
}

impl Transport {
    pub(crate) fn from_sys(transport: sys) -> Transport {
        match transport {
            sys::IBV_TRANSPORT_IB => Transport::InfiniBand,
            sys::IBV_TRANSPORT_IWARP => Transport::Iwarp,
            sys::IBV_TRANSPORT_USNIC | sys::IBV_TRANSPORT_USNIC_UDP => Transport::Usnic,
            sys::IBV_TRANSPORT_UNSPECIFIED => Transport::Unspecified,
            other => Transport::Unknown(other.0),
        }
    }

    /// Whether its messages can carry [immediate data](crate::Wr::imm).
    pub fn has_immediate_data(self) -> bool {
        self != Transport::Iwarp
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::InfiniBand => f.write_str("InfiniBand"),
            Transport::Iwarp => f.write_str("iWARP"),
            Transport::Usnic => f.write_str("usNIC"),
            Transport::Unspecified => f.write_str("unspecified"),
            Transport::Unknown(n) => write!(f, "transport {n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_iwarp_lacks_immediate_data() {
        let all = (-2..6).map(|code| Transport::from_sys(sys(code)));
        let without: Vec<_> = all.filter(|t| !t.has_immediate_data()).collect();
        assert_eq!(without, [Transport::Iwarp]);
        assert_eq!(Transport::from_sys(sys(-1)).to_string(), "transport -1");
        assert_eq!(Transport::from_sys(sys(3)), Transport::Usnic);
    }
}
