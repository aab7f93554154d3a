//! Row-wise functions of transformers: fused kernels on the CPU, Burn operations elsewhere.

use burn::module::Param;
use burn::tensor::{Tensor, TensorData, activation};
use regard_kernels::cross_entropy::{CrossEntropy, IGNORE};
use regard_kernels::encoder::Encoder;
use regard_kernels::linear::{Linear, NeedsGrad};
use regard_kernels::{gelu as gelu_kernels, layer_norm as norm_kernels, softmax as softmax_kernels};

use crate::fused::{self, Kernel, Saved};

/// Softmax over the last axis.
pub fn softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    if !fused::runs_on(&x) {
        return activation::softmax(x, D - 1);
    }
    fused::apply(Softmax { width: shape[D - 1], log: false }, [x.into_dispatch()], shape)
}

/// Logarithm of the softmax over the last axis.
pub fn log_softmax<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    if !fused::runs_on(&x) {
        return activation::log_softmax(x, D - 1);
    }
    fused::apply(Softmax { width: shape[D - 1], log: true }, [x.into_dispatch()], shape)
}

/// Normalises the last axis to mean 0 and variance 1, then scales and shifts it: `[.., D], [D], [D] -> [.., D]`.
///
/// # Panics
/// When weight or bias is not as long as the last axis.
pub fn layer_norm<const D: usize>(x: Tensor<D>, weight: Tensor<1>, bias: Tensor<1>, epsilon: f64) -> Tensor<D> {
    let shape = x.dims();
    for (name, parameter) in [("weight", &weight), ("bias", &bias)] {
        let len = parameter.dims()[0];
        assert!(len == shape[D - 1], "layer_norm: {name} has width {len}, input has width {}", shape[D - 1]);
    }
    if fused::runs_on(&x) {
        let inputs = [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()];
        return fused::apply(LayerNorm { epsilon: epsilon as f32 }, inputs, shape);
    }
    let centred = x.clone() - x.mean_dim(D - 1);
    let variance = (centred.clone() * centred.clone()).mean_dim(D - 1);
    centred / variance.add_scalar(epsilon).sqrt() * weight.unsqueeze() + bias.unsqueeze()
}

/// `x W^T + b` along the last axis: `[.., in], [out, in], [out] -> [.., out]`.
///
/// # Panics
/// When the last axis does not have the weight's input width, or the bias not its output width.
pub fn linear<const D: usize>(x: Tensor<D>, weight: Tensor<2>, bias: Option<Tensor<1>>) -> Tensor<D> {
    let mut shape = x.dims();
    let ([outputs, inputs], width) = (weight.dims(), shape[D - 1]);
    assert!(width == inputs, "linear: input has width {width}, weight has width {inputs}");
    if let Some(bias) = &bias {
        let len = bias.dims()[0];
        assert!(len == outputs, "linear: bias has width {len}, weight has {outputs} outputs");
    }
    shape[D - 1] = outputs;
    if fused::runs_on(&x) {
        let kernel = Linear { inputs, outputs };
        return match bias {
            Some(bias) => {
                fused::apply(kernel, [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()], shape)
            }
            None => fused::apply(kernel, [x.into_dispatch(), weight.into_dispatch()], shape),
        };
    }
    let rows = shape[..D - 1].iter().product::<usize>();
    let out = x.reshape([rows, inputs]).matmul(weight.transpose()).reshape(shape);
    match bias {
        Some(bias) => out + bias.unsqueeze(),
        None => out,
    }
}

