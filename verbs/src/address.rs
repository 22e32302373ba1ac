//! Address handles: the ways that datagrams go.
//!
//! A device may look at a handle until the work that names it is done. So each slot of a send queue for datagrams keeps the handle of its
//! work, beside the ring, until the slot is used again or the queue pair is gone; a slot whose next work goes the same way is left as it
//! is, so that a stream to one peer counts no references.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use ibverbs_sys::{ibv_ah, ibv_ah_attr, ibv_global_route, ibv_grh, ibv_wc};

use crate::errno;
use crate::port::PortChoice;
use crate::qp::Limits;
use crate::{Endpoint, Error, Gid, Grh, LinkLayer, Mtu, Pd, PostErrorKind};

/// The way to a port, for datagrams. Clones are the same handle, which is destroyed after the last clone and the last work that used it.
///
/// Made by [`Pd::address`], or from what arrived by [`Received::sender`](crate::Received::sender).
#[doc(alias = "ibv_ah")]
#[derive(Clone)]
pub struct AddressHandle(Arc<Inner>);

struct Inner {
    ah: NonNull<ibv_ah>,
    mtu: Mtu,
    pd: Pd,
}

// SAFETY: a handle is not changed after it was made, and may be used and destroyed by any thread.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl Drop for Inner {
    #[doc(alias = "ibv_destroy_ah")]
    fn drop(&mut self) {
        // SAFETY: created below, and no work that names it is in flight: `Handles` has a clone for each, and a scope borrows one.
        if unsafe { (self.pd.api().ibv_destroy_ah)(self.ah.as_ptr()) } != 0 {
            std::mem::forget(self.pd.clone());
        }
    }
}

impl AddressHandle {
    pub(crate) fn new(pd: &Pd, attr: &mut ibv_ah_attr, mtu: Mtu) -> Result<AddressHandle, Error> {
        // SAFETY: the domain is alive and the attributes are complete.
        let ah = errno::object(unsafe { (pd.api().ibv_create_ah)(pd.raw(), attr) }).map_err(|e| {
            let to = Gid::from_sys(&attr.grh.dgid);
            let hint = format!(
                "to GID {to}, LID {}: it must be of the kind and network of the GID used here, {}, and reachable",
                attr.dlid,
                pd.context().port().gid
            );
            Error::hinted("ibv_create_ah", e, hint)
        })?;
        Ok(AddressHandle(Arc::new(Inner {
            ah,
            mtu,
            pd: pd.clone(),
        })))
    }

    pub(crate) fn to_port(pd: &Pd, gid: Gid, lid: u16, mtu: Mtu) -> Result<AddressHandle, Error> {
        let port = pd.context().port();
        if let Some(why) = unreachable(port, gid, lid) {
            let e = std::io::ErrorKind::AddrNotAvailable.into();
            return Err(Error::hinted("ibv_create_ah", e, why));
        }
        Self::new(pd, &mut route(port, gid, lid), port.mtu.min(mtu))
    }

    /// The way back to who sent the message that `wc` tells of.
    pub(crate) fn answer(
        pd: &Pd,
        wc: &mut ibv_wc,
        grh: Option<&Grh>,
    ) -> Result<AddressHandle, Error> {
        let (ctx, mut attr) = (pd.context(), ibv_ah_attr::default());
        let mut header = ibv_grh::default();
        if let Some(grh) = grh {
            // SAFETY: both have 40 bytes, and any bytes are a header.
            unsafe {
                let to = (&raw mut header).cast::<[u8; Grh::LEN as usize]>();
                to.write_unaligned(*grh.as_bytes());
            }
        }
        // SAFETY: the device is open; completion, header and result are complete and writable.
        let ret = unsafe {
            (ctx.api().ibv_init_ah_from_wc)(
                ctx.raw(),
                ctx.port().port_num,
                wc,
                &mut header,
                &mut attr,
            )
        };
        errno::check(ret).map_err(|e| {
            let hint = format!("the header of what was received: {grh:?}");
            Error::hinted("ibv_init_ah_from_wc", e, hint)
        })?;
        Self::new(pd, &mut attr, ctx.port().mtu)
    }

    /// A queue pair there, by its number (24 bits) and the key that it wants to see.
    pub fn at(&self, qpn: u32, qkey: u32) -> Destination {
        Destination {
            handle: self.clone(),
            qpn,
            qkey,
        }
    }

    /// The protection domain it belongs to. Queue pairs of others cannot use it.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// The longest message: what fits into one packet.
    pub fn mtu(&self) -> Mtu {
        self.0.mtu
    }

    /// For [raw posting](crate::SendQueue::post_raw), which must keep a clone until the work is done.
    pub fn as_ptr(&self) -> *mut ibv_ah {
        self.0.ah.as_ptr()
    }
}

