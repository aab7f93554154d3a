//! The history of a training run: `metrics.jsonl`, one record per line.

use serde::{Deserialize, Serialize};

use super::metric::{Metric, Values};
use super::number::{or_nan, values_or_nan};
use crate::Error;

/// One step of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps since the beginning of the run, this one included.
    pub step: usize,
    pub epoch: usize,
    #[serde(deserialize_with = "or_nan")]
    pub loss: f64,
    /// The parts of the loss by name, if it has several.
    #[serde(default, skip_serializing_if = "Values::is_empty", deserialize_with = "values_or_nan")]
    pub parts: Values,
    /// Learning rate.
    #[serde(deserialize_with = "or_nan")]
    pub rate: f64,
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// Pictures, tokens or other items of the task per second.
    #[serde(alias = "pictures_per_second", deserialize_with = "or_nan")]
    pub items_per_second: f64,
}

/// The end of an epoch, measured on the validation part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    pub epoch: usize,
    /// Steps since the beginning of the run.
    pub step: usize,
    /// Mean loss of the epoch's steps.
    #[serde(deserialize_with = "or_nan")]
    pub train_loss: f64,
    /// Duration of the epoch in seconds, validation included.
    #[serde(deserialize_with = "or_nan")]
    pub seconds: f64,
    /// The metrics of the task by name.
    #[serde(flatten, deserialize_with = "values_or_nan")]
    pub metrics: Values,
}

/// The end of a run: its best weights, measured once on the test part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestRecord {
    /// The epoch of the weights.
    pub epoch: usize,
    #[serde(flatten, deserialize_with = "values_or_nan")]
    pub metrics: Values,
}

impl EpochRecord {
    /// A metric by name; NaN if it was not measured.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics.get(name).copied().unwrap_or(f64::NAN)
    }
}

impl TestRecord {
    /// A metric by name; NaN if it was not measured.
    #[must_use]
    pub fn metric(&self, name: &str) -> f64 {
        self.metrics.get(name).copied().unwrap_or(f64::NAN)
    }
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    Step(StepRecord),
    Epoch(EpochRecord),
    Test(TestRecord),
}

impl Record {
    /// The record as a line, with its newline.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data serialises") + "\n"
    }

    /// Reads a line.
    ///
    /// # Errors
    /// Why it is not a record.
    pub fn parse(line: &str) -> Result<Self, String> {
        let record: Self = serde_json::from_str(line).map_err(|error| {
            // serde's position within the line is of no use
            let reason = error.to_string();
            reason.split(" at line ").next().unwrap_or_default().to_string()
        })?;
        Ok(match record {
            Self::Epoch(mut epoch) => {
                // runs from before there was a validation part
                if let Some(loss) = epoch.metrics.remove("test_loss") {
                    epoch.metrics.entry("loss".into()).or_insert(loss);
                }
                Self::Epoch(epoch)
            }
            other => other,
        })
    }
}

/// Every record of a run, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub steps: Vec<StepRecord>,
    pub epochs: Vec<EpochRecord>,
    /// None until the run is finished, or if the data has no test part.
    pub test: Option<TestRecord>,
}

impl History {
    /// The best epoch by a metric; the first on a tie.
    pub fn best(&self, metric: &Metric) -> Option<&EpochRecord> {
        let score = |epoch: &EpochRecord| metric.score(epoch.metric(&metric.name));
        let measured = self.epochs.iter().filter(|epoch| score(epoch).is_finite());
        measured.max_by(|a, b| score(a).total_cmp(&score(b)).then(b.epoch.cmp(&a.epoch)))
    }

    /// The median speed of all steps.
    pub fn items_per_second(&self) -> f64 {
        let mut speeds: Vec<f64> = self.steps.iter().map(|step| step.items_per_second).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Seconds of all epochs.
    pub fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum()
    }

    /// Adds a record.
    pub fn push(&mut self, record: Record) {
        match record {
            Record::Step(record) => self.steps.push(record),
            Record::Epoch(record) => self.epochs.push(record),
            Record::Test(record) => self.test = Some(record),
        }
    }

    /// Reads the lines of `metrics.jsonl`. A last line without a newline was being written when the run stopped, and is ignored.
    ///
    /// # Errors
    /// When any other line is not a record; the error names it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut history = Self::default();
        for (index, line) in whole_lines(text).enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let record =
                Record::parse(line).map_err(|reason| Error::Field { field: format!("line {}", index + 1), reason })?;
            history.push(record);
        }
        Ok(history)
    }
}

