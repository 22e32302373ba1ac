/*
 * The inlines of verbs.h as functions that can be called from Rust, and stand-ins for the exported functions that they fall
 * back to, so that nothing needs to be linked. Built and used by the test in this directory.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>

#define WRAP(ret, name, params, args) \
	ret c_##name params               \
	{                                 \
		return name args;             \
	}

/* The stand-ins call what the test put here. */
struct fallbacks {
	int (*query_port)(struct ibv_context *, uint8_t, struct _compat_ibv_port_attr *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	struct ibv_srq *(*create_srq)(struct ibv_pd *, struct ibv_srq_init_attr *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_mr_iova)(struct ibv_pd *, void *, size_t, uint64_t, int);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	int (*query_gid_ex)(struct ibv_context *, uint32_t, uint32_t, struct ibv_gid_entry *, uint32_t, size_t);
	ssize_t (*query_gid_table)(struct ibv_context *, struct ibv_gid_entry *, size_t, uint32_t, size_t);
};
static struct fallbacks to;

void c_set_fallbacks(const struct fallbacks *f)
{
	to = *f;
}

int(ibv_query_port)(struct ibv_context *c, uint8_t p, struct _compat_ibv_port_attr *a)
{
	return to.query_port(c, p, a);
}
int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	return to.query_device(c, a);
}
struct ibv_qp *ibv_create_qp(struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	return to.create_qp(p, a);
}
struct ibv_srq *ibv_create_srq(struct ibv_pd *p, struct ibv_srq_init_attr *a)
{
	return to.create_srq(p, a);
}
struct ibv_mr *(ibv_reg_mr)(struct ibv_pd *p, void *a, size_t l, int f)
{
	return to.reg_mr(p, a, l, f);
}
struct ibv_mr *(ibv_reg_mr_iova)(struct ibv_pd *p, void *a, size_t l, uint64_t i, int f)
{
	return to.reg_mr_iova(p, a, l, i, f);
}
struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *p, void *a, size_t l, uint64_t i, unsigned int f)
{
	return to.reg_mr_iova2(p, a, l, i, f);
}
int _ibv_query_gid_ex(struct ibv_context *c, uint32_t p, uint32_t i, struct ibv_gid_entry *e, uint32_t f, size_t s)
{
	return to.query_gid_ex(c, p, i, e, f, s);
}
ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t n, uint32_t f, size_t s)
{
	return to.query_gid_table(c, e, n, f, s);
}

/* Data path */
WRAP(int, ibv_poll_cq, (struct ibv_cq * a, int b, struct ibv_wc *c), (a, b, c))
WRAP(int, ibv_req_notify_cq, (struct ibv_cq * a, int b), (a, b))
WRAP(int, ibv_post_send, (struct ibv_qp * a, struct ibv_send_wr *b, struct ibv_send_wr **c), (a, b, c))
WRAP(int, ibv_post_recv, (struct ibv_qp * a, struct ibv_recv_wr *b, struct ibv_recv_wr **c), (a, b, c))
WRAP(int, ibv_post_srq_recv, (struct ibv_srq * a, struct ibv_recv_wr *b, struct ibv_recv_wr **c), (a, b, c))

/* Queries */
WRAP(struct verbs_context *, verbs_get_ctx, (struct ibv_context * a), (a))
WRAP(int, ibv_query_port, (struct ibv_context * a, uint8_t b, struct ibv_port_attr *c), (a, b, c))
WRAP(int, ibv_query_device_ex,
     (struct ibv_context * a, const struct ibv_query_device_ex_input *b, struct ibv_device_attr_ex *c), (a, b, c))
WRAP(int, ibv_query_gid_ex, (struct ibv_context * a, uint32_t b, uint32_t c, struct ibv_gid_entry *d, uint32_t e),
     (a, b, c, d, e))
