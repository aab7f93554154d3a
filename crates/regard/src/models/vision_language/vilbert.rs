//! `ViLBERT`: one stream for words and one for regions, which look at each other in co-attention layers.
//! Lu et al. 2019, "`ViLBERT`: Pretraining Task-Agnostic Visiolinguistic Representations for Vision-and-Language
//! Tasks", arXiv:1908.02265.
//!
//! Field names are those of `jiasenlu/vilbert_beta`, in which 1 is vision and 2 is text. Region 0 is the mean of all regions with
//! the whole picture as its box; it is made here. Differences: the weights of attention are not dropped at random, only the ends
//! of branches are; one model may have the heads of pre-training and of answers.

mod co_attention;
mod cost;
mod encoder;
mod picture;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::answer::AnswerHead;
use super::input::{VisionLanguageInput, Wanted};
use super::output::VisionLanguageOutput;
use crate::layers::bert::{BertEmbeddings, BertLayerConfig, BertPooler, BertPredictions, BertTransform};
use crate::layers::{Linear, check_depth, check_size, rows_at};
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

pub use co_attention::{CoAttention, CoAttentionLayer, CoAttentionOutput};
pub use encoder::VilbertEncoder;
use picture::Picture;
pub use picture::VilbertImageEmbeddings;

/// A `ViLBERT` in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VilbertConfig {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub positions: usize,
    pub types: usize,
    /// Layers of words.
    pub layers: usize,
    /// Width of a word.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network of words.
    pub inner: usize,
    /// Layers of regions.
    pub region_layers: usize,
    /// Width of a region.
    pub region_dim: usize,
    pub region_heads: usize,
    /// Hidden width of the feed-forward network of regions.
    pub region_inner: usize,
    /// Width of co-attention and of what is pooled.
    pub joint_dim: usize,
    pub joint_heads: usize,
    /// The layers of words before which the streams look at each other.
    pub text_places: Vec<usize>,
    /// The layers of regions before which they do, as many.
    pub region_places: Vec<usize>,
    /// Features of a region.
    pub features: usize,
    /// Classes of regions.
    pub classes: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
    /// Whether it has the heads for masked words, masked regions and matching.
    pub pretraining: bool,
    pub answer: AnswerHead,
}

