//! What is counted, in the text format of Prometheus.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use std::time::Duration;

use crate::lane::Watch;
use crate::settings::{Event, Tell};

/// The content type of what [`Meters::text`] gives.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Answer {
    route: String,
    status: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Route {
    route: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Model {
    model: String,
}

pub struct Meters {
    registry: Registry,
    answers: Family<Answer, Counter>,
    seconds: Family<Route, Histogram>,
    batches: Family<Model, Histogram>,
    taken: Family<Model, Gauge>,
    given_up: Family<Model, Counter>,
    panics: Family<Model, Counter>,
    loads: Family<Model, Counter>,
    pub connections: Gauge,
}

impl Meters {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix("regard");
        let answers = Family::<Answer, Counter>::default();
        registry.register("requests", "requests that were answered", answers.clone());
        // from half a millisecond to half a minute
        let seconds: Family<Route, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.0005, 2.0, 17)));
        registry.register("request_seconds", "from the head of a request to its answer", seconds.clone());
        let batches: Family<Model, Histogram> =
            Family::new_with_constructor(|| Histogram::new(exponential_buckets(1.0, 2.0, 8)));
        registry.register("batch_size", "pictures or sentences that were answered together", batches.clone());
        let taken = Family::<Model, Gauge>::default();
        registry.register("queue_places", "pictures or sentences that are on their way", taken.clone());
        let given_up = Family::<Model, Counter>::default();
        registry.register("given_up", "requests whose client left before their turn", given_up.clone());
        let panics = Family::<Model, Counter>::default();
        registry.register("panics", "batches that failed by a bug", panics.clone());
        let loads = Family::<Model, Counter>::default();
        registry.register("loads", "times that a model was loaded", loads.clone());
        let connections = Gauge::default();
        registry.register("connections", "connections that are open", connections.clone());
        Self { registry, answers, seconds, batches, taken, given_up, panics, loads, connections }
    }

    pub fn answered(&self, route: &str, status: u16, time: Duration) {
        let route = route.to_string();
        self.answers.get_or_create(&Answer { route: route.clone(), status: status.into() }).inc();
        self.seconds.get_or_create(&Route { route }).observe(time.as_secs_f64());
    }

    pub fn loaded(&self, name: &str) {
        self.loads.get_or_create(&Model { model: name.into() }).inc();
    }

    /// Everything, with how many are in the queue of each model now.
    pub fn text<'a>(&self, queues: impl Iterator<Item = (&'a str, usize)>) -> String {
        for (model, taken) in queues {
            self.taken.get_or_create(&Model { model: model.into() }).set(taken as i64);
        }
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a string takes everything");
        text
    }

    /// Who counts for the lane of a model.
    pub fn watch(&self, name: &str, tell: Tell) -> impl Watch + use<> {
        let model = Model { model: name.into() };
        LaneMeters {
            batches: self.batches.get_or_create_owned(&model),
            given_up: self.given_up.get_or_create_owned(&model),
            panics: self.panics.get_or_create_owned(&model),
            tell,
        }
    }
}

struct LaneMeters {
    batches: Histogram,
    given_up: Counter,
    panics: Counter,
    tell: Tell,
}

impl Watch for LaneMeters {
    fn batch(&self, size: usize) {
        self.batches.observe(size as f64);
    }

    fn given_up(&self) {
        self.given_up.inc();
    }

    fn panicked(&self, message: String) {
        self.panics.inc();
        (self.tell)(Event::Panicked { message });
    }
}
