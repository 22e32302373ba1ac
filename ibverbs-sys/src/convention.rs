//! How each function reports failure, in one table, and helpers that turn results into [`std::io::Result`].
//!
//! The verbs have no common rule: most that return `int` give the errno itself, some -1 with errno set, some a count. To read
//! one kind as another loses errors: a positive errno compared with -1 looks like success. The table follows the man pages of
//! rdma-core 44, and its code where that differs or they are silent.
//!
//! ```
//! use ibverbs_sys::convention::{self, Convention};
//! assert_eq!(convention::of("ibv_modify_qp"), Some(Convention::ReturnsErrno));
//! assert_eq!(convention::of("ibv_query_gid"), Some(Convention::MinusOneAndErrno));
//! let error = convention::returns_errno(libc::EINVAL).unwrap_err();
//! assert_eq!(error.raw_os_error(), Some(libc::EINVAL));
//! ```

use core::ffi::c_int;
use core::ptr::NonNull;
use std::io;

/// A way to report failure. The helper that reads it is named with each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Convention {
    /// 0, or the errno as a positive value: [`returns_errno`].
    ReturnsErrno,
    /// 0, or -1 and errno: [`minus_one`].
    MinusOneAndErrno,
    /// A pointer, or NULL and errno: [`non_null`].
    NullAndErrno,
    /// A pointer, or NULL without a reason.
    Null,
    /// A number of entries, or any negative value, which is *not* an errno: [`count`].
    CountOrNegative,
    /// A number of entries, or a negated errno: [`count_or_negated_errno`].
    CountOrNegatedErrno,
    /// An index, or -1 and errno: [`index`].
    IndexOrMinusOne,
    /// 0, ENOENT when there is no completion, or another errno: [`poll_step`].
    EnoentWhenEmpty,
    /// 0, or a negative `ibv_rereg_mr_err_code` that says which registration is left, and errno.
    ReregCode,
    /// 0, -1 and errno, or a code of getaddrinfo(3), which may be -1 too: read as 0 or not 0.
    Resolver,
    /// The result itself: there is no failure.
    Value,
    /// No result.
    Void,
}

use Convention::{
    CountOrNegatedErrno, CountOrNegative, EnoentWhenEmpty, IndexOrMinusOne, MinusOneAndErrno, Null,
    NullAndErrno, ReregCode, Resolver, ReturnsErrno, Value, Void,
};

