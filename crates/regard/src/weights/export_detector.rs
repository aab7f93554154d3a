//! Exports a detector: weights under the names of its upstream, with the files that describe it.
//!
//! The folder is also a name of a model, like a run folder: `regard detect --model FOLDER`. An export succeeds only after
//! the weights are read back into a new detector that gives the same output.

use burn::tensor::{Device, TensorData};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

use super::export::{decimal, to_bytes, write};
use super::{
    LoadOptions, LoadedDetector, Tensors, Upstream, fit, read, tensors, to_detector_names, to_transformers_names,
};
use crate::data::{DetectionPreprocess, DetectionResize, ImageBatch, Images, NormalisedPicture};
use crate::layers::{BottleneckStride, GridPositionKind, LastStage, NormPlace, ResidualBlock, ResidualStem};
use crate::models::detect::detr::{DetrConfig, QueryKind};
use crate::models::detect::faster_rcnn::Background;
use crate::models::detect::retinanet::HeadKind;
use crate::models::detect::{Detector, DetectorConfig};
use crate::models::resnet::ResNetConfig;
use crate::models::{ModelConfig, preset};
use crate::{Error, Pass};

/// The upstreams that have detectors of this kind; the first one has the names of its parameters.
#[must_use]
pub const fn detector_upstreams(config: &DetectorConfig) -> &'static [Upstream] {
    match config {
        DetectorConfig::Detr(_) => &[Upstream::Facebook, Upstream::HuggingFace],
        DetectorConfig::Retinanet(_) => &[Upstream::Torchvision],
        // the order of the logits tells them apart
        DetectorConfig::FasterRcnn(config) => match config.regions.background {
            Background::First => &[Upstream::Torchvision],
            Background::Last => &[Upstream::Detectron2],
        },
    }
}

/// Writes `model.safetensors`, `model.toml`, `preprocess.toml` and `classes.txt` into a folder, which is created if needed; for
/// Hugging Face also `config.json` and `preprocessor_config.json`.
///
/// # Errors
/// When the upstream has no such detector, a file cannot be written, or the written weights differ.
pub fn export_detector(detector: &LoadedDetector, folder: &Path, to: Upstream, device: &Device) -> Result<(), Error> {
    check(&detector.config, to)?;
    let theirs = upstream_tensors(detector, to)?;
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    let path = folder.join("model.safetensors");
    write(&path, &to_bytes(&theirs, folder)?)?;
    if let Err(error) = read_back(detector, &path, &theirs, device) {
        // a file that cannot be trusted is worse than none
        _ = std::fs::remove_file(&path);
        return Err(error);
    }
    for (name, text) in descriptions(detector, to) {
        write(&folder.join(name), text.as_bytes())?;
    }
    Ok(())
}

/// The names for `--to`.
fn name(upstream: Upstream) -> String {
    serde_json::to_value(upstream).ok().and_then(|name| name.as_str().map(String::from)).unwrap_or_default()
}

/// Refuses configurations that an upstream could not build.
fn check(config: &DetectorConfig, to: Upstream) -> Result<(), Error> {
    if to == Upstream::Regard {
        return Ok(());
    }
    let (family, there) = (config.family(), name(to));
    let refuse = |reason: String| Err(Error::config("to", reason));
    let known = detector_upstreams(config);
    if !known.contains(&to) {
        let known: Vec<String> = known.iter().copied().map(name).collect();
        return refuse(format!("{there} does not have this {family}, only {}", known.join(" and ")));
    }
    let trunk = match config {
        DetectorConfig::Detr(config) => &config.backbone,
        DetectorConfig::Retinanet(config) => &config.backbone.trunk,
        DetectorConfig::FasterRcnn(config) => &config.backbone.trunk,
    };
    let ModelConfig::Resnet(network) = &trunk.network else {
        return refuse(format!("the trunk is a {}, {there} has residual networks", trunk.network.family()));
    };
    match config {
        DetectorConfig::Detr(config) if config.queries != QueryKind::Learned => {
            refuse(format!("the queries are reference points, which {there} does not have"))
        }
        DetectorConfig::Detr(config) if config.position == GridPositionKind::SineOfCells => {
            refuse(format!("positions count cells, in {there} they are shares of the picture"))
        }
        DetectorConfig::Detr(config) if to == Upstream::HuggingFace => check_hugging_face(config, network),
        DetectorConfig::Retinanet(config) if config.head.kind != HeadKind::Convolution => {
            refuse(format!("the heads are attention, {there} has convolutions"))
        }
        _ => Ok(()),
    }
}

