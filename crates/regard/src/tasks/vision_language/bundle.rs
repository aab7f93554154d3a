//! A trained model with all that it needs to answer: tokenizer, answers, and how regions are found in a picture.

use burn::tensor::{Device, activation};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use super::batch::VisionLanguageBatch;
use super::{ANSWERS, BLIND, Goal, Recipe, RegionRecipe, TOKENIZER, TextEncoder, TextPart, VisionLanguage};
use crate::data::text::{WordPiece, shortened};
use crate::data::vision_language::{AnswerList, BlindBaseline, OnePicture, RegionFeatures, RegionSource};
use crate::models::vision_language::{VisionLanguageConfig, VisionLanguageModel, VisionLanguageOutput};
use crate::train::{Section as _, read_recipe_text};
use crate::weights::{self, LoadOptions, Tensors};
use crate::{Error, Pass, file};

/// The most bytes of a question.
const LONGEST_BYTES: usize = 4096;

/// A model and what it knows.
#[derive(Clone, Debug)]
pub struct VisionLanguageBundle {
    recipe: Recipe,
    config: VisionLanguageConfig,
    model: VisionLanguageModel,
    encoder: TextEncoder,
    answers: Option<Arc<AnswerList>>,
    blind: Arc<BlindBaseline>,
    source: Option<Arc<dyn RegionSource>>,
    device: Device,
}

/// An answer with its probability.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScoredAnswer {
    pub answer: String,
    pub probability: f64,
}

/// Answers to a question, with the tokens and regions that the model saw.
#[derive(Clone, Debug)]
pub struct VqaOutput {
    /// The likeliest first.
    pub answers: Vec<ScoredAnswer>,
    /// The tokens of the question as the model read it.
    pub tokens: Vec<String>,
    pub regions: Vec<RegionFeatures>,
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
        let source = if recipe.own.blind { None } else { Some(recipe.own.regions.open(box_classes(&config), device)?) };
        check_width(source.as_deref(), &config)?;
        let encoder = TextEncoder {
            tokenizer: Arc::new(tokenizer),
            longest: recipe.own.longest,
            ends_with_mask: config.answers_at_mask(),
        };
        let model = load(config.init(device)?)?;
        let (answers, blind, device) = (answers.map(Arc::new), Arc::new(blind), device.clone());
        Ok(Self { recipe, config, model, encoder, answers, blind, source, device })
    }

    /// The same with other regions, such as those of a detector.
    ///
    /// # Errors
    /// When there are no such regions, or they do not fit the model.
    pub fn with_regions(mut self, regions: &RegionRecipe) -> Result<Self, Error> {
        let source = regions.open(box_classes(&self.config), &self.device)?;
        check_width(Some(&*source), &self.config)?;
        self.source = Some(source);
        Ok(self)
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
        let source = if recipe.own.blind { None } else { Some(recipe.own.regions.open(classes, device)?) };
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
    pub fn ask(&self, pictures: &[OnePicture], question: &str, most: usize) -> Result<VqaOutput, Error> {
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
    ) -> Result<(VqaOutput, VisionLanguageOutput), Error> {
        let failed = |reason: String| Error::Field { field: shortened(question), reason };
        let Some(list) = &self.answers else {
            return Err(failed("the model knows no answers: it was trained on captions".into()));
        };
        let text = self.encode(question)?;
        let regions = self.regions(pictures)?;
        let batch = VisionLanguageBatch::pairs(&[(&text, regions.as_slice())], Goal::Answer);
        let output = self.model.forward(&batch.input(&self.device), pass);
        let logits = output.answer.clone().ok_or_else(|| failed("the model has no head for answers".into()))?;
        let shares: Vec<f32> = activation::softmax(logits, 1).into_data().iter::<f32>().collect();
        let mut order: Vec<usize> = (0..shares.len()).collect();
        order.sort_by(|a, b| shares[*b].total_cmp(&shares[*a]).then(a.cmp(b)));
        let said = |number: &usize| ScoredAnswer {
            answer: list.names()[*number].clone(),
            probability: f64::from(shares[*number]),
        };
        let answers = order.iter().take(most).map(said).collect();
        let tokens = text.ids.iter().map(|id| self.encoder.tokenizer.token(*id)).collect();
        Ok((VqaOutput { answers, tokens, regions }, output))
    }

    /// For each text, the probability that it is about the picture.
    ///
    /// # Errors
    /// When a text is empty or too long, the model does not match, or the picture has no region.
    pub fn matches(&self, picture: &OnePicture, texts: &[&str]) -> Result<Vec<f64>, Error> {
        let regions = self.regions(std::slice::from_ref(picture))?;
        let texts = texts.iter().map(|text| self.encode(text)).collect::<Result<Vec<_>, _>>()?;
        let rows: Vec<_> = texts.iter().map(|text| (text, regions.as_slice())).collect();
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let batch = VisionLanguageBatch::pairs(&rows, Goal::Matching);
        let output = self.model.forward(&batch.input(&self.device), &mut Pass::silent());
        let reason = "has no head for matching: it was trained to answer".to_string();
        let logits = output.matching.ok_or_else(|| Error::Field { field: "model".into(), reason })?;
        let shares: Vec<f32> = activation::softmax(logits, 1).into_data().iter::<f32>().collect();
        Ok(shares.as_chunks::<2>().0.iter().map(|pair| f64::from(pair[self.config.matched_class() as usize])).collect())
    }

    fn encode(&self, text: &str) -> Result<crate::data::text::Encoded, Error> {
        let failed = |reason: String| Error::Field { field: shortened(text), reason };
        if text.trim().is_empty() {
            return Err(Error::config("question", "is empty"));
        }
        if text.len() > LONGEST_BYTES {
            return Err(failed(format!("{} bytes, the most is {LONGEST_BYTES}", text.len())));
        }
        let whole = self.encoder.tokenizer.encode(text, None)?;
        let most = self.encoder.longest - usize::from(self.encoder.ends_with_mask);
        if whole.ids.len() > most {
            return Err(failed(format!("{} tokens, the most is {most}", whole.ids.len())));
        }
        self.encoder.encode(text)
    }

    fn regions(&self, pictures: &[OnePicture]) -> Result<Vec<RegionFeatures>, Error> {
        let Some(source) = &self.source else { return Ok(Vec::new()) };
        let own = |picture: &OnePicture| {
            let found = source.regions(picture)?.first(self.recipe.own.most_regions);
            let reason = || Error::File { path: picture.name.into(), reason: "no region in it".into() };
            if found.is_empty() { Err(reason()) } else { Ok(found) }
        };
        pictures.iter().map(own).collect()
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
