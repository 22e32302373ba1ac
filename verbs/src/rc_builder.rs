//! What only reliable connections can be built with.

use crate::qp_builder::QpBuilder;
use crate::{Access, Own, Rc};

/// Builds a reliable connection; made by [`Pd::rc`](crate::Pd::rc).
///
/// The defaults are values that work on the devices in use: a receiver that is not ready asks for 0.64 ms (the code 0 would mean
/// 655 ms), an unanswered packet is sent again after 67 ms, six times (seven never ends on some devices), and a receiver that is not
/// ready is waited for without limit.
pub type RcBuilder<R = Own> = QpBuilder<Rc, R>;

impl<R> QpBuilder<Rc, R> {
    /// How often a send is repeated when the peer has no receive posted, 0 to 6; 7, the default, is without limit.
    ///
    /// Not a substitute for flow control: devices have been seen (Soft-RoCE) to count the wait for a receive as silence of the
    /// peer, and to give up with [`RETRY_EXC_ERR`](crate::WcStatus::RETRY_EXC_ERR) once it lasts longer than about
    /// ([`retry_cnt`](Self::retry_cnt) + 1) times [`timeout`](Self::timeout), half a second by default.
    pub fn rnr_retry(mut self, count: u8) -> Self {
        self.attributes.rnr_retry = count;
        self
    }

    /// How often a packet that is not answered is repeated, 0 to 7. Default 6; on some devices 7 never ends.
    pub fn retry_cnt(mut self, count: u8) -> Self {
        self.attributes.retry_cnt = count;
        self
    }

    /// Code of the time after which a packet is not answered: 4.096 us x 2^code, 1 to 31; 0 is for ever. Default 14 (67 ms).
    pub fn timeout(mut self, code: u8) -> Self {
        self.attributes.timeout = code;
        self
    }

    /// Code of the time that peers wait when no receive is posted here, 1 to 31: from 0.01 ms (1) to 491.52 ms (31);
    /// 0 is 655.36 ms. Default 12 (0.64 ms).
    pub fn min_rnr_timer(mut self, code: u8) -> Self {
        self.attributes.min_rnr_timer = code;
        self
    }

    /// READs and atomics that can be under way in each direction. Default 16; as much of it as the devices have. With 0 on
    /// either side, READs and atomics in both directions are [refused](crate::PostErrorKind::NoReads).
    pub fn rd_atomic(mut self, count: u8) -> Self {
        self.attributes.rd_atomic = count;
        self
    }

    /// What the peer may do at all; each region's access decides further. Default: READ and WRITE. Atomics must be asked for,
    /// since not all devices have them.
    pub fn access(mut self, access: Access) -> Self {
        self.access = access;
        self
    }
}
