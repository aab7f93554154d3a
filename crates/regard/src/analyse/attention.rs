//! The attention weights that a forward pass recorded, for any operator.
//!
//! The other analyses use [`Attention`] alone. It reads the [`Geometry`] that was recorded with the weights and knows
//! neither operators nor families of models.

use burn::tensor::TensorData;
use serde::Serialize;

use super::check::{Check, largest, rows_sum_to_one};
use crate::attention::reach;
use crate::pass::{Axes, Geometry, Reach, WEIGHTS};
use crate::{Error, Trace};

/// The attention of one layer for a batch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attention {
    /// The path of the layer, such as `blocks.3.attn`.
    pub layer: String,
    pub geometry: Geometry,
    /// Images, clips or sentences of the batch.
    pub samples: usize,
    /// Number of heads; for vector attention, of groups of channels with the same weights.
    pub heads: usize,
    /// Rows and columns of the image in pixels; `None` for text.
    pub image: Option<[usize; 2]>,
    #[serde(skip)]
    weights: Vec<f32>,
}

/// One row of weights: those of one query over all keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightRow {
    pub sample: usize,
    pub head: usize,
    /// Index of the query; prefix tokens come first.
    pub query: usize,
}

/// All attention weights that a forward pass recorded, in the order of layers; empty for models without attention.
///
/// # Errors
/// When weights do not have the shape of their geometry, which would be a bug.
pub fn attentions(trace: Trace, image: Option<[usize; 2]>) -> Result<Vec<Attention>, Error> {
    let mut geometries: Vec<(String, Geometry)> =
        trace.attention().map(|(name, geometry)| (name.to_string(), geometry.clone())).collect();
    let mut found = Vec::new();
    for (name, weights) in trace.into_data() {
        let Some(at) = geometries.iter().position(|(known, _)| *known == name) else { continue };
        let (_, geometry) = geometries.remove(at);
        found.push(Attention::new(&name, geometry, &weights, image)?);
    }
    Ok(found)
}

impl Attention {
    /// Weights with their geometry.
    ///
    /// # Errors
    /// When they do not fit together.
    pub fn new(name: &str, geometry: Geometry, weights: &TensorData, image: Option<[usize; 2]>) -> Result<Self, Error> {
        let layer = name.strip_suffix(WEIGHTS).and_then(|layer| layer.strip_suffix('.')).unwrap_or(name);
        let shape = weights.shape().to_vec();
        let misfit = || Error::analysis("attention", format!("`{name}` of shape {shape:?} does not fit {geometry:?}"));
        let [samples, heads] = batch(&geometry, &shape).ok_or_else(misfit)?;
        let weights = weights.as_slice::<f32>().map_err(|_| misfit())?.to_vec();
        Ok(Self { layer: layer.into(), geometry, samples, heads, image, weights })
    }

    /// Number of queries, prefix tokens included.
    #[must_use]
    pub fn queries(&self) -> usize {
        self.geometry.queries.tokens()
    }

