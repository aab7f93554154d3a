//! Words, their positions and their types as vectors.

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor};

use super::BertLayerConfig;
use crate::Pass;
use crate::cost::{Ledger, Work, size};
use crate::data::Words;
use crate::layers::{Embedding, LayerNorm};

/// Tables of words, positions and types, the sum of which is normalised.
#[derive(Module, Debug)]
pub struct BertEmbeddings {
    pub word_embeddings: Embedding,
    pub position_embeddings: Embedding,
    pub token_type_embeddings: Embedding,
    pub layer_norm: LayerNorm,
    dropout: f64,
}

impl BertEmbeddings {
    /// Tables for so many words, positions and types.
    pub fn new([words, positions, types]: [usize; 3], config: &BertLayerConfig, device: &Device) -> Self {
        let table = |rows: usize| Embedding::normal(rows, config.dim, device);
        Self {
            word_embeddings: table(words),
            position_embeddings: table(positions),
            token_type_embeddings: table(types),
            layer_norm: config.norm(device),
            dropout: config.dropout,
        }
    }

    /// The device of the tables.
    pub fn device(&self) -> Device {
        self.word_embeddings.weight.lazy_device()
    }

    /// Largest number of tokens of a text.
    pub fn limit(&self) -> usize {
        self.position_embeddings.weight.lazy_shape().dims::<2>()[0]
    }

    /// `[B, N, D]`, normalised.
    ///
    /// # Panics
    /// When a text has more tokens than there are positions.
    pub fn forward(&self, words: &Words, pass: &mut Pass) -> Tensor<3> {
        let sum = self.sum(words);
        self.normalised(sum, pass)
    }

    /// The sum before the norm: `[B, N, D]`.
    ///
    /// # Panics
    /// When a text has more tokens than there are positions.
    pub fn sum(&self, words: &Words) -> Tensor<3> {
        let (device, length) = (self.device(), words.tokens.length());
        assert!(length <= self.limit(), "embeddings: {length} tokens, {} positions are learned", self.limit());
        let tokens = self.word_embeddings.forward(words.tokens.ids(&device));
        let positions = self.position_embeddings.weight.val().narrow(0, 0, length);
        tokens + self.token_type_embeddings.forward(words.type_ids(&device)) + positions.unsqueeze()
    }

    /// The norm and dropout after the sum.
    pub fn normalised(&self, sum: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
        pass.dropout(self.layer_norm.forward(sum), self.dropout)
    }

    /// Rows of the table of types `[B, N, D]`.
    pub fn types(&self, types: Tensor<2, Int>) -> Tensor<3> {
        self.token_type_embeddings.forward(types)
    }

    /// Adds the cost of so many tokens, of which `normalised` pass through the norm; returns the shape of the latter.
    pub fn cost_of(&self, tokens: usize, normalised: usize, ledger: &mut Ledger) -> Vec<usize> {
        let [_, dim] = self.word_embeddings.weight.lazy_shape().dims();
        cost_of_table("word_embeddings", &self.word_embeddings, ledger);
        for (name, table) in
            [("position_embeddings", &self.position_embeddings), ("token_type_embeddings", &self.token_type_embeddings)]
        {
            cost_of_table(name, table, ledger);
            ledger.each(&format!("{name}.add"), &[tokens, dim], |elements| Work::Add { elements });
        }
        ledger.part("LayerNorm", &self.layer_norm, vec![normalised, dim])
    }
}

/// Adds a table under its name: a look-up has no arithmetic.
pub fn cost_of_table(name: &str, table: &Embedding, ledger: &mut Ledger) {
    ledger.within(name, |ledger| ledger.line(size(&table.weight), Work::Table, 0));
}
