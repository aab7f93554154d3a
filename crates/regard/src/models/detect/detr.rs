//! DETR: object queries attend to an encoded image, and each predicts a class and a box, or that there is no object.
//! Carion et al. 2020, "End-to-End Object Detection with Transformers", arXiv:2005.12872.
//!
//! Parameters have the names of facebookresearch/detr. Differences from it:
//! - batch first, where the reference puts tokens first;
//! - dropout stands at the end of every branch, not on attention weights and inside the MLPs as well;
//! - queries may start as a grid of reference points ([`QueryKind::ReferencePoints`]), since learned ones take hundreds of
//!   epochs: a query's position is the sine embedding of its point and its box is predicted relative to it (Conditional DETR,
//!   arXiv:2108.06152; Anchor DETR, arXiv:2109.07107); it attends around its point with a Gaussian whose width each head
//!   learns (SMCA, arXiv:2101.07448); and positions are added to the tokens once, so that values have them too.

mod cost;
mod loss;
mod matcher;

use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::tensor::activation::{relu, sigmoid};
use burn::tensor::{Bool, Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::DetectorPreset;
use crate::attention::DotProduct;
use crate::convolution::Convolve;
use crate::cost::Ledger;
use crate::data::{Bounds, Detection, DetectionPreprocess, Images};
use crate::function::softmax;
use crate::layers::{
    Cells, Embedding, GridPosition, GridPositionKind, LastStage, LayerNorm, Linear, Memory, NormKind, NormPlace,
    TransformerDecoderLayer, TransformerEncoderLayer, TransformerLayerConfig, check_size, sine_of_points,
};
use crate::models::limits::{check_image, check_parameters};
use crate::models::{Backbone, Trunk, TrunkConfig, config, preset as classifier};
use crate::pass::Axes;
use crate::{Error, Pass, device};

pub use loss::{DetrCounts, DetrCriterion, DetrLosses, LayerLosses};
pub use matcher::{CostWeights, MatchedPair, match_objects};

/// The configuration of a DETR.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetrConfig {
    /// Rows and columns of a typical picture, for costs; others are accepted too.
    pub image: [usize; 2],
    /// Number of classes; the logit after the last one is "no object".
    pub classes: usize,
    pub backbone: TrunkConfig,
    /// Width of a token.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the MLP.
    pub inner: usize,
    pub encoder_layers: usize,
    pub decoder_layers: usize,
    #[serde(default)]
    pub norm: NormPlace,
    /// Dropout rate in training.
    pub dropout: f64,
    #[serde(default)]
    pub position: GridPositionKind,
    /// Number of queries: the maximum number of objects per picture.
    pub num_queries: usize,
    #[serde(default)]
    pub queries: QueryKind,
}

/// The kind of queries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum QueryKind {
    /// A learned vector, as in the paper.
    #[default]
    Learned,
    /// A learned point of the picture, initially on a grid.
    ReferencePoints,
}

/// Larger values are errors in a file, refused before memory is allocated.
const LARGEST_DEPTH: usize = 1024;

impl DetrConfig {
    /// DETR for COCO, whose class ids go up to 90, with a residual network of ImageNet.
    fn coco(trunk: &str, last_stage: LastStage) -> Self {
        let network = classifier(trunk).expect("the zoo has it").config;
        Self {
            image: [800, 1066],
            classes: 91,
            backbone: TrunkConfig { network, norm: NormKind::FROZEN, last_stage },
            dim: 256,
            heads: 8,
            inner: 2048,
            encoder_layers: 6,
            decoder_layers: 6,
            norm: NormPlace::Post,
            dropout: 0.1,
            position: GridPositionKind::Sine,
            num_queries: 100,
            queries: QueryKind::Learned,
        }
    }

