//! Services, and the state machine of a queue pair: which transitions there are and which attributes they take.

use ibverbs_sys::{ibv_qp_attr_mask as Mask, ibv_qp_state, ibv_qp_type};

/// What a queue pair promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum Service {
    /// Reliable connection.
    Rc = 1,
    /// Unreliable connection: what cannot be delivered is dropped, and the sender is not told.
    Uc = 2,
    /// Datagrams: each names its destination.
    Ud = 3,
}

impl Service {
    pub fn from_verbs(qp_type: ibv_qp_type) -> Option<Service> {
        match qp_type {
            ibv_qp_type::IBV_QPT_RC => Some(Service::Rc),
            ibv_qp_type::IBV_QPT_UC => Some(Service::Uc),
            ibv_qp_type::IBV_QPT_UD => Some(Service::Ud),
            _ => None,
        }
    }
}

/// `ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    /// Send queue drained, or draining: what is posted now waits.
    Sqd = 4,
    /// Send queue error, of an unreliable service only: receives go on.
    Sqe = 5,
    Err = 6,
}

impl State {
    pub fn from_verbs(state: ibv_qp_state) -> Option<State> {
        Self::from_u32(state.0)
    }

    #[inline]
    pub fn from_u32(state: u32) -> Option<State> {
        Some(match state {
            0 => State::Reset,
            1 => State::Init,
            2 => State::Rtr,
            3 => State::Rts,
            4 => State::Sqd,
            5 => State::Sqe,
            6 => State::Err,
            _ => return None,
        })
    }

    /// Whether the queue pair takes what peers send, given its state as a number.
    #[inline]
    pub fn receives(state: u32) -> bool {
        (State::Rtr as u32..=State::Sqe as u32).contains(&state)
    }

    /// Whether posted sends are executed.
    #[inline]
    pub fn sends(self) -> bool {
        matches!(self, State::Rts | State::Sqd)
    }
}

const STATE: u32 = Mask::IBV_QP_STATE.0;
const CUR: u32 = Mask::IBV_QP_CUR_STATE.0;
const ACCESS: u32 = Mask::IBV_QP_ACCESS_FLAGS.0;
const PKEY: u32 = Mask::IBV_QP_PKEY_INDEX.0;
const PORT: u32 = Mask::IBV_QP_PORT.0;
const AV: u32 = Mask::IBV_QP_AV.0;
const PATH_MTU: u32 = Mask::IBV_QP_PATH_MTU.0;
const TIMEOUT: u32 = Mask::IBV_QP_TIMEOUT.0;
const RETRY_CNT: u32 = Mask::IBV_QP_RETRY_CNT.0;
const RNR_RETRY: u32 = Mask::IBV_QP_RNR_RETRY.0;
const RQ_PSN: u32 = Mask::IBV_QP_RQ_PSN.0;
const MAX_RD: u32 = Mask::IBV_QP_MAX_QP_RD_ATOMIC.0;
const ALT_PATH: u32 = Mask::IBV_QP_ALT_PATH.0;
const RNR_TIMER: u32 = Mask::IBV_QP_MIN_RNR_TIMER.0;
const SQ_PSN: u32 = Mask::IBV_QP_SQ_PSN.0;
const MAX_DEST_RD: u32 = Mask::IBV_QP_MAX_DEST_RD_ATOMIC.0;
const MIG: u32 = Mask::IBV_QP_PATH_MIG_STATE.0;
const DEST_QPN: u32 = Mask::IBV_QP_DEST_QPN.0;
const QKEY: u32 = Mask::IBV_QP_QKEY.0;
const SQD_NOTIFY: u32 = Mask::IBV_QP_EN_SQD_ASYNC_NOTIFY.0;

/// Attributes that only a reliable service has.
const RELIABLE: u32 = MAX_DEST_RD | RNR_TIMER | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD;

/// The attributes that a service has at all.
fn known(service: Service) -> u32 {
    match service {
        Service::Rc => !QKEY,
        Service::Uc => !(RELIABLE | QKEY),
        Service::Ud => STATE | CUR | PKEY | PORT | QKEY | SQ_PSN | SQD_NOTIFY,
    }
}

/// Required and optional attributes of a transition (ibv_modify_qp(3), IBTA 11.2.4.2), `None` if there is no such transition.
pub(crate) fn transition(service: Service, from: State, to: State) -> Option<(u32, u32)> {
    use State::*;
    let (required, optional) = match (from, to) {
        (_, Reset) => (STATE, CUR),
        (Reset, Err) => return None,
        (_, Err) => (STATE, CUR),
        (Reset, Init) => (STATE | PKEY | PORT | ACCESS | QKEY, CUR),
        (Init, Init) => (0, STATE | CUR | PKEY | PORT | ACCESS | QKEY),
        (Init, Rtr) => (
            STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | RNR_TIMER,
            CUR | ALT_PATH | ACCESS | PKEY | QKEY,
        ),
        (Rtr, Rts) => (
            STATE | SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD,
            CUR | ALT_PATH | ACCESS | RNR_TIMER | MIG | QKEY,
        ),
        (Rts, Rts) => (0, STATE | CUR | ALT_PATH | ACCESS | RNR_TIMER | MIG | QKEY),
        (Rts, Sqd) => (STATE, SQD_NOTIFY),
        (Sqd, Rts) => (STATE, CUR | ALT_PATH | ACCESS | RNR_TIMER | MIG | QKEY),
        (Sqd, Sqd) => {
            let port = if service == Service::Rc { PORT } else { 0 };
            let path = AV | ALT_PATH | MIG | PKEY | QKEY | ACCESS | port;
            (0, STATE | path | RELIABLE)
        }
        // A reliable queue pair has no such state.
        (Sqe, Rts) if service != Service::Rc => (STATE, CUR | ACCESS | QKEY),
        _ => return None,
    };
    let known = known(service);
    Some((required & known, optional & known))
}

