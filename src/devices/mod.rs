//! `verbatim devices`: what there is, and what would be used.

mod table;

use anyhow::{Context, Result};
use serde::Serialize;
use std::process::ExitCode;
use verbatim::verbs::{self, Device, DeviceKind};

use crate::cli::DevicesArgs;
use crate::output::{self, JsonTarget};
use crate::version::{VERSION, Version};

/// The document of `--json`.
#[derive(Debug, Serialize)]
pub struct Listing {
    #[serde(flatten)]
    version: Version,
    /// What a program that does not choose would use.
    #[serde(rename = "default")]
    choice: Option<Choice>,
    /// Why nothing would be used, if so.
    error: Option<String>,
    devices: Vec<DeviceEntry>,
    /// Why there are no devices of a kind.
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Choice {
    device: String,
    port: u8,
    gid_index: u8,
    gid: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct DeviceEntry {
    name: String,
    /// "hardware" or "soft".
    kind: &'static str,
    guid: String,
    /// What it can do, if it can be opened.
    #[serde(flatten)]
    limits: Option<Limits>,
    ports: Vec<PortEntry>,
    /// Why it cannot be opened, if so.
    error: Option<String>,
}

#[derive(Debug, Serialize)]
struct Limits {
    firmware: String,
    vendor_id: u32,
    vendor_part_id: u32,
    max_qp: u32,
    max_qp_wr: u32,
    max_sge: u32,
    max_cqe: u32,
    max_mr: u32,
    max_mr_bytes: u64,
    max_rd_atomic: u8,
}

#[derive(Debug, Serialize)]
struct PortEntry {
    port: u8,
    state: String,
    link_layer: String,
    lid: u16,
    active_mtu: u32,
    max_mtu: u32,
    max_message_bytes: u32,
    gids: Vec<GidEntry>,
}

#[derive(Debug, Serialize)]
struct GidEntry {
    index: u32,
    gid: String,
    #[serde(rename = "type")]
    kind: String,
    netdev: Option<String>,
}

/// Runs the command.
pub fn run(args: &DevicesArgs) -> Result<ExitCode> {
    let json = args.json.as_deref().map(JsonTarget::prepare).transpose()?;
    let (devices, notes) = Device::list_with_notes()?;
    let choice = Device::open_default();
    let listing = Listing {
        version: VERSION,
        error: choice.as_ref().err().map(ToString::to_string),
        choice: choice.as_ref().ok().map(Choice::of),
        devices: devices.iter().map(DeviceEntry::of).collect(),
        notes,
    };
    if !matches!(json, Some(JsonTarget::Stdout)) {
        output::print(&listing.table())?;
    }
    if let Some(json) = json {
        json.write(&listing)?;
    }
    choice.context("no device would be used")?;
    Ok(ExitCode::SUCCESS)
}

impl Choice {
    fn of(ctx: &verbs::Context) -> Choice {
        let port = ctx.port();
        Choice {
            device: ctx.device_name().to_owned(),
            port: port.port_num,
            gid_index: port.gid_index,
            gid: port.gid.to_string(),
            why: ctx.chosen_because().to_owned(),
        }
    }
}

impl DeviceEntry {
    fn of(device: &Device) -> DeviceEntry {
        let opened = device.open();
        DeviceEntry {
            name: device.name().to_owned(),
            kind: match device.kind() {
                DeviceKind::Hardware => "hardware",
                DeviceKind::Soft => "soft",
            },
            guid: guid(device.guid()),
            limits: opened
                .as_ref()
                .ok()
                .map(|ctx| Limits::of(ctx.query_device())),
            ports: opened.as_ref().map(ports).unwrap_or_default(),
            error: opened.err().map(|e| e.to_string()),
        }
    }
}

impl Limits {
    fn of(attr: &verbs::DeviceAttr) -> Limits {
        Limits {
            firmware: attr.fw_ver.clone(),
            vendor_id: attr.vendor_id,
            vendor_part_id: attr.vendor_part_id,
            max_qp: attr.max_qp,
            max_qp_wr: attr.max_qp_wr,
            max_sge: attr.max_sge,
            max_cqe: attr.max_cqe,
            max_mr: attr.max_mr,
            max_mr_bytes: attr.max_mr_size,
            max_rd_atomic: attr.max_qp_rd_atom,
        }
    }
}

fn ports(ctx: &verbs::Context) -> Vec<PortEntry> {
    (1..=ctx.query_device().phys_port_cnt)
        // A port that does not answer is left out; the next look finds it gone or well.
        .filter_map(|number| ctx.query_port(number).ok())
        .map(|attr| PortEntry {
            port: attr.port_num,
            state: attr.state.to_string(),
            link_layer: attr.link_layer.to_string(),
            lid: attr.lid,
            active_mtu: attr.active_mtu.bytes(),
            max_mtu: attr.max_mtu.bytes(),
            max_message_bytes: attr.max_msg_sz,
            gids: ctx
                .gid_table(attr.port_num)
                .into_iter()
                .map(GidEntry::of)
                .collect(),
        })
        .collect()
}

impl GidEntry {
    fn of(entry: verbs::GidEntry) -> GidEntry {
        GidEntry {
            index: entry.index,
            gid: entry.gid.to_string(),
            kind: entry.kind.to_string(),
            netdev: entry.netdev,
        }
    }
}

/// As ibv_devinfo writes it: four groups of four digits.
fn guid(guid: u64) -> String {
    let part = |shift: u32| (guid >> shift) as u16;
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        part(48),
        part(32),
        part(16),
        part(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guids_are_written_as_ibv_devinfo_does() {
        assert_eq!(guid(0x0002_c903_00fe_1234), "0002:c903:00fe:1234");
    }
}