    /// A small detector for pictures of 64 to 128 pixels with a few objects each.
    #[must_use]
    pub fn nano() -> Self {
        let network = [
            ("image", json!([64, 64])),
            ("stem", json!("large")),
            ("stem_width", json!(32)),
            ("layers", json!([2, 2])),
            ("widths", json!([32, 64])),
        ]
        .into_iter()
        .try_fold(classifier("resnet-nano").expect("the zoo has it").config, |config, (field, value)| {
            config.with(field, value)
        });
        Self {
            image: [64, 64],
            classes: 8,
            backbone: TrunkConfig::new(network.expect("a residual network has these fields")),
            dim: 64,
            heads: 4,
            inner: 256,
            encoder_layers: 3,
            decoder_layers: 3,
            norm: NormPlace::Pre,
            dropout: 0.0,
            num_queries: 16,
            queries: QueryKind::ReferencePoints,
            ..Self::coco("resnet-50", LastStage::Strided)
        }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        check_size("classes", self.classes)?;
        check_size("num_queries", self.num_queries)?;
        for (field, layers) in [("encoder_layers", self.encoder_layers), ("decoder_layers", self.decoder_layers)] {
            if !(1..=LARGEST_DEPTH).contains(&layers) {
                return Err(Error::config(field, format!("must be from 1 to {LARGEST_DEPTH}, got {layers}")));
            }
        }
        if !self.dim.is_multiple_of(4) {
            let reason = format!("must be a multiple of 4: sine and cosine of rows and columns, got {}", self.dim);
            return Err(Error::config("dim", reason));
        }
        self.layer().validate()
    }

    fn layer(&self) -> TransformerLayerConfig {
        let Self { dim, heads, inner, norm, dropout, .. } = *self;
        TransformerLayerConfig { dim, heads, inner, norm, dropout, epsilon: 1e-5 }
    }

    /// The detector with random parameters, initialised on first use.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Detr, Error> {
        self.validate()?;
        let (layer, dim) = (self.layer(), self.dim);
        let body = self.backbone.init(device)?;
        let channels = self.backbone.stages()?.last().map_or(0, |stage| stage.channels);
        let encoder = DetrEncoder {
            layers: (0..self.encoder_layers).map(|_| layer.encoder(device)).collect(),
            norm: (self.norm == NormPlace::Pre).then(|| layer.norm(device)),
        };
        let decoder = DetrDecoder {
            layers: (0..self.decoder_layers).map(|_| layer.decoder(device)).collect(),
            norm: layer.norm(device),
        };
        let learned = self.queries == QueryKind::Learned;
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 };
        let detr = Detr {
            backbone: (DetrBackbone { body }, GridPosition::new(self.position, dim, device)),
            input_proj: Conv2dConfig::new([channels, dim], [1, 1]).init(device),
            transformer: DetrTransformer { encoder, decoder },
            query_embed: learned.then(|| Embedding { weight: normal.init([self.num_queries, dim], device) }),
            reference: (!learned).then(|| ReferencePoints::new(self, device)),
            class_embed: Linear::new(dim, self.classes + 1, device),
            bbox_embed: BoxMlp { layers: [dim, dim, 4].map(|outputs| Linear::new(dim, outputs, device)).into() },
        };
        check_parameters(detr)
    }
}

impl DetrConfig {
    /// The costs for a picture of this size, without initialising parameters.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn ledger(&self, [rows, columns]: [usize; 2]) -> Result<Ledger, Error> {
        Ok(Ledger::of(&self.init(&device::cpu())?, [3, rows, columns]))
    }
}

/// The detector; made by [`DetrConfig::init`].
#[derive(Module, Debug)]
pub struct Detr {
    /// The trunk, and the position embedding of its map.
    pub backbone: (DetrBackbone, GridPosition),
    pub input_proj: Conv2d,
    pub transformer: DetrTransformer,
    /// `[Q, D]`; `None` if queries are reference points.
    pub query_embed: Option<Embedding>,
    pub reference: Option<ReferencePoints>,
    pub class_embed: Linear,
    pub bbox_embed: BoxMlp,
}

#[derive(Module, Debug)]
pub struct DetrBackbone {
    pub body: Trunk,
}

