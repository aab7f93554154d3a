//! UNITER: words and regions with their positions, each normalised on its own, in one Transformer.
//! Chen et al. 2019, "UNITER: Universal Image-Text Representation Learning", arXiv:1909.11740.
//!
//! Field names are those of ChenRocks/UNITER. Differences from it: padding between words and regions is masked instead of
//! closed up; dropout is not applied to attention weights, only to the outputs of branches; one model may have the heads of
//! pre-training and of answers.

mod cost;

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::answer::AnswerHead;
use super::input::{Regions, VisionLanguageInput, Wanted};
use super::joint::Joint;
use super::output::VisionLanguageOutput;
use crate::attention::{TransportOptions, cosine_transport};
use crate::function;
use crate::layers::bert::{
    BertEmbeddings, BertEncoder, BertHeads, BertLayerConfig, BertPooler, BertPredictions, SequentialHead,
    SequentialTransform,
};
use crate::layers::{Embedding, LayerNorm, Linear, check_depth, check_size, rows_at};
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

/// A UNITER in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UniterConfig {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub positions: usize,
    /// Segments: 0 for words, 1 for regions, 2 for regions of a second picture.
    pub types: usize,
    pub layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Features of a region.
    pub features: usize,
    /// Classes of regions, 0 for the background.
    pub classes: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
    /// Whether it has the heads for masked words, masked regions and matching.
    pub pretraining: bool,
    pub answer: AnswerHead,
}

impl UniterConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        check_depth(self.layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        for (field, value) in [
            ("positions", self.positions),
            ("types", self.types),
            ("features", self.features),
            ("classes", self.classes),
        ] {
            check_size(field, value)?;
        }
        let fewest = if self.answer == AnswerHead::Pair { 3 } else { 2 };
        if self.types < fewest {
            let reason = format!("must be at least {fewest}: words and regions of each picture; got {}", self.types);
            return Err(Error::config("types", reason));
        }
        self.answer.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Uniter, Error> {
        self.validate()?;
        let (layer, sizes) = (self.layer(), [self.vocabulary, self.positions, self.types]);
        let (dim, features) = (self.dim, self.features);
        let images = UniterImageEmbeddings {
            img_linear: Linear::normal(features, dim, device),
            img_layer_norm: layer.norm(device),
            pos_linear: Linear::normal(7, dim, device),
            pos_layer_norm: layer.norm(device),
            mask_embedding: Embedding::normal(2, features, device),
            layer_norm: layer.norm(device),
            dropout: self.dropout,
        };
        let regress = || RegionRegression {
            net: SequentialTransform::new(&layer, device),
            bias: Initializer::Zeros.init([features], device),
        };
        let classify = || RegionClassifier { net: SequentialHead::new([dim, dim, self.classes], self.epsilon, device) };
        let pretraining = self.pretraining;
        check_parameters(Uniter {
            uniter: UniterModel {
                embeddings: BertEmbeddings::new(sizes, &layer, device),
                img_embeddings: images,
                encoder: BertEncoder::new(&layer, self.layers, device),
                pooler: BertPooler::new(dim, dim, device),
            },
            cls: pretraining.then(|| BertHeads {
                predictions: Some(BertPredictions::new(self.vocabulary, &layer, device)),
                seq_relationship: None,
            }),
            feat_regress: pretraining.then(regress),
            region_classifier: pretraining.then(classify),
            itm_output: pretraining.then(|| Linear::normal(dim, 2, device)),
            vqa_output: match self.answer {
                AnswerHead::Question { answers } => {
                    Some(SequentialHead::new([dim, 2 * dim, answers], self.epsilon, device))
                }
                AnswerHead::Pair | AnswerHead::None => None,
            },
            nlvr2_output: (self.answer == AnswerHead::Pair).then(|| Linear::normal(2 * dim, 2, device)),
        })
    }

    const fn layer(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }
}

/// The model; made by [`UniterConfig::init`].
#[derive(Module, Debug)]
pub struct Uniter {
    pub uniter: UniterModel,
    pub cls: Option<BertHeads>,
    pub feat_regress: Option<RegionRegression>,
    pub region_classifier: Option<RegionClassifier>,
    pub itm_output: Option<Linear>,
    pub vqa_output: Option<SequentialHead>,
    /// Reads two pictures, one after the other.
    pub nlvr2_output: Option<Linear>,
}

/// Embeddings, layers and the pooler.
#[derive(Module, Debug)]
pub struct UniterModel {
    pub embeddings: BertEmbeddings,
    pub img_embeddings: UniterImageEmbeddings,
    pub encoder: BertEncoder,
    pub pooler: BertPooler,
}

/// `Norm(Norm(Linear(features)) + Norm(Linear(box)) + type)`
#[derive(Module, Debug)]
pub struct UniterImageEmbeddings {
    pub img_linear: Linear,
    pub img_layer_norm: LayerNorm,
    pub pos_linear: Linear,
    pub pos_layer_norm: LayerNorm,
    /// `[2, F]`: the second row is added to masked regions, the first is never used.
    pub mask_embedding: Embedding,
    pub layer_norm: LayerNorm,
    dropout: f64,
}

/// Features of a region from its hidden state: the map of features, transposed.
#[derive(Module, Debug)]
pub struct RegionRegression {
    pub net: SequentialTransform,
    /// `[F]`
    pub bias: Param<Tensor<1>>,
}

/// Classes of a region.
#[derive(Module, Debug)]
pub struct RegionClassifier {
    pub net: SequentialHead,
}

