//! Vision and language: texts about pictures. Hidden words and regions, matching and alignment (UNITER, VisualBERT), answers to
//! questions (VQA), statements about one picture or two (NLVR, NLVR2), and looking for pictures by texts.
//! Chen et al. 2019, arXiv:1909.11740; Li et al. 2019, arXiv:1908.03557; Goyal et al. 2017, arXiv:1612.00837.
//!
//! A sample is a text with the regions of its picture ([`RegionSource`]). Every step has one goal, drawn by weight. What is right
//! without looking stands beside every figure ([`BlindBaseline`]).

mod batch;
mod bundle;
mod embedded;
mod explain;
mod measure;
mod objective;
mod regions;
mod samples;
mod section;
mod start;

pub use batch::{GoalTargets, Masking, RegionBatch, VisionLanguageBatch};
pub use bundle::{BundleFiles, LONGEST_BYTES, ScoredAnswer, TextWithRegions, VisionLanguageBundle, VqaOutput};
pub use embedded::{EMBEDDED_ANSWERERS, EmbeddedAnswerer};
pub use explain::{AnswerExplanation, CrossModal};
pub use objective::VisionLanguageLoss;
pub use regions::{DetectedFeature, DetectedLimits, DetectedRegions, RegionCache, RegionRecipe};
pub use samples::{PreparedText, TextEncoder, TextSamples};
pub use section::{AnswerLoss, Goal, ModelSizes, VisionLanguageSection};

use burn::module::Module as _;
use burn::tensor::Device;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::training_batches::TrainingBatches;
use crate::Error;
use crate::data::dataset::Origin;
use crate::data::text::{Letters, WordPiece};
use crate::data::vision_language::{
    AnswerList, BlindBaseline, PictureUse, RegionSource, TextKind, TextSample, VisionLanguageDataset,
    VisionLanguageParts, open, open_parts, picture_count,
};
use crate::data::{Loader, Part};
use crate::evaluate::{Better, Metric, Unit};
use crate::models::vision_language::{AnswerHead, VisionLanguageConfig, VisionLanguageModel};
use crate::train::{
    self, Common, EvalReport, EvalRequest, Measured, ModelCost, Share, Split, Steps, Task, Validation, no_part,
};
use measure::MeasuredPart;
use section::goal_of_step;

/// A recipe of vision and language.
pub type Recipe = train::Recipe<VisionLanguageSection>;

/// The texts of a recipe, and the model for them.
#[derive(Clone, Debug)]
pub struct VisionLanguage {
    recipe: Recipe,
    train: TextPart,
    validation: TextPart,
    test: TextPart,
    goals: BTreeMap<Goal, f64>,
    encoder: TextEncoder,
    answers: Option<Arc<AnswerList>>,
    blind: Arc<BlindBaseline>,
    /// None leaves pictures out.
    source: Option<Arc<dyn RegionSource>>,
    config: VisionLanguageConfig,
}

/// Some texts of a dataset.
#[derive(Clone, Debug)]
struct TextPart {
    dataset: Arc<dyn VisionLanguageDataset>,
    indices: Arc<Vec<usize>>,
}

impl TextPart {
    /// The first so many texts, or all for 0.
    fn first(dataset: Arc<dyn VisionLanguageDataset>, most: usize) -> Self {
        let taken = if most == 0 { dataset.len() } else { most.min(dataset.len()) };
        Self { dataset, indices: Arc::new((0..taken).collect()) }
    }

    fn samples(&self) -> impl Iterator<Item = Result<TextSample, Error>> {
        self.indices.iter().map(|index| self.dataset.sample(*index))
    }
}

const TOKENIZER: &str = "tokenizer.json";
const ANSWERS: &str = "answers.txt";
const BLIND: &str = "blind.json";

/// The answers to statements, in the order of the heads of NLVR2.
const STATEMENTS: [&str; 2] = ["false", "true"];

fn tokenizer(recipe: &Recipe, train: &TextPart, texts: &[TextSample]) -> Result<WordPiece, Error> {
    if let Some(path) = &recipe.own.tokenizer {
        return WordPiece::load(Path::new(path));
    }
    if let Some(vocabulary) = train.dataset.vocabulary() {
        return WordPiece::from_vocabulary(&vocabulary, None, Path::new("vocab.txt"));
    }
    WordPiece::train(Letters::Uncased, recipe.own.vocabulary, texts.iter().map(|sample| sample.text.as_str()))
}

