//! Figures for the crate `metrics`, with the feature of that name.
//!
//! One table for each kind of figures says what there is: names, units and what they mean. Snapshots are published by whoever wants them
//! published; nothing is on the path of calls, and there is no thread.

use crate::client::ClientStats;
use crate::histogram::Histogram;
use crate::server::ServerStats;
use ::metrics::{Counter, Gauge, Key, Label, Level, Metadata, Recorder, Unit, with_recorder};

/// What only grows: name, unit, meaning, and where it is.
type Total<S> = (&'static str, Unit, &'static str, fn(&S) -> u64);
/// What goes up and down.
type Gauged<S> = (&'static str, Unit, &'static str, fn(&S) -> f64);

const CLIENT: &[Total<ClientStats>] = &[
    (
        "rpc_client_calls_total",
        Unit::Count,
        "Requests sent",
        |s| s.calls,
    ),
    (
        "rpc_client_failed_total",
        Unit::Count,
        "Calls that ended with an answer other than a reply, or with the connection",
        |s| s.failed,
    ),
    (
        "rpc_client_expired_total",
        Unit::Count,
        "Calls given up on at their deadline",
        |s| s.expired,
    ),
    (
        "rpc_client_sent_bytes_total",
        Unit::Bytes,
        "Payloads sent",
        |s| s.bytes_sent,
    ),
    (
        "rpc_client_received_bytes_total",
        Unit::Bytes,
        "Replies received",
        |s| s.bytes_received,
    ),
    (
        "rpc_client_credit_stalls_total",
        Unit::Count,
        "Times that a request had to wait for a slot or a credit",
        |s| s.credit_stalls,
    ),
    (
        "rpc_client_batches_total",
        Unit::Count,
        "Batches of requests posted with one doorbell",
        |s| s.batches,
    ),
    (
        "rpc_client_batched_total",
        Unit::Count,
        "Requests in batches",
        |s| s.batched,
    ),
    (
        "rpc_client_reconnects_total",
        Unit::Count,
        "Times that the client has connected again",
        |s| s.reconnects,
    ),
    (
        "rpc_client_resent_total",
        Unit::Count,
        "Times that an idempotent request was sent again",
        |s| s.resent,
    ),
    (
        "rpc_client_copies_total",
        Unit::Count,
        "Payloads or segments that had to be copied",
        |s| s.copies,
    ),
    (
        "rpc_client_copied_bytes_total",
        Unit::Bytes,
        "What had to be copied",
        |s| s.bytes_copied,
    ),
    (
        "rpc_client_reads_total",
        Unit::Count,
        "READs of large replies",
        |s| s.reads,
    ),
    (
        "rpc_client_fetches_total",
        Unit::Count,
        "READs of the server's shelf",
        |s| s.fetches,
    ),
    (
        "rpc_client_fetched_total",
        Unit::Count,
        "Replies fetched from the server's shelf",
        |s| s.fetched,
    ),
    (
        "rpc_client_fetch_misses_total",
        Unit::Count,
        "READs of the server's shelf that found no reply",
        |s| s.fetch_misses,
    ),
    (
        "rpc_client_wasted_bytes_total",
        Unit::Bytes,
        "What READs of the server's shelf fetched in vain",
        |s| s.bytes_wasted,
    ),
    (
        "rpc_client_switches_total",
        Unit::Count,
        "Times that a hybrid connection went from fetching to pushing or back",
        |s| s.switches,
    ),
    (
        "rpc_client_rnr_total",
        Unit::Count,
        "Times that the server was not ready to receive: always 0",
        |s| s.rnr,
    ),
];

const CLIENT_GAUGES: &[Gauged<ClientStats>] = &[
    (
        "rpc_client_fetch_first_bytes",
        Unit::Bytes,
        "What the first READ for a reply fetches; 0 while replies are pushed",
        |s| s.fetch_first as f64,
    ),
    (
        "rpc_client_measured_calls",
        Unit::Count,
        "Calls that the latencies are of",
        |s| s.latency.count() as f64,
    ),
    (LATENCY_MAX, Unit::Seconds, "The longest call", |s| {
        s.max.as_secs_f64()
    }),
];

const LATENCY: &str = "rpc_client_latency_seconds";
const LATENCY_MAX: &str = "rpc_client_latency_max_seconds";
const QUANTILES: [(f64, &str); 4] = [(0.5, "0.5"), (0.9, "0.9"), (0.99, "0.99"), (0.999, "0.999")];

