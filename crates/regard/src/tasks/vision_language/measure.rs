//! Evaluation: answers, masked words with and without the picture, and matching of texts and pictures.

use burn::tensor::{Device, Tensor};
use std::collections::BTreeMap;

use super::VisionLanguage;
use super::batch::{GoalTargets, VisionLanguageBatch};
use super::samples::{MEASURED, PreparedText, TextSamples};
use super::section::Goal;
use crate::data::vision_language::{RegionFeatures, VisionLanguageDataset};
use crate::data::{Loader, Order, SampleId, Samples as _};
use crate::evaluate::Values;
use crate::models::vision_language::{VisionLanguageModel, VisionLanguageOutput};
use crate::report::{Findings, Table};
use crate::train::Measured;
use crate::{Error, Pass};

/// A part of the data that is measured.
#[derive(Clone, Debug)]
pub struct MeasuredPart<'a> {
    pub task: &'a VisionLanguage,
    pub samples: TextSamples,
    pub device: &'a Device,
}

/// Rows of a table: right and all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Score {
    sum: f64,
    blind: f64,
    count: usize,
}

impl Score {
    fn add(&mut self, score: f64, blind: f64) {
        self.sum += score;
        self.blind += blind;
        self.count += 1;
    }

    fn mean(&self) -> f64 {
        self.sum / self.count.max(1) as f64
    }

    fn blind(&self) -> f64 {
        self.blind / self.count.max(1) as f64
    }
}

/// Number of most frequent mistakes that are shown.
const CONFUSIONS: usize = 15;
/// Words of which none is hidden to be found: they say nothing of the picture.
const FUNCTION_WORDS: [&str; 30] = [
    "a", "an", "the", "and", "or", "of", "is", "are", "was", "were", "be", "to", "in", "on", "at", "with", "there",
    "this", "that", "it", "its", "by", "for", "from", "as", "has", "have", "how", "what", "one",
];

