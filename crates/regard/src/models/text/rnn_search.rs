//! `RNNsearch`: a recurrent encoder and decoder, with attention to the source at every step.
//! Bahdanau, Cho and Bengio 2014, "Neural Machine Translation by Jointly Learning to Align and Translate",
//! arXiv:1409.0473.
//!
//! Differences from the paper:
//! - dropout on the embeddings and before the logits, which the paper does not have;
//! - weights are initialised as in the Transformer, recurrent ones orthogonal.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Int, Tensor};
use serde::{Deserialize, Serialize};

use super::TextPreset;
use crate::attention::{AdditiveMemory, AdditiveWeights};
use crate::data::Tokens;
use crate::layers::{Embedding, GatedUnit, Linear, check_size};
use crate::pass::{Axes, Geometry};
use crate::{Error, Pass};

/// The network in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RnnSearchConfig {
    pub source_vocabulary: usize,
    pub target_vocabulary: usize,
    /// Width of an embedding, `m`.
    pub embed: usize,
    /// Width of a state, `n`; the encoder has one for each direction.
    pub hidden: usize,
    /// Width of the alignment network, `n'`.
    pub align: usize,
    /// Width after maxout, `l`.
    pub maxout: usize,
    /// Dropout rate.
    pub dropout: f64,
}

impl RnnSearchConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        for (field, value) in
            [("embed", self.embed), ("hidden", self.hidden), ("align", self.align), ("maxout", self.maxout)]
        {
            check_size(field, value)?;
        }
        for (field, tokens) in
            [("source_vocabulary", self.source_vocabulary), ("target_vocabulary", self.target_vocabulary)]
        {
            if !(1..=1 << 20).contains(&tokens) {
                return Err(Error::config(field, format!("must be from 1 to {}, got {tokens}", 1 << 20)));
            }
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(Error::config("dropout", format!("must be at least 0 and below 1, got {}", self.dropout)));
        }
        Ok(())
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<RnnSearch, Error> {
        self.validate()?;
        let Self { embed, hidden, align, maxout, dropout, .. } = *self;
        let unit = |context| GatedUnit::new(embed, hidden, context, device);
        let unbiased = |inputs, outputs| Linear { bias: None, ..Linear::xavier(inputs, outputs, device) };
        let encoder = RnnEncoder {
            embed_tokens: Embedding::new(self.source_vocabulary, embed, device),
            forwards: unit(None),
            backwards: unit(None),
        };
        let decoder = RnnDecoder {
            embed_tokens: Embedding::new(self.target_vocabulary, embed, device),
            initial: Linear::xavier(hidden, hidden, device),
            attention: Alignment {
                query: unbiased(hidden, align),
                key: unbiased(2 * hidden, align),
                energy: Initializer::Uniform { min: -0.1, max: 0.1 }.init([align], device),
            },
            unit: unit(Some(2 * hidden)),
            output_state: Linear::xavier(hidden, 2 * maxout, device),
            output_word: unbiased(embed, 2 * maxout),
            output_context: unbiased(2 * hidden, 2 * maxout),
            output_projection: Linear::xavier(maxout, self.target_vocabulary, device),
        };
        Ok(RnnSearch { encoder, decoder, dropout })
    }
}

/// A bidirectional encoder and a decoder with attention.
#[derive(Module, Debug)]
pub struct RnnSearch {
    pub encoder: RnnEncoder,
    pub decoder: RnnDecoder,
    dropout: f64,
}

/// A bidirectional recurrent network.
#[derive(Module, Debug)]
pub struct RnnEncoder {
    pub embed_tokens: Embedding,
    pub forwards: GatedUnit,
    pub backwards: GatedUnit,
}

/// A recurrent network that attends to the source before each step.
#[derive(Module, Debug)]
pub struct RnnDecoder {
    pub embed_tokens: Embedding,
    /// `s_0 = tanh(W_s h_1)` of the backward encoder's state.
    pub initial: Linear,
    pub attention: Alignment,
    pub unit: GatedUnit,
    /// `U_o`, `V_o` and `C_o`.
    pub output_state: Linear,
    pub output_word: Linear,
    pub output_context: Linear,
    pub output_projection: Linear,
}

