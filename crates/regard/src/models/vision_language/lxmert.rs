//! LXMERT: layers of words, layers of regions, then layers with cross-attention between both.
//! Tan and Bansal 2019, "LXMERT: Learning Cross-Modality Encoder Representations from Transformers", arXiv:1908.07490.
//!
//! Field names are those of `LxmertForPreTraining` in transformers. Differences: dropout is not applied to
//! attention weights, only to the outputs of branches; statements about two pictures have the head of the original, `logit_fc`.

mod cost;
mod layer;

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};
use serde::{Deserialize, Serialize};

use super::answer::AnswerHead;
use super::input::{Regions, VisionLanguageInput, Wanted};
use super::output::VisionLanguageOutput;
use crate::layers::bert::{
    BertEmbeddings, BertHeads, BertLayer, BertLayerConfig, BertPooler, BertTransform, SequentialHead,
};
use crate::layers::{LayerNorm, Linear, check_depth, check_size, rows_at};
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::pass::Axes;
use crate::{Error, Pass};

pub use layer::{LxmertAttention, LxmertCrossLayer};

/// An LXMERT in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LxmertConfig {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub positions: usize,
    pub types: usize,
    /// Layers of words.
    pub layers: usize,
    /// Layers of regions.
    pub region_layers: usize,
    /// Layers of both.
    pub cross_layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Features of a region.
    pub features: usize,
    /// Classes of regions.
    pub classes: usize,
    /// Attributes of regions, such as colours.
    pub attributes: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
    /// Whether it has the heads for masked words, masked regions and matching.
    pub pretraining: bool,
    pub answer: AnswerHead,
}

impl LxmertConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        for depth in [self.layers, self.region_layers, self.cross_layers] {
            check_depth(depth)?;
        }
        check_vocabulary("vocabulary", self.vocabulary)?;
        for (field, value) in [
            ("positions", self.positions),
            ("types", self.types),
            ("features", self.features),
            ("classes", self.classes),
            ("attributes", self.attributes),
        ] {
            check_size(field, value)?;
        }
        self.answer.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<Lxmert, Error> {
        self.validate()?;
        let (layer, dim) = (self.layer(), self.dim);
        let map = |inputs: usize, outputs: usize| Linear::normal(inputs, outputs, device);
        let encoder = LxmertEncoder {
            visn_fc: LxmertRegionEmbeddings {
                visn_fc: map(self.features, dim),
                visn_layer_norm: layer.norm(device),
                box_fc: map(4, dim),
                box_layer_norm: layer.norm(device),
                dropout: self.dropout,
            },
            layer: (0..self.layers).map(|_| layer.init(device)).collect(),
            r_layers: (0..self.region_layers).map(|_| layer.init(device)).collect(),
            x_layers: (0..self.cross_layers).map(|_| LxmertCrossLayer::new(&layer, device)).collect(),
        };
        let regions = || LxmertRegionHead {
            transform: BertTransform::new(&layer, device),
            decoder_dict: LxmertDecoders {
                obj: map(dim, self.classes),
                attr: map(dim, self.attributes),
                feat: map(dim, self.features),
            },
        };
        let answers = |sizes| SequentialHead::new(sizes, self.epsilon, device);
        check_parameters(Lxmert {
            lxmert: LxmertModel {
                embeddings: BertEmbeddings::new([self.vocabulary, self.positions, self.types], &layer, device),
                encoder,
                pooler: BertPooler::new(dim, dim, device),
            },
            cls: self.pretraining.then(|| BertHeads::new(self.vocabulary, &layer, device)),
            obj_predict_head: self.pretraining.then(regions),
            answer_head: match self.answer {
                AnswerHead::Question { answers: count } => {
                    Some(LxmertAnswers { logit_fc: answers([dim, 2 * dim, count]) })
                }
                AnswerHead::Pair | AnswerHead::None => None,
            },
            logit_fc: (self.answer == AnswerHead::Pair).then(|| answers([2 * dim, 2 * dim, 2])),
        })
    }

    const fn layer(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }
}

/// The model; made by [`LxmertConfig::init`].
#[derive(Module, Debug)]
pub struct Lxmert {
    pub lxmert: LxmertModel,
    pub cls: Option<BertHeads>,
    pub obj_predict_head: Option<LxmertRegionHead>,
    pub answer_head: Option<LxmertAnswers>,
    /// Reads two pictures, one after the other.
    pub logit_fc: Option<SequentialHead>,
}

/// Embeddings, layers and the pooler.
#[derive(Module, Debug)]
pub struct LxmertModel {
    pub embeddings: BertEmbeddings,
    pub encoder: LxmertEncoder,
    pub pooler: BertPooler,
}

/// The layers of words, of regions, and of both.
#[derive(Module, Debug)]
pub struct LxmertEncoder {
    pub visn_fc: LxmertRegionEmbeddings,
    pub layer: Vec<BertLayer>,
    pub r_layers: Vec<BertLayer>,
    pub x_layers: Vec<LxmertCrossLayer>,
}

/// `(Norm(Linear(features)) + Norm(Linear(box))) / 2`
#[derive(Module, Debug)]
pub struct LxmertRegionEmbeddings {
    pub visn_fc: Linear,
    pub visn_layer_norm: LayerNorm,
    pub box_fc: Linear,
    pub box_layer_norm: LayerNorm,
    dropout: f64,
}

