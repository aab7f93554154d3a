//! Exports a model for other libraries: safetensors under timm's or Hugging Face's names, and `config.json`.
//!
//! timm reads the folder with `create_model("local-dir:FOLDER")`, transformers with `from_pretrained("FOLDER")`.

use burn::module::Module;
use burn::tensor::{DType, TensorData};
use half::f16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

use super::rename::rename;
use super::timm::timm_name;
use super::upstream::{Upstream, hugging_face};
use super::{LoadedModel, Tensors, int8, tensors};
use crate::Error;
use crate::data::{Filter, Preprocess, Resize};
use crate::models::{self, ModelConfig};

/// What is written in addition to the weights.
#[derive(Clone, Debug)]
pub struct Export {
    pub to: Upstream,
    /// The name of the architecture in timm, such as `deit_tiny_patch16_224`.
    pub architecture: String,
    /// Rows and columns of the input images.
    pub image: [usize; 2],
    /// Attention heads of a transformer; Hugging Face needs them.
    pub heads: Option<usize>,
    /// The epsilon of layer norms.
    pub epsilon: f64,
    pub preprocess: Preprocess,
    /// Names of the classes; numbers when none.
    pub labels: Option<Vec<String>>,
    /// The complete configuration, for our own reader: timm's file has only the name of an architecture.
    pub config: Option<ModelConfig>,
    /// Whether the linear layers of a transformer's blocks are written as int8, which only `regard` reads.
    pub int8: bool,
}

impl Export {
    /// The export of a loaded model.
    #[must_use]
    pub fn of(loaded: &LoadedModel, to: Upstream) -> Self {
        let fields = serde_json::to_value(&loaded.config).expect("a configuration is plain data");
        // a preset with other classes or another size still has that architecture
        let same = |config: &ModelConfig| {
            let alike = config
                .with("classes", fields["classes"].clone())
                .and_then(|c| c.with("image", fields["image"].clone()));
            alike.is_ok_and(|alike| alike == loaded.config)
        };
        let preset = models::presets().into_iter().find(|preset| preset.name == loaded.name);
        let preset = preset.or_else(|| models::presets().into_iter().find(|preset| same(&preset.config)));
        Self {
            to,
            architecture: preset.map_or_else(|| loaded.name.clone(), |preset| timm_name(preset.name)),
            image: loaded.config.image(),
            heads: fields["heads"].as_u64().map(|heads| heads as usize),
            epsilon: fields["epsilon"].as_f64().unwrap_or(1e-5),
            preprocess: loaded.preprocess,
            labels: loaded.labels.clone(),
            config: Some(loaded.config.clone()),
            int8: false,
        }
    }
}

/// Writes `model.safetensors` and `config.json` into a folder, which is created if needed; for Hugging Face also
/// `preprocessor_config.json`.
///
/// # Errors
/// When the upstream has no name for a tensor, or a file cannot be written.
pub fn export(model: &impl Module, folder: &Path, options: &Export) -> Result<(), Error> {
    let ours: Tensors = tensors(model).into_iter().map(|(name, tensor)| (name, tensor.convert::<f32>())).collect();
    if options.int8 && (options.to == Upstream::HuggingFace || !ours.keys().any(|name| int8::is_quantised(name))) {
        return Err(Error::config("int8", "works only for transformers, with the names of timm"));
    }
    let (theirs, config) = match options.to {
        Upstream::Timm | Upstream::Regard => (timm(&ours), timm_config(&ours, options)),
        Upstream::HuggingFace => (hugging_face(&ours)?, hugging_face_config(&ours, options)?),
        other => {
            let reason = format!("must be timm or hugging-face, got {other:?}");
            return Err(Error::config("to", reason));
        }
    };
    std::fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    let bytes = if options.int8 {
        int8::to_bytes(&theirs).map_err(|error| Error::file(folder, error))?
    } else {
        to_bytes(&theirs, folder)?
    };
    write(&folder.join("model.safetensors"), &bytes)?;
    let config = serde_json::to_string_pretty(&config).map_err(|error| Error::file(folder, error))?;
    write(&folder.join("config.json"), format!("{config}\n").as_bytes())?;
    if options.to == Upstream::HuggingFace {
        let processor = serde_json::to_string_pretty(&hugging_face_processor(options));
        let processor = processor.map_err(|error| Error::file(folder, error))?;
        write(&folder.join("preprocessor_config.json"), format!("{processor}\n").as_bytes())?;
    }
    Ok(())
}