/// The alignment network.
#[derive(Module, Debug)]
pub struct Alignment {
    /// `W_a`
    pub query: Linear,
    /// `U_a`
    pub key: Linear,
    /// `v_a`
    pub energy: Param<Tensor<1>>,
}

impl Alignment {
    fn weights(&self) -> AdditiveWeights {
        AdditiveWeights { query: self.query.weight.val(), key: self.key.weight.val(), energy: self.energy.val() }
    }
}

/// The state of decoding.
#[derive(Clone, Debug)]
pub struct RnnSearchState {
    memory: AdditiveMemory,
    weights: AdditiveWeights,
    /// `[B, H]`
    state: Tensor<2>,
}

impl RnnSearch {
    /// Logits of the next token at each position of the target: `[B, N, V]`; alignments `[B, 1, N, M]` under
    /// `decoder.attention.weights`.
    pub fn forward(&self, source: &Tokens, target: &Tokens, pass: &mut Pass) -> Tensor<3> {
        let mut state = self.encode(source, pass);
        let words = pass.dropout(self.words(target), self.dropout);
        let mapped = self.decoder.unit.input.forward(words.clone());
        let listens = pass.within("decoder.attention", |pass| pass.wants_weights());
        let (mut before, mut contexts, mut weights) = (Vec::new(), Vec::new(), Vec::new());
        for n in 0..target.length() {
            before.push(state.state.clone().unsqueeze_dim::<3>(1));
            let mapped = mapped.clone().narrow(1, n, 1).squeeze_dim(1);
            let mut inner = if listens { Pass::recording() } else { Pass::silent() };
            let (context, attended) = self.step(mapped, &mut state, &mut inner);
            contexts.push(context);
            weights.extend(attended);
        }
        if listens {
            let all = Tensor::cat(weights, 1).unsqueeze_dim::<4>(1);
            let words = Geometry::everywhere(Axes::Words(target.length()), Axes::Words(source.length()));
            pass.within("decoder.attention", |pass| pass.record_weights(&all, |_| words));
        }
        let hidden = self.hidden(Tensor::cat(before, 1), words, Tensor::cat(contexts, 1));
        self.decoder.output_projection.forward(pass.dropout(hidden, self.dropout))
    }

    /// Encodes sentences, to start decoding.
    pub fn begin(&self, source: &Tokens) -> RnnSearchState {
        self.encode(source, &mut Pass::silent())
    }

    /// Logits `[B, V]` of the token that follows the given one.
    ///
    /// # Panics
    /// When there is more than one token of a sentence.
    pub fn next(&self, tokens: &Tokens, state: &mut RnnSearchState) -> Tensor<2> {
        assert!(tokens.length() == 1, "rnn_search: {} tokens at a step", tokens.length());
        let (words, before) = (self.words(tokens), state.state.clone());
        let mapped = self.decoder.unit.input.forward(words.clone()).squeeze_dim(1);
        let (context, _) = self.step(mapped, state, &mut Pass::silent());
        self.decoder.output_projection.forward(self.hidden(before.unsqueeze_dim(1), words, context)).squeeze_dim(1)
    }

    fn encode(&self, source: &Tokens, pass: &mut Pass) -> RnnSearchState {
        let RnnEncoder { embed_tokens, forwards, backwards } = &self.encoder;
        let device = embed_tokens.weight.lazy_device();
        let padding = source.padding(&device);
        let words = pass.dropout(embed_tokens.forward(source.ids(&device)), self.dropout);
        let forwards = forwards.forward(words.clone(), padding.as_ref(), false);
        let backwards = backwards.forward(words, padding.as_ref(), true);
        let first = backwards.clone().narrow(1, 0, 1).squeeze_dim(1);
        let states = Tensor::cat(vec![forwards, backwards], 2);
        let weights = self.decoder.attention.weights();
        RnnSearchState {
            memory: AdditiveMemory::new(states.clone(), states, &weights, padding),
            weights,
            state: self.decoder.initial.forward(first).tanh(),
        }
    }