impl UniterImageEmbeddings {
    /// `[B, R, D]`; `kind` `[1, D]` is the type of these regions.
    fn forward(&self, regions: &Regions, kind: Tensor<2>, pass: &mut Pass) -> Tensor<3> {
        let [batch, count, width] = regions.features.dims();
        let mut features = regions.visible_features();
        if regions.masked.iter().any(|masked| *masked) {
            let flags: Vec<f32> = regions.masked.iter().map(|masked| f32::from(u8::from(*masked))).collect();
            let flags = Tensor::<3>::from_data(TensorData::new(flags, [batch, count, 1]), &features.device());
            features = features + flags * self.mask_embedding.weight.val().narrow(0, 1, 1).reshape([1, 1, width]);
        }
        let boxes = Tensor::cat(vec![regions.boxes.clone(), regions.sides(), regions.areas()], 2);
        let seen = self.img_layer_norm.forward(self.img_linear.forward(features));
        let places = self.pos_layer_norm.forward(self.pos_linear.forward(boxes));
        pass.dropout(self.layer_norm.forward(seen + places + kind.unsqueeze()), self.dropout)
    }
}

impl RegionRegression {
    /// `[P, D] -> [P, F]`; `map` is that from features to tokens.
    fn forward(&self, x: Tensor<2>, map: &Linear) -> Tensor<2> {
        function::linear(self.net.forward(x), map.weight.val().transpose(), Some(self.bias.val()))
    }
}

impl Uniter {
    /// Hidden states and the outputs that are wanted; weights `[B, A, N + R, N + R]` under
    /// `uniter.encoder.layer.i.attention.self`, the plan of the alignment `[B, R, N]` under `transport`.
    ///
    /// # Panics
    /// When sizes do not fit the config, a text has more tokens than there are positions, or a statement about two pictures has
    /// regions of one.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        input.check();
        if let (Some(head), Some(regions), true) = (&self.nlvr2_output, &input.regions, input.wanted.answer) {
            return self.forward_pair(head, input, regions, pass);
        }
        let mut output = self.encode(input, 1, pass);
        let wanted = &input.wanted;
        self.read_words(&mut output, wanted);
        self.read_regions(&mut output, wanted);
        if wanted.matching {
            output.matching = self.itm_output.as_ref().map(|head| head.forward(output.pooled.clone()));
        }
        if let (true, Some(regions), Some(hidden)) = (wanted.alignment, &input.regions, &output.regions) {
            let padding = [input.words.tokens.padding(&hidden.device()), regions.padding()];
            let both = [output.text.clone(), hidden.clone()];
            let alignment = cosine_transport(both, padding, TransportOptions::default());
            pass.record("transport", &alignment.plan);
            output.alignment = Some(alignment);
        }
        if wanted.answer {
            output.answer = self.vqa_output.as_ref().map(|head| head.forward(output.pooled.clone()));
        }
        output
    }

    /// Both pictures with the same text, one after the other; hidden states are those with the left one.
    fn forward_pair(
        &self,
        head: &Linear,
        input: &VisionLanguageInput,
        regions: &Regions,
        pass: &mut Pass,
    ) -> VisionLanguageOutput {
        let [left, right] = [0, 1].map(|picture| {
            let regions = Some(regions.of_picture(picture));
            VisionLanguageInput { words: input.words.clone(), regions, wanted: Wanted::default() }
        });
        let mut output = self.encode(&left, 1, pass);
        let right = pass.within("right", |pass| self.encode(&right, 2, pass));
        let pooled = Tensor::cat(vec![output.pooled.clone(), right.pooled], 1);
        output.answer = Some(head.forward(pooled));
        output
    }

    /// `kind` is the type of the regions.
    fn encode(&self, input: &VisionLanguageInput, kind: usize, pass: &mut Pass) -> VisionLanguageOutput {
        let model = &self.uniter;
        let Joint { text, regions } = pass.within("uniter", |pass| {
            let text = model.embeddings.forward(&input.words, pass);
            let kind = model.embeddings.token_type_embeddings.weight.val().narrow(0, kind, 1);
            let regions = input.regions.as_ref().map(|regions| model.img_embeddings.forward(regions, kind, pass));
            Joint { text, regions }.encode(&model.encoder, input, pass)
        });
        let pooled = model.pooler.forward(text.clone());
        VisionLanguageOutput::of(text, regions, pooled)
    }

    fn read_words(&self, output: &mut VisionLanguageOutput, wanted: &Wanted) {
        let head = self.cls.as_ref().and_then(|cls| cls.predictions.as_ref());
        if let (Some(head), false) = (head, wanted.words.is_empty()) {
            let hidden = rows_at(output.text.clone(), &wanted.words);
            output.words = Some(head.forward(hidden, &self.uniter.embeddings.word_embeddings));
        }
    }

    fn read_regions(&self, output: &mut VisionLanguageOutput, wanted: &Wanted) {
        let Some(hidden) = output.regions.as_ref().filter(|_| !wanted.regions.is_empty()) else { return };
        let hidden = rows_at(hidden.clone(), &wanted.regions);
        let map = &self.uniter.img_embeddings.img_linear;
        output.region_features = self.feat_regress.as_ref().map(|head| head.forward(hidden.clone(), map));
        output.region_classes = self.region_classifier.as_ref().map(|head| head.net.forward(hidden));
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        self.uniter.embeddings.limit()
    }
}

#[cfg(test)]
mod tests;
