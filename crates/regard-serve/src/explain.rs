//! Attention of a model: of one query by layer and head, and over the whole picture.

use burn::tensor::Tensor;
use regard::analyse::{self, AttentionMaps, LensLayer, Query, RolloutOptions};
use regard::evaluate::ClassProbability;
use regard::models::Model;
use serde::Serialize;

use crate::error::ApiError;

/// A point of the preprocessed picture: from 0 at the left and at the top to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    pub x: f64,
    pub y: f64,
}

/// Options of an explanation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExplainOptions {
    /// The query patch; `None` is the class token, or the centre for models without one.
    pub query: Option<Point>,
    /// The path of one layer; `None` means all.
    pub layer: Option<String>,
    /// Number of classes.
    pub top: usize,
}

/// The best classes, and the attention.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    pub answers: Vec<ClassProbability>,
    pub layers: Vec<LayerAttention>,
    /// Attention rollout from the class token to every patch; only for transformers.
    pub rollout: Option<Heatmap>,
    /// Grad-CAM of the best class; only for networks that pool a feature map.
    pub cam: Option<Heatmap>,
    /// Predictions of each layer; only for transformers.
    pub lens: Vec<LensLayer>,
}

/// Numbers on the grid of the picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Heatmap {
    pub grid: [usize; 2],
    /// `[H, W]`
    pub values: Vec<f32>,
}

/// The attention weights of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LayerAttention {
    /// The path of the layer.
    pub name: String,
    pub reach: Reach,
    /// Rows and columns of all queries.
    #[serde(rename = "of")]
    pub queries: [usize; 2],
    /// Row and column of this query; `None` is the class token.
    pub query: Option<[usize; 2]>,
    /// Rows and columns of the keys: of the picture, or of the window around the query.
    pub grid: [usize; 2],
    /// The weights of prefix tokens, by head.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<Vec<f32>>,
    /// By head, or by group of channels: `[H, W]` of the grid.
    pub heads: Vec<Vec<f32>>,
}

/// Which keys a query attends to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The whole picture.
    Everywhere,
    /// A window around a pixel.
    Window,
}

/// Runs one picture and reads its recorded tensors.
pub fn explain(model: &Model, image: Tensor<4>, options: &ExplainOptions) -> Result<Explanation, ApiError> {
    let found = analyse::explain(model, image.clone(), options.top.max(1))?;
    let middle = || found.maps(Query::At([0.5, 0.5]));
    let maps = match options.query {
        Some(Point { x, y }) => found.maps(Query::At([y, x])),
        // models without a class token
        None => Some(found.maps(Query::Token(0))).filter(|maps| !maps.is_empty()).unwrap_or_else(middle),
    };
    let mut layers: Vec<LayerAttention> = maps.into_iter().map(LayerAttention::from).collect();
    if let Some(wanted) = &options.layer {
        layers.retain(|layer| layer.name == *wanted);
        if layers.is_empty() {
            return Err(ApiError::Unprocessable(format!("no attention was recorded at layer `{wanted}`")));
        }
    }
    let rollout = found.rollout(RolloutOptions::default()).ok();
    let rollout = rollout.map(|rollout| Heatmap { grid: rollout.grid, values: rollout.map() });
    let cam = match &rollout {
        None => {
            let cam = analyse::cam(model, image, found.answers[0].class)?;
            Some(Heatmap { grid: cam.size, values: cam.values })
        }
        Some(_) => None,
    };
    let mut answers = found.answers;
    answers.truncate(options.top);
    Ok(Explanation { answers, layers, rollout, cam, lens: found.lens.map_or_else(Vec::new, |lens| lens.layers) })
}

impl Explanation {
    /// Whether all numbers are finite: JSON has no others.
    pub fn is_finite(&self) -> bool {
        let lens = self.lens.iter().flat_map(|layer| &layer.answers);
        let probabilities = self.answers.iter().chain(lens).map(|answer| answer.probability);
        let weights = self.layers.iter().flat_map(|layer| layer.prefix.iter().chain(&layer.heads).flatten().copied());
        let heatmaps = self.rollout.iter().chain(&self.cam).flat_map(|heatmap| heatmap.values.iter().copied());
        probabilities.chain(weights).chain(heatmaps).all(f32::is_finite)
    }
}