fn check_hugging_face(config: &DetrConfig, network: &ResNetConfig) -> Result<(), Error> {
    let refuse = |reason: &str| Err(Error::config("to", reason));
    match timm_trunk(network) {
        _ if config.norm != NormPlace::Post => refuse("norms stand before attention, hugging-face has them after it"),
        None if config.backbone.last_stage != LastStage::Strided => {
            refuse("hugging-face dilates the last stage of a ResNet-50 or ResNet-101 only")
        }
        None if network.stem != ResidualStem::Large || network.kernel != 3 || network.width != 1.0 => {
            refuse("hugging-face has residual networks with a 7x7 stem, 3x3 convolutions and no width factor")
        }
        _ => Ok(()),
    }
}

/// The name of a trunk in timm, if Hugging Face builds it from there.
fn timm_trunk(network: &ResNetConfig) -> Option<&'static str> {
    let same = |name: &str| {
        let known = preset(name).ok()?.config;
        let ModelConfig::Resnet(known) = known else { return None };
        (ResNetConfig { image: network.image, classes: network.classes, ..known } == *network).then_some(())
    };
    [("resnet-50", "resnet50"), ("resnet-101", "resnet101")].into_iter().find_map(|(ours, theirs)| {
        same(ours)?;
        Some(theirs)
    })
}

/// The trunk of a DETR.
fn detr_network(config: &DetrConfig) -> Option<&ResNetConfig> {
    match &config.backbone.network {
        ModelConfig::Resnet(network) => Some(network),
        _ => None,
    }
}

fn upstream_tensors(detector: &LoadedDetector, to: Upstream) -> Result<Tensors, Error> {
    let ours: Tensors =
        tensors(&detector.model).into_iter().map(|(name, tensor)| (name, tensor.convert::<f32>())).collect();
    if to == Upstream::Regard {
        return Ok(ours);
    }
    let prefix = detector.model.trunk_prefix();
    let ours = ours.into_iter().map(|(name, tensor)| {
        let tensor = if name.starts_with(prefix) { convolution(tensor) } else { tensor };
        (name, tensor)
    });
    let ours: Tensors = ours.collect();
    match &detector.config {
        DetectorConfig::Detr(config) if to == Upstream::HuggingFace => {
            match detr_network(config).and_then(timm_trunk) {
                Some(_) => to_detector_names(&ours, to),
                None => to_transformers_names(&ours),
            }
        }
        _ => to_detector_names(&ours, to),
    }
}

/// A 1x1 convolution of a residual network is `[out, in]` here and `[out, in, 1, 1]` elsewhere.
fn convolution(tensor: TensorData) -> TensorData {
    let [outputs, inputs] = tensor.shape().to_vec()[..] else { return tensor };
    let (bytes, _, dtype) = tensor.into_parts();
    TensorData::from_bytes(bytes, [outputs, inputs, 1, 1], dtype)
}

/// Compares the file with the exported tensors, and a detector loaded from it with the exported one.
fn read_back(detector: &LoadedDetector, path: &Path, written: &Tensors, device: &Device) -> Result<(), Error> {
    let checkpoint = read(path)?;
    let differs = |name: &&String| {
        let same =
            |one: &TensorData, other: &TensorData| one.shape() == other.shape() && one.as_bytes() == other.as_bytes();
        !checkpoint.tensors.get(*name).is_some_and(|tensor| same(tensor, &written[*name]))
    };
    if let Some(name) = written.keys().find(differs) {
        return Err(Error::file(path, format!("`{name}` differs from what was written")));
    }
    let again = fit(detector.config.init(device)?, checkpoint, &LoadOptions::default())?.model;
    let images = test_picture()?.to_device(device);
    let same = outputs(&detector.model, &images)
        .iter()
        .zip(outputs(&again, &images))
        .all(|(one, other)| one.as_bytes() == other.as_bytes());
    if same { Ok(()) } else { Err(Error::file(path, "a detector with these weights gives another output")) }
}

/// A picture of waves, large enough for every level of a pyramid.
fn test_picture() -> Result<ImageBatch, Error> {
    const SIDE: usize = 64;
    let values = (0..3 * SIDE * SIDE).map(|index| (index as f32 * 0.37).sin()).collect();
    ImageBatch::collate(&[NormalisedPicture { values, size: [SIDE, SIDE] }])
}

