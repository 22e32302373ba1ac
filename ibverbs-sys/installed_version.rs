// Which rdma-core headers are installed: included by bindgen_options.rs and by the tests against the headers.

/// The installed rdma-core release, such as "44": third part of libibverbs.pc's version ("1.14.44.0").
pub fn installed_version() -> Option<String> {
    let from_pc = |text: &str| {
        let version = text.lines().find_map(|l| l.strip_prefix("Version:"))?;
        version.trim().split('.').nth(2).map(str::to_owned)
    };
    let listed = std::env::var_os("PKG_CONFIG_PATH").unwrap_or_default();
    let mut dirs: Vec<std::path::PathBuf> = std::env::split_paths(&listed)
        .filter(|p| !p.as_os_str().is_empty())
        .collect();
    dirs.extend(
        [
            "/usr/local/lib/pkgconfig",
            "/usr/lib64/pkgconfig",
            "/usr/lib/pkgconfig",
        ]
        .map(std::path::PathBuf::from),
    );
    dirs.push(format!("/usr/lib/{}-linux-gnu/pkgconfig", std::env::consts::ARCH).into());
    dirs.iter()
        .find_map(|dir| from_pc(&std::fs::read_to_string(dir.join("libibverbs.pc")).ok()?))
}
