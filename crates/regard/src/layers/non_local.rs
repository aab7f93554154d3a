//! Non-local block: `z = x + BatchNorm(W_z y)`, where `y` is the non-local operation over all positions of `x`.
//! Wang et al. 2018, "Non-local Neural Networks", arXiv:1711.07971, section 3.3.
//!
//! The block is initialised as the identity: the weight of its `BatchNorm` is zero, so that it can be inserted
//! into a pretrained network.
//!
//! Differences from facebookresearch/video-nonlocal-net and AlexHex7/Non-local_pytorch:
//! - 1×1 convolutions are linear maps over flattened positions;
//! - sub-sampling comes before or after the convolutions ([`PoolOrder`]), because the two differ;
//! - an axis of size 1 is not pooled; the references would reduce it to 0.

use burn::module::{Initializer, Module, Param};
use burn::tensor::module::{max_pool1d, max_pool2d};
use burn::tensor::ops::MaxPoolOptions;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{Linear, block_max};
use crate::attention::{Affinity, Attended, NonLocalOptions, non_local};
use crate::batch_norm::BatchNorm;
use crate::cost::{Costed, Ledger, Work, size};
use crate::pass::Axes;
use crate::{Error, Pass};

/// A non-local block, in the paper's terms.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NonLocalConfig {
    /// Channels of the input, `C`.
    pub channels: usize,
    /// Channels of theta, phi and g, `C'`; half of `channels` when not given.
    #[serde(default)]
    pub inner_channels: Option<usize>,
    /// Axes of positions: 1 `[B, C, T]`, 2 `[B, C, H, W]` or 3 `[B, C, T, H, W]`.
    pub dims: usize,
    /// How two positions are compared.
    #[serde(default)]
    pub affinity: Affinity,
    /// Whether phi and g are max-pooled by 2 along every axis; for video only in space (1×2×2).
    #[serde(default)]
    pub sub_sample: bool,
    /// Whether pooling comes before or after the convolutions.
    #[serde(default)]
    pub pool_order: PoolOrder,
    /// Whether dot products are multiplied by `C'^-0.5`, as in the paper's released code.
    #[serde(default)]
    pub scale: bool,
}

/// The order of sub-sampling and convolutions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PoolOrder {
    /// After the convolutions of phi and g, as in AlexHex7/Non-local_pytorch.
    #[default]
    AfterConv,
    /// Before them, as in facebookresearch/video-nonlocal-net: cheaper.
    BeforeConv,
}

/// The block; made by [`NonLocalConfig::init`].
#[derive(Module, Debug)]
pub struct NonLocal {
    /// `C -> C'` of the queries; the Gaussian has none.
    pub theta: Option<Linear>,
    /// `C -> C'` of the keys; the Gaussian has none.
    pub phi: Option<Linear>,
    /// `C -> C'` of the values.
    pub g: Linear,
    /// `w_f [2*C']`, only for the concatenation.
    pub concatenation: Option<Param<Tensor<1>>>,
    /// `W_z`, `C' -> C`.
    pub output: Linear,
    /// The normalisation after `W_z`; its weight is initially zero.
    pub norm: BatchNorm,
    #[module(skip)]
    config: NonLocalConfig,
}

impl NonLocalConfig {
    /// A block of the paper's defaults: embedded Gaussian, half the channels, no sub-sampling.
    #[must_use]
    pub fn new(channels: usize, dims: usize) -> Self {
        Self {
            channels,
            inner_channels: None,
            dims,
            affinity: Affinity::default(),
            sub_sample: false,
            pool_order: PoolOrder::default(),
            scale: false,
        }
    }

    /// Initialises the block: Gaussian weights of std 0.01, biases and the norm's weight zero.
    ///
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<NonLocal, Error> {
        self.validate()?;
        let inner = self.inner();
        let embeds = self.affinity != Affinity::Gaussian;
        let mut norm = BatchNorm::new(self.channels, device);
        norm.gamma = Initializer::Zeros.init([self.channels], device);
        Ok(NonLocal {
            theta: embeds.then(|| pointwise(self.channels, inner, device)),
            phi: embeds.then(|| pointwise(self.channels, inner, device)),
            g: pointwise(self.channels, inner, device),
            concatenation: (self.affinity == Affinity::Concatenation).then(|| NOISE.init([2 * inner], device)),
            output: pointwise(inner, self.channels, device),
            norm,
            config: self.clone(),
        })
    }

