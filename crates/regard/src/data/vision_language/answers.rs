//! Answers of people: how they are compared, what they score, and the list from which a model chooses.
//! Antol et al. 2015, arXiv:1505.00468; scores as the official evaluation of VQA v2 averages them.

use std::collections::{BTreeMap, HashMap};

use crate::Error;

/// The score of an answer that so many of `people` gave: the mean over all groups without one of them of
/// `min(1, those who gave it / 3)`. With ten people 0.3, 0.6, 0.9, then 1.
#[must_use]
pub fn vqa_score(said: usize, people: usize) -> f32 {
    if said == 0 || people == 0 {
        return 0.0;
    }
    if people == 1 {
        return 1.0;
    }
    let score = |said: usize| (said as f32 / 3.0).min(1.0);
    let (said_less, others) = (said - 1, people.saturating_sub(said));
    (said as f32 * score(said_less) + others as f32 * score(said)) / people as f32
}

/// Scores of the different answers of several people, after [`normalised`]; the best first.
#[must_use]
pub fn vqa_scores<'a>(answers: impl Iterator<Item = &'a str>) -> Vec<(String, f32)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    answers.for_each(|answer| *counts.entry(normalised(answer)).or_default() += 1);
    let people = counts.values().sum();
    let mut scores: Vec<(String, f32)> =
        counts.into_iter().map(|(answer, said)| (answer, vqa_score(said, people))).collect();
    scores.sort_by(|a, b| b.1.total_cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    scores
}

const NUMBERS: [(&str, &str); 12] = [
    ("none", "0"),
    ("zero", "0"),
    ("one", "1"),
    ("two", "2"),
    ("three", "3"),
    ("four", "4"),
    ("five", "5"),
    ("six", "6"),
    ("seven", "7"),
    ("eight", "8"),
    ("nine", "9"),
    ("ten", "10"),
];

/// An answer as the official evaluation compares it: lower case, no articles, numbers as digits, no punctuation. Different from
/// it: apostrophes that people left out (`dont`) are not added.
#[must_use]
pub fn normalised(answer: &str) -> String {
    const PUNCTUATION: &str = ";/[]\"{}()=+\\_-><@`,?!";
    let lower = answer.to_lowercase();
    let letters: Vec<char> = lower.chars().collect();
    let is_digit = |at: usize| letters.get(at).is_some_and(char::is_ascii_digit);
    let mut text = String::with_capacity(lower.len());
    for (at, letter) in letters.iter().enumerate() {
        let is_inside_number = at > 0 && is_digit(at - 1) && is_digit(at + 1);
        match letter {
            // 1,000 is one number
            ',' if is_inside_number => {}
            '.' if is_inside_number => text.push('.'),
            '.' => {}
            other if PUNCTUATION.contains(*other) => text.push(' '),
            other => text.push(*other),
        }
    }
    let digits =
        |word: &str| NUMBERS.iter().find(|(name, _)| *name == word).map_or(word.to_string(), |(_, it)| (*it).into());
    let words: Vec<String> =
        text.split_whitespace().filter(|word| !matches!(*word, "a" | "an" | "the")).map(digits).collect();
    // `a` alone is an answer
    if words.is_empty() { lower.trim().to_string() } else { words.join(" ") }
}

/// The answers from which a model chooses, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnswerList {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl AnswerList {
    /// # Errors
    /// When there is none, or one is there twice.
    pub fn new(names: Vec<String>) -> Result<Self, Error> {
        let numbers: HashMap<String, usize> =
            names.iter().enumerate().map(|(number, name)| (name.clone(), number)).collect();
        if names.is_empty() {
            return Err(Error::config("answers", "there is no answer to learn"));
        }
        if let Some(twice) = names.iter().enumerate().find(|(number, name)| numbers[*name] != *number) {
            return Err(Error::config("answers", format!("`{}` is there twice", twice.1)));
        }
        Ok(Self { names, numbers })
    }

    /// The best answers of samples that come at least so often, the most frequent first.
    ///
    /// # Errors
    /// When no answer comes so often.
    pub fn frequent<'a>(samples: impl Iterator<Item = &'a [(String, f32)]>, least: usize) -> Result<Self, Error> {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for answers in samples {
            if let Some((best, _)) = answers.first() {
                *counts.entry(best).or_default() += 1;
            }
        }
        let mut frequent: Vec<(&str, usize)> = counts.into_iter().filter(|(_, count)| *count >= least).collect();
        frequent.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        Self::new(frequent.into_iter().map(|(name, _)| name.to_string()).collect())
    }

    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    #[must_use]
    pub const fn len(&self) -> usize {
        self.names.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    #[must_use]
    pub fn number(&self, name: &str) -> Option<usize> {
        self.numbers.get(name).copied()
    }

    /// The scores of a sample by the numbers of this list; answers that are not in it are left out.
    #[must_use]
    pub fn scores(&self, answers: &[(String, f32)]) -> Vec<(usize, f32)> {
        answers.iter().filter_map(|(name, score)| Some((self.number(name)?, *score))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_ten_groups_of_nine() {
        for (said, score) in [(0, 0.0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.0), (10, 1.0)] {
            assert!((vqa_score(said, 10) - score).abs() < 1e-6, "{said}");
        }
        // by the definition: leave each person out in turn
        for (said, people) in [(1, 3), (2, 3), (3, 5), (4, 4), (1, 2)] {
            let groups = (0..people).map(|out| {
                let left = if out < said { said - 1 } else { said };
                (left as f32 / 3.0).min(1.0)
            });
            assert!((vqa_score(said, people) - groups.sum::<f32>() / people as f32).abs() < 1e-6);
        }
        assert_eq!(vqa_score(1, 1), 1.0);
    }

    #[test]
    fn answers_are_compared_as_the_evaluation_does() {
        for (said, compared) in [
            ("The Red  car.", "red car"),
            ("two", "2"),
            ("1,000", "1000"),
            ("2.5", "2.5"),
            ("black-and-white", "black and white"),
            ("a", "a"),
            ("Yes!", "yes"),
        ] {
            assert_eq!(normalised(said), compared);
        }
        let scores = vqa_scores(["yes", "Yes", "yes.", "no", "the yes"].into_iter());
        assert_eq!((scores[0].0.as_str(), scores[1].0.as_str()), ("yes", "no"));
        assert!(scores[0].1 > 0.99 && scores[1].1 < 0.34);
    }

    #[test]
    fn a_list_has_frequent_answers_and_knows_their_numbers() {
        let samples: Vec<Vec<(String, f32)>> =
            ["yes", "no", "yes", "maybe"].iter().map(|name| vec![((*name).to_string(), 1.0)]).collect();
        let list = AnswerList::frequent(samples.iter().map(Vec::as_slice), 1).unwrap();
        assert_eq!(list.names(), ["yes", "maybe", "no"]);
        let list = AnswerList::frequent(samples.iter().map(Vec::as_slice), 2).unwrap();
        assert_eq!((list.names(), list.number("no")), (&["yes".to_string()][..], None));
        assert_eq!(list.scores(&[("no".into(), 0.9), ("yes".into(), 0.3)]), [(0, 0.3)]);
        assert!(AnswerList::frequent(samples.iter().map(Vec::as_slice), 3).is_err());
        assert!(AnswerList::new(vec!["a".into(), "a".into()]).unwrap_err().to_string().contains("`a` is there twice"));
    }
}
