//! The attention that a forward pass recorded, whatever the operator: who looks at which place, and how much.
//!
//! Everything else here asks an [`Attention`] and knows no operator.

use burn::tensor::TensorData;
use serde::Serialize;

use super::check::{Check, largest, rows_sum_to_one};
use crate::Trace;
use crate::attention::{Affinity, reach};
use crate::layers::SanRelation;
use crate::models::ModelConfig;

/// The attention of one layer to some pictures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Attention {
    /// The path of the layer, such as `blocks.3.attn`.
    pub layer: String,
    pub reach: Reach,
    pub pictures: usize,
    /// Heads; for vector attention, groups of channels with the same weights.
    pub heads: usize,
    /// Tokens before those of places: of the class, of distillation.
    pub prefix: usize,
    /// Rows and columns of places that look.
    pub queries: [usize; 2],
    /// Rows and columns of places that are looked at.
    pub keys: [usize; 2],
    /// Rows and columns of the picture in pixels.
    pub image: [usize; 2],
    /// Whether what a place pays is one in all: not so for patchwise attention and some non-local ones.
    pub sums_to_one: bool,
    #[serde(skip)]
    weights: Vec<f32>,
}

/// Where a place can look.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// At every place: weights `[B, A, N, M]` or `[B, N, M]`.
    Everywhere,
    /// At a window around itself: weights `[B, A, k*k, H*W]`. Beyond the edge is the picture mirrored, or nothing.
    Window { side: usize, mirrored: bool },
    /// At the block that it is in: weights `[B * blocks, A, b*b, b*b]`.
    Block { side: usize },
}

/// Whose row of weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    pub picture: usize,
    pub head: usize,
    /// A place of [`Attention::queries`], row by row.
    pub query: usize,
}

/// The names under which a model records attention.
#[must_use]
pub const fn names(config: &ModelConfig) -> &'static [&'static str] {
    match config {
        ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_) => &["blocks.*.attn.weights"],
        ModelConfig::NonLocalResnet(_) => &["non_local.*.weights"],
        ModelConfig::San(_) => &["stages.*.layer.*.sam.weights"],
        ModelConfig::Sasa(_) => &["stem.attn.weights", "groups.*.*.spatial.weights"],
        ModelConfig::Resnet(_) | ModelConfig::Regnet(_) => &[],
    }
}

/// Every attention that a model recorded, in the order of its layers; none for models without attention.
///
/// What does not have the shape that the configuration says is left out.
pub fn attentions(trace: Trace, config: &ModelConfig) -> Vec<Attention> {
    let known = |name: &str| names(config).iter().any(|pattern| crate::pass::matches(pattern, name));
    let layers = trace.into_data().into_iter().filter(|(name, _)| known(name));
    layers.filter_map(|(name, weights)| Attention::read(&name, &weights, config)).collect()
}

