//! A baseline without the picture: for each question its most frequent answer in training, and for a question that was
//! not there the most frequent of all.
//!
//! Goyal et al. 2017, arXiv:1612.00837: answers that follow from the wording alone were what models of VQA v1 learned.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};

/// The best answer of each text of a training part, by the sum of scores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlindBaseline {
    by_text: BTreeMap<String, String>,
    usual: Option<String>,
}

impl BlindBaseline {
    /// From texts with the scores of their answers.
    #[must_use]
    pub fn new<'a>(samples: impl Iterator<Item = (&'a str, &'a [(String, f32)])>) -> Self {
        let mut by_text: HashMap<&str, BTreeMap<&str, f64>> = HashMap::new();
        let mut all: BTreeMap<&str, f64> = BTreeMap::new();
        for (text, answers) in samples {
            let counts = by_text.entry(text).or_default();
            for (answer, score) in answers {
                *counts.entry(answer).or_default() += f64::from(*score);
                *all.entry(answer).or_default() += f64::from(*score);
            }
        }
        // the first in the alphabet among equals
        let best = |counts: &BTreeMap<&str, f64>| {
            let best = counts.iter().rev().max_by(|a, b| a.1.total_cmp(b.1));
            best.map(|(answer, _)| (*answer).to_string())
        };
        let usual = best(&all);
        let by_text = by_text.iter().filter_map(|(text, counts)| Some(((*text).to_string(), best(counts)?))).collect();
        Self { by_text, usual }
    }

    /// What [`from_json`](Self::from_json) reads.
    #[must_use]
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data")
    }

    /// # Errors
    /// The reason why it is not one.
    pub fn from_json(text: &str) -> Result<Self, String> {
        serde_json::from_str(text).map_err(|error| error.to_string())
    }

    /// The answer to a text; none when nothing was learned.
    #[must_use]
    pub fn answer(&self, text: &str) -> Option<&str> {
        self.by_text.get(text).or(self.usual.as_ref()).map(String::as_str)
    }

    /// The score of its answer to a text with these answers.
    #[must_use]
    pub fn score(&self, text: &str, answers: &[(String, f32)]) -> f64 {
        let own = self.answer(text);
        let score = answers.iter().find(|(answer, _)| Some(answer.as_str()) == own).map(|(_, score)| *score);
        score.map_or(0.0, f64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_frequent_answer_of_the_same_question_counts_and_else_that_of_all() {
        let one = |answer: &str| vec![(answer.to_string(), 1.0)];
        let samples =
            [("what ?", one("red")), ("what ?", one("red")), ("what ?", one("blue")), ("is it ?", one("yes"))];
        let blind = BlindBaseline::new(samples.iter().map(|(text, answers)| (*text, answers.as_slice())));
        assert_eq!((blind.answer("what ?"), blind.answer("is it ?")), (Some("red"), Some("yes")));
        assert_eq!(blind.answer("never heard"), Some("red"));
        assert_eq!((blind.score("what ?", &one("red")), blind.score("what ?", &one("blue"))), (1.0, 0.0));
        assert_eq!(BlindBaseline::from_json(&blind.to_json()).unwrap(), blind);
        assert_eq!(BlindBaseline::default().answer("what ?"), None);
    }
}