const SERVER: &[Total<ServerStats>] = &[
    (
        "rpc_server_accepted_total",
        Unit::Count,
        "TCP connections accepted",
        |s| s.accepted,
    ),
    (
        "rpc_server_refused_total",
        Unit::Count,
        "Connections refused: terms, limits, memory or device",
        |s| s.refused,
    ),
    (
        "rpc_server_garbage_total",
        Unit::Count,
        "TCP connections that said something other than hello, or hung up before",
        |s| s.garbage,
    ),
    (
        "rpc_server_timed_out_total",
        Unit::Count,
        "TCP connections that took too long to say hello",
        |s| s.timed_out,
    ),
    (
        "rpc_server_evicted_total",
        Unit::Count,
        "TCP connections let go for newer ones",
        |s| s.evicted,
    ),
    (
        "rpc_server_broken_total",
        Unit::Count,
        "Connections that ended by an error of the device or a violation of the protocol",
        |s| s.broken,
    ),
    (
        "rpc_server_calls_total",
        Unit::Count,
        "Requests handed to handlers",
        |s| s.calls,
    ),
    (
        "rpc_server_failed_total",
        Unit::Count,
        "Requests answered with an error",
        |s| s.failed,
    ),
    (
        "rpc_server_panics_total",
        Unit::Count,
        "Handlers that panicked",
        |s| s.panics,
    ),
    (
        "rpc_server_expired_total",
        Unit::Count,
        "Requests not started because their callers' time was over",
        |s| s.expired,
    ),
    (
        "rpc_server_overloaded_total",
        Unit::Count,
        "Requests not started for want of memory or by limits",
        |s| s.overloaded,
    ),
    (
        "rpc_server_answer_stalls_total",
        Unit::Count,
        "Answers that had to wait for room in the send queue, or for memory",
        |s| s.answer_stalls,
    ),
    (
        "rpc_server_turned_away_total",
        Unit::Count,
        "Requests not started because the server was stopping",
        |s| s.turned_away,
    ),
    (
        "rpc_server_received_bytes_total",
        Unit::Bytes,
        "Requests received",
        |s| s.bytes_received,
    ),
    (
        "rpc_server_sent_bytes_total",
        Unit::Bytes,
        "Replies sent",
        |s| s.bytes_sent,
    ),
    (
        "rpc_server_reads_total",
        Unit::Count,
        "READs of large requests",
        |s| s.reads,
    ),
    (
        "rpc_server_copies_total",
        Unit::Count,
        "Replies or segments that had to be copied",
        |s| s.copies,
    ),
    (
        "rpc_server_copied_bytes_total",
        Unit::Bytes,
        "What had to be copied",
        |s| s.bytes_copied,
    ),
    (
        "rpc_server_rnr_total",
        Unit::Count,
        "Times that a client was not ready to receive: always 0",
        |s| s.rnr,
    ),
];

const SERVER_GAUGES: &[Gauged<ServerStats>] = &[
    (
        "rpc_server_connections",
        Unit::Count,
        "Connections open",
        |s| s.connections as f64,
    ),
    (
        "rpc_server_polled_connections",
        Unit::Count,
        "Connections whose rings are polled just now",
        |s| s.polled as f64,
    ),
];

/// Tells the recorder of the crate `metrics` units and meanings of all that [`ClientStats::publish`] and [`ServerStats::publish`] publish. Once is enough.
pub fn describe_metrics() {
    with_recorder(|recorder| {
        describe(recorder, CLIENT, CLIENT_GAUGES);
        describe(recorder, SERVER, SERVER_GAUGES);
        let what = "What the share of calls in the label `quantile` took no longer than";
        recorder.describe_gauge(LATENCY.into(), Some(Unit::Seconds), what.into());
    });
}

fn describe<S>(recorder: &dyn Recorder, totals: &[Total<S>], gauges: &[Gauged<S>]) {
    for &(name, unit, what, _) in totals {
        recorder.describe_counter(name.into(), Some(unit), what.into());
    }
    for &(name, unit, what, _) in gauges {
        recorder.describe_gauge(name.into(), Some(unit), what.into());
    }
}

