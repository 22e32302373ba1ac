//! `VERBATIM_DEVICE`. One test, because the environment belongs to the whole process.
#![cfg(feature = "soft")]

use verbs::{Device, OpenError};

#[test]
fn the_variable_overrides_the_choice_and_the_choice_is_explained() {
    let set = |value: Option<&str>| {
        // SAFETY: the only test of this process; no other thread reads the environment.
        unsafe {
            match value {
                Some(v) => std::env::set_var(Device::ENV, v),
                None => std::env::remove_var(Device::ENV),
            }
        }
        Device::open_default()
    };
    let ctx = set(Some("soft0:1:0")).unwrap();
    assert_eq!(ctx.port().gid_index, 0);
    assert!(
        ctx.chosen_because()
            .starts_with("VERBATIM_DEVICE=soft0:1:0 is set"),
        "{}",
        ctx.chosen_because()
    );
    assert!(matches!(
        set(Some("nothing")),
        Err(OpenError::UnknownDevice { .. })
    ));
    assert!(matches!(
        set(Some("soft0:1:99")),
        Err(OpenError::NoSuchGid { .. })
    ));
    for unset in [None, Some("")] {
        let ctx = set(unset).unwrap();
        assert!(ctx.port().usable());
        assert!(
            ctx.chosen_because().contains(ctx.device_name()),
            "{}",
            ctx.chosen_because()
        );
    }
}