impl Attention {
    fn read(name: &str, weights: &TensorData, config: &ModelConfig) -> Option<Self> {
        let shape = weights.shape().to_vec();
        let image = config.image();
        let mut attention = Self {
            layer: name.strip_suffix(".weights").unwrap_or(name).into(),
            reach: Reach::Everywhere,
            pictures: shape[0],
            heads: shape[1],
            prefix: 0,
            queries: image,
            keys: image,
            image,
            sums_to_one: true,
            weights: Vec::new(),
        };
        match (config, shape.as_slice()) {
            (ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_), &[_, _, tokens, _]) => {
                attention.queries = config.grid()?;
                attention.prefix = tokens.checked_sub(attention.queries.iter().product())?;
            }
            (ModelConfig::NonLocalResnet(config), &[_, queries, keys]) => {
                attention.heads = 1;
                attention.queries = grid(queries, image)?;
                // keys may have been pooled by two
                attention.keys =
                    if queries == keys { attention.queries } else { attention.queries.map(|side| (side / 2).max(1)) };
                attention.sums_to_one = matches!(config.affinity, Affinity::Gaussian | Affinity::EmbeddedGaussian);
            }
            (ModelConfig::San(config), &[_, _, window, places]) => {
                attention.queries = grid(places, image)?;
                attention.reach = Reach::Window { side: window.isqrt(), mirrored: true };
                attention.sums_to_one = matches!(config.relation, SanRelation::Pairwise { .. });
            }
            (ModelConfig::Sasa(_), &[blocks, _, places, _]) if name == "stem.attn.weights" => {
                let side = places.isqrt();
                attention.reach = Reach::Block { side };
                attention.pictures = blocks * places / (image[0] * image[1]);
            }
            (ModelConfig::Sasa(_), &[_, _, window, places]) => {
                attention.queries = grid(places, image)?;
                attention.reach = Reach::Window { side: window.isqrt(), mirrored: false };
            }
            _ => return None,
        }
        if !matches!(config, ModelConfig::NonLocalResnet(_)) {
            attention.keys = attention.queries;
        }
        attention.weights = weights.as_slice::<f32>().ok()?.to_vec();
        (attention.expected() == attention.weights.len()).then_some(attention)
    }

    /// Attention of every token to every token, `[B, A, N, N]`, some of which stand before those of places.
    ///
    /// # Panics
    /// When there are more or fewer numbers.
    #[must_use]
    pub fn of_tokens(
        layer: &str,
        heads: usize,
        prefix: usize,
        grid: [usize; 2],
        image: [usize; 2],
        weights: Vec<f32>,
    ) -> Self {
        let tokens = prefix + grid[0] * grid[1];
        let pictures = weights.len() / (heads * tokens * tokens).max(1);
        let attention = Self {
            layer: layer.into(),
            reach: Reach::Everywhere,
            pictures,
            heads,
            prefix,
            queries: grid,
            keys: grid,
            image,
            sums_to_one: true,
            weights,
        };
        assert_eq!(attention.weights.len(), attention.expected(), "attention: numbers of {layer}");
        attention
    }

    fn expected(&self) -> usize {
        let [queries, keys] = [self.queries, self.keys].map(|[rows, columns]| rows * columns);
        let seen = match self.reach {
            Reach::Everywhere => (self.prefix + queries) * (self.prefix + keys),
            Reach::Window { side, .. } | Reach::Block { side } => queries * side * side,
        };
        self.pictures * self.heads * seen
    }

    /// Number of places that look.
    #[must_use]
    pub const fn places(&self) -> usize {
        self.queries[0] * self.queries[1]
    }

    /// Pixels from a place to the next, down and to the right.
    #[must_use]
    pub fn stride(&self) -> [f64; 2] {
        [0, 1].map(|axis| self.image[axis] as f64 / self.queries[axis] as f64)
    }

    /// `[N, M]` of one head, tokens before places included; none where places cannot look everywhere.
    #[must_use]
    pub fn matrix(&self, picture: usize, head: usize) -> Option<&[f32]> {
        let size = (self.prefix + self.places()) * self.key_tokens();
        (self.reach == Reach::Everywhere).then(|| &self.weights[(picture * self.heads + head) * size..][..size])
    }

    /// Tokens that can be looked at.
    #[must_use]
    pub const fn key_tokens(&self) -> usize {
        self.prefix + self.keys[0] * self.keys[1]
    }

    /// Shows each place of [`keys`](Self::keys) that a place looks at, with its weight; tokens before places are left out.
    pub fn each(&self, row: Row, mut see: impl FnMut(usize, f32)) {
        let Row { picture, head, query } = row;
        let [rows, columns] = self.queries;
        match self.reach {
            Reach::Everywhere => {
                let keys = self.key_tokens();
                let matrix = self.matrix(picture, head).expect("it is everywhere");
                let row = &matrix[(self.prefix + query) * keys..][self.prefix..keys];
                row.iter().enumerate().for_each(|(key, weight)| see(key, *weight));
            }
            Reach::Window { side, mirrored } => {
                let (before, _) = reach(side);
                let start = (picture * self.heads + head) * side * side;
                for offset in 0..side * side {
                    let at = [query / columns + offset / side, query % columns + offset % side];
                    let inside = [through(at[0], before, rows, mirrored), through(at[1], before, columns, mirrored)];
                    if let [Some(row), Some(column)] = inside {
                        see(row * columns + column, self.weights[(start + offset) * rows * columns + query]);
                    }
                }
            }
            Reach::Block { side } => {
                let (row, column) = (query / columns, query % columns);
                let block = (picture * (rows / side) + row / side) * (columns / side) + column / side;
                let own = (row % side) * side + column % side;
                let weights = &self.weights[((block * self.heads + head) * side * side + own) * side * side..];
                let corner = [row - row % side, column - column % side];
                for (place, weight) in weights[..side * side].iter().enumerate() {
                    see((corner[0] + place / side) * columns + corner[1] + place % side, *weight);
                }
            }
        }
    }

    /// The window of a place as it was computed, `k*k` row by row; none where there are no windows.
    #[must_use]
    pub fn kernel(&self, row: Row) -> Option<Vec<f32>> {
        let Reach::Window { side, .. } = self.reach else { return None };
        let (places, start) = (self.places(), (row.picture * self.heads + row.head) * side * side);
        Some((0..side * side).map(|offset| self.weights[(start + offset) * places + row.query]).collect())
    }

    /// How much every place receives from all places over all heads, `[H, W]` of [`keys`](Self::keys), by magnitude.
    #[must_use]
    pub fn received(&self, picture: usize) -> Vec<f32> {
        let mut sums = vec![0.0; self.keys[0] * self.keys[1]];
        for head in 0..self.heads {
            for query in 0..self.places() {
                self.each(Row { picture, head, query }, |key, weight| sums[key] += weight.abs());
            }
            for token in 0..self.prefix {
                let keys = self.key_tokens();
                let matrix = self.matrix(picture, head).expect("tokens before places look everywhere");
                let row = &matrix[token * keys..][self.prefix..keys];
                sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight.abs());
            }
        }
        sums
    }

    /// Whether rows sum to one, where they should.
    #[must_use]
    pub fn check(&self) -> Option<Check> {
        let deviation = match self.reach {
            _ if !self.sums_to_one => return None,
            Reach::Everywhere => rows_sum_to_one(self.weights.chunks_exact(self.key_tokens())),
            Reach::Block { side } => rows_sum_to_one(self.weights.chunks_exact(side * side)),
            Reach::Window { side, .. } => {
                let planes = self.weights.chunks_exact(side * side * self.places());
                let sum = |plane: &[f32], place: usize| {
                    plane.iter().skip(place).step_by(self.places()).map(|weight| f64::from(*weight)).sum::<f64>()
                };
                let off = |plane| (0..self.places()).map(move |place| (sum(plane, place) - 1.0).abs());
                planes.flat_map(off).fold(0.0, largest)
            }
        };
        Some(Check::new("rows of attention sum to one", deviation, 1e-4))
    }
}