impl MeasuredPart<'_> {
    fn dataset(&self) -> &dyn VisionLanguageDataset {
        &*self.samples.dataset
    }

    fn batches(&self, count: usize) -> impl Iterator<Item = Result<Vec<PreparedText>, Error>> {
        let batch = self.task.recipe.own.batch;
        let order = Order { samples: count, batch, repeats: 1, seed: None, rank: 0, ranks: 1 };
        Loader { samples: self.samples.clone(), order, workers: self.task.recipe.own.workers }
            .epoch(usize::try_from(MEASURED).unwrap_or(usize::MAX), 0)
    }

    /// Everything that the goals of the recipe can be measured by; `is_last` adds what takes long and what a report shows.
    pub fn measure(
        &self,
        model: &VisionLanguageModel,
        is_last: bool,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Measured, Error> {
        let (mut values, mut findings) = (Values::default(), Findings::default());
        let goals = &self.task.goals;
        if goals.contains_key(&Goal::Answer) {
            self.answers(model, (&mut values, &mut findings), watch)?;
        }
        if goals.contains_key(&Goal::Words) {
            self.words(model, &mut values)?;
        }
        if goals.contains_key(&Goal::Matching) && !self.task.recipe.own.blind {
            self.matching(model, &mut values, watch)?;
            if is_last {
                self.retrieval(model, &mut values, &mut findings)?;
            }
        }
        let score = ["accuracy", "words", "matching"].into_iter().find_map(|name| values.get(name).copied());
        if let Some(score) = score {
            values.insert("score".into(), score);
        }
        if !is_last {
            findings = Findings::default();
        }
        Ok(Measured { values, findings })
    }

    /// Scores of the best answers, beside what is right without looking.
    fn answers(
        &self,
        model: &VisionLanguageModel,
        (values, findings): (&mut Values, &mut Findings),
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let Some(list) = self.task.answers.clone() else { return Ok(()) };
        let (dataset, total) = (self.dataset(), self.samples.len());
        let mut all = Score::default();
        let mut groups: BTreeMap<(usize, String), Score> = BTreeMap::new();
        let mut confusions: BTreeMap<(String, String), usize> = BTreeMap::new();
        let mut outside = 0;
        for texts in self.batches(total) {
            let batch = VisionLanguageBatch::new(&texts?, Goal::Answer, &self.task.masking());
            let best = best_of_rows(self.forward(model, &batch).answer.ok_or_else(|| no_head("answers"))?);
            for (index, answer) in batch.indices.iter().zip(best) {
                let sample = dataset.sample(*index)?;
                let said = &list.names()[answer];
                let score =
                    sample.answers.iter().find(|(name, _)| name == said).map_or(0.0, |(_, score)| f64::from(*score));
                let blind = self.task.blind.score(&sample.text, &sample.answers);
                all.add(score, blind);
                let names = [(0, sample.group, dataset.groups()), (1, sample.answer_type, dataset.answer_types())];
                for (kind, number, known) in names {
                    if let Some(name) = number.and_then(|number| known.get(number)) {
                        groups.entry((kind, name.clone())).or_default().add(score, blind);
                    }
                }
                if let Some((right, _)) = sample.answers.first() {
                    outside += usize::from(list.number(right).is_none());
                    if score == 0.0 {
                        *confusions.entry((right.clone(), said.clone())).or_default() += 1;
                    }
                }
            }
            watch(all.count, total);
        }
        values.insert("accuracy".into(), all.mean());
        values.insert("blind".into(), all.blind());
        let percent = |share: f64| format!("{:.2} %", 100.0 * share);
        findings.facts.push(("questions".into(), all.count.to_string()));
        findings.facts.push(("without looking".into(), percent(all.blind())));
        if outside > 0 {
            findings.facts.push(("answers outside of the list".into(), outside.to_string()));
        }
        for (kind, title) in [(0, "kind of question"), (1, "kind of answer")] {
            let own: Vec<_> = groups.iter().filter(|((own, _), _)| *own == kind).collect();
            if own.is_empty() {
                continue;
            }
            let mut table = Table::new().words(title).numbers("texts").numbers("accuracy").numbers("without looking");
            for ((_, name), score) in own {
                let cells = [name.clone(), score.count.to_string(), percent(score.mean()), percent(score.blind())];
                findings.facts.push((name.clone(), format!("{} (without looking {})", cells[2], cells[3])));
                table.row(cells);
            }
            findings.tables.push(table);
        }
        let mut frequent: Vec<_> = confusions.into_iter().collect();
        frequent.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        if !frequent.is_empty() {
            let mut table = Table::new().words("right answer").words("answered").numbers("times");
            for ((right, said), count) in frequent.into_iter().take(CONFUSIONS) {
                table.row([right, said, count.to_string()]);
            }
            findings.tables.push(table);
        }
        Ok(())
    }

    /// Number of correct predictions of words masked one by one, with the picture and without.
    fn words(&self, model: &VisionLanguageModel, values: &mut Values) -> Result<(), Error> {
        let (tokenizer, own) = (&self.task.encoder.tokenizer, &self.task.recipe.own);
        let can_be_blind = self.task.config.reads_text_alone();
        let (mut seen, mut blind, mut count) = (0, 0, 0);
        for texts in self.batches(own.measured_words.min(self.samples.len())) {
            let texts = texts?;
            let hidden: Vec<(&PreparedText, usize)> = texts
                .iter()
                .flat_map(|text| (0..text.text.ids.len()).map(move |place| (text, place)))
                .filter(|(text, place)| is_content(&tokenizer.token(text.text.ids[*place])))
                .collect();
            for rows in hidden.chunks(4 * own.batch) {
                let batch = VisionLanguageBatch::hiding(rows, tokenizer.special());
                let GoalTargets::Words(right) = &batch.targets else { continue };
                let hits = |batch: &VisionLanguageBatch| -> Result<usize, Error> {
                    let logits = self.forward(model, batch).words.ok_or_else(|| no_head("words"))?;
                    let best = best_of_rows(logits);
                    Ok(best.iter().zip(right).filter(|(best, right)| **best == **right as usize).count())
                };
                if !own.blind {
                    seen += hits(&batch)?;
                }
                if can_be_blind {
                    blind += hits(&batch.clone().blind())?;
                }
                count += right.len();
            }
        }
        let share = |hits: usize| hits as f64 / count.max(1) as f64;
        values.insert("words".into(), share(if own.blind { blind } else { seen }));
        if can_be_blind {
            values.insert("words_blind".into(), share(blind));
        }
        Ok(())
    }

    /// How often a text is recognised as about the picture or not; half of them are not.
    fn matching(
        &self,
        model: &VisionLanguageModel,
        values: &mut Values,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        let (mut right, mut count, total) = (0, 0, self.samples.len());
        for texts in self.batches(total) {
            let batch = VisionLanguageBatch::new(&texts?, Goal::Matching, &self.task.masking());
            let GoalTargets::Matched(matched) = &batch.targets else { continue };
            let scores = self.matching_scores(model, &batch)?;
            right += scores.iter().zip(matched).filter(|(score, matched)| (**score > 0.0) == **matched).count();
            count += matched.len();
            watch(count, total);
        }
        values.insert("matching".into(), right as f64 / count.max(1) as f64);
        Ok(())
    }

    /// By how much a match is likelier than none, of each text.
    fn matching_scores(&self, model: &VisionLanguageModel, batch: &VisionLanguageBatch) -> Result<Vec<f32>, Error> {
        let logits = self.forward(model, batch).matching.ok_or_else(|| no_head("matching"))?;
        let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
        let yes = self.task.config.matched_class() as usize;
        Ok(values.as_chunks::<2>().0.iter().map(|pair| pair[yes] - pair[1 - yes]).collect())
    }

    /// The place of the right picture for a text, and of the best right text for a picture, among some of each.
    fn retrieval(
        &self,
        model: &VisionLanguageModel,
        values: &mut Values,
        findings: &mut Findings,
    ) -> Result<(), Error> {
        let own = &self.task.recipe.own;
        let mut texts: Vec<PreparedText> = Vec::new();
        let mut pictures: Vec<(u64, usize)> = Vec::new();
        for place in 0..self.samples.len() {
            let picture = self.dataset().picture_id(self.samples.indices[place], 0);
            if !pictures.iter().any(|(known, _)| *known == picture) {
                if pictures.len() == own.retrieval {
                    break;
                }
                pictures.push((picture, texts.len()));
            }
            texts.push(self.samples.load(SampleId { index: place, epoch: MEASURED, draw_id: place as u64 })?);
        }
        if pictures.len() < 2 {
            return Ok(());
        }
        let ids: Vec<u64> = texts.iter().map(|text| self.dataset().picture_id(text.index, 0)).collect();
        let pairs: Vec<(usize, usize)> =
            (0..texts.len()).flat_map(|text| (0..pictures.len()).map(move |picture| (text, picture))).collect();
        let mut scores: Vec<f32> = Vec::with_capacity(pairs.len());
        for pairs in pairs.chunks(2 * own.batch) {
            let rows: Vec<(&crate::data::text::Encoded, &[RegionFeatures])> = pairs
                .iter()
                .map(|(text, picture)| (&texts[*text].text, texts[pictures[*picture].1].regions.as_slice()))
                .collect();
            scores.extend(self.matching_scores(model, &VisionLanguageBatch::pairs(&rows, Goal::Matching))?);
        }
        let score = |text: usize, picture: usize| scores[text * pictures.len() + picture];
        let of_pictures: Vec<usize> = (0..texts.len())
            .map(|text| {
                let right = pictures.iter().position(|(id, _)| *id == ids[text]).unwrap_or(0);
                (0..pictures.len()).filter(|other| score(text, *other) > score(text, right)).count()
            })
            .collect();
        let of_texts: Vec<usize> = (0..pictures.len())
            .map(|picture| {
                let is_right = |text: &usize| ids[*text] == pictures[picture].0;
                let best = (0..texts.len()).filter(is_right).map(|text| score(text, picture)).fold(f32::MIN, f32::max);
                (0..texts.len()).filter(|text| !is_right(text) && score(*text, picture) > best).count()
            })
            .collect();
        for (name, ranks) in [("picture_recall", &of_pictures), ("text_recall", &of_texts)] {
            for most in [1, 5, 10] {
                let found = ranks.iter().filter(|rank| **rank < most).count() as f64 / ranks.len() as f64;
                values.insert(format!("{name}_{most}"), found);
            }
        }
        findings.facts.push(("retrieval among".into(), format!("{} texts, {} pictures", texts.len(), pictures.len())));
        Ok(())
    }

    fn forward(&self, model: &VisionLanguageModel, batch: &VisionLanguageBatch) -> VisionLanguageOutput {
        model.forward(&batch.input(self.device), &mut Pass::silent())
    }
}

fn no_head(what: &str) -> Error {
    Error::Field { field: "model".into(), reason: format!("has no head for {what}") }
}

/// The place of the largest number of each row, the first among equals.
fn best_of_rows(logits: Tensor<2>) -> Vec<usize> {
    let [_, width] = logits.dims();
    let values: Vec<f32> = logits.into_data().iter::<f32>().collect();
    let best = |row: &[f32]| (0..row.len()).rev().max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap_or(0);
    values.chunks_exact(width).map(best).collect()
}

/// Whether a token is a word that somebody could see.
fn is_content(token: &str) -> bool {
    token.chars().all(char::is_alphanumeric) && !FUNCTION_WORDS.contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;

    #[test]
    fn the_first_of_equal_numbers_is_the_best_and_function_words_are_not_hidden() {
        let logits = Tensor::<2>::from_data([[0.0, 2.0, 2.0], [1.0, 0.0, 0.5]], &cpu());
        assert_eq!(best_of_rows(logits), [1, 0]);
        assert!(is_content("bag") && !is_content("the") && !is_content("[SEP]") && !is_content("?"));
    }
}