/// Predictions for masked regions: classes, attributes, features.
#[derive(Module, Debug)]
pub struct LxmertRegionHead {
    pub transform: BertTransform,
    pub decoder_dict: LxmertDecoders,
}

#[derive(Module, Debug)]
pub struct LxmertDecoders {
    pub obj: Linear,
    pub attr: Linear,
    pub feat: Linear,
}

/// Answers to questions.
#[derive(Module, Debug)]
pub struct LxmertAnswers {
    pub logit_fc: SequentialHead,
}

impl Lxmert {
    /// Hidden states and the outputs that are wanted. Weights are under `lxmert.encoder.layer.i.attention.self`,
    /// `..r_layers.i.attention.self`, `..x_layers.i.visual_attention.att.text_over_regions` and `..regions_over_text`,
    /// `..x_layers.i.lang_self_att.self` and `..visn_self_att.self`.
    ///
    /// # Panics
    /// When there are no regions, sizes do not fit the config, or a text has more tokens than there are positions.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        input.check();
        let regions = input.regions.as_ref().expect("lxmert: needs regions, this input has none");
        let wanted = &input.wanted;
        if let (Some(head), true) = (&self.logit_fc, wanted.answer) {
            let mut output = self.encode(input, &regions.of_picture(0), pass);
            let right = pass.within("right", |pass| self.encode(input, &regions.of_picture(1), pass));
            output.answer = Some(head.forward(Tensor::cat(vec![output.pooled.clone(), right.pooled], 1)));
            return output;
        }
        let mut output = self.encode(input, regions, pass);
        self.read_words(&mut output, wanted);
        self.read_regions(&mut output, wanted);
        if wanted.answer {
            output.answer = self.answer_head.as_ref().map(|head| head.logit_fc.forward(output.pooled.clone()));
        }
        output
    }

    fn encode(&self, input: &VisionLanguageInput, regions: &Regions, pass: &mut Pass) -> VisionLanguageOutput {
        let model = &self.lxmert;
        let [text, vision] = pass.within("lxmert", |pass| {
            let text = model.embeddings.forward(&input.words, pass);
            let padding = [input.words.tokens.padding(&text.device()), regions.padding()];
            pass.within("encoder", |pass| model.encoder.forward(text, regions, &padding, pass))
        });
        let pooled = model.pooler.forward(text.clone());
        VisionLanguageOutput::of(text, Some(vision), pooled)
    }

    fn read_words(&self, output: &mut VisionLanguageOutput, wanted: &Wanted) {
        let Some(cls) = &self.cls else { return };
        if let (Some(head), false) = (&cls.predictions, wanted.words.is_empty()) {
            let hidden = rows_at(output.text.clone(), &wanted.words);
            output.words = Some(head.forward(hidden, &self.lxmert.embeddings.word_embeddings));
        }
        if wanted.matching {
            output.matching = cls.seq_relationship.as_ref().map(|head| head.forward(output.pooled.clone()));
        }
    }

    fn read_regions(&self, output: &mut VisionLanguageOutput, wanted: &Wanted) {
        let (Some(head), Some(hidden)) = (&self.obj_predict_head, &output.regions) else { return };
        if wanted.regions.is_empty() {
            return;
        }
        let hidden = head.transform.forward(rows_at(hidden.clone(), &wanted.regions));
        let decoders = &head.decoder_dict;
        output.region_classes = Some(decoders.obj.forward(hidden.clone()));
        output.region_attributes = Some(decoders.attr.forward(hidden.clone()));
        output.region_features = Some(decoders.feat.forward(hidden));
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        self.lxmert.embeddings.limit()
    }
}

impl LxmertRegionEmbeddings {
    fn forward(&self, regions: &Regions, pass: &mut Pass) -> Tensor<3> {
        let seen = self.visn_layer_norm.forward(self.visn_fc.forward(regions.visible_features()));
        let places = self.box_layer_norm.forward(self.box_fc.forward(regions.boxes.clone()));
        pass.dropout((seen + places) / 2.0, self.dropout)
    }
}

impl LxmertEncoder {
    /// `padding` is that of words and of regions.
    fn forward(
        &self,
        mut text: Tensor<3>,
        regions: &Regions,
        padding: &[Option<Tensor<2, Bool>>; 2],
        pass: &mut Pass,
    ) -> [Tensor<3>; 2] {
        let mut vision = self.visn_fc.forward(regions, pass);
        let axes = [Axes::Words(text.dims()[1]), Axes::Slots(vision.dims()[1])];
        pass.with_tokens(axes[0].clone(), |pass| {
            for (i, layer) in self.layer.iter().enumerate() {
                let name = format!("layer.{i}");
                let x = text.clone();
                text = pass.within(&name, |pass| layer.forward(x, padding[0].as_ref(), pass));
                text = pass.watch(&name, text.clone());
            }
        });
        pass.with_tokens(axes[1].clone(), |pass| {
            for (i, layer) in self.r_layers.iter().enumerate() {
                let name = format!("r_layers.{i}");
                let x = vision.clone();
                vision = pass.within(&name, |pass| layer.forward(x, padding[1].as_ref(), pass));
                vision = pass.watch(&name, vision.clone());
            }
        });
        for (i, layer) in self.x_layers.iter().enumerate() {
            let run = |pass: &mut Pass| layer.forward([text, vision], padding, &axes, pass);
            [text, vision] = pass.within(format!("x_layers.{i}"), run);
        }
        [text, vision]
    }
}

#[cfg(test)]
mod tests;
