//! Models made ready for inference: their weights packed once for this machine, their layers fused.
//!
//! This is the one place that knows which models have such a form; everybody else calls [`Prepared::forward`]. Models
//! without one, other devices and whoever records anything take [`Model::forward`] as it is.

mod san;

use burn::module::Param;
use burn::nn::PaddingConfig2d;
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::residual::{self, FoldedConv, Residual};
use regard_kernels::san::San;
use regard_kernels::transformer::{
    BlockParameters, LazyBlock, LazyLinear, PackedLinear, Parameters, Precision, Readout, Transformer,
};

use crate::batch_norm::{BatchNorm, Running};
use crate::device;
use crate::fused::Numbers;
use crate::layers::{self, EncoderBlock, LayerNorm, LayerScale, Linear, PatchEmbed};
use crate::models::resnet::ResNet;
use crate::models::{Model, ModelConfig};
use crate::{Error, Pass, weights};

/// A model that only answers.
pub struct Prepared {
    model: Model,
    fast: Option<Fast>,
}

/// The forms that there are.
enum Fast {
    Transformer(Box<Transformer>),
    Residual(Box<Residual>),
    San(Box<San>),
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
        let fast = packed(&model, Precision::Float);
        Self { model, fast }
    }

    /// Rounds the linear maps of a transformer's blocks to eight bits, and what goes through them.
    ///
    /// # Errors
    /// When the model is no transformer, or not on the CPU.
    pub fn int8(model: Model) -> Result<Self, Error> {
        match packed(&model, Precision::Int8) {
            None => {
                Err(Error::config("int8", "this model has no form in eight bits here: ViT, DeiT and DeiT-III have"))
            }
            fast => Ok(Self { model, fast }),
        }
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
        let sides = [rows, columns];
        let fits = match &self.fast {
            Some(Fast::Transformer(fast)) => fast.accepts(channels, sides),
            Some(Fast::Residual(fast)) => channels == fast.channels() && rows * columns > 0,
            Some(Fast::San(fast)) => fast.accepts(channels, sides),
            None => false,
        };
        let Some(fast) = self.fast.as_ref().filter(|_| fits) else {
            return self.model.forward(images, &mut Pass::silent());
        };
        let (device, data) = (images.device(), images.into_data());
        let data = data.as_slice().expect("the CPU's images are f32");
        let (logits, classes) = match fast {
            Fast::Transformer(fast) => (fast.forward(data), fast.classes()),
            Fast::Residual(fast) => (fast.forward(data, sides), fast.classes()),
            Fast::San(fast) => (fast.forward(data, sides), fast.classes()),
        };
        Tensor::from_data(TensorData::new(logits, [batch, classes]), &device)
    }
}

/// A model that answers once: what [`Prepared::forward`] gives, bit for bit. The blocks of a transformer are read, packed
/// and given up one by one, since memory that is touched for the first time is most of a single prediction.
pub struct Once {
    model: Model,
    /// All but the blocks.
    shell: Option<Box<Transformer>>,
}

impl std::fmt::Debug for Once {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Once").field("shell", &self.shell).finish_non_exhaustive()
    }
}

impl Once {
    /// Whether models like this one have blocks that can come one by one; others are read at once, on all threads.
    #[must_use]
    pub fn pays(config: &ModelConfig, device: &Device) -> bool {
        let blocks = matches!(config, ModelConfig::Vit(_) | ModelConfig::Deit(_) | ModelConfig::Deit3(_));
        blocks && *device == device::cpu()
    }

    /// Takes a model, some tensors of which may still be in their file.
    ///
    /// # Errors
    /// When one of them cannot be read; the error names it.
    pub fn new(mut model: Model) -> Result<Self, Error> {
        let fast = Parts::of(&model).is_some();
        let later = blocks(&mut model).filter(|_| fast).map(std::mem::take);
        model = weights::read_rest(model, "")?;
        let Some(later) = later else { return Ok(Self { model, shell: None }) };
        if let Some(blocks) = blocks(&mut model) {
            *blocks = later;
        }
        let shell = Parts::of(&model).and_then(|parts| parts.shell(Precision::Float)).map(Box::new);
        Ok(Self { model, shell })
    }

    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// # Errors
    /// When a tensor cannot be read; the error names it.
    pub fn forward(self, images: Tensor<4>) -> Result<Tensor<2>, Error> {
        let Self { mut model, shell } = self;
        let [batch, channels, rows, columns] = images.dims();
        let shell = shell.filter(|shell| batch == 1 && shell.accepts(channels, [rows, columns]));
        let (Some(shell), Some(blocks)) = (shell, blocks(&mut model)) else {
            return Ok(Prepared::new(weights::read_rest(model, "")?).forward(images));
        };
        let blocks = std::mem::take(blocks).into_iter().enumerate().map(later).collect();
        let (device, data) = (images.device(), images.into_data());
        let data = data.as_slice().expect("the CPU's images are f32");
        let logits = shell.forward_lazy(data, blocks)?;
        Ok(Tensor::from_data(TensorData::new(logits, [1, shell.classes()]), &device))
    }
}