/// The row or column that a window shows at `at - before`; none beyond the edge unless that is mirrored.
fn through(at: usize, before: usize, size: usize, mirrored: bool) -> Option<usize> {
    match at.checked_sub(before) {
        Some(inside) if inside < size => Some(inside),
        _ if !mirrored => None,
        Some(beyond) => (2 * (size - 1)).checked_sub(beyond),
        None => Some(before - at).filter(|mirror| *mirror < size),
    }
}

/// Rows and columns of so many places of a picture whose sides were divided by a whole number, rounded down or up.
fn grid(places: usize, [height, width]: [usize; 2]) -> Option<[usize; 2]> {
    let divided = |stride: usize| {
        [[height / stride, width / stride], [height.div_ceil(stride), width.div_ceil(stride)]]
            .into_iter()
            .find(|[rows, columns]| rows * columns == places)
    };
    (1..=height.max(width)).find_map(divided)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::models::{Model, preset};
    use crate::testing::random;
    use crate::{Pass, device, weights};

    /// A fresh model whose parameters are drawn.
    pub fn model(name: &str) -> (Model, ModelConfig) {
        let config = preset(name).unwrap().config;
        device::cpu().seed(7);
        let model = config.init(&device::cpu()).unwrap();
        weights::tensors(&model);
        (model, config)
    }

    fn recorded(name: &str, pictures: usize) -> Vec<Attention> {
        let (model, config) = model(name);
        let mut pass = Pass::recording();
        model.forward(random([pictures, 3, 32, 32], 1), &mut pass);
        attentions(pass.into_trace(), &config)
    }

    const MODELS: [&str; 5] =
        ["vit-nano", "san-nano-pairwise", "san-nano-patchwise", "sasa-nano", "non-local-resnet-nano"];

    #[test]
    fn attention_that_all_pay_to_one_place_is_received_there() {
        let mut rows = vec![0.0; 5 * 5];
        (0..5).for_each(|query| rows[5 * query + 3] = 1.0);
        let attention = Attention::of_tokens("layer", 1, 1, [2, 2], [8, 8], rows);
        assert_eq!(attention.received(0), [0.0, 0.0, 5.0, 0.0]);
    }

    #[test]
    fn windows_show_what_is_left_of_a_place_there_and_mirror_or_end_at_the_edge() {
        let mut windows = vec![0.0; 9 * 12];
        windows[3 * 12..4 * 12].fill(1.0);
        let mut attention = Attention {
            reach: Reach::Window { side: 3, mirrored: false },
            weights: windows,
            prefix: 0,
            queries: [3, 4],
            keys: [3, 4],
            ..Attention::of_tokens("layer", 1, 1, [1, 1], [3, 4], vec![0.5; 4])
        };
        assert_eq!(attention.received(0), [1.0, 1.0, 1.0, 0.0].repeat(3));
        attention.reach = Reach::Window { side: 3, mirrored: true };
        assert_eq!(attention.received(0), [1.0, 2.0, 1.0, 0.0].repeat(3), "the column before the first is the second");
    }

    #[test]
    fn every_attention_model_is_read_for_several_pictures_and_rows_sum_to_one_where_they_should() {
        for name in MODELS {
            let layers = recorded(name, 2);
            assert!(!layers.is_empty(), "{name}");
            for layer in layers {
                assert_eq!((layer.pictures, layer.queries[0]), (2, layer.queries[1]), "{name} {}", layer.layer);
                match layer.check() {
                    Some(check) => assert!(check.holds(), "{name} {}: {check}", layer.layer),
                    None => assert_eq!(name, "san-nano-patchwise"),
                }
                let received = layer.received(1);
                assert!(received.iter().all(|value| value.is_finite() && *value >= 0.0), "{name} {}", layer.layer);
                if layer.sums_to_one && layer.prefix == 0 {
                    let (sum, all) = (received.iter().sum::<f32>(), (layer.heads * layer.places()) as f32);
                    assert!((sum / all - 1.0).abs() < 1e-4, "{name} {}: {sum} of {all}", layer.layer);
                }
            }
        }
    }

    #[test]
    fn the_second_picture_of_a_batch_is_read_as_if_it_were_alone() {
        for name in MODELS {
            let (model, config) = model(name);
            let pictures = random::<4>([2, 3, 32, 32], 1);
            let run = |images| {
                let mut pass = Pass::recording();
                model.forward(images, &mut pass);
                attentions(pass.into_trace(), &config)
            };
            let (both, alone) = (run(pictures.clone()), run(pictures.narrow(0, 1, 1)));
            for (both, alone) in both.iter().zip(&alone) {
                let distance = crate::testing::distance(&both.received(1), &alone.received(0));
                assert!(distance < 1e-2, "{name} {}: {distance}", both.layer);
            }
        }
    }

    #[test]
    fn places_are_found_for_sides_that_do_not_divide() {
        assert_eq!(grid(49, [224, 224]), Some([7, 7]));
        assert_eq!(grid(6 * 8, [192, 256]), Some([6, 8]));
        assert_eq!(grid(4 * 4, [28, 28]), Some([4, 4]));
        assert_eq!(grid(23, [28, 28]), None);
    }
}
