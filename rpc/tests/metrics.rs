//! What snapshots publish.

mod common;

use common::*;
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Keeps what is published, by name and labels.
#[derive(Default)]
struct Keep {
    counters: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    gauges: Mutex<BTreeMap<String, Arc<AtomicU64>>>,
    described: Mutex<BTreeMap<String, Unit>>,
}

fn name(key: &Key) -> String {
    let labels = key.labels().map(|l| format!(" {}={}", l.key(), l.value()));
    key.name().to_owned() + &labels.collect::<String>()
}

impl Keep {
    fn describe(&self, key: &KeyName, unit: Option<Unit>, what: &str) {
        assert!(!what.is_empty());
        let mut described = self.described.lock().unwrap();
        let before = described.insert(key.as_str().to_owned(), unit.expect("a unit"));
        assert_eq!(before, None, "{key:?} twice");
    }

    fn count(&self, name: &str) -> u64 {
        let counters = self.counters.lock().unwrap();
        let found = counters.get(name);
        found
            .unwrap_or_else(|| panic!("{name}"))
            .load(Ordering::Relaxed)
    }

    fn gauge(&self, name: &str) -> f64 {
        let gauges = self.gauges.lock().unwrap();
        let found = gauges.get(name).unwrap_or_else(|| panic!("{name}"));
        f64::from_bits(found.load(Ordering::Relaxed))
    }
}

impl Recorder for Keep {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&key, unit, &what);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&key, unit, &what);
    }

    fn describe_histogram(&self, key: KeyName, _: Option<Unit>, _: SharedString) {
        panic!("{key:?}: there are none");
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let mut counters = self.counters.lock().unwrap();
        Counter::from_arc(Arc::clone(counters.entry(name(key)).or_default()))
    }

    fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
        let mut gauges = self.gauges.lock().unwrap();
        Gauge::from_arc(Arc::clone(gauges.entry(name(key)).or_default()))
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        panic!("{key:?}: there are none");
    }
}

#[test]
fn snapshots_are_published_whole() {
    bounded(|| {
        let keep = Keep::default();
        let server = serve(server().cores(2));
        let mut client = client(&server);
        let labels = [("service", "files"), ("zone", "a")];
        with_local_recorder(&keep, || client.stats().publish(&labels));
        let of = |name: &str| format!("rpc_client_{name} service=files zone=a");
        assert_eq!(keep.count(&of("calls_total")), 0);
        let quantiled = |share: &str| of("latency_seconds") + " quantile=" + share;
        assert!(!keep.gauges.lock().unwrap().contains_key(&quantiled("0.5")));

        for _ in 0..20 {
            client.call(ECHO, [1; 10], patient()).unwrap();
        }
        client.call(PANIC, "", patient()).unwrap_err();
        let (stats, served) = (client.stats(), server.stats());
        with_local_recorder(&keep, || {
            stats.publish(&labels);
            // Counters are set, not added to.
            stats.publish(&labels);
            served.publish(&[]);
            for (core, stats) in server.core_stats().iter().enumerate() {
                stats.publish(&[("core", &core.to_string())]);
            }
        });
        assert_eq!(keep.count(&of("calls_total")), 21);
        assert_eq!(keep.count(&of("failed_total")), 1);
        assert_eq!(keep.count(&of("sent_bytes_total")), 200);
        assert_eq!(
            keep.count(&of("received_bytes_total")),
            stats.bytes_received
        );
        let max = keep.gauge(&of("latency_max_seconds"));
        assert!((max - stats.max.as_secs_f64()).abs() < 1e-12 && max > 0.0);
        let measured = keep.gauge(&of("measured_calls"));
        assert_eq!(measured as u64, stats.latency.count());
        let shares = ["0.5", "0.9", "0.99", "0.999"].map(|share| keep.gauge(&quantiled(share)));
        assert!(
            shares.is_sorted() && shares[0] > 0.0 && shares[3] <= max,
            "{shares:?}"
        );
        assert!((shares[0] - stats.p50.as_secs_f64()).abs() < 1e-12);
        assert!((shares[2] - stats.p99.as_secs_f64()).abs() < 1e-12);

        assert_eq!(keep.count("rpc_server_calls_total"), 21);
        assert_eq!(keep.count("rpc_server_panics_total"), 1);
        assert_eq!(keep.count("rpc_server_accepted_total"), 1);
        assert_eq!(keep.gauge("rpc_server_connections") as u64, 1);
        assert_eq!(keep.count("rpc_server_calls_total core=0"), 21);
        assert_eq!(keep.count("rpc_server_calls_total core=1"), 0);
        assert_eq!(keep.gauge("rpc_server_connections core=1") as u64, 0);
    });
}

#[test]
fn everything_published_is_described_with_its_unit() {
    bounded(|| {
        let keep = Keep::default();
        let server = serve(server());
        let mut client = client(&server);
        client.call(ECHO, "", patient()).unwrap();
        with_local_recorder(&keep, || {
            rpc::describe_metrics();
            client.stats().publish(&[]);
            server.stats().publish(&[]);
        });
        let mut published: Vec<String> = keep.counters.lock().unwrap().keys().cloned().collect();
        assert!(published.iter().all(|name| name.ends_with("_total")));
        published.extend(keep.gauges.lock().unwrap().keys().cloned());
        for name in &mut published {
            name.truncate(name.find(' ').unwrap_or(name.len()));
        }
        published.sort();
        published.dedup();
        let described = keep.described.lock().unwrap();
        assert!(
            published.iter().eq(described.keys()),
            "{published:#?} {described:#?}"
        );
        for (name, unit) in described.iter() {
            assert_eq!(name.contains("bytes"), *unit == Unit::Bytes, "{name}");
            assert_eq!(name.contains("seconds"), *unit == Unit::Seconds, "{name}");
        }
    });
}
