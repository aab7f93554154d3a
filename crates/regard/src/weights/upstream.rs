//! The tensor names of other libraries, and ours for the same tensors.
//!
//! Our names are timm's for vision transformers and `RegNet`, torchvision's for residual networks;
//! SAN groups its layers in stages. There is one table per upstream, read left to right to load and right to left to export.

mod detection;
mod detr;
mod slowfast;
mod timesformer;

use burn::tensor::TensorData;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use detection::to_detector_names;
pub(super) use detr::to_transformers_names;

use super::rename::rename;
use super::{Tensors, jax};
use crate::Error;

/// The library that wrote a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Upstream {
    Timm,
    HuggingFace,
    /// The names that transformers 5 has in memory.
    HuggingFaceV5,
    Torchvision,
    /// facebookresearch: deit, detr, TimeSformer, and pycls for `RegNet`.
    Facebook,
    /// hszhao/SAN.
    San,
    /// Google's vision transformers.
    Jax,
    /// `torch.nn.Transformer`.
    Pytorch,
    /// facebookresearch/fairseq.
    Fairseq,
    /// facebookresearch/detectron2.
    Detectron2,
    /// facebookresearch/SlowFast.
    Slowfast,
    Regard,
}

/// Their name and our name. `/0`, `/1` and `/2` are thirds of one tensor along its first axis; an empty name marks a tensor
/// that no model uses.
type Table = &'static [(&'static str, &'static str)];

/// Vision transformers without `LayerScale`, after the prefix `vit.` or `deit.`.
const HUGGING_FACE: Table = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.distillation_token", "dist_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"),
    ("encoder.layer.{i}.layernorm_before.*", "blocks.{i}.norm1.*"),
    ("encoder.layer.{i}.attention.attention.query.*", "blocks.{i}.attn.qkv.*/0"),
    ("encoder.layer.{i}.attention.attention.key.*", "blocks.{i}.attn.qkv.*/1"),
    ("encoder.layer.{i}.attention.attention.value.*", "blocks.{i}.attn.qkv.*/2"),
    ("encoder.layer.{i}.attention.output.dense.*", "blocks.{i}.attn.proj.*"),
    ("encoder.layer.{i}.layernorm_after.*", "blocks.{i}.norm2.*"),
    ("encoder.layer.{i}.intermediate.dense.*", "blocks.{i}.mlp.fc1.*"),
    ("encoder.layer.{i}.output.dense.*", "blocks.{i}.mlp.fc2.*"),
    ("layernorm.*", "norm.*"),
    ("classifier.*", "head.*"),
    ("cls_classifier.*", "head.*"),
    ("distillation_classifier.*", "head_dist.*"),
    ("pooler.dense.*", ""),
];

const HUGGING_FACE_V5: Table = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.distillation_token", "dist_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"),
    ("layers.{i}.layernorm_before.*", "blocks.{i}.norm1.*"),
    ("layers.{i}.attention.q_proj.*", "blocks.{i}.attn.qkv.*/0"),
    ("layers.{i}.attention.k_proj.*", "blocks.{i}.attn.qkv.*/1"),
    ("layers.{i}.attention.v_proj.*", "blocks.{i}.attn.qkv.*/2"),
    ("layers.{i}.attention.o_proj.*", "blocks.{i}.attn.proj.*"),
    ("layers.{i}.layernorm_after.*", "blocks.{i}.norm2.*"),
    ("layers.{i}.mlp.fc1.*", "blocks.{i}.mlp.fc1.*"),
    ("layers.{i}.mlp.fc2.*", "blocks.{i}.mlp.fc2.*"),
    ("layernorm.*", "norm.*"),
    ("classifier.*", "head.*"),
    ("cls_classifier.*", "head.*"),
    ("distillation_classifier.*", "head_dist.*"),
    ("pooler.dense.*", ""),
];