    /// Number of keys, prefix tokens included.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.geometry.keys.tokens()
    }

    /// Rows and columns of the queries and of the keys, if both are images.
    ///
    /// # Errors
    /// When one of them is a clip, a sentence or something else; the error says which.
    pub fn grids(&self, analysis: &'static str) -> Result<[[usize; 2]; 2], Error> {
        match (&self.geometry.queries, &self.geometry.keys) {
            (Axes::Grid { size: queries, .. }, Axes::Grid { size: keys, .. }) => Ok([*queries, *keys]),
            (queries, keys) => Err(Error::analysis(
                analysis,
                format!("`{}` is not attention within an image: {queries:?} attend to {keys:?}", self.layer),
            )),
        }
    }

    /// `[N, M]` of one head, prefix tokens included; `None` if queries cannot attend to all keys.
    #[must_use]
    pub fn matrix(&self, sample: usize, head: usize) -> Option<&[f32]> {
        let size = self.queries() * self.keys();
        (self.geometry.reach == Reach::Everywhere).then(|| &self.weights[(sample * self.heads + head) * size..][..size])
    }

    /// Calls `see` with each key that a query can attend to and its weight; indices include the prefix.
    pub fn each_key(&self, row: WeightRow, mut see: impl FnMut(usize, f32)) {
        let WeightRow { sample, head, query } = row;
        let [rows, columns] = self.geometry.queries.sheet();
        match self.geometry.reach {
            Reach::Everywhere => {
                let keys = self.keys();
                let matrix = self.matrix(sample, head).expect("the reach is everywhere");
                matrix[query * keys..][..keys].iter().enumerate().for_each(|(key, weight)| see(key, *weight));
            }
            Reach::Window { side, mirrored } => {
                let (before, _) = reach(side);
                let start = (sample * self.heads + head) * side * side;
                for offset in 0..side * side {
                    let at = [query / columns + offset / side, query % columns + offset % side];
                    let inside = [pixel_at(at[0], before, rows, mirrored), pixel_at(at[1], before, columns, mirrored)];
                    if let [Some(row), Some(column)] = inside {
                        see(row * columns + column, self.weights[(start + offset) * rows * columns + query]);
                    }
                }
            }
            Reach::Block { side } => {
                let (row, column) = (query / columns, query % columns);
                let block = (sample * (rows / side) + row / side) * (columns / side) + column / side;
                let own = (row % side) * side + column % side;
                let weights = &self.weights[((block * self.heads + head) * side * side + own) * side * side..];
                let corner = [row - row % side, column - column % side];
                for (pixel, weight) in weights[..side * side].iter().enumerate() {
                    see((corner[0] + pixel / side) * columns + corner[1] + pixel % side, *weight);
                }
            }
        }
    }

    /// The weights of a query's window, `k*k` row by row; `None` for operators without windows.
    #[must_use]
    pub fn kernel(&self, row: WeightRow) -> Option<Vec<f32>> {
        let Reach::Window { side, .. } = self.geometry.reach else { return None };
        let (pixels, start) = (self.queries(), (row.sample * self.heads + row.head) * side * side);
        Some((0..side * side).map(|offset| self.weights[(start + offset) * pixels + row.query]).collect())
    }

    /// The attention that each key after the prefix receives: absolute weights summed over queries and heads.
    #[must_use]
    pub fn received(&self, sample: usize) -> Vec<f32> {
        let prefix = self.geometry.keys.prefix();
        let mut sums = vec![0.0; self.keys() - prefix];
        for head in 0..self.heads {
            for query in 0..self.queries() {
                self.each_key(WeightRow { sample, head, query }, |key, weight| {
                    if key >= prefix {
                        sums[key - prefix] += weight.abs();
                    }
                });
            }
        }
        sums
    }

    /// Checks that rows sum to one; `None` for operators whose rows need not.
    #[must_use]
    pub fn check(&self) -> Option<Check> {
        let pixels = self.queries();
        let deviation = match self.geometry.reach {
            _ if !self.geometry.sums_to_one => return None,
            Reach::Everywhere => rows_sum_to_one(self.weights.chunks_exact(self.keys())),
            Reach::Block { side } => rows_sum_to_one(self.weights.chunks_exact(side * side)),
            Reach::Window { side, .. } => {
                let windows = self.weights.chunks_exact(side * side * pixels);
                let sum = |windows: &[f32], pixel: usize| {
                    windows.iter().skip(pixel).step_by(pixels).map(|weight| f64::from(*weight)).sum::<f64>()
                };
                let off = |windows| (0..pixels).map(move |pixel| (sum(windows, pixel) - 1.0).abs());
                windows.flat_map(off).fold(0.0, largest)
            }
        };
        Some(Check::new("rows of attention sum to one", deviation, 1e-4))
    }
}

/// Samples and heads of weights of this shape; `None` if it does not fit the geometry.
fn batch(geometry: &Geometry, shape: &[usize]) -> Option<[usize; 2]> {
    let [queries, keys] = [geometry.queries.tokens(), geometry.keys.tokens()];
    let map = match (&geometry.queries, &geometry.keys) {
        (Axes::Grid { prefix: 0, size }, keys) if *keys == geometry.queries => Some(*size),
        _ => None,
    };
    match (geometry.reach, shape) {
        (Reach::Everywhere, &[samples, heads, n, m]) if [n, m] == [queries, keys] => Some([samples, heads]),
        (Reach::Everywhere, &[samples, n, m]) if [n, m] == [queries, keys] => Some([samples, 1]),
        (Reach::Window { side, .. }, &[samples, heads, window, pixels]) => {
            map?;
            (window == side * side && pixels == queries).then_some([samples, heads])
        }
        (Reach::Block { side }, &[blocks, heads, n, m]) if side > 0 && [n, m] == [side * side; 2] => {
            let [rows, columns] = map?;
            let each = (rows / side) * (columns / side);
            let fills = each * n == queries && each > 0 && blocks.is_multiple_of(each);
            fills.then(|| [blocks / each, heads])
        }
        _ => None,
    }
}