/// Writes tensors as one safetensors file.
///
/// # Errors
/// When the file cannot be written.
pub fn write_tensors(path: &Path, tensors: &Tensors) -> Result<(), Error> {
    let tensors = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone().convert::<f32>())).collect();
    write(path, &to_bytes(&tensors, path)?)
}

/// Writes tensors as one safetensors file in half precision.
///
/// # Errors
/// When the file cannot be written.
pub fn write_half(path: &Path, tensors: &Tensors) -> Result<(), Error> {
    let tensors = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone().convert::<f16>())).collect();
    write(path, &to_bytes(&tensors, path)?)
}

pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    crate::file::replace(path, bytes).map_err(|error| Error::file(path, error))
}

/// The bytes of a safetensors file; errors name `folder`.
pub(crate) fn to_bytes(tensors: &Tensors, folder: &Path) -> Result<Vec<u8>, Error> {
    let failed = |error: safetensors::SafeTensorError| Error::file(folder, error);
    let views = tensors.iter().map(|(name, tensor)| {
        let kind = if tensor.dtype() == DType::F16 { Dtype::F16 } else { Dtype::F32 };
        let view = TensorView::new(kind, tensor.shape().to_vec(), tensor.as_bytes()).map_err(failed)?;
        Ok((name.as_str(), view))
    });
    let views: BTreeMap<&str, TensorView> = views.collect::<Result<_, Error>>()?;
    let format = [("format".to_string(), "pt".to_string())].into();
    safetensors::serialize(views, Some(format)).map_err(failed)
}