    fn words(&self, target: &Tokens) -> Tensor<3> {
        let table = &self.decoder.embed_tokens;
        table.forward(target.ids(&table.weight.lazy_device()))
    }

    /// Attends, then updates the state; returns the context `[B, 1, 2H]` and, if recorded, the weights `[B, 1, M]`.
    fn step(&self, mapped: Tensor<2>, state: &mut RnnSearchState, pass: &mut Pass) -> (Tensor<3>, Option<Tensor<3>>) {
        let unit = &self.decoder.unit;
        let attended = state.memory.attend(state.state.clone().unsqueeze_dim(1), &state.weights, pass);
        let context = unit.context.as_ref().expect("a decoder's unit has a context");
        let mapped = mapped + context.forward(attended.out.clone().squeeze_dim::<2>(1));
        state.state = unit.step(mapped, state.state.clone());
        (attended.out, attended.weights)
    }

    /// `[B, N, H], [B, N, E], [B, N, 2H] -> [B, N, l]`: the larger of each pair (maxout).
    fn hidden(&self, before: Tensor<3>, words: Tensor<3>, contexts: Tensor<3>) -> Tensor<3> {
        let decoder = &self.decoder;
        let pairs = decoder.output_state.forward(before)
            + decoder.output_word.forward(words)
            + decoder.output_context.forward(contexts);
        let [batch, length, width] = pairs.dims();
        pairs.reshape([batch, length, width / 2, 2]).max_dim(3).squeeze_dim(3)
    }
}

impl RnnSearchState {
    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, Int>) -> Self {
        Self {
            memory: self.memory.select(indices),
            weights: self.weights.clone(),
            state: self.state.clone().select(0, indices.clone()),
        }
    }
}

/// | | vocabulary | m | n | n' | l |
/// |---|---|---|---|---|---|
/// | paper | 30,000 | 620 | 1000 | 1000 | 500 |
/// | small | 4,000 | 128 | 256 | 256 | 128 |
/// | nano | 4,000 | 96 | 128 | 128 | 64 |
impl RnnSearchConfig {
    const fn new(vocabulary: usize, [embed, hidden, align, maxout]: [usize; 4], dropout: f64) -> Self {
        let (source_vocabulary, target_vocabulary) = (vocabulary, vocabulary);
        Self { source_vocabulary, target_vocabulary, embed, hidden, align, maxout, dropout }
    }

    #[must_use]
    pub const fn paper() -> Self {
        Self::new(30_000, [620, 1000, 1000, 500], 0.0)
    }

    /// With about as many parameters as the small Transformer.
    #[must_use]
    pub const fn small() -> Self {
        Self::new(4_000, [128, 256, 256, 128], 0.3)
    }

    #[must_use]
    pub const fn nano() -> Self {
        Self::new(4_000, [96, 128, 128, 64], 0.1)
    }
}