/// The blocks of a transformer.
fn blocks(model: &mut Model) -> Option<&mut Vec<EncoderBlock>> {
    match model {
        Model::Vit(vit) => Some(&mut vit.blocks),
        Model::Deit(deit) => Some(&mut deit.blocks),
        Model::Deit3(deit) => Some(&mut deit.blocks),
        _ => None,
    }
}

/// A block whose maps are read and packed when their turn comes.
fn later((index, block): (usize, EncoderBlock)) -> LazyBlock<Error> {
    let EncoderBlock { norm1, attn, ls1, norm2, mlp, ls2 } = block;
    let [norm1, norm2] = [norm1, norm2].map(|one| norm(&one).map(|numbers| numbers.to_vec()));
    let later = |map: Linear, scale: Option<LayerScale>, name: &str| -> LazyLinear<Error> {
        let place = format!("blocks.{index}.{name}");
        Box::new(move || packed_map(map, scale, &place))
    };
    LazyBlock {
        norm1,
        qkv: later(attn.qkv, None, "attn.qkv"),
        proj: later(attn.proj, ls1, "attn.proj"),
        norm2,
        fc1: later(mlp.fc1, None, "mlp.fc1"),
        fc2: later(mlp.fc2, ls2, "mlp.fc2"),
    }
}

/// Reads a map if it is still in its file, and packs it.
fn packed_map(map: Linear, scale: Option<LayerScale>, place: &str) -> Result<PackedLinear, Error> {
    let map = weights::read_rest(map, place)?;
    let scale = scale.map(|scale| numbers(&scale.gamma));
    let pair = linear(&map).expect("`Parts` looked for the bias");
    Ok(PackedLinear::new(both(&pair), scale.as_deref(), Precision::Float))
}

/// The fast form of a model, if it has one.
fn packed(model: &Model, precision: Precision) -> Option<Fast> {
    match (model, precision) {
        (Model::Resnet(resnet), Precision::Float) => return residual(resnet).map(Box::new).map(Fast::Residual),
        (Model::San(model), Precision::Float) => return san::prepared(model).map(Box::new).map(Fast::San),
        _ => {}
    }
    let parts = Parts::of(model)?;
    let mut transformer = parts.shell(precision)?;
    for block in parts.blocks {
        transformer.push(&BlockNumbers::of(block)?.parameters(), precision);
    }
    Some(Fast::Transformer(Box::new(transformer)))
}

/// None on other devices.
fn residual(resnet: &ResNet) -> Option<Residual> {
    let weight = resnet.conv1.weight.val();
    if weight.device() != device::cpu() {
        return None;
    }
    let block = |block: &layers::Residual| {
        let layers::Residual { conv1, bn1, conv2, bn2, conv3, bn3, downsample } = block;
        let mut branch = vec![folded(conv1, bn1)?, folded(conv2, bn2)?];
        if let (Some(convolution), Some(norm)) = (conv3, bn3) {
            branch.push(folded(convolution, norm)?);
        }
        let shortcut = match downsample {
            Some((convolution, norm)) => Some(folded(convolution, norm)?),
            None => None,
        };
        Some(residual::BlockParameters { branch, shortcut })
    };
    Some(Residual::new(&residual::Parameters {
        channels: weight.dims()[1],
        stem: folded(&resnet.conv1, &resnet.bn1)?,
        pool: resnet.maxpool.is_some(),
        blocks: resnet.layer_.iter().flatten().map(block).collect::<Option<_>>()?,
        classifier: linear(&resnet.fc)?.map(|numbers| numbers.to_vec()),
    }))
}

