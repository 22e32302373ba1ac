//! Faults by the environment, in a second process.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks)]

mod common;
mod second;
use common::*;
use ibverbs_sys::ibv_wc_status as Status;
use ibverbs_sys::ibv_wr_opcode as Op;
use second::{Second, serve};
use softverbs::memory::Kind;
use std::process::{Command, Stdio};

const VARIABLE: &str = "VERBATIM_FAULTS";

#[test]
#[ignore = "the second process of the tests in this file"]
fn second_process() {
    match std::env::var_os("SOFTVERBS_OPEN") {
        None => serve(),
        Some(_) => unsafe {
            let list = (api().ibv_get_device_list)(std::ptr::null_mut());
            let ctx = (api().ibv_open_device)(*list);
            let error = std::io::Error::last_os_error().raw_os_error();
            println!("{} {error:?}", ctx.is_null());
            println!("{}", softverbs::faults::environment().unwrap_err());
        },
    }
}

/// The process in which they are in force dies, or its requests fail, when it was said; this one sees what a peer sees.
#[test]
fn faults_of_another_process() {
    let dev = Dev::open();
    let mem = Mem::file(&dev, 4096, LOCAL, Kind::Private);
    let o = Options::default();
    let faults = "rnr:times=2; at:step=told,do=kill,nth=4";
    let (mut second, end) = Second::connected(&dev, &o, &[(VARIABLE, faults)]);
    for id in 0..16 {
        assert_eq!(end.recv(id, &mut [mem.sge(0, 64)]), 0);
    }
    for id in 0..3 {
        assert_eq!(second.ask("send 4 8"), "0");
        assert_eq!((end.next().wr_id, end.poll().is_none()), (id, true));
    }
    second.tell("post 4 8");
    // It has told, and died of it.
    assert_eq!(end.next().wr_id, 3);
    assert!(!second.child.wait().unwrap().success());
    let mut sges = [mem.sge(0, 8)];
    assert_eq!(
        end.post(&mut wr(9, Op::IBV_WR_SEND, &mut sges, SIGNALED)),
        0
    );
    let failed = (0..13).map(|_| end.next());
    let of_send: Vec<_> = failed
        .filter(|wc| wc.wr_id == 9)
        .map(|wc| wc.status)
        .collect();
    assert!(of_send.contains(&Status::IBV_WC_RETRY_EXC_ERR));

    let faults = "at:step=checked,do=LOC_QP_OP_ERR,nth=2";
    let (mut second, end) = Second::connected(&dev, &o, &[(VARIABLE, faults)]);
    for id in 0..2 {
        assert_eq!(end.recv(id, &mut [mem.sge(0, 64)]), 0);
    }
    assert_eq!(second.ask("send 4 8"), "0");
    assert_eq!(end.next().status, OK);
    assert_eq!(
        second.ask("send 4 8"),
        Status::IBV_WC_LOC_QP_OP_ERR.0.to_string()
    );
}

/// The device does not open, and it can be asked why.
#[test]
fn a_malformed_value_is_an_error() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "second_process", "--ignored", "--nocapture"])
        .env("SOFTVERBS_OPEN", "1")
        .env(VARIABLE, "no-immediate; at:step=copied,do=explode")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.contains(&format!("true Some({})", libc::EINVAL)),
        "{told}"
    );
    assert!(
        told.contains("VERBATIM_FAULTS") && told.contains("do=explode"),
        "{told}"
    );
}
