//! Finding and opening devices.
#![cfg(feature = "soft")]

use verbs::{Device, DeviceKind, GidKind, LinkLayer, OpenError};

#[test]
fn soft0_is_in_the_list_with_a_usable_port() {
    let (devices, notes) = Device::list_with_notes().unwrap();
    let soft = devices
        .iter()
        .find(|d| d.kind() == DeviceKind::Soft)
        .unwrap();
    assert_eq!(soft.name(), "soft0");
    if devices.len() == 1 {
        assert_eq!(notes.len(), 1, "hardware is missing for a reason");
    }
    let ctx = soft.open().unwrap();
    assert_eq!((ctx.device_name(), ctx.kind()), ("soft0", DeviceKind::Soft));
    assert_eq!(ctx.query_device().node_guid, soft.guid());
    let port = ctx.port();
    assert!(port.usable());
    assert_eq!(
        (port.port_num, port.gid_index, port.link_layer),
        (1, 1, LinkLayer::Ethernet)
    );
    assert!(port.gid.to_ipv4().is_some());
    assert!(
        ctx.chosen_because().contains(&port.reason),
        "{}",
        ctx.chosen_because()
    );
}

#[test]
fn ports_and_gids_can_be_looked_at() {
    let ctx = Device::open_spec("soft0").unwrap();
    let port = ctx.query_port(1).unwrap();
    assert!(port.is_active() && port.max_msg_sz >= 1 << 30);
    assert_eq!(port.active_mtu, verbs::Mtu::B4096);
    assert!(ctx.query_port(0).is_err());
    assert!(
        ctx.query_port(2)
            .unwrap_err()
            .to_string()
            .contains("1 to 1")
    );
    assert_eq!(port.phys_state, verbs::PhysState::LinkUp);
    assert_eq!((port.lanes(), port.lane_mbit()), (Some(1), Some(2500)));
    assert_eq!(ctx.pkey_table(1).unwrap(), [0xffff]);
    assert!(ctx.pkey_table(2).is_err());
    let device = ctx.query_device();
    assert_eq!(
        (device.atomic_cap, device.atomics),
        (verbs::AtomicCap::Device, true)
    );
    assert_eq!((device.max_pkeys, port.pkey_tbl_len), (1, 1));
    assert_eq!(device.sys_image_guid, device.node_guid);
    let gids = ctx.gid_table(1);
    assert!(gids[0].index == 0 && gids[0].gid.is_link_local());
    assert!(gids[1].index == 1 && gids[1].gid.to_ipv4().is_some());
    assert_eq!(gids[1].kind, GidKind::RoceV2);
    assert_eq!(gids[1].netdev, None, "soft0 has no network interface");
    let why = &ctx.port().reason;
    assert!(why.contains("is the best of 2"), "{why}");
    assert!(ctx.gid_table(9).is_empty());
}

#[test]
fn a_port_and_gid_can_be_named() {
    let ctx = Device::open_spec("soft0:1:0").unwrap();
    assert_eq!((ctx.port().port_num, ctx.port().gid_index), (1, 0));
    assert!(ctx.port().gid.is_link_local());
    assert!(ctx.chosen_because().contains("asked for"));
}

#[test]
fn what_does_not_exist_is_named_with_what_does() {
    let e = Device::open_spec("mlx5_77").unwrap_err();
    assert!(matches!(&e, OpenError::UnknownDevice { name, .. } if name == "mlx5_77"));
    assert!(
        e.to_string().contains("available: ") && e.to_string().contains("soft0"),
        "{e}"
    );
    let e = Device::open_spec("soft0:2").unwrap_err();
    assert!(matches!(
        e,
        OpenError::NoSuchPort {
            port: 2,
            ports: 1,
            ..
        }
    ));
    assert!(e.to_string().contains("1 to 1"), "{e}");
    let e = Device::open_spec("soft0:1:200").unwrap_err();
    assert!(matches!(e, OpenError::NoSuchGid { index: 200, .. }));
    assert!(
        e.to_string().contains("indexes are 0 to") && e.to_string().contains("1 (RoCE v2"),
        "{e}"
    );
    assert!(matches!(
        Device::open_spec("soft0:x").unwrap_err(),
        OpenError::BadSpec { .. }
    ));
}