impl VilbertConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.text().validate()?;
        // errors of the other streams name their own fields
        for (field, heads, dim) in
            [("region_heads", self.region_heads, self.region_dim), ("joint_heads", self.joint_heads, self.joint_dim)]
        {
            check_size(field, heads)?;
            if dim == 0 || !dim.is_multiple_of(heads) {
                return Err(Error::config(field, format!("must divide the width {dim}, got {heads}")));
            }
        }
        check_depth(self.layers)?;
        check_depth(self.region_layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        for (field, value) in [
            ("positions", self.positions),
            ("types", self.types),
            ("region_dim", self.region_dim),
            ("region_inner", self.region_inner),
            ("joint_dim", self.joint_dim),
            ("features", self.features),
            ("classes", self.classes),
        ] {
            check_size(field, value)?;
        }
        check_places("text_places", &self.text_places, self.layers)?;
        check_places("region_places", &self.region_places, self.region_layers)?;
        if self.text_places.len() != self.region_places.len() {
            let (text, regions) = (self.text_places.len(), self.region_places.len());
            let reason = format!("must be as many as text_places, {text}, got {regions}");
            return Err(Error::config("region_places", reason));
        }
        self.answer.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Vilbert, Error> {
        self.validate()?;
        let (text, vision, joint) = (self.text(), self.vision(), self.joint_dim);
        let region_layer = |_| vision.init(device);
        let co_layer = |_| CoAttentionLayer::new(&text, &vision, [joint, self.joint_heads], device);
        let heads = || VilbertHeads {
            predictions: BertPredictions::new(self.vocabulary, &text, device),
            bi_seq_relationship: Linear::normal(joint, 2, device),
            image_predictions: RegionPredictions {
                transform: BertTransform::new(&vision, device),
                decoder: Linear::normal(self.region_dim, self.classes, device),
            },
        };
        let bert = VilbertModel {
            embeddings: BertEmbeddings::new([self.vocabulary, self.positions, self.types], &text, device),
            v_embeddings: VilbertImageEmbeddings {
                image_embeddings: Linear::normal(self.features, self.region_dim, device),
                image_location_embeddings: Linear::normal(5, self.region_dim, device),
                layer_norm: vision.norm(device),
                dropout: self.dropout,
            },
            encoder: VilbertEncoder {
                layer: (0..self.layers).map(|_| text.init(device)).collect(),
                v_layer: (0..self.region_layers).map(region_layer).collect(),
                c_layer: self.text_places.iter().map(co_layer).collect(),
                places: self.region_places.iter().copied().zip(self.text_places.iter().copied()).collect(),
            },
            t_pooler: BertPooler::new(self.dim, joint, device),
            v_pooler: BertPooler::new(self.region_dim, joint, device),
        };
        check_parameters(Vilbert {
            bert,
            cls: self.pretraining.then(heads),
            vil_prediction: match self.answer {
                AnswerHead::Question { answers } => Some(AnswerClassifier::new([joint, 2 * joint, answers], device)),
                AnswerHead::Pair | AnswerHead::None => None,
            },
            vil_binary_prediction: (self.answer == AnswerHead::Pair)
                .then(|| AnswerClassifier::new([2 * joint, 2 * joint, 2], device)),
            dropout: self.dropout,
        })
    }

    const fn text(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }

    const fn vision(&self) -> BertLayerConfig {
        let Self { region_dim: dim, region_heads: heads, region_inner: inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }
}

/// Places in a stream: increasing, before one of its layers.
fn check_places(field: &'static str, places: &[usize], layers: usize) -> Result<(), Error> {
    let increase = places.windows(2).all(|pair| pair[0] < pair[1]);
    if increase && places.iter().all(|place| *place < layers) {
        return Ok(());
    }
    Err(Error::config(field, format!("must increase and be less than the {layers} layers, got {places:?}")))
}

/// The model; made by [`VilbertConfig::init`].
#[derive(Module, Debug)]
pub struct Vilbert {
    pub bert: VilbertModel,
    pub cls: Option<VilbertHeads>,
    pub vil_prediction: Option<AnswerClassifier>,
    /// Reads two pictures, one after the other.
    pub vil_binary_prediction: Option<AnswerClassifier>,
    dropout: f64,
}

/// Both streams and what is pooled from them.
#[derive(Module, Debug)]
pub struct VilbertModel {
    pub embeddings: BertEmbeddings,
    pub v_embeddings: VilbertImageEmbeddings,
    pub encoder: VilbertEncoder,
    pub t_pooler: BertPooler,
    pub v_pooler: BertPooler,
}

/// The heads of pre-training.
#[derive(Module, Debug)]
pub struct VilbertHeads {
    pub predictions: BertPredictions,
    pub bi_seq_relationship: Linear,
    pub image_predictions: RegionPredictions,
}

/// Classes of regions.
#[derive(Module, Debug)]
pub struct RegionPredictions {
    pub transform: BertTransform,
    pub decoder: Linear,
}

/// A linear map, ReLU and another linear map. Upstream's are weight-normed, which [`weights`](crate::weights) resolves.
#[derive(Module, Debug)]
pub struct AnswerClassifier {
    pub main: SequentialMaps,
}

/// In a `torch.nn.Sequential`: its parts are named 0 and 3.
#[derive(Module, Debug)]
pub struct SequentialMaps {
    pub dense: Linear,
    pub decoder: Linear,
}

impl AnswerClassifier {
    fn new([inputs, hidden, outputs]: [usize; 3], device: &Device) -> Self {
        let dense = Linear::normal(inputs, hidden, device);
        Self { main: SequentialMaps { dense, decoder: Linear::normal(hidden, outputs, device) } }
    }

    fn forward(&self, x: Tensor<2>, pass: &mut Pass) -> Tensor<2> {
        let hidden = burn::tensor::activation::relu(self.main.dense.forward(x));
        self.main.decoder.forward(pass.dropout(hidden, 0.5))
    }
}

/// Hidden states and what is pooled from them.
struct Encoded {
    text: Tensor<3>,
    /// With region 0.
    image: Tensor<3>,
    pooled_text: Tensor<2>,
    pooled_image: Tensor<2>,
}

impl Encoded {
    fn fused(&self) -> Tensor<2> {
        self.pooled_text.clone() * self.pooled_image.clone()
    }
}

impl Vilbert {
    /// Hidden states and the outputs that are wanted. Weights are under `bert.encoder.layer.i.attention.self`,
    /// `bert.encoder.v_layer.i.attention.self`, `bert.encoder.c_layer.i.biattention.text_over_regions` and
    /// `..regions_over_text`; the first region of these is the whole picture.
    ///
    /// # Panics
    /// When there are no regions, sizes do not fit the config, or a text has more tokens than there are positions.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        input.check();
        let regions = input.regions.as_ref().expect("vilbert: needs regions, this input has none");
        let wanted = &input.wanted;
        if let (Some(head), true) = (&self.vil_binary_prediction, wanted.answer) {
            let encoded = self.encode(input, &Picture::of(&regions.of_picture(0)), pass);
            let right = Picture::of(&regions.of_picture(1));
            let right = pass.within("right", |pass| self.encode(input, &right, pass));
            let fused = Tensor::cat(vec![encoded.fused(), right.fused()], 1);
            let answer = head.forward(fused, pass);
            return VisionLanguageOutput { answer: Some(answer), ..self.output(&encoded, &Wanted::default(), pass) };
        }
        let encoded = self.encode(input, &Picture::of(regions), pass);
        self.output(&encoded, wanted, pass)
    }

    fn encode(&self, input: &VisionLanguageInput, picture: &Picture, pass: &mut Pass) -> Encoded {
        let bert = &self.bert;
        pass.within("bert", |pass| {
            let text = bert.embeddings.forward(&input.words, pass);
            let image = bert.v_embeddings.forward(picture, pass);
            let padding = [input.words.tokens.padding(&text.device()), picture.padding.clone()];
            let run = |pass: &mut Pass| bert.encoder.forward([text, image], &padding, pass);
            let [text, image] = pass.within("encoder", run);
            let relu = |x: Tensor<2>| burn::tensor::activation::relu(x);
            let pooled_text = relu(bert.t_pooler.linear(text.clone()));
            let pooled_image = relu(bert.v_pooler.linear(image.clone()));
            Encoded { text, image, pooled_text, pooled_image }
        })
    }

    fn output(&self, encoded: &Encoded, wanted: &Wanted, pass: &mut Pass) -> VisionLanguageOutput {
        let count = encoded.image.dims()[1] - 1;
        let regions = encoded.image.clone().narrow(1, 1, count);
        let fused = encoded.fused();
        let mut output = VisionLanguageOutput::of(encoded.text.clone(), Some(regions.clone()), fused.clone());
        if let Some(cls) = &self.cls {
            if !wanted.words.is_empty() {
                let hidden = rows_at(encoded.text.clone(), &wanted.words);
                output.words = Some(cls.predictions.forward(hidden, &self.bert.embeddings.word_embeddings));
            }
            if !wanted.regions.is_empty() {
                let hidden = cls.image_predictions.transform.forward(rows_at(regions, &wanted.regions));
                output.region_classes = Some(cls.image_predictions.decoder.forward(hidden));
            }
            if wanted.matching {
                let read = pass.dropout(fused.clone(), self.dropout);
                output.matching = Some(cls.bi_seq_relationship.forward(read));
            }
        }
        if wanted.answer {
            output.answer = self.vil_prediction.as_ref().map(|head| head.forward(fused, pass));
        }
        output
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        self.bert.embeddings.limit()
    }
}

#[cfg(test)]
mod tests;
