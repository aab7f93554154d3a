//! Where a model looks: the attention of one place by layer and head, and of the whole picture.

use burn::tensor::Tensor;
use regard::analyse::{self, LensLayer, Maps, Query, RolloutOptions};
use regard::evaluate::Answer;
use regard::models::Model;
use serde::Serialize;

use crate::refusal::Refusal;

/// A place of the picture as the model sees it: from 0 at the left and at the top to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Place {
    pub x: f64,
    pub y: f64,
}

/// What is asked about a picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// Who looks; the class token, or the middle, without.
    pub from: Option<Place>,
    /// The path of one layer; all without.
    pub layer: Option<String>,
    /// How many answers.
    pub top: usize,
}

/// The answers, and where they come from.
#[derive(Clone, Debug, PartialEq)]
pub struct Looked {
    pub answers: Vec<Answer>,
    pub layers: Vec<Layer>,
    /// What the class token has of every place after all layers; transformers alone have it.
    pub rollout: Option<Map>,
    /// Where the first answer is seen, by gradients; networks that pool a map have it.
    pub cam: Option<Map>,
    /// What each layer would answer; transformers alone have it.
    pub lens: Vec<LensLayer>,
}

/// Numbers on the grid of the picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Map {
    pub grid: [usize; 2],
    /// `[H, W]`
    pub values: Vec<f32>,
}

/// The weights of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Layer {
    /// The path of the layer.
    pub name: String,
    pub reach: Reach,
    /// Who looks: rows and columns of the queries.
    pub of: [usize; 2],
    /// Row and column of the query; none is the class token.
    pub query: Option<[usize; 2]>,
    /// Rows and columns of what is looked at: of the picture, or of the window around the query.
    pub grid: [usize; 2],
    /// The weights of tokens that are no patches, by head.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<Vec<f32>>,
    /// By head, or by group of channels: `[H, W]` of the grid.
    pub heads: Vec<Vec<f32>>,
}

/// What the weights of a layer are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The whole picture.
    Everywhere,
    /// A window around a pixel.
    Window,
}

/// Runs one picture and reads what it recorded.
pub fn look(model: &Model, image: Tensor<4>, view: &View) -> Result<Looked, Refusal> {
    let found = analyse::explain(model, image.clone(), view.top.max(1))?;
    let middle = || found.maps(Query::At([0.5, 0.5]));
    let maps = match view.from {
        Some(Place { x, y }) => found.maps(Query::At([y, x])),
        // models without a class token look from the middle
        None => Some(found.maps(Query::Token(0))).filter(|maps| !maps.is_empty()).unwrap_or_else(middle),
    };
    let mut layers: Vec<Layer> = maps.into_iter().map(Layer::from).collect();
    if let Some(asked) = &view.layer {
        layers.retain(|layer| layer.name == *asked);
        if layers.is_empty() {
            return Err(Refusal::Unfit(format!("no attention was recorded at layer `{asked}`")));
        }
    }
    let rollout = found.rollout(RolloutOptions::default()).ok();
    let rollout = rollout.map(|rollout| Map { grid: rollout.grid, values: rollout.map() });
    let cam = match &rollout {
        None => {
            let cam = analyse::cam(model, image, found.answers[0].class)?;
            Some(Map { grid: cam.size, values: cam.values })
        }
        Some(_) => None,
    };
    let mut answers = found.answers;
    answers.truncate(view.top);
    Ok(Looked { answers, layers, rollout, cam, lens: found.lens.map_or_else(Vec::new, |lens| lens.layers) })
}

impl From<Maps> for Layer {
    fn from(maps: Maps) -> Self {
        let Maps { layer: name, size, queries: of, query, heads, tokens, kernels, .. } = maps;
        let prefix = if tokens.iter().any(|tokens| !tokens.is_empty()) { tokens } else { Vec::new() };
        match kernels {
            None => Self { name, reach: Reach::Everywhere, of, query, grid: size, prefix, heads },
            Some(kernels) => {
                let grid = [kernels.side; 2];
                Self { name, reach: Reach::Window, of, query, grid, prefix, heads: kernels.values }
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

    fn looked(name: &str, place: Option<Place>, layer: Option<&str>) -> Result<Looked, Refusal> {
        let config = preset(name).unwrap().config;
        let model = config.init(&device::cpu()).unwrap();
        let [rows, columns] = config.image();
        let image = Tensor::random([1, 3, rows, columns], Distribution::Default, &device::cpu());
        look(&model, image, &View { from: place, layer: layer.map(String::from), top: 3 })
    }

    #[test]
    fn the_weights_of_a_patch_and_of_the_class_token_sum_to_one_in_every_head() {
        for place in [None, Some(Place { x: 0.9, y: 0.1 })] {
            let Looked { layers, .. } = looked("vit-nano", place, None).unwrap();
            assert_eq!(layers.len(), 5);
            for layer in layers {
                assert_eq!((layer.grid, layer.heads.len()), ([8, 8], 4));
                assert_eq!(layer.query, place.map(|_| [0, 7]));
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
            let Looked { layers, .. } = looked(name, Some(Place { x: 1.0, y: 1.0 }), None).unwrap();
            assert!(!layers.is_empty(), "{name}");
            for Layer { name: layer, of, query, grid, heads, .. } in layers {
                assert_eq!(query, Some([of[0] - 1, of[1] - 1]), "{name} {layer}");
                assert!(heads.iter().all(|head| head.len() == grid[0] * grid[1]), "{name} {layer}");
            }
        }
    }

    #[test]
    fn one_layer_is_told_alone_and_models_without_attention_have_the_map_of_their_class() {
        let Looked { layers, .. } = looked("vit-nano", None, Some("blocks.3.attn")).unwrap();
        assert_eq!(layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["blocks.3.attn"]);
        let refused = looked("vit-nano", None, Some("blocks.9.attn")).unwrap_err().to_string();
        assert!(refused.contains("`blocks.9.attn`"));
        let found = looked("resnet-nano", None, None).unwrap();
        assert!(found.layers.is_empty() && found.rollout.is_none() && found.lens.is_empty());
        assert!(found.cam.is_some_and(|cam| cam.values.len() == cam.grid[0] * cam.grid[1]));
    }

    #[test]
    fn a_transformer_tells_what_its_layers_would_answer_and_what_they_mix() {
        let found = looked("vit-nano", None, None).unwrap();
        assert_eq!((found.lens.len(), found.answers.len()), (5, 3));
        assert_eq!(found.lens[4].answers[0].class, found.answers[0].class);
        assert!(found.cam.is_none() && found.rollout.is_some_and(|map| map.grid == [8, 8]));
    }
}
