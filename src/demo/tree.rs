//! Which files of a directory are sent.

use anyhow::{Context, Result, bail};
use std::fs::{File, FileType};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::safe_path::MAX_PATH;

/// A regular file.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name below the directory.
    pub path: PathBuf,
    /// Its length when the directory was read, bytes; it may change until the file is sent.
    pub len: u64,
}

/// What a directory holds.
#[derive(Debug, Default)]
pub struct Tree {
    /// The files, sorted by name.
    pub files: Vec<Entry>,
    /// What is left out, and why; one sentence each.
    pub notes: Vec<String>,
}

impl Tree {
    /// Sum of the lengths, bytes.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|f| f.len).sum()
    }
}

/// Reads the tree below `root`. Links are not followed; links, devices, pipes and sockets are left out, and so
/// are folders that say of themselves that they only cache something (`CACHEDIR.TAG`, as cargo's `target`),
/// and those whose name is in `leave_out`.
pub fn read(root: &Path, leave_out: &[&str]) -> Result<Tree> {
    let mut tree = Tree::default();
    let (mut links, mut special) = (0u64, 0u64);
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let listing = match std::fs::read_dir(root.join(&folder)) {
            Ok(listing) => listing,
            Err(e) if folder.as_os_str().is_empty() => {
                return Err(e)
                    .with_context(|| format!("cannot read the directory {}", root.display()));
            }
            Err(e) => {
                tree.notes
                    .push(format!("{} is left out: {e}", folder.display()));
                continue;
            }
        };
        for item in listing {
            let item =
                item.with_context(|| format!("reading {} failed", root.join(&folder).display()))?;
            let path = folder.join(item.file_name());
            match kind(&path, item.file_type()) {
                Ok(t) if t.is_dir() => {
                    if leave_out.iter().any(|name| item.file_name() == *name) {
                        tree.notes.push(format!("{}/ is left out", path.display()));
                    } else if root.join(&path).join("CACHEDIR.TAG").exists() {
                        tree.notes.push(format!(
                            "{}/ is left out: it holds a CACHEDIR.TAG",
                            path.display()
                        ));
                    } else {
                        folders.push(path);
                    }
                }
                Ok(t) if t.is_file() => {
                    if path.as_os_str().len() > MAX_PATH {
                        tree.notes
                            .push("a file is left out: its name is longer than 3 KiB".to_owned());
                    } else {
                        // A file that vanished meanwhile is noticed when it is opened.
                        let len = item.metadata().map_or(0, |m| m.len());
                        tree.files.push(Entry { path, len });
                    }
                }
                Ok(t) if t.is_symlink() => links += 1,
                Ok(_) => special += 1,
                Err(note) => tree.notes.push(note),
            }
        }
    }
    if links > 0 {
        tree.notes.push(format!("symbolic links left out: {links}"));
    }
    if special > 0 {
        tree.notes
            .push(format!("sockets, pipes and devices left out: {special}"));
    }
    tree.files.sort_by(|a, b| {
        a.path
            .as_os_str()
            .as_bytes()
            .cmp(b.path.as_os_str().as_bytes())
    });
    Ok(tree)
}

fn kind(path: &Path, file_type: std::io::Result<FileType>) -> Result<FileType, String> {
    file_type.map_err(|e| format!("{} is left out: {e}", path.display()))
}

/// Opens a file of the tree for reading; says in a sentence why it cannot be sent.
pub fn open(root: &Path, entry: &Entry) -> Result<File, String> {
    let left_out =
        |why: &dyn std::fmt::Display| format!("{} is left out: {why}", entry.path.display());
    let file = File::options()
        .read(true)
        // It may have become a link or a pipe since the directory was read.
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(root.join(&entry.path))
        .map_err(|e| left_out(&e))?;
    match file.metadata() {
        Ok(m) if m.is_file() => Ok(file),
        Ok(_) => Err(left_out(&"it is no longer a regular file")),
        Err(e) => Err(left_out(&e)),
    }
}

/// The directory the demonstration sends when none is named: the checkout it was built from, else the
/// current one. And what is left out of it.
pub fn default_directory() -> Result<(PathBuf, &'static [&'static str])> {
    let checkout = Path::new(env!("CARGO_MANIFEST_DIR"));
    if checkout.join("Cargo.toml").is_file() {
        return Ok((checkout.to_owned(), &[".git", "target"]));
    }
    let current = std::env::current_dir().context("the current directory is not known")?;
    Ok((current, &[".git", "target"]))
}

/// Checks a directory that was named.
pub fn named_directory(dir: &Path) -> Result<PathBuf> {
    let real = dir
        .canonicalize()
        .with_context(|| format!("--dir {}: cannot be opened", dir.display()))?;
    if !real.is_dir() {
        bail!(
            "--dir {}: is not a directory; name the directory whose files are to be sent",
            dir.display()
        );
    }
    Ok(real)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::scratch::Scratch;
    use std::os::unix::fs::symlink;

    #[test]
    fn lists_regular_files_and_says_what_it_leaves_out() {
        let dir = Scratch::create().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("a/b")).unwrap();
        std::fs::create_dir_all(at("cache/x")).unwrap();
        std::fs::create_dir_all(at("named")).unwrap();
        std::fs::write(at("cache/CACHEDIR.TAG"), b"Signature").unwrap();
        std::fs::write(at("cache/x/y"), b"1").unwrap();
        std::fs::write(at("named/y"), b"1").unwrap();
        std::fs::write(at("a/b/empty"), b"").unwrap();
        std::fs::write(at("a/z"), b"123").unwrap();
        std::fs::write(at("0"), b"12").unwrap();
        symlink("/", at("a/link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();

        let tree = read(dir.path(), &["named"]).unwrap();
        let files: Vec<_> = tree
            .files
            .iter()
            .map(|f| (f.path.to_str().unwrap(), f.len))
            .collect();
        assert_eq!(files, [("0", 2), ("a/b/empty", 0), ("a/z", 3)]);
        assert_eq!(tree.bytes(), 5);
        assert_eq!(tree.notes.len(), 4, "{:?}", tree.notes);
    }

    #[test]
    fn notices_what_changed_since_the_directory_was_read() {
        let dir = Scratch::create().unwrap();
        let entry = |name: &str| Entry {
            path: PathBuf::from(name),
            len: 1,
        };
        symlink("/etc/passwd", dir.path().join("link")).unwrap();
        std::fs::create_dir(dir.path().join("folder")).unwrap();
        for name in ["gone", "link", "folder"] {
            assert!(
                open(dir.path(), &entry(name))
                    .unwrap_err()
                    .starts_with(name)
            );
        }
    }
}