fn answer_list(recipe: &Recipe, train: &TextPart, texts: &[TextSample]) -> Result<Option<AnswerList>, Error> {
    match (train.dataset.kind(), train.dataset.answers()) {
        (TextKind::Captions, _) => Ok(None),
        (TextKind::Statements, _) => AnswerList::new(STATEMENTS.map(String::from).to_vec()).map(Some),
        (TextKind::Questions, Some(own)) => AnswerList::new(own.to_vec()).map(Some),
        (TextKind::Questions, None) => {
            let answers = texts.iter().map(|sample| sample.answers.as_slice());
            AnswerList::frequent(answers, recipe.own.least_answers).map(Some)
        }
    }
}

impl VisionLanguage {
    fn of(recipe: &Recipe, kept: &BTreeMap<String, String>, device: &Device) -> Result<Self, Error> {
        let own = &recipe.own;
        let VisionLanguageParts { train, validation, test, .. } = open_parts(&recipe.common.data, picture_use(own))?;
        let (train, validation) = match recipe.common.validation {
            Validation::Part => (train, validation),
            Validation::Test => (open(&recipe.common.data, Part::TrainAndValidation, picture_use(own))?, test.clone()),
        };
        let train = TextPart::first(train, own.texts);
        let [validation, test] = [validation, test].map(|part| TextPart::first(part, own.test_texts));
        let texts: Vec<TextSample> = train.samples().collect::<Result<_, _>>()?;
        let tokenizer = match kept.get(TOKENIZER) {
            Some(text) => WordPiece::from_json(text, Path::new(TOKENIZER))?,
            None => tokenizer(recipe, &train, &texts)?,
        };
        let answers = match kept.get(ANSWERS) {
            Some(text) => Some(AnswerList::new(text.lines().map(String::from).collect())?),
            None => answer_list(recipe, &train, &texts)?,
        };
        let blind = match kept.get(BLIND) {
            Some(text) => BlindBaseline::from_json(text).map_err(|reason| Error::file(Path::new(BLIND), reason))?,
            None => BlindBaseline::new(texts.iter().map(|sample| (sample.text.as_str(), sample.answers.as_slice()))),
        };
        let source = if own.blind {
            None
        } else {
            Some(own.regions.open(train.dataset.box_classes().len(), device, RegionCache::OnDisk)?)
        };
        let goals = own.goals_for(train.dataset.kind());
        check_goals(&goals, answers.as_ref(), source.as_deref())?;
        let head = match (&answers, train.dataset.pictures()) {
            (None, _) => AnswerHead::None,
            (Some(_), 2) => AnswerHead::Pair,
            (Some(list), _) => AnswerHead::Question { answers: list.len() },
        };
        let head = if goals.contains_key(&Goal::Answer) { head } else { AnswerHead::None };
        let sizes = ModelSizes {
            vocabulary: tokenizer.vocabulary(),
            longest: own.longest,
            features: source.as_ref().map(|source| source.width()),
            classes: source.as_ref().map(|source| source.classes()).filter(|classes| *classes > 0),
            answer: head,
        };
        let config = recipe.model(sizes)?;
        if own.longest > config.positions() {
            let reason = format!("{} tokens are over the {} positions of the model", own.longest, config.positions());
            return Err(Error::config("longest", reason));
        }
        let encoder = TextEncoder {
            tokenizer: Arc::new(tokenizer),
            longest: own.longest,
            ends_with_mask: config.answers_at_mask(),
        };
        let answers = answers.map(Arc::new);
        let (recipe, blind) = (recipe.clone(), Arc::new(blind));
        Ok(Self { recipe, train, validation, test, goals, encoder, answers, blind, source, config })
    }

    fn masking(&self) -> Masking {
        let tokenizer = &self.encoder.tokenizer;
        let (share, special, vocabulary) = (self.recipe.own.mask, tokenizer.special(), tokenizer.vocabulary());
        Masking { share, special, vocabulary, seed: self.recipe.common.seed }
    }

    fn samples(&self, part: &TextPart) -> TextSamples {
        let own = &self.recipe.own;
        TextSamples {
            dataset: part.dataset.clone(),
            indices: part.indices.clone(),
            encoder: self.encoder.clone(),
            regions: self.source.clone(),
            most_regions: own.most_regions,
            answers: self.answers.clone(),
            wrong_texts: self.goals.keys().any(|goal| goal.needs_wrong_text()).then_some(own.hard_negatives),
            seed: self.recipe.common.seed,
        }
    }