/// Residual networks of images and of clips are not listed: their names are ours.
const TORCHVISION: Table = &[
    ("class_token", "cls_token"),
    ("encoder.pos_embedding", "pos_embed"),
    ("conv_proj.*", "patch_embed.proj.*"),
    ("encoder.layers.encoder_layer_{i}.ln_1.*", "blocks.{i}.norm1.*"),
    ("encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight", "blocks.{i}.attn.qkv.weight"),
    ("encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias", "blocks.{i}.attn.qkv.bias"),
    ("encoder.layers.encoder_layer_{i}.self_attention.out_proj.*", "blocks.{i}.attn.proj.*"),
    ("encoder.layers.encoder_layer_{i}.ln_2.*", "blocks.{i}.norm2.*"),
    ("encoder.layers.encoder_layer_{i}.mlp.0.*", "blocks.{i}.mlp.fc1.*"),
    ("encoder.layers.encoder_layer_{i}.mlp.3.*", "blocks.{i}.mlp.fc2.*"),
    ("encoder.layers.encoder_layer_{i}.mlp.linear_1.*", "blocks.{i}.mlp.fc1.*"),
    ("encoder.layers.encoder_layer_{i}.mlp.linear_2.*", "blocks.{i}.mlp.fc2.*"),
    ("encoder.ln.*", "norm.*"),
    ("heads.head.*", "head.*"),
    ("trunk_output.block{s}.block{s}-{b}.proj.0.*", "s{s}.b{b+1}.downsample.conv.*"),
    ("trunk_output.block{s}.block{s}-{b}.proj.1.*", "s{s}.b{b+1}.downsample.bn.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.a.0.*", "s{s}.b{b+1}.conv1.conv.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.a.1.*", "s{s}.b{b+1}.conv1.bn.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.b.0.*", "s{s}.b{b+1}.conv2.conv.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.b.1.*", "s{s}.b{b+1}.conv2.bn.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.se.*", "s{s}.b{b+1}.se.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.c.0.*", "s{s}.b{b+1}.conv3.conv.*"),
    ("trunk_output.block{s}.block{s}-{b}.f.c.1.*", "s{s}.b{b+1}.conv3.bn.*"),
];

/// A RegNet's stem and head; the same names are those of residual networks in other files.
const TORCHVISION_REGNET: Table = &[("stem.0.*", "stem.conv.*"), ("stem.1.*", "stem.bn.*"), ("fc.*", "head.fc.*")];

/// The trunk and what stands around the layers have our names.
const FACEBOOK: Table = &[
    (
        "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
        "transformer.encoder.layers.{i}.self_attn.in_proj.weight",
    ),
    ("transformer.encoder.layers.{i}.self_attn.in_proj_bias", "transformer.encoder.layers.{i}.self_attn.in_proj.bias"),
    (
        "transformer.decoder.layers.{i}.self_attn.in_proj_weight",
        "transformer.decoder.layers.{i}.self_attn.in_proj.weight",
    ),
    ("transformer.decoder.layers.{i}.self_attn.in_proj_bias", "transformer.decoder.layers.{i}.self_attn.in_proj.bias"),
    (
        "transformer.decoder.layers.{i}.multihead_attn.in_proj_weight",
        "transformer.decoder.layers.{i}.multihead_attn.in_proj.weight",
    ),
    (
        "transformer.decoder.layers.{i}.multihead_attn.in_proj_bias",
        "transformer.decoder.layers.{i}.multihead_attn.in_proj.bias",
    ),
    ("blocks.{i}.gamma_1", "blocks.{i}.ls1.gamma"),
    ("blocks.{i}.gamma_2", "blocks.{i}.ls2.gamma"),
    ("s{s}.b{b}.proj.*", "s{s}.b{b}.downsample.conv.*"),
    ("s{s}.b{b}.bn.*", "s{s}.b{b}.downsample.bn.*"),
    ("s{s}.b{b}.f.a.*", "s{s}.b{b}.conv1.conv.*"),
    ("s{s}.b{b}.f.a_bn.*", "s{s}.b{b}.conv1.bn.*"),
    ("s{s}.b{b}.f.b.*", "s{s}.b{b}.conv2.conv.*"),
    ("s{s}.b{b}.f.b_bn.*", "s{s}.b{b}.conv2.bn.*"),
    ("s{s}.b{b}.f.se.f_ex.0.*", "s{s}.b{b}.se.fc1.*"),
    ("s{s}.b{b}.f.se.f_ex.2.*", "s{s}.b{b}.se.fc2.*"),
    ("s{s}.b{b}.f.c.*", "s{s}.b{b}.conv3.conv.*"),
    ("s{s}.b{b}.f.c_bn.*", "s{s}.b{b}.conv3.bn.*"),
];

