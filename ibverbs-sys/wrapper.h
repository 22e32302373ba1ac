/* What the bindings are generated from: the public headers of rdma-core. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
