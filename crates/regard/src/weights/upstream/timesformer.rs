//! Names of TimeSformer: those of facebookresearch/TimeSformer are ours after `model.`, Hugging Face has others.

use super::Table;
use crate::weights::Tensors;

/// After the prefix `timesformer.`.
pub(super) const HUGGING_FACE: Table = &[
    ("embeddings.cls_token", "cls_token"),
    ("embeddings.position_embeddings", "pos_embed"),
    ("embeddings.time_embeddings", "time_embed"),
    ("embeddings.patch_embeddings.projection.*", "patch_embed.proj.*"),
    ("encoder.layer.{i}.temporal_layernorm.*", "blocks.{i}.temporal_norm1.*"),
    ("encoder.layer.{i}.temporal_attention.attention.qkv.*", "blocks.{i}.temporal_attn.qkv.*"),
    ("encoder.layer.{i}.temporal_attention.output.dense.*", "blocks.{i}.temporal_attn.proj.*"),
    ("encoder.layer.{i}.temporal_dense.*", "blocks.{i}.temporal_fc.*"),
    ("encoder.layer.{i}.layernorm_before.*", "blocks.{i}.norm1.*"),
    ("encoder.layer.{i}.attention.attention.qkv.*", "blocks.{i}.attn.qkv.*"),
    ("encoder.layer.{i}.attention.output.dense.*", "blocks.{i}.attn.proj.*"),
    ("encoder.layer.{i}.layernorm_after.*", "blocks.{i}.norm2.*"),
    ("encoder.layer.{i}.intermediate.dense.*", "blocks.{i}.mlp.fc1.*"),
    ("encoder.layer.{i}.output.dense.*", "blocks.{i}.mlp.fc2.*"),
    ("layernorm.*", "norm.*"),
    ("classifier.*", "head.*"),
];

/// Whether these are tensors of Hugging Face's TimeSformer, whose queries, keys and values are one tensor.
pub(super) fn is_hugging_face(tensors: &Tensors) -> bool {
    tensors.keys().any(|name| name.contains(".attention.attention.qkv."))
}
