//! Grad-CAM: the pixels of the last map that support a class.
//! Selvaraju et al. 2017, "Grad-CAM", arXiv:1610.02391.
//!
//! For networks that pool a map: convolutional ones, and those with local or non-local attention. Channels are weighted
//! by the mean of the class's gradient over pixels and summed; negative values become zero.

use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use serde::Serialize;

use super::activations::named;
use super::check::Check;
use super::gradients::ClassGradients;
use crate::Error;
use crate::models::Model;

/// The pixels that support a class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Cam {
    /// The layer of the map.
    pub layer: String,
    pub class: usize,
    /// Rows and columns.
    pub size: [usize; 2],
    /// `[H, W]`, never negative.
    pub values: Vec<f32>,
    pub check: Check,
}

/// The map of a class for one picture `[1, C, H, W]`.
///
/// # Errors
/// When the model is a transformer, or has no such class.
pub fn cam(model: &Model, image: Tensor<4>, class: usize) -> Result<Cam, Error> {
    let pattern = model.inspect().pooled().ok_or_else(|| {
        Error::analysis("grad-cam", "a transformer has tokens, not a map that is pooled; use rollout instead")
    })?;
    let found = ClassGradients::of(model, image.clone(), class, &[pattern])?;
    let layer = named(&found.trace, pattern).pop().expect("something is watched");
    let (gradient, map) = (found.by::<4>(&layer)?, found.trace.get::<4>(&layer)?.inner());
    let [_, _, rows, columns] = map.dims();
    let values = relu((gradient.mean_dim(3).mean_dim(2) * map).sum_dim(1));
    Ok(Cam {
        class,
        size: [rows, columns],
        values: values.into_data().iter::<f32>().take(rows * columns).collect(),
        check: found.check::<4>(&layer, model, image, class)?,
        layer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use crate::analyse::attention::tests::model;
    use crate::models::Backbone as _;
    use crate::testing::{random, values};

    #[test]
    fn the_signed_map_sums_to_the_logit_without_its_bias_when_a_linear_map_follows_the_pool() {
        let (model, _) = model("resnet-nano");
        let Model::Resnet(resnet) = &model else { unreachable!() };
        let image = random([1, 3, 32, 32], 5);
        let class = 4;
        let found = cam(&model, image.clone(), class).unwrap();
        assert_eq!((found.layer.as_str(), found.size), ("layer4.2", [4, 4]));
        assert!(found.check.holds(), "{}", found.check);
        // logit = bias + sum_c w_c mean(map_c), and the gradient of every pixel is w_c / pixels
        let map = values(&resnet.features(image, &mut Pass::silent()).pop().unwrap().map);
        let weights = values(&resnet.fc.as_ref().unwrap().weight.val());
        let channels = map.len() / 16;
        for pixel in 0..16 {
            let sum: f32 = (0..channels).map(|c| weights[class * channels + c] * map[16 * c + pixel] / 16.0).sum();
            assert!((found.values[pixel] - sum.max(0.0)).abs() < 1e-4, "{pixel}: {} {sum}", found.values[pixel]);
        }
    }

    #[test]
    fn networks_with_attention_have_one_and_transformers_do_not() {
        for name in ["san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "non-local-resnet-nano"] {
            let (model, _) = model(name);
            let found = cam(&model, random([1, 3, 32, 32], 5), 1).unwrap();
            assert!(found.check.holds(), "{name}: {}", found.check);
            assert!(found.values.iter().all(|value| *value >= 0.0), "{name}");
        }
        let (model, _) = model("vit-nano");
        let error = cam(&model, random([1, 3, 32, 32], 5), 1).unwrap_err().to_string();
        assert!(error.contains("rollout"), "{error}");
    }
}
