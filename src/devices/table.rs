//! The listing for people.

use std::fmt::Write as _;

use super::{DeviceEntry, Listing, PortEntry};

impl Listing {
    /// Devices with ports and GIDs; `*` marks what would be used.
    pub fn table(&self) -> String {
        let mut out = String::new();
        for device in &self.devices {
            self.device(&mut out, device);
        }
        for note in &self.notes {
            let _ = writeln!(out, "note: {note}");
        }
        if let Some(choice) = &self.choice {
            let _ = writeln!(
                out,
                "\n* would be used: {}, port {}, GID {} ({})\n  because {}",
                choice.device, choice.port, choice.gid_index, choice.gid, choice.why
            );
        }
        out
    }

    fn device(&self, out: &mut String, device: &DeviceEntry) {
        let kind = match device.kind {
            "soft" => "in user space: this user's processes on this host",
            _ => "hardware",
        };
        let mark = if self.chosen(device, None) { '*' } else { ' ' };
        let _ = writeln!(out, "{mark} {}  ({kind})", device.name);
        let _ = write!(out, "    guid {}", device.guid);
        if let Some(limits) = &device.limits {
            if !limits.firmware.is_empty() {
                let _ = write!(out, ", firmware {}", limits.firmware);
            }
            let _ = write!(
                out,
                ", up to {} queue pairs, {} segments a request, regions of {}",
                limits.max_qp,
                limits.max_sge,
                binary(limits.max_mr_bytes)
            );
        }
        out.push('\n');
        if let Some(error) = &device.error {
            let _ = writeln!(out, "    cannot be opened: {error}");
        }
        for port in &device.ports {
            self.port(out, device, port);
        }
    }

    fn port(&self, out: &mut String, device: &DeviceEntry, port: &PortEntry) {
        let _ = write!(
            out,
            "    port {}  {}, {}, MTU {} (of {})",
            port.port, port.state, port.link_layer, port.active_mtu, port.max_mtu
        );
        if port.lid != 0 {
            let _ = write!(out, ", LID {}", port.lid);
        }
        out.push('\n');
        if port.gids.is_empty() {
            let _ = writeln!(out, "        no GIDs");
            return;
        }
        let width = port
            .gids
            .iter()
            .map(|g| g.gid.len())
            .max()
            .unwrap_or(0)
            .max(3);
        let _ = writeln!(
            out,
            "        index  {:width$}  {:<10}  netdev",
            "GID", "type"
        );
        for gid in &port.gids {
            let chosen = self.chosen(device, Some((port.port, gid.index)));
            let _ = writeln!(
                out,
                "      {} {:>5}  {:width$}  {:<10}  {}",
                if chosen { '*' } else { ' ' },
                gid.index,
                gid.gid,
                gid.kind,
                gid.netdev.as_deref().unwrap_or("-")
            );
        }
    }

    fn chosen(&self, device: &DeviceEntry, gid: Option<(u8, u32)>) -> bool {
        self.choice.as_ref().is_some_and(|choice| {
            choice.device == device.name
                && gid.is_none_or(|gid| gid == (choice.port, u32::from(choice.gid_index)))
        })
    }
}

/// A number of bytes in the largest binary unit that keeps it whole or nearly so.
fn binary(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = ((63 - bytes.max(1).leading_zeros()) / 10) as usize;
    format!("{} {}", bytes >> (10 * unit), units[unit])
}

#[cfg(test)]
mod tests {
    use super::super::{Choice, GidEntry};
    use super::*;
    use crate::version::VERSION;

    #[test]
    fn marks_what_would_be_used_and_shows_notes() {
        let gid = |index, gid: &str| GidEntry {
            index,
            gid: gid.into(),
            kind: "RoCE v2".into(),
            netdev: None,
        };
        let listing = Listing {
            version: VERSION,
            choice: Some(Choice {
                device: "soft0".into(),
                port: 1,
                gid_index: 1,
                gid: "::ffff:10.0.0.1".into(),
                why: "no hardware".into(),
            }),
            error: None,
            devices: vec![DeviceEntry {
                name: "soft0".into(),
                kind: "soft",
                guid: "0000:0000:0000:0001".into(),
                limits: None,
                ports: vec![PortEntry {
                    port: 1,
                    state: "active".into(),
                    link_layer: "Ethernet".into(),
                    lid: 0,
                    active_mtu: 4096,
                    max_mtu: 4096,
                    max_message_bytes: 1 << 30,
                    gids: vec![gid(0, "fe80::1"), gid(1, "::ffff:10.0.0.1")],
                }],
                error: None,
            }],
            notes: vec!["libibverbs is not installed".into()],
        };
        let table = listing.table();
        let starred: Vec<_> = table
            .lines()
            .filter(|l| l.trim_start().starts_with('*'))
            .collect();
        assert_eq!(starred.len(), 3, "{table}");
        assert!(
            starred[1].contains("1  ::ffff:10.0.0.1  RoCE v2"),
            "{table}"
        );
        assert!(
            table.contains("note: libibverbs is not installed"),
            "{table}"
        );
    }

    #[test]
    fn sizes_are_written_in_binary_units() {
        assert_eq!(binary(0), "0 B");
        assert_eq!(binary(1023), "1023 B");
        assert_eq!(binary(1 << 30), "1 GiB");
        assert_eq!(binary(u64::MAX), "15 EiB");
    }
}
