//! Texts side by side as a model sees them for one goal, and what it has to give.

use burn::tensor::{Device, Tensor, TensorData};
use rand::RngExt as _;
use rand::rngs::ChaCha8Rng;
use rand::seq::SliceRandom as _;

use super::samples::PreparedText;
use super::section::Goal;
use crate::data::Words;
use crate::data::text::{Encoded, Special};
use crate::data::vision_language::RegionFeatures;
use crate::models::vision_language::{Regions, VisionLanguageInput, Wanted};
use crate::random::{Purpose, generator};

/// What replaces a masked word (BERT, section 3.1): the mask token so often, another one so often,
/// and otherwise the word itself.
const HIDDEN: f64 = 0.8;
const REPLACED: f64 = 0.1;

/// How masked words and regions are drawn.
#[derive(Clone, Copy, Debug)]
pub struct Masking {
    /// Share of the words or regions.
    pub share: f64,
    pub special: Special,
    /// Tokens of the vocabulary.
    pub vocabulary: usize,
    pub seed: u64,
}

/// Regions of the pictures of a batch, padded.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionBatch {
    /// `[B, R, F]`
    features: Vec<f32>,
    /// `[B, R, 4]`
    boxes: Vec<f32>,
    counts: Vec<usize>,
    /// Of all texts, with padding.
    length: usize,
    width: usize,
    masked: Vec<bool>,
    /// Which of its two pictures each region is of.
    pictures: Vec<u8>,
}

/// The targets of a goal.
#[derive(Clone, Debug, PartialEq)]
pub enum GoalTargets {
    /// The right tokens of the wanted words.
    Words(Vec<u32>),
    /// `[P, F]`
    Features(Vec<f32>),
    /// `[P, C]`: distributions.
    Classes(Vec<f32>),
    /// Whether each text is about its picture.
    Matched(Vec<bool>),
    /// Scores of answers by their number, of each text.
    Answers(Vec<Vec<(usize, f32)>>),
}

/// Texts of one step with one goal.
#[derive(Clone, Debug)]
pub struct VisionLanguageBatch {
    pub goal: Goal,
    words: Words,
    regions: Option<RegionBatch>,
    wanted: Wanted,
    pub targets: GoalTargets,
    /// Indices in the dataset.
    pub indices: Vec<usize>,
}

impl VisionLanguageBatch {
    /// The draws of a text do not depend on the other texts of the batch.
    ///
    /// # Panics
    /// When there is no text, or one was prepared without what the goal needs.
    #[must_use]
    pub fn new(texts: &[PreparedText], goal: Goal, masking: &Masking) -> Self {
        let mut wanted = Wanted::default();
        let mut shown: Vec<Encoded> = Vec::with_capacity(texts.len());
        let mut regions = RegionBatch::of(texts.iter().map(|text| text.regions.as_slice()));
        let random = |text: &PreparedText| generator(masking.seed, Purpose::Mask, text.draw);
        let targets = match goal {
            Goal::Words => {
                let mut rows = Vec::new();
                for text in texts {
                    let (seen, predicted) = hide_words(&text.text, masking, &mut random(text));
                    shown.push(seen);
                    rows.push(predicted);
                }
                let length = shown.iter().map(|text| text.ids.len()).max().unwrap_or(0);
                let all = rows
                    .iter()
                    .enumerate()
                    .flat_map(|(row, found)| found.iter().map(move |(place, token)| (row * length + place, *token)));
                let (places, tokens) = all.unzip();
                wanted.words = places;
                GoalTargets::Words(tokens)
            }
            Goal::RegionFeatures | Goal::RegionClasses | Goal::RegionKl => {
                shown.extend(texts.iter().map(|text| text.text.clone()));
                let regions = regions.as_mut().expect("a goal about regions has regions");
                let (mut features, mut classes) = (Vec::new(), Vec::new());
                for (row, text) in texts.iter().enumerate() {
                    for place in hidden_places(regions.counts[row], masking.share, &mut random(text)) {
                        let (own, at) = of_place(&text.regions, place);
                        let width = own.features.len() / own.len();
                        features.extend_from_slice(&own.features[at * width..][..width]);
                        let count = own.classes.len() / own.len();
                        classes.extend_from_slice(&own.classes[at * count..][..count]);
                        wanted.regions.push(row * regions.length + place);
                    }
                }
                regions.masked = vec![false; texts.len() * regions.length];
                wanted.regions.iter().for_each(|at| regions.masked[*at] = true);
                if goal == Goal::RegionFeatures {
                    GoalTargets::Features(features)
                } else {
                    GoalTargets::Classes(classes)
                }
            }
            Goal::Matching | Goal::Alignment => {
                wanted.matching = goal == Goal::Matching;
                wanted.alignment = goal == Goal::Alignment;
                shown.extend(texts.iter().map(|text| {
                    let wrong = text.wrong.as_ref().filter(|_| !text.is_matched);
                    wrong.unwrap_or(&text.text).clone()
                }));
                GoalTargets::Matched(texts.iter().map(|text| text.is_matched || text.wrong.is_none()).collect())
            }
            Goal::Answer => {
                wanted.answer = true;
                shown.extend(texts.iter().map(|text| text.text.clone()));
                GoalTargets::Answers(texts.iter().map(|text| text.answers.clone()).collect())
            }
        };
        let indices = texts.iter().map(|text| text.index).collect();
        Self { goal, words: Words::of(&shown), regions, wanted, targets, indices }
    }