/// A whole pre-norm block of an encoder, `[B, N, D] -> [B, N, D]`, for tensors that [`fused::runs_on`].
///
/// `norms` are weight and bias of the first and the second norm; `maps` are qkv, proj, fc1 and fc2.
pub(crate) fn encoder_block(
    x: Tensor<3>,
    heads: usize,
    epsilon: f64,
    norms: [&Param<Tensor<1>>; 4],
    maps: [(&Param<Tensor<2>>, &Param<Tensor<1>>); 4],
) -> Tensor<3> {
    let shape = x.dims();
    let inner = maps[2].0.lazy_shape().dims::<2>()[0];
    let kernel = Encoder { tokens: shape[1], dim: shape[2], heads, inner, epsilon: epsilon as f32 };
    let [norm1, norm1_bias, norm2, norm2_bias] = norms.map(|norm| norm.val().into_dispatch());
    let [qkv, proj, fc1, fc2] = maps.map(|(weight, bias)| [weight.val().into_dispatch(), bias.val().into_dispatch()]);
    let [[qkv, qkv_bias], [proj, proj_bias], [fc1, fc1_bias], [fc2, fc2_bias]] = [qkv, proj, fc1, fc2];
    let inputs = [
        x.into_dispatch(),
        norm1,
        norm1_bias,
        qkv,
        qkv_bias,
        proj,
        proj_bias,
        norm2,
        norm2_bias,
        fc1,
        fc1_bias,
        fc2,
        fc2_bias,
    ];
    fused::apply(kernel, inputs, shape)
}

/// The sum of the cross-entropies of rows of logits `[R, V]` with their targets; rows without a target are ignored.
///
/// `smoothing` is the label smoothing: the probability taken from the target and spread evenly over all classes.
///
/// # Panics
/// When the number of targets is not the number of rows, or a target is not a class.
pub fn cross_entropy(logits: Tensor<2>, targets: Vec<Option<u32>>, smoothing: f64) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    assert!(rows == targets.len(), "cross_entropy: {rows} rows of logits, {} targets", targets.len());
    if fused::runs_on(&logits) {
        let targets = targets.iter().map(|target| target.unwrap_or(IGNORE)).collect();
        let kernel = CrossEntropy { classes, targets, smoothing: smoothing as f32 };
        return fused::apply(kernel, [logits.into_dispatch()], [1]);
    }
    let even = (smoothing / classes as f64) as f32;
    let mut wanted = vec![0.0; rows * classes];
    for (row, target) in wanted.chunks_exact_mut(classes).zip(targets) {
        if let Some(target) = target {
            row.fill(even);
            row[target as usize] += 1.0 - smoothing as f32;
        }
    }
    let wanted = Tensor::from_data(TensorData::new(wanted, [rows, classes]), &logits.device());
    (log_softmax(logits) * wanted).sum().neg()
}

/// The exact GELU.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let shape = x.dims();
    if !fused::runs_on(&x) {
        return plain_gelu(x);
    }
    fused::apply(Gelu, [x.into_dispatch()], shape)
}

/// `gelu(x + bias)` along the last axis.
///
/// # Panics
/// When the bias is not as long as the last axis.
pub fn bias_gelu<const D: usize>(x: Tensor<D>, bias: Tensor<1>) -> Tensor<D> {
    let shape = x.dims();
    let len = bias.dims()[0];
    assert!(len == shape[D - 1], "bias_gelu: bias has width {len}, input has width {}", shape[D - 1]);
    if !fused::runs_on(&x) {
        return plain_gelu(x + bias.unsqueeze());
    }
    fused::apply(Gelu, [x.into_dispatch(), bias.into_dispatch()], shape)
}

/// By its definition, because the derivative of Burn's GELU is that of an approximation.
fn plain_gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let twice = x.clone().mul_scalar(std::f64::consts::FRAC_1_SQRT_2).erf().add_scalar(1.0);
    x * twice.mul_scalar(0.5)
}

#[derive(Clone, Debug)]
struct Softmax {
    width: usize,
    log: bool,
}

impl Kernel<1> for Softmax {
    const NEEDS_OUT: bool = true;

    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        let run = if self.log { softmax_kernels::log_softmax } else { softmax_kernels::softmax };
        (run(x, self.width), Vec::new())
    }
    fn backward(&self, _: [&[f32]; 1], saved: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        let run = if self.log { softmax_kernels::log_softmax_backward } else { softmax_kernels::softmax_backward };
        [run(saved.out, grad, self.width)]
    }
}

