//! Stamps the git revision into the command, so that a report says which code wrote it.
//!
//! It never fails: without git, or outside a checkout, the revision is "unknown".

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let revision = git(&["rev-parse", "--short=12", "HEAD"]).filter(|_| own_checkout());
    if revision.is_some() {
        // HEAD names a branch; the branch's own file, or packed-refs, names the commit.
        let branch = git(&["symbolic-ref", "--quiet", "HEAD"]);
        for name in ["HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
            if let Some(path) = git(&["rev-parse", "--git-path", name])
                && Path::new(&path).exists()
            {
                println!("cargo::rerun-if-changed={path}");
            }
        }
    }
    let revision = revision.unwrap_or_else(|| "unknown".to_owned());
    println!("cargo::rustc-env=VERBATIM_GIT={revision}");
}

/// Whether the checkout git finds is this package's, and not one that a vendored copy lies in.
fn own_checkout() -> bool {
    let top = git(&["rev-parse", "--show-toplevel"]).map(|p| Path::new(&p).canonicalize());
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(|p| Path::new(&p).canonicalize());
    matches!((top, here), (Some(Ok(top)), Some(Ok(here))) if top == here)
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}
