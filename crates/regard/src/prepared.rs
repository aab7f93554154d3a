//! Models made ready for inference: their weights packed once for this machine, their layers fused.
//!
//! Each family says in its own file what it can be packed into ([`Model::packed_form`]); everybody else calls
//! [`PackedModel::forward`]. Models without such a form, other devices and whoever records anything take [`Model::forward`] as
//! it is.

use burn::tensor::{Device, Tensor, TensorData};
use regard_kernels::residual::Residual;
use regard_kernels::san::San;
use regard_kernels::transformer::{BlockParameters, LazyBlock, LazyLinear, PackedLinear, Precision, Transformer};

use crate::device;
use crate::layers::packed::{PackedForm, Pair, TransformerParts, both, linear, norm, numbers};
use crate::layers::{EncoderBlock, LayerScale, Linear};
use crate::models::{ImageTransformer, Model, ModelConfig};
use crate::{Error, Pass, weights};

/// A model that only answers.
pub struct PackedModel {
    model: Model,
    kernel: Option<Kernel>,
}

/// What computes a whole model.
enum Kernel {
    Transformer(Box<Transformer>),
    Residual(Box<Residual>),
    San(Box<San>),
}

impl std::fmt::Debug for PackedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedModel").field("kernel", &self.kernel.is_some()).finish_non_exhaustive()
    }
}

impl PackedModel {
    /// Packs the weights, where there is a kernel for the model; they are then in memory twice.
    #[must_use]
    pub fn new(model: Model) -> Self {
        let kernel = packed(&model, Precision::Float);
        Self { model, kernel }
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
            kernel => Ok(Self { model, kernel }),
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
        let fits = match &self.kernel {
            Some(Kernel::Transformer(kernel)) => kernel.accepts(channels, sides),
            Some(Kernel::Residual(kernel)) => channels == kernel.channels() && rows * columns > 0,
            Some(Kernel::San(kernel)) => kernel.accepts(channels, sides),
            None => false,
        };
        let Some(kernel) = self.kernel.as_ref().filter(|_| fits) else {
            return self.model.forward(images, &mut Pass::silent());
        };
        let (device, data) = (images.device(), images.into_data());
        let data = data.as_slice().expect("the CPU's images are f32");
        let (logits, classes) = match kernel {
            Kernel::Transformer(kernel) => (kernel.forward(data), kernel.classes()),
            Kernel::Residual(kernel) => (kernel.forward(data, sides), kernel.classes()),
            Kernel::San(kernel) => (kernel.forward(data, sides), kernel.classes()),
        };
        Tensor::from_data(TensorData::new(logits, [batch, classes]), &device)
    }
}

/// A model that answers once: what [`PackedModel::forward`] gives, bit for bit. The blocks of a transformer are read, packed
/// and given up one by one, since memory that is touched for the first time is most of a single prediction.
pub struct StreamedModel {
    model: Model,
    /// The transformer but for its blocks; none for other models.
    without_blocks: Option<Box<Transformer>>,
}

impl std::fmt::Debug for StreamedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StreamedModel").field("without_blocks", &self.without_blocks).finish_non_exhaustive()
    }
}

impl StreamedModel {
    /// Whether models like this one have blocks that can come one by one; others are read at once, on all threads.
    #[must_use]
    pub fn is_supported(config: &ModelConfig, device: &Device) -> bool {
        config.grid().is_some() && *device == device::cpu()
    }

    /// Takes a model, some tensors of which may still be in their file.
    ///
    /// # Errors
    /// When one of them cannot be read; the error names it.
    pub fn new(mut model: Model) -> Result<Self, Error> {
        let uniform = blocks_mut(&mut model).is_some() && transformer(&model).is_some();
        let lazy = blocks_mut(&mut model).filter(|_| uniform).map(std::mem::take);
        model = weights::read_lazy_tensors(model, "")?;
        let Some(lazy) = lazy else { return Ok(Self { model, without_blocks: None }) };
        if let Some(blocks) = blocks_mut(&mut model) {
            *blocks = lazy;
        }
        let without_blocks = transformer(&model).and_then(|parts| parts.without_blocks(Precision::Float)).map(Box::new);
        Ok(Self { model, without_blocks })
    }

    /// `[B, C, H, W] -> [B, classes]`
    ///
    /// # Errors
    /// When a tensor cannot be read; the error names it.
    pub fn forward(self, images: Tensor<4>) -> Result<Tensor<2>, Error> {
        let Self { mut model, without_blocks } = self;
        let [batch, channels, rows, columns] = images.dims();
        let kernel = without_blocks.filter(|kernel| batch == 1 && kernel.accepts(channels, [rows, columns]));
        let (Some(kernel), Some(blocks)) = (kernel, blocks_mut(&mut model)) else {
            return Ok(PackedModel::new(weights::read_lazy_tensors(model, "")?).forward(images));
        };
        let blocks = std::mem::take(blocks).into_iter().enumerate().map(lazy_block).collect();
        let (device, data) = (images.device(), images.into_data());
        let data = data.as_slice().expect("the CPU's images are f32");
        let logits = kernel.forward_lazy(data, blocks)?;
        Ok(Tensor::from_data(TensorData::new(logits, [1, kernel.classes()]), &device))
    }
}

