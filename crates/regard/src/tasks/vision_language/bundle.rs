//! A trained model with all that it needs to answer: tokenizer, answers, and how regions are found in a picture.

use burn::module::Module as _;
use burn::tensor::{Device, activation};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::batch::VisionLanguageBatch;
use super::{
    ANSWERS, BLIND, Goal, Recipe, RegionCache, RegionRecipe, TOKENIZER, TextEncoder, TextPart, VisionLanguage,
};
use crate::analyse::{WordRegionRelevance, word_region_relevance};
use crate::data::text::{Encoded, WordPiece, shortened};
use crate::data::vision_language::{AnswerList, BlindBaseline, OnePicture, RegionFeatures, RegionSource, TextKind};
use crate::models::vision_language::{AnswerHead, VisionLanguageConfig, VisionLanguageModel, VisionLanguageOutput};
use crate::train::{Section as _, read_recipe_text};
use crate::weights::{self, LoadOptions, Tensors};
use crate::{Error, Pass, file};

/// The most bytes of a question.
pub const LONGEST_BYTES: usize = 4096;

/// A model and what it knows.
#[derive(Clone, Debug)]
pub struct VisionLanguageBundle {
    recipe: Recipe,
    config: VisionLanguageConfig,
    model: VisionLanguageModel,
    encoder: TextEncoder,
    answers: Option<Arc<AnswerList>>,
    blind: Arc<BlindBaseline>,
    /// Where regions come from: the recipe's, unless others were chosen.
    regions: RegionRecipe,
    source: Option<Arc<dyn RegionSource>>,
    device: Device,
}

/// A text and the regions of its pictures, ready for a model.
pub type TextWithRegions<'a> = (&'a Encoded, &'a [RegionFeatures]);

/// An answer with its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SaidAnswer {
    pub answer: String,
    pub probability: f64,
}

/// What a model answers, and what it looked at.
#[derive(Clone, Debug)]
pub struct Answered {
    /// The likeliest first.
    pub answers: Vec<SaidAnswer>,
    /// The tokens of the question as the model read it.
    pub tokens: Vec<String>,
    /// Words of the question that the model does not know.
    pub unknown: Vec<String>,
    /// Of each picture the [boxes](VisionLanguageBundle::boxes) of its regions.
    pub regions: Vec<Vec<[f32; 4]>>,
}

/// The files of a run folder, or of a model that comes along.
#[derive(Clone, Copy, Debug)]
pub struct BundleFiles<'a> {
    pub recipe: &'a str,
    pub model: &'a str,
    pub tokenizer: &'a str,
    pub answers: Option<&'a str>,
    pub blind: Option<&'a str>,
}

impl VisionLanguageBundle {
    /// The best weights of a run.
    ///
    /// # Errors
    /// When the folder holds no run of vision and language, or a file of it is damaged.
    pub fn open(folder: &Path, device: &Device) -> Result<Self, Error> {
        let read = |name: &str| file::read_text(&folder.join(name));
        let [recipe, model, tokenizer] = [read_recipe_text(folder)?, read("model.toml")?, read(TOKENIZER)?];
        let optional = |name: &str| if folder.join(name).is_file() { read(name).map(Some) } else { Ok(None) };
        let (answers, blind) = (optional(ANSWERS)?, optional(BLIND)?);
        let files = BundleFiles {
            recipe: &recipe,
            model: &model,
            tokenizer: &tokenizer,
            answers: answers.as_deref(),
            blind: blind.as_deref(),
        };
        let best = folder.join("best.safetensors");
        Self::new(files, folder, device, |model| Ok(weights::load(model, &best, &LoadOptions::default())?.model))
    }

    /// From texts and tensors; errors name `place`.
    ///
    /// # Errors
    /// When a text is damaged, or the tensors do not fit.
    pub fn from_files(files: BundleFiles, tensors: &Tensors, place: &Path, device: &Device) -> Result<Self, Error> {
        Self::new(files, place, device, |model| weights::fill(model, tensors))
    }

