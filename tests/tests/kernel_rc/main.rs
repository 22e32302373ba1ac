//! Reliable connections on whatever device `VERBATIM_DEVICE` names, `soft0` without it; the other end on the device that
//! `VERBATIM_PEER_DEVICE` names, by default the same.
//!
//! In the guest of `tests/kernel` these run on the kernel's own Soft-RoCE. What the two devices do in common is what programs
//! can rely on. Where they differ, the test says which of them does what, and quotes the place that decides: see
//! [`ends::Side::says`].

mod ends;
mod messages;
mod one_sided;
mod refusals;
mod states;
mod waiting;

/// Without this, a device that cannot be opened the way the guest asks for would go unnoticed.
#[test]
fn the_device_is_the_one_asked_for() {
    let (a, b) = ends::sides();
    for (variable, side) in [(verbs::Device::ENV, a), (ends::PEER, b)] {
        if let Some(name) = ends::named_by(variable) {
            assert_eq!(side.ctx.device_name(), name.split(':').next().unwrap());
        }
        assert!(side.ctx.port().usable(), "{}", side.ctx.chosen_because());
        assert!(
            side.ctx.port().gid.to_ipv4().is_some(),
            "the IPv4 address is chosen: {}",
            side.ctx.chosen_because()
        );
    }
}
