//! `VERBATIM_FAULTS` with a mistake in it. One test, because the environment belongs to the whole process.
#![cfg(feature = "soft")]

use verbs::Device;

#[test]
fn the_error_says_what_is_wrong_with_the_faults() {
    // SAFETY: the only test of this process; no other thread reads the environment.
    unsafe { std::env::set_var("VERBATIM_FAULTS", "rnr:tiems=2") };
    let text = Device::open_spec("soft0").unwrap_err().to_string();
    for part in ["soft0", "VERBATIM_FAULTS is malformed", "tiems"] {
        assert!(text.contains(part), "{text}");
    }
}