WRAP(ssize_t, ibv_query_gid_table, (struct ibv_context * a, struct ibv_gid_entry *b, size_t c, uint32_t d), (a, b, c, d))
WRAP(int, ibv_query_rt_values_ex, (struct ibv_context * a, struct ibv_values_ex *b), (a, b))

/* Objects */
WRAP(struct ibv_qp *, ibv_create_qp_ex, (struct ibv_context * a, struct ibv_qp_init_attr_ex *b), (a, b))
WRAP(struct ibv_srq *, ibv_create_srq_ex, (struct ibv_context * a, struct ibv_srq_init_attr_ex *b), (a, b))
WRAP(struct ibv_qp *, ibv_open_qp, (struct ibv_context * a, struct ibv_qp_open_attr *b), (a, b))
WRAP(int, ibv_modify_qp_rate_limit, (struct ibv_qp * a, struct ibv_qp_rate_limit_attr *b), (a, b))
WRAP(struct ibv_xrcd *, ibv_open_xrcd, (struct ibv_context * a, struct ibv_xrcd_init_attr *b), (a, b))
WRAP(int, ibv_close_xrcd, (struct ibv_xrcd * a), (a))
WRAP(int, ibv_get_srq_num, (struct ibv_srq * a, uint32_t *b), (a, b))
WRAP(struct ibv_td *, ibv_alloc_td, (struct ibv_context * a, struct ibv_td_init_attr *b), (a, b))
WRAP(int, ibv_dealloc_td, (struct ibv_td * a), (a))
WRAP(struct ibv_pd *, ibv_alloc_parent_domain, (struct ibv_context * a, struct ibv_parent_domain_init_attr *b), (a, b))
WRAP(int, ibv_post_srq_ops, (struct ibv_srq * a, struct ibv_ops_wr *b, struct ibv_ops_wr **c), (a, b, c))
WRAP(int, ibv_is_qpt_supported, (uint32_t a, enum ibv_qp_type b), (a, b))

/* Memory. The macros of verbs.h decide by whether the flags are a constant, so each value is spelt out. */
#define CONSTANT_FLAGS(call) \
	switch (access) {        \
	case 0:                  \
		return call(0);      \
	case 7:                  \
		return call(7);      \
	case 1 << 20:            \
		return call(1 << 20); \
	case (1 << 29) | 1:      \
		return call((1 << 29) | 1); \
	case 1 << 30:            \
		return call(1 << 30); \
	}                        \
	return NULL;

struct ibv_mr *c_ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, unsigned int access)
{
#define REG_MR(flags) ibv_reg_mr(pd, addr, length, flags)
	CONSTANT_FLAGS(REG_MR)
}
struct ibv_mr *c_ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
#define REG_MR_IOVA(flags) ibv_reg_mr_iova(pd, addr, length, iova, flags)
	CONSTANT_FLAGS(REG_MR_IOVA)
}
WRAP(struct ibv_mw *, ibv_alloc_mw, (struct ibv_pd * a, enum ibv_mw_type b), (a, b))
WRAP(int, ibv_dealloc_mw, (struct ibv_mw * a), (a))
WRAP(int, ibv_bind_mw, (struct ibv_qp * a, struct ibv_mw *b, struct ibv_mw_bind *c), (a, b, c))
WRAP(uint32_t, ibv_inc_rkey, (uint32_t a), (a))
WRAP(int, ibv_advise_mr,
     (struct ibv_pd * a, enum ibv_advise_mr_advice b, uint32_t c, struct ibv_sge *d, uint32_t e), (a, b, c, d, e))
WRAP(struct ibv_dm *, ibv_alloc_dm, (struct ibv_context * a, struct ibv_alloc_dm_attr *b), (a, b))
WRAP(int, ibv_free_dm, (struct ibv_dm * a), (a))
WRAP(int, ibv_memcpy_to_dm, (struct ibv_dm * a, uint64_t b, const void *c, size_t d), (a, b, c, d))
WRAP(int, ibv_memcpy_from_dm, (void *a, struct ibv_dm *b, uint64_t c, size_t d), (a, b, c, d))
WRAP(struct ibv_mr *, ibv_alloc_null_mr, (struct ibv_pd * a), (a))
WRAP(struct ibv_mr *, ibv_reg_dm_mr, (struct ibv_pd * a, struct ibv_dm *b, uint64_t c, size_t d, unsigned int e),
     (a, b, c, d, e))