    fn inner(&self) -> usize {
        self.inner_channels.unwrap_or(self.channels / 2)
    }

    fn validate(&self) -> Result<(), Error> {
        if self.channels == 0 {
            return Err(Error::config("channels", "must be at least 1, got 0"));
        }
        if self.inner() == 0 {
            return Err(Error::config(
                "inner_channels",
                format!("must be at least 1, got 0 of channels {}", self.channels),
            ));
        }
        if !(1..=3).contains(&self.dims) {
            return Err(Error::config("dims", format!("must be 1, 2 or 3, got {}", self.dims)));
        }
        if self.scale && self.affinity == Affinity::Concatenation {
            return Err(Error::config("scale", "the concatenation has no dot product to scale"));
        }
        if self.pool_order == PoolOrder::BeforeConv && !self.sub_sample {
            return Err(Error::config("pool_order", "nothing is pooled; set sub_sample"));
        }
        Ok(())
    }
}

const NOISE: Initializer = Initializer::Normal { mean: 0.0, std: 0.01 };

/// A 1×1 convolution as a linear map.
fn pointwise(from: usize, to: usize, device: &Device) -> Linear {
    Linear { weight: NOISE.init([to, from], device), bias: Some(Initializer::Zeros.init([to], device)) }
}

impl NonLocal {
    /// `[B, C, T]`, `[B, C, H, W]` or `[B, C, T, H, W]` to the same; weights `[B, N, M]` over flattened positions.
    ///
    /// # Panics
    /// When the rank or the channels are not those of the config, or an axis is empty.
    pub fn forward<const D: usize>(&self, features: Tensor<D>, pass: &mut Pass) -> Attended<D, 3> {
        let shape = features.dims();
        let config = &self.config;
        assert!(
            D == config.dims + 2,
            "non-local block: features have rank {D}, dims {} needs {}",
            config.dims,
            config.dims + 2
        );
        assert!(
            shape[1] == config.channels,
            "non-local block: features have channels {}, config has channels {}",
            shape[1],
            config.channels
        );
        let places = &shape[2..];
        let positions = places.iter().product();
        assert!(shape[0] * positions > 0, "non-local block: features of shape {shape:?} have no position");

        let flat: Tensor<3> = features.clone().reshape([shape[0], config.channels, positions]);
        let tokens = flat.clone().swap_dims(1, 2);
        let pooled = if config.sub_sample && config.pool_order == PoolOrder::BeforeConv {
            pool(flat, places).swap_dims(1, 2)
        } else {
            tokens.clone()
        };
        let sub_sample = |keys: Tensor<3>| {
            if config.sub_sample && config.pool_order == PoolOrder::AfterConv {
                pool(keys.swap_dims(1, 2), places).swap_dims(1, 2)
            } else {
                keys
            }
        };
        let embed = |map: &Option<Linear>, tokens: Tensor<3>| match map {
            Some(map) => map.forward(tokens),
            None => tokens,
        };
        let theta = embed(&self.theta, tokens);
        let phi = sub_sample(embed(&self.phi, pooled.clone()));
        let g = sub_sample(self.g.forward(pooled));

        let options = NonLocalOptions {
            affinity: config.affinity,
            scale: config.scale.then(|| (theta.dims()[2] as f64).powf(-0.5)),
            concatenation: self.concatenation.as_ref().map(Param::val),
        };
        let keys = if config.sub_sample { pooled_axes(places) } else { axes(places) };
        let attended = pass
            .with_tokens(axes(places), |pass| pass.with_keys(keys, |pass| non_local(theta, phi, g, &options, pass)));
        let change = self.norm.forward(self.output.forward(attended.out).swap_dims(1, 2));
        Attended { out: features + pass.branch(change.reshape(shape)), weights: attended.weights }
    }
}