    fn new(
        files: BundleFiles,
        place: &Path,
        device: &Device,
        load: impl FnOnce(VisionLanguageModel) -> Result<VisionLanguageModel, Error>,
    ) -> Result<Self, Error> {
        let named = |name: &str| place.join(name);
        let wrong = |name: &str, error: Error| Error::file(&named(name), error);
        let recipe = Recipe::from_toml(files.recipe).map_err(|error| wrong("recipe.toml", error))?;
        recipe.own.validate(&recipe.common).map_err(|error| wrong("recipe.toml", error))?;
        let config = VisionLanguageConfig::from_toml(files.model).map_err(|error| wrong("model.toml", error))?;
        let tokenizer = WordPiece::from_json(files.tokenizer, &named(TOKENIZER))?;
        let (there, needed) = (tokenizer.vocabulary(), config.vocabulary());
        if there != needed {
            let reason = format!("has {there} tokens, the model was trained with {needed}: another tokenizer");
            return Err(Error::file(&named(TOKENIZER), reason));
        }
        let answers = files.answers.map(|text| AnswerList::new(text.lines().map(String::from).collect())).transpose();
        let answers = answers.map_err(|error| wrong(ANSWERS, error))?;
        if let (Some(outputs), Some(list)) = (config.answer().outputs(), &answers)
            && outputs != list.len()
        {
            let reason = format!("has {} answers, the model was trained with {outputs}", list.len());
            return Err(Error::file(&named(ANSWERS), reason));
        }
        let blind = files.blind.map(BlindBaseline::from_json).transpose();
        let blind = blind.map_err(|reason| Error::file(&named(BLIND), reason))?.unwrap_or_default();
        let regions = recipe.own.regions.clone();
        let source = if recipe.own.blind {
            None
        } else {
            Some(regions.open(box_classes(&config), device, RegionCache::OnDisk)?)
        };
        check_width(source.as_deref(), &config)?;
        let encoder = TextEncoder {
            tokenizer: Arc::new(tokenizer),
            longest: recipe.own.longest,
            ends_with_mask: config.answers_at_mask(),
        };
        let model = load(config.init(device)?)?;
        let (answers, blind, device) = (answers.map(Arc::new), Arc::new(blind), device.clone());
        Ok(Self { recipe, config, model, encoder, answers, blind, regions, source, device })
    }

    /// The same with other regions, such as those of a detector. A model that sees no pictures stays as it is.
    ///
    /// # Errors
    /// When there are no such regions, or they do not fit the model.
    pub fn with_regions(mut self, regions: &RegionRecipe, cache: RegionCache) -> Result<Self, Error> {
        if self.recipe.own.blind {
            return Ok(self);
        }
        let source = regions.open(box_classes(&self.config), &self.device, cache)?;
        check_width(Some(&*source), &self.config)?;
        (self.regions, self.source) = (regions.clone(), Some(source));
        Ok(self)
    }

    /// Where its regions come from; none for a model that sees no pictures.
    #[must_use]
    pub fn regions(&self) -> Option<&RegionRecipe> {
        self.source.as_ref().map(|_| &self.regions)
    }

    /// Numbers of a region's feature; none for a model that sees no pictures.
    #[must_use]
    pub fn region_width(&self) -> Option<usize> {
        self.source.as_ref().map(|source| source.width())
    }

    /// Pixels that a network runs on to find the regions of a picture of so many rows and columns.
    #[must_use]
    pub fn network_pixels(&self, size: [usize; 2]) -> usize {
        self.source.as_ref().map_or(0, |source| source.network_pixels(size))
    }

    /// Pictures that a text is about.
    #[must_use]
    pub const fn pictures(&self) -> usize {
        if matches!(self.config.answer(), AnswerHead::Pair) { 2 } else { 1 }
    }

    #[must_use]
    pub const fn device(&self) -> &Device {
        &self.device
    }

    #[must_use]
    pub const fn model(&self) -> &VisionLanguageModel {
        &self.model
    }

    #[must_use]
    pub const fn config(&self) -> &VisionLanguageConfig {
        &self.config
    }

    #[must_use]
    pub const fn recipe(&self) -> &Recipe {
        &self.recipe
    }

    #[must_use]
    pub fn answers(&self) -> Option<&[String]> {
        self.answers.as_ref().map(|list| list.names())
    }

