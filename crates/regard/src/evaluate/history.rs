//! What a training run writes down as it goes: `metrics.jsonl`, one record a line.

use serde::{Deserialize, Serialize};

use super::number::or_nan;
use crate::Error;

/// One step of the optimiser.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRecord {
    /// Steps since the beginning of the run, this one included.
    pub step: usize,
    pub epoch: usize,
    #[serde(deserialize_with = "or_nan")]
    pub loss: f64,
    /// Learning rate.
    #[serde(deserialize_with = "or_nan")]
    pub rate: f64,
    #[serde(deserialize_with = "or_nan")]
    pub gradient_norm: f64,
    /// Pictures a second, or tokens of translations.
    #[serde(deserialize_with = "or_nan")]
    pub pictures_per_second: f64,
}

/// The end of an epoch; what was not measured is not a number.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EpochRecord {
    pub epoch: usize,
    /// Steps since the beginning of the run.
    pub step: usize,
    /// Mean loss of the epoch's steps.
    #[serde(deserialize_with = "or_nan")]
    pub train_loss: f64,
    #[serde(deserialize_with = "or_nan")]
    pub test_loss: f64,
    /// Share of test pictures whose best answer is right.
    #[serde(deserialize_with = "or_nan")]
    pub top1: f64,
    /// Share of test pictures with the right class among the five best.
    #[serde(deserialize_with = "or_nan")]
    pub top5: f64,
    /// Of the translations of the test, when they were made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bleu: Option<f64>,
    /// Seconds that the epoch took, its test included.
    #[serde(deserialize_with = "or_nan")]
    pub seconds: f64,
}

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Record {
    Step(StepRecord),
    Epoch(EpochRecord),
}

impl Record {
    /// The record as a line of its own, with its end.
    #[must_use]
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("plain data serialises") + "\n"
    }
}

/// Every record of a run, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct History {
    pub steps: Vec<StepRecord>,
    pub epochs: Vec<EpochRecord>,
}

impl History {
    /// The epoch with the most right answers, the first of equal ones.
    pub fn best(&self) -> Option<&EpochRecord> {
        let measured = self.epochs.iter().filter(|epoch| epoch.top1.is_finite());
        measured.max_by(|a, b| a.top1.total_cmp(&b.top1).then(b.epoch.cmp(&a.epoch)))
    }

    /// The middle one of the speeds of all steps.
    pub fn pictures_per_second(&self) -> f64 {
        let mut speeds: Vec<f64> = self.steps.iter().map(|step| step.pictures_per_second).collect();
        speeds.sort_by(f64::total_cmp);
        speeds.get(speeds.len() / 2).copied().unwrap_or(f64::NAN)
    }

    /// Seconds of all epochs.
    pub fn seconds(&self) -> f64 {
        self.epochs.iter().map(|epoch| epoch.seconds).sum()
    }

    /// Reads the lines of `metrics.jsonl`; a last line without its end was being written when the run stopped, and is left out.
    ///
    /// # Errors
    /// When any other line is not a record; the error names it.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut history = Self::default();
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        for (index, line) in whole.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let record = serde_json::from_str(line).map_err(|error| {
                // every record is one line of its own, so that the place which the reader tells says nothing
                let reason = error.to_string();
                let reason = reason.split(" at line ").next().unwrap_or_default().to_string();
                Error::Field { field: format!("line {}", index + 1), reason }
            })?;
            match record {
                Record::Step(step) => history.steps.push(step),
                Record::Epoch(epoch) => history.epochs.push(epoch),
            }
        }
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: usize, loss: f64) -> StepRecord {
        StepRecord { step, epoch: 1, loss, rate: 1e-3, gradient_norm: 0.5, pictures_per_second: 80.0 }
    }

    fn epoch() -> EpochRecord {
        EpochRecord {
            epoch: 1,
            step: 2,
            train_loss: 2.0,
            test_loss: 1.9,
            top1: 0.3,
            top5: 0.8,
            bleu: None,
            seconds: 4.0,
        }
    }

    #[test]
    fn records_come_back_from_their_lines_exactly() {
        let text: String = [Record::Step(step(1, 2.25)), Record::Step(step(2, 0.1 + 0.2)), Record::Epoch(epoch())]
            .iter()
            .map(Record::line)
            .collect();
        assert_eq!(text.lines().count(), 3);
        let expected = History { steps: vec![step(1, 2.25), step(2, 0.1 + 0.2)], epochs: vec![epoch()] };
        assert_eq!(History::parse(&text).unwrap(), expected);
    }

    #[test]
    fn a_loss_that_is_no_number_comes_back_as_none() {
        let text = Record::Step(step(1, f64::INFINITY)).line();
        assert!(text.contains(r#""loss":null"#), "{text}");
        assert!(History::parse(&text).unwrap().steps[0].loss.is_nan());
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
}