/// The raw outputs of a detector, before boxes are selected.
fn outputs(model: &Detector, images: &Images) -> Vec<TensorData> {
    let pass = &mut Pass::silent();
    match model {
        Detector::Detr(model) => {
            let output = model.forward(images, pass);
            output.logits.into_iter().chain(output.boxes).map(burn::tensor::Tensor::into_data).collect()
        }
        Detector::Retinanet(model) => {
            let output = model.forward(images.pixels.clone(), pass);
            vec![output.logits.into_data(), output.deltas.into_data()]
        }
        Detector::FasterRcnn(model) => {
            let output = model.forward(images, pass);
            vec![
                output.rpn.objectness.into_data(),
                output.rpn.deltas.into_data(),
                output.regions.logits.into_data(),
                output.regions.deltas.into_data(),
            ]
        }
    }
}

/// The files next to the weights.
fn descriptions(detector: &LoadedDetector, to: Upstream) -> Vec<(&'static str, String)> {
    let mut files = vec![
        ("model.toml", detector.config.to_toml()),
        ("preprocess.toml", toml::to_string(&detector.preprocess).expect("plain data")),
    ];
    if let Some(labels) = &detector.labels {
        files.push(("classes.txt", labels.join("\n") + "\n"));
    }
    if let (Upstream::HuggingFace, DetectorConfig::Detr(config)) = (to, &detector.config)
        && let Some(network) = detr_network(config)
    {
        let text = |value: &Value| serde_json::to_string_pretty(value).expect("plain data") + "\n";
        files.push(("config.json", text(&detr_json(config, network, detector.labels.as_deref()))));
        files.push(("preprocessor_config.json", text(&processor(&detector.preprocess))));
    }
    files
}

/// The `config.json` that [`detr_config`](super::detr_config) reads.
fn detr_json(config: &DetrConfig, network: &ResNetConfig, labels: Option<&[String]>) -> Value {
    let label = |class: usize| {
        labels.and_then(|labels| labels.get(class)).map_or_else(|| format!("LABEL_{class}"), String::clone)
    };
    let names: BTreeMap<String, String> = (0..config.classes).map(|class| (class.to_string(), label(class))).collect();
    let numbers: BTreeMap<String, usize> = (0..config.classes).map(|class| (label(class), class)).collect();
    let timm = timm_trunk(network);
    json!({
        "architectures": ["DetrForObjectDetection"],
        "model_type": "detr",
        "is_encoder_decoder": true,
        "activation_function": "relu",
        "d_model": config.dim,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": config.heads,
        "decoder_attention_heads": config.heads,
        "encoder_ffn_dim": config.inner,
        "decoder_ffn_dim": config.inner,
        "num_queries": config.num_queries,
        "num_channels": network.channels,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
        "activation_dropout": 0.0,
        "position_embedding_type": if config.position == GridPositionKind::Learned { "learned" } else { "sine" },
        "dilation": config.backbone.last_stage != LastStage::Strided,
        "backbone": timm,
        "use_timm_backbone": timm.is_some(),
        "use_pretrained_backbone": false,
        "backbone_config": if timm.is_some() { Value::Null } else { resnet_json(network) },
        "id2label": names,
        "label2id": numbers,
        "torch_dtype": "float32",
    })
}

/// A trunk as transformers builds it.
fn resnet_json(network: &ResNetConfig) -> Value {
    let (block, factor) = match network.block {
        ResidualBlock::Basic => ("basic", 1),
        ResidualBlock::Bottleneck => ("bottleneck", 4),
    };
    let last = network.layers.len();
    json!({
        "model_type": "resnet",
        "num_channels": network.channels,
        "embedding_size": network.stem_width,
        "hidden_sizes": network.widths.iter().map(|width| width * factor).collect::<Vec<_>>(),
        "depths": network.layers,
        "layer_type": block,
        "hidden_act": "relu",
        "downsample_in_first_stage": false,
        "downsample_in_bottleneck": network.stride == BottleneckStride::First,
        "out_features": [format!("stage{last}")],
        "out_indices": [last],
    })
}

/// The preprocessing, as the config of transformers' image processor for DETR.
fn processor(preprocess: &DetectionPreprocess) -> Value {
    let DetectionPreprocess { mean, std, resize, .. } = preprocess;
    let size = match resize {
        DetectionResize::Keep => Value::Null,
        DetectionResize::ShortSide(side) => json!({ "shortest_edge": side.short, "longest_edge": side.longest }),
        DetectionResize::Inside(inside) => json!({ "shortest_edge": inside.short, "longest_edge": inside.long }),
    };
    json!({
        "image_processor_type": "DetrImageProcessor",
        "format": "coco_detection",
        "do_resize": !size.is_null(),
        "size": size,
        "resample": 2,
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": mean.map(decimal),
        "image_std": std.map(decimal),
        "do_pad": true,
    })
}

#[cfg(test)]
mod tests;
