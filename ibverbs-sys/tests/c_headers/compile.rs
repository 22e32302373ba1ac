//! Runs the C compiler, or says why not.

use std::ffi::{CStr, CString, OsStr, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

include!("../../installed_version.rs");

/// A shared object made from C text.
#[derive(Clone)]
pub struct Object {
    handle: *mut c_void,
}

impl Object {
    /// Address of a symbol.
    pub fn symbol(&self, name: &str) -> *mut c_void {
        let c_name = CString::new(name).expect("no NUL in a name");
        // SAFETY: the handle stays open, the name is a C string.
        let found = unsafe { libc::dlsym(self.handle, c_name.as_ptr()) };
        assert!(!found.is_null(), "the shim has no {name}");
        found
    }
}

/// Compiles `source` and loads the result. `None`, with the reason printed, when that is not possible here.
pub fn object(name: &str, source: &str) -> Option<Object> {
    or_skip(usable_headers().and_then(|()| compile(name, source)))
}

/// `source` after the preprocessor. `None`, with the reason printed, when that is not possible here.
pub fn preprocessed(name: &str, source: &str) -> Option<String> {
    or_skip(usable_headers().and_then(|()| {
        let c = scratch(name, "c");
        std::fs::write(&c, source).expect("the scratch directory can be written");
        let text = run_compiler(&[OsStr::new("-E"), OsStr::new("-P"), c.as_os_str()])?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }))
}

fn or_skip<T>(result: Result<T, String>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(why) => {
            let required = std::env::var("VERBATIM_REQUIRE_HEADERS");
            assert!(
                !required.is_ok_and(|v| !v.is_empty() && v != "0"),
                "VERBATIM_REQUIRE_HEADERS is set, but: {why}"
            );
            println!("skipped: {why}");
            None
        }
    }
}

fn usable_headers() -> Result<(), String> {
    let expected = ibverbs_sys::RDMA_CORE_VERSION;
    match installed_version() {
        Some(v) if v == expected => Ok(()),
        Some(v) => Err(format!(
            "the headers are of rdma-core {v}, the bindings of {expected}"
        )),
        None => {
            Err("no libibverbs.pc found (Debian: apt install libibverbs-dev librdmacm-dev)".into())
        }
    }
}

fn scratch(name: &str, extension: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{extension}"))
}

/// What the compiler prints. With compiler and headers present, failing to compile is a fault of the bindings.
fn run_compiler(args: &[&OsStr]) -> Result<Vec<u8>, String> {
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let run = Command::new(&compiler)
        .args(args)
        .output()
        .map_err(|e| format!("cannot run the C compiler {compiler}: {e}"))?;
    assert!(
        run.status.success(),
        "{args:?} failed:\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
    Ok(run.stdout)
}

fn compile(name: &str, source: &str) -> Result<Object, String> {
    let (c, so) = (scratch(name, "c"), scratch(name, "so"));
    std::fs::write(&c, source).expect("the scratch directory can be written");
    let flags = ["-shared", "-fPIC", "-O1", "-Wl,-Bsymbolic", "-o"].map(OsStr::new);
    run_compiler(&[&flags[..], &[so.as_os_str(), c.as_os_str()]].concat())?;
    let path = CString::new(so.to_str().expect("a UTF-8 path")).expect("no NUL in a path");
    // SAFETY: the object was made just now and has no initialisers.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        // SAFETY: after a failure dlerror gives a C string.
        let why = unsafe { CStr::from_ptr(libc::dlerror()) };
        panic!("cannot load {}: {}", so.display(), why.to_string_lossy());
    }
    Ok(Object { handle })
}

/// The crate's directory.
pub fn crate_dir() -> PathBuf {
    env!("CARGO_MANIFEST_DIR").into()
}