/// The table: every function of [`Api`](crate::Api), [`CmApi`](crate::CmApi) and [`inline`](crate::inline), by kind.
#[rustfmt::skip]
const TABLE: &[(Convention, &[&str])] = &[
    (
        ReturnsErrno,
        &[
            "ibv_query_device", "ibv_query_port", "ibv_dealloc_pd", "ibv_dereg_mr", "ibv_destroy_comp_channel",
            "ibv_resize_cq", "ibv_destroy_cq", "ibv_modify_srq", "ibv_query_srq", "ibv_destroy_srq", "ibv_query_qp",
            "ibv_modify_qp", "ibv_destroy_qp", "ibv_destroy_ah", "ibv_attach_mcast", "ibv_detach_mcast",
            "ibv_fork_init", "ibv_query_ece", "ibv_set_ece", "_ibv_query_gid_ex", "ibv_query_gid_ex",
            "ibv_query_device_ex", "ibv_query_rt_values_ex", "ibv_req_notify_cq", "ibv_post_send", "ibv_post_recv",
            "ibv_post_srq_recv", "ibv_post_srq_ops", "ibv_post_wq_recv", "ibv_wr_complete", "ibv_modify_cq",
            "ibv_close_xrcd", "ibv_modify_qp_rate_limit", "ibv_get_srq_num", "ibv_dealloc_td", "ibv_bind_mw",
            "ibv_dealloc_mw", "ibv_memcpy_to_dm", "ibv_memcpy_from_dm", "ibv_advise_mr", "ibv_free_dm",
            "ibv_destroy_flow", "ibv_modify_flow_action_esp", "ibv_destroy_flow_action", "ibv_destroy_counters",
            "ibv_attach_counters_point_flow", "ibv_read_counters", "ibv_modify_wq", "ibv_destroy_wq",
            "ibv_destroy_rwq_ind_table",
        ],
    ),
    (
        MinusOneAndErrno,
        &[
            "ibv_close_device", "ibv_get_async_event", "ibv_query_gid", "ibv_query_pkey", "ibv_get_cq_event",
            "ibv_init_ah_from_wc", "rdma_get_cm_event", "rdma_ack_cm_event", "rdma_create_id", "rdma_destroy_id",
            "rdma_migrate_id", "rdma_create_ep", "rdma_bind_addr", "rdma_resolve_addr", "rdma_resolve_route",
            "rdma_create_qp", "rdma_create_qp_ex", "rdma_create_srq", "rdma_create_srq_ex", "rdma_connect",
            "rdma_listen", "rdma_get_request", "rdma_accept", "rdma_reject", "rdma_notify", "rdma_disconnect",
            "rdma_join_multicast", "rdma_leave_multicast", "rdma_set_option", "rdma_join_multicast_ex",
            "rdma_establish", "rdma_init_qp_attr", "rdma_reject_ece", "rdma_set_local_ece", "rdma_get_remote_ece",
        ],
    ),
    (
        NullAndErrno,
        &[
            "ibv_get_device_list", "ibv_open_device", "ibv_alloc_pd", "ibv_reg_mr", "ibv_create_comp_channel",
            "ibv_create_cq", "ibv_create_srq", "ibv_create_qp", "ibv_create_ah", "ibv_create_ah_from_wc",
            "ibv_reg_mr_iova", "ibv_reg_mr_iova2", "ibv_reg_dmabuf_mr", "ibv_import_device", "ibv_import_mr",
            "ibv_import_pd", "ibv_create_cq_ex", "ibv_create_qp_ex", "ibv_create_srq_ex", "ibv_open_qp",
            "ibv_open_xrcd", "ibv_alloc_td", "ibv_alloc_parent_domain", "ibv_alloc_mw", "ibv_alloc_dm",
            "ibv_alloc_null_mr", "ibv_reg_dm_mr", "ibv_create_flow", "ibv_create_flow_action_esp",
            "ibv_create_counters", "ibv_create_rwq_ind_table", "ibv_create_wq", "rdma_create_event_channel",
            "rdma_get_devices",
        ],
    ),
    (Null, &["ibv_get_device_name", "ibv_qp_to_qp_ex"]),
    (CountOrNegative, &["ibv_poll_cq"]),
    (CountOrNegatedErrno, &["_ibv_query_gid_table", "ibv_query_gid_table"]),
    (IndexOrMinusOne, &["ibv_get_device_index", "ibv_get_pkey_index"]),
    (EnoentWhenEmpty, &["ibv_start_poll", "ibv_next_poll"]),
    (ReregCode, &["ibv_rereg_mr"]),
    (Resolver, &["rdma_getaddrinfo"]),
    (
        Value,
        &[
            "ibv_get_device_guid", "ibv_node_type_str", "ibv_port_state_str", "ibv_event_type_str",
            "ibv_wc_status_str", "ibv_is_fork_initialized", "ibv_query_qp_data_in_order", "ibv_cq_ex_to_cq",
            "ibv_wc_read_opcode", "ibv_wc_read_vendor_err", "ibv_wc_read_byte_len", "ibv_wc_read_imm_data",
            "ibv_wc_read_invalidated_rkey", "ibv_wc_read_qp_num", "ibv_wc_read_src_qp", "ibv_wc_read_wc_flags",
            "ibv_wc_read_slid", "ibv_wc_read_sl", "ibv_wc_read_dlid_path_bits", "ibv_wc_read_completion_ts",
            "ibv_wc_read_completion_wallclock_ns", "ibv_wc_read_cvlan", "ibv_wc_read_flow_tag",
            "ibv_is_qpt_supported", "ibv_inc_rkey", "ibv_flow_label_to_udp_sport", "rdma_event_str",
            "rdma_get_src_port", "rdma_get_dst_port", "rdma_get_local_addr", "rdma_get_peer_addr",
        ],
    ),
    (
        Void,
        &[
            "ibv_free_device_list", "ibv_ack_async_event", "ibv_ack_cq_events", "ibv_unimport_mr", "ibv_unimport_pd",
            "ibv_end_poll", "ibv_wc_read_tm_info", "ibv_wr_start", "ibv_wr_abort", "ibv_wr_send", "ibv_wr_send_imm",
            "ibv_wr_send_inv", "ibv_wr_send_tso", "ibv_wr_rdma_write", "ibv_wr_rdma_write_imm", "ibv_wr_rdma_read",
            "ibv_wr_atomic_write", "ibv_wr_atomic_cmp_swp", "ibv_wr_atomic_fetch_add", "ibv_wr_bind_mw",
            "ibv_wr_local_inv", "ibv_wr_set_ud_addr", "ibv_wr_set_xrc_srqn", "ibv_wr_set_inline_data",
            "ibv_wr_set_inline_data_list", "ibv_wr_set_sge", "ibv_wr_set_sge_list", "rdma_destroy_event_channel",
            "rdma_destroy_ep", "rdma_destroy_qp", "rdma_destroy_srq", "rdma_free_devices", "rdma_freeaddrinfo",
        ],
    ),
];

