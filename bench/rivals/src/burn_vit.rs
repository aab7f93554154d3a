//! A ViT of Burn's own modules, as a user of Burn alone would write it.

use burn::module::{Initializer, Module, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Gelu, LayerNorm, LayerNormConfig, Linear, LinearConfig};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::activation::softmax;
use burn::tensor::{Device, Distribution, Int, Tensor};

use crate::{Run, Size};

#[derive(Module, Debug)]
struct Vit {
    patches: Conv2d,
    class_token: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    blocks: Vec<Block>,
    norm: LayerNorm,
    head: Linear,
}

#[derive(Module, Debug)]
struct Block {
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    fc1: Linear,
    gelu: Gelu,
    fc2: Linear,
    heads: usize,
}

impl Vit {
    fn new(size: Size, device: &Device) -> Self {
        let Size { dim, heads, mlp_dim, patch, .. } = size;
        let tokens = (size.image / patch) * (size.image / patch) + 1;
        let small = Initializer::Normal { mean: 0.0, std: 0.02 };
        let norm = || LayerNormConfig::new(dim).with_epsilon(1e-6).init(device);
        let linear = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let block = |_| Block {
            norm1: norm(),
            qkv: linear(dim, 3 * dim),
            proj: linear(dim, dim),
            norm2: norm(),
            fc1: linear(dim, mlp_dim),
            gelu: Gelu::new(),
            fc2: linear(mlp_dim, dim),
            heads,
        };
        Self {
            patches: Conv2dConfig::new([3, dim], [patch, patch]).with_stride([patch, patch]).init(device),
            class_token: small.init([1, 1, dim], device),
            positions: small.init([1, tokens, dim], device),
            blocks: (0..size.depth).map(block).collect(),
            norm: norm(),
            head: linear(dim, size.classes),
        }
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let patches = self.patches.forward(images).flatten::<3>(2, 3).swap_dims(1, 2);
        let [batch, _, dim] = patches.dims();
        let class_token = self.class_token.val().expand([batch, 1, dim]);
        let mut tokens = Tensor::cat(vec![class_token, patches], 1) + self.positions.val();
        for block in &self.blocks {
            tokens = block.forward(tokens);
        }
        self.head.forward(self.norm.forward(tokens).narrow(1, 0, 1).squeeze_dim::<2>(1))
    }
}

impl Block {
    fn forward(&self, tokens: Tensor<3>) -> Tensor<3> {
        let tokens = tokens.clone() + self.attend(self.norm1.forward(tokens));
        let hidden = self.gelu.forward(self.fc1.forward(self.norm2.forward(tokens.clone())));
        tokens + self.fc2.forward(hidden)
    }

    fn attend(&self, tokens: Tensor<3>) -> Tensor<3> {
        let [batch, count, dim] = tokens.dims();
        let width = dim / self.heads;
        let qkv = self.qkv.forward(tokens).reshape([batch, count, 3, self.heads, width]).permute([2, 0, 3, 1, 4]);
        let [query, key, value] = [0, 1, 2].map(|part| qkv.clone().narrow(0, part, 1).squeeze_dim::<4>(0));
        let scores = query.matmul(key.swap_dims(2, 3)).div_scalar((width as f64).sqrt());
        let out = softmax(scores, 3).matmul(value);
        self.proj.forward(out.swap_dims(1, 2).reshape([batch, count, dim]))
    }
}

pub fn parameters(size: Size) -> usize {
    Vit::new(size, &Device::flex()).num_params()
}

fn images(size: Size, batch: usize, device: &Device) -> Tensor<4> {
    Tensor::random([batch, 3, size.image, size.image], Distribution::Normal(0.0, 1.0), device)
}

pub fn inference(size: Size, batch: usize) -> Run {
    let device = Device::flex();
    let (model, images) = (Vit::new(size, &device), images(size, batch, &device));
    Box::new(move || drop(model.forward(images.clone())))
}

pub fn training(size: Size, batch: usize) -> Run {
    let device = Device::flex().autodiff();
    let images = images(size, batch, &device);
    let classes = Tensor::<1, Int>::arange(0..batch as i64, &device).remainder_scalar(10);
    let mut model = Some(Vit::new(size, &device));
    let mut optimiser = AdamWConfig::new().with_weight_decay(0.05).init();
    Box::new(move || {
        let before = model.take().expect("there is always one");
        let loss = CrossEntropyLossConfig::new().init(&device).forward(before.forward(images.clone()), classes.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &before);
        model = Some(optimiser.step(1e-4, before, gradients));
    })
}
