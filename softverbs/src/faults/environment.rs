//! Faults by the environment: for programs that cannot be changed, and for the other process of a test.
//!
//! `VERBATIM_FAULTS` holds faults separated by `;`, each a name and, after a `:`, settings separated by `,`. They are put in force
//! when the process first lists or opens the device, and stay.
//!
//! | fault | settings (those in brackets may be left out) |
//! |---|---|
//! | `delay` | `by=TIME` `[qp=N]` |
//! | `rnr` | `times=N` `[qp=N]` |
//! | `at` | `step=checked\|hazard\|copied\|told\|left\|woken` `do=kill\|stop\|STATUS` `[nth=N]` `[qp=N]` |
//! | `cq-overflow` | `[nth=N]` `[cq=N]` |
//! | `verb` | `name=VERB` `errno=ERRNO` `[nth=N]` |
//! | `no-immediate` | |
//! | `reversed` | |
//!
//! TIME is a number with the unit `us`, `ms` or `s`. N is decimal, or hexadecimal after `0x`; `nth` counts from 1, which it is if left
//! out. VERB is named as the function is, without `ibv_`. ERRNO is a name such as `ENOMEM`, or a number. STATUS is what a work request
//! completes with, named as the constant is, without `IBV_WC_`. Spaces around everything are ignored.
//!
//! ```sh
//! VERBATIM_FAULTS='verb:name=reg_mr,errno=ENOMEM,nth=3; at:step=copied,do=kill,nth=100' program
//! ```

use super::{Action, Fault, Injected, Step, Verb, inject};
use std::sync::OnceLock;
use std::time::Duration;

/// The variable.
const VARIABLE: &str = "VERBATIM_FAULTS";

/// What is wrong with `VERBATIM_FAULTS`. The device does not open with such a value: `ibv_open_device` fails with `EINVAL`, and this
/// is the explanation.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "VERBATIM_FAULTS is malformed: {problem} in \"{fault}\"; see the documentation of softverbs::faults, or unset it"
)]
pub struct Malformed {
    /// The fault, as it stands there.
    pub fault: String,
    /// What is wrong with it.
    pub problem: String,
}

/// Puts the faults of the environment in force, at the first call in this process.
///
/// # Errors
///
/// The value is malformed; then none of it is in force.
pub fn environment() -> Result<(), Malformed> {
    static FAULTS: OnceLock<Result<Vec<Injected>, Malformed>> = OnceLock::new();
    let faults = FAULTS.get_or_init(|| {
        let value = match std::env::var(VARIABLE) {
            Ok(value) => value,
            Err(std::env::VarError::NotPresent) => return Ok(Vec::new()),
            Err(std::env::VarError::NotUnicode(value)) => {
                return Err(malformed(
                    &value.to_string_lossy(),
                    "bytes that are no UTF-8",
                ));
            }
        };
        Ok(parse(&value)?.into_iter().map(inject).collect())
    });
    faults.as_ref().map(|_| ()).map_err(Malformed::clone)
}

fn malformed(fault: &str, problem: impl Into<String>) -> Malformed {
    Malformed {
        fault: fault.trim().to_owned(),
        problem: problem.into(),
    }
}

/// The faults that a value describes.
fn parse(value: &str) -> Result<Vec<Fault>, Malformed> {
    let faults = value.split(';').filter(|fault| !fault.trim().is_empty());
    faults
        .map(|fault| parse_one(fault).map_err(|problem| malformed(fault, problem)))
        .collect()
}

/// The settings of a fault that nobody has asked for yet.
struct Settings<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Settings<'a> {
    fn new(text: &'a str) -> Result<Settings<'a>, String> {
        let mut settings: Vec<(&str, &str)> = Vec::new();
        for setting in text.split(',').filter(|s| !s.trim().is_empty()) {
            let pair = setting.split_once('=');
            let (key, value) = pair.ok_or(format!("no \"=\" after \"{}\"", setting.trim()))?;
            let (key, value) = (key.trim(), value.trim());
            if settings.iter().any(|(have, _)| *have == key) {
                return Err(format!("\"{key}\" twice"));
            }
            settings.push((key, value));
        }
        Ok(Settings(settings))
    }

    fn optional<T>(
        &mut self,
        key: &str,
        value_of: impl Fn(&str) -> Result<T, String>,
    ) -> Result<Option<T>, String> {
        let Some(at) = self.0.iter().position(|(have, _)| *have == key) else {
            return Ok(None);
        };
        let (_, value) = self.0.remove(at);
        match value_of(value) {
            Ok(value) => Ok(Some(value)),
            Err(expected) => Err(format!("{key}={value}, which is no {expected},")),
        }
    }

    fn required<T>(
        &mut self,
        key: &str,
        value_of: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, String> {
        self.optional(key, value_of)?
            .ok_or(format!("no \"{key}=\""))
    }

    fn nth(&mut self) -> Result<u64, String> {
        Ok(self.optional("nth", count)?.unwrap_or(1))
    }

    fn qp(&mut self) -> Result<Option<u32>, String> {
        self.optional("qp", number)
    }
}

fn parse_one(text: &str) -> Result<Fault, String> {
    let (name, settings) = text.split_once(':').unwrap_or((text, ""));
    let mut settings = Settings::new(settings)?;
    let fault = match name.trim() {
        "delay" => Fault::Delay {
            qp: settings.qp()?,
            by: settings.required("by", duration)?,
        },
        "rnr" => Fault::ReceiverNotReady {
            qp: settings.qp()?,
            times: settings.required("times", count)?,
        },
        "at" => Fault::At {
            qp: settings.qp()?,
            step: settings.required("step", |v| one_of(v, &STEPS, "step"))?,
            nth: settings.nth()?,
            action: settings.required("do", action)?,
        },
        "cq-overflow" => Fault::CqOverflow {
            cq: settings.optional("cq", number)?,
            nth: settings.nth()?,
        },
        "verb" => Fault::Verb {
            verb: settings.required("name", |v| {
                one_of(v, &VERBS, "verb that can be made to fail")
            })?,
            nth: settings.nth()?,
            errno: settings.required("errno", errno)?,
        },
        "no-immediate" => Fault::NoImmediate,
        "reversed" => Fault::Reversed,
        other => return Err(format!("no fault is called \"{other}\", as it is")),
    };
    match settings.0.first() {
        None => Ok(fault),
        Some((key, _)) => Err(format!(
            "\"{key}\", which \"{}\" does not have,",
            name.trim()
        )),
    }
}

fn number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    number.map_err(|_| "number of 32 bits".to_owned())
}