/// After the prefix `module.`.
const SAN: Table = &[
    ("layer{s}.{b}.sam.conv1.*", "stages.{s}.layer.{b}.sam.phi.*"),
    ("layer{s}.{b}.sam.conv2.*", "stages.{s}.layer.{b}.sam.psi.*"),
    ("layer{s}.{b}.sam.conv3.*", "stages.{s}.layer.{b}.sam.beta.*"),
    ("layer{s}.{b}.sam.conv_p.*", "stages.{s}.layer.{b}.sam.place.*"),
    ("layer{s}.{b}.sam.conv_w.0.*", "stages.{s}.layer.{b}.sam.gamma.norm1.*"),
    ("layer{s}.{b}.sam.conv_w.2.weight", "stages.{s}.layer.{b}.sam.gamma.linear1"),
    ("layer{s}.{b}.sam.conv_w.3.*", "stages.{s}.layer.{b}.sam.gamma.norm2.*"),
    ("layer{s}.{b}.sam.conv_w.5.weight", "stages.{s}.layer.{b}.sam.gamma.linear2"),
    ("layer{s}.{b}.sam.conv_w.5.bias", "stages.{s}.layer.{b}.sam.gamma.bias2"),
    ("layer{s}.{b}.*", "stages.{s}.layer.{b}.*"),
    ("conv{s}.*", "stages.{s}.conv.*"),
    ("bn{s}.*", "stages.{s}.bn.*"),
];

/// Only the layers are listed: names outside of them are not translated.
const PYTORCH: Table = &[
    ("encoder.layers.{i}.self_attn.in_proj_weight", "encoder.layers.{i}.self_attn.in_proj.weight"),
    ("encoder.layers.{i}.self_attn.in_proj_bias", "encoder.layers.{i}.self_attn.in_proj.bias"),
    ("decoder.layers.{i}.self_attn.in_proj_weight", "decoder.layers.{i}.self_attn.in_proj.weight"),
    ("decoder.layers.{i}.self_attn.in_proj_bias", "decoder.layers.{i}.self_attn.in_proj.bias"),
    ("decoder.layers.{i}.multihead_attn.in_proj_weight", "decoder.layers.{i}.multihead_attn.in_proj.weight"),
    ("decoder.layers.{i}.multihead_attn.in_proj_bias", "decoder.layers.{i}.multihead_attn.in_proj.bias"),
];

