//! Short names of what the interface gives as numbers.

use ibverbs_sys::{ibv_event_type, ibv_qp_state, ibv_wc_opcode, ibv_wc_status};

fn pick(names: &[&str], index: u32) -> String {
    match usize::try_from(index).ok().and_then(|i| names.get(i)) {
        Some(name) => (*name).to_owned(),
        None => format!("{index:#x}"),
    }
}

/// An errno, or `OK` for 0.
pub fn errno(code: i32) -> String {
    let name = match code {
        0 => "OK",
        libc::EINVAL => "EINVAL",
        libc::ENOMEM => "ENOMEM",
        libc::ENOSPC => "ENOSPC",
        libc::EBUSY => "EBUSY",
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EFAULT => "EFAULT",
        libc::ENODATA => "ENODATA",
        libc::EOPNOTSUPP => "EOPNOTSUPP",
        libc::ENOSYS => "ENOSYS",
        libc::EAGAIN => "EAGAIN",
        libc::EACCES => "EACCES",
        libc::EOVERFLOW => "EOVERFLOW",
        _ => return format!("errno {code}"),
    };
    name.to_owned()
}

/// A completion status without its prefix.
pub fn status(status: ibv_wc_status) -> String {
    let names = [
        "SUCCESS",
        "LOC_LEN_ERR",
        "LOC_QP_OP_ERR",
        "LOC_EEC_OP_ERR",
        "LOC_PROT_ERR",
        "WR_FLUSH_ERR",
        "MW_BIND_ERR",
        "BAD_RESP_ERR",
        "LOC_ACCESS_ERR",
        "REM_INV_REQ_ERR",
        "REM_ACCESS_ERR",
        "REM_OP_ERR",
        "RETRY_EXC_ERR",
        "RNR_RETRY_EXC_ERR",
        "LOC_RDD_VIOL_ERR",
        "REM_INV_RD_REQ_ERR",
        "REM_ABORT_ERR",
        "INV_EECN_ERR",
        "INV_EEC_STATE_ERR",
        "FATAL_ERR",
        "RESP_TIMEOUT_ERR",
        "GENERAL_ERR",
    ];
    pick(&names, status.0)
}

/// A state without its prefix.
pub fn state(state: ibv_qp_state) -> String {
    pick(
        &["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"],
        state.0,
    )
}

/// An asynchronous event without its prefix.
pub fn event(event: ibv_event_type) -> String {
    let names = [
        "CQ_ERR",
        "QP_FATAL",
        "QP_REQ_ERR",
        "QP_ACCESS_ERR",
        "COMM_EST",
        "SQ_DRAINED",
        "PATH_MIG",
        "PATH_MIG_ERR",
        "DEVICE_FATAL",
        "PORT_ACTIVE",
        "PORT_ERR",
        "LID_CHANGE",
        "PKEY_CHANGE",
        "SM_CHANGE",
        "SRQ_ERR",
        "SRQ_LIMIT_REACHED",
        "QP_LAST_WQE_REACHED",
    ];
    pick(&names, event.0)
}

/// What a completion is of.
pub fn opcode(opcode: ibv_wc_opcode) -> String {
    match opcode {
        ibv_wc_opcode::IBV_WC_RECV => "RECV".to_owned(),
        ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => "RECV_RDMA_WITH_IMM".to_owned(),
        other => pick(
            &["SEND", "RDMA_WRITE", "RDMA_READ", "COMP_SWAP", "FETCH_ADD"],
            other.0,
        ),
    }
}