#[derive(Clone, Debug)]
struct LayerNorm {
    epsilon: f32,
}

impl Kernel<3> for LayerNorm {
    fn forward(&self, [x, weight, bias]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        norm_kernels::layer_norm(x, weight, bias, self.epsilon)
    }
    fn backward(&self, [x, weight, _]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        norm_kernels::layer_norm_backward(x, weight, saved.extra, grad)
    }
}

impl Kernel<2> for Linear {
    fn multiply_adds(&self, [x, ..]: [usize; 2]) -> Option<u64> {
        Some((x * self.outputs) as u64)
    }
    fn forward(&self, [x, weight]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        (Linear::forward(self, x, weight, &[]), Vec::new())
    }
    fn backward(&self, [x, weight]: [&[f32]; 2], saved: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] };
        let [input, weight, _] = Linear::backward(self, x, weight, grad, wanted);
        [input, weight]
    }
}

impl Kernel<3> for Linear {
    fn multiply_adds(&self, [x, ..]: [usize; 3]) -> Option<u64> {
        Some((x * self.outputs) as u64)
    }
    fn forward(&self, [x, weight, bias]: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (Linear::forward(self, x, weight, bias), Vec::new())
    }
    fn backward(&self, [x, weight, _]: [&[f32]; 3], saved: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        let wanted = NeedsGrad { input: saved.needs_grad[0], parameters: saved.needs_grad[1] || saved.needs_grad[2] };
        Linear::backward(self, x, weight, grad, wanted)
    }
}

impl Kernel<1> for CrossEntropy {
    fn forward(&self, [logits]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        let (loss, sums) = CrossEntropy::forward(self, logits);
        (vec![loss], sums)
    }
    fn backward(&self, [logits]: [&[f32]; 1], saved: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [CrossEntropy::backward(self, logits, saved.extra, grad[0])]
    }
}

impl Kernel<13> for Encoder {
    fn multiply_adds(&self, [x, ..]: [usize; 13]) -> Option<u64> {
        let Self { tokens, dim, inner, .. } = *self;
        let maps = x * (4 * dim + 2 * inner);
        Some((maps + 2 * x * tokens) as u64)
    }
    fn forward(&self, [x, parameters @ ..]: [&[f32]; 13]) -> (Vec<f32>, Vec<f32>) {
        Encoder::forward(self, x, parameters)
    }
    fn infer(&self, [x, parameters @ ..]: [&[f32]; 13]) -> Vec<f32> {
        Encoder::infer(self, x, parameters)
    }
    fn backward(&self, [x, parameters @ ..]: [&[f32]; 13], saved: Saved, grad: &[f32]) -> [Vec<f32>; 13] {
        let wanted = saved.needs_grad[1..].contains(&true);
        let (input, grads) = Encoder::backward(self, x, parameters, saved.extra, grad, wanted);
        let mut grads = std::iter::once(input).chain(grads);
        std::array::from_fn(|_| grads.next().expect("an input and twelve parameters"))
    }
}

#[derive(Clone, Debug)]
struct Gelu;

impl Kernel<1> for Gelu {
    fn forward(&self, [x]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (gelu_kernels::gelu(x), Vec::new())
    }
    fn backward(&self, [x]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [gelu_kernels::gelu_backward(x, grad)]
    }
}