/* Raw packets */
WRAP(struct ibv_flow *, ibv_create_flow, (struct ibv_qp * a, struct ibv_flow_attr *b), (a, b))
WRAP(int, ibv_destroy_flow, (struct ibv_flow * a), (a))
WRAP(struct ibv_flow_action *, ibv_create_flow_action_esp,
     (struct ibv_context * a, struct ibv_flow_action_esp_attr *b), (a, b))
WRAP(int, ibv_modify_flow_action_esp, (struct ibv_flow_action * a, struct ibv_flow_action_esp_attr *b), (a, b))
WRAP(int, ibv_destroy_flow_action, (struct ibv_flow_action * a), (a))
WRAP(struct ibv_counters *, ibv_create_counters, (struct ibv_context * a, struct ibv_counters_init_attr *b), (a, b))
WRAP(int, ibv_destroy_counters, (struct ibv_counters * a), (a))
WRAP(int, ibv_attach_counters_point_flow,
     (struct ibv_counters * a, struct ibv_counter_attach_attr *b, struct ibv_flow *c), (a, b, c))
WRAP(int, ibv_read_counters, (struct ibv_counters * a, uint64_t *b, uint32_t c, uint32_t d), (a, b, c, d))
WRAP(struct ibv_wq *, ibv_create_wq, (struct ibv_context * a, struct ibv_wq_init_attr *b), (a, b))
WRAP(int, ibv_modify_wq, (struct ibv_wq * a, struct ibv_wq_attr *b), (a, b))
WRAP(int, ibv_destroy_wq, (struct ibv_wq * a), (a))
WRAP(int, ibv_post_wq_recv, (struct ibv_wq * a, struct ibv_recv_wr *b, struct ibv_recv_wr **c), (a, b, c))
WRAP(struct ibv_rwq_ind_table *, ibv_create_rwq_ind_table,
     (struct ibv_context * a, struct ibv_rwq_ind_table_init_attr *b), (a, b))
WRAP(int, ibv_destroy_rwq_ind_table, (struct ibv_rwq_ind_table * a), (a))
WRAP(uint16_t, ibv_flow_label_to_udp_sport, (uint32_t a), (a))

/* Extended completion queues */
WRAP(struct ibv_cq *, ibv_cq_ex_to_cq, (struct ibv_cq_ex * a), (a))
WRAP(struct ibv_cq_ex *, ibv_create_cq_ex, (struct ibv_context * a, struct ibv_cq_init_attr_ex *b), (a, b))
WRAP(int, ibv_modify_cq, (struct ibv_cq * a, struct ibv_modify_cq_attr *b), (a, b))
WRAP(int, ibv_start_poll, (struct ibv_cq_ex * a, struct ibv_poll_cq_attr *b), (a, b))
WRAP(int, ibv_next_poll, (struct ibv_cq_ex * a), (a))
WRAP(void, ibv_end_poll, (struct ibv_cq_ex * a), (a))
WRAP(enum ibv_wc_opcode, ibv_wc_read_opcode, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_vendor_err, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_byte_len, (struct ibv_cq_ex * a), (a))
WRAP(__be32, ibv_wc_read_imm_data, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_invalidated_rkey, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_qp_num, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_src_qp, (struct ibv_cq_ex * a), (a))
WRAP(unsigned int, ibv_wc_read_wc_flags, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_slid, (struct ibv_cq_ex * a), (a))
WRAP(uint8_t, ibv_wc_read_sl, (struct ibv_cq_ex * a), (a))
WRAP(uint8_t, ibv_wc_read_dlid_path_bits, (struct ibv_cq_ex * a), (a))
WRAP(uint64_t, ibv_wc_read_completion_ts, (struct ibv_cq_ex * a), (a))
WRAP(uint64_t, ibv_wc_read_completion_wallclock_ns, (struct ibv_cq_ex * a), (a))
WRAP(uint16_t, ibv_wc_read_cvlan, (struct ibv_cq_ex * a), (a))
WRAP(uint32_t, ibv_wc_read_flow_tag, (struct ibv_cq_ex * a), (a))
WRAP(void, ibv_wc_read_tm_info, (struct ibv_cq_ex * a, struct ibv_wc_tm_info *b), (a, b))

