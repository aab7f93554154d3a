//! The heads of BERT and its relatives.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};

use super::{BertLayerConfig, gelu_of};
use crate::cost::{Costed, Ledger, Work, size};
use crate::layers::{Embedding, LayerNorm, Linear};

/// The first token for the whole text: a linear map and tanh.
#[derive(Module, Debug)]
pub struct BertPooler {
    pub dense: Linear,
}

impl BertPooler {
    pub fn new(dim: usize, outputs: usize, device: &Device) -> Self {
        Self { dense: Linear::normal(dim, outputs, device) }
    }

    /// `[B, N, D] -> [B, D]`
    pub fn forward(&self, x: Tensor<3>) -> Tensor<2> {
        self.linear(x).tanh()
    }

    /// The same without tanh.
    pub fn linear(&self, x: Tensor<3>) -> Tensor<2> {
        self.dense.forward(x.narrow(1, 0, 1).squeeze_dim(1))
    }
}

impl Costed for BertPooler {
    /// `[N, D] -> [1, D]`
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("dense", &self.dense, vec![1, shape[1]]);
        ledger.each("activation", &shape, |elements| Work::Activation { elements });
        shape
    }
}

/// A linear map, GELU and a norm, before the last map of a head.
#[derive(Module, Debug)]
pub struct BertTransform {
    pub dense: Linear,
    pub layer_norm: LayerNorm,
}

impl BertTransform {
    pub fn new(config: &BertLayerConfig, device: &Device) -> Self {
        Self { dense: Linear::normal(config.dim, config.dim, device), layer_norm: config.norm(device) }
    }

    /// `[.., D] -> [.., D]`
    pub fn forward<const N: usize>(&self, x: Tensor<N>) -> Tensor<N> {
        self.layer_norm.forward(gelu_of(&self.dense, x))
    }
}

impl Costed for BertTransform {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        cost_of_transform(["dense", "LayerNorm"], &self.dense, &self.layer_norm, shape, ledger)
    }
}

/// Logits of words: a transform, then the table of words as a linear map, with a bias of its own.
#[derive(Module, Debug)]
pub struct BertPredictions {
    /// `[V]`
    pub bias: Param<Tensor<1>>,
    pub transform: BertTransform,
}

impl BertPredictions {
    pub fn new(vocabulary: usize, config: &BertLayerConfig, device: &Device) -> Self {
        Self { bias: Initializer::Zeros.init([vocabulary], device), transform: BertTransform::new(config, device) }
    }

    /// `[.., D] -> [.., V]`
    pub fn forward<const N: usize>(&self, x: Tensor<N>, words: &Embedding) -> Tensor<N> {
        words.logits(self.transform.forward(x)) + self.bias.val().unsqueeze()
    }
}

impl Costed for BertPredictions {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = ledger.part("transform", &self.transform, shape);
        let (positions, outputs) = (shape[0], size(&self.bias));
        let macs = (outputs * shape[1]) as u64;
        // the table is a parameter of the embeddings
        let work = Work::Linear { positions: positions as u64, macs, outputs: outputs as u64, bias: true };
        ledger.within("bias", |ledger| ledger.line(outputs, work, positions * outputs));
        vec![positions, outputs]
    }
}

/// [`BertTransform`] in a `torch.nn.Sequential`: its parts are named 0 and 2.
#[derive(Module, Debug)]
pub struct SequentialTransform {
    pub dense: Linear,
    pub layer_norm: LayerNorm,
}

impl SequentialTransform {
    pub fn new(config: &BertLayerConfig, device: &Device) -> Self {
        let BertTransform { dense, layer_norm } = BertTransform::new(config, device);
        Self { dense, layer_norm }
    }

    /// `[.., D] -> [.., D]`
    pub fn forward<const N: usize>(&self, x: Tensor<N>) -> Tensor<N> {
        self.layer_norm.forward(gelu_of(&self.dense, x))
    }
}

impl Costed for SequentialTransform {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        cost_of_transform(["0", "2"], &self.dense, &self.layer_norm, shape, ledger)
    }
}

/// A linear map, GELU, a norm and another linear map in a `torch.nn.Sequential`: its parts are named 0, 2 and 3.
#[derive(Module, Debug)]
pub struct SequentialHead {
    pub dense: Linear,
    pub layer_norm: LayerNorm,
    pub decoder: Linear,
}

impl SequentialHead {
    /// `dim -> hidden -> outputs`
    pub fn new([dim, hidden, outputs]: [usize; 3], epsilon: f64, device: &Device) -> Self {
        Self {
            dense: Linear::normal(dim, hidden, device),
            layer_norm: LayerNorm::new(hidden, epsilon, device),
            decoder: Linear::normal(hidden, outputs, device),
        }
    }

    /// `[.., D] -> [.., outputs]`
    pub fn forward<const N: usize>(&self, x: Tensor<N>) -> Tensor<N> {
        self.decoder.forward(self.layer_norm.forward(gelu_of(&self.dense, x)))
    }
}

impl Costed for SequentialHead {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let shape = cost_of_transform(["0", "2"], &self.dense, &self.layer_norm, shape, ledger);
        ledger.part("3", &self.decoder, shape)
    }
}

fn cost_of_transform(
    [first, second]: [&str; 2],
    dense: &Linear,
    norm: &LayerNorm,
    shape: Vec<usize>,
    ledger: &mut Ledger,
) -> Vec<usize> {
    let shape = ledger.part(first, dense, shape);
    ledger.each("gelu", &shape, |elements| Work::Activation { elements });
    ledger.part(second, norm, shape)
}