#[derive(Module, Debug)]
pub struct DetrTransformer {
    pub encoder: DetrEncoder,
    pub decoder: DetrDecoder,
}

#[derive(Module, Debug)]
pub struct DetrEncoder {
    pub layers: Vec<TransformerEncoderLayer>,
    /// Only for pre-norm.
    pub norm: Option<LayerNorm>,
}

#[derive(Module, Debug)]
pub struct DetrDecoder {
    pub layers: Vec<TransformerDecoderLayer>,
    /// After every layer, since all make predictions.
    pub norm: LayerNorm,
}

/// A point for every query.
#[derive(Module, Debug)]
pub struct ReferencePoints {
    /// `[Q, 2]`: x and y as fractions of the picture, before a sigmoid.
    pub points: Param<Tensor<2>>,
    /// `[layers, A]`: how far each head looks around the point, as the logarithm of a fraction of the picture.
    pub spread: Param<Tensor<2>>,
}

/// Three linear layers with ReLU between them, and a sigmoid: cx, cy, w, h.
#[derive(Module, Debug)]
pub struct BoxMlp {
    pub layers: Vec<Linear>,
}

/// The predictions of all decoder layers; those of the last one are the result.
#[derive(Clone, Debug)]
pub struct DetrOutput {
    /// `[B, Q, classes + 1]` each; the last logit is "no object".
    pub logits: Vec<Tensor<3>>,
    /// `[B, Q, 4]` each: cx, cy, w, h as fractions of the picture without padding.
    pub boxes: Vec<Tensor<3>>,
}

impl Detr {
    /// Records the maps of the trunk's stages (`backbone.0.body.layer4`), the outputs of layers
    /// (`transformer.encoder.layers.0`, `transformer.decoder.layers.0`) and their attention: of cells to cells
    /// (`transformer.encoder.layers.0.self_attn.weights`), of queries to queries
    /// (`transformer.decoder.layers.0.self_attn.weights`) and to cells (`transformer.decoder.layers.0.multihead_attn.weights`).
    ///
    /// # Panics
    /// When pictures have other channels.
    pub fn forward(&self, images: &Images, pass: &mut Pass) -> DetrOutput {
        let (trunk, position) = &self.backbone;
        let mut maps = pass.within("backbone.0.body", |pass| trunk.body.features(images.pixels.clone(), pass));
        let map = self.input_proj.convolve(maps.pop().expect("a trunk has a stage").map);
        let [batch, dim, rows, columns] = map.dims();
        let device = map.device();
        let cells = Cells { batch, size: [rows, columns], padding: images.padding_at([rows, columns]) };
        let positions = position.forward(&cells, &device);
        let padding = cells.padding.clone().map(|padding| padding.reshape([batch, rows * columns]));
        let mut tokens: Tensor<3> = map.reshape([batch, dim, rows * columns]).swap_dims(1, 2);
        if self.reference.is_some() {
            tokens = tokens + positions.clone();
        }
        let grid = Axes::Grid { prefix: 0, size: [rows, columns] };
        let memory = pass.with_tokens(grid.clone(), |pass| {
            pass.within("transformer.encoder", |pass| {
                self.transformer.encoder.forward(tokens, &positions, padding.clone(), pass)
            })
        });
        let query_positions = self.query_positions();
        let queries = query_positions.dims()[1];
        let of_layer = |(index, layer): (usize, &TransformerDecoderLayer)| {
            let memory = layer
                .multihead_attn
                .project_memory_at(memory.clone(), &positions, padding.clone())
                .with_axes(grid.clone());
            match &self.reference {
                Some(reference) => memory.with_bias(reference.bias(index, &cells, &device)),
                None => memory,
            }
        };
        let memories: Vec<Memory> = self.transformer.decoder.layers.iter().enumerate().map(of_layer).collect();
        let target = Tensor::zeros([batch, queries, dim], &device);
        let layers = pass.with_tokens(Axes::Slots(queries), |pass| {
            pass.within("transformer.decoder", |pass| {
                self.transformer.decoder.forward(target, &query_positions, &memories, pass)
            })
        });
        let count = layers.len();
        let all = Tensor::cat(layers, 0);
        let boxes = self.bbox_embed.forward(all.clone());
        let boxes = sigmoid(match &self.reference {
            Some(reference) => boxes + reference.centres(),
            None => boxes,
        });
        DetrOutput { logits: self.class_embed.forward(all).chunk(count, 0), boxes: boxes.chunk(count, 0) }
    }

