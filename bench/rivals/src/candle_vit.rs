//! The ViT of candle-transformers, with random weights.

use candle_core::{DType, Device, Tensor};
use candle_nn::{Activation, VarBuilder, VarMap};
use candle_transformers::models::vit::{Config, Model};

use std::collections::HashMap;

use crate::{Run, Size};

fn made(size: Size, builder: VarBuilder) -> candle_core::Result<Model> {
    let config = Config {
        hidden_size: size.dim,
        num_hidden_layers: size.depth,
        num_attention_heads: size.heads,
        intermediate_size: size.mlp_dim,
        hidden_act: Activation::Gelu,
        layer_norm_eps: 1e-6,
        image_size: size.image,
        patch_size: size.patch,
        num_channels: 3,
        qkv_bias: true,
    };
    Model::new(&config, size.classes, builder)
}

/// Fresh weights under their names.
fn weights(size: Size) -> HashMap<String, Tensor> {
    let variables = VarMap::new();
    made(size, VarBuilder::from_varmap(&variables, DType::F32, &Device::Cpu)).expect("a size of ours works");
    let variables = variables.data().lock().expect("nobody else has it");
    // a variable would keep what was computed with it, for a backward pass
    variables.iter().map(|(name, variable)| (name.clone(), variable.as_detached_tensor())).collect()
}

pub fn parameters(size: Size) -> usize {
    weights(size).values().map(Tensor::elem_count).sum()
}

pub fn inference(size: Size, batch: usize) -> Run {
    let builder = VarBuilder::from_tensors(weights(size), DType::F32, &Device::Cpu);
    let model = made(size, builder).expect("a size of ours works");
    let images = Tensor::randn(0f32, 1.0, (batch, 3, size.image, size.image), &Device::Cpu).expect("memory");
    Box::new(move || drop(model.forward(&images).expect("shapes fit")))
}
