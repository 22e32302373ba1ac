// How the bindings are generated: included by build.rs and by examples/regenerate.rs, so that both use the same options.

use std::path::Path;

/// The rdma-core release that the checked-in bindings come from.
pub const CHECKED_IN_VERSION: &str = "44";

/// An architecture with checked-in bindings.
pub struct Arch {
    /// As in `target_arch`, and the name of the file in src/bindings.
    pub name: &'static str,
    /// Target given to clang.
    pub target: &'static str,
    /// C library headers of another architecture, where Debian's cross packages put them.
    pub cross_headers: &'static str,
    /// Debian package with those headers.
    pub package: &'static str,
}

/// Both of them.
pub const ARCHES: [Arch; 2] = [
    Arch {
        name: "x86_64",
        target: "x86_64-unknown-linux-gnu",
        cross_headers: "/usr/x86_64-linux-gnu/include",
        package: "libc6-dev-amd64-cross",
    },
    Arch {
        name: "aarch64",
        target: "aarch64-unknown-linux-gnu",
        cross_headers: "/usr/aarch64-linux-gnu/include",
        package: "libc6-dev-arm64-cross",
    },
];

/// What the bindings are of. Whatever these use comes along.
const ALLOW: &str = "_?ibv_.*|IBV_.*|_compat_ibv_.*|ib_uverbs_(advise_mr|flow_action_esp)_.*|verbs_.*|rdma_.*|RDMA_.*|RAI_.*";

/// Types that the crate `libc` has. The first kind is never copied: it has an identity.
const LIBC_IDENTITIES: [&str; 2] = ["pthread_cond_t", "pthread_mutex_t"];
const LIBC_VALUES: [&str; 6] = [
    "sockaddr",
    "sockaddr_in",
    "sockaddr_in6",
    "sockaddr_storage",
    "socklen_t",
    "timespec",
];

/// What those are made of in the C library's headers.
const LIBC_PARTS: &str = "__pthread_.*|__atomic_wide_counter.*|in6?_addr.*|in_port_t|sa_family_t|__socklen_t|__time_t|__syscall_slong_t";

/// Libc's values can be copied and printed; without this bindgen assumes the worst of types it does not generate.
#[derive(Debug)]
struct LibcTraits;

impl bindgen::callbacks::ParseCallbacks for LibcTraits {
    fn blocklisted_type_implements_trait(
        &self,
        name: &str,
        derive_trait: bindgen::callbacks::DeriveTrait,
    ) -> Option<bindgen::callbacks::ImplementsTrait> {
        use bindgen::callbacks::{DeriveTrait, ImplementsTrait};
        let name = name.strip_prefix("struct ").unwrap_or(name);
        let plain = LIBC_VALUES.contains(&name);
        match derive_trait {
            DeriveTrait::Copy | DeriveTrait::Debug if plain => Some(ImplementsTrait::Yes),
            _ => None,
        }
    }
}

/// The bindings of the installed headers, stamped with `version`. In a build script `arch` is `None`: bindgen reads from
/// cargo for which target it runs.
pub fn generate(crate_dir: &Path, arch: Option<&Arch>, version: &str) -> Result<String, String> {
    let mut builder = bindgen::Builder::default()
        .header(crate_dir.join("wrapper.h").display().to_string())
        .rust_target(bindgen::RustTarget::stable(85, 0).map_err(|e| e.to_string())?)
        .rust_edition(bindgen::RustEdition::Edition2024)
        .formatter(bindgen::Formatter::Prettyplease)
        .use_core()
        .generate_comments(false)
        .derive_default(true)
        .default_enum_style(bindgen::EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .prepend_enum_name(false)
        .allowlist_item(ALLOW)
        .blocklist_function(".*")
        .blocklist_type(LIBC_PARTS)
        .parse_callbacks(Box::new(LibcTraits))
        .raw_line(format!("use libc::{{{}}};", LIBC_IDENTITIES.join(", ")))
        .raw_line(format!("use libc::{{{}}};", LIBC_VALUES.join(", ")))
        .raw_line("")
        .raw_line("/// The rdma-core release whose headers these bindings were generated from.")
        .raw_line(format!("pub const RDMA_CORE_VERSION: &str = {version:?};"))
        .raw_line("");
    for name in LIBC_IDENTITIES.iter().chain(&LIBC_VALUES) {
        builder = builder.blocklist_type(name);
    }
    if let Some(arch) = arch {
        builder = builder.clang_arg(format!("--target={}", arch.target));
        if arch.name != std::env::consts::ARCH {
            if !Path::new(arch.cross_headers).is_dir() {
                return Err(format!(
                    "no C headers for {}: {} does not exist (Debian: apt install {})",
                    arch.name, arch.cross_headers, arch.package
                ));
            }
            builder = builder.clang_arg("-isystem").clang_arg(arch.cross_headers);
        }
    }
    let bindings = builder.generate().map_err(|e| {
        format!(
            "bindgen failed{}: {e}\nNeeded: libclang, and the headers of libibverbs and librdmacm \
             (Debian: apt install libclang-dev libibverbs-dev librdmacm-dev)",
            arch.map_or(String::new(), |a| format!(" for {}", a.name))
        )
    })?;
    Ok(bindings.to_string())
}

include!("installed_version.rs");
