//! A whole BERT: embeddings, layers, the pooler and the heads of pre-training.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::{BertEmbeddings, BertEncoder, BertLayerConfig, BertPooler, BertPredictions};
use crate::Pass;
use crate::cost::Ledger;
use crate::data::Words;
use crate::layers::Linear;
use crate::pass::Axes;

/// Embeddings, layers and the pooler.
#[derive(Module, Debug)]
pub struct BertModel {
    pub embeddings: BertEmbeddings,
    pub encoder: BertEncoder,
    pub pooler: Option<BertPooler>,
}

impl BertModel {
    /// Tables for so many words, positions and types, and so many layers; without a pooler.
    pub fn new(sizes: [usize; 3], config: &BertLayerConfig, layers: usize, device: &Device) -> Self {
        let embeddings = BertEmbeddings::new(sizes, config, device);
        Self { embeddings, encoder: BertEncoder::new(config, layers, device), pooler: None }
    }

    /// The same with a pooler.
    #[must_use]
    pub fn with_pooler(self, config: &BertLayerConfig, device: &Device) -> Self {
        Self { pooler: Some(BertPooler::new(config.dim, config.dim, device)), ..self }
    }

    /// Hidden states of the tokens, `[B, N, D]`; weights `[B, A, N, N]` under `encoder.layer.i.attention.self`.
    ///
    /// # Panics
    /// When a text has more tokens than there are positions.
    pub fn forward(&self, words: &Words, pass: &mut Pass) -> Tensor<3> {
        let padding = words.tokens.padding(&self.embeddings.device());
        let x = self.embeddings.forward(words, pass);
        pass.record("embeddings", &x);
        pass.with_tokens(Axes::Words(words.tokens.length()), |pass| {
            pass.within("encoder", |pass| self.encoder.forward(x, padding.as_ref(), pass))
        })
    }

    /// Adds the cost of so many tokens; returns the shape of their hidden states.
    pub fn cost_of(&self, tokens: usize, ledger: &mut Ledger) -> Vec<usize> {
        let x = ledger.within("embeddings", |ledger| self.embeddings.cost_of(tokens, tokens, ledger));
        let x = ledger.part("encoder", &self.encoder, x);
        if let Some(pooler) = &self.pooler {
            ledger.part("pooler", pooler, x.clone());
        }
        x
    }
}

/// The heads of pre-training: masked words, and next-sentence or matching prediction.
#[derive(Module, Debug)]
pub struct BertHeads {
    pub predictions: Option<BertPredictions>,
    /// Whether the second sentence follows the first, or a text belongs to a picture.
    pub seq_relationship: Option<Linear>,
}

impl BertHeads {
    /// Both heads.
    pub fn new(vocabulary: usize, config: &BertLayerConfig, device: &Device) -> Self {
        Self {
            predictions: Some(BertPredictions::new(vocabulary, config, device)),
            seq_relationship: Some(Linear::normal(config.dim, 2, device)),
        }
    }

    /// Adds the cost for hidden states `[N, D]`.
    pub fn cost_of(&self, shape: &[usize], ledger: &mut Ledger) {
        if let Some(head) = &self.predictions {
            ledger.part("predictions", head, shape.to_vec());
        }
        if let Some(head) = &self.seq_relationship {
            ledger.part("seq_relationship", head, vec![1, shape[1]]);
        }
    }
}
