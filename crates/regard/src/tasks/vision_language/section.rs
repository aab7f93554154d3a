//! The keys of a recipe that are vision and language's own.

use rand::RngExt as _;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

use super::Recipe;
use super::regions::RegionRecipe;
use crate::Error;
use crate::data::vision_language::TextKind;
use crate::layers::Start;
use crate::models::vision_language::{self, AnswerHead, VisionLanguageConfig};
use crate::random::{Purpose, generator};
use crate::train::{Common, Optimiser, Schedule, ScheduleShape, Section, check_positive, check_share};

/// The goal of a step. One is drawn for each step, as in UNITER.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Goal {
    /// Hidden words, from the others and the picture.
    Words,
    /// The features of hidden regions (UNITER's MRFR).
    RegionFeatures,
    /// The best class of hidden regions (MRC).
    RegionClasses,
    /// The distribution over classes of hidden regions (MRC-kl).
    RegionKl,
    /// Whether a text is about a picture.
    Matching,
    /// Which words are about which regions (WRA).
    Alignment,
    /// The answer to a question, or whether a statement is true.
    Answer,
}

impl Goal {
    /// Names of the parts of the loss, in the order of the goals.
    pub const NAMES: &'static [&'static str] =
        &["words", "region-features", "region-classes", "region-kl", "matching", "alignment", "answer"];

    #[must_use]
    pub const fn number(self) -> usize {
        self as usize
    }

    /// Whether a wrong text is needed beside each right one.
    #[must_use]
    pub const fn needs_wrong_text(self) -> bool {
        matches!(self, Self::Matching | Self::Alignment)
    }

    /// Whether it is about the classes of regions.
    #[must_use]
    pub const fn needs_classes(self) -> bool {
        matches!(self, Self::RegionClasses | Self::RegionKl)
    }
}

/// The loss of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AnswerLoss {
    /// Cross-entropy with the scores as a distribution, as in `VisualBERT`.
    #[default]
    CrossEntropy,
    /// A yes or no for each answer, with its score, as in UNITER and `ViLBERT`.
    Binary,
}

/// How texts about pictures become batches and losses. Every key has a default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
pub struct VisionLanguageSection {
    /// Most regions of a picture.
    pub most_regions: usize,
    /// Whether pictures are left out: what can be answered from the text alone.
    pub blind: bool,
    /// Only so many training texts; 0 is all.
    pub texts: usize,
    /// Only so many texts of the validation and of the test part; 0 is all.
    pub test_texts: usize,
    /// Texts of a step, over all processes and accumulated parts.
    pub batch: usize,
    /// Threads that prepare texts and pictures.
    pub workers: usize,
    /// Most tokens of a text; more are cut off.
    pub longest: usize,
    /// Most tokens of a vocabulary that is learned; data with words of its own, or a tokenizer, has another.
    pub vocabulary: usize,
    /// A `vocab.txt` or `tokenizer.json` instead.
    pub tokenizer: Option<String>,
    /// Answers that come less often in training are not learned.
    pub least_answers: usize,
    pub answer_loss: AnswerLoss,
    /// Share of words or regions that are hidden.
    pub mask: f64,
    /// Share of the wrong texts that are wrong by one word, where the data has such.
    pub hard_negatives: f64,
    /// Texts whose words are hidden one by one to measure how many are found.
    pub measured_words: usize,
    /// Pictures and texts among which each other is looked for at the end; 0 for none.
    pub retrieval: usize,
    /// What a model without `weights` holds before training.
    pub start: Start,
    /// The goals, each with its weight; by default answers where there are some, else words and matching.
    pub goals: BTreeMap<Goal, f64>,
    /// Where regions of pictures come from.
    pub regions: RegionRecipe,
}

impl Default for VisionLanguageSection {
    fn default() -> Self {
        Self {
            most_regions: 100,
            blind: false,
            texts: 0,
            test_texts: 0,
            batch: 64,
            workers: 2,
            longest: 60,
            vocabulary: 8000,
            tokenizer: None,
            least_answers: 1,
            answer_loss: AnswerLoss::default(),
            mask: 0.15,
            hard_negatives: 0.5,
            measured_words: 300,
            retrieval: 100,
            start: Start::default(),
            goals: BTreeMap::new(),
            regions: RegionRecipe::default(),
        }
    }
}

impl VisionLanguageSection {
    /// The goals for texts of a kind, with positive weights.
    #[must_use]
    pub fn goals_for(&self, kind: TextKind) -> BTreeMap<Goal, f64> {
        let own: BTreeMap<Goal, f64> = self.goals.clone().into_iter().filter(|(_, weight)| *weight > 0.0).collect();
        if !own.is_empty() {
            return own;
        }
        match kind {
            TextKind::Captions => [(Goal::Words, 2.0), (Goal::Matching, 1.0)].into(),
            TextKind::Questions | TextKind::Statements => [(Goal::Answer, 1.0)].into(),
        }
    }
}

/// The goal of a step: drawn by weight, the same in every process.
#[must_use]
pub fn goal_of_step(goals: &BTreeMap<Goal, f64>, seed: u64, epoch: usize, step: usize) -> Goal {
    let last = goals.keys().next_back().copied().unwrap_or(Goal::Answer);
    let total: f64 = goals.values().sum();
    let mut left = generator(seed, Purpose::Goal, [epoch as u64, step as u64]).random::<f64>() * total;
    for (goal, weight) in goals {
        if left < *weight {
            return *goal;
        }
        left -= weight;
    }
    last
}

