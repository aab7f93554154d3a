//! Why a model answers as it does: which words look at which regions and the other way round, which words each region explains,
//! the plan of the alignment, and what mattered for the answer, each where the model has it.

use serde::Serialize;

use super::bundle::{Answered, TextWithRegions, VisionLanguageBundle};
use crate::analyse::{
    Check, ExplainedWords, WordRegionAttention, WordRegionPlan, WordRegionRelevance, explained_words,
    shares_of_regions, word_region_attention, word_region_plan,
};
use crate::data::vision_language::OnePicture;
use crate::{Error, Pass};

/// What words and regions have to do with each other in one forward pass.
#[derive(Clone, Debug, Serialize)]
pub struct CrossModal {
    /// Each layer in both directions.
    pub layers: Vec<WordRegionAttention>,
    /// How each word's attention to regions is shared among them, over all layers and heads.
    pub shares: Vec<Vec<f64>>,
    pub explained: Vec<ExplainedWords>,
    /// UNITER's; none for other families.
    pub plan: Option<WordRegionPlan>,
    /// Whether the model was trained to align, which gives the plan its meaning.
    pub is_plan_trained: bool,
    /// For the likeliest answer; none where words and regions are two streams, or there are two pictures.
    pub relevance: Option<WordRegionRelevance>,
}

/// An answer with its reasons.
#[derive(Clone, Debug)]
pub struct AnswerExplanation {
    pub answered: Answered,
    pub cross: CrossModal,
}

impl CrossModal {
    /// The laws that it must fulfil: the worst of each kind.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let attention = Check::worst(self.layers.iter().map(|layer| layer.check.clone()));
        let plan = self.plan.iter().map(|plan| plan.check.clone());
        let relevance = self.relevance.iter().flat_map(|relevance| relevance.checks.clone());
        attention.into_iter().chain(plan).chain(relevance).collect()
    }
}

impl VisionLanguageBundle {
    /// The likeliest answers to a question about a picture, or about two for statements, and why.
    ///
    /// # Errors
    /// As [`ask`](Self::ask), and for a model that sees no picture.
    pub fn explain(&self, pictures: &[OnePicture], question: &str, most: usize) -> Result<AnswerExplanation, Error> {
        self.needs(self.missing_for_answers())?;
        let text = self.encode("question", question)?;
        let regions = self.find_regions(pictures)?;
        let (shares, cross) = self.cross_modal((&text, regions.as_slice()))?;
        let (answers, tokens) = (self.likeliest(&shares, most), self.tokens(&text));
        let unknown = self.unknown_words(question, &text);
        let regions = regions.iter().map(|own| self.boxes(own)).collect();
        Ok(AnswerExplanation { answered: Answered { answers, tokens, unknown, regions }, cross })
    }

