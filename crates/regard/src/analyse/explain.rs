//! Everything that one forward pass says about one picture: answers, attention, what each layer would answer.

use burn::tensor::Tensor;
use serde::Serialize;

use super::activations::blocks;
use super::attention::{Attention, attentions, names};
use super::check::Check;
use super::gradients::ClassGradients;
use super::lens::{Lens, lens};
use super::maps::{Maps, Query, maps};
use super::rollout::{Rollout, RolloutOptions, class_rollout, rollout};
use crate::evaluate::{Answer, answers};
use crate::models::{Model, ModelConfig};
use crate::{Error, Pass};

/// What a model says about a picture, and where it looked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The best answers, best first.
    pub answers: Vec<Answer>,
    /// Every layer's attention, in the order of layers; none of models without attention.
    pub attentions: Vec<Attention>,
    /// What each layer would answer, for transformers.
    pub lens: Option<Lens>,
}

/// Runs a model once on a picture `[1, C, H, W]`.
///
/// # Errors
/// When a model did not record what is known of its family, which would be a bug.
pub fn explain(model: &Model, config: &ModelConfig, image: Tensor<4>, top: usize) -> Result<Explanation, Error> {
    let recorded = names(config).iter().copied().chain([blocks(config)]);
    let mut pass = Pass::recording_only(recorded);
    let logits = model.forward(image, &mut pass);
    let trace = pass.into_trace();
    let lens = if config.grid().is_some() { Some(lens(model, &trace, logits.clone(), top)?) } else { None };
    Ok(Explanation { answers: answers(logits, top).remove(0), attentions: attentions(trace, config), lens })
}

impl Explanation {
    /// Where a place or token looks, in every layer that has it.
    #[must_use]
    pub fn maps(&self, query: Query) -> Vec<Maps> {
        self.attentions.iter().filter_map(|attention| maps(attention, 0, query)).collect()
    }

    /// # Errors
    /// When not every token looks at every token of the layer before.
    pub fn rollout(&self, options: RolloutOptions) -> Result<Rollout, Error> {
        rollout(&self.attentions, 0, options)
    }

    /// The laws that attention fulfils by itself: the worst of all layers.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let rows = Check::worst(self.attentions.iter().filter_map(Attention::check));
        rows.into_iter().chain(self.lens.as_ref().map(|lens| lens.check.clone())).collect()
    }
}

/// The rollout of a class for a picture `[1, C, H, W]`, by gradients, and whether they are right in the last layer.
///
/// # Errors
/// When not every token looks at every token of the layer before, or there is no such class.
pub fn explain_class(
    model: &Model,
    config: &ModelConfig,
    image: Tensor<4>,
    class: usize,
    options: RolloutOptions,
) -> Result<(Rollout, Check), Error> {
    if config.grid().is_none() {
        return Err(Error::analysis("rollout of a class", "the model is no transformer; its grad-cam says the same"));
    }
    let found = ClassGradients::of(model, image.clone(), class, names(config))?;
    let layers: Vec<String> = found.trace.names().map(String::from).collect();
    let gradients = layers.iter().map(|layer| Ok(found.by::<4>(layer)?.into_data().iter::<f32>().collect()));
    let gradients = gradients.collect::<Result<Vec<Vec<f32>>, Error>>()?;
    let last = layers.last().expect("a transformer has layers");
    let check = found.check::<4>(last, model, image, class)?;
    Ok((class_rollout(&attentions(found.trace, config), &gradients, 0, options)?, check))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::testing::{random, stirred};

    #[test]
    fn every_model_explains_itself_and_its_checks_hold() {
        for (name, layers) in [
            ("vit-nano", 5),
            ("san-nano-pairwise", 9),
            ("san-nano-patchwise", 9),
            ("sasa-nano", 0),
            ("non-local-resnet-nano", 2),
            ("resnet-nano", 0),
        ] {
            let (model, config) = model(name);
            let found = explain(&model, &config, random([1, 3, 32, 32], 1), 3).unwrap();
            assert_eq!(found.answers.len(), 3);
            assert!(found.attentions.len() == layers || name == "sasa-nano", "{name}: {}", found.attentions.len());
            assert_eq!(found.lens.is_some(), name == "vit-nano");
            assert!(found.checks().iter().all(Check::holds), "{name}: {:?}", found.checks());
            assert_eq!(found.maps(Query::At([0.5, 0.5])).len(), found.attentions.len());
            assert_eq!(found.maps(Query::Token(0)).is_empty(), name != "vit-nano");
            assert_eq!(found.rollout(RolloutOptions::default()).is_ok(), name == "vit-nano", "{name}");
        }
    }

    #[test]
    fn the_rollouts_of_two_classes_differ_and_their_gradients_are_right() {
        let (model, config) = model("vit-nano");
        let model = stirred(model);
        let of = |class| {
            explain_class(&model, &config, random([1, 3, 32, 32], 1), class, RolloutOptions::default()).unwrap()
        };
        let ((one, check), (other, _)) = (of(1), of(2));
        assert!(check.holds(), "{check}");
        assert!(one.check().holds() && other.check().holds());
        assert_ne!(one.values, other.values);
    }
}
