//! What only queue pairs for datagrams can be built with, and how they are started.

use ibverbs_sys::{ibv_qp_attr, ibv_qp_state};

use crate::qp::Sends;
use crate::qp_builder::QpBuilder;
use crate::qp_kind::sealed::Kind;
use crate::qp_setup::{QpReady, QpSetup};
use crate::{ConnectError, Own, RecvQueue, SendQueue, Shared, Ud};

/// Builds a queue pair for datagrams; made by [`Pd::ud`](crate::Pd::ud).
///
/// It has no peer, so there are neither retries nor access rights to set; each send says where it goes
/// ([`SendQueue::send_to`]). The first [40 bytes](crate::Grh) of a receive are for the network header.
///
/// ```
/// # use verbs::{Device, Private};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # type Buf = Private<Vec<u8>>;
/// # let ctx = Device::open_spec("soft0")?;
/// # let pd = ctx.alloc_pd()?;
/// let mut cq = ctx.cq(256).build()?;
/// let [a, b] = [pd.ud(&cq).qkey(7).build()?, pd.ud(&cq).qkey(7).build()?];
/// let to_b = pd.destination(&b.endpoint(), 7)?;
/// let (mut tx, mut answers) = a.start::<Buf, Buf>()?;
/// let (mut tx_b, mut rx_b) = b.start::<Buf, Buf>()?;
///
/// rx_b.post(pd.register(vec![0; 40 + 64])?)?;
/// tx.send_to(pd.register(b"hello".to_vec())?, &to_b).post()?;
/// let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
/// let got = rx_b.redeem(wc)??;
/// assert_eq!(got.bytes(), b"hello");
///
/// answers.post(pd.register(vec![0; 40 + 64])?)?;
/// let back = got.sender(&pd)?.at(got.source_qpn().ok_or("a datagram")?, 7);
/// tx_b.send_to(pd.register(b"and to you".to_vec())?, &back).post()?;
/// # let wc = loop { if let Some(wc) = cq.poll()? { break wc } };
/// assert_eq!(answers.redeem(wc)??.bytes(), b"and to you");
/// # Ok(()) }
/// ```
pub type UdBuilder<R = Own> = QpBuilder<Ud, R>;

/// A queue pair for datagrams that is not started yet.
pub type UdReady<R = Own> = QpReady<Ud, R>;

/// The right to start a queue pair for datagrams whose queues are already in use.
pub type UdSetup = QpSetup<Ud>;

impl<R> QpBuilder<Ud, R> {
    /// The key that senders must know: messages with another are dropped. Default 0x11111111. Keys with the highest bit set are
    /// privileged on some devices.
    pub fn qkey(mut self, qkey: u32) -> Self {
        self.qkey = qkey;
        self
    }
}

impl QpReady<Ud, Own> {
    /// Starts it; the queues hold work of the types `S` and `R`.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair is destroyed then.
    pub fn start<S: Send + 'static, R: Send + 'static>(
        self,
    ) -> Result<(SendQueue<S, Ud>, RecvQueue<R>), ConnectError> {
        let (setup, send, recv) = self.split();
        setup.start()?;
        Ok((send, recv))
    }
}

impl QpReady<Ud, Shared> {
    /// Starts it; the send queue holds work of the type `S`. Receives are the shared queue's.
    ///
    /// # Errors
    /// [`ConnectError`]; the queue pair is destroyed then.
    pub fn start<S: Send + 'static>(self) -> Result<SendQueue<S, Ud>, ConnectError> {
        let (setup, send) = self.split();
        setup.start()?;
        Ok(send)
    }
}

impl QpSetup<Ud> {
    /// Lets it receive, then send.
    ///
    /// # Errors
    /// [`ConnectError`] names the step and the likely cause. The queues remain; work posted to them comes back when they are destroyed.
    #[doc(alias = "ibv_modify_qp")]
    pub fn start(self) -> Result<(), ConnectError> {
        let core = self.keep.core();
        let step = |from, to, attributes, source| ConnectError::Modify {
            from,
            to,
            attributes,
            source,
            local: self.local(core),
            peer: "any".to_owned(),
            hint: "likely the port is not active, or the device has no unreliable datagrams".into(),
        };
        core.with(|qp| {
            let mut attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTR,
                ..Default::default()
            };
            core.modify(qp, &mut attr, Ud::RTR)
                .map_err(|e| step("INIT", "RTR", Ud::RTR_NAMES, e))?;
            let mut attr = ibv_qp_attr {
                qp_state: ibv_qp_state::IBV_QPS_RTS,
                sq_psn: self.endpoint().psn(),
                ..Default::default()
            };
            core.modify(qp, &mut attr, Ud::RTS)
                .map_err(|e| step("RTR", "RTS", Ud::RTS_NAMES, e))?;
            core.connected(Sends::Everything);
            Ok(())
        })
        .unwrap_or(Err(ConnectError::Destroyed))
    }
}