impl From<AttentionMaps> for LayerAttention {
    fn from(maps: AttentionMaps) -> Self {
        let AttentionMaps { layer: name, size, queries, query, heads, tokens, kernels, .. } = maps;
        let prefix = if tokens.iter().any(|tokens| !tokens.is_empty()) { tokens } else { Vec::new() };
        match kernels {
            None => Self { name, reach: Reach::Everywhere, queries, query, grid: size, prefix, heads },
            Some(kernels) => {
                let grid = [kernels.side; 2];
                Self { name, reach: Reach::Window, queries, query, grid, prefix, heads: kernels.values }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::Distribution;
    use regard::device;
    use regard::models::preset;

    fn explained(name: &str, query: Option<Point>, layer: Option<&str>) -> Result<Explanation, ApiError> {
        let config = preset(name).unwrap().config;
        let model = config.init(&device::cpu()).unwrap();
        let [rows, columns] = config.image();
        let image = Tensor::random([1, 3, rows, columns], Distribution::Default, &device::cpu());
        explain(&model, image, &ExplainOptions { query, layer: layer.map(String::from), top: 3 })
    }

    #[test]
    fn the_weights_of_a_patch_and_of_the_class_token_sum_to_one_in_every_head() {
        for point in [None, Some(Point { x: 0.9, y: 0.1 })] {
            let Explanation { layers, .. } = explained("vit-nano", point, None).unwrap();
            assert_eq!(layers.len(), 5);
            for layer in layers {
                assert_eq!((layer.grid, layer.heads.len()), ([8, 8], 4));
                assert_eq!(layer.query, point.map(|_| [0, 7]));
                for (prefix, head) in layer.prefix.iter().zip(&layer.heads) {
                    assert_eq!(head.len(), 64);
                    let sum: f32 = prefix.iter().chain(head).sum();
                    assert!((sum - 1.0).abs() < 1e-5, "{} {sum}", layer.name);
                }
            }
        }
    }

    #[test]
    fn windows_and_positions_have_the_shapes_of_their_layers() {
        for name in ["sasa-nano", "san-nano-pairwise", "san-nano-patchwise"] {
            let Explanation { layers, .. } = explained(name, Some(Point { x: 1.0, y: 1.0 }), None).unwrap();
            assert!(!layers.is_empty(), "{name}");
            for LayerAttention { name: layer, queries: of, query, grid, heads, .. } in layers {
                assert_eq!(query, Some([of[0] - 1, of[1] - 1]), "{name} {layer}");
                assert!(heads.iter().all(|head| head.len() == grid[0] * grid[1]), "{name} {layer}");
            }
        }
    }

    #[test]
    fn one_layer_can_be_chosen_and_models_without_attention_have_grad_cam() {
        let Explanation { layers, .. } = explained("vit-nano", None, Some("blocks.3.attn")).unwrap();
        assert_eq!(layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["blocks.3.attn"]);
        let refused = explained("vit-nano", None, Some("blocks.9.attn")).unwrap_err().to_string();
        assert!(refused.contains("`blocks.9.attn`"));
        let found = explained("resnet-nano", None, None).unwrap();
        assert!(found.layers.is_empty() && found.rollout.is_none() && found.lens.is_empty());
        assert!(found.cam.is_some_and(|cam| cam.values.len() == cam.grid[0] * cam.grid[1]));
    }

    #[test]
    fn a_transformer_has_a_lens_and_a_rollout() {
        let found = explained("vit-nano", None, None).unwrap();
        assert_eq!((found.lens.len(), found.answers.len()), (5, 3));
        assert_eq!(found.lens[4].answers[0].class, found.answers[0].class);
        assert!(found.cam.is_none() && found.rollout.is_some_and(|map| map.grid == [8, 8]));
    }
}
