//! Models made ready for inference: their weights packed once for this machine, their layers fused.
//!
//! This is the one place that knows which models have such a form; everybody else calls [`Prepared::forward`]. Models
//! without one, other devices and whoever records anything take [`Model::forward`] as it is.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData};
use regard_kernels::transformer::{BlockParameters, Parameters, Readout, Transformer};

use crate::Pass;
use crate::device;
use crate::layers::{EncoderBlock, LayerNorm, Linear, PatchEmbed};
use crate::models::Model;

/// A model that only answers.
pub struct Prepared {
    model: Model,
    fast: Option<Transformer>,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prepared").field("fast", &self.fast.is_some()).finish_non_exhaustive()
    }
}

impl Prepared {
    /// Packs the weights, where that pays; they are then there twice.
    #[must_use]
    pub fn new(model: Model) -> Self {
        let fast = match &model {
            Model::Vit(vit) => {
                let (readout, norm) = match (&vit.norm, &vit.fc_norm) {
                    (Some(norm), None) => (Readout::Tokens, norm),
                    (None, Some(norm)) => (Readout::Mean, norm),
                    _ => return Self { model, fast: None },
                };
                let (tokens, all) = (vit.cls_token.iter().collect::<Vec<_>>(), Positions::All(&vit.pos_embed));
                Parts { embed: &vit.patch_embed, tokens, positions: all, blocks: &vit.blocks, norm, readout }
                    .transformer(&[&vit.head])
            }
            Model::Deit(deit) => {
                let tokens = std::iter::once(&deit.cls_token).chain(&deit.dist_token).collect();
                let heads: Vec<&Linear> = std::iter::once(&deit.head).chain(&deit.head_dist).collect();
                let (positions, readout) = (Positions::All(&deit.pos_embed), Readout::Tokens);
                Parts { embed: &deit.patch_embed, tokens, positions, blocks: &deit.blocks, norm: &deit.norm, readout }
                    .transformer(&heads)
            }
            Model::Deit3(deit) => {
                let (tokens, positions) = (vec![&deit.cls_token], Positions::Patches(&deit.pos_embed));
                let (norm, readout) = (&deit.norm, Readout::Tokens);
                Parts { embed: &deit.patch_embed, tokens, positions, blocks: &deit.blocks, norm, readout }
                    .transformer(&[&deit.head])
            }
            _ => None,
        };
        Self { model, fast }
    }

    /// The model itself, for whoever records.
    #[must_use]
    pub const fn model(&self) -> &Model {
        &self.model
    }

    /// `[B, C, H, W] -> [B, classes]`: what [`Model::forward`] gives in a silent pass, up to rounding.
    #[must_use]
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let [batch, channels, rows, columns] = images.dims();
        match &self.fast {
            Some(fast) if fast.takes(channels, [rows, columns]) => {
                let device = images.device();
                let data = images.into_data();
                let logits = fast.forward(data.as_slice().expect("the CPU's images are f32"));
                Tensor::from_data(TensorData::new(logits, [batch, fast.classes()]), &device)
            }
            _ => self.model.forward(images, &mut Pass::silent()),
        }
    }
}

/// Whose positions are learned.
enum Positions<'a> {
    /// Those of the first tokens too.
    All(&'a Param<Tensor<3>>),
    Patches(&'a Param<Tensor<3>>),
}

/// What all these transformers are made of.
struct Parts<'a> {
    embed: &'a PatchEmbed,
    tokens: Vec<&'a Param<Tensor<3>>>,
    positions: Positions<'a>,
    blocks: &'a [EncoderBlock],
    norm: &'a LayerNorm,
    readout: Readout,
}

impl Parts<'_> {
    /// None on other devices, and for blocks that have no bias or norms of several kinds.
    fn transformer(&self, heads: &[&Linear]) -> Option<Transformer> {
        let weight = self.embed.proj.weight.val();
        if weight.device() != device::cpu() {
            return None;
        }
        let [_, channels, patch, _] = weight.dims();
        let epsilon = self.norm.epsilon;
        let mut prefix: Vec<f32> = self.tokens.iter().flat_map(|token| numbers(token)).collect();
        let mut positions = match self.positions {
            Positions::All(positions) | Positions::Patches(positions) => numbers(positions),
        };
        if matches!(self.positions, Positions::All(_)) {
            let patches = positions.split_off(prefix.len());
            prefix.iter_mut().zip(positions).for_each(|(token, position)| *token += position);
            positions = patches;
        }
        let blocks: Vec<BlockNumbers> =
            self.blocks.iter().map(|block| BlockNumbers::of(block, epsilon)).collect::<Option<_>>()?;
        let embed = [numbers(&self.embed.proj.weight), numbers(self.embed.proj.bias.as_ref()?)];
        let norm = norm(self.norm, epsilon)?;
        let answers: Vec<Pair> = heads.iter().map(|head| linear(head)).collect::<Option<_>>()?;
        Some(Transformer::new(&Parameters {
            channels,
            image: self.embed.image(),
            patch,
            heads: self.blocks.first().map_or(1, |block| block.attn.heads()),
            epsilon: epsilon as f32,
            embed: both(&embed),
            prefix,
            positions: &positions,
            blocks: blocks.iter().map(BlockNumbers::parameters).collect(),
            readout: self.readout,
            norm: both(&norm),
            answers: answers.iter().map(both).collect(),
        }))
    }
}