impl fmt::Debug for AddressHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressHandle")
            .field("mtu", &self.0.mtu)
            .field("pd", &self.0.pd)
            .finish_non_exhaustive()
    }
}

/// Where a datagram goes: the way there, a queue pair, and its key. Made by [`AddressHandle::at`] or [`Pd::destination`].
#[derive(Clone, Debug)]
pub struct Destination {
    handle: AddressHandle,
    qpn: u32,
    qkey: u32,
}

impl Destination {
    /// The way there.
    pub fn handle(&self) -> &AddressHandle {
        &self.handle
    }

    /// Number of the queue pair.
    pub fn qpn(&self) -> u32 {
        self.qpn
    }

    /// The key that is sent along.
    pub fn qkey(&self) -> u32 {
        self.qkey
    }

    /// As two words, for a work request.
    #[inline(always)]
    pub(crate) fn operands(&self) -> [u64; 2] {
        let ah = self.handle.as_ptr().expose_provenance() as u64;
        [ah, u64::from(self.qpn) << 32 | u64::from(self.qkey)]
    }
}

impl Pd {
    /// The way to the port of an end point.
    ///
    /// # Errors
    /// When it cannot be reached from this port, or the device refuses.
    #[doc(alias = "ibv_create_ah")]
    pub fn address(&self, peer: &Endpoint) -> Result<AddressHandle, Error> {
        AddressHandle::to_port(self, peer.gid(), peer.lid(), peer.mtu())
    }

    /// The way to the port with this GID. Packets are taken to be as long as this port's.
    ///
    /// # Errors
    /// As [`address`](Self::address).
    #[doc(alias = "ibv_create_ah")]
    pub fn address_of(&self, gid: Gid) -> Result<AddressHandle, Error> {
        AddressHandle::to_port(self, gid, 0, self.context().port().mtu)
    }

    /// The queue pair of an end point, which wants to see this key.
    ///
    /// # Errors
    /// As [`address`](Self::address).
    pub fn destination(&self, peer: &Endpoint, qkey: u32) -> Result<Destination, Error> {
        Ok(self.address(peer)?.at(peer.qpn(), qkey))
    }
}

/// The handles of datagrams that may be in flight, by slot of the send queue. Empty for other queue pairs.
pub(crate) struct Handles(Box<[Option<AddressHandle>]>);

impl Handles {
    pub(crate) fn new(limits: &Limits) -> Handles {
        let slots = match limits.datagrams {
            true => limits.send_depth.max(1).next_power_of_two(),
            false => 0,
        };
        Handles((0..slots).map(|_| None).collect())
    }

    /// Keeps `handle` in the slot of the work request with this id, in place of one whose work is done.
    #[inline]
    pub(crate) fn hold<'p>(
        &mut self,
        wr_id: u64,
        handle: &AddressHandle,
        pd: impl FnOnce() -> &'p Pd,
    ) -> Result<(), PostErrorKind> {
        let mask = self.0.len().wrapping_sub(1);
        let Some(slot) = self.0.get_mut(crate::ring::seq(wr_id) as usize & mask) else {
            return Ok(());
        };
        match slot {
            Some(held) if Arc::ptr_eq(&held.0, &handle.0) => {}
            _ if handle.pd() != pd() => return Err(PostErrorKind::OtherDomain),
            _ => *slot = Some(handle.clone()),
        }
        Ok(())
    }
}

/// Why a port cannot be reached from this one.
pub(crate) fn unreachable(port: &PortChoice, gid: Gid, lid: u16) -> Option<&'static str> {
    let ethernet = port.link_layer == LinkLayer::Ethernet;
    if !port.active {
        Some("the local port is not active")
    } else if ethernet && port.gid.is_zero() {
        Some("the local port has no usable GID, and Ethernet ports are reached by GID")
    } else if ethernet && gid.is_zero() {
        Some("the peer has no GID, and Ethernet ports are reached by GID")
    } else if !ethernet && lid == 0 && gid.is_zero() {
        Some("the peer has neither LID nor GID")
    } else {
        None
    }
}

/// The way from this port to another.
pub(crate) fn route(port: &PortChoice, gid: Gid, lid: u16) -> ibv_ah_attr {
    // Within an InfiniBand subnet the LID is enough; a route by GID is for Ethernet and for other subnets.
    let global = port.link_layer == LinkLayer::Ethernet
        || lid == 0
        || (!gid.is_zero() && !port.gid.is_zero() && gid.0[..8] != port.gid.0[..8]);
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: gid.to_sys(),
            sgid_index: port.gid_index,
            hop_limit: 64,
            ..Default::default()
        },
        dlid: lid,
        is_global: u8::from(global),
        port_num: port.port_num,
        ..Default::default()
    }
}
