use verbs::*;

fn main() {}

fn f(pd: &Pd, cq: &Cq) {
    let _ = pd.uc(cq).rnr_retry(0);
    let _ = pd.uc(cq).retry_cnt(0);
    let _ = pd.uc(cq).timeout(0);
    let _ = pd.uc(cq).min_rnr_timer(1);
    let _ = pd.uc(cq).rd_atomic(1);
    let _ = pd.uc(cq).access(Access::REMOTE_READ);
}