/// The convention of the function `name`, or `None` when this crate has no such function.
pub fn of(name: &str) -> Option<Convention> {
    TABLE
        .iter()
        .find(|(_, names)| names.contains(&name))
        .map(|(convention, _)| *convention)
}

/// Sets errno to 0, so that a stale value is not taken for the reason when a function fails without setting it, as
/// `ibv_query_gid` and `ibv_init_ah_from_wc` can.
pub fn clear_errno() {
    // SAFETY: the location is this thread's own and always valid.
    unsafe { *libc::__errno_location() = 0 }
}

/// The error in errno; EIO when it is 0, for an error must not read "Success".
pub fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(0) => io::Error::from_raw_os_error(libc::EIO),
        _ => error,
    }
}

/// Reads [`Convention::ReturnsErrno`].
///
/// Providers were seen to break the rule: -1 is read as "see errno", another negative value as a negated errno.
pub fn returns_errno(result: c_int) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(last_error()),
        value => Err(errno(i64::from(value).abs())),
    }
}

/// Reads [`Convention::MinusOneAndErrno`]; any other value than 0 counts as -1.
pub fn minus_one(result: c_int) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(last_error())
    }
}

/// Reads [`Convention::NullAndErrno`].
pub fn non_null<T>(result: *mut T) -> io::Result<NonNull<T>> {
    NonNull::new(result).ok_or_else(last_error)
}

/// Reads [`Convention::CountOrNegative`]. The error is always EIO: the negative value means something to the provider only.
#[inline]
pub fn count(result: c_int) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(libc::EIO))
}

/// Reads [`Convention::CountOrNegatedErrno`].
pub fn count_or_negated_errno(result: isize) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| errno(result.unsigned_abs() as i64))
}

/// Reads [`Convention::IndexOrMinusOne`].
pub fn index(result: c_int) -> io::Result<u32> {
    u32::try_from(result).map_err(|_| last_error())
}

/// Reads [`Convention::EnoentWhenEmpty`]: whether there is a completion.
#[inline]
pub fn poll_step(result: c_int) -> io::Result<bool> {
    match result {
        0 => Ok(true),
        libc::ENOENT => Ok(false),
        value => returns_errno(value).map(|()| true),
    }
}