fn count(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(count) if count > 0 => Ok(count),
        _ => Err("number from 1 on".to_owned()),
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit = match text[digits.len()..].trim() {
        "us" => Some(Duration::from_micros(1)),
        "ms" => Some(Duration::from_millis(1)),
        "s" => Some(Duration::from_secs(1)),
        _ => None,
    };
    let time = unit.and_then(|unit| unit.checked_mul(digits.parse().ok()?));
    time.ok_or("time with a unit, us, ms or s".to_owned())
}

fn one_of<T: Copy>(text: &str, names: &[(&str, T)], what: &str) -> Result<T, String> {
    let found = names.iter().find(|(name, _)| *name == text);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = names.iter().map(|(name, _)| *name).collect();
        format!("{what} ({})", names.join(", "))
    })
}

fn action(text: &str) -> Result<Action, String> {
    match text {
        "kill" => Ok(Action::Kill),
        "stop" => Ok(Action::Stop),
        status => {
            one_of(status, &STATUSES, "kill, stop or status").map(|status| Action::Error(status.0))
        }
    }
}

fn errno(text: &str) -> Result<i32, String> {
    match text.parse() {
        Ok(errno @ 1..4096) => Ok(errno),
        _ => one_of(text, &ERRNOS, "errno: a number"),
    }
}

const STEPS: [(&str, Step); Step::ALL.len()] = [
    ("checked", Step::Checked),
    ("hazard", Step::Hazard),
    ("copied", Step::Copied),
    ("told", Step::Told),
    ("left", Step::Left),
    ("woken", Step::Woken),
];

const VERBS: [(&str, Verb); 12] = [
    ("open_device", Verb::OpenDevice),
    ("alloc_pd", Verb::AllocPd),
    ("reg_mr", Verb::RegMr),
    ("dereg_mr", Verb::DeregMr),
    ("create_comp_channel", Verb::CreateCompChannel),
    ("create_cq", Verb::CreateCq),
    ("req_notify_cq", Verb::ReqNotifyCq),
    ("create_qp", Verb::CreateQp),
    ("modify_qp", Verb::ModifyQp),
    ("destroy_qp", Verb::DestroyQp),
    ("post_send", Verb::PostSend),
    ("post_recv", Verb::PostRecv),
];

macro_rules! named {
    ($name:ident: $type:ty = $prefix:ident { $($constant:ident)* } ) => {
        const $name: [(&str, $type); [$(stringify!($constant)),*].len()] =
            [$((stringify!($constant), $prefix::$constant)),*];
    };
}

use libc as errnos;
named!(ERRNOS: i32 = errnos {
    EPERM ENOENT ESRCH EINTR EIO EAGAIN ENOMEM EACCES EFAULT EBUSY ENODEV EINVAL EMFILE ENOSPC ENOSYS EPROTO EOPNOTSUPP
    ENETUNREACH ENOBUFS ETIMEDOUT EHOSTUNREACH
});