/// A convolution whose outputs are normalised by moments that no longer change.
fn folded(convolution: &Conv2d, norm: &BatchNorm) -> Option<FoldedConv> {
    let ([kernel, across], [stride, aside]) = (convolution.kernel_size, convolution.stride);
    let PaddingConfig2d::Explicit(padding, left, bottom, right) = convolution.padding else { return None };
    let plain = convolution.bias.is_none() && convolution.groups == 1 && convolution.dilation == [1, 1];
    if !plain || kernel != across || stride != aside || [left, bottom, right] != [padding; 3] {
        return None;
    }
    let moment = |moment: &Running| moment.value().into_data().try_to_vec::<f32>().expect("moments are f32");
    let (mean, variance) = (moment(&norm.running_mean), moment(&norm.running_var));
    let (gamma, beta) = (numbers(&norm.gamma), numbers(&norm.beta));
    let factor = |i: usize| f64::from(gamma[i]) / (f64::from(variance[i]) + norm.epsilon).sqrt();
    let mut weight = numbers(&convolution.weight).to_vec();
    let depth = weight.len() / gamma.len();
    weight.iter_mut().enumerate().for_each(|(at, weight)| *weight = (f64::from(*weight) * factor(at / depth)) as f32);
    let bias = (0..gamma.len()).map(|i| (f64::from(beta[i]) - f64::from(mean[i]) * factor(i)) as f32).collect();
    Some(FoldedConv { weight, bias, kernel, stride, padding })
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
    heads: Vec<&'a Linear>,
}