    /// Texts of which each hides one word, with the pictures of `texts`: for measuring.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn hiding(texts: &[(&PreparedText, usize)], special: Special) -> Self {
        let mut shown: Vec<Encoded> = Vec::with_capacity(texts.len());
        let mut targets = Vec::with_capacity(texts.len());
        for (text, place) in texts {
            let mut seen = text.text.clone();
            targets.push(std::mem::replace(&mut seen.ids[*place], special.mask));
            shown.push(seen);
        }
        let length = shown.iter().map(|text| text.ids.len()).max().unwrap_or(0);
        let words = texts.iter().enumerate().map(|(row, (_, place))| row * length + place).collect();
        Self {
            goal: Goal::Words,
            words: Words::of(&shown),
            regions: RegionBatch::of(texts.iter().map(|(text, _)| text.regions.as_slice())),
            wanted: Wanted { words, ..Wanted::default() },
            targets: GoalTargets::Words(targets),
            indices: texts.iter().map(|(text, _)| text.index).collect(),
        }
    }

    /// Texts beside regions of pictures, for which it is asked whether they belong together, or what the answer is.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn pairs(pairs: &[(&Encoded, &[RegionFeatures])], goal: Goal) -> Self {
        let shown: Vec<Encoded> = pairs.iter().map(|(text, _)| (*text).clone()).collect();
        let wanted = Wanted {
            matching: goal == Goal::Matching,
            alignment: goal == Goal::Alignment,
            answer: goal == Goal::Answer,
            ..Wanted::default()
        };
        Self {
            goal,
            words: Words::of(&shown),
            regions: RegionBatch::of(pairs.iter().map(|(_, regions)| *regions)),
            wanted,
            targets: GoalTargets::Matched(Vec::new()),
            indices: Vec::new(),
        }
    }

    /// The same that also asks which words are about which regions.
    #[must_use]
    pub fn with_alignment(mut self) -> Self {
        self.wanted.alignment = true;
        self
    }

    /// Number of texts.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.tokens.batch()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The same without pictures.
    #[must_use]
    pub fn blind(self) -> Self {
        Self { regions: None, ..self }
    }

    /// What its loss is divided by.
    #[must_use]
    pub fn elements(&self) -> usize {
        match &self.targets {
            GoalTargets::Words(tokens) => tokens.len(),
            GoalTargets::Features(_) | GoalTargets::Classes(_) => self.wanted.regions.len(),
            GoalTargets::Matched(matched) => matched.len(),
            GoalTargets::Answers(answers) => answers.iter().filter(|answers| !answers.is_empty()).count(),
        }
    }

    #[must_use]
    pub fn input(&self, device: &Device) -> VisionLanguageInput {
        let (words, wanted) = (self.words.clone(), self.wanted.clone());
        VisionLanguageInput { words, regions: self.regions.as_ref().map(|regions| regions.to_device(device)), wanted }
    }
}