impl Costed for NonLocal {
    /// Counted with the weights formed; without recording, the dot product may be regrouped to cost less.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let config = &self.config;
        let (before, inner) = (config.pool_order == PoolOrder::BeforeConv, config.inner());
        let queries = shape[1..].iter().product::<usize>();
        let (keys, window) = if config.sub_sample { pooled(&shape[1..]) } else { (queries, 1) };
        let pool = |name: &str, channels: usize, ledger: &mut Ledger| {
            if config.sub_sample {
                let (inputs, outputs) = ((channels * queries) as u64, (channels * keys) as u64);
                let work = Work::Pool { inputs, outputs, window: window as u64 };
                ledger.within(name, |ledger| ledger.line(0, work, channels * keys));
            }
        };
        let width = if self.theta.is_some() { inner } else { config.channels };
        let embedded = if before { keys } else { queries };
        if before {
            pool("pool", config.channels, ledger);
        }
        if let (Some(theta), Some(phi)) = (&self.theta, &self.phi) {
            pointwise_cost("theta", theta, queries, ledger);
            pointwise_cost("phi", phi, embedded, ledger);
        }
        pointwise_cost("g", &self.g, embedded, ledger);
        if !before {
            pool("phi.pool", width, ledger);
            pool("g.pool", inner, ledger);
        }
        let pairs = queries * keys;
        if let Some(weight) = &self.concatenation {
            // w_f . [theta, phi] is the sum of one number for the query and one for the key
            let work = Work::Linear { positions: (queries + keys) as u64, macs: inner as u64, outputs: 1, bias: false };
            ledger.within("concatenation", |ledger| ledger.line(size(weight), work, pairs));
            ledger.each("relu", &[pairs], |elements| Work::Activation { elements });
        } else {
            let work = Work::Product { macs: (pairs * width) as u64 };
            ledger.within("affinity", |ledger| ledger.line(0, work, pairs));
        }
        if matches!(config.affinity, Affinity::Gaussian | Affinity::EmbeddedGaussian) {
            ledger.each("softmax", &[pairs], |elements| Work::Softmax { elements });
        }
        let work = Work::Product { macs: (pairs * inner) as u64 };
        ledger.within("sum", |ledger| ledger.line(0, work, queries * inner));
        pointwise_cost("output", &self.output, queries, ledger);
        let shape = ledger.part("norm", &self.norm, shape);
        ledger.each("add", &shape, |elements| Work::Add { elements });
        shape
    }
}

fn pointwise_cost(name: &str, map: &Linear, positions: usize, ledger: &mut Ledger) {
    let [outputs, inputs] = map.weight.lazy_shape().dims();
    let work = Work::Linear {
        positions: positions as u64,
        macs: (inputs * outputs) as u64,
        outputs: outputs as u64,
        bias: map.bias.is_some(),
    };
    let parameters = size(&map.weight) + map.bias.as_ref().map_or(0, size);
    ledger.within(name, |ledger| ledger.line(parameters, work, positions * outputs));
}

/// The layout of flattened positions.
fn axes(places: &[usize]) -> Axes {
    match *places {
        [height, width] => Axes::Grid { prefix: 0, size: [height, width] },
        [frames, height, width] => Axes::Clip { prefix: 0, frames, size: [height, width] },
        _ => Axes::Slots(places.iter().product()),
    }
}

/// The layout after [`pool`].
fn pooled_axes(places: &[usize]) -> Axes {
    let time = usize::from(places.len() == 3);
    let left = places.iter().enumerate().map(|(axis, size)| if axis < time { *size } else { size / size.min(&2) });
    axes(&left.collect::<Vec<_>>())
}

/// Number of positions after [`pool`], and in one pooling window.
fn pooled(places: &[usize]) -> (usize, usize) {
    let space = &places[usize::from(places.len() == 3)..];
    let window = space.iter().map(|size| size.min(&2)).product();
    let left = space.iter().map(|size| size / size.min(&2)).product::<usize>();
    (left * places.iter().product::<usize>() / space.iter().product::<usize>(), window)
}

/// Max pooling by 2 over space: `[B, C, T*H*W] -> [B, C, T*(H/2)*(W/2)]`; a sequence is pooled along its only axis.
fn pool(flat: Tensor<3>, places: &[usize]) -> Tensor<3> {
    let [batch, channels, _] = flat.dims();
    let (frames, height, width) = match *places {
        [length] => return max_pool1d(flat, MaxPoolOptions::new([length.min(2)])),
        [height, width] => (1, height, width),
        [frames, height, width] => (frames, height, width),
        _ => unreachable!("dims are 1, 2 or 3"),
    };
    let planes = flat.reshape([batch, channels * frames, height, width]);
    let pooled = if height > 1 && width > 1 {
        block_max(planes, 2)
    } else {
        max_pool2d(planes, MaxPoolOptions::new([height.min(2), width.min(2)]))
    };
    let [_, _, height, width] = pooled.dims();
    pooled.reshape([batch, channels, frames * height * width])
}

#[cfg(test)]
mod tests;