impl Section for VisionLanguageSection {
    fn common() -> Common {
        Common {
            model: "uniter-nano".into(),
            data: "questions".into(),
            epochs: 10,
            clip: 1.0,
            optimiser: Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.98], epsilon: 1e-8, decay: 0.01 },
            schedule: Schedule { shape: ScheduleShape::Cosine, warmup: 0.5, ..Schedule::default() },
            ..Common::default()
        }
    }

    fn validate(&self, common: &Common) -> Result<(), Error> {
        check_positive("batch", self.batch)?;
        check_positive("most-regions", self.most_regions)?;
        if !self.batch.is_multiple_of(common.accumulate) {
            let reason = format!("{} parts do not divide a batch of {}", common.accumulate, self.batch);
            return Err(Error::config("accumulate", reason));
        }
        // one word between the tokens to begin and to end with, and one that hides
        if self.longest < 4 {
            return Err(Error::config("longest", format!("must be at least 4, got {}", self.longest)));
        }
        if !(self.mask > 0.0 && self.mask <= 1.0) {
            return Err(Error::config("mask", format!("must be above 0 and at most 1, got {}", self.mask)));
        }
        check_share("hard-negatives", self.hard_negatives)?;
        if let Some((goal, weight)) = self.goals.iter().find(|(_, weight)| !(weight.is_finite() && **weight >= 0.0)) {
            let name = Goal::NAMES[goal.number()];
            return Err(Error::Field {
                field: format!("goals.{name}"),
                reason: format!("must be at least 0, got {weight}"),
            });
        }
        let is_about_regions =
            |(goal, weight): (&Goal, &f64)| *weight > 0.0 && !matches!(goal, Goal::Words | Goal::Answer);
        if self.blind && self.goals.iter().any(is_about_regions) {
            return Err(Error::config("blind", "without pictures only `words` and `answer` can be learned"));
        }
        self.regions.validate()?;
        let config = vision_language::preset(&common.model)?;
        if config.features().is_none() {
            let reason = format!("`{}` reads videos, not regions of pictures", common.model);
            return Err(Error::config("model", reason));
        }
        if self.blind && !config.reads_text_alone() {
            return Err(Error::config("blind", format!("`{}` cannot read a text without a picture", common.model)));
        }
        Ok(())
    }
}

/// The sizes of a model that follow from the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelSizes {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub longest: usize,
    /// Numbers of a region; none leaves the preset's.
    pub features: Option<usize>,
    /// Classes of a region, the background among them; none leaves the preset's.
    pub classes: Option<usize>,
    pub answer: AnswerHead,
}

impl ModelSizes {
    /// A preset with these sizes.
    fn applied(self, config: VisionLanguageConfig) -> Result<VisionLanguageConfig, Error> {
        let answer = serde_json::to_value(self.answer).expect("plain data");
        let mut config = config.with("vocabulary", json!(self.vocabulary))?.with("answer", answer)?;
        if config.positions() < self.longest {
            config = config.with("positions", json!(self.longest))?;
        }
        if let Some(features) = self.features {
            config = config.with("features", json!(features))?;
        }
        if let Some(classes) = self.classes.filter(|_| config.classes().is_some()) {
            config = config.with("classes", json!(classes))?;
        }
        // regions of a second picture have a type of their own
        if self.answer == AnswerHead::Pair && matches!(config, VisionLanguageConfig::Uniter(_)) {
            config = config.with("types", json!(3))?;
        }
        Ok(config)
    }
}

impl Recipe {
    /// The model for these sizes.
    ///
    /// # Errors
    /// When a field of the model is unknown or cannot work.
    pub fn model(&self, sizes: ModelSizes) -> Result<VisionLanguageConfig, Error> {
        let config = sizes.applied(vision_language::preset(&self.common.model)?)?;
        self.common.changes().try_fold(config, |config, (field, value)| config.with(field, value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_come_as_often_as_they_weigh_and_alike_in_every_process() {
        let goals: BTreeMap<Goal, f64> = [(Goal::Words, 3.0), (Goal::Matching, 1.0)].into();
        let words = (0..4000).filter(|step| goal_of_step(&goals, 5, 1, *step) == Goal::Words).count();
        assert!((2850..3150).contains(&words), "{words}");
        assert_eq!(goal_of_step(&goals, 5, 2, 7), goal_of_step(&goals, 5, 2, 7));
        let section = VisionLanguageSection::default();
        assert_eq!(section.goals_for(TextKind::Questions), [(Goal::Answer, 1.0)].into());
        assert!(section.goals_for(TextKind::Captions).contains_key(&Goal::Words));
    }

    #[test]
    fn a_recipe_can_be_read_back_and_nonsense_is_refused_by_name() {
        let text = "task = 'vision-language'\nbatch = 32\n[goals]\nwords = 2\nregion-kl = 1.5\n[regions]\nsource = 'grid'\ngrid = 4\nside = 16";
        let recipe = Recipe::from_toml(text).unwrap();
        assert_eq!(Recipe::from_toml(&recipe.to_toml("vision-language")).unwrap(), recipe);
        assert_eq!((recipe.own.goals[&Goal::RegionKl], recipe.own.batch), (1.5, 32));
        let refused = |text: &str| Recipe::from_toml(text).unwrap_err().to_string();
        assert!(refused("mask = 0").contains("`mask`"));
        assert!(refused("longest = 2").contains("`longest`"));
        assert!(refused("hard-negatives = 2").contains("`hard-negatives`"));
        assert!(refused("goals = { words = -1 }").contains("`goals.words`"));
        assert!(refused("goals = { word = 1 }").contains("word"));
        assert!(refused("blind = true\ngoals = { matching = 1 }").contains("`blind`"));
        assert!(refused("regions = { source = 'grid', grid = 0, side = 8 }").contains("grid"));
    }
}