impl RegionBatch {
    /// The regions of the pictures of each text, one picture after the other; none when there are none.
    fn of<'a>(texts: impl Iterator<Item = &'a [RegionFeatures]> + Clone) -> Option<Self> {
        let count = |pictures: &[RegionFeatures]| pictures.iter().map(RegionFeatures::len).sum::<usize>();
        let counts: Vec<usize> = texts.clone().map(count).collect();
        let length = counts.iter().copied().max().filter(|length| *length > 0)?;
        let width = texts.clone().flatten().find(|own| !own.is_empty()).map(|own| own.features.len() / own.len())?;
        let has_two = texts.clone().any(|pictures| pictures.len() > 1);
        let mut batch = Self {
            features: vec![0.0; counts.len() * length * width],
            boxes: vec![0.0; counts.len() * length * 4],
            pictures: if has_two { vec![0; counts.len() * length] } else { Vec::new() },
            counts,
            length,
            width,
            masked: Vec::new(),
        };
        for (row, pictures) in texts.enumerate() {
            let mut at = row * length;
            for (which, own) in pictures.iter().enumerate() {
                batch.features[at * width..][..own.features.len()].copy_from_slice(&own.features);
                batch.boxes[4 * at..][..4 * own.len()].copy_from_slice(own.boxes.as_flattened());
                if has_two {
                    batch.pictures[at..][..own.len()].fill(which as u8);
                }
                at += own.len();
            }
        }
        Some(batch)
    }

    fn to_device(&self, device: &Device) -> Regions {
        let (batch, length) = (self.counts.len(), self.length);
        let tensor = |values: &Vec<f32>, width| {
            Tensor::<3>::from_data(TensorData::new(values.clone(), [batch, length, width]), device)
        };
        let regions = Regions::new(tensor(&self.features, self.width), tensor(&self.boxes, 4), self.counts.clone());
        Regions { masked: self.masked.clone(), pictures: self.pictures.clone(), ..regions }
    }
}

/// The picture of a place among the regions of all pictures of a text, and which of its regions it is.
fn of_place(pictures: &[RegionFeatures], mut place: usize) -> (&RegionFeatures, usize) {
    for own in pictures {
        if place < own.len() {
            return (own, place);
        }
        place -= own.len();
    }
    unreachable!("a place is one of the text's regions")
}

/// Some of so many places in their order, at least one.
fn hidden_places(count: usize, share: f64, random: &mut ChaCha8Rng) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).filter(|_| random.random::<f64>() < share).collect();
    if places.is_empty() {
        places.push(random.random_range(0..count));
    }
    places
}