/* Work request builders */
WRAP(void, ibv_wr_start, (struct ibv_qp_ex * a), (a))
WRAP(int, ibv_wr_complete, (struct ibv_qp_ex * a), (a))
WRAP(void, ibv_wr_abort, (struct ibv_qp_ex * a), (a))
WRAP(void, ibv_wr_send, (struct ibv_qp_ex * a), (a))
WRAP(void, ibv_wr_send_imm, (struct ibv_qp_ex * a, __be32 b), (a, b))
WRAP(void, ibv_wr_send_inv, (struct ibv_qp_ex * a, uint32_t b), (a, b))
WRAP(void, ibv_wr_send_tso, (struct ibv_qp_ex * a, void *b, uint16_t c, uint16_t d), (a, b, c, d))
WRAP(void, ibv_wr_rdma_write, (struct ibv_qp_ex * a, uint32_t b, uint64_t c), (a, b, c))
WRAP(void, ibv_wr_rdma_write_imm, (struct ibv_qp_ex * a, uint32_t b, uint64_t c, __be32 d), (a, b, c, d))
WRAP(void, ibv_wr_rdma_read, (struct ibv_qp_ex * a, uint32_t b, uint64_t c), (a, b, c))
WRAP(void, ibv_wr_atomic_write, (struct ibv_qp_ex * a, uint32_t b, uint64_t c, const void *d), (a, b, c, d))
WRAP(void, ibv_wr_atomic_cmp_swp, (struct ibv_qp_ex * a, uint32_t b, uint64_t c, uint64_t d, uint64_t e),
     (a, b, c, d, e))
WRAP(void, ibv_wr_atomic_fetch_add, (struct ibv_qp_ex * a, uint32_t b, uint64_t c, uint64_t d), (a, b, c, d))
WRAP(void, ibv_wr_bind_mw, (struct ibv_qp_ex * a, struct ibv_mw *b, uint32_t c, const struct ibv_mw_bind_info *d),
     (a, b, c, d))
WRAP(void, ibv_wr_local_inv, (struct ibv_qp_ex * a, uint32_t b), (a, b))
WRAP(void, ibv_wr_set_ud_addr, (struct ibv_qp_ex * a, struct ibv_ah *b, uint32_t c, uint32_t d), (a, b, c, d))
WRAP(void, ibv_wr_set_xrc_srqn, (struct ibv_qp_ex * a, uint32_t b), (a, b))
WRAP(void, ibv_wr_set_inline_data, (struct ibv_qp_ex * a, void *b, size_t c), (a, b, c))
WRAP(void, ibv_wr_set_inline_data_list, (struct ibv_qp_ex * a, size_t b, const struct ibv_data_buf *c), (a, b, c))
WRAP(void, ibv_wr_set_sge, (struct ibv_qp_ex * a, uint32_t b, uint64_t c, uint32_t d), (a, b, c, d))
WRAP(void, ibv_wr_set_sge_list, (struct ibv_qp_ex * a, size_t b, const struct ibv_sge *c), (a, b, c))

/* Connections */
WRAP(struct sockaddr *, rdma_get_local_addr, (struct rdma_cm_id * a), (a))
WRAP(struct sockaddr *, rdma_get_peer_addr, (struct rdma_cm_id * a), (a))