use ibverbs_sys::ibv_wc_status as Status;
const STATUSES: [(&str, Status); 14] = [
    ("LOC_LEN_ERR", Status::IBV_WC_LOC_LEN_ERR),
    ("LOC_QP_OP_ERR", Status::IBV_WC_LOC_QP_OP_ERR),
    ("LOC_PROT_ERR", Status::IBV_WC_LOC_PROT_ERR),
    ("WR_FLUSH_ERR", Status::IBV_WC_WR_FLUSH_ERR),
    ("MW_BIND_ERR", Status::IBV_WC_MW_BIND_ERR),
    ("BAD_RESP_ERR", Status::IBV_WC_BAD_RESP_ERR),
    ("LOC_ACCESS_ERR", Status::IBV_WC_LOC_ACCESS_ERR),
    ("REM_INV_REQ_ERR", Status::IBV_WC_REM_INV_REQ_ERR),
    ("REM_ACCESS_ERR", Status::IBV_WC_REM_ACCESS_ERR),
    ("REM_OP_ERR", Status::IBV_WC_REM_OP_ERR),
    ("RETRY_EXC_ERR", Status::IBV_WC_RETRY_EXC_ERR),
    ("RNR_RETRY_EXC_ERR", Status::IBV_WC_RNR_RETRY_EXC_ERR),
    ("FATAL_ERR", Status::IBV_WC_FATAL_ERR),
    ("GENERAL_ERR", Status::IBV_WC_GENERAL_ERR),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault() {
        let expected = [
            (
                "delay:by=5ms",
                Fault::Delay {
                    qp: None,
                    by: Duration::from_millis(5),
                },
            ),
            (
                " delay : qp = 0x10 , by = 7 us ",
                Fault::Delay {
                    qp: Some(16),
                    by: Duration::from_micros(7),
                },
            ),
            (
                "rnr:times=3,qp=16386",
                Fault::ReceiverNotReady {
                    qp: Some(16386),
                    times: 3,
                },
            ),
            (
                "at:step=copied,do=kill",
                Fault::At {
                    qp: None,
                    step: Step::Copied,
                    nth: 1,
                    action: Action::Kill,
                },
            ),
            (
                "at:do=REM_OP_ERR,step=woken,nth=9,qp=2",
                Fault::At {
                    qp: Some(2),
                    step: Step::Woken,
                    nth: 9,
                    action: Action::Error(Status::IBV_WC_REM_OP_ERR.0),
                },
            ),
            ("cq-overflow", Fault::CqOverflow { cq: None, nth: 1 }),
            (
                "cq-overflow:cq=3,nth=2",
                Fault::CqOverflow {
                    cq: Some(3),
                    nth: 2,
                },
            ),
            (
                "verb:name=reg_mr,errno=ENOMEM,nth=3",
                Fault::Verb {
                    verb: Verb::RegMr,
                    nth: 3,
                    errno: libc::ENOMEM,
                },
            ),
            (
                "verb:name=post_send,errno=77",
                Fault::Verb {
                    verb: Verb::PostSend,
                    nth: 1,
                    errno: 77,
                },
            ),
            ("no-immediate", Fault::NoImmediate),
            ("reversed", Fault::Reversed),
        ];
        for (text, fault) in expected {
            assert_eq!(parse(text), Ok(vec![fault]), "{text}");
        }
        let all: Vec<&str> = expected.iter().map(|e| e.0).collect();
        let faults = expected.map(|e| e.1).to_vec();
        assert_eq!(parse(&all.join(" ; ")), Ok(faults));
        assert_eq!(parse(" ;; "), Ok(Vec::new()));
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, fault, problem) in [
            ("no-immediate;dely:by=5ms", "dely:by=5ms", "\"dely\""),
            ("delay", "delay", "no \"by=\""),
            ("delay:by=5", "delay:by=5", "us, ms or s"),
            ("delay:by=ms", "delay:by=ms", "us, ms or s"),
            (
                "delay:by=99999999999999999999s",
                "delay:by=99999999999999999999s",
                "us, ms or s",
            ),
            ("delay:by=5ms,by=6ms", "delay:by=5ms,by=6ms", "\"by\" twice"),
            ("delay:5ms", "delay:5ms", "no \"=\" after \"5ms\""),
            ("delay:by=5ms,nth=2", "delay:by=5ms,nth=2", "\"nth\""),
            ("rnr:times=0", "rnr:times=0", "times=0"),
            ("rnr:times=-1", "rnr:times=-1", "number from 1 on"),
            (
                "rnr:times=1,qp=0x1ffffffff",
                "rnr:times=1,qp=0x1ffffffff",
                "32 bits",
            ),
            (
                "at:step=copy,do=kill",
                "at:step=copy,do=kill",
                "checked, hazard",
            ),
            (
                "at:step=copied,do=die",
                "at:step=copied,do=die",
                "kill, stop or status",
            ),
            ("at:step=copied", "at:step=copied", "no \"do=\""),
            (
                "verb:name=ibv_reg_mr,errno=1",
                "verb:name=ibv_reg_mr,errno=1",
                "reg_mr",
            ),
            (
                "verb:name=reg_mr,errno=EWHAT",
                "verb:name=reg_mr,errno=EWHAT",
                "ENOMEM",
            ),
            (
                "verb:name=reg_mr,errno=0",
                "verb:name=reg_mr,errno=0",
                "errno=0",
            ),
            ("no-immediate:qp=3", "no-immediate:qp=3", "\"qp\""),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.fault, fault);
            assert!(error.problem.contains(problem), "{text}: {error}");
            assert!(error.to_string().contains(fault), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read(text in "\\PC{0,40}|(delay|rnr|at|verb)[:,;=a-z0-9 ]{0,30}") {
            let _ = parse(&text);
        }
    }
}