/// `value` as an error; EIO when it cannot be an errno.
fn errno(value: i64) -> io::Error {
    match c_int::try_from(value) {
        // The kernel's errnos end below 4096.
        Ok(value @ 1..4096) => io::Error::from_raw_os_error(value),
        _ => io::Error::from_raw_os_error(libc::EIO),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Api, CmApi};
    use std::collections::HashSet;

    fn set_errno(value: c_int) {
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = value }
    }

    fn code<T: std::fmt::Debug>(result: io::Result<T>) -> c_int {
        result
            .expect_err("read as success")
            .raw_os_error()
            .expect("an errno")
    }

    /// Names of the functions in the inline module, read from its source.
    fn inlines() -> Vec<&'static str> {
        let sources = [
            include_str!("inline/completion.rs"),
            include_str!("inline/connection.rs"),
            include_str!("inline/data_path.rs"),
            include_str!("inline/memory.rs"),
            include_str!("inline/object.rs"),
            include_str!("inline/query.rs"),
            include_str!("inline/raw_packet.rs"),
            include_str!("inline/work_request.rs"),
        ];
        let name = |line: &'static str| {
            let rest = line.split_once("fn ")?.1;
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
            Some(&rest[..end]).filter(|n| n.starts_with("ibv_") || n.starts_with("rdma_"))
        };
        sources
            .iter()
            .flat_map(|text| text.lines())
            .filter_map(name)
            .collect()
    }

    #[test]
    fn the_table_is_complete_and_has_nothing_else() {
        let inlines = inlines();
        assert!(inlines.len() > 90, "only {} inlines found", inlines.len());
        let ours: HashSet<&str> = Api::SYMBOLS
            .iter()
            .chain(CmApi::SYMBOLS)
            .map(|(name, ..)| *name)
            .chain(inlines)
            .collect();
        let listed: Vec<&str> = TABLE
            .iter()
            .flat_map(|(_, names)| names.iter().copied())
            .collect();
        let unique: HashSet<&str> = listed.iter().copied().collect();
        assert_eq!(listed.len(), unique.len(), "a name is listed twice");
        let missing: Vec<_> = ours.difference(&unique).collect();
        let unknown: Vec<_> = unique.difference(&ours).collect();
        assert!(
            missing.is_empty() && unknown.is_empty(),
            "missing {missing:?}, unknown {unknown:?}"
        );
    }

    #[test]
    fn conventions_fit_the_result_types() {
        for (name, _, result) in Api::SYMBOLS.iter().chain(CmApi::SYMBOLS) {
            let convention = of(name).expect("listed");
            let fits = match convention {
                ReturnsErrno | MinusOneAndErrno | IndexOrMinusOne | ReregCode | Resolver
                | CountOrNegative | EnoentWhenEmpty => *result == "c_int",
                NullAndErrno => result.starts_with('*') && !result.contains("const"),
                Null => result.starts_with('*'),
                CountOrNegatedErrno => *result == "isize",
                Value => *result != "()",
                Void => *result == "()",
            };
            assert!(fits, "{name} returns {result}, listed as {convention:?}");
        }
    }

    #[test]
    fn an_errno_is_an_error_of_that_number() {
        assert!(returns_errno(0).is_ok());
        for value in [1, libc::EINVAL, libc::ENOMEM, libc::EOPNOTSUPP, 4095] {
            assert_eq!(code(returns_errno(value)), value);
        }
        set_errno(libc::EBUSY);
        assert_eq!(code(returns_errno(-1)), libc::EBUSY);
        assert_eq!(code(returns_errno(-libc::EINVAL)), libc::EINVAL);
        assert_eq!(code(returns_errno(c_int::MIN)), libc::EIO);
        assert_eq!(code(returns_errno(5000)), libc::EIO);
    }

    #[test]
    fn minus_one_takes_errno_and_never_says_success() {
        set_errno(libc::EAGAIN);
        assert!(minus_one(0).is_ok());
        assert_eq!(code(minus_one(-1)), libc::EAGAIN);
        clear_errno();
        assert_eq!(code(minus_one(-1)), libc::EIO);
        set_errno(libc::EPERM);
        assert_eq!(code(minus_one(libc::EINVAL)), libc::EPERM);
    }

    #[test]
    fn null_takes_errno() {
        let mut value = 7u8;
        assert_eq!(
            non_null(&raw mut value).expect("not null").as_ptr(),
            &raw mut value
        );
        set_errno(libc::ENOMEM);
        assert_eq!(code(non_null::<u8>(core::ptr::null_mut())), libc::ENOMEM);
        clear_errno();
        assert_eq!(code(non_null::<u8>(core::ptr::null_mut())), libc::EIO);
    }

    #[test]
    fn counts_and_indices() {
        assert_eq!(count(0).expect("a count"), 0);
        assert_eq!(count(16).expect("a count"), 16);
        // mlx5 reports -2 for a corrupt queue entry; it is not ENOENT.
        assert_eq!(code(count(-2)), libc::EIO);
        assert_eq!(count_or_negated_errno(3).expect("a count"), 3);
        assert_eq!(
            code(count_or_negated_errno(-(libc::EINVAL as isize))),
            libc::EINVAL
        );
        assert_eq!(code(count_or_negated_errno(isize::MIN)), libc::EIO);
        assert_eq!(index(5).expect("an index"), 5);
        set_errno(libc::ENOENT);
        assert_eq!(code(index(-1)), libc::ENOENT);
    }

    #[test]
    fn an_empty_queue_is_not_an_error() {
        assert!(poll_step(0).expect("a completion"));
        assert!(!poll_step(libc::ENOENT).expect("empty"));
        assert_eq!(code(poll_step(libc::EINVAL)), libc::EINVAL);
    }
}
