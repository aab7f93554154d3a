//! Named metrics with a direction, and the one that decides.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Measured values by the names of [`Metric`]s.
pub type Values = BTreeMap<String, f64>;

/// A number that a task reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Metric {
    /// Name in files and JSON.
    pub name: Cow<'static, str>,
    /// Label in tables and figures.
    pub label: Cow<'static, str>,
    pub better: Better,
    pub unit: Unit,
}

/// Whether higher or lower values are better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    Higher,
    Lower,
}

/// How a metric is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A fraction from 0 to 1, shown times 100.
    Percent,
    Number,
}

impl Metric {
    #[must_use]
    pub const fn new(name: &'static str, label: &'static str, better: Better, unit: Unit) -> Self {
        Self { name: Cow::Borrowed(name), label: Cow::Borrowed(label), better, unit }
    }

    /// The value as a score: higher is always better.
    #[must_use]
    pub const fn score(&self, value: f64) -> f64 {
        match self.better {
            Better::Higher => value,
            Better::Lower => -value,
        }
    }

    /// The value in the unit of tables and figures.
    #[must_use]
    pub const fn scaled(&self, value: f64) -> f64 {
        match self.unit {
            Unit::Percent => 100.0 * value,
            Unit::Number => value,
        }
    }

    /// The label with its unit, for a column or an axis.
    #[must_use]
    pub fn heading(&self) -> String {
        match self.unit {
            Unit::Percent => format!("{} %", self.label),
            Unit::Number => self.label.to_string(),
        }
    }

    /// The formatted value.
    #[must_use]
    pub fn show(&self, value: f64) -> String {
        match self.unit {
            _ if !value.is_finite() => "not measured".into(),
            Unit::Percent => format!("{:.2} %", 100.0 * value),
            // losses need four decimals, scores up to 100 two
            Unit::Number if value.abs() < 10.0 => format!("{value:.4}"),
            Unit::Number => format!("{value:.2}"),
        }
    }
}

/// What a run reports: `task.json` of its folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskInfo {
    /// The `task` of its recipe.
    pub task: Cow<'static, str>,
    /// The name of the metric that decides which epoch is the best.
    pub primary: Cow<'static, str>,
    /// The items of training speed, such as pictures.
    pub items: Cow<'static, str>,
    pub metrics: Cow<'static, [Metric]>,
}

impl TaskInfo {
    /// The metric that decides.
    ///
    /// # Panics
    /// When `primary` names none of the metrics: [`read`](Self::read) refuses that.
    #[must_use]
    pub fn primary(&self) -> &Metric {
        self.metric(&self.primary).expect("the metric that decides is one of the metrics")
    }

    #[must_use]
    pub fn metric(&self, name: &str) -> Option<&Metric> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// Reads the text of `task.json`.
    ///
    /// # Errors
    /// Why it is invalid.
    pub fn read(text: &str) -> Result<Self, String> {
        let info: Self = serde_json::from_str(text).map_err(|error| error.to_string())?;
        match info.metric(&info.primary) {
            Some(_) => Ok(info),
            None => Err(format!("`{}` is not one of its metrics", info.primary)),
        }
    }

    /// All measured metrics, formatted: `top-1 accuracy 81.20 %`.
    #[must_use]
    pub fn show(&self, values: &Values) -> String {
        let shown = self.metrics.iter().filter_map(|metric| {
            let value = values.get(metric.name.as_ref())?;
            Some(format!("{} {}", metric.label, metric.show(*value)))
        });
        shown.collect::<Vec<_>>().join("  ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOSS: Metric = Metric::new("loss", "loss", Better::Lower, Unit::Number);
    const TOP1: Metric = Metric::new("top1", "top-1 accuracy", Better::Higher, Unit::Percent);

    fn info() -> TaskInfo {
        TaskInfo {
            task: "classify".into(),
            primary: "loss".into(),
            items: "pictures".into(),
            metrics: vec![TOP1, LOSS].into(),
        }
    }

    #[test]
    fn a_better_value_has_the_higher_score_whichever_way_is_better() {
        assert!(LOSS.score(0.5) > LOSS.score(0.7) && TOP1.score(0.7) > TOP1.score(0.5));
    }

    #[test]
    fn what_a_run_reports_comes_back_from_its_file_and_a_stranger_that_decides_is_refused() {
        let text = serde_json::to_string(&info()).unwrap();
        assert_eq!(TaskInfo::read(&text).unwrap(), info());
        assert_eq!(info().primary(), &LOSS);
        assert!(TaskInfo::read(&text.replace(r#""primary":"loss""#, r#""primary":"bleu""#)).is_err());
    }

    #[test]
    fn values_are_shown_with_their_unit_and_what_was_not_measured_is_left_out() {
        let values = Values::from([("top1".to_string(), 0.81205)]);
        assert_eq!(info().show(&values), "top-1 accuracy 81.20 %");
        assert_eq!(
            (LOSS.show(1.5), LOSS.show(47.561), LOSS.show(f64::NAN)),
            ("1.5000".into(), "47.56".into(), "not measured".to_string())
        );
    }
}