    /// `[1, Q, D]`: the embeddings of the queries.
    fn query_positions(&self) -> Tensor<3> {
        let positions = match (&self.query_embed, &self.reference) {
            (Some(table), _) => table.weight.val(),
            (None, Some(reference)) => {
                let dim = self.class_embed.weight.lazy_shape()[1];
                sine_of_points(sigmoid(reference.points.val()), dim)
            }
            (None, None) => unreachable!("queries are learned or reference points"),
        };
        positions.unsqueeze()
    }

    /// Number of queries: the maximum number of objects per picture.
    #[must_use]
    pub fn num_queries(&self) -> usize {
        let learned = self.query_embed.as_ref().map(|table| table.weight.lazy_shape()[0]);
        learned.or_else(|| self.reference.as_ref().map(|reference| reference.points.lazy_shape()[0])).unwrap_or(0)
    }

    /// Number of classes.
    #[must_use]
    pub fn classes(&self) -> usize {
        self.class_embed.weight.lazy_shape()[0] - 1
    }
}

impl DetrEncoder {
    fn forward(
        &self,
        mut x: Tensor<3>,
        positions: &Tensor<3>,
        padding: Option<Tensor<2, Bool>>,
        pass: &mut Pass,
    ) -> Tensor<3> {
        let options = DotProduct { padding, ..DotProduct::default() };
        for (index, layer) in self.layers.iter().enumerate() {
            let name = format!("layers.{index}");
            x = pass.within(&name, |pass| layer.forward_at(x, positions, &options, pass));
            x = pass.watch(&name, x);
        }
        match &self.norm {
            Some(norm) => norm.forward(x),
            None => x,
        }
    }
}

impl DetrDecoder {
    /// The output of every layer, after the norm.
    fn forward(&self, mut x: Tensor<3>, positions: &Tensor<3>, memory: &[Memory], pass: &mut Pass) -> Vec<Tensor<3>> {
        let mut all = Vec::new();
        for (index, (layer, memory)) in self.layers.iter().zip(memory).enumerate() {
            let name = format!("layers.{index}");
            x = pass.within(&name, |pass| layer.forward_at(x, positions, memory, pass));
            x = pass.watch(&name, x);
            all.push(self.norm.forward(x.clone()));
        }
        all
    }
}

impl ReferencePoints {
    /// The centres of the cells of a nearly square grid; widths from an eighth to a half of the picture.
    fn new(config: &DetrConfig, device: &Device) -> Self {
        let count = config.num_queries;
        let rows = count.isqrt();
        let logit = |share: f64| (share / (1.0 - share)).ln() as f32;
        // rows that do not divide the queries have one more point in the first ones
        let points: Vec<f32> = (0..rows)
            .flat_map(|row| {
                let columns = count / rows + usize::from(row < count % rows);
                let place = |index: usize, of: usize| logit((index as f64 + 0.5) / of as f64);
                (0..columns).flat_map(move |column| [place(column, columns), place(row, rows)])
            })
            .collect();
        let spread = |head: usize| (0.125 * 4f64.powf(head as f64 / (config.heads.max(2) - 1) as f64)).ln() as f32;
        let spreads: Vec<f32> = (0..config.decoder_layers).flat_map(|_| (0..config.heads).map(spread)).collect();
        let parameter = |values: Vec<f32>, shape: [usize; 2]| Param::from_data(TensorData::new(values, shape), device);
        Self {
            points: parameter(points, [count, 2]),
            spread: parameter(spreads, [config.decoder_layers, config.heads]),
        }
    }

