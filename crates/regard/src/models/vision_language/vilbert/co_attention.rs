//! Co-attention: words look at regions and regions at words, each stream then has its own feed-forward network.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor};

use crate::Pass;
use crate::cost::{Ledger, Work};
use crate::layers::bert::{BertIntermediate, BertLayerConfig, BertOutput, attend, cost_of_attention};
use crate::layers::{LayerNorm, Linear};
use crate::pass::Axes;

/// Both directions, with their feed-forward networks.
#[derive(Module, Debug)]
pub struct CoAttentionLayer {
    pub biattention: CoAttention,
    pub bi_output: CoAttentionOutput,
    pub v_intermediate: BertIntermediate,
    pub v_output: BertOutput,
    pub t_intermediate: BertIntermediate,
    pub t_output: BertOutput,
}

/// Projections of regions (1) and words (2) to queries, keys and values.
#[derive(Module, Debug)]
pub struct CoAttention {
    pub query1: Linear,
    pub key1: Linear,
    pub value1: Linear,
    pub query2: Linear,
    pub key2: Linear,
    pub value2: Linear,
    heads: usize,
}

/// The ends of both branches.
#[derive(Module, Debug)]
pub struct CoAttentionOutput {
    pub dense1: Linear,
    pub layer_norm1: LayerNorm,
    pub dense2: Linear,
    pub layer_norm2: LayerNorm,
    /// In every checkpoint, and never used.
    pub q_dense1: Linear,
    pub q_dense2: Linear,
    dropout: f64,
}

impl CoAttentionLayer {
    /// `[joint, heads]` are the width and the heads of both directions.
    pub fn new(text: &BertLayerConfig, vision: &BertLayerConfig, [joint, heads]: [usize; 2], device: &Device) -> Self {
        let map = |inputs: usize, outputs: usize| Linear::normal(inputs, outputs, device);
        let feed_forward = |config: &BertLayerConfig| {
            let hidden = BertIntermediate { dense: map(config.dim, config.inner) };
            (hidden, BertOutput::new(config.inner, config, device))
        };
        let (v_intermediate, v_output) = feed_forward(vision);
        let (t_intermediate, t_output) = feed_forward(text);
        Self {
            biattention: CoAttention {
                query1: map(vision.dim, joint),
                key1: map(vision.dim, joint),
                value1: map(vision.dim, joint),
                query2: map(text.dim, joint),
                key2: map(text.dim, joint),
                value2: map(text.dim, joint),
                heads,
            },
            bi_output: CoAttentionOutput {
                dense1: map(joint, vision.dim),
                layer_norm1: vision.norm(device),
                dense2: map(joint, text.dim),
                layer_norm2: text.norm(device),
                q_dense1: map(joint, vision.dim),
                q_dense2: map(joint, text.dim),
                dropout: text.dropout,
            },
            v_intermediate,
            v_output,
            t_intermediate,
            t_output,
        }
    }

    /// Words and regions, their padding and their layout.
    pub fn forward(
        &self,
        [text, image]: [Tensor<3>; 2],
        [hidden_words, hidden_regions]: &[Option<Tensor<2, Bool>>; 2],
        [words, regions]: &[Axes; 2],
        pass: &mut Pass,
    ) -> [Tensor<3>; 2] {
        let CoAttention { query1, key1, value1, query2, key2, value2, heads } = &self.biattention;
        let [over_regions, over_text] = pass.within("biattention", |pass| {
            let mut look = |name: &str, axes: [&Axes; 2], maps: [&Linear; 3], tokens: [&Tensor<3>; 2], padding| {
                let run = |pass: &mut Pass| attend(maps, *heads, tokens.map(Clone::clone), padding, pass);
                pass.with_tokens(axes[0].clone(), |pass| pass.with_keys(axes[1].clone(), |pass| pass.within(name, run)))
            };
            let over_regions = [query2, key1, value1];
            let over_text = [query1, key2, value2];
            [
                look("text_over_regions", [words, regions], over_regions, [&text, &image], hidden_regions.as_ref()),
                look("regions_over_text", [regions, words], over_text, [&image, &text], hidden_words.as_ref()),
            ]
        });
        let ends = &self.bi_output;
        let image = pass.add_with_dropout(image, ends.dense1.forward(over_text), ends.dropout);
        let image = ends.layer_norm1.forward(image);
        let text = pass.add_with_dropout(text, ends.dense2.forward(over_regions), ends.dropout);
        let text = ends.layer_norm2.forward(text);
        let image = self.v_output.forward(self.v_intermediate.forward(image.clone()), image, pass);
        let text = self.t_output.forward(self.t_intermediate.forward(text.clone()), text, pass);
        [text, image]
    }

    /// Adds the cost of so many words and regions.
    pub fn cost_of(&self, [words, regions]: [usize; 2], ledger: &mut Ledger) {
        let CoAttention { query1, key1, value1, query2, key2, value2, heads } = &self.biattention;
        ledger.within("biattention", |ledger| {
            // each map is counted once, where it is used
            cost_of_attention(
                [("query2", query2), ("key1", key1), ("value1", value1)],
                *heads,
                [words, regions],
                ledger,
            );
            cost_of_attention(
                [("query1", query1), ("key2", key2), ("value2", value2)],
                *heads,
                [regions, words],
                ledger,
            );
        });
        let ends = &self.bi_output;
        let joint = query1.weight.lazy_shape().dims::<2>()[0];
        ledger.within("biOutput", |ledger| {
            for (tokens, dense, norm, names) in [
                (regions, &ends.dense1, &ends.layer_norm1, ["dense1", "LayerNorm1"]),
                (words, &ends.dense2, &ends.layer_norm2, ["dense2", "LayerNorm2"]),
            ] {
                let shape = ledger.part(names[0], dense, vec![tokens, joint]);
                ledger.each("add", &shape, |elements| Work::Add { elements });
                ledger.part(names[1], norm, shape);
            }
            // parameters without work
            ledger.part("q_dense1", &ends.q_dense1, vec![0, joint]);
            ledger.part("q_dense2", &ends.q_dense2, vec![0, joint]);
        });
        for (tokens, hidden, output, names) in [
            (regions, &self.v_intermediate, &self.v_output, ["v_intermediate", "v_output"]),
            (words, &self.t_intermediate, &self.t_output, ["t_intermediate", "t_output"]),
        ] {
            let width = hidden.dense.weight.lazy_shape().dims::<2>()[1];
            let inner = ledger.part(names[0], hidden, vec![tokens, width]);
            ledger.part(names[1], output, inner);
        }
    }
}