    fn training(&self) -> TrainingBatches<'_> {
        TrainingBatches {
            common: &self.recipe.common,
            items: "texts",
            samples: self.train.indices.len(),
            batch: self.recipe.own.batch,
            repeats: 1,
        }
    }

    fn learning(&self, share: Share) -> Result<Loader<TextSamples>, Error> {
        let order = self.training().order(share)?;
        Ok(Loader { samples: self.samples(&self.train), order, workers: self.recipe.own.workers })
    }

    fn measured<'a>(&'a self, part: &TextPart, device: &'a Device) -> MeasuredPart<'a> {
        // what is wrong on purpose is the same for every run
        MeasuredPart { task: self, samples: TextSamples { seed: 0, ..self.samples(part) }, device }
    }
}

/// Whether the recipe needs the pictures themselves.
const fn picture_use(own: &VisionLanguageSection) -> PictureUse {
    if own.blind || !own.regions.needs_pictures() { PictureUse::NotNeeded } else { PictureUse::Needed }
}

/// Refuses goals that the data has nothing for.
fn check_goals(
    goals: &BTreeMap<Goal, f64>,
    answers: Option<&AnswerList>,
    source: Option<&dyn RegionSource>,
) -> Result<(), Error> {
    for goal in goals.keys() {
        let field = || format!("goals.{}", Goal::NAMES[goal.number()]);
        if *goal == Goal::Answer && answers.is_none() {
            return Err(Error::Field { field: field(), reason: "captions have no answers".into() });
        }
        if goal.needs_classes() && source.is_some_and(|source| source.classes() == 0) {
            let reason = "these regions have no known classes; `region-features` needs none".into();
            return Err(Error::Field { field: field(), reason });
        }
    }
    Ok(())
}