const FAIRSEQ: Table = &[
    ("encoder.version", ""),
    ("decoder.version", ""),
    ("encoder.embed_positions._float_tensor", ""),
    ("decoder.embed_positions._float_tensor", ""),
    ("encoder.layers.{i}.self_attn.q_proj.*", "encoder.layers.{i}.self_attn.in_proj.*/0"),
    ("encoder.layers.{i}.self_attn.k_proj.*", "encoder.layers.{i}.self_attn.in_proj.*/1"),
    ("encoder.layers.{i}.self_attn.v_proj.*", "encoder.layers.{i}.self_attn.in_proj.*/2"),
    ("encoder.layers.{i}.self_attn_layer_norm.*", "encoder.layers.{i}.norm1.*"),
    ("encoder.layers.{i}.fc1.*", "encoder.layers.{i}.linear1.*"),
    ("encoder.layers.{i}.fc2.*", "encoder.layers.{i}.linear2.*"),
    ("encoder.layers.{i}.final_layer_norm.*", "encoder.layers.{i}.norm2.*"),
    ("encoder.layer_norm.*", "encoder.norm.*"),
    ("decoder.layers.{i}.self_attn.q_proj.*", "decoder.layers.{i}.self_attn.in_proj.*/0"),
    ("decoder.layers.{i}.self_attn.k_proj.*", "decoder.layers.{i}.self_attn.in_proj.*/1"),
    ("decoder.layers.{i}.self_attn.v_proj.*", "decoder.layers.{i}.self_attn.in_proj.*/2"),
    ("decoder.layers.{i}.self_attn_layer_norm.*", "decoder.layers.{i}.norm1.*"),
    ("decoder.layers.{i}.encoder_attn.q_proj.*", "decoder.layers.{i}.multihead_attn.in_proj.*/0"),
    ("decoder.layers.{i}.encoder_attn.k_proj.*", "decoder.layers.{i}.multihead_attn.in_proj.*/1"),
    ("decoder.layers.{i}.encoder_attn.v_proj.*", "decoder.layers.{i}.multihead_attn.in_proj.*/2"),
    ("decoder.layers.{i}.encoder_attn.out_proj.*", "decoder.layers.{i}.multihead_attn.out_proj.*"),
    ("decoder.layers.{i}.encoder_attn_layer_norm.*", "decoder.layers.{i}.norm2.*"),
    ("decoder.layers.{i}.fc1.*", "decoder.layers.{i}.linear1.*"),
    ("decoder.layers.{i}.fc2.*", "decoder.layers.{i}.linear2.*"),
    ("decoder.layers.{i}.final_layer_norm.*", "decoder.layers.{i}.norm3.*"),
    ("decoder.layer_norm.*", "decoder.norm.*"),
];

/// A fairseq checkpoint repeats a table that is tied; a model of ours has it once.
const FAIRSEQ_TIED: [(&str, &str); 2] = [
    ("decoder.output_projection.weight", "decoder.embed_tokens.weight"),
    ("decoder.embed_tokens.weight", "encoder.embed_tokens.weight"),
];

/// Names by which an upstream is recognised, the most specific first.
const SIGNS: &[(&str, Upstream)] = &[
    ("proposal_generator.rpn_head.", Upstream::Detectron2),
    ("s1.pathway0_stem.", Upstream::Slowfast),
    ("Transformer/", Upstream::Jax),
    ("embedding/kernel", Upstream::Jax),
    (".sam.conv", Upstream::San),
    ("encoder.layer.0.attention.attention.query.", Upstream::HuggingFace),
    ("layers.0.attention.q_proj.", Upstream::HuggingFaceV5),
    ("embeddings.patch_embeddings.projection.", Upstream::HuggingFace),
    ("encoder.layers.encoder_layer_", Upstream::Torchvision),
    ("model.query_position_embeddings.", Upstream::HuggingFace),
    ("transformer.encoder.layers.0.self_attn.in_proj_weight", Upstream::Facebook),
    ("encoder.layers.0.self_attn.k_proj.", Upstream::Fairseq),
    ("encoder.layers.0.self_attn.in_proj_weight", Upstream::Pytorch),
    ("trunk_output.block", Upstream::Torchvision),
    ("blocks.0.gamma_1", Upstream::Facebook),
    (".f.a_bn.", Upstream::Facebook),
    ("model.patch_embed.proj.", Upstream::Facebook),
    ("patch_embed.proj.", Upstream::Timm),
    (".conv1.conv.", Upstream::Timm),
    (".downsample.0.", Upstream::Torchvision),
    ("layer1.0.conv1.", Upstream::Torchvision),
];

/// The upstream of these names; ours if none is recognised.
pub fn recognise<'a>(names: impl Iterator<Item = &'a str> + Clone) -> Upstream {
    let sign = SIGNS.iter().find(|(sign, _)| names.clone().any(|name| name.contains(sign)));
    sign.map_or(Upstream::Regard, |(_, upstream)| *upstream)
}

