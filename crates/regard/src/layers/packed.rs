//! What models are made of when their weights are packed for inference: the parts that a family hands to a kernel.
//!
//! A family says in its own file which parts it has ([`PackedForm`]); `prepared.rs` packs them and knows no family.

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::Tensor;
use regard_kernels::residual::{FoldedConv, Residual};
use regard_kernels::san::San;
use regard_kernels::transformer::{Parameters, Precision, Readout, Transformer};

use super::{EncoderBlock, LayerNorm, Linear, PatchEmbed};
use crate::batch_norm::{Norm, RunningStat};
use crate::device;
use crate::fused::FloatSlice;

/// What a model can be packed into.
pub(crate) enum PackedForm<'a> {
    /// Nothing: it runs layer by layer.
    None,
    /// A transformer of pre-norm blocks.
    Transformer(TransformerParts<'a>),
    /// A residual network, its norms folded into its convolutions.
    Residual(Box<Residual>),
    /// A self-attention network.
    San(Box<San>),
}

/// Whose positions are learned.
#[derive(Debug)]
pub enum TablePositions<'a> {
    /// Those of the first tokens too.
    All(&'a Param<Tensor<3>>),
    Patches(&'a Param<Tensor<3>>),
}

/// What all transformers over patches are made of.
#[derive(Debug)]
pub struct TransformerParts<'a> {
    pub(crate) embed: &'a PatchEmbed,
    /// Those before the patches, in their order.
    pub(crate) tokens: Vec<&'a Param<Tensor<3>>>,
    pub(crate) positions: TablePositions<'a>,
    pub(crate) blocks: &'a [EncoderBlock],
    pub(crate) norm: &'a LayerNorm,
    pub(crate) readout: Readout,
    pub(crate) heads: Vec<&'a Linear>,
}

impl TransformerParts<'_> {
    /// Whether the kernel computes such blocks: all with a bias, and norms of one kind.
    pub(crate) fn is_uniform(&self) -> bool {
        self.blocks.iter().all(|block| self.takes(block))
    }

    #[allow(clippy::float_cmp)] // all are the same field of a configuration
    fn takes(&self, block: &EncoderBlock) -> bool {
        let EncoderBlock { norm1, attn, ls1, norm2, mlp, ls2 } = block;
        let maps = [&attn.qkv, &attn.proj, &mlp.fc1, &mlp.fc2];
        [norm1, norm2].iter().all(|norm| norm.epsilon == self.norm.epsilon)
            && maps.iter().all(|map| map.bias.is_some())
            && ls1.is_some() == ls2.is_some()
    }

    /// All but the blocks; none on other devices.
    pub(crate) fn without_blocks(&self, precision: Precision) -> Option<Transformer> {
        let weight = self.embed.proj.weight.val();
        if weight.device() != device::cpu() {
            return None;
        }
        let [_, channels, patch, _] = weight.dims();
        let mut prefix: Vec<f32> = self.tokens.iter().flat_map(|token| numbers(token).to_vec()).collect();
        let (table, first) = match self.positions {
            TablePositions::All(positions) => (numbers(positions), prefix.len()),
            TablePositions::Patches(positions) => (numbers(positions), 0),
        };
        let (first, positions) = table.split_at(first);
        prefix.iter_mut().zip(first).for_each(|(token, position)| *token += position);
        let embed = [numbers(&self.embed.proj.weight), numbers(self.embed.proj.bias.as_ref()?)];
        let norm = norm(self.norm);
        let answers: Vec<Pair> = self.heads.iter().map(|head| linear(head)).collect::<Option<_>>()?;
        let parameters = Parameters {
            channels,
            image: self.embed.image(),
            patch,
            heads: self.blocks.first().map_or(1, |block| block.attn.heads()),
            epsilon: self.norm.epsilon as f32,
            embed: both(&embed),
            prefix,
            positions,
            blocks: Vec::new(),
            readout: self.readout,
            norm: both(&norm),
            classifiers: answers.iter().map(both).collect(),
        };
        Some(Transformer::new(&parameters, precision))
    }
}

/// A weight and a bias.
pub(crate) type Pair = [FloatSlice; 2];

/// A convolution whose outputs are normalised by moments that no longer change.
pub(crate) fn folded(convolution: &Conv2d, norm: &Norm) -> Option<FoldedConv> {
    let ([kernel, across], [stride, aside]) = (convolution.kernel_size, convolution.stride);
    let PaddingConfig2d::Explicit(padding, left, bottom, right) = convolution.padding else { return None };
    let plain = convolution.bias.is_none() && convolution.groups == 1 && convolution.dilation == [1, 1];
    if !plain || kernel != across || stride != aside || [left, bottom, right] != [padding; 3] {
        return None;
    }
    let moment = |moment: &RunningStat| moment.value().into_data().try_to_vec::<f32>().expect("moments are f32");
    let [mean, variance] = norm.running().map(moment);
    let [gamma, beta] = norm.affine().map(FloatSlice::of);
    let factor = |i: usize| f64::from(gamma[i]) / (f64::from(variance[i]) + norm.epsilon()).sqrt();
    let mut weight = numbers(&convolution.weight).to_vec();
    let depth = weight.len() / gamma.len();
    weight.iter_mut().enumerate().for_each(|(at, weight)| *weight = (f64::from(*weight) * factor(at / depth)) as f32);
    let bias = (0..gamma.len()).map(|i| (f64::from(beta[i]) - f64::from(mean[i]) * factor(i)) as f32).collect();
    Some(FoldedConv { weight, bias, kernel, stride, padding })
}

pub(crate) fn both([weight, bias]: &Pair) -> (&[f32], &[f32]) {
    (weight, bias)
}

pub(crate) fn linear(map: &Linear) -> Option<Pair> {
    Some([numbers(&map.weight), numbers(map.bias.as_ref()?)])
}

pub(crate) fn norm(norm: &LayerNorm) -> Pair {
    [numbers(&norm.weight), numbers(&norm.bias)]
}

pub(crate) fn numbers<const D: usize>(parameter: &Param<Tensor<D>>) -> FloatSlice {
    FloatSlice::of(parameter.val())
}