/// The complete lines of a text.
pub(crate) fn whole_lines(text: &str) -> impl Iterator<Item = &str> {
    text.rfind('\n').map_or("", |end| &text[..end]).lines()
}

#[cfg(test)]
mod tests {
    use super::super::metric::{Better, Unit};
    use super::*;

    fn step(step: usize, loss: f64) -> StepRecord {
        let parts = Values::new();
        StepRecord { step, epoch: 1, loss, parts, rate: 1e-3, gradient_norm: 0.5, items_per_second: 80.0 }
    }

    fn epoch(epoch: usize, top1: f64) -> EpochRecord {
        let metrics = [("loss".to_string(), 1.9), ("top1".to_string(), top1)].into();
        EpochRecord { epoch, step: 2, train_loss: 2.0, seconds: 4.0, metrics }
    }

    #[test]
    fn records_come_back_from_their_lines_exactly() {
        // the last number is one that a careless reader moves by a unit in its last place
        let parts = Values::from([("box".to_string(), 0.1 + 0.2), ("class".to_string(), 54.245_293_557_643_89)]);
        let with_parts = StepRecord { parts, ..step(2, 0.1 + 0.2) };
        let test = TestRecord { epoch: 1, metrics: epoch(1, 0.25).metrics };
        let records = [
            Record::Step(step(1, 2.25)),
            Record::Step(with_parts.clone()),
            Record::Epoch(epoch(1, 0.3)),
            Record::Test(test.clone()),
        ];
        let text: String = records.iter().map(Record::line).collect();
        assert_eq!(text.lines().count(), 4);
        let expected =
            History { steps: vec![step(1, 2.25), with_parts], epochs: vec![epoch(1, 0.3)], test: Some(test) };
        assert_eq!(History::parse(&text).unwrap(), expected);
    }

    #[test]
    fn a_loss_that_is_no_number_comes_back_as_none() {
        let text = Record::Step(step(1, f64::INFINITY)).line() + &Record::Epoch(epoch(1, f64::NAN)).line();
        assert!(text.contains(r#""loss":null"#) && text.contains(r#""top1":null"#), "{text}");
        let history = History::parse(&text).unwrap();
        assert!(history.steps[0].loss.is_nan() && history.epochs[0].metric("top1").is_nan());
    }

    #[test]
    fn an_unfinished_last_line_is_left_out_and_any_other_bad_line_is_named() {
        let text = Record::Step(step(1, 2.0)).line();
        let cut = format!("{text}{}", &text[..text.len() / 2]);
        assert_eq!(History::parse(&cut).unwrap().steps.len(), 1);
        let error = History::parse(&format!("{text}{{}}\n{text}")).unwrap_err().to_string();
        assert!(error.starts_with("`line 2`: missing field"), "{error}");
        assert_eq!(History::parse("").unwrap(), History::default());
    }

    #[test]
    fn the_best_epoch_is_the_first_with_the_best_value_whichever_way_is_better() {
        let history = History { epochs: vec![epoch(1, 0.5), epoch(2, 0.7), epoch(3, 0.7)], ..History::default() };
        let by = |better| Metric::new("top1", "", better, Unit::Percent);
        assert_eq!(history.best(&by(Better::Higher)).unwrap().epoch, 2);
        assert_eq!(history.best(&by(Better::Lower)).unwrap().epoch, 1);
        assert_eq!(history.best(&Metric::new("bleu", "", Better::Higher, Unit::Number)), None);
    }

    #[test]
    fn records_of_runs_from_before_there_was_a_validation_part_are_read() {
        let text = concat!(
            r#"{"kind":"step","step":1,"epoch":1,"loss":2.0,"rate":0.1,"gradient_norm":1.0,"pictures_per_second":9.0}"#,
            "\n",
            r#"{"kind":"epoch","epoch":1,"step":1,"train_loss":2.0,"test_loss":1.5,"top1":0.5,"top5":0.9,"bleu":3.0,"seconds":1.0}"#,
            "\n"
        );
        let history = History::parse(text).unwrap();
        assert_eq!(history.steps[0].items_per_second, 9.0);
        let epoch = &history.epochs[0];
        assert_eq!([epoch.metric("loss"), epoch.metric("top1"), epoch.metric("bleu")], [1.5, 0.5, 3.0]);
    }
}
