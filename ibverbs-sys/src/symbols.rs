//! The functions the shared libraries export, listed once.
//!
//! Each list is a macro that hands itself to another macro, so that the table ([`Api`](crate::Api),
//! [`CmApi`](crate::CmApi)), the code that fills it and the `extern` items of the feature `link` cannot disagree.
//!
//! An entry is `"VERSION" fn name(arguments) -> result;`, where VERSION is the symbol version that the signature belongs
//! to: libibverbs also exports old versions of many functions, with other structure layouts behind the same name.
//! `required` ones exist in every release of rdma-core; `optional` ones came later.

macro_rules! ibverbs_symbols {
    ($with:ident) => { $with! {
        required {
            /// NULL-terminated array of devices; its length goes to `num_devices` unless that is NULL. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
            /// Frees the array; devices in it that were not opened are gone.
            "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device) -> ();
            /// Name of the device, such as `mlx5_0`; lives as long as the device.
            "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
            /// Node GUID in network byte order.
            "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> __be64;
            /// Opens the device. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
            /// Closes it; objects left in it are leaked in this process, and destroyed by the kernel.
            "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;
            /// Waits for the next asynchronous event. -1 and errno on failure.
            "IBVERBS_1.1" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
            /// Acknowledges an event; destroying the object it names waits for this.
            "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event) -> ();
            /// Attributes of the device. Returns an errno.
            "IBVERBS_1.1" fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;
            /// Attributes of a port, in the old short layout: call [`inline::ibv_query_port`](crate::inline::ibv_query_port)
            /// instead, as verbs.h does. Returns an errno.
            "IBVERBS_1.1" fn ibv_query_port(context: *mut ibv_context, port_num: u8, port_attr: *mut _compat_ibv_port_attr) -> c_int;
            /// Entry `index` of the port's GID table. -1 and errno on failure.
            "IBVERBS_1.1" fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
            /// Entry `index` of the port's P_Key table, in network byte order. -1 and errno on failure.
            "IBVERBS_1.1" fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut __be16) -> c_int;
            /// Allocates a protection domain. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
            /// Frees it. Returns an errno: EBUSY while objects still use it.
            "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;
            /// Registers memory; `access` without optional flags, see [`inline::ibv_reg_mr`](crate::inline::ibv_reg_mr). NULL and
            /// errno on failure.
            "IBVERBS_1.1" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
            /// Deregisters. Returns an errno: EBUSY while windows are bound to it.
            "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;
            /// Creates a completion channel. NULL and errno on failure.
            "IBVERBS_1.0" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
            /// Destroys it. Returns an errno: EBUSY while completion queues use it.
            "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
            /// Creates a completion queue of at least `cqe` entries. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_create_cq(context: *mut ibv_context, cqe: c_int, cq_context: *mut c_void, channel: *mut ibv_comp_channel, comp_vector: c_int) -> *mut ibv_cq;
            /// Changes its capacity. Returns an errno.
            "IBVERBS_1.1" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;
            /// Destroys it; waits until its events are acknowledged. Returns an errno: EBUSY while queue pairs use it.
            "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;
            /// Waits for the next completion event of the channel. -1 and errno on failure.
            "IBVERBS_1.1" fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) -> c_int;
            /// Acknowledges `nevents` completion events; takes a lock, so worth doing in batches.
            "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint) -> ();
            /// Creates a shared receive queue; the granted sizes are written back. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;
            /// Changes size or limit. Returns an errno.
            "IBVERBS_1.1" fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;
            /// Its attributes. Returns an errno.
            "IBVERBS_1.1" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;
            /// Destroys it; waits until its events are acknowledged. Returns an errno: EBUSY while queue pairs use it.
            "IBVERBS_1.1" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;
            /// Creates a queue pair; the granted capabilities are written back. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;
            /// The attributes selected by `attr_mask` (a device may fill in more). Returns an errno.
            "IBVERBS_1.1" fn ibv_query_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int, init_attr: *mut ibv_qp_init_attr) -> c_int;
            /// Changes the attributes selected by `attr_mask`. Returns an errno.
            "IBVERBS_1.1" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;
            /// Destroys it; waits until its events are acknowledged. Returns an errno: EBUSY while attached to a multicast group.
            "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;
            /// Creates an address handle. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_create_ah(pd: *mut ibv_pd, attr: *mut ibv_ah_attr) -> *mut ibv_ah;
            /// Destroys it. Returns an errno.
            "IBVERBS_1.1" fn ibv_destroy_ah(ah: *mut ibv_ah) -> c_int;
            /// Attaches a UD queue pair to a multicast group; `lid` in host byte order. Returns an errno.
            "IBVERBS_1.1" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
            /// Detaches it. Returns an errno.
            "IBVERBS_1.1" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, lid: u16) -> c_int;
            /// Attributes for an address handle that answers the message of `wc`. -1 and errno on failure.
            "IBVERBS_1.1" fn ibv_init_ah_from_wc(context: *mut ibv_context, port_num: u8, wc: *mut ibv_wc, grh: *mut ibv_grh, ah_attr: *mut ibv_ah_attr) -> c_int;
            /// Address handle that answers the message of `wc`. NULL and errno on failure.
            "IBVERBS_1.1" fn ibv_create_ah_from_wc(pd: *mut ibv_pd, wc: *mut ibv_wc, grh: *mut ibv_grh, port_num: u8) -> *mut ibv_ah;
            /// Makes registered memory survive `fork`; call before anything else. Returns an errno.
            "IBVERBS_1.1" fn ibv_fork_init() -> c_int;
            /// English name of a node type; static.
            "IBVERBS_1.1" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char;
            /// English name of a port state; static.
            "IBVERBS_1.1" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char;
            /// English name of an asynchronous event; static.
            "IBVERBS_1.1" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char;
            /// English name of a completion status; static.
            "IBVERBS_1.1" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char;
        }
        optional {
            /// As `ibv_reg_mr`, with the address that work requests use given as `iova`. NULL and errno on failure.
            "IBVERBS_1.7" fn ibv_reg_mr_iova(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_int) -> *mut ibv_mr;
            /// As `ibv_reg_mr_iova`, and knows optional access flags, which it drops where the kernel does not know them. NULL
            /// and errno on failure.
            "IBVERBS_1.8" fn ibv_reg_mr_iova2(pd: *mut ibv_pd, addr: *mut c_void, length: usize, iova: u64, access: c_uint) -> *mut ibv_mr;
            /// Changes a registration. 0, or an `ibv_rereg_mr_err_code` (negative) and errno.
            "IBVERBS_1.1" fn ibv_rereg_mr(mr: *mut ibv_mr, flags: c_int, pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> c_int;
            /// Registers memory of the dmabuf `fd`. NULL and errno on failure.
            "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(pd: *mut ibv_pd, offset: u64, length: usize, iova: u64, fd: c_int, access: c_int) -> *mut ibv_mr;
            /// The kernel's index of the device, or -1 where it has none.
            "IBVERBS_1.9" fn ibv_get_device_index(device: *mut ibv_device) -> c_int;
            /// Index of `pkey` (network byte order) in the port's table. -1 and errno on failure.
            "IBVERBS_1.5" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: __be16) -> c_int;
            /// Whether `ibv_fork_init` took effect, or is not needed.
            "IBVERBS_1.13" fn ibv_is_fork_initialized() -> ibv_fork_status;
            /// Opens the device behind a command file descriptor of another process. NULL and errno on failure.
            "IBVERBS_1.10" fn ibv_import_device(cmd_fd: c_int) -> *mut ibv_context;
            /// A memory region of an imported device, by handle. NULL and errno on failure.
            "IBVERBS_1.10" fn ibv_import_mr(pd: *mut ibv_pd, mr_handle: u32) -> *mut ibv_mr;
            /// Forgets it without deregistering.
            "IBVERBS_1.10" fn ibv_unimport_mr(mr: *mut ibv_mr) -> ();
            /// A protection domain of an imported device, by handle. NULL and errno on failure.
            "IBVERBS_1.10" fn ibv_import_pd(context: *mut ibv_context, pd_handle: u32) -> *mut ibv_pd;
            /// Forgets it without freeing.
            "IBVERBS_1.10" fn ibv_unimport_pd(pd: *mut ibv_pd) -> ();
            /// Enhanced connection establishment options of the queue pair. Returns an errno.
            "IBVERBS_1.10" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
            /// Sets them, before the queue pair leaves RESET or INIT. Returns an errno.
            "IBVERBS_1.10" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
            /// The extended queue pair, when created with `send_ops_flags`; else NULL.
            "IBVERBS_1.6" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;
            /// A GID with its type and network interface; see [`inline::ibv_query_gid_ex`](crate::inline::ibv_query_gid_ex). Returns
            /// an errno.
            "IBVERBS_1.11" fn _ibv_query_gid_ex(context: *mut ibv_context, port_num: u32, gid_index: u32, entry: *mut ibv_gid_entry, flags: u32, entry_size: usize) -> c_int;
            /// All valid GIDs of all ports; see [`inline::ibv_query_gid_table`](crate::inline::ibv_query_gid_table). The number of
            /// entries, or a negated errno.
            "IBVERBS_1.11" fn _ibv_query_gid_table(context: *mut ibv_context, entries: *mut ibv_gid_entry, max_entries: usize, flags: u32, entry_size: usize) -> isize;
            /// 1 when data of this operation is guaranteed to land in order, else 0.
            "IBVERBS_1.14" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;
        }
    } };
}

