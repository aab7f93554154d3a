//! `VisualBERT`: a BERT whose text goes on with the regions of a picture.
//! Li et al. 2019, "VisualBERT: A Simple and Performant Baseline for Vision and Language", arXiv:1908.03557.
//!
//! A region is its features through a linear map, a type, and one position that all regions share: the model cannot know where
//! a region is. Field names are those of `VisualBertForPreTraining` in transformers, with the answer's head beside the others as
//! in the original, which calls it `classifier`. The type of a region is 1 in transformers and 0 in the original; see
//! [`VisualBertConfig::region_type`].

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::answer::AnswerHead;
use super::input::{Regions, VisionLanguageInput};
use super::joint::Joint;
use super::output::VisionLanguageOutput;
use crate::cost::{Costed, Ledger, Work};
use crate::layers::bert::{BertEmbeddings, BertEncoder, BertHeads, BertLayerConfig, BertPooler, cost_of_table};
use crate::layers::{Embedding, Linear, check_depth, check_size, rows_at};
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

/// A `VisualBERT` in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VisualBertConfig {
    pub vocabulary: usize,
    /// Most tokens of a text.
    pub positions: usize,
    /// Segments, of words and of regions.
    pub types: usize,
    pub layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Features of a region.
    pub features: usize,
    /// The type of regions of a single picture: 1 in transformers, 0 in the original. Of two pictures, the left one has 0 and
    /// the right one 1.
    pub region_type: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
    /// Whether it has the heads for masked words and for matching.
    pub pretraining: bool,
    pub answer: AnswerHead,
}

impl VisualBertConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        check_depth(self.layers)?;
        check_vocabulary("vocabulary", self.vocabulary)?;
        check_size("positions", self.positions)?;
        check_size("types", self.types)?;
        check_size("features", self.features)?;
        let most = if self.answer == AnswerHead::Pair { 1 } else { self.region_type };
        if most.max(self.region_type) >= self.types {
            let reason = format!("must be less than the {} types, got {}", self.types, most.max(self.region_type));
            return Err(Error::config("region_type", reason));
        }
        self.answer.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<VisualBert, Error> {
        self.validate()?;
        let (layer, sizes) = (self.layer(), [self.vocabulary, self.positions, self.types]);
        let embeddings = VisualBertEmbeddings {
            base_: BertEmbeddings::new(sizes, &layer, device),
            visual_token_type_embeddings: Embedding::normal(self.types, self.dim, device),
            visual_position_embeddings: Embedding::normal(self.positions, self.dim, device),
            visual_projection: Linear::normal(self.features, self.dim, device),
            region_type: self.region_type,
        };
        check_parameters(VisualBert {
            visual_bert: VisualBertModel {
                embeddings,
                encoder: BertEncoder::new(&layer, self.layers, device),
                pooler: BertPooler::new(self.dim, self.dim, device),
            },
            cls: self.pretraining.then(|| BertHeads::new(self.vocabulary, &layer, device)),
            classifier: self.answer.outputs().map(|outputs| Linear::normal(self.dim, outputs, device)),
            answer: self.answer,
            dropout: self.dropout,
        })
    }

    const fn layer(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }
}

/// The model; made by [`VisualBertConfig::init`].
#[derive(Module, Debug)]
pub struct VisualBert {
    pub visual_bert: VisualBertModel,
    pub cls: Option<BertHeads>,
    pub classifier: Option<Linear>,
    #[module(skip)]
    answer: AnswerHead,
    dropout: f64,
}

/// Embeddings, layers and the pooler.
#[derive(Module, Debug)]
pub struct VisualBertModel {
    pub embeddings: VisualBertEmbeddings,
    pub encoder: BertEncoder,
    pub pooler: BertPooler,
}

/// BERT's embeddings, and those of regions.
#[derive(Module, Debug)]
pub struct VisualBertEmbeddings {
    pub base_: BertEmbeddings,
    pub visual_token_type_embeddings: Embedding,
    pub visual_position_embeddings: Embedding,
    pub visual_projection: Linear,
    region_type: usize,
}

impl VisualBertEmbeddings {
    /// Words and regions, under one norm.
    fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> Joint {
        let text = self.base_.sum(&input.words);
        let Some(regions) = &input.regions else {
            return Joint { text: self.base_.normalised(text, pass), regions: None };
        };
        let (words, count) = (text.dims()[1], regions.length());
        let both = Tensor::cat(vec![text, self.regions(regions, words)], 1);
        let both = self.base_.normalised(both, pass);
        Joint { text: both.clone().narrow(1, 0, words), regions: Some(both.narrow(1, words, count)) }
    }