pub const PRESETS: &[TextPreset<RnnSearchConfig>] = &[
    TextPreset { name: "rnnsearch-nano", paper: "ours", config: RnnSearchConfig::nano },
    TextPreset { name: "rnnsearch-small", paper: "ours", config: RnnSearchConfig::small },
    TextPreset { name: "rnnsearch", paper: "arXiv:1409.0473", config: RnnSearchConfig::paper },
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::pass::DropoutKey;
    use crate::testing::{assert_close, random_on, shapes, stirred, values, without_gradient};

    fn config() -> RnnSearchConfig {
        RnnSearchConfig::new(11, [5, 6, 7, 4], 0.0)
    }

    fn model() -> RnnSearch {
        stirred(config().init(&cpu()).unwrap())
    }

    fn forward(model: &RnnSearch, source: &[&[u32]], target: &[&[u32]]) -> Tensor<3> {
        model.forward(&Tokens::new(source), &Tokens::new(target), &mut Pass::silent())
    }

    #[test]
    fn a_word_does_not_see_those_after_it_and_padding_changes_nothing() {
        let model = model();
        let one = forward(&model, &[&[1, 2, 3]], &[&[4, 5, 6]]);
        let other = forward(&model, &[&[1, 2, 3]], &[&[4, 5, 7]]);
        assert_close(&one.clone().narrow(1, 0, 2), &other.narrow(1, 0, 2), 0.0);
        let both = forward(&model, &[&[1, 2, 3], &[3, 4, 5, 6, 7]], &[&[4, 5, 6], &[7, 8, 9, 10]]);
        assert_close(&both.slice([0..1, 0..3]), &one, 1e-5);
    }

    #[test]
    fn one_word_after_the_other_is_all_of_them_at_once_and_states_follow_their_sentences() {
        let model = model();
        let source = Tokens::new(&[vec![1, 2, 3], vec![3, 4, 5, 6, 7]]);
        let target = [[4, 5, 6], [9, 8, 7]];
        let all = model.forward(&source, &Tokens::new(&target), &mut Pass::silent());
        let swap = Tensor::<1, Int>::from_data([1, 0], &cpu());
        let mut state = model.begin(&source).select(&swap);
        for (n, (first, second)) in target[0].into_iter().zip(target[1]).enumerate() {
            let next = model.next(&Tokens::new(&[[second], [first]]), &mut state);
            assert_close(&next.select(0, swap.clone()), &all.clone().narrow(1, n, 1).squeeze_dim(1), 1e-6);
        }
    }

    #[test]
    fn alignments_are_recorded_and_sum_to_one() {
        let model = model();
        let mut pass = Pass::recording();
        let (source, target) = (Tokens::new(&[[1, 2, 3]]), Tokens::new(&[[4, 5]]));
        let recorded = model.forward(&source, &target, &mut pass);
        assert_close(&recorded, &model.forward(&source, &target, &mut Pass::silent()), 1e-6);
        let weights = pass.into_trace().get::<4>("decoder.attention.weights").unwrap();
        assert_eq!(weights.dims(), [1, 1, 2, 3]);
        assert!(values(&weights.sum_dim(3)).iter().all(|sum| (sum - 1.0).abs() < 1e-5));
    }

    #[test]
    fn every_parameter_learns_and_dropout_is_drawn_from_seed_and_step() {
        let model = RnnSearchConfig { dropout: 0.2, ..config() }.init(&cpu().autodiff()).unwrap();
        let (source, target) = (Tokens::new(&[vec![1, 2, 3], vec![5, 6]]), Tokens::new(&[[4, 5, 6], [6, 5, 1]]));
        let run = |step| model.forward(&source, &target, &mut Pass::with_dropout(DropoutKey { seed: 1, step }));
        assert_close(&run(1), &run(1), 0.0);
        assert!((run(1) - run(2)).abs().max().into_scalar::<f32>() > 1e-3);
        let weights = random_on(run(1).dims(), 3, &cpu().autodiff());
        let gradients = (run(1) * weights).sum().backward();
        assert!(without_gradient(&model, &gradients).is_empty(), "{:?}", without_gradient(&model, &gradients));
    }

    #[test]
    fn the_maps_of_the_paper_have_the_counted_parameters() {
        let count = |config: RnnSearchConfig| {
            let shapes = shapes(&config.init(&cpu()).unwrap());
            shapes.values().filter(|shape| shape.len() > 1).map(|shape| shape.iter().product::<usize>()).sum::<usize>()
        };
        // encoder 9.72 M, decoder 10.86 M, alignment 3.00 M, output 18.62 M, start 1.0 M, words 37.2 M; `v_a` is no map
        assert_eq!(count(RnnSearchConfig::paper()), 80_400_000);
        for preset in PRESETS {
            (preset.config)().validate().unwrap();
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        let refused = |config: RnnSearchConfig| config.init(&cpu()).unwrap_err().to_string();
        assert!(refused(RnnSearchConfig { hidden: 0, ..config() }).contains("`hidden`"));
        assert!(refused(RnnSearchConfig { dropout: 1.5, ..config() }).contains("`dropout`"));
    }
}
