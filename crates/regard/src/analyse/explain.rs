//! One image in one forward pass: predictions, attention, and the prediction of each layer.

use burn::tensor::Tensor;
use serde::Serialize;

use super::attention::{Attention, attentions};
use super::check::Check;
use super::gradients::ClassGradients;
use super::lens::{Lens, lens};
use super::maps::{AttentionMaps, Query, maps};
use super::rollout::{Rollout, RolloutOptions, class_rollout, rollout};
use crate::evaluate::{ClassProbability, top_classes};
use crate::models::Model;
use crate::{Error, Pass};

/// The predictions of a model for an image, and its attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Explanation {
    /// The most probable classes, best first.
    pub answers: Vec<ClassProbability>,
    /// The attention of every layer, in the order of layers; empty for models without attention.
    pub attentions: Vec<Attention>,
    /// The prediction of each layer, for transformers.
    pub lens: Option<Lens>,
}

/// Runs a model once on a picture `[1, C, H, W]`.
///
/// # Errors
/// When the recorded tensors do not fit together, which would be a bug.
pub fn explain(model: &Model, image: Tensor<4>, top: usize) -> Result<Explanation, Error> {
    let [_, _, rows, columns] = image.dims();
    let mut pass = Pass::recording_attention([model.inspect().blocks()]);
    let logits = model.forward(image, &mut pass);
    let trace = pass.into_trace();
    let lens = model.as_transformer().map(|_| lens(model, &trace, logits.clone(), top)).transpose()?;
    let attentions = attentions(trace, Some([rows, columns]))?;
    Ok(Explanation { answers: top_classes(logits, top).remove(0), attentions, lens })
}

impl Explanation {
    /// The attention of a query, in every layer that has it.
    #[must_use]
    pub fn maps(&self, query: Query) -> Vec<AttentionMaps> {
        self.attentions.iter().filter_map(|attention| maps(attention, 0, query).ok()).collect()
    }

    /// # Errors
    /// When not every token attends to every token of the previous layer.
    pub fn rollout(&self, options: RolloutOptions) -> Result<Rollout, Error> {
        rollout(&self.attentions, 0, options)
    }

    /// The laws that attention must fulfil: the worst of all layers.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        let rows = Check::worst(self.attentions.iter().filter_map(Attention::check));
        rows.into_iter().chain(self.lens.as_ref().map(|lens| lens.check.clone())).collect()
    }
}

/// The rollout of a class for an image `[1, C, H, W]`, weighted by gradients, and a check of those of the last layer.
///
/// # Errors
/// When not every token attends to every token of the previous layer, or there is no such class.
pub fn explain_class(
    model: &Model,
    image: Tensor<4>,
    class: usize,
    options: RolloutOptions,
) -> Result<(Rollout, Check), Error> {
    const NAME: &str = "rollout of a class";
    let [_, _, rows, columns] = image.dims();
    if model.as_transformer().is_none() {
        return Err(Error::analysis(NAME, "the model is not a transformer; use Grad-CAM instead"));
    }
    let found = ClassGradients::of_attention(model, image.clone(), class)?;
    let layers: Vec<String> = found.trace.attention().map(|(name, _)| name.to_string()).collect();
    let last = layers.last().ok_or_else(|| Error::analysis(NAME, "the model recorded no attention"))?;
    let gradients = layers.iter().map(|layer| Ok(found.by::<4>(layer)?.into_data().iter::<f32>().collect()));
    let gradients = gradients.collect::<Result<Vec<Vec<f32>>, Error>>()?;
    let check = found.check::<4>(last, model, image, class)?;
    Ok((class_rollout(&attentions(found.trace, Some([rows, columns]))?, &gradients, 0, options)?, check))
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
            ("sasa-nano", 9),
            ("non-local-resnet-nano", 2),
            ("resnet-nano", 0),
        ] {
            let (model, _) = model(name);
            let found = explain(&model, random([1, 3, 32, 32], 1), 3).unwrap();
            assert_eq!(found.answers.len(), 3);
            assert_eq!(found.attentions.len(), layers, "{name}");
            assert_eq!(found.lens.is_some(), name == "vit-nano");
            assert!(found.checks().iter().all(Check::holds), "{name}: {:?}", found.checks());
            assert_eq!(found.maps(Query::At([0.5, 0.5])).len(), found.attentions.len());
            assert_eq!(found.maps(Query::Token(0)).is_empty(), name != "vit-nano");
            assert_eq!(found.rollout(RolloutOptions::default()).is_ok(), name == "vit-nano", "{name}");
        }
    }

    #[test]
    fn a_network_that_pools_a_map_is_sent_to_grad_cam() {
        let (model, _) = model("resnet-nano");
        let image = random([1, 3, 32, 32], 1);
        let error = explain_class(&model, image, 1, RolloutOptions::default()).unwrap_err().to_string();
        assert!(error.contains("use Grad-CAM instead"), "{error}");
    }

    #[test]
    fn the_rollouts_of_two_classes_differ_and_their_gradients_are_right() {
        let (model, _) = model("vit-nano");
        let model = stirred(model);
        let of = |class| explain_class(&model, random([1, 3, 32, 32], 1), class, RolloutOptions::default()).unwrap();
        let ((one, check), (other, _)) = (of(1), of(2));
        assert!(check.holds(), "{check}");
        assert!(one.check().holds() && other.check().holds());
        assert_ne!(one.values, other.values);
    }
}