    /// The task of the run for other data.
    pub(super) fn task(
        &self,
        recipe: &Recipe,
        goals: BTreeMap<Goal, f64>,
        part: &TextPart,
        device: &Device,
    ) -> Result<VisionLanguage, Error> {
        let classes = part.dataset.box_classes().len();
        let source = if recipe.own.blind {
            None
        } else {
            Some(recipe.own.regions.open(classes, device, RegionCache::OnDisk)?)
        };
        check_width(source.as_deref(), &self.config)?;
        Ok(VisionLanguage {
            recipe: recipe.clone(),
            train: part.clone(),
            validation: part.clone(),
            test: part.clone(),
            goals,
            encoder: self.encoder.clone(),
            answers: self.answers.clone(),
            blind: self.blind.clone(),
            source,
            config: self.config.clone(),
        })
    }

    /// The likeliest answers to a question about a picture, or about two for statements, at most so many. `boxes` are regions that
    /// somebody drew into the picture; without them they are found as the recipe says.
    ///
    /// # Errors
    /// When the question is empty or too long, the model does not answer, or a picture has no region.
    pub fn ask(&self, pictures: &[OnePicture], question: &str, most: usize) -> Result<Answered, Error> {
        Ok(self.ask_with(pictures, question, most, &mut Pass::silent())?.0)
    }

    /// The same with a pass that records, and all that the model gives.
    ///
    /// # Errors
    /// As [`ask`](Self::ask).
    pub fn ask_with(
        &self,
        pictures: &[OnePicture],
        question: &str,
        most: usize,
        pass: &mut Pass,
    ) -> Result<(Answered, VisionLanguageOutput), Error> {
        self.needs(self.missing_for_answers())?;
        let text = self.encode("question", question)?;
        let regions = self.find_regions(pictures)?;
        let (shares, output) = self.run(&[(&text, regions.as_slice())], pass)?;
        let answers = self.likeliest(&shares[0], most);
        let (tokens, unknown) = (self.tokens(&text), self.unknown_words(question, &text));
        let regions = regions.iter().map(|own| self.boxes(own)).collect();
        Ok((Answered { answers, tokens, unknown, regions }, output))
    }

    /// Probabilities of all answers for each text.
    ///
    /// # Errors
    /// When the model does not answer.
    pub fn probabilities(&self, texts: &[TextWithRegions]) -> Result<Vec<Vec<f32>>, Error> {
        self.needs(self.missing_for_answers())?;
        Ok(self.run(texts, &mut Pass::silent())?.0)
    }

    /// Probabilities of answers, and what the model gave and recorded; a pass that records has the plan of the alignment, too.
    pub(super) fn run(
        &self,
        texts: &[TextWithRegions],
        pass: &mut Pass,
    ) -> Result<(Vec<Vec<f32>>, VisionLanguageOutput), Error> {
        let batch = VisionLanguageBatch::pairs(texts, Goal::Answer);
        let batch = if pass.wants_weights() { batch.with_alignment() } else { batch };
        let output = self.model.forward(&batch.input(&self.device), pass);
        let logits = output.answer.clone().ok_or_else(|| self.lacks("a head for answers"))?;
        let count = logits.dims()[1];
        let shares: Vec<f32> = activation::softmax(logits, 1).into_data().iter::<f32>().collect();
        Ok((shares.chunks_exact(count).map(<[f32]>::to_vec).collect(), output))
    }

    /// The likeliest answers by their probabilities, at most so many.
    #[must_use]
    pub fn likeliest(&self, shares: &[f32], most: usize) -> Vec<SaidAnswer> {
        let names = self.answers().unwrap_or_default();
        let mut order: Vec<usize> = (0..shares.len().min(names.len())).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
        let said =
            |number: &usize| SaidAnswer { answer: names[*number].clone(), probability: f64::from(shares[*number]) };
        order.iter().take(most).map(said).collect()
    }

