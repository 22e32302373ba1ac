//! What a completion says about its work request.

use std::fmt;

use ibverbs_sys::ibv_wc_status as sys;

/// Status of a completion.
///
/// A newtype, because devices may report values that this crate does not know.
///
/// Source: `ibv_poll_cq(3)`.
#[doc(alias = "ibv_wc_status")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct WcStatus(pub u32);

macro_rules! statuses {
    ($($name:ident = $sys:ident, $text:literal;)*) => {
        impl WcStatus {
            $(#[doc = concat!("`", stringify!($sys), "`: ", $text, ".")] pub const $name: WcStatus = WcStatus(sys::$sys.0);)*

            /// Name of the constant in verbs.h, without `IBV_WC_`; `None` for values unknown here.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(WcStatus::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }

            /// What it means and what usually causes it.
            pub fn explanation(self) -> &'static str {
                match self {
                    $(WcStatus::$name => $text,)*
                    _ => "a status this version does not know",
                }
            }
        }
    };
}

statuses! {
    SUCCESS = IBV_WC_SUCCESS, "completed";
    LOC_LEN_ERR = IBV_WC_LOC_LEN_ERR, "the message is longer than the receive buffer, or than the port's largest message";
    LOC_QP_OP_ERR = IBV_WC_LOC_QP_OP_ERR, "the queue pair cannot do this work request";
    LOC_EEC_OP_ERR = IBV_WC_LOC_EEC_OP_ERR, "local error of an end-to-end context";
    LOC_PROT_ERR = IBV_WC_LOC_PROT_ERR, "a local segment is not inside its memory region, or its key is wrong, of another protection domain, or lacks a right";
    WR_FLUSH_ERR = IBV_WC_WR_FLUSH_ERR, "not executed, or not known to be: the queue pair went to the error state before this completed";
    MW_BIND_ERR = IBV_WC_MW_BIND_ERR, "a memory window could not be bound";
    BAD_RESP_ERR = IBV_WC_BAD_RESP_ERR, "the peer's device answered with something unexpected";
    LOC_ACCESS_ERR = IBV_WC_LOC_ACCESS_ERR, "the peer wrote with immediate data into memory that its key does not cover";
    REM_INV_REQ_ERR = IBV_WC_REM_INV_REQ_ERR, "the peer's device refused the request: the message is longer than its receive buffer, or the operation is not enabled on its queue pair";
    REM_ACCESS_ERR = IBV_WC_REM_ACCESS_ERR, "the peer's device refused the access: wrong or withdrawn key, out of bounds, or a right is missing";
    REM_OP_ERR = IBV_WC_REM_OP_ERR, "the peer's device could not complete the operation";
    RETRY_EXC_ERR = IBV_WC_RETRY_EXC_ERR, "no answer from the peer: it is gone or not ready to receive yet, or packets do not reach it (wrong GID index, MTU, routing)";
    RNR_RETRY_EXC_ERR = IBV_WC_RNR_RETRY_EXC_ERR, "the peer had no receive posted, for longer than rnr_retry allows";
    LOC_RDD_VIOL_ERR = IBV_WC_LOC_RDD_VIOL_ERR, "reliable datagram domains differ";
    REM_INV_RD_REQ_ERR = IBV_WC_REM_INV_RD_REQ_ERR, "the peer refused a reliable datagram request";
    REM_ABORT_ERR = IBV_WC_REM_ABORT_ERR, "the peer aborted the operation";
    INV_EECN_ERR = IBV_WC_INV_EECN_ERR, "unknown end-to-end context";
    INV_EEC_STATE_ERR = IBV_WC_INV_EEC_STATE_ERR, "end-to-end context in the wrong state";
    FATAL_ERR = IBV_WC_FATAL_ERR, "the device reports a fatal error";
    RESP_TIMEOUT_ERR = IBV_WC_RESP_TIMEOUT_ERR, "the peer's answer timed out";
    GENERAL_ERR = IBV_WC_GENERAL_ERR, "the device reports an error of no other kind";
    TM_ERR = IBV_WC_TM_ERR, "tag matching failed";
    TM_RNDV_INCOMPLETE = IBV_WC_TM_RNDV_INCOMPLETE, "a tag matching rendezvous is to be completed in software";
}

impl fmt::Display for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "status {}", self.0),
        }
    }
}

impl fmt::Debug for WcStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A work request failed.
///
/// These are all that a device says of it. A connection that is reliable is over: everything else posted to its queue pair completes with
/// [`WcStatus::WR_FLUSH_ERR`]. On an unreliable one a send that fails stops the send queue, until it is
/// [recovered](crate::SendQueue::recover); receives go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{status}: {} (queue pair {qp_num:#x}, vendor code {vendor_err:#x})", status.explanation())]
#[non_exhaustive]
pub struct WcError {
    /// Kind of failure.
    pub status: WcStatus,
    /// The device maker's code for it.
    pub vendor_err: u32,
    /// Number of the queue pair.
    pub qp_num: u32,
}

impl WcError {
    /// Whether the work was given up because something else had failed, or the queue pair was.
    pub fn is_flush(&self) -> bool {
        self.status == WcStatus::WR_FLUSH_ERR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_values_print() {
        assert_eq!(WcStatus(13).to_string(), "RNR_RETRY_EXC_ERR");
        assert_eq!(WcStatus(13), WcStatus::RNR_RETRY_EXC_ERR);
        assert_eq!(WcStatus(99).to_string(), "status 99");
        for s in 0..24 {
            assert!(WcStatus(s).name().is_some());
        }
        let e = WcError {
            status: WcStatus::REM_ACCESS_ERR,
            vendor_err: 0x88,
            qp_num: 7,
        };
        assert!(!e.is_flush());
        assert!(
            e.to_string()
                .starts_with("REM_ACCESS_ERR: the peer's device refused")
        );
    }
}