/// The blocks of a transformer.
fn blocks_mut(model: &mut Model) -> Option<&mut Vec<EncoderBlock>> {
    model.as_transformer_mut().map(<dyn ImageTransformer>::encoder_blocks_mut)
}

/// The parts of a transformer whose blocks the kernel computes.
fn transformer(model: &Model) -> Option<TransformerParts<'_>> {
    match model.packed_form() {
        PackedForm::Transformer(parts) => Some(parts).filter(TransformerParts::is_uniform),
        _ => None,
    }
}

/// A block whose maps are read and packed when their turn comes.
fn lazy_block((index, block): (usize, EncoderBlock)) -> LazyBlock<Error> {
    let EncoderBlock { norm1, attn, ls1, norm2, mlp, ls2 } = block;
    let [norm1, norm2] = [norm1, norm2].map(|one| norm(&one).map(|numbers| numbers.to_vec()));
    let lazy = |map: Linear, scale: Option<LayerScale>, name: &str| -> LazyLinear<Error> {
        let place = format!("blocks.{index}.{name}");
        Box::new(move || packed_map(map, scale, &place))
    };
    LazyBlock {
        norm1,
        qkv: lazy(attn.qkv, None, "attn.qkv"),
        proj: lazy(attn.proj, ls1, "attn.proj"),
        norm2,
        fc1: lazy(mlp.fc1, None, "mlp.fc1"),
        fc2: lazy(mlp.fc2, ls2, "mlp.fc2"),
    }
}

/// Reads a map if it is still in its file, and packs it.
fn packed_map(map: Linear, scale: Option<LayerScale>, place: &str) -> Result<PackedLinear, Error> {
    let map = weights::read_lazy_tensors(map, place)?;
    let scale = scale.map(|scale| numbers(&scale.gamma));
    let pair = linear(&map).expect("`is_uniform` looked for the bias");
    Ok(PackedLinear::new(both(&pair), scale.as_deref(), Precision::Float))
}

/// The kernel that computes a model with these weights; none when there is none, or on another device.
fn packed(model: &Model, precision: Precision) -> Option<Kernel> {
    match model.packed_form() {
        PackedForm::None => None,
        PackedForm::Residual(kernel) => matches!(precision, Precision::Float).then_some(Kernel::Residual(kernel)),
        PackedForm::San(kernel) => matches!(precision, Precision::Float).then_some(Kernel::San(kernel)),
        PackedForm::Transformer(parts) => {
            let mut transformer = Some(&parts).filter(|parts| parts.is_uniform())?.without_blocks(precision)?;
            for block in parts.blocks {
                transformer.push(&BlockNumbers::of(block)?.parameters(), precision);
            }
            Some(Kernel::Transformer(Box::new(transformer)))
        }
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch_norm::RunningStat;
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
            let prepared = PackedModel::new(model.clone());
            assert!(prepared.kernel.is_some(), "{config:?}");
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
                let once = StreamedModel::new(load(&config, true)).unwrap();
                assert!(once.without_blocks.is_some(), "{config:?}");
                let logits = once.forward(images.clone()).unwrap();
                let expected = PackedModel::new(load(&config, false)).forward(images);
                assert_eq!(logits.into_data(), expected.into_data(), "{config:?}");
            }
            let once = StreamedModel::new(load(&config, true)).unwrap();
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
        let int8 = numbers(PackedModel::int8(model.clone()).unwrap().forward(images.clone()));
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
        assert_eq!(numbers(PackedModel::int8(again).unwrap().forward(images)), int8);
    }

    #[test]
    fn models_without_a_form_in_eight_bits_say_so() {
        let model = preset("resnet-nano").unwrap().config.init(&device::cpu()).unwrap();
        let error = PackedModel::int8(model).unwrap_err().to_string();
        assert!(error.contains("int8") && error.contains("no form in eight bits"), "{error}");
    }

    /// A packed form gives what the model gives, at two sizes.
    fn assert_packed_agrees(model: &Model, name: &str) {
        let packed = PackedModel::new(model.clone());
        assert!(packed.kernel.is_some(), "{name}");
        for image in [[3, 3, 40, 33], [1, 3, 32, 32]] {
            let images = random(image, 1);
            let expected = model.forward(images.clone(), &mut Pass::silent());
            let largest = expected.clone().abs().max().into_scalar::<f32>();
            assert_close(&(packed.forward(images) / largest), &(expected / largest), 1e-5);
        }
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
                let noise = |moment: &RunningStat, seed| random(moment.value().dims(), seed as u64);
                let [mean, variance] = norm.running();
                mean.set(noise(mean, seed));
                variance.set(noise(variance, seed + 100) * 0.5 + 4.0);
            }
            assert_packed_agrees(&model, name);
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
            assert_packed_agrees(&model, &format!("{config:?}"));
        }
    }

    #[test]
    fn models_without_a_packed_form_answer_themselves() {
        let model = preset("sasa-nano").unwrap().config.init(&device::cpu()).unwrap();
        let prepared = PackedModel::new(model.clone());
        let images = random([2, 3, 32, 32], 1);
        assert_close(&prepared.forward(images.clone()), &model.forward(images, &mut Pass::silent()), 0.0);
    }
}
