//! Names and layouts in the `.npz` files of Google's vision transformers.
//! google-research/vision_transformer, and its successor `big_vision`, which numbers the parts of a block from zero.
//!
//! A matrix there is `[in, out]`, with an axis for heads: `[D, A, K]` into attention and `[A, K, D]` out of it.

use burn::tensor::{Tensor, TensorData};

use super::Tensors;
use super::rename::rename;
use crate::device;

/// The layout of an array there, and with it the conversion to ours.
#[derive(Clone, Copy, Debug)]
pub(super) enum JaxLayout {
    /// The same as ours.
    Same,
    /// Flattened to a vector: `[A, K] -> [D]`.
    Flat,
    /// `[in, ...] -> [out, in]`, outputs flattened.
    Into,
    /// `[..., out] -> [out, in]`, inputs flattened.
    OutOf,
    /// `[P, P, C, D] -> [D, C, P, P]`.
    Convolution,
}

use JaxLayout::{Convolution, Flat, Into, OutOf, Same};

/// Their name, our name, their layout. `/0`, `/1` and `/2` are thirds of one tensor.
#[rustfmt::skip]
pub(super) const TABLE: &[(&str, &str, JaxLayout)] = &[
    ("cls", "cls_token", Same),
    ("embedding/kernel", "patch_embed.proj.weight", Convolution),
    ("embedding/bias", "patch_embed.proj.bias", Same),
    ("Transformer/posembed_input/pos_embedding", "pos_embed", Same),
    ("pos_embedding", "pos_embed", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_0/scale", "blocks.{i}.norm1.weight", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_0/bias", "blocks.{i}.norm1.bias", Same),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/query/kernel", "blocks.{i}.attn.qkv.weight/0", Into),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/key/kernel", "blocks.{i}.attn.qkv.weight/1", Into),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/value/kernel", "blocks.{i}.attn.qkv.weight/2", Into),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/query/bias", "blocks.{i}.attn.qkv.bias/0", Flat),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/key/bias", "blocks.{i}.attn.qkv.bias/1", Flat),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/value/bias", "blocks.{i}.attn.qkv.bias/2", Flat),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/out/kernel", "blocks.{i}.attn.proj.weight", OutOf),
    ("Transformer/encoderblock_{i}/MultiHeadDotProductAttention_{n}/out/bias", "blocks.{i}.attn.proj.bias", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_2/scale", "blocks.{i}.norm2.weight", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_2/bias", "blocks.{i}.norm2.bias", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_1/scale", "blocks.{i}.norm2.weight", Same),
    ("Transformer/encoderblock_{i}/LayerNorm_1/bias", "blocks.{i}.norm2.bias", Same),
    ("Transformer/encoderblock_{i}/MlpBlock_{n}/Dense_0/kernel", "blocks.{i}.mlp.fc1.weight", OutOf),
    ("Transformer/encoderblock_{i}/MlpBlock_{n}/Dense_0/bias", "blocks.{i}.mlp.fc1.bias", Same),
    ("Transformer/encoderblock_{i}/MlpBlock_{n}/Dense_1/kernel", "blocks.{i}.mlp.fc2.weight", OutOf),
    ("Transformer/encoderblock_{i}/MlpBlock_{n}/Dense_1/bias", "blocks.{i}.mlp.fc2.bias", Same),
    ("Transformer/encoder_norm/scale", "norm.weight", Same),
    ("Transformer/encoder_norm/bias", "norm.bias", Same),
    ("head/kernel", "head.weight", OutOf),
    ("head/bias", "head.bias", Same),
];

/// Converts the arrays to our layouts, under their old names.
pub(super) fn to_our_layouts(tensors: Tensors, problems: &mut Vec<String>) -> Tensors {
    let mut ours = Tensors::new();
    for (name, tensor) in tensors {
        let layout = TABLE.iter().find(|(there, _, _)| rename(&name, there, "").is_some()).map_or(Same, |row| row.2);
        let shape = tensor.shape().to_vec();
        match to_our_layout(tensor, layout) {
            Some(tensor) => _ = ours.insert(name, tensor),
            None => problems.push(format!("`{name}` is {shape:?}, which is not a known layout of JAX")),
        }
    }
    ours
}

fn to_our_layout(tensor: TensorData, layout: JaxLayout) -> Option<TensorData> {
    let shape = tensor.shape().to_vec();
    let matrix = |tensor, inputs: &[usize], outputs: &[usize]| {
        let matrix = reshaped(tensor, vec![inputs.iter().product(), outputs.iter().product()]);
        Tensor::<2>::from_data(matrix, &device::cpu()).transpose().into_data()
    };
    match (layout, shape.as_slice()) {
        (Same, _) => Some(tensor),
        (Flat, sides) => Some(reshaped(tensor, vec![sides.iter().product()])),
        (Into, [inputs, outputs @ ..]) => Some(matrix(tensor, &[*inputs], outputs)),
        (OutOf, [inputs @ .., outputs]) => Some(matrix(tensor, inputs, &[*outputs])),
        (Convolution, [_, _, _, _]) => {
            Some(Tensor::<4>::from_data(tensor, &device::cpu()).permute([3, 2, 0, 1]).into_data())
        }
        (Into | OutOf | Convolution, _) => None,
    }
}

fn reshaped(tensor: TensorData, shape: Vec<usize>) -> TensorData {
    let (bytes, _, dtype) = tensor.into_parts();
    TensorData::from_bytes(bytes, shape, dtype)
}
