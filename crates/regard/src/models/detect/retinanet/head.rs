//! The two heads of RetinaNet, shared by all levels: towers of convolutions, or of local attention as in SASA.

use burn::module::{Initializer, Module};
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::convolution::{After, Convolve};
use crate::cost::{Costed, Ledger, Work};
use crate::layers::{GroupNorm, LocalAttention, LocalAttentionConfig, Pointwise, biased, check_size, square};
use crate::{Error, Pass};

/// The configuration of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeadConfig {
    /// Number of layers before the last one.
    pub layers: usize,
    pub kind: HeadKind,
    /// Groups of the norms after each layer except the last; `None` for no norms.
    pub groups: Option<usize>,
}

/// The kind of layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HeadKind {
    /// 3x3 convolutions.
    Convolution,
    /// Attention in a window around each pixel; the last layer is followed by a 1x1 convolution.
    Attention { heads: usize, window: usize },
}

/// The initialisation of all weights, also of attention values.
const NORMAL: Initializer = Initializer::Normal { mean: 0.0, std: 0.01 };

impl HeadConfig {
    /// A head from `width` to `outputs` channels; biases of the last layer start at `bias`.
    pub(super) fn init(&self, width: usize, outputs: usize, bias: f64, device: &Device) -> Result<TowerParts, Error> {
        check_size("width", width)?;
        if self.layers > 64 {
            return Err(Error::config("layers", format!("must be at most 64, got {}", self.layers)));
        }
        let layer = |_| {
            let norm = self.groups.map(|groups| GroupNorm::new(groups, width, device)).transpose()?;
            Ok((self.layer(width, norm.is_some(), device)?, norm))
        };
        let bias = Initializer::Constant { value: bias }.init([outputs], device);
        let last = match self.kind {
            HeadKind::Convolution => {
                Last::Convolution(Conv2d { bias: Some(bias), ..biased([width, outputs], 3, 1, NORMAL, device) })
            }
            HeadKind::Attention { heads, window } => {
                let weight = NORMAL.init([outputs, width], device);
                Last::Attention((attention(width, heads, window, device)?, Pointwise { weight, bias: Some(bias) }))
            }
        };
        Ok(TowerParts { conv: (0..self.layers).map(layer).collect::<Result<_, Error>>()?, last })
    }

    fn layer(&self, width: usize, normed: bool, device: &Device) -> Result<TowerLayer, Error> {
        match self.kind {
            // a norm has a bias of its own
            HeadKind::Convolution if normed => {
                Ok(TowerLayer::Convolution(square([width; 2], 3).with_initializer(NORMAL).init(device)))
            }
            HeadKind::Convolution => Ok(TowerLayer::Convolution(biased([width; 2], 3, 1, NORMAL, device))),
            HeadKind::Attention { heads, window } => attention(width, heads, window, device).map(TowerLayer::Attention),
        }
    }
}

fn attention(width: usize, heads: usize, window: usize, device: &Device) -> Result<LocalAttention, Error> {
    let config = LocalAttentionConfig { channels_in: width, channels_out: width, heads, window, relative: true };
    let mut attention = config.init(device)?;
    attention.value.weight = NORMAL.init([width, width], device);
    Ok(attention)
}

/// A tower and its last layer, before they get torchvision's names.
pub(super) struct TowerParts {
    pub conv: Vec<(TowerLayer, Option<GroupNorm>)>,
    pub last: Last,
}

/// A layer of a tower.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a head has a few
pub enum TowerLayer {
    Convolution(Conv2d),
    Attention(LocalAttention),
}

/// The last layer of a head.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a head has one
pub enum Last {
    Convolution(Conv2d),
    /// Attention, and a 1x1 convolution that mixes its heads.
    Attention((LocalAttention, Pointwise)),
}

/// A head under the name that its last layer has in torchvision.
pub(super) struct NamedHead<'a> {
    pub conv: &'a [(TowerLayer, Option<GroupNorm>)],
    pub name: &'static str,
    pub last: &'a Last,
}

impl NamedHead<'_> {
    /// `[B, C, H, W] -> [B, outputs, H, W]`; attention is recorded as `conv.0.0.level3.weights`.
    pub fn forward(&self, mut map: Tensor<4>, level: usize, pass: &mut Pass) -> Tensor<4> {
        for (index, (layer, norm)) in self.conv.iter().enumerate() {
            if let (TowerLayer::Convolution(convolution), None) = (layer, norm) {
                map = convolution.convolve_then(map, After::relu());
                continue;
            }
            map = match layer {
                TowerLayer::Convolution(convolution) => convolution.convolve(map),
                TowerLayer::Attention(attention) => {
                    pass.within(format!("conv.{index}.0.level{level}"), |pass| attention.forward(map, pass)).out
                }
            };
            if let Some(norm) = norm {
                map = norm.forward(map);
            }
            map = relu(map);
        }
        match self.last {
            Last::Convolution(convolution) => convolution.convolve(map),
            Last::Attention((attention, pointwise)) => {
                let place = format!("{}.0.level{level}", self.name);
                pointwise.forward(pass.within(place, |pass| attention.forward(map, pass)).out)
            }
        }
    }
}

impl Costed for NamedHead<'_> {
    fn cost(&self, mut shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        for (index, (layer, norm)) in self.conv.iter().enumerate() {
            ledger.within(format!("conv.{index}"), |ledger| {
                shape = match layer {
                    TowerLayer::Convolution(convolution) => ledger.part("0", convolution, shape.clone()),
                    TowerLayer::Attention(attention) => ledger.part("0", attention, shape.clone()),
                };
                if let Some(norm) = norm {
                    ledger.part("1", norm, shape.clone());
                }
                ledger.each("relu", &shape, |elements| Work::Activation { elements });
            });
        }
        match self.last {
            Last::Convolution(convolution) => ledger.part(self.name, convolution, shape),
            Last::Attention((attention, pointwise)) => ledger.within(self.name, |ledger| {
                let shape = ledger.part("0", attention, shape);
                ledger.part("1", pointwise, shape)
            }),
        }
    }
}