impl<'a> Parts<'a> {
    /// None for other models, and for blocks that have no bias or norms of several kinds.
    fn of(model: &'a Model) -> Option<Self> {
        let parts = match model {
            Model::Vit(vit) => {
                let (readout, norm) = match (&vit.norm, &vit.fc_norm) {
                    (Some(norm), None) => (Readout::Tokens, norm),
                    (None, Some(norm)) => (Readout::Mean, norm),
                    _ => return None,
                };
                let (tokens, positions) = (vit.cls_token.iter().collect(), Positions::All(&vit.pos_embed));
                let (embed, blocks, heads) = (&vit.patch_embed, &vit.blocks, vec![&vit.head]);
                Self { embed, tokens, positions, blocks, norm, readout, heads }
            }
            Model::Deit(deit) => {
                let tokens = std::iter::once(&deit.cls_token).chain(&deit.dist_token).collect();
                let heads = std::iter::once(&deit.head).chain(&deit.head_dist).collect();
                let (positions, readout) = (Positions::All(&deit.pos_embed), Readout::Tokens);
                let (embed, blocks, norm) = (&deit.patch_embed, &deit.blocks, &deit.norm);
                Self { embed, tokens, positions, blocks, norm, readout, heads }
            }
            Model::Deit3(deit) => {
                let (tokens, heads) = (vec![&deit.cls_token], vec![&deit.head]);
                let (positions, readout) = (Positions::Patches(&deit.pos_embed), Readout::Tokens);
                let (embed, blocks, norm) = (&deit.patch_embed, &deit.blocks, &deit.norm);
                Self { embed, tokens, positions, blocks, norm, readout, heads }
            }
            _ => return None,
        };
        parts.blocks.iter().all(|block| parts.takes(block)).then_some(parts)
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
    fn shell(&self, precision: Precision) -> Option<Transformer> {
        let weight = self.embed.proj.weight.val();
        if weight.device() != device::cpu() {
            return None;
        }
        let [_, channels, patch, _] = weight.dims();
        let mut prefix: Vec<f32> = self.tokens.iter().flat_map(|token| numbers(token).to_vec()).collect();
        let (table, first) = match self.positions {
            Positions::All(positions) => (numbers(positions), prefix.len()),
            Positions::Patches(positions) => (numbers(positions), 0),
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
type Pair = [Numbers; 2];

/// The parameters of a block as plain numbers, which stay where they are: a copy would touch all of a model's memory once
/// more, which is a large part of a first prediction.
struct BlockNumbers {
    norms: [Pair; 2],
    /// qkv, proj, fc1, fc2
    maps: [Pair; 4],
    scales: Option<Pair>,
}

impl BlockNumbers {
    fn of(block: &EncoderBlock) -> Option<Self> {
        let EncoderBlock { norm1, attn, ls1, norm2, mlp, ls2 } = block;
        let scales = match (ls1, ls2) {
            (Some(first), Some(second)) => Some([numbers(&first.gamma), numbers(&second.gamma)]),
            (None, None) => None,
            _ => return None,
        };
        let maps = [linear(&attn.qkv)?, linear(&attn.proj)?, linear(&mlp.fc1)?, linear(&mlp.fc2)?];
        Some(Self { norms: [norm(norm1), norm(norm2)], maps, scales })
    }

    fn parameters(&self) -> BlockParameters<'_> {
        let [qkv, proj, fc1, fc2] = self.maps.each_ref().map(both);
        let [norm1, norm2] = self.norms.each_ref().map(both);
        let scales = self.scales.as_ref().map(|scales| scales.each_ref().map(|scale| &**scale));
        BlockParameters { norm1, qkv, proj, norm2, fc1, fc2, scales }
    }
}

fn both([weight, bias]: &Pair) -> (&[f32], &[f32]) {
    (weight, bias)
}

fn linear(map: &Linear) -> Option<Pair> {
    Some([numbers(&map.weight), numbers(map.bias.as_ref()?)])
}

fn norm(norm: &LayerNorm) -> Pair {
    [numbers(&norm.weight), numbers(&norm.bias)]
}

fn numbers<const D: usize>(parameter: &Param<Tensor<D>>) -> Numbers {
    Numbers::of(parameter.val())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::preset;
    use crate::testing::{assert_close, random, stirred};
    use crate::weights::{self, Export, LoadOptions, Upstream};
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
    fn a_model_that_answers_once_reads_its_file_and_gives_the_same_bits() {
        device::cpu().seed(1);
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        let load = |config: &ModelConfig, lazily| {
            let grid = config.grid();
            let options = LoadOptions { grid, grid_from: grid, lazily, ..LoadOptions::default() };
            weights::load(config.init(&device::cpu()).unwrap(), &file, &options).unwrap().model
        };
        let wide = |name| small(name).with("mlp_dim", json!(400)).unwrap();
        for config in [wide("vit-tiny-patch16-224"), wide("deit-tiny-distilled"), wide("deit3-small")] {
            let model = stirred(config.init(&device::cpu()).unwrap());
            weights::write_tensors(&file, &weights::tensors(&model)).unwrap();
            for images in [random([1, 3, 32, 48], 1), random([2, 3, 32, 48], 1)] {
                let once = Once::new(load(&config, true)).unwrap();
                assert!(once.shell.is_some(), "{config:?}");
                let logits = once.forward(images.clone()).unwrap();
                let expected = Prepared::new(load(&config, false)).forward(images);
                assert_eq!(logits.into_data(), expected.into_data(), "{config:?}");
            }
            let once = Once::new(load(&config, true)).unwrap();
            std::fs::write(&file, "gone").unwrap();
            let error = once.forward(random([1, 3, 32, 48], 1)).unwrap_err().to_string();
            assert!(error.contains("blocks.0.mlp.fc1.weight"), "{error}");
        }
    }

    #[test]
    fn eight_bits_answer_nearly_as_the_model_and_again_from_their_own_file() {
        device::cpu().seed(1);
        let model = stirred(small("deit3-small").init(&device::cpu()).unwrap());
        let images = random([3, 3, 32, 48], 1);
        let numbers = |logits: Tensor<2>| logits.into_data().try_to_vec::<f32>().unwrap();
        let expected = numbers(model.forward(images.clone(), &mut Pass::silent()));
        let int8 = numbers(Prepared::int8(model.clone()).unwrap().forward(images.clone()));
        let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let error = expected.iter().zip(&int8).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
        assert!(error > 0.0 && error < 0.03 * largest, "{error} of {largest}");

        let folder = tempfile::tempdir().unwrap();
        let export = Export {
            to: Upstream::Timm,
            architecture: String::new(),
            image: [32, 48],
            heads: Some(3),
            epsilon: 1e-6,
            preprocess: preset("deit3-small").unwrap().preprocess,
            labels: None,
            config: None,
            int8: true,
        };
        weights::export(&model, folder.path(), &export).unwrap();
        let fresh = small("deit3-small").init(&device::cpu()).unwrap();
        let options = LoadOptions { grid: Some([2, 3]), grid_from: Some([2, 3]), ..LoadOptions::default() };
        let again = weights::load(fresh, &folder.path().join("model.safetensors"), &options).unwrap().model;
        assert_eq!(numbers(Prepared::int8(again).unwrap().forward(images)), int8);
    }

    #[test]
    fn models_without_a_form_in_eight_bits_say_so() {
        let model = preset("resnet-nano").unwrap().config.init(&device::cpu()).unwrap();
        let error = Prepared::int8(model).unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("no form in eight bits"), "{error}");
    }

    #[test]
    fn a_prepared_residual_network_answers_as_the_model_does_at_any_size() {
        device::cpu().seed(1);
        for name in ["resnet-nano", "resnet-18", "resnet-26-5x5"] {
            let mut config = preset(name).unwrap().config.with("classes", json!(7)).unwrap();
            if name != "resnet-nano" {
                config = config.with("width", json!(0.25)).unwrap();
            }
            let model = stirred(config.init(&device::cpu()).unwrap());
            let Model::Resnet(resnet) = &model else { panic!("{name} is a residual network") };
            let blocks = resnet.layer_.iter().flatten();
            let norms = blocks.flat_map(|block| [&block.bn1, &block.bn2].into_iter().chain(&block.bn3));
            for (seed, norm) in norms.chain([&resnet.bn1]).enumerate() {
                let noise = |moment: &Running, seed| random(moment.value().dims(), seed as u64);
                norm.running_mean.set(noise(&norm.running_mean, seed));
                norm.running_var.set(noise(&norm.running_var, seed + 100) * 0.5 + 4.0);
            }
            let prepared = Prepared::new(model.clone());
            assert!(prepared.fast.is_some(), "{name}");
            for image in [[3, 3, 40, 33], [1, 3, 32, 32]] {
                let images = random(image, 1);
                let expected = model.forward(images.clone(), &mut Pass::silent());
                let largest = expected.clone().abs().max().into_scalar::<f32>();
                assert_close(&(prepared.forward(images) / largest), &(expected / largest), 1e-5);
            }
        }
    }

    #[test]
    fn a_prepared_self_attention_network_answers_as_the_model_does_with_every_relation_and_sharing() {
        device::cpu().seed(1);
        let small = |name: &str, sharing: &str| {
            let config = preset(name).unwrap().config;
            let fields = [
                ("widths", json!([32, 64])),
                ("blocks", json!([1, 2])),
                ("footprints", json!([3, 5])),
                ("classes", json!(7)),
            ];
            let config = fields.into_iter().fold(config, |config, (field, value)| config.with(field, value).unwrap());
            config.with("sharing", json!(sharing)).unwrap()
        };
        let pair = |relation: &str, position: &str| json!({"pairwise": {"relation": relation, "position": position}});
        let mut configs = Vec::new();
        for sharing in ["all-different", "relation-shared", "all-shared"] {
            for (relation, position) in [("subtraction", "relative"), ("dot", "absolute"), ("concatenation", "none")] {
                let config = small("san-nano-pairwise", sharing);
                configs.push(config.with("relation", pair(relation, position)).unwrap());
            }
            for relation in ["concatenation", "star", "clique"] {
                let config = small("san-nano-patchwise", sharing);
                configs.push(config.with("relation", json!({"patchwise": {"relation": relation}})).unwrap());
            }
        }
        for config in configs {
            let model = stirred(config.init(&device::cpu()).unwrap());
            let Model::San(san) = &model else { panic!("{config:?} is a self-attention network") };
            let blocks = || san.stages.iter().flat_map(|stage| &stage.layer);
            let norms =
                blocks().flat_map(|block| [&block.bn1, &block.bn2]).chain(san.stages.iter().map(|stage| &stage.bn));
            for (seed, norm) in norms.chain([&san.bn_in]).enumerate() {
                norm.running_mean.set(random(norm.running_mean.value().dims(), seed as u64));
                norm.running_var.set(random(norm.running_var.value().dims(), seed as u64 + 100) * 0.5 + 4.0);
            }
            let prepared = Prepared::new(model.clone());
            assert!(prepared.fast.is_some(), "{config:?}");
            for image in [[3, 3, 40, 33], [1, 3, 32, 32]] {
                let images = random(image, 1);
                let expected = model.forward(images.clone(), &mut Pass::silent());
                let largest = expected.clone().abs().max().into_scalar::<f32>();
                assert_close(&(prepared.forward(images) / largest), &(expected / largest), 1e-5);
            }
        }
    }

    #[test]
    fn models_without_a_fast_form_answer_themselves() {
        let model = preset("sasa-nano").unwrap().config.init(&device::cpu()).unwrap();
        let prepared = Prepared::new(model.clone());
        let images = random([2, 3, 32, 32], 1);
        assert_close(&prepared.forward(images.clone()), &model.forward(images, &mut Pass::silent()), 0.0);
    }
}