/// The row or column at `at - before` of a window; `None` beyond the edge, unless the image is mirrored there.
fn pixel_at(at: usize, before: usize, size: usize, mirrored: bool) -> Option<usize> {
    match at.checked_sub(before) {
        Some(inside) if inside < size => Some(inside),
        _ if !mirrored => None,
        Some(beyond) => (2 * (size - 1)).checked_sub(beyond),
        None => Some(before - at).filter(|mirror| *mirror < size),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::data::Tokens;
    use crate::models::{Model, ModelConfig, preset, translator};
    use crate::testing::random;
    use crate::{Pass, device, weights};

    /// A model with random parameters.
    pub fn model(name: &str) -> (Model, ModelConfig) {
        let config = preset(name).unwrap().config;
        device::cpu().seed(7);
        let model = config.init(&device::cpu()).unwrap();
        weights::tensors(&model);
        (model, config)
    }

    /// Attention of every token of an image to every token, `[B, A, N, N]`.
    pub fn of_tokens(heads: usize, prefix: usize, size: [usize; 2], image: [usize; 2], weights: Vec<f32>) -> Attention {
        let axes = Axes::Grid { prefix, size };
        let tokens = axes.tokens();
        let shape = [weights.len() / (heads * tokens * tokens), heads, tokens, tokens];
        let geometry = Geometry::everywhere(axes.clone(), axes);
        Attention::new("layer.weights", geometry, &TensorData::new(weights, shape), Some(image)).unwrap()
    }

    fn run(model: &Model, images: burn::tensor::Tensor<4>) -> Vec<Attention> {
        let mut pass = Pass::recording_attention::<String>([]);
        model.forward(images, &mut pass);
        attentions(pass.into_trace(), Some([32, 32])).unwrap()
    }

    const MODELS: [&str; 5] =
        ["vit-nano", "san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "non-local-resnet-nano"];

    #[test]
    fn attention_that_all_pay_to_one_pixel_is_received_there() {
        let mut rows = vec![0.0; 5 * 5];
        (0..5).for_each(|query| rows[5 * query + 3] = 1.0);
        assert_eq!(of_tokens(1, 1, [2, 2], [8, 8], rows).received(0), [0.0, 0.0, 5.0, 0.0]);
    }

    #[test]
    fn windows_show_what_is_left_of_a_pixel_there_and_mirror_or_end_at_the_edge() {
        let mut windows = vec![0f32; 9 * 12];
        windows[3 * 12..4 * 12].fill(1.0);
        let received = |mirrored: bool| {
            let geometry = Geometry::within_map([3, 4], Reach::Window { side: 3, mirrored });
            let weights = TensorData::new(windows.clone(), [1, 1, 9, 12]);
            Attention::new("layer.weights", geometry, &weights, Some([3, 4])).unwrap().received(0)
        };
        assert_eq!(received(false), [1.0, 1.0, 1.0, 0.0].repeat(3));
        assert_eq!(received(true), [1.0, 2.0, 1.0, 0.0].repeat(3), "the column before the first is the second");
    }

    #[test]
    fn every_attention_model_is_read_for_several_images_and_rows_sum_to_one_where_they_should() {
        for name in MODELS {
            let layers = run(&model(name).0, random([2, 3, 32, 32], 1));
            assert!(!layers.is_empty(), "{name}");
            for layer in layers {
                let [[rows, columns], _] = layer.grids("test").unwrap();
                assert_eq!((layer.samples, rows), (2, columns), "{name} {}", layer.layer);
                match layer.check() {
                    Some(check) => assert!(check.holds(), "{name} {}: {check}", layer.layer),
                    None => assert_eq!(name, "san-nano-patchwise"),
                }
                let received = layer.received(1);
                assert!(received.iter().all(|value| value.is_finite() && *value >= 0.0), "{name} {}", layer.layer);
                if layer.geometry.sums_to_one && layer.geometry.queries.prefix() == 0 {
                    let (sum, all) = (received.iter().sum::<f32>(), (layer.heads * layer.queries()) as f32);
                    assert!((sum / all - 1.0).abs() < 1e-4, "{name} {}: {sum} of {all}", layer.layer);
                }
            }
        }
    }

    #[test]
    fn the_second_image_of_a_batch_is_read_as_if_it_were_alone() {
        for name in MODELS {
            let (model, _) = model(name);
            let images = random::<4>([2, 3, 32, 32], 1);
            let (both, alone) = (run(&model, images.clone()), run(&model, images.narrow(0, 1, 1)));
            for (both, alone) in both.iter().zip(&alone) {
                let distance = crate::testing::distance(&both.received(1), &alone.received(0));
                assert!(distance < 1e-2, "{name} {}: {distance}", both.layer);
            }
        }
    }

    #[test]
    fn sides_that_no_stride_divides_are_read_as_they_were_recorded() {
        // 28 x 28 becomes 28, 14, 7 and 4: a guess from the number of pixels would be wrong for some sizes
        let config = preset("non-local-resnet-nano").unwrap().config;
        let model = config.with("image", serde_json::json!([28, 20])).unwrap().init(&device::cpu()).unwrap();
        let layers = run(&model, random([1, 3, 28, 20], 1));
        let grids: Vec<_> = layers.iter().map(|layer| layer.grids("test").unwrap()).collect();
        assert_eq!(grids, [[[14, 10], [7, 5]], [[7, 5], [3, 2]]]);
    }

    #[test]
    fn attention_between_words_is_read_of_every_translator() {
        let (source, target) = (Tokens::new(&[[1, 2, 3, 4]]), Tokens::new(&[[5, 6, 7]]));
        for (name, layers) in [("transformer-nano", 2 + 2 * 2), ("rnnsearch-nano", 1)] {
            let model = translator::preset(name).unwrap().config.init(&device::cpu()).unwrap();
            let mut pass = Pass::recording_attention::<String>([]);
            let _ = model.forward(&source, &target, &mut pass);
            let found = attentions(pass.into_trace(), None).unwrap();
            assert_eq!(found.len(), layers, "{name}");
            for layer in &found {
                let across = layer.layer.contains("multihead_attn") || layer.layer == "decoder.attention";
                let words = |decoder: bool| Axes::Words(if decoder { 3 } else { 4 });
                let decoder = layer.layer.starts_with("decoder");
                let expected = [words(decoder), words(decoder && !across)];
                assert_eq!([&layer.geometry.queries, &layer.geometry.keys], [&expected[0], &expected[1]], "{layer:?}");
                assert!(layer.check().unwrap().holds(), "{name} {}", layer.layer);
                assert!(layer.grids("attention distance").unwrap_err().to_string().contains("Words"), "{name}");
            }
        }
    }

    #[test]
    fn every_kind_of_axes_can_be_read_from_a_trace() {
        let kinds = [
            Axes::Grid { prefix: 1, size: [2, 3] },
            Axes::Clip { prefix: 1, frames: 2, size: [1, 3] },
            Axes::Slots(7),
            Axes::Words(7),
            Axes::Joined(vec![Axes::Words(3), Axes::Grid { prefix: 0, size: [2, 2] }]),
        ];
        for axes in kinds {
            let mut pass = Pass::recording();
            let weights = burn::tensor::activation::softmax(random::<4>([2, 3, 7, 7], 1), 3);
            pass.with_tokens(axes.clone(), |pass| {
                pass.within("layer", |pass| pass.record_weights(&weights, |pass| pass.geometry(7, 7)));
            });
            let found = attentions(pass.into_trace(), None).unwrap().remove(0);
            assert_eq!((found.layer.as_str(), found.samples, found.heads), ("layer", 2, 3));
            assert_eq!(found.geometry.queries, axes);
            assert!(found.check().unwrap().holds(), "{axes:?}");
            let entropy = super::super::entropy(&found, 1, 2);
            assert!(entropy > 0.0 && entropy < 7f64.ln(), "{axes:?}: {entropy}");
            let paid = found.received(0).iter().sum::<f32>();
            assert!(paid <= 21.0 + 1e-3 && paid > 0.0, "{axes:?}");
        }
    }

    #[test]
    fn weights_that_do_not_fit_their_geometry_are_an_error_with_their_name() {
        let words = |queries, keys| Geometry::everywhere(Axes::Words(queries), Axes::Words(keys));
        let window = Geometry::within_map([2, 2], Reach::Window { side: 3, mirrored: false });
        let block = Geometry::within_map([2, 2], Reach::Block { side: 2 });
        for (geometry, shape) in [
            (words(2, 3), vec![1, 1, 3, 2]),
            (words(2, 3), vec![6]),
            (window, vec![1, 1, 4, 4]),
            (block, vec![1, 4, 2]),
        ] {
            let weights = TensorData::new(vec![0f32; shape.iter().product()], shape);
            let error = Attention::new("blocks.3.attn.weights", geometry, &weights, None).unwrap_err().to_string();
            assert!(error.contains("`blocks.3.attn.weights`"), "{error}");
        }
    }
}