    /// How much likelier it is for each text that it is about the picture than that it is not, as probabilities.
    ///
    /// # Errors
    /// When a text is empty or too long, the model does not match, or the picture has no region.
    pub fn matches(&self, picture: &OnePicture, texts: &[&str]) -> Result<Vec<f64>, Error> {
        self.needs(self.missing_for_matching())?;
        let texts = texts.iter().map(|text| self.encode("text", text)).collect::<Result<Vec<_>, _>>()?;
        if texts.is_empty() {
            return Ok(Vec::new());
        }
        let regions = self.find_regions(std::slice::from_ref(picture))?;
        let rows: Vec<_> = texts.iter().map(|text| (text, regions.as_slice())).collect();
        self.match_probabilities(&rows)
    }

    /// The probability for each text that it is about its picture.
    ///
    /// # Errors
    /// When the model does not match.
    pub fn match_probabilities(&self, texts: &[TextWithRegions]) -> Result<Vec<f64>, Error> {
        self.needs(self.missing_for_matching())?;
        let batch = VisionLanguageBatch::pairs(texts, Goal::Matching);
        let output = self.model.forward(&batch.input(&self.device), &mut Pass::silent());
        let logits = output.matching.ok_or_else(|| self.lacks("a head for matching"))?;
        let shares: Vec<f32> = activation::softmax(logits, 1).into_data().iter::<f32>().collect();
        Ok(shares.as_chunks::<2>().0.iter().map(|pair| f64::from(pair[self.config.matched_class() as usize])).collect())
    }