/// Our tensors in timm's shapes: a 1x1 convolution is `[out, in]` here and `[out, in, 1, 1]` there.
fn timm(tensors: &Tensors) -> Tensors {
    let is_convolution = |name: &str| {
        let mut parts = name.rsplit('.');
        let (last, layer, block) = (parts.next(), parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        last == Some("weight") && (layer.starts_with("conv") || block == "downsample" || block == "se")
    };
    let as_theirs = |(name, tensor): (&String, &TensorData)| {
        let mut tensor = tensor.clone();
        if let [outputs, inputs] = tensor.shape().to_vec()[..]
            && is_convolution(name)
        {
            let (bytes, _, dtype) = tensor.into_parts();
            tensor = TensorData::from_bytes(bytes, [outputs, inputs, 1, 1], dtype);
        }
        (name.clone(), tensor)
    };
    tensors.iter().map(as_theirs).collect()
}

fn axis_size(tensors: &Tensors, name: &str, axis: usize) -> Option<usize> {
    tensors.get(name)?.shape().to_vec().get(axis).copied()
}

fn timm_config(tensors: &Tensors, options: &Export) -> Value {
    let heads = ["head.weight", "fc.weight", "head.fc.weight"];
    let head = heads.into_iter().find(|head| tensors.contains_key(*head)).unwrap_or(heads[0]);
    let first = ["patch_embed.proj.weight", "conv1.weight", "stem.conv.weight", "conv_in.weight"];
    let first = first.into_iter().find(|first| tensors.contains_key(*first)).unwrap_or(first[0]);
    let Export { image: [rows, columns], preprocess, .. } = options;
    let mut config = json!({
        "architecture": options.architecture,
        "num_classes": axis_size(tensors, head, 0),
        "num_features": axis_size(tensors, head, 1),
        "pretrained_cfg": {
            "custom_load": false,
            "input_size": [axis_size(tensors, first, 1), rows, columns],
            "interpolation": match preprocess.filter { Filter::Bicubic => "bicubic", Filter::Bilinear => "bilinear" },
            "crop_pct": preprocess.crop,
            "mean": preprocess.mean.map(decimal),
            "std": preprocess.std.map(decimal),
            "num_classes": axis_size(tensors, head, 0),
            "first_conv": first.trim_end_matches(".weight"),
            "classifier": head.trim_end_matches(".weight"),
        },
    });
    if preprocess.resize == Resize::Stretch {
        config["pretrained_cfg"]["crop_mode"] = json!("squash");
    }
    if let Some(labels) = &options.labels {
        config["label_names"] = json!(labels);
    }
    if let Some(own) = &options.config {
        config["regard"] = json!({ "model": own });
    }
    config
}

/// The shortest decimal of an f32: 0.485, not 0.48500001430511475.
pub(super) fn decimal(value: f32) -> f64 {
    value.to_string().parse().unwrap_or_else(|_| f64::from(value))
}

fn hugging_face_config(tensors: &Tensors, options: &Export) -> Result<Value, Error> {
    let heads = options.heads.ok_or_else(|| Error::config("heads", "is required for Hugging Face's config"))?;
    let [rows, columns] = options.image;
    let image = if rows == columns { json!(rows) } else { json!([rows, columns]) };
    let classes = axis_size(tensors, "head.weight", 0).unwrap_or(0);
    let depth = tensors.keys().filter(|name| rename(name, "blocks.{i}.norm1.weight", "").is_some()).count();
    let (kind, architecture) = if tensors.contains_key("dist_token") {
        ("deit", "DeiTForImageClassificationWithTeacher")
    } else {
        ("vit", "ViTForImageClassification")
    };
    let name = |class: usize| {
        let known = options.labels.as_ref().and_then(|labels| labels.get(class));
        known.map_or_else(|| format!("LABEL_{class}"), String::clone)
    };
    let labels: BTreeMap<String, String> = (0..classes).map(|class| (class.to_string(), name(class))).collect();
    let numbers: BTreeMap<String, usize> = (0..classes).map(|class| (name(class), class)).collect();
    Ok(json!({
        "architectures": [architecture],
        "model_type": kind,
        "hidden_size": axis_size(tensors, "patch_embed.proj.weight", 0),
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": axis_size(tensors, "blocks.0.mlp.fc1.weight", 0),
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": options.epsilon,
        "image_size": image,
        "patch_size": axis_size(tensors, "patch_embed.proj.weight", 2),
        "num_channels": axis_size(tensors, "patch_embed.proj.weight", 1),
        "qkv_bias": tensors.contains_key("blocks.0.attn.qkv.bias"),
        "id2label": labels,
        "label2id": numbers,
        "torch_dtype": "float32",
    }))
}

/// The preprocessing, as the config of transformers' image processor for ViT or DeiT.
fn hugging_face_processor(options: &Export) -> Value {
    let Preprocess { mean, std, crop, filter, resize } = options.preprocess;
    let [rows, columns] = options.image;
    let resized = |side: usize| (side as f64 / crop).round() as usize;
    let size = match resize {
        Resize::ShortSide => json!({ "shortest_edge": resized(rows.min(columns)) }),
        Resize::Stretch => json!({ "height": resized(rows), "width": resized(columns) }),
    };
    json!({
        // the ViT processor does not crop
        "image_processor_type": "DeiTImageProcessor",
        "do_resize": true,
        "size": size,
        "resample": match filter { Filter::Bilinear => 2, Filter::Bicubic => 3 },
        "do_center_crop": true,
        "crop_size": { "height": rows, "width": columns },
        "do_rescale": true,
        "rescale_factor": 1.0 / 255.0,
        "do_normalize": true,
        "image_mean": mean.map(decimal),
        "image_std": std.map(decimal),
    })
}

#[cfg(test)]
mod tests;
