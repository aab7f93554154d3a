use super::*;
use crate::device;
use crate::testing::{
    assert_close, assert_gradients_are_differences, assert_paths_agree, noise, random, random_on, values, weights,
};

/// A norm that does something, and whose running moments say something.
fn norm(width: usize, device: &Device) -> BatchNorm {
    let mut norm = BatchNorm::new(width, device);
    norm.gamma = Param::from_tensor(random_on([width], 11, device).add_scalar(1.5));
    norm.beta = Param::from_tensor(random_on([width], 12, device));
    norm.running_mean.set(random_on([width], 13, device));
    norm.running_var.set(random_on([width], 14, device).add_scalar(1.5));
    norm
}

#[test]
fn training_normalises_by_the_biased_variance_and_remembers_the_unbiased_one() {
    // mean 3, squares around it 4 + 1 + 0 + 9: biased variance 14 / 4, unbiased 14 / 3
    let device = device::cpu().autodiff();
    let norm = BatchNorm::new(1, &device);
    let x = Tensor::<3>::from_floats([[[1.0, 2.0]], [[3.0, 6.0]]], &device);
    let deviation = 3.5f32.sqrt();
    let expected = Tensor::from_floats([[[-2.0, -1.0]], [[0.0, 3.0]]], &device).div_scalar(deviation);
    assert_close(&norm.forward(x.clone()), &expected, 1e-5);
    assert_close(&norm.running_mean.value(), &Tensor::from_floats([0.1 * 3.0], &device), 1e-6);
    assert_close(&norm.running_var.value(), &Tensor::from_floats([0.9 + 0.1 * 14.0 / 3.0], &device), 1e-6);
    norm.forward(x);
    assert_close(&norm.running_mean.value(), &Tensor::from_floats([0.9 * 0.3 + 0.1 * 3.0], &device), 1e-6);
}

#[test]
fn a_single_value_leaves_no_infinity_behind() {
    let device = device::cpu().autodiff();
    let norm = BatchNorm::new(2, &device);
    assert_close(&norm.forward(random_on([1, 2], 1, &device)), &Tensor::zeros([1, 2], &device), 1e-6);
    assert_close(&norm.running_var.value(), &Tensor::from_floats([0.9, 0.9], &device), 1e-6);
}

#[test]
fn what_is_saved_right_after_a_forward_pass_is_the_newest() {
    let device = device::cpu().autodiff();
    let norm = BatchNorm { momentum: 1.0, ..BatchNorm::new(3, &device) };
    for seed in [1, 2] {
        let x = random_on::<2>([50, 3], seed, &device);
        norm.forward(x.clone());
        let saved = weights::tensors(&norm);
        let mean = x.mean_dim(0).reshape([3]);
        assert_close(&Tensor::<1>::from_data(saved["running_mean"].clone(), &device), &mean, 1e-6);
        assert_eq!(saved["running_mean"], weights::tensors(&norm.valid())["running_mean"]);
        assert_eq!(saved["running_var"], weights::tensors(&norm.valid())["running_var"]);
    }
}

#[test]
fn a_copy_has_running_moments_of_its_own() {
    let device = device::cpu().autodiff();
    let norm = norm(3, &device);
    let before = weights::tensors(&norm);
    let copy = norm.clone();
    copy.forward(random_on([4, 3, 5], 1, &device));
    assert_eq!(weights::tensors(&norm), before);
    assert_ne!(weights::tensors(&copy), before);
    let zeros = before.keys().map(|name| (name.clone(), TensorData::new(vec![0f32; 3], [3]))).collect();
    weights::fill(norm.clone(), &zeros).unwrap();
    assert_eq!(weights::tensors(&norm), before, "filling a copy leaves the original alone");
}