    /// What is missing for answers.
    #[must_use]
    pub fn missing_for_answers(&self) -> Option<&'static str> {
        if self.answers.is_none() {
            return Some("a list of answers: it was trained on captions");
        }
        self.config
            .answer()
            .outputs()
            .is_none()
            .then_some("a head for answers: `answer` is not among the goals of its recipe")
    }

    /// What is missing to tell whether a text is about a picture: a head that has learned nothing tells nothing.
    #[must_use]
    pub fn missing_for_matching(&self) -> Option<&'static str> {
        let is_trained = self.trained_goals().contains(&Goal::Matching);
        (!is_trained).then_some("a trained head for matching: `matching` is not among the goals of its recipe")
    }

    /// What the model was trained for.
    #[must_use]
    pub fn trained_goals(&self) -> Vec<Goal> {
        let kind = if self.answers.is_some() { TextKind::Questions } else { TextKind::Captions };
        self.recipe.own.goals_for(kind).into_keys().collect()
    }

    /// What mattered for an answer; none where the model has no single stream for words and regions.
    pub(super) fn relevance(&self, asked: TextWithRegions, answer: usize) -> Option<WordRegionRelevance> {
        if self.pictures() > 1 {
            return None;
        }
        let model = self.model.clone().freeze();
        let input = VisionLanguageBatch::pairs(&[asked], Goal::Answer).input(&self.device);
        let logits =
            |pass: &mut Pass| model.forward(&input, pass).answer.ok_or_else(|| self.lacks("a head for answers"));
        // where the answer is read: at `[MASK]`, the last but one token, or at `[CLS]`
        let reader = if self.config.answers_at_mask() { asked.0.ids.len() - 2 } else { 0 };
        word_region_relevance(logits, answer, reader).ok()
    }

    /// Whether it was trained to align words with regions.
    pub(super) fn is_aligned(&self) -> bool {
        self.trained_goals().contains(&Goal::Alignment)
    }

    /// # Errors
    /// When something is missing.
    pub(super) fn needs(&self, missing: Option<&str>) -> Result<(), Error> {
        missing.map_or(Ok(()), |what| Err(self.lacks(what)))
    }

    fn lacks(&self, what: &str) -> Error {
        Error::Field { field: "model".into(), reason: format!("this {} lacks {what}", self.config.family()) }
    }

    /// A text as the model reads it; errors name it as `what` it is.
    ///
    /// # Errors
    /// When it is empty or too long, or the model knows none of its words.
    pub fn encode(&self, what: &'static str, text: &str) -> Result<Encoded, Error> {
        let failed = |reason: String| Error::Field { field: shortened(text), reason };
        if text.trim().is_empty() {
            return Err(Error::config(what, "is empty"));
        }
        if text.len() > LONGEST_BYTES {
            return Err(failed(format!("{} bytes, the most is {LONGEST_BYTES}", text.len())));
        }
        let whole = self.encoder.tokenizer.encode(text, None)?;
        let most = self.encoder.longest - usize::from(self.encoder.ends_with_mask);
        if whole.ids.len() > most {
            return Err(failed(format!("{} tokens, the most is {most}", whole.ids.len())));
        }
        let unknown = self.encoder.tokenizer.special().unknown;
        let is_known = |id: u32| id != unknown && self.encoder.tokenizer.token(id).contains(char::is_alphanumeric);
        let is_written = |at: usize| whole.offsets[at].1 > whole.offsets[at].0;
        if !(0..whole.ids.len()).any(|at| is_written(at) && is_known(whole.ids[at])) {
            let words = self.encoder.tokenizer.vocabulary();
            let reason =
                format!("none of its words is among the {words} tokens of the model: another language, or tokenizer?");
            return Err(failed(reason));
        }
        self.encoder.encode(text)
    }

    /// The tokens of a text as they are written.
    #[must_use]
    pub fn tokens(&self, text: &Encoded) -> Vec<String> {
        text.ids.iter().map(|id| self.encoder.tokenizer.token(*id)).collect()
    }

    /// The words of a text that became the token of unknown words.
    #[must_use]
    pub fn unknown_words(&self, text: &str, encoded: &Encoded) -> Vec<String> {
        let unknown = self.encoder.tokenizer.special().unknown;
        let written = |(start, end): (usize, usize)| text.chars().skip(start).take(end - start).collect::<String>();
        let all = encoded.ids.iter().zip(&encoded.offsets).filter(|(id, _)| **id == unknown);
        all.map(|(_, place)| written(*place)).collect()
    }

    /// The regions of the pictures that a text is about, those that somebody drew, or those that the model's source finds.
    ///
    /// # Errors
    /// When there are too few or too many pictures, or a picture has no region, one without area, or too many.
    pub fn find_regions(&self, pictures: &[OnePicture]) -> Result<Vec<RegionFeatures>, Error> {
        let most = self.recipe.own.most_regions;
        if pictures.len() != self.pictures() {
            let (count, needed) = (pictures.len(), self.pictures());
            return Err(Error::config("pictures", format!("the model is asked about {needed}, got {count}")));
        }
        for OnePicture { boxes, .. } in pictures {
            if boxes.len() > most {
                return Err(Error::config("regions", format!("{}, the most is {most}", boxes.len())));
            }
            if !boxes.is_empty() && !self.takes_boxes() {
                let reason = "the model does not see boxes that are given: it finds regions of another kind itself";
                return Err(Error::config("regions", reason));
            }
        }
        let Some(source) = &self.source else { return Ok(Vec::new()) };
        let own = |picture: &OnePicture| {
            let found = source.regions(picture)?.first(most);
            let reason = || Error::File { path: picture.name.into(), reason: "no region in it".into() };
            if found.is_empty() { Err(reason()) } else { Ok(found) }
        };
        pictures.iter().map(own).collect()
    }

    /// The boxes of regions in the order in which the model sees them: some families see the whole picture first.
    #[must_use]
    pub fn boxes(&self, regions: &RegionFeatures) -> Vec<[f32; 4]> {
        let whole = self.config.sees_whole_picture_first().then_some([0.0, 0.0, 1.0, 1.0]);
        whole.into_iter().chain(regions.boxes.iter().copied()).collect()
    }

    /// Whether regions can be given as boxes in a picture.
    #[must_use]
    pub const fn takes_boxes(&self) -> bool {
        self.source.is_some() && matches!(self.regions, RegionRecipe::Boxes { .. })
    }
}

/// Classes of boxes that regions of a model have, without the background.
fn box_classes(config: &VisionLanguageConfig) -> usize {
    config.classes().map_or(0, |classes| classes.saturating_sub(1))
}

fn check_width(source: Option<&dyn RegionSource>, config: &VisionLanguageConfig) -> Result<(), Error> {
    match (source, config.features()) {
        (Some(source), Some(own)) if source.width() != own => {
            let reason = format!("a region has {} numbers, the model was trained with {own}", source.width());
            Err(Error::config("regions", reason))
        }
        _ => Ok(()),
    }
}