/// A weight and a bias.
type Pair = [Vec<f32>; 2];

/// The parameters of a block as plain numbers.
struct BlockNumbers {
    norms: [Pair; 2],
    /// qkv, proj, fc1, fc2
    maps: [Pair; 4],
    scales: Option<Pair>,
}

impl BlockNumbers {
    fn of(block: &EncoderBlock, epsilon: f64) -> Option<Self> {
        let EncoderBlock { norm1, attn, ls1, norm2, mlp, ls2 } = block;
        let scales = match (ls1, ls2) {
            (Some(first), Some(second)) => Some([numbers(&first.gamma), numbers(&second.gamma)]),
            (None, None) => None,
            _ => return None,
        };
        let maps = [linear(&attn.qkv)?, linear(&attn.proj)?, linear(&mlp.fc1)?, linear(&mlp.fc2)?];
        Some(Self { norms: [norm(norm1, epsilon)?, norm(norm2, epsilon)?], maps, scales })
    }

    fn parameters(&self) -> BlockParameters<'_> {
        let [qkv, proj, fc1, fc2] = self.maps.each_ref().map(both);
        let [norm1, norm2] = self.norms.each_ref().map(both);
        let scales = self.scales.as_ref().map(|scales| scales.each_ref().map(Vec::as_slice));
        BlockParameters { norm1, qkv, proj, norm2, fc1, fc2, scales }
    }
}

fn both([weight, bias]: &Pair) -> (&[f32], &[f32]) {
    (weight, bias)
}

fn linear(map: &Linear) -> Option<Pair> {
    Some([numbers(&map.weight), numbers(map.bias.as_ref()?)])
}

/// None when it has another epsilon than the rest.
#[allow(clippy::float_cmp)] // both are the same field of a configuration
fn norm(norm: &LayerNorm, epsilon: f64) -> Option<Pair> {
    (norm.epsilon == epsilon).then(|| [numbers(&norm.weight), numbers(&norm.bias)])
}

fn numbers<const D: usize>(parameter: &Param<Tensor<D>>) -> Vec<f32> {
    parameter.val().into_data().try_to_vec().expect("parameters are f32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{ModelConfig, preset};
    use crate::testing::{assert_close, random, stirred};
    use serde_json::json;

    fn small(name: &str) -> ModelConfig {
        let fields = [
            ("image", json!([32, 48])),
            ("patch", json!(16)),
            ("dim", json!(48)),
            ("depth", json!(3)),
            ("heads", json!(3)),
            ("mlp_dim", json!(100)),
            ("classes", json!(7)),
        ];
        let config = preset(name).unwrap().config;
        fields.into_iter().fold(config, |config, (field, value)| config.with(field, value).unwrap())
    }

    #[test]
    fn a_prepared_model_answers_as_the_model_does() {
        device::cpu().seed(1);
        let average = small("vit-tiny-patch16-224").with("pool", json!("average")).unwrap();
        for config in [
            small("vit-tiny-patch16-224"),
            average,
            small("deit-tiny"),
            small("deit-tiny-distilled"),
            small("deit3-small"),
        ] {
            let model = config.init(&device::cpu()).unwrap();
            let model = stirred(model);
            let prepared = Prepared::new(model.clone());
            assert!(prepared.fast.is_some(), "{config:?}");
            let images = random([3, 3, 32, 48], 1);
            let expected = model.forward(images.clone(), &mut Pass::recording());
            assert_close(&prepared.forward(images), &expected, 1e-4);
        }
    }

    #[test]
    fn models_without_a_fast_form_answer_themselves() {
        let model = preset("resnet-nano").unwrap().config.init(&device::cpu()).unwrap();
        let prepared = Prepared::new(model.clone());
        let images = random([2, 3, 32, 32], 1);
        assert_close(&prepared.forward(images.clone()), &model.forward(images, &mut Pass::silent()), 0.0);
    }
}
