//! With the feature `bindgen`: generates the bindings from the installed headers. Without it: nothing.

#[cfg(feature = "bindgen")]
#[allow(dead_code)]
mod options {
    include!("bindgen_options.rs");
}

#[cfg(feature = "bindgen")]
fn main() {
    let var =
        |name: &str| std::env::var(name).unwrap_or_else(|_| panic!("cargo did not set {name}"));
    for file in [
        "build.rs",
        "bindgen_options.rs",
        "installed_version.rs",
        "wrapper.h",
    ] {
        println!("cargo::rerun-if-changed={file}");
    }
    let version = options::installed_version().unwrap_or_else(|| "unknown".into());
    match options::generate(var("CARGO_MANIFEST_DIR").as_ref(), None, &version) {
        Ok(text) => {
            let file = std::path::PathBuf::from(var("OUT_DIR")).join("bindings.rs");
            std::fs::write(&file, text)
                .unwrap_or_else(|e| panic!("cannot write {}: {e}", file.display()));
        }
        Err(why) => {
            for line in why.lines() {
                println!("cargo::error={line}");
            }
        }
    }
}

#[cfg(not(feature = "bindgen"))]
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
}