    /// Probabilities of all answers for a text, and what its words and regions have to do with each other.
    ///
    /// # Errors
    /// When the model does not answer, or sees no picture.
    pub fn cross_modal(&self, asked: TextWithRegions) -> Result<(Vec<f32>, CrossModal), Error> {
        if self.regions().is_none() {
            return Err(Error::analysis("words and regions", "the model was trained without pictures"));
        }
        let mut pass = Pass::recording_attention(["transport"]);
        let (mut shares, _) = self.run(&[asked], &mut pass)?;
        let shares = shares.pop().unwrap_or_default();
        let trace = pass.into_trace();
        let (layers, plan) = (word_region_attention(&trace)?, word_region_plan(&trace));
        let (text, _) = asked;
        let tokens = self.tokens(text);
        let is_word: Vec<bool> = text
            .offsets
            .iter()
            .zip(&tokens)
            .map(|((start, end), token)| end > start && token.contains(char::is_alphanumeric))
            .collect();
        let of_regions = shares_of_regions(&layers);
        let explained = explained_words(&of_regions, &is_word);
        let best = (0..shares.len()).max_by(|a, b| shares[*a].total_cmp(&shares[*b]).then(b.cmp(a))).unwrap_or(0);
        let relevance = self.relevance(asked, best);
        let is_plan_trained = self.is_aligned();
        Ok((shares, CrossModal { layers, shares: of_regions, explained, plan, is_plan_trained, relevance }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::vision_language::GivenBox;
    use crate::data::{Bounds, Part, world};
    use crate::device::cpu;
    use crate::models::vision_language::AnswerHead;
    use crate::tasks::vision_language::{BundleFiles, EMBEDDED_ANSWERERS, EmbeddedAnswerer, ModelSizes, Recipe};
    use crate::weights;
    use std::path::Path;

    /// A model of another family that has learned nothing, with the words and answers of the embedded one.
    fn fresh(model: &str) -> VisionLanguageBundle {
        let EmbeddedAnswerer { recipe, tokenizer, answers, .. } = EMBEDDED_ANSWERERS[0];
        let recipe = recipe.replace("uniter-nano", model);
        let sizes = ModelSizes {
            vocabulary: 78,
            longest: 24,
            features: Some(768),
            classes: Some(9),
            answer: AnswerHead::Question { answers: 32 },
        };
        let config = Recipe::from_toml(&recipe).unwrap().model(sizes).unwrap();
        let tensors = weights::tensors(&config.init(&cpu()).unwrap());
        let model = config.to_toml();
        let files = BundleFiles { recipe: &recipe, model: &model, tokenizer, answers: Some(answers), blind: None };
        VisionLanguageBundle::from_files(files, &tensors, Path::new("fresh"), &cpu()).unwrap()
    }

    fn explained(bundle: &VisionLanguageBundle, index: usize) -> (AnswerExplanation, world::Question) {
        let question = world::question(0, Part::Test, index);
        let picture = question.scene.picture();
        let bounds = |corners: [f64; 4]| Bounds::from_pixel_corners(corners, picture.size());
        let boxes = question.scene.boxes().into_iter().map(|own| GivenBox { bounds: bounds(own), class: None });
        let boxes: Vec<GivenBox> = boxes.collect();
        let shown = OnePicture { name: "scene", picture: &picture, boxes: &boxes };
        (bundle.explain(&[shown], &question.text, 3).unwrap(), question)
    }

    #[test]
    fn every_family_explains_itself_as_far_as_it_has_a_single_stream_or_a_plan() {
        for (model, has_relevance, has_plan) in [
            ("uniter-nano", true, true),
            ("visual-bert-nano", true, false),
            ("vilbert-nano", false, false),
            ("lxmert-nano", false, false),
        ] {
            let (found, question) = explained(&fresh(model), 3);
            let (words, regions) = (found.answered.tokens.len(), found.answered.regions[0].len());
            let whole = usize::from(model == "vilbert-nano");
            assert_eq!(regions, question.scene.boxes().len() + whole, "{model}");
            let cross = &found.cross;
            assert!(cross.checks().iter().all(Check::holds), "{model}: {:?}", cross.checks());
            assert_eq!((cross.relevance.is_some(), cross.plan.is_some()), (has_relevance, has_plan), "{model}");
            assert_eq!((cross.shares.len(), cross.explained.len()), (words, regions), "{model}");
            assert!(!cross.is_plan_trained);
            if let Some(relevance) = &cross.relevance {
                assert_eq!((relevance.words.len(), relevance.regions.len()), (words, regions), "{model}");
            }
        }
    }

    #[test]
    fn the_thing_that_was_asked_about_mattered_most() {
        let bundle = EMBEDDED_ANSWERERS[0].load(&cpu()).unwrap();
        // what colour is the thing of a kind that is there once
        let (mut right, mut all) = (0, 0);
        for index in (0..12).map(|turn| 8 * turn) {
            let (found, question) = explained(&bundle, index);
            let kind = |kind: usize| question.text.contains(&format!("the {} ?", world::KINDS[kind].0));
            let asked = question.scene.things.iter().position(|thing| kind(thing.kind)).unwrap();
            let regions = found.cross.relevance.unwrap().regions;
            let best = (0..regions.len()).max_by(|a, b| regions[*a].total_cmp(&regions[*b])).unwrap();
            right += usize::from(best == asked);
            all += 1;
        }
        assert!(4 * right >= 3 * all, "{right} of {all}");
    }

    #[test]
    fn a_model_that_sees_nothing_has_nothing_to_explain() {
        let recipe = EMBEDDED_ANSWERERS[0].recipe.replace("blind = false", "blind = true");
        let blind = EmbeddedAnswerer { recipe: recipe.leak(), ..EMBEDDED_ANSWERERS[0] }.load(&cpu()).unwrap();
        let picture = world::question(0, Part::Test, 0).scene.picture();
        let shown = OnePicture { name: "scene", picture: &picture, boxes: &[] };
        let error = blind.explain(&[shown], "what colour is the bag ?", 1).unwrap_err().to_string();
        assert!(error.contains("trained without pictures"), "{error}");
    }
}