#[test]
fn frozen_on_a_training_device_it_evaluates_and_remembers_nothing() {
    let (device, plain) = (device::cpu().autodiff(), device::cpu());
    let frozen = norm(3, &device).freeze();
    let before = weights::tensors(&frozen);
    let x = random([4, 3, 5], 1).mul_scalar(7.0);
    let out = frozen.forward(Tensor::from_data(x.to_data(), &device));
    assert_close(&out.inner(), &norm(3, &plain).forward(x.clone()), 0.0);
    assert_eq!(weights::tensors(&frozen), before);
    let thawed = frozen.unfreeze();
    thawed.forward(Tensor::<3>::from_data(x.to_data(), &device));
    assert_ne!(weights::tensors(&thawed), before);
}

#[test]
fn evaluation_is_a_line_through_the_running_moments() {
    let norm = norm(3, &device::cpu());
    let x = random([2, 3, 4, 5], 1);
    let channel = |values: Tensor<1>| values.reshape([1, 3, 1, 1]);
    let deviation = norm.running_var.value().add_scalar(norm.epsilon).sqrt();
    let normal = (x.clone() - channel(norm.running_mean.value())) / channel(deviation);
    let expected = normal * channel(norm.gamma.val()) + channel(norm.beta.val());
    assert_close(&norm.forward(x), &expected, 1e-5);
}

#[test]
fn the_kernel_and_burns_operations_agree() {
    type Values = Vec<(&'static str, Vec<f32>)>;
    fn run<const D: usize>(norm: &BatchNorm, x: Tensor<D>, after: Activation, plain: bool) -> Values {
        let x = x.require_grad();
        let out = match (after, plain) {
            (Activation::Identity, true) => norm.plain(x.clone()),
            (Activation::Relu, true) => relu(norm.plain(x.clone())),
            (Activation::Identity, false) => norm.forward(x.clone()),
            (Activation::Relu, false) => norm.forward_relu(x.clone()),
        };
        let seed = random_on(out.dims(), 9, &out.device());
        let grads = (out.clone() * seed).sum().backward();
        vec![
            ("out", values(&out)),
            ("input", values(&x.grad(&grads).unwrap())),
            ("gamma", norm.gamma.val().grad(&grads).map_or(Vec::new(), |grad| values(&grad))),
            ("beta", norm.beta.val().grad(&grads).map_or(Vec::new(), |grad| values(&grad))),
            ("running_mean", values(&norm.running_mean.value())),
            ("running_var", values(&norm.running_var.value())),
        ]
    }
    fn check<const D: usize>(shape: [usize; D]) {
        let device = device::cpu().autodiff();
        for frozen in [false, true] {
            let fresh = || if frozen { norm(shape[1], &device).freeze() } else { norm(shape[1], &device) };
            for after in [Activation::Identity, Activation::Relu] {
                let [fused, plain] =
                    [false, true].map(|plain| run(&fresh(), random_on(shape, 1, &device), after, plain));
                assert_paths_agree(&format!("{shape:?}, frozen {frozen}, {after:?}"), &fused, &plain);
            }
        }
    }
    check([6, 5]);
    check([3, 4, 7]);
    check([2, 3, 5, 6]);
    check([2, 3, 2, 3, 4]);
}

#[test]
fn gradients_are_differences() {
    // the operator is asked without a graph too, where a norm evaluates: training by hand, from the kernel
    let inputs = [("x", noise(4 * 3 * 5, 1)), ("gamma", noise(3, 2)), ("beta", noise(3, 3))];
    assert_gradients_are_differences(&inputs, |p| {
        let training = device::cpu().autodiff();
        let norms = NormStatistics::new([&BatchNorm::new(3, &training)], &training).unwrap();
        let norm = kernels::BatchNorm { pixels: 5, epsilon: 0.1, activation: Activation::Identity };
        let kernel = Fused { norm, norms };
        let [x, gamma, beta] = [0, 1, 2].map(|index| p[index].clone().into_dispatch());
        fused::apply::<3, 3>(kernel, [x, gamma, beta], [4, 3, 5])
    });
}

#[test]
#[should_panic(expected = "batch_norm: input has channels 4, weight has channels 3")]
fn other_channels_are_refused() {
    BatchNorm::new(3, &device::cpu()).forward(random([2, 4, 5], 1));
}