    /// `[B or 1, A, Q, M]`: the logarithm of a Gaussian around each point.
    fn bias(&self, layer: usize, cells: &Cells, device: &Device) -> Tensor<4> {
        let centres = cells.centres(device);
        let [batch, tokens, _] = centres.dims();
        let points = sigmoid(self.points.val());
        let queries = points.dims()[0];
        let square = |axis: usize| {
            let cell = centres.clone().narrow(2, axis, 1).reshape([batch, 1, tokens]);
            let point = points.clone().narrow(1, axis, 1).reshape([1, queries, 1]);
            (cell - point).powi_scalar(2)
        };
        let distance = (square(0) + square(1)).reshape([batch, 1, queries, tokens]);
        let spread = self.spread.val().narrow(0, layer, 1);
        let heads = spread.dims()[1];
        distance * spread.mul_scalar(-2.0).exp().mul_scalar(-0.5).reshape([1, heads, 1, 1])
    }

    /// `[1, Q, 4]`: added to boxes before the sigmoid.
    fn centres(&self) -> Tensor<3> {
        let points = self.points.val();
        let sides = points.zeros_like();
        Tensor::cat(vec![points, sides], 1).unsqueeze()
    }
}

impl BoxMlp {
    /// `[.., D] -> [.., 4]`, before the sigmoid.
    fn forward(&self, mut x: Tensor<3>) -> Tensor<3> {
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(if index == 0 { x } else { relu(x) });
        }
        x
    }
}

impl DetrOutput {
    /// The detection of every query of every picture: its best class, regardless of the score, in the order of the queries.
    ///
    /// # Panics
    /// When there is no layer.
    #[must_use]
    pub fn detections(&self) -> Vec<Vec<Detection>> {
        let (Some(logits), Some(boxes)) = (self.logits.last(), self.boxes.last()) else { panic!("detr: no layer") };
        let [_, queries, classes] = logits.dims();
        let probabilities = softmax(logits.clone()).into_data().convert::<f32>();
        let boxes = boxes.clone().into_data().convert::<f32>();
        let numbers = |data: &TensorData| data.as_slice::<f32>().expect("it was converted").to_vec();
        let (probabilities, boxes) = (numbers(&probabilities), numbers(&boxes));
        let rows = probabilities.chunks_exact(classes).zip(boxes.chunks_exact(4));
        let detections: Vec<Detection> = rows
            .map(|(row, bounds)| {
                // the first on a tie
                let better = |best: (usize, f32), (class, score): (usize, &f32)| {
                    if *score > best.1 { (class, *score) } else { best }
                };
                let (class, score) = row[..classes - 1].iter().enumerate().fold((0, f32::NEG_INFINITY), better);
                let [cx, cy, w, h] = [0, 1, 2, 3].map(|side| f64::from(bounds[side]));
                Detection { class, score: f64::from(score), bounds: Bounds { cx, cy, w, h } }
            })
            .collect();
        detections.chunks(queries).map(<[Detection]>::to_vec).collect()
    }
}

const fn paper(name: &'static str, config: fn() -> DetrConfig) -> DetectorPreset<DetrConfig> {
    DetectorPreset { name, paper: "arXiv:2005.12872", preprocess: DetectionPreprocess::DETR, config }
}

/// The networks of the paper's table 1, and a small one.
pub const PRESETS: &[DetectorPreset<DetrConfig>] = &[
    DetectorPreset {
        name: "detr-nano",
        paper: "ours",
        preprocess: DetectionPreprocess::as_it_is(1),
        config: DetrConfig::nano,
    },
    paper("detr-r50", || DetrConfig::coco("resnet-50", LastStage::Strided)),
    paper("detr-r101", || DetrConfig::coco("resnet-101", LastStage::Strided)),
    paper("detr-r50-dc5", || DetrConfig::coco("resnet-50", LastStage::Dilated)),
    paper("detr-r101-dc5", || DetrConfig::coco("resnet-101", LastStage::Dilated)),
];

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<DetrConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}

#[cfg(test)]
mod tests;