    /// `[B, R, D]`, before the norm.
    fn regions(&self, regions: &Regions, words: usize) -> Tensor<3> {
        let [batch, count, _] = regions.features.dims();
        let device = regions.features.device();
        let kinds: Vec<i64> = match &regions.pictures[..] {
            [] => vec![self.region_type as i64; batch * count],
            pictures => pictures.iter().map(|picture| i64::from(*picture)).collect(),
        };
        let kinds = Tensor::<2, Int>::from_data(TensorData::new(kinds, [batch, count]), &device);
        let place = self.visual_position_embeddings.weight.val().narrow(0, 0, 1).unsqueeze();
        let x = self.visual_projection.forward(regions.visible_features())
            + self.visual_token_type_embeddings.forward(kinds)
            + place;
        if regions.aligned.iter().all(Vec::is_empty) {
            return x;
        }
        // the mean of the positions of the words that a region shows
        let mut shares = vec![0f32; batch * count * words];
        for (row, places) in shares.chunks_exact_mut(words).zip(&regions.aligned) {
            for place in places {
                row[*place] += 1.0 / places.len() as f32;
            }
        }
        let shares = Tensor::<3>::from_data(TensorData::new(shares, [batch, count, words]), &device);
        let positions = self.base_.position_embeddings.weight.val().narrow(0, 0, words);
        let dim = positions.dims()[1];
        x + shares.matmul(positions.reshape([1, words, dim]).expand([batch, words, dim]))
    }

    fn cost_of(&self, [words, regions]: [usize; 2], ledger: &mut Ledger) -> Vec<usize> {
        let shape = self.base_.cost_of(words, words + regions, ledger);
        let [dim, features] = self.visual_projection.weight.lazy_shape().dims();
        ledger.part("visual_projection", &self.visual_projection, vec![regions, features]);
        for (name, table) in [
            ("visual_token_type_embeddings", &self.visual_token_type_embeddings),
            ("visual_position_embeddings", &self.visual_position_embeddings),
        ] {
            cost_of_table(name, table, ledger);
            ledger.each(&format!("{name}.add"), &[regions, dim], |elements| Work::Add { elements });
        }
        shape
    }
}

impl VisualBert {
    /// Hidden states and the outputs that are wanted; weights `[B, A, N + R, N + R]` under
    /// `visual_bert.encoder.layer.i.attention.self`.
    ///
    /// A question is answered at the token before the last: `[CLS] question ? [MASK] [SEP]`.
    ///
    /// # Panics
    /// When sizes do not fit the config, or a text has more tokens than there are positions.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        input.check();
        let wanted = &input.wanted;
        let Joint { text, regions } = pass.within("visual_bert", |pass| {
            let embedded = self.visual_bert.embeddings.forward(input, pass);
            embedded.encode(&self.visual_bert.encoder, input, pass)
        });
        let pooled = self.visual_bert.pooler.forward(text.clone());
        let mut output = VisionLanguageOutput::of(text, regions, pooled);
        if let Some(cls) = &self.cls {
            let table = &self.visual_bert.embeddings.base_.word_embeddings;
            let words =
                |x: &Tensor<3>| Some(cls.predictions.as_ref()?.forward(rows_at(x.clone(), &wanted.words), table));
            output.words = if wanted.words.is_empty() { None } else { words(&output.text) };
            if wanted.matching {
                output.matching = cls.seq_relationship.as_ref().map(|head| head.forward(output.pooled.clone()));
            }
        }
        if let (true, Some(classifier)) = (wanted.answer, &self.classifier) {
            let read = match self.answer {
                AnswerHead::Question { .. } => rows_at(output.text.clone(), &places_of_masks(input)),
                AnswerHead::Pair | AnswerHead::None => output.pooled.clone(),
            };
            output.answer = Some(classifier.forward(pass.dropout(read, self.dropout)));
        }
        output
    }

    /// Most tokens of a text.
    pub fn limit(&self) -> usize {
        self.visual_bert.embeddings.base_.limit()
    }
}

/// The token before the last of each text.
fn places_of_masks(input: &VisionLanguageInput) -> Vec<usize> {
    let (tokens, length) = (&input.words.tokens, input.words.tokens.length());
    let place = |(text, own): (usize, &usize)| {
        assert!(*own >= 2, "visual_bert: a question of {own} tokens has no place for its answer");
        text * length + own - 2
    };
    tokens.lengths().iter().enumerate().map(place).collect()
}

impl Costed for VisualBert {
    /// `[N, R] -> [N + R, D]`, with the logits of every word.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [words, regions] = shape[..] else { panic!("visual_bert: words and regions are [N, R], got {shape:?}") };
        let x = ledger.within("visual_bert", |ledger| {
            let model = &self.visual_bert;
            let x = ledger.within("embeddings", |ledger| model.embeddings.cost_of([words, regions], ledger));
            let x = ledger.part("encoder", &model.encoder, x);
            ledger.part("pooler", &model.pooler, x.clone());
            x
        });
        if let Some(cls) = &self.cls {
            ledger.within("cls", |ledger| cls.cost_of(&[words, x[1]], ledger));
        }
        if let Some(classifier) = &self.classifier {
            ledger.part("classifier", classifier, vec![1, x[1]]);
        }
        x
    }
}

#[cfg(test)]
mod tests;