impl Kernel<2> for Gelu {
    fn forward(&self, [x, bias]: [&[f32]; 2]) -> (Vec<f32>, Vec<f32>) {
        (gelu_kernels::bias_gelu(x, bias), Vec::new())
    }
    fn backward(&self, [x, bias]: [&[f32]; 2], _: Saved, grad: &[f32]) -> [Vec<f32>; 2] {
        gelu_kernels::bias_gelu_backward(x, bias, grad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random};

    #[test]
    fn they_equal_burns_own() {
        let x = random([3, 4, 21], 1).mul_scalar(4.0);
        let bias = random([21], 2);
        assert_close(&softmax(x.clone()), &activation::softmax(x.clone(), 2), 1e-6);
        assert_close(&log_softmax(x.clone()), &activation::log_softmax(x.clone(), 2), 1e-5);
        assert_close(&gelu(x.clone()), &activation::gelu(x.clone()), 1e-6);
        assert_close(
            &bias_gelu(x.clone(), bias.clone()),
            &activation::gelu(x.clone() + bias.clone().unsqueeze()),
            2e-6,
        );
        let weight = random([7, 21], 3);
        let product = x.clone().reshape([12, 21]).matmul(weight.clone().transpose()).reshape([3, 4, 7]);
        assert_close(&linear(x.clone(), weight.clone(), None), &product, 1e-5);
        let bias = random([7], 4);
        assert_close(&linear(x.clone(), weight, Some(bias.clone())), &(product + bias.unsqueeze()), 1e-5);
        let norm = burn::nn::LayerNormConfig::new(21).init(&crate::device::cpu());
        let ours = layer_norm(x.clone(), norm.gamma.val(), norm.beta.clone().unwrap().val(), 1e-5);
        assert_close(&ours, &norm.forward(x), 1e-5);
    }

    #[test]
    fn the_plain_gelu_is_exact_in_its_gradient_too() {
        assert_close(&plain_gelu(random([50], 1).mul_scalar(4.0)), &gelu(random([50], 1).mul_scalar(4.0)), 1e-6);
        assert_gradients_are_differences(&[("x", noise(30, 2))], |p| plain_gelu(p[0].clone()));
    }

    #[test]
    fn gradients_are_differences() {
        let x = ("x", noise(2 * 3 * 5, 1));
        assert_gradients_are_differences(std::slice::from_ref(&x), |p| softmax(p[0].clone().reshape([2, 3, 5])));
        assert_gradients_are_differences(std::slice::from_ref(&x), |p| log_softmax(p[0].clone().reshape([2, 3, 5])));
        assert_gradients_are_differences(std::slice::from_ref(&x), |p| gelu(p[0].clone().reshape([2, 3, 5])));
        let with_bias = [x.clone(), ("bias", noise(5, 2))];
        assert_gradients_are_differences(&with_bias, |p| bias_gelu(p[0].clone().reshape([2, 3, 5]), p[1].clone()));
        let map = [x.clone(), ("weight", noise(4 * 5, 2)), ("bias", noise(4, 3))];
        for biased in [true, false] {
            assert_gradients_are_differences(&map[..if biased { 3 } else { 2 }], |p| {
                let bias = biased.then(|| p[2].clone());
                linear(p[0].clone().reshape([2, 3, 5]), p[1].clone().reshape([4, 5]), bias)
            });
        }
        assert_gradients_are_differences(&[x, ("weight", noise(5, 2)), ("bias", noise(5, 3))], |p| {
            layer_norm(p[0].clone().reshape([2, 3, 5]), p[1].clone(), p[2].clone(), 0.1)
        });
    }

    #[test]
    fn cross_entropy_is_the_sum_over_rows_that_are_no_padding() {
        let targets = vec![Some(3), None, Some(0)];
        for smoothing in [0.0, 0.1] {
            let x = random([3, 5], 1);
            let chances = log_softmax(x.clone());
            let one = |row: usize, target: usize| {
                let row = chances.clone().narrow(0, row, 1).reshape([5]);
                let gold = row.clone().narrow(0, target, 1).mul_scalar(1.0 - smoothing);
                (gold + row.mean().mul_scalar(smoothing)).neg()
            };
            assert_close(&cross_entropy(x, targets.clone(), smoothing), &(one(0, 3) + one(2, 0)), 1e-5);
            assert_gradients_are_differences(&[("logits", noise(15, 1))], |p| {
                cross_entropy(p[0].clone().reshape([3, 5]), targets.clone(), smoothing)
            });
        }
    }

    #[test]
    #[should_panic(expected = "layer_norm: bias has width 4, input has width 5")]
    fn parameters_of_another_width_are_named() {
        layer_norm(random([2, 5], 1), random([5], 2), random([4], 3), 1e-6);
    }
}
