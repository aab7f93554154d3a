//! What is wrong with texts about pictures, before training: pictures that cannot be read, the same picture in two
//! parts, answers that training never has, and answers that follow from the wording alone.

use rayon::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::{BlindBaseline, TextKind, TextSample, VisionLanguageDataset, VisionLanguageParts};
use crate::data::Part;
use crate::data::check::hash;
use crate::data::detection::Issue;

/// What was found in the parts of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VisionLanguageReport {
    pub kind: TextKind,
    pub train: TextPartReport,
    pub validation: TextPartReport,
    pub test: TextPartReport,
    /// What is wrong with the files.
    pub issues: Vec<Issue>,
    pub missing: Vec<Issue>,
    /// Pictures that cannot be decoded, with the reason.
    pub unreadable: Vec<(String, String)>,
    /// The same pixels in more than one part.
    pub leaks: Vec<Vec<String>>,
    /// None for captions.
    pub answers: Option<AnswerStatistics>,
}

/// A part in numbers.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct TextPartReport {
    pub texts: usize,
    pub pictures: usize,
    /// Words of a text, by spaces.
    pub most_words: usize,
    pub mean_words: f64,
    /// Texts that are there several times about the same picture.
    pub repeated: usize,
}

/// Statistics of questions and answers.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AnswerStatistics {
    /// Different best answers in training, or those of the data's own list.
    pub different: usize,
    /// The most frequent best answers of the training part, with their share.
    pub frequent: Vec<(String, f64)>,
    /// Texts of validation and test whose best answer is never one in training, or not in the data's list.
    pub outside: [usize; 2],
    /// Some of these answers.
    pub outside_examples: Vec<String>,
    /// Score of a model that says the most frequent answer of all, in validation and test.
    pub majority: [Option<f64>; 2],
    /// Score of a model that does not look: the most frequent answer of the same text in training.
    pub blind: [Option<f64>; 2],
    /// The same for each kind of question, in the test part, or in validation if there is no test.
    pub blind_groups: BTreeMap<String, f64>,
    /// Questions of training whose blind answer is right in nine of ten cases although they come ten times or more.
    pub predictable: Vec<(String, String, usize)>,
}

impl VisionLanguageReport {
    pub const fn parts(&self) -> [(Part, &TextPartReport); 3] {
        [(Part::Train, &self.train), (Part::Validation, &self.validation), (Part::Test, &self.test)]
    }

    /// How many things are wrong.
    #[must_use]
    pub fn problems(&self) -> usize {
        let outside =
            self.answers.as_ref().map_or(0, |answers| answers.outside.iter().filter(|count| **count > 0).count());
        self.issues.len() + self.missing.len() + self.unreadable.len() + self.leaks.len() + outside
    }
}

/// Reads every text, and every picture once. `tick` is called after each picture.
///
/// # Errors
/// When a text cannot be read.
pub fn check(parts: &VisionLanguageParts, tick: impl Fn() + Sync) -> Result<VisionLanguageReport, crate::Error> {
    let datasets = [&parts.train, &parts.validation, &parts.test];
    let samples: Vec<Vec<TextSample>> = datasets
        .iter()
        .map(|dataset| (0..dataset.len()).map(|index| dataset.sample(index)).collect())
        .collect::<Result<_, _>>()?;
    let (mut unreadable, mut pictures, mut by_content) = (Vec::new(), Vec::new(), HashMap::new());
    for (part, dataset) in datasets.iter().enumerate() {
        let found = look(dataset, &tick);
        pictures.push(found.len());
        for (name, content) in found {
            match content {
                Ok(hash) => by_content.entry(hash).or_insert_with(Vec::new).push((part, name)),
                // those that are missing are named already
                Err(Some(reason)) => unreadable.push((name, reason)),
                Err(None) => {}
            }
        }
    }
    let mut leaks: Vec<Vec<String>> = by_content
        .into_values()
        .filter(|copies| copies.iter().any(|(part, _)| *part != copies[0].0))
        .map(|copies| copies.into_iter().map(|(_, name)| name).collect())
        .collect();
    leaks.sort();
    let part = |index: usize| part_report(&**datasets[index], &samples[index], pictures[index]);
    Ok(VisionLanguageReport {
        kind: parts.train.kind(),
        train: part(0),
        validation: part(1),
        test: part(2),
        issues: parts.issues.clone(),
        missing: parts.missing.clone(),
        unreadable,
        leaks,
        answers: (parts.train.kind() != TextKind::Captions).then(|| answers(parts, &samples)),
    })
}

/// The hash of a picture's pixels, or why there is none: nothing where it is missing.
type Looked = (String, Result<[u8; 32], Option<String>>);

/// Every picture of a part once.
fn look(dataset: &Arc<dyn VisionLanguageDataset>, tick: &(impl Fn() + Sync)) -> Vec<Looked> {
    let mut seen = HashSet::new();
    let all = (0..dataset.len()).flat_map(|index| (0..dataset.pictures()).map(move |which| (index, which)));
    let once: Vec<(usize, usize)> =
        all.filter(|(index, which)| seen.insert(dataset.picture_id(*index, *which))).collect();
    let one = |(index, which): (usize, usize)| {
        let name = dataset.picture_name(index, which);
        let is_missing = dataset.picture_path(index, which).is_some_and(|path| !path.is_file());
        let content = if is_missing {
            Err(None)
        } else {
            let picture = dataset.picture(index, which);
            picture.map(|picture| hash(picture.size(), picture.pixels())).map_err(|error| Some(error.to_string()))
        };
        tick();
        (name, content)
    };
    once.into_par_iter().map(one).collect()
}

