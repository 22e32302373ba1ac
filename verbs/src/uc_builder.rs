//! What only unreliable connections can be built with.

use crate::qp_builder::QpBuilder;
use crate::qp_setup::{QpReady, QpSetup};
use crate::{Access, Own, Uc};

/// Builds an unreliable connection; made by [`Pd::uc`](crate::Pd::uc).
///
/// Nothing is repeated and nothing answered, so there are no retries, timers and READ depths to set:
///
/// ```compile_fail
/// # fn f(pd: &verbs::Pd, cq: &verbs::Cq) {
/// let _ = pd.uc(cq).rnr_retry(0);
/// # }
/// ```
///
/// A message without a receive is lost; so is a WRITE with a key that is not good. A receive that is too short fails, and ends its queue
/// pair. The sender's completion says only that the message has left.
///
/// ```
/// # use verbs::{Device, Private, Uc, SendQueue};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let ctx = Device::open_spec("soft0")?;
/// # let pd = ctx.alloc_pd()?;
/// # let mut cq = ctx.cq(64).build()?;
/// let ready = pd.uc(&cq).send_depth(8).recv_depth(8).build()?;
/// let own = ready.endpoint();
/// let (mut tx, mut rx) = ready.connect::<Private<Vec<u8>>, Private<Vec<u8>>>(&own)?;
/// rx.post(pd.register(vec![0; 8])?)?;
/// tx.send(pd.register(b"perhaps".to_vec())?).signaled().post()?;
/// # let tx: SendQueue<_, Uc> = tx;
/// # Ok(()) }
/// ```
pub type UcBuilder<R = Own> = QpBuilder<Uc, R>;

/// An unreliable connection that is not connected yet.
pub type UcReady<R = Own> = QpReady<Uc, R>;

/// The right to connect an unreliable connection whose queues are already in use.
pub type UcSetup = QpSetup<Uc>;

impl<R> QpBuilder<Uc, R> {
    /// Whether the peer may WRITE at all; each region's access decides further. Default: it may.
    pub fn remote_write(mut self, allow: bool) -> Self {
        self.access = if allow {
            Access::REMOTE_WRITE
        } else {
            Access::empty()
        };
        self
    }
}
