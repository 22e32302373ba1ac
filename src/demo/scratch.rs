//! A private folder that is gone when its owner is.

use anyhow::{Context, Result};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// A new folder, mode 0700, in the directory for temporary files (`TMPDIR`, else `/tmp`); removed on drop.
pub struct Scratch {
    path: PathBuf,
}

impl Scratch {
    /// Makes the folder.
    pub fn create() -> Result<Scratch> {
        let parent = std::env::temp_dir();
        let seed = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| d.as_nanos());
        for attempt in 0..1000 {
            let path = parent.join(format!(
                "verbatim-{}-{:x}",
                std::process::id(),
                seed + attempt
            ));
            // Making the folder fails if the name is taken, by whomever: it is ours or we try another.
            match std::fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Scratch { path }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(e).with_context(|| cannot(&parent)),
            }
        }
        Err(std::io::Error::from(std::io::ErrorKind::AlreadyExists))
            .with_context(|| cannot(&parent))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn cannot(parent: &Path) -> String {
    format!(
        "no scratch folder can be made in {} (set TMPDIR to a folder that can be written)",
        parent.display()
    )
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nobody is left to tell; what cannot be removed lies in the directory for temporary files.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}
