//! Where a model looks: the attention weights of one place, by layer and head.

use burn::tensor::{Tensor, TensorData};
use regard::models::{Model, ModelConfig};
use regard::{Pass, Trace};
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
}

/// The logits, and the weights of every layer asked for.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Looked {
    #[serde(skip)]
    pub logits: Vec<f32>,
    pub layers: Vec<Layer>,
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
    /// All patches: `[B, A, N, N]`.
    Patches,
    /// All positions: `[B, N, M]`.
    Positions,
    /// A window around a pixel: `[B, C, k*k, H*W]`.
    Window,
}

impl Reach {
    /// None for models without attention.
    fn of(config: &ModelConfig) -> Option<Self> {
        match config {
            ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_) => Some(Self::Patches),
            ModelConfig::NonLocalResnet(_) => Some(Self::Positions),
            ModelConfig::San(_) | ModelConfig::Sasa(_) => Some(Self::Window),
            ModelConfig::Resnet(_) | ModelConfig::Regnet(_) => None,
        }
    }
}

/// Runs one picture and reads what it recorded.
pub fn look(model: &Model, config: &ModelConfig, image: Tensor<4>, view: &View) -> Result<Looked, Refusal> {
    let reach = Reach::of(config)
        .ok_or_else(|| Refusal::Unfit(format!("a {} has no attention to explain", config.family())))?;
    let names = match &view.layer {
        Some(layer) => vec![format!("{layer}.weights")],
        // paths of layers have at most so many parts
        None => (1..=6).map(|parts| "*.".repeat(parts) + "weights").collect(),
    };
    let mut pass = Pass::recording_only(names);
    let logits = model.forward(image, &mut pass).into_data().iter::<f32>().collect();
    let trace = pass.into_trace();
    if let (Some(layer), 0) = (&view.layer, trace.names().count()) {
        return Err(Refusal::Unfit(format!("no attention was recorded at layer `{layer}`")));
    }
    Ok(Looked { logits, layers: layers(trace, config, reach, view.from) })
}

fn layers(trace: Trace, config: &ModelConfig, reach: Reach, place: Option<Place>) -> Vec<Layer> {
    trace
        .into_data()
        .into_iter()
        .filter_map(|(name, weights)| {
            let name = name.trim_end_matches(".weights").to_string();
            let shape = weights.shape().to_vec();
            match (reach, shape.as_slice()) {
                (Reach::Patches, &[_, heads, queries, keys]) => {
                    let grid = config.grid()?;
                    let prefix = keys.checked_sub(grid[0] * grid[1])?;
                    // models without a class token look from the middle
                    let place = place.or_else(|| (prefix == 0).then_some(MIDDLE));
                    let row = place.map(|place| at(place, grid));
                    let query = row.map_or(0, |[row, column]| prefix + row * grid[1] + column);
                    let rows = (0..heads).map(|head| (head * queries + query) * keys);
                    let all: Vec<Vec<f32>> = rows.map(|start| part(&weights, start, 1, keys)).collect();
                    let (before, heads) =
                        all.iter().map(|row| (row[..prefix].to_vec(), row[prefix..].to_vec())).unzip();
                    let prefix = if prefix > 0 { before } else { Vec::new() };
                    Some(Layer { name, reach, of: grid, query: row, grid, prefix, heads })
                }
                (Reach::Positions, &[_, queries, keys]) => {
                    let (of, grid) = (sides(queries, config.image())?, sides(keys, config.image())?);
                    let [row, column] = at(place.unwrap_or(MIDDLE), of);
                    let heads = vec![part(&weights, (row * of[1] + column) * keys, 1, keys)];
                    Some(Layer { name, reach, of, query: Some([row, column]), grid, prefix: Vec::new(), heads })
                }
                (Reach::Window, &[_, groups, offsets, positions]) => {
                    let of = sides(positions, config.image())?;
                    let [row, column] = at(place.unwrap_or(MIDDLE), of);
                    let from = |group: usize| group * offsets * positions + row * of[1] + column;
                    let heads = (0..groups).map(|group| part(&weights, from(group), positions, offsets)).collect();
                    let grid = [offsets.isqrt(); 2];
                    Some(Layer { name, reach, of, query: Some([row, column]), grid, prefix: Vec::new(), heads })
                }
                _ => None,
            }
        })
        .collect()
}

const MIDDLE: Place = Place { x: 0.5, y: 0.5 };

/// The row and column of a grid that a place is in.
fn at(Place { x, y }: Place, [rows, columns]: [usize; 2]) -> [usize; 2] {
    let index = |share: f64, count: usize| ((share.clamp(0.0, 1.0) * count as f64) as usize).min(count - 1);
    [index(y, rows), index(x, columns)]
}

/// Every `step`-th of the weights of the first picture, so many from `start` on.
fn part(weights: &TensorData, start: usize, step: usize, count: usize) -> Vec<f32> {
    let all: &[f32] = weights.as_slice().expect("weights are f32");
    all[start..].iter().step_by(step).take(count).copied().collect()
}

/// Rows and columns of so many positions, as near to the aspect of the picture as they can be.
fn sides(positions: usize, [height, width]: [usize; 2]) -> Option<[usize; 2]> {
    let wanted = (positions as f64 * height as f64 / width as f64).sqrt();
    let off = |rows: &usize| (*rows as f64 - wanted).abs();
    let rows = (1..=positions).filter(|rows| positions.is_multiple_of(*rows));
    let rows = rows.min_by(|one, other| off(one).total_cmp(&off(other)))?;
    Some([rows, positions / rows])
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
        look(&model, &config, image, &View { from: place, layer: layer.map(String::from) })
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
    fn one_layer_is_told_alone_and_models_without_attention_say_so() {
        let Looked { layers, .. } = looked("vit-nano", None, Some("blocks.3.attn")).unwrap();
        assert_eq!(layers.iter().map(|layer| layer.name.as_str()).collect::<Vec<_>>(), ["blocks.3.attn"]);
        let refused = |name, layer| looked(name, None, layer).unwrap_err().to_string();
        assert!(refused("vit-nano", Some("blocks.9.attn")).contains("`blocks.9.attn`"));
        assert!(refused("resnet-nano", None).contains("no attention"));
    }

    #[test]
    fn positions_are_laid_out_like_the_picture() {
        assert_eq!(sides(196, [224, 224]), Some([14, 14]));
        assert_eq!(sides(6, [32, 48]), Some([2, 3]));
        assert_eq!(sides(12, [40, 30]), Some([4, 3]));
    }
}