/// A text with some words hidden, at least one, and the right token of each place.
fn hide_words(text: &Encoded, masking: &Masking, random: &mut ChaCha8Rng) -> (Encoded, Vec<(usize, u32)>) {
    let Masking { share, special, vocabulary, .. } = *masking;
    let is_word = |id: u32| ![special.pad, special.class, special.separator, special.mask].contains(&id);
    let mut places: Vec<usize> = (0..text.ids.len()).filter(|at| is_word(text.ids[*at])).collect();
    let count = ((places.len() as f64 * share).round() as usize).clamp(1, places.len().max(1));
    places.shuffle(random);
    places.truncate(count);
    places.sort_unstable();
    let mut seen = text.clone();
    let predicted: Vec<(usize, u32)> = places.into_iter().map(|at| (at, text.ids[at])).collect();
    for (at, _) in &predicted {
        let kind = random.random::<f64>();
        if kind < HIDDEN {
            seen.ids[*at] = special.mask;
        } else if kind < HIDDEN + REPLACED {
            seen.ids[*at] = random.random_range(0..vocabulary as u32);
        }
    }
    (seen, predicted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::values;

    const SPECIAL: Special = Special { pad: 0, unknown: 1, class: 2, separator: 3, mask: 4 };

    fn masking(share: f64) -> Masking {
        Masking { share, special: SPECIAL, vocabulary: 40, seed: 7 }
    }

    fn encoded(ids: &[u32]) -> Encoded {
        Encoded { ids: ids.into(), types: vec![0; ids.len()], offsets: vec![(0, 0); ids.len()] }
    }

    fn picture(count: usize, first: f32) -> RegionFeatures {
        RegionFeatures {
            features: (0..2 * count).map(|at| first + at as f32).collect(),
            boxes: vec![[0.0, 0.1, 0.5, 0.6]; count],
            classes: (0..3 * count).map(|at| if at % 3 == 1 { 1.0 } else { 0.0 }).collect(),
        }
    }

    fn text(draw: u64, ids: &[u32], regions: Vec<RegionFeatures>) -> PreparedText {
        PreparedText {
            index: draw as usize,
            text: encoded(ids),
            wrong: Some(encoded(&[2, 30, 31, 3])),
            is_matched: draw.is_multiple_of(2),
            regions,
            answers: vec![(1, 0.9)],
            draw: [0, draw],
        }
    }

    #[test]
    fn hidden_words_are_found_where_they_were_and_special_tokens_are_never_hidden() {
        let texts: Vec<PreparedText> =
            (0..300).map(|draw| text(draw, &[2, 10, 11, 12, 13, 14, 15, 3], vec![picture(2, 0.0)])).collect();
        let batch = VisionLanguageBatch::new(&texts, Goal::Words, &masking(0.3));
        let GoalTargets::Words(tokens) = &batch.targets else { panic!("words are wanted") };
        assert_eq!((tokens.len(), batch.wanted.words.len(), batch.elements()), (600, 600, 600));
        let mut hidden = 0;
        for (at, token) in batch.wanted.words.iter().zip(tokens) {
            assert_eq!(*token, 9 + (at % 8) as u32);
            hidden += usize::from(batch.words.tokens.sentence(at / 8)[at % 8] == SPECIAL.mask);
        }
        // four deviations of 600 draws
        assert!((435..=525).contains(&hidden), "{hidden}");
        let alone = VisionLanguageBatch::new(&texts[7..8], Goal::Words, &masking(0.3));
        assert_eq!(alone.words.tokens.sentence(0), batch.words.tokens.sentence(7));
    }

    #[test]
    fn hidden_regions_keep_their_place_and_their_targets_are_their_own() {
        let texts = [
            text(0, &[2, 10, 3], vec![picture(2, 0.0), picture(3, 50.0)]),
            text(1, &[2, 11, 3], vec![picture(1, 9.0)]),
        ];
        let batch = VisionLanguageBatch::new(&texts, Goal::RegionFeatures, &masking(1.0));
        let GoalTargets::Features(features) = &batch.targets else { panic!("features are wanted") };
        assert_eq!(features[..], [0.0, 1.0, 2.0, 3.0, 50.0, 51.0, 52.0, 53.0, 54.0, 55.0, 9.0, 10.0]);
        assert_eq!(batch.wanted.regions, [0, 1, 2, 3, 4, 5]);
        let regions = batch.input(&cpu()).regions.unwrap();
        assert_eq!(
            (regions.counts.as_slice(), regions.pictures.as_slice()),
            (&[5, 1][..], &[0, 0, 1, 1, 1, 0, 0, 0, 0, 0][..])
        );
        assert_eq!(regions.masked.iter().filter(|masked| **masked).count(), 6);
        assert_eq!(values(&regions.features)[..10], features[..10]);
        let batch = VisionLanguageBatch::new(&texts, Goal::RegionKl, &masking(0.01));
        // of each text at least one
        assert_eq!((batch.elements(), &batch.targets), (2, &GoalTargets::Classes(vec![0.0, 1.0, 0.0, 0.0, 1.0, 0.0])));
    }

    #[test]
    fn matching_shows_right_and_wrong_texts_and_says_which() {
        let texts: Vec<PreparedText> = (0..4).map(|draw| text(draw, &[2, 10, 3], vec![picture(1, 0.0)])).collect();
        let batch = VisionLanguageBatch::new(&texts, Goal::Matching, &masking(0.15));
        assert_eq!(batch.targets, GoalTargets::Matched(vec![true, false, true, false]));
        assert_eq!(
            (batch.words.tokens.sentence(0), batch.words.tokens.sentence(1)),
            (&[2, 10, 3][..], &[2, 30, 31, 3][..])
        );
        assert!(batch.wanted.matching && batch.clone().blind().input(&cpu()).regions.is_none());
        let hiding = VisionLanguageBatch::hiding(&[(&texts[0], 1)], SPECIAL);
        assert_eq!((hiding.words.tokens.sentence(0), &hiding.targets), (&[2, 4, 3][..], &GoalTargets::Words(vec![10])));
    }
}