macro_rules! rdmacm_symbols {
    ($with:ident) => { $with! {
        required {
            /// Opens a channel on which events arrive; its `fd` can be polled. NULL and errno on failure.
            "RDMACM_1.0" fn rdma_create_event_channel() -> *mut rdma_event_channel;
            /// Closes it; all ids on it must be gone.
            "RDMACM_1.0" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) -> ();
            /// Waits for the next event, which `rdma_ack_cm_event` must release.
            "RDMACM_1.0" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;
            /// Releases an event; destroying the id it names waits for this.
            "RDMACM_1.0" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;
            /// English name of an event; static.
            "RDMACM_1.0" fn rdma_event_str(event: rdma_cm_event_type) -> *const c_char;
            /// Creates an id, the counterpart of a socket. Without a channel, its operations are synchronous.
            "RDMACM_1.0" fn rdma_create_id(channel: *mut rdma_event_channel, id: *mut *mut rdma_cm_id, context: *mut c_void, ps: rdma_port_space) -> c_int;
            /// Destroys it; its queue pair must be gone, its events acknowledged.
            "RDMACM_1.0" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;
            /// Moves an id to another channel; NULL makes it synchronous.
            "RDMACM_1.0" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;
            /// Creates an id, and a queue pair when attributes are given, from the result of `rdma_getaddrinfo`.
            "RDMACM_1.0" fn rdma_create_ep(id: *mut *mut rdma_cm_id, res: *mut rdma_addrinfo, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
            /// Destroys an id and its queue pair.
            "RDMACM_1.0" fn rdma_destroy_ep(id: *mut rdma_cm_id) -> ();
            /// Binds to a local address; a specific one also to its device.
            "RDMACM_1.0" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
            /// Finds the device towards an address: event ADDR_RESOLVED or ADDR_ERROR.
            "RDMACM_1.0" fn rdma_resolve_addr(id: *mut rdma_cm_id, src_addr: *mut sockaddr, dst_addr: *mut sockaddr, timeout_ms: c_int) -> c_int;
            /// Finds the path there: event ROUTE_RESOLVED or ROUTE_ERROR.
            "RDMACM_1.0" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;
            /// Creates a queue pair for the id, which moves it through its states.
            "RDMACM_1.0" fn rdma_create_qp(id: *mut rdma_cm_id, pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> c_int;
            /// The same with extended attributes.
            "RDMACM_1.0" fn rdma_create_qp_ex(id: *mut rdma_cm_id, qp_init_attr: *mut ibv_qp_init_attr_ex) -> c_int;
            /// Destroys the id's queue pair.
            "RDMACM_1.0" fn rdma_destroy_qp(id: *mut rdma_cm_id) -> ();
            /// Creates a shared receive queue for the id.
            "RDMACM_1.0" fn rdma_create_srq(id: *mut rdma_cm_id, pd: *mut ibv_pd, attr: *mut ibv_srq_init_attr) -> c_int;
            /// The same with extended attributes.
            "RDMACM_1.0" fn rdma_create_srq_ex(id: *mut rdma_cm_id, attr: *mut ibv_srq_init_attr_ex) -> c_int;
            /// Destroys the id's shared receive queue.
            "RDMACM_1.0" fn rdma_destroy_srq(id: *mut rdma_cm_id) -> ();
            /// Connects: event ESTABLISHED (CONNECT_RESPONSE without a queue pair of the id), UNREACHABLE or REJECTED.
            "RDMACM_1.0" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
            /// Listens: each request is an event CONNECT_REQUEST with a new id.
            "RDMACM_1.0" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;
            /// The next request of a synchronous listener.
            "RDMACM_1.0" fn rdma_get_request(listen: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int;
            /// Accepts a request.
            "RDMACM_1.0" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;
            /// Rejects a request.
            "RDMACM_1.0" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
            /// Tells of an asynchronous event of the queue pair, such as COMM_EST.
            "RDMACM_1.0" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;
            /// Disconnects, and drives the queue pair to ERR: event DISCONNECTED at both ends.
            "RDMACM_1.0" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;
            /// Joins a multicast group: event MULTICAST_JOIN or MULTICAST_ERROR.
            "RDMACM_1.0" fn rdma_join_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr, context: *mut c_void) -> c_int;
            /// Leaves it.
            "RDMACM_1.0" fn rdma_leave_multicast(id: *mut rdma_cm_id, addr: *mut sockaddr) -> c_int;
            /// Local port in network byte order; 0 when unbound.
            "RDMACM_1.0" fn rdma_get_src_port(id: *mut rdma_cm_id) -> __be16;
            /// Remote port in network byte order.
            "RDMACM_1.0" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> __be16;
            /// NULL-terminated array of the devices that librdmacm has opened. NULL and errno on failure.
            "RDMACM_1.0" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;
            /// Frees the array; the devices stay open.
            "RDMACM_1.0" fn rdma_free_devices(list: *mut *mut ibv_context) -> ();
            /// Sets an option of an id (`RDMA_OPTION_*`).
            "RDMACM_1.0" fn rdma_set_option(id: *mut rdma_cm_id, level: c_int, optname: c_int, optval: *mut c_void, optlen: usize) -> c_int;
            /// Resolves names. 0; else -1 and errno, *or* a code of getaddrinfo(3).
            "RDMACM_1.0" fn rdma_getaddrinfo(node: *const c_char, service: *const c_char, hints: *const rdma_addrinfo, res: *mut *mut rdma_addrinfo) -> c_int;
            /// Frees what it returned.
            "RDMACM_1.0" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo) -> ();
        }
        optional {
            /// Joins a multicast group with options.
            "RDMACM_1.1" fn rdma_join_multicast_ex(id: *mut rdma_cm_id, mc_join_attr: *mut rdma_cm_join_mc_attr_ex, context: *mut c_void) -> c_int;
            /// Completes a connection whose queue pair is not the id's: after CONNECT_RESPONSE.
            "RDMACM_1.2" fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
            /// Attributes and mask for moving a queue pair that is not the id's to the state in `qp_attr`.
            "RDMACM_1.2" fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;
            /// Rejects a request because of its connection establishment options.
            "RDMACM_1.3" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
            /// Options to offer, when the queue pair is not the id's.
            "RDMACM_1.3" fn rdma_set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
            /// Options that the peer offered.
            "RDMACM_1.3" fn rdma_get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int;
        }
    } };
}

pub(crate) use {ibverbs_symbols, rdmacm_symbols};
