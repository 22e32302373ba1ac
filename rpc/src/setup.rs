//! What both ends start from: defaults, device and memory.

use crate::handshake::Limits;
use mempool::{Budget, Pool, PoolError};
use verbs::{Context, Device, OpenError, Pd};

/// Default limits of either end.
pub(crate) const LIMITS: Limits = Limits {
    window: 64,
    inline_limit: 4096,
    // As many as the windows allow.
    slots: u32::MAX,
    max_message: 1 << 30,
    // As large as the window can fill.
    ring: 0,
    ring_most: u64::MAX,
    // Until the device is known.
    immediate: false,
    polled: false,
};

/// Bytes of a server's ring for a connection, by default, or as many as the window can fill: so that a thousand connections have 64 MiB. Of
/// small requests the whole window lies in it; longer ones wait until others are dealt with.
pub(crate) const SERVER_RING: u64 = 64 << 10;

/// Bytes that one READ fetches, by default: small calls get their turn in between.
pub(crate) const READ_SLICE: u32 = 256 << 10;
pub(crate) const READ_SLICE_MIN: u32 = 4 << 10;

/// Why there is no device or memory.
#[derive(Debug)]
pub(crate) enum SetupError {
    Device(OpenError),
    Domain(verbs::Error),
    Pool(PoolError),
}

/// The protection domain and pool to use.
///
/// Without a pool, one is made whose user budget allows one message of the largest size each way and
/// several of ordinary ones; memory is only taken when it is used.
pub(crate) fn memory(
    device: Option<Context>,
    pool: Option<(Pd, Pool)>,
) -> Result<(Pd, Pool), SetupError> {
    if let Some(both) = pool {
        return Ok(both);
    }
    let context = match device {
        Some(context) => context,
        None => Device::open_default().map_err(SetupError::Device)?,
    };
    let pd = context.alloc_pd().map_err(SetupError::Domain)?;
    let pool = Pool::builder(&pd)
        .budget(Budget::user(4 << 30))
        .budget(Budget::receive(256 << 20))
        .budget(Budget::control(64 << 20))
        .build()
        .map_err(SetupError::Pool)?;
    Ok((pd, pool))
}

macro_rules! setup_errors {
    ($($into:ident),+) => {$(
        impl From<SetupError> for crate::error::$into {
            fn from(error: SetupError) -> Self {
                match error {
                    SetupError::Device(error) => error.into(),
                    SetupError::Domain(source) => Self::Create {
                        what: "protection domain",
                        source,
                    },
                    SetupError::Pool(error) => error.into(),
                }
            }
        }
    )+};
}

setup_errors!(ConnectError, ServeError);