/// Renames tensors to our names; names that are not in the table stay.
///
/// # Errors
/// When two tensors get the same name, a third of a tensor is missing or shapes do not match; all are listed.
pub fn translate(tensors: Tensors, from: Upstream) -> Result<Tensors, Error> {
    let mut tensors = unwrapped(tensors, from);
    let mut problems = Vec::new();
    let mut table: Vec<(&str, &str)> = match from {
        Upstream::Timm | Upstream::Regard => Vec::new(),
        Upstream::HuggingFace if detr::is_hugging_face(&tensors) => detr::HUGGING_FACE.to_vec(),
        Upstream::HuggingFace if timesformer::is_hugging_face(&tensors) => timesformer::HUGGING_FACE.to_vec(),
        Upstream::HuggingFace => HUGGING_FACE.to_vec(),
        Upstream::HuggingFaceV5 => HUGGING_FACE_V5.to_vec(),
        Upstream::Torchvision => TORCHVISION.to_vec(),
        Upstream::Facebook => FACEBOOK.to_vec(),
        Upstream::San => SAN.to_vec(),
        Upstream::Detectron2 => detection::DETECTRON2.to_vec(),
        Upstream::Slowfast => slowfast::SLOWFAST.to_vec(),
        Upstream::Pytorch => PYTORCH.to_vec(),
        Upstream::Fairseq => {
            for (copy, original) in FAIRSEQ_TIED {
                if tensors.contains_key(copy) && tensors.get(copy) == tensors.get(original) {
                    tensors.remove(copy);
                }
            }
            FAIRSEQ.to_vec()
        }
        Upstream::Jax => {
            tensors = jax::to_our_layouts(tensors, &mut problems);
            jax::TABLE.iter().map(|&(there, here, _)| (there, here)).collect()
        }
    };
    if from == Upstream::Torchvision && tensors.keys().any(|name| name.starts_with("trunk_output.")) {
        table.extend(TORCHVISION_REGNET);
    }
    let detector = from == Upstream::Torchvision && detection::is_torchvision(&tensors);
    if detector {
        table.extend(detection::TORCHVISION);
    }

    let mut ours = Tensors::new();
    let mut thirds: BTreeMap<String, [Option<TensorData>; 3]> = BTreeMap::new();
    for (name, tensor) in tensors {
        let found = table.iter().find_map(|(there, here)| rename(&name, there, here));
        let found = found.or_else(|| detection::tower(&name).filter(|_| detector));
        let new = found.unwrap_or_else(|| name.clone());
        if new.is_empty() {
            continue;
        }
        let taken = match third(&new) {
            Some((whole, part)) => thirds.entry(whole.to_string()).or_default()[part].replace(tensor).is_some(),
            None => ours.insert(new.clone(), tensor).is_some(),
        };
        if taken {
            problems.push(format!("`{name}` and another tensor are both `{new}`"));
        }
    }
    for (name, parts) in thirds {
        match stacked(parts) {
            Ok(whole) if !ours.contains_key(&name) => _ = ours.insert(name, whole),
            Ok(_) => problems.push(format!("`{name}` exists both as one tensor and in parts")),
            Err(reason) => problems.push(format!("`{name}`: {reason}")),
        }
    }
    if from == Upstream::Detectron2 {
        detection::turn_channels(&mut ours);
    }
    if problems.is_empty() { Ok(ours) } else { Err(Error::weights(problems)) }
}

/// Renames the tensors of a ViT, or of a DeiT with a distillation token, to Hugging Face's names.
///
/// # Errors
/// When a tensor has no Hugging Face name; all are listed.
pub(super) fn hugging_face(tensors: &Tensors) -> Result<Tensors, Error> {
    let distilled = tensors.contains_key("dist_token");
    let prefix = if distilled { "deit." } else { "vit." };
    let unused = if distilled { "classifier.*" } else { "cls_classifier.*" };
    let table: Vec<_> = HUGGING_FACE.iter().copied().filter(|(there, _)| *there != unused).collect();
    let theirs = named_by(tensors, &table, |name, shape| Err(format!("`{name}` {shape:?} has no Hugging Face name")))?;
    let prefixed = |name: String| if name.contains("classifier.") { name } else { format!("{prefix}{name}") };
    Ok(theirs.into_iter().map(|(name, tensor)| (prefixed(name), tensor)).collect())
}

