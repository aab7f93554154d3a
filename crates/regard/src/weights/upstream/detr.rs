//! Names of DETR: those of facebookresearch/detr are ours except for attention, Hugging Face has others.

use super::{FACEBOOK, Table, Upstream, named_by};
use crate::Error;
use crate::weights::Tensors;

/// Its trunk has the names of timm, which are torchvision's, or those of transformers.
pub(super) const HUGGING_FACE: Table = &[
    ("model.backbone.conv_encoder.model.embedder.embedder.convolution.*", "backbone.0.body.conv1.*"),
    ("model.backbone.conv_encoder.model.embedder.embedder.normalization.*", "backbone.0.body.bn1.*"),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.0.convolution.*",
        "backbone.0.body.layer{s+1}.{b}.conv1.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.0.normalization.*",
        "backbone.0.body.layer{s+1}.{b}.bn1.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.1.convolution.*",
        "backbone.0.body.layer{s+1}.{b}.conv2.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.1.normalization.*",
        "backbone.0.body.layer{s+1}.{b}.bn2.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.2.convolution.*",
        "backbone.0.body.layer{s+1}.{b}.conv3.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.layer.2.normalization.*",
        "backbone.0.body.layer{s+1}.{b}.bn3.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.shortcut.convolution.*",
        "backbone.0.body.layer{s+1}.{b}.downsample.0.*",
    ),
    (
        "model.backbone.conv_encoder.model.encoder.stages.{s}.layers.{b}.shortcut.normalization.*",
        "backbone.0.body.layer{s+1}.{b}.downsample.1.*",
    ),
    ("model.backbone.conv_encoder.model.*", "backbone.0.body.*"),
    ("model.backbone.position_embedding.row_embeddings.*", "backbone.1.row_embed.*"),
    ("model.backbone.position_embedding.column_embeddings.*", "backbone.1.col_embed.*"),
    ("model.input_projection.*", "input_proj.*"),
    ("model.query_position_embeddings.*", "query_embed.*"),
    ("model.encoder.layers.{i}.self_attn.q_proj.*", "transformer.encoder.layers.{i}.self_attn.in_proj.*/0"),
    ("model.encoder.layers.{i}.self_attn.k_proj.*", "transformer.encoder.layers.{i}.self_attn.in_proj.*/1"),
    ("model.encoder.layers.{i}.self_attn.v_proj.*", "transformer.encoder.layers.{i}.self_attn.in_proj.*/2"),
    ("model.encoder.layers.{i}.self_attn.out_proj.*", "transformer.encoder.layers.{i}.self_attn.out_proj.*"),
    ("model.encoder.layers.{i}.self_attn_layer_norm.*", "transformer.encoder.layers.{i}.norm1.*"),
    ("model.encoder.layers.{i}.fc1.*", "transformer.encoder.layers.{i}.linear1.*"),
    ("model.encoder.layers.{i}.fc2.*", "transformer.encoder.layers.{i}.linear2.*"),
    ("model.encoder.layers.{i}.final_layer_norm.*", "transformer.encoder.layers.{i}.norm2.*"),
    ("model.decoder.layers.{i}.self_attn.q_proj.*", "transformer.decoder.layers.{i}.self_attn.in_proj.*/0"),
    ("model.decoder.layers.{i}.self_attn.k_proj.*", "transformer.decoder.layers.{i}.self_attn.in_proj.*/1"),
    ("model.decoder.layers.{i}.self_attn.v_proj.*", "transformer.decoder.layers.{i}.self_attn.in_proj.*/2"),
    ("model.decoder.layers.{i}.self_attn.out_proj.*", "transformer.decoder.layers.{i}.self_attn.out_proj.*"),
    ("model.decoder.layers.{i}.self_attn_layer_norm.*", "transformer.decoder.layers.{i}.norm1.*"),
    ("model.decoder.layers.{i}.encoder_attn.q_proj.*", "transformer.decoder.layers.{i}.multihead_attn.in_proj.*/0"),
    ("model.decoder.layers.{i}.encoder_attn.k_proj.*", "transformer.decoder.layers.{i}.multihead_attn.in_proj.*/1"),
    ("model.decoder.layers.{i}.encoder_attn.v_proj.*", "transformer.decoder.layers.{i}.multihead_attn.in_proj.*/2"),
    ("model.decoder.layers.{i}.encoder_attn.out_proj.*", "transformer.decoder.layers.{i}.multihead_attn.out_proj.*"),
    ("model.decoder.layers.{i}.encoder_attn_layer_norm.*", "transformer.decoder.layers.{i}.norm2.*"),
    ("model.decoder.layers.{i}.fc1.*", "transformer.decoder.layers.{i}.linear1.*"),
    ("model.decoder.layers.{i}.fc2.*", "transformer.decoder.layers.{i}.linear2.*"),
    ("model.decoder.layers.{i}.final_layer_norm.*", "transformer.decoder.layers.{i}.norm3.*"),
    ("model.decoder.layernorm.*", "transformer.decoder.norm.*"),
    ("class_labels_classifier.*", "class_embed.*"),
    ("bbox_predictor.layers.{i}.*", "bbox_embed.layers.{i}.*"),
];

/// Whether these are tensors of Hugging Face's DETR.
pub(super) fn is_hugging_face(tensors: &Tensors) -> bool {
    tensors.keys().any(|name| name.starts_with("model.query_position_embeddings."))
}

/// The tensors of a DETR under the names of facebookresearch/detr or Hugging Face, where the trunk has those of timm.
///
/// # Errors
/// When a tensor has no name there, as the reference points of queries; all are listed.
pub(super) fn to_names(tensors: &Tensors, to: Upstream) -> Result<Tensors, Error> {
    match to {
        Upstream::Facebook => named_by(tensors, FACEBOOK, |name, shape| {
            let known = !name.starts_with("reference.");
            if known { Ok(name.to_string()) } else { Err(format!("`{name}` {shape:?} has no facebookresearch name")) }
        }),
        Upstream::HuggingFace => to_hugging_face(tensors, |there| !is_transformers_trunk(there)),
        other => Err(Error::config("to", format!("a DETR has names of facebook or hugging-face, not of {other:?}"))),
    }
}

/// The tensors of a DETR under the names of Hugging Face, where the trunk has those of transformers: it builds other trunks
/// than ResNet-50 and ResNet-101 itself.
///
/// # Errors
/// When a tensor has no name there; all are listed.
pub(in crate::weights) fn to_transformers_names(tensors: &Tensors) -> Result<Tensors, Error> {
    to_hugging_face(tensors, |there| there != TIMM_TRUNK)
}

/// The whole trunk, as timm names it.
const TIMM_TRUNK: &str = "model.backbone.conv_encoder.model.*";

fn is_transformers_trunk(there: &str) -> bool {
    there.contains(".model.embedder.") || there.contains(".model.encoder.stages.")
}

fn to_hugging_face(tensors: &Tensors, fits: impl Fn(&str) -> bool) -> Result<Tensors, Error> {
    let table: Vec<_> = HUGGING_FACE.iter().copied().filter(|(there, _)| fits(there)).collect();
    named_by(tensors, &table, |name, shape| Err(format!("`{name}` {shape:?} has no Hugging Face name")))
}