/// Number of different pictures of a part.
#[must_use]
pub fn picture_count(dataset: &dyn VisionLanguageDataset) -> usize {
    let all = (0..dataset.len()).flat_map(|index| (0..dataset.pictures()).map(move |which| (index, which)));
    all.map(|(index, which)| dataset.picture_id(index, which)).collect::<HashSet<_>>().len()
}

fn part_report(dataset: &dyn VisionLanguageDataset, samples: &[TextSample], pictures: usize) -> TextPartReport {
    let words: Vec<usize> = samples.iter().map(|sample| sample.text.split_whitespace().count()).collect();
    let different: HashSet<(u64, &str)> = samples
        .iter()
        .enumerate()
        .map(|(index, sample)| (dataset.picture_id(index, 0), sample.text.as_str()))
        .collect();
    TextPartReport {
        texts: samples.len(),
        pictures,
        most_words: words.iter().copied().max().unwrap_or(0),
        mean_words: words.iter().sum::<usize>() as f64 / words.len().max(1) as f64,
        repeated: samples.len() - different.len(),
    }
}

fn best(sample: &TextSample) -> Option<&str> {
    sample.answers.first().map(|(answer, _)| answer.as_str())
}

fn answers(parts: &VisionLanguageParts, samples: &[Vec<TextSample>]) -> AnswerStatistics {
    let train = &samples[0];
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    train.iter().filter_map(best).for_each(|answer| *counts.entry(answer).or_default() += 1);
    let mut frequent: Vec<(&str, usize)> = counts.iter().map(|(answer, count)| (*answer, *count)).collect();
    frequent.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let known: HashSet<&str> = match parts.train.answers() {
        Some(list) => list.iter().map(String::as_str).collect(),
        None => counts.keys().copied().collect(),
    };
    let blind = BlindBaseline::new(train.iter().map(|sample| (sample.text.as_str(), sample.answers.as_slice())));
    let outside: Vec<Vec<&str>> = samples[1..]
        .iter()
        .map(|part| part.iter().filter_map(best).filter(|answer| !known.contains(answer)).collect())
        .collect();
    let mut examples: Vec<String> = outside.iter().flatten().map(|answer| (*answer).to_string()).collect();
    examples.sort();
    examples.dedup();
    examples.truncate(20);
    let mean = |part: &[TextSample], score: &dyn Fn(&TextSample) -> f64| {
        (!part.is_empty()).then(|| part.iter().map(score).sum::<f64>() / part.len() as f64)
    };
    let usual = frequent.first().map(|(answer, _)| *answer);
    let of_usual = |sample: &TextSample| {
        let own = sample.answers.iter().find(|(answer, _)| Some(answer.as_str()) == usual);
        own.map_or(0.0, |(_, score)| f64::from(*score))
    };
    let of_blind = |sample: &TextSample| blind.score(&sample.text, &sample.answers);
    let (validation, test) = (&samples[1], &samples[2]);
    let measured = if test.is_empty() { (validation, &parts.validation) } else { (test, &parts.test) };
    let mut groups: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for sample in measured.0 {
        if let Some(name) = sample.group.and_then(|group| measured.1.groups().get(group)) {
            groups.entry(name.clone()).or_default().push(of_blind(sample));
        }
    }
    AnswerStatistics {
        different: known.len(),
        frequent: frequent
            .iter()
            .take(10)
            .map(|(answer, count)| ((*answer).to_string(), *count as f64 / train.len().max(1) as f64))
            .collect(),
        outside: [outside[0].len(), outside[1].len()],
        outside_examples: examples,
        majority: [mean(validation, &of_usual), mean(test, &of_usual)],
        blind: [mean(validation, &of_blind), mean(test, &of_blind)],
        blind_groups: groups
            .into_iter()
            .map(|(name, scores)| (name, scores.iter().sum::<f64>() / scores.len() as f64))
            .collect(),
        predictable: predictable(train, &blind),
    }
}

/// Texts that can be answered without looking at the picture.
fn predictable(train: &[TextSample], blind: &BlindBaseline) -> Vec<(String, String, usize)> {
    let mut by_text: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for sample in train {
        let (count, score) = by_text.entry(&sample.text).or_default();
        *count += 1;
        *score += blind.score(&sample.text, &sample.answers);
    }
    let mut found: Vec<(String, String, usize)> = by_text
        .into_iter()
        .filter(|(_, (count, score))| *count >= 10 && *score >= 0.9 * *count as f64)
        .map(|(text, (count, _))| (text.to_string(), blind.answer(text).unwrap_or_default().to_string(), count))
        .collect();
    found.sort_by(|a, b| b.2.cmp(&a.2).then_with(|| a.0.cmp(&b.0)));
    found
}