/// Whether the attributes of a mask fit a transition.
pub(crate) fn allowed(service: Service, from: State, to: State, mask: u32) -> bool {
    transition(service, from, to).is_some_and(|(required, optional)| {
        mask & required == required && mask & !(required | optional) == 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const RC: Service = Service::Rc;

    #[test]
    fn the_usual_way_up() {
        assert!(allowed(
            RC,
            State::Reset,
            State::Init,
            STATE | PKEY | PORT | ACCESS
        ));
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | RNR_TIMER;
        assert!(allowed(RC, State::Init, State::Rtr, rtr));
        assert!(allowed(
            RC,
            State::Rtr,
            State::Rts,
            STATE | SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD
        ));
        // Each bit that is required is missed, each that is not known is refused.
        for bit in (0..21).map(|b| 1 << b).filter(|b| rtr & b != 0) {
            assert!(
                !allowed(RC, State::Init, State::Rtr, rtr & !bit),
                "without {bit:#x}"
            );
        }
        assert!(!allowed(RC, State::Init, State::Rtr, rtr | SQ_PSN));
    }

    #[test]
    fn an_unreliable_connection_has_nothing_to_wait_for() {
        let uc = |from, to, mask| allowed(Service::Uc, from, to, mask);
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN;
        assert!(uc(State::Reset, State::Init, STATE | PKEY | PORT | ACCESS));
        assert!(uc(State::Init, State::Rtr, rtr));
        assert!(uc(State::Rtr, State::Rts, STATE | SQ_PSN));
        for bit in [MAX_DEST_RD, RNR_TIMER] {
            assert!(!uc(State::Init, State::Rtr, rtr | bit));
        }
        for bit in [TIMEOUT, RETRY_CNT, RNR_RETRY, MAX_RD, RNR_TIMER] {
            assert!(!uc(State::Rtr, State::Rts, STATE | SQ_PSN | bit));
        }
        assert!(!uc(State::Rtr, State::Rts, STATE));
        assert!(uc(State::Rts, State::Rts, ACCESS) && !uc(State::Rts, State::Rts, RNR_TIMER));
    }

    #[test]
    fn a_datagram_queue_pair_is_connected_to_nobody() {
        let ud = |from, to, mask| allowed(Service::Ud, from, to, mask);
        assert!(ud(State::Reset, State::Init, STATE | PKEY | PORT | QKEY));
        assert!(!ud(State::Reset, State::Init, STATE | PKEY | PORT));
        assert!(!ud(
            State::Reset,
            State::Init,
            STATE | PKEY | PORT | QKEY | ACCESS
        ));
        assert!(ud(State::Init, State::Rtr, STATE));
        assert!(ud(State::Init, State::Rtr, STATE | QKEY | PKEY));
        for bit in [
            AV,
            PATH_MTU,
            DEST_QPN,
            RQ_PSN,
            ACCESS,
            MAX_DEST_RD,
            RNR_TIMER,
        ] {
            assert!(!ud(State::Init, State::Rtr, STATE | bit), "{bit:#x}");
        }
        assert!(ud(State::Rtr, State::Rts, STATE | SQ_PSN));
        assert!(!ud(State::Rtr, State::Rts, STATE));
        assert!(ud(State::Rts, State::Rts, QKEY) && !ud(State::Rts, State::Rts, ACCESS));
    }

    #[test]
    fn draining_and_failed_send_queues() {
        for service in [RC, Service::Uc, Service::Ud] {
            let may = |from, to, mask| allowed(service, from, to, mask);
            assert!(may(State::Rts, State::Sqd, STATE | SQD_NOTIFY));
            assert!(may(State::Sqd, State::Rts, STATE) && may(State::Sqd, State::Sqd, PKEY));
            assert!(!may(State::Rtr, State::Sqd, STATE) && !may(State::Sqd, State::Rtr, STATE));
            assert_eq!(may(State::Sqe, State::Rts, STATE | CUR), service != RC);
            assert_eq!(may(State::Sqd, State::Sqd, TIMEOUT), service == RC);
            assert!(!may(State::Rts, State::Sqe, STATE) && !may(State::Sqe, State::Sqd, STATE));
        }
    }

    #[test]
    fn no_short_cuts() {
        for (from, to) in [
            (State::Reset, State::Rtr),
            (State::Reset, State::Rts),
            (State::Init, State::Rts),
            (State::Rts, State::Rtr),
            (State::Err, State::Init),
            (State::Rts, State::Init),
        ] {
            assert!(transition(RC, from, to).is_none(), "{from:?} to {to:?}");
        }
        for from in [
            State::Reset,
            State::Init,
            State::Rtr,
            State::Rts,
            State::Sqd,
            State::Sqe,
            State::Err,
        ] {
            assert!(allowed(RC, from, State::Reset, STATE));
        }
    }
}
