//! What `--version` prints and every report carries.

use serde::Serialize;
use std::sync::LazyLock;

/// The versions a report is traced back by.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Version {
    /// Of this package.
    pub version: &'static str,
    /// The git revision it was built from, or "unknown".
    pub git: &'static str,
    /// The rdma-core release whose headers the bindings were made from.
    pub rdma_core: &'static str,
}

/// Of this build.
pub const VERSION: Version = Version {
    version: env!("CARGO_PKG_VERSION"),
    git: env!("VERBATIM_GIT"),
    rdma_core: verbatim::ibverbs_sys::RDMA_CORE_VERSION,
};

/// One line: version, revision, rdma-core.
pub fn line() -> &'static str {
    static LINE: LazyLock<String> = LazyLock::new(|| {
        let Version {
            version,
            git,
            rdma_core,
        } = VERSION;
        format!("{version} (git {git}, bindings of rdma-core {rdma_core})")
    });
    &LINE
}
