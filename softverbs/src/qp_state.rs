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
}

impl Service {
    pub fn from_verbs(qp_type: ibv_qp_type) -> Option<Service> {
        match qp_type {
            ibv_qp_type::IBV_QPT_RC => Some(Service::Rc),
            ibv_qp_type::IBV_QPT_UC => Some(Service::Uc),
            _ => None,
        }
    }
}

/// `ibv_qp_state`, as far as this device has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub(crate) enum State {
    Reset = 0,
    Init = 1,
    Rtr = 2,
    Rts = 3,
    Err = 6,
}

impl State {
    pub fn from_verbs(state: ibv_qp_state) -> Option<State> {
        Self::from_u32(state.0)
    }

    pub fn from_u32(state: u32) -> Option<State> {
        [
            State::Reset,
            State::Init,
            State::Rtr,
            State::Rts,
            State::Err,
        ]
        .into_iter()
        .find(|s| *s as u32 == state)
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

/// Attributes that only a reliable service has.
const RELIABLE: u32 = MAX_DEST_RD | RNR_TIMER | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD;

/// Required and optional attributes of a transition (ibv_modify_qp(3), IBTA 11.2.5.2), `None` if there is no such transition.
pub(crate) fn transition(service: Service, from: State, to: State) -> Option<(u32, u32)> {
    use State::*;
    let (required, optional) = match (from, to) {
        (_, Reset) => (STATE, CUR),
        (Reset, Err) => return None,
        (_, Err) => (STATE, CUR),
        (Reset, Init) => (STATE | PKEY | PORT | ACCESS, CUR),
        (Init, Init) => (0, STATE | CUR | PKEY | PORT | ACCESS),
        (Init, Rtr) => (
            STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD | RNR_TIMER,
            CUR | ALT_PATH | ACCESS | PKEY,
        ),
        (Rtr, Rts) => (
            STATE | SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_RD,
            CUR | ALT_PATH | ACCESS | RNR_TIMER | MIG,
        ),
        (Rts, Rts) => (0, STATE | CUR | ALT_PATH | ACCESS | RNR_TIMER | MIG),
        _ => return None,
    };
    Some(match service {
        Service::Rc => (required, optional),
        Service::Uc => (required & !RELIABLE, optional & !RELIABLE),
    })
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
            State::Err,
        ] {
            assert!(allowed(RC, from, State::Reset, STATE));
        }
    }
}