impl ClientStats {
    /// Publishes the figures by the recorder of the crate `metrics`, each with these labels.
    ///
    /// Counters, set to what has been counted since the client was made:
    /// `rpc_client_` and `calls_total`, `failed_total`, `expired_total`, `sent_bytes_total`, `received_bytes_total`, `credit_stalls_total`,
    /// `batches_total`, `batched_total`, `reconnects_total`, `resent_total`, `copies_total`, `copied_bytes_total`, `reads_total`, `fetches_total`,
    /// `fetched_total`, `fetch_misses_total`, `wasted_bytes_total`, `switches_total`, `rnr_total`. Gauges: `rpc_client_fetch_first_bytes`;
    /// `rpc_client_latency_seconds` with the label `quantile` (0.5, 0.9, 0.99, 0.999), once there are any; `rpc_client_latency_max_seconds`; `rpc_client_measured_calls`.
    ///
    /// Looks every one up by name, which allocates: for now and then, a second or so.
    ///
    /// ```
    /// # use rpc::{Client, Deadline, Method, Server};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let server = Server::bind("127.0.0.1:0")?.serve(|_core| {
    /// #     |request: rpc::Request<'_>, responder: rpc::Responder| responder.reply(request.body())
    /// # })?;
    /// # let client = Client::connect(server.local_addr())?;
    /// rpc::describe_metrics();
    /// client.stats().publish(&[("service", "files")]);
    /// for (core, stats) in server.core_stats().iter().enumerate() {
    ///     stats.publish(&[("core", &core.to_string())]);
    /// }
    /// # Ok(()) }
    /// ```
    pub fn publish(&self, labels: &[(&str, &str)]) {
        let own = owned(labels);
        with_recorder(|recorder| publish(recorder, self, &own, CLIENT, CLIENT_GAUGES));
        self.latency.publish(LATENCY, labels);
    }
}

impl ServerStats {
    /// Publishes the figures by the recorder of the crate `metrics`, each with these labels.
    ///
    /// Counters, set to what has been counted since the server was started: `rpc_server_` and `accepted_total`, `refused_total`, `garbage_total`, `timed_out_total`,
    /// `evicted_total`, `broken_total`, `calls_total`, `failed_total`, `panics_total`, `expired_total`, `overloaded_total`, `answer_stalls_total`, `turned_away_total`,
    /// `received_bytes_total`, `sent_bytes_total`, `reads_total`, `copies_total`, `copied_bytes_total`, `rnr_total`. Gauges: `rpc_server_connections` and
    /// `rpc_server_polled_connections`.
    ///
    /// Looks every one up by name, which allocates: for now and then, a second or so. For an example see [`ClientStats::publish`].
    pub fn publish(&self, labels: &[(&str, &str)]) {
        let own = owned(labels);
        with_recorder(|recorder| publish(recorder, self, &own, SERVER, SERVER_GAUGES));
    }
}

impl Histogram {
    /// Publishes a gauge of this name by the recorder of the crate `metrics`, in seconds, with these labels and `quantile` (0.5, 0.9, 0.99, 0.999), once something has
    /// been counted. For [`ServerHandle::request_times`](crate::ServerHandle::request_times), for example.
    ///
    /// Looks every one up by name, which allocates.
    pub fn publish(&self, name: &'static str, labels: &[(&str, &str)]) {
        let labels = owned(labels);
        with_recorder(|recorder| {
            for (share, quantile) in QUANTILES {
                if let Some(time) = self.quantile(share) {
                    let mut labels = labels.clone();
                    labels.push(Label::from_static_parts("quantile", quantile));
                    gauge(recorder, name, labels).set(time.as_secs_f64());
                }
            }
        });
    }
}

fn owned(labels: &[(&str, &str)]) -> Vec<Label> {
    let label = |&(name, value): &(&str, &str)| Label::new(name.to_owned(), value.to_owned());
    labels.iter().map(label).collect()
}

fn publish<S>(
    recorder: &dyn Recorder,
    stats: &S,
    labels: &[Label],
    totals: &[Total<S>],
    gauges: &[Gauged<S>],
) {
    for (name, _, _, of) in totals {
        counter(recorder, name, labels.to_vec()).absolute(of(stats));
    }
    for (name, _, _, of) in gauges {
        gauge(recorder, name, labels.to_vec()).set(of(stats));
    }
}

const METADATA: Metadata<'static> = Metadata::new("rpc", Level::INFO, Some(module_path!()));

fn counter(recorder: &dyn Recorder, name: &'static str, labels: Vec<Label>) -> Counter {
    recorder.register_counter(&Key::from_parts(name, labels), &METADATA)
}

fn gauge(recorder: &dyn Recorder, name: &'static str, labels: Vec<Label>) -> Gauge {
    recorder.register_gauge(&Key::from_parts(name, labels), &METADATA)
}