impl Task for VisionLanguage {
    const NAME: &'static str = "vision-language";
    const ALIASES: &'static [&'static str] = &["vqa"];
    const METRICS: &'static [Metric] = &[
        Metric::new("score", "score", Better::Higher, Unit::Percent),
        Metric::new("accuracy", "accuracy", Better::Higher, Unit::Percent),
        Metric::new("blind", "without looking", Better::Higher, Unit::Percent),
        Metric::new("words", "hidden words", Better::Higher, Unit::Percent),
        Metric::new("words_blind", "hidden words without the picture", Better::Higher, Unit::Percent),
        Metric::new("matching", "matching", Better::Higher, Unit::Percent),
        Metric::new("picture_recall_1", "picture of a text, recall at 1", Better::Higher, Unit::Percent),
        Metric::new("picture_recall_5", "picture of a text, recall at 5", Better::Higher, Unit::Percent),
        Metric::new("picture_recall_10", "picture of a text, recall at 10", Better::Higher, Unit::Percent),
        Metric::new("text_recall_1", "text of a picture, recall at 1", Better::Higher, Unit::Percent),
        Metric::new("text_recall_5", "text of a picture, recall at 5", Better::Higher, Unit::Percent),
        Metric::new("text_recall_10", "text of a picture, recall at 10", Better::Higher, Unit::Percent),
    ];
    const ITEMS: &'static str = "texts";
    const KEPT: &'static [&'static str] = &[TOKENIZER, ANSWERS, BLIND];

    type Section = VisionLanguageSection;
    type Objective = VisionLanguageLoss;

    /// A run that goes on keeps its tokens and answers, whatever became of the data.
    fn open(recipe: &Recipe, kept: &BTreeMap<String, String>) -> Result<Self, Error> {
        Self::of(recipe, kept, &crate::device::cpu())
    }

    fn files(&self) -> Vec<(&'static str, String)> {
        let answers = self.answers.as_ref().map(|list| (ANSWERS, list.names().join("\n") + "\n"));
        let files = [
            (TOKENIZER, self.encoder.tokenizer.to_json()),
            ("model.toml", self.config.to_toml()),
            (BLIND, self.blind.to_json()),
        ];
        files.into_iter().chain(answers).collect()
    }

    fn agreement(&self) -> BTreeMap<&'static str, String> {
        let answers = self.answers.as_ref().map_or(0, |list| list.len());
        [
            ("training texts", self.train.indices.len().to_string()),
            ("vocabulary", self.encoder.tokenizer.vocabulary().to_string()),
            ("answers", answers.to_string()),
        ]
        .into()
    }

    fn begin(&self, weights: bool, device: &Device) -> Result<(VisionLanguageLoss, VisionLanguageModel), Error> {
        let Common { seed, weights: ref address, .. } = self.recipe.common;
        device.seed(seed);
        let device = device.clone().autodiff();
        let model = self.config.init(&device)?;
        let model = match address.as_ref().filter(|_| weights) {
            Some(address) => start::start(model, address)?,
            None => self.recipe.own.start.apply(model),
        };
        let (config, answer_loss, is_mixed) = (self.config.clone(), self.recipe.own.answer_loss, self.goals.len() > 1);
        Ok((VisionLanguageLoss { config, answer_loss, is_mixed, seed, device }, model))
    }

    fn epoch_steps(&self, ranks: usize) -> Result<usize, Error> {
        self.training().epoch_steps(ranks)
    }

    fn steps(&self, epoch: usize, first: usize, share: Share) -> Steps<'_, VisionLanguageBatch> {
        let (accumulate, seed) = (self.recipe.common.accumulate, self.recipe.common.seed);
        let loader = match self.learning(share) {
            Ok(loader) => loader,
            Err(error) => return Box::new(std::iter::once(Err(error))),
        };
        let masking = self.masking();
        let batches = loader.epoch(epoch, first * accumulate).enumerate().map(move |(number, texts)| {
            let goal = goal_of_step(&self.goals, seed, epoch, first + number / accumulate);
            Ok(VisionLanguageBatch::new(&texts?, goal, &masking))
        });
        train::grouped(batches, accumulate)
    }

    fn measure(
        &self,
        model: &VisionLanguageModel,
        split: Split,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<Option<Measured>, Error> {
        let part = match split {
            Split::Validation { .. } => &self.validation,
            Split::Test => &self.test,
        };
        if part.indices.is_empty() {
            return Ok(None);
        }
        self.measured(part, device).measure(model, split == Split::Test, watch).map(Some)
    }

    /// On any data of the same kind; answers are compared by name.
    fn evaluate(
        recipe: &Recipe,
        request: &EvalRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let bundle = VisionLanguageBundle::open(request.folder, device)?;
        let pictures = picture_use(&recipe.own);
        let parts = open_parts(request.data, pictures)?;
        let is_own = request.data == recipe.common.data;
        let no_test = parts.origins.test == Origin::FifthOfPictures || parts.test.is_empty();
        // a fifth of other data is the test only because something must be
        let whole = request.part == Part::Test && no_test && !is_own;
        let dataset = match parts.part(request.part) {
            Some(part) if !whole => part.clone(),
            _ => open(request.data, Part::All, pictures)?,
        };
        if dataset.is_empty() {
            return Err(no_part(request.part, "is not in the data"));
        }
        let goals = recipe.own.goals_for(dataset.kind());
        // on its own data what the run was measured on
        let part = TextPart::first(dataset, if is_own { recipe.own.test_texts } else { 0 });
        let task = bundle.task(recipe, goals, &part, device)?;
        let measured = task.measured(&part, device).measure(bundle.model(), true, watch)?;
        let Measured { values, findings } = measured;
        let mut lines = Self::shown(&values);
        if whole {
            lines.push(("measured on".into(), "all texts: the data has no parts".into()));
        }
        let facts: BTreeMap<&str, &str> =
            findings.facts.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let json = serde_json::json!({ "metrics": values, "facts": facts });
        lines.extend(findings.facts.iter().cloned());
        Ok(EvalReport { lines, json, figures: Vec::new() })
    }

    fn cost(&self) -> Result<ModelCost, Error> {
        let model = self.config.init(&crate::device::cpu())?;
        Ok(ModelCost { parameters: model.num_params() as u64, multiply_adds: None })
    }

    fn facts(&self) -> Vec<(String, String)> {
        let goals: Vec<String> =
            self.goals.iter().map(|(goal, weight)| format!("{} {weight}", Goal::NAMES[goal.number()])).collect();
        let part = |part: &TextPart| format!("{} about {} pictures", part.indices.len(), picture_count(&*part.dataset));
        let validation = self.recipe.common.validation.fact(part(&self.validation), "texts");
        let facts = [
            ("parameters", self.cost().map(|cost| cost.parameters.to_string()).unwrap_or_default()),
            ("goals", goals.join(", ")),
            ("vocabulary", self.encoder.tokenizer.vocabulary().to_string()),
            ("answers", self.answers.as_ref().map_or("none".into(), |list| list.len().to_string())),
            ("training texts", part(&self.train)),
            ("validation texts", validation),
            ("test texts", part(&self.test)),
        ];
        facts.map(|(name, value)| (name.to_string(), value)).into()
    }
}

#[cfg(test)]
mod tests;
