//! Metrics, in the text format of Prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

use crate::lane::LaneObserver;
use crate::settings::{Event, Tell};

/// The content type of [`Metrics::text`].
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: String,
    status: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RouteLabels {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabels {
    model: String,
}

pub struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    seconds: Family<RouteLabels, Histogram>,
    batches: Family<ModelLabels, Histogram>,
    in_use: Family<ModelLabels, Gauge>,
    abandoned: Family<ModelLabels, Counter>,
    panics: Family<ModelLabels, Counter>,
    loads: Family<ModelLabels, Counter>,
    connections: Gauge,
}

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("regard");
        let requests = Family::<RequestLabels, Counter>::default();
        registry.register("requests", "requests that were answered", requests.clone());
        // from half a millisecond to half a minute
        let seconds: Family<RouteLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 2.0, 17)));
        registry.register("request_seconds", "from the head of a request to its answer", seconds.clone());
        let batches: Family<ModelLabels, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 8)));
        registry.register("batch_size", "pictures or sentences that were answered together", batches.clone());
        let in_use = Family::<ModelLabels, Gauge>::default();
        registry.register("queue_places", "pictures or sentences that are queued or being answered", in_use.clone());
        let abandoned = Family::<ModelLabels, Counter>::default();
        registry.register("given_up", "requests whose client left before their turn", abandoned.clone());
        let panics = Family::<ModelLabels, Counter>::default();
        registry.register("panics", "batches that failed by a bug", panics.clone());
        let loads = Family::<ModelLabels, Counter>::default();
        registry.register("loads", "times that a model was loaded", loads.clone());
        let connections = Gauge::default();
        registry.register("connections", "connections that are open", connections.clone());
        Self { registry, requests, seconds, batches, in_use, abandoned, panics, loads, connections }
    }

    pub fn on_response(&self, route: &str, status: u16, time: Duration) {
        let route = route.to_string();
        self.requests.get_or_create(&RequestLabels { route: route.clone(), status: status.into() }).inc();
        self.seconds.get_or_create(&RouteLabels { route }).observe(time.as_secs_f64());
    }

    /// Counts a connection until this is dropped.
    pub fn open_connection(&self) -> OpenConnection {
        self.connections.inc();
        OpenConnection(self.connections.clone())
    }

    pub fn on_load(&self, name: &str) {
        self.loads.get_or_create(&ModelLabels { model: name.into() }).inc();
    }

    /// All metrics, with the current queue length of each model.
    pub fn text<'a>(&self, queues: impl Iterator<Item = (&'a str, usize)>) -> String {
        for (model, in_use) in queues {
            self.in_use.get_or_create(&ModelLabels { model: model.into() }).set(in_use as i64);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }

    /// Counts the events of a model's lane.
    pub fn observer(&self, name: &str, tell: Tell) -> impl LaneObserver + use<> {
        let model = ModelLabels { model: name.into() };
        LaneCounters {
            batches: self.batches.get_or_create_owned(&model),
            abandoned: self.abandoned.get_or_create_owned(&model),
            panics: self.panics.get_or_create_owned(&model),
            tell,
        }
    }
}

/// A connection that is counted.
pub struct OpenConnection(Gauge);

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.dec();
    }
}

struct LaneCounters {
    batches: Histogram,
    abandoned: Counter,
    panics: Counter,
    tell: Tell,
}

impl LaneObserver for LaneCounters {
    fn on_batch(&self, size: usize) {
        self.batches.observe(size as f64);
    }

    fn on_abandoned(&self) {
        self.abandoned.inc();
    }

    fn on_panic(&self, message: String) {
        self.panics.inc();
        (self.tell)(Event::Panicked { message });
    }
}
