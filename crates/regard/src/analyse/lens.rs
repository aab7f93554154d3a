//! Logit lens: what would each layer predict if it were the last?
//! nostalgebraist 2020, "interpreting GPT: the logit lens", here for transformers of pictures.
//!
//! The class token after a block (or the mean of the tokens, for models that pool) goes through the final norm and head.

use burn::tensor::Tensor;
use serde::Serialize;

use super::activations::named;
use super::check::{Check, largest};
use crate::evaluate::{ClassProbability, top_classes};
use crate::models::Model;
use crate::{Error, Pass, Trace};

/// The predictions of every layer for one picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lens {
    pub layers: Vec<LensLayer>,
    pub check: Check,
}

/// The prediction of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LensLayer {
    pub layer: String,
    /// The most probable classes, best first.
    pub answers: Vec<ClassProbability>,
    /// The probability of the class that the whole model predicts.
    pub of_final: f32,
}

/// The predictions of every recorded block for the first picture; `logits` `[B, classes]` are those of the model.
///
/// # Errors
/// When the model is not a transformer, or its blocks were not recorded.
pub fn lens(model: &Model, trace: &Trace, logits: Tensor<2>, top: usize) -> Result<Lens, Error> {
    let transformer = model.as_transformer().ok_or_else(|| {
        Error::analysis("logit lens", "the head fits the last layer alone: widths differ; transformers have a lens")
    })?;
    let blocks = model.inspect().blocks();
    let classes = logits.dims()[1];
    let last = top_classes(logits.clone(), 1).remove(0)[0].class;
    let (mut layers, mut read) = (Vec::new(), logits.clone().mul_scalar(f32::NAN));
    for layer in named(trace, blocks) {
        read = transformer.read_out_heads(trace.get::<3>(&layer)?, &mut Pass::silent()).mean();
        let mut all = top_classes(read.clone(), classes).remove(0);
        let of_final = all.iter().find(|answer| answer.class == last).map_or(0.0, |answer| answer.probability);
        all.truncate(top);
        layers.push(LensLayer { layer, answers: all, of_final });
    }
    if layers.is_empty() {
        // the error lists what was recorded
        trace.get::<3>(blocks)?;
    }
    let [read, logits] = [read, logits].map(|logits| logits.into_data().iter::<f32>().collect::<Vec<_>>());
    let deviation = read.iter().zip(&logits).map(|(a, b)| f64::from((a - b).abs())).fold(0.0, largest);
    Ok(Lens { layers, check: Check::new("the last layer predicts what the model does", deviation, 1e-3) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::deit::DeitConfig;
    use crate::models::vit::VitConfig;
    use crate::models::{ModelConfig, preset};
    use crate::testing::random;
    use crate::{device, weights};

    #[test]
    fn the_last_layer_answers_as_the_model_whatever_is_pooled() {
        let small = DeitConfig { depth: 2, classes: 7, patch: 8, ..DeitConfig::tiny(32) };
        for config in [
            ModelConfig::Vit(VitConfig::nano()),
            ModelConfig::Vit(VitConfig::nano().averaged()),
            ModelConfig::Deit(small.clone().with_distillation()),
        ] {
            let model = config.init(&device::cpu()).unwrap();
            weights::tensors(&model);
            let mut pass = Pass::recording();
            let logits = model.forward(random([1, 3, 32, 32], 1), &mut pass);
            let lens = lens(&model, &pass.into_trace(), logits.clone(), 3).unwrap();
            assert!(lens.check.holds(), "{}", lens.check);
            let best = &top_classes(logits, 1)[0][0];
            let last = lens.layers.last().unwrap();
            assert_eq!((last.answers[0].class, last.answers.len()), (best.class, 3));
            assert!((last.of_final - best.probability).abs() < 1e-5);
        }
    }

    #[test]
    fn networks_of_other_widths_have_none_and_what_was_not_recorded_is_said() {
        let model = preset("vit-nano").unwrap().config.init(&device::cpu()).unwrap();
        let logits = || random([1, 10], 1);
        assert!(lens(&model, &Trace::default(), logits(), 1).unwrap_err().to_string().contains("blocks.*"));
        let resnet = preset("resnet-nano").unwrap().config.init(&device::cpu()).unwrap();
        let mut pass = Pass::recording();
        pass.record("blocks.0", &random([1, 2, 3], 1));
        let error = lens(&resnet, &pass.into_trace(), logits(), 1).unwrap_err().to_string();
        assert!(error.contains("transformers"), "{error}");
    }
}