/// A table from right to left; `other` names what it does not know.
fn named_by(
    tensors: &Tensors,
    table: &[(&str, &str)],
    other: impl Fn(&str, &[usize]) -> Result<String, String>,
) -> Result<Tensors, Error> {
    let mut theirs = Tensors::new();
    let mut problems = Vec::new();
    for (name, tensor) in tensors {
        let mut named: Vec<(String, Option<usize>)> = table
            .iter()
            .filter(|(_, here)| !here.is_empty())
            .filter_map(|(there, here)| {
                let (here, part) = third(here).map_or((*here, None), |(here, part)| (here, Some(part)));
                Some((rename(name, here, there)?, part))
            })
            .collect();
        if named.is_empty() {
            match other(name, &tensor.shape().to_vec()) {
                Ok(name) => named.push((name, None)),
                Err(problem) => problems.push(problem),
            }
        }
        for (new, part) in named {
            match part.map_or_else(|| Ok(tensor.clone()), |part| slice(tensor, part)) {
                Ok(tensor) => _ = theirs.insert(new, tensor),
                Err(reason) => problems.push(format!("`{name}`: {reason}")),
            }
        }
    }
    if problems.is_empty() { Ok(theirs) } else { Err(Error::weights(problems)) }
}

/// Removes the prefix of a wrapped model: `module.` of parallel training, `vit.` of Hugging Face, `model.` of TimeSformer,
/// `params/` of JAX.
fn unwrapped(mut tensors: Tensors, from: Upstream) -> Tensors {
    if !tensors.is_empty() && tensors.keys().all(|name| name.starts_with("module.")) {
        tensors = without_prefix(tensors, "module.");
    }
    let prefixes: &[&str] = match from {
        Upstream::HuggingFace | Upstream::HuggingFaceV5 => &["vit.", "deit.", "timesformer."],
        Upstream::Facebook => &["model."],
        Upstream::Jax => &["opt/target/", "params/"],
        _ => &[],
    };
    prefixes.iter().fold(tensors, |tensors, prefix| without_prefix(tensors, prefix))
}

fn without_prefix(tensors: Tensors, prefix: &str) -> Tensors {
    let stripped = |name: String| name.strip_prefix(prefix).map(String::from).unwrap_or(name);
    tensors.into_iter().map(|(name, tensor)| (stripped(name), tensor)).collect()
}

/// `("blocks.0.attn.qkv.weight", 1)` of `blocks.0.attn.qkv.weight/1`.
fn third(name: &str) -> Option<(&str, usize)> {
    let (name, part) = name.rsplit_once('/')?;
    let part = part.parse().ok().filter(|part| *part < 3)?;
    Some((name, part))
}

fn stacked(parts: [Option<TensorData>; 3]) -> Result<TensorData, String> {
    let [Some(first), Some(second), Some(third)] = parts else {
        return Err("one of query, key and value is missing".into());
    };
    let shape = first.shape().to_vec();
    if shape.is_empty() || second.shape().to_vec() != shape || third.shape().to_vec() != shape {
        let shapes = [first, second, third].map(|part| format!("{:?}", part.shape().to_vec())).join(", ");
        return Err(format!("query, key and value are {shapes}"));
    }
    let mut whole = shape;
    whole[0] *= 3;
    Ok(TensorData::new([first, second, third].map(|part| floats(&part).to_vec()).concat(), whole))
}

fn slice(tensor: &TensorData, part: usize) -> Result<TensorData, String> {
    let mut shape = tensor.shape().to_vec();
    match shape.first_mut() {
        Some(rows) if rows.is_multiple_of(3) => *rows /= 3,
        _ => return Err(format!("{:?} cannot be split into three", tensor.shape().to_vec())),
    }
    let values = floats(tensor);
    let length = values.len() / 3;
    Ok(TensorData::new(values[part * length..][..length].to_vec(), shape))
}

fn floats(tensor: &TensorData) -> &[f32] {
    tensor.as_slice().expect("tensors were read as f32")
}

#[cfg(test)]
mod tests;
