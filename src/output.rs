//! Where results go: a file, or standard output. A reader that has gone away is no error.

use anyhow::{Context, Result, bail};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// An error with its causes, none of them twice: many tell their causes themselves.
pub fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = text + colon + &cause;
        }
    }
    text
}

/// The target of `--json`.
#[derive(Debug)]
pub enum JsonTarget {
    /// `-`
    Stdout,
    /// A file.
    File(PathBuf),
}

impl JsonTarget {
    /// Checks early that the target can be written, so that a long run is not wasted, and removes what an
    /// earlier run left there, so that a run that fails leaves no report.
    pub fn prepare(path: &Path) -> Result<JsonTarget> {
        if path == Path::new("-") {
            return Ok(JsonTarget::Stdout);
        }
        let cannot = || format!("--json {}: cannot be written", path.display());
        if path.is_dir() {
            bail!("--json {}: is a directory; name a file", path.display());
        }
        let special = path.symlink_metadata().is_ok_and(|m| !m.is_file());
        if !special {
            std::fs::File::create(path).with_context(cannot)?;
            std::fs::remove_file(path).with_context(cannot)?;
        }
        Ok(JsonTarget::File(path.to_owned()))
    }

    /// Writes one document.
    pub fn write(&self, value: &impl serde::Serialize) -> Result<()> {
        let mut text = serde_json::to_string_pretty(value)?;
        text.push('\n');
        match self {
            JsonTarget::Stdout => print(&text),
            JsonTarget::File(path) => std::fs::write(path, text)
                .with_context(|| format!("--json {}: cannot be written", path.display())),
        }
    }
}

/// Writes to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut stdout = std::io::stdout().lock();
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(e).context("standard output cannot be written")
        }
        _ => Ok(()),
    }
}
