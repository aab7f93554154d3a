use super::*;
use crate::device;
use crate::testing::{assert_close, assert_gradient_close, assert_gradients_are_differences, noise, random, random_on};
use burn::nn::conv::Conv3dConfig;

const GEOMETRIES: [[[usize; 3]; 3]; 5] = [
    [[1, 1, 1], [1, 1, 1], [0, 0, 0]],
    [[3, 1, 1], [1, 1, 1], [1, 0, 0]],
    [[1, 3, 3], [1, 2, 2], [0, 1, 1]],
    [[3, 3, 3], [2, 2, 2], [1, 1, 1]],
    [[5, 7, 7], [1, 2, 2], [2, 3, 3]],
];

/// Output, and gradients of the inputs, of a function of tensors.
fn run<const D: usize>(shapes: &[&[usize]], of: impl Fn(Vec<Tensor<1>>) -> Tensor<D>) -> (Tensor<D>, Vec<Tensor<1>>) {
    let device = device::cpu().autodiff();
    let inputs: Vec<Tensor<1>> = (1..)
        .zip(shapes)
        .map(|(seed, shape)| random_on([shape.iter().product()], seed, &device).require_grad())
        .collect();
    let out = of(inputs.clone());
    let grads = (out.clone() * random_on(out.dims(), 9, &device)).sum().backward();
    (out.inner(), inputs.iter().map(|input| input.grad(&grads).unwrap()).collect())
}

#[test]
fn convolution_and_its_gradients_are_burns() {
    for [kernel, stride, padding] in GEOMETRIES {
        let clip = [2, 3, 4, 8, 9];
        let weight = [5, 3, kernel[0], kernel[1], kernel[2]];
        let both = |convolve: &dyn Fn(Tensor<5>, Tensor<5>, Tensor<1>) -> Tensor<5>| {
            run(&[&clip, &weight, &[5]], |p| {
                convolve(p[0].clone().reshape(clip), p[1].clone().reshape(weight), p[2].clone())
            })
        };
        let ours = both(&|clip, weight, bias| convolution3d(clip, weight, Some(bias), stride, padding));
        let options = || ConvOptions::new(stride, padding, [1; 3], 1);
        let burns = both(&|clip, weight, bias| conv3d(clip, weight, Some(bias), options()));
        assert_close(&ours.0, &burns.0, 1e-4);
        for (ours, burns) in ours.1.iter().zip(&burns.1) {
            assert_gradient_close("an input", ours, burns);
        }
    }
}

#[test]
fn pools_and_their_gradients_are_burns_in_space_then_in_time() {
    for [kernel, stride, padding] in GEOMETRIES {
        let shape = [2, 3, 6, 8, 9];
        let pool = ClipPool { kernel, stride, padding };
        let ours = run(&[&shape], |p| pool.max(p[0].clone().reshape(shape)));
        let [_, _, size @ ..] = ours.0.dims();
        let burns = run(&[&shape], |p| pool.plain_max(p[0].clone().reshape(shape), size));
        assert_close(&ours.0, &burns.0, 0.0);
        assert_close(&ours.1[0], &burns.1[0], 1e-6);

        let pool = ClipPool { padding: [0; 3], ..pool };
        let ours = run(&[&shape], |p| pool.average(p[0].clone().reshape(shape)));
        let [_, _, size @ ..] = ours.0.dims();
        let burns = run(&[&shape], |p| pool.plain_average(p[0].clone().reshape(shape), size));
        assert_close(&ours.0, &burns.0, 1e-6);
        assert_close(&ours.1[0], &burns.1[0], 1e-6);
    }
}

#[test]
fn what_is_not_fused_is_burns() {
    let clip = random([1, 4, 3, 6, 6], 1);
    let plain = Conv3dConfig::new([4, 4], [1, 3, 3]);
    for config in [plain.clone().with_groups(2), plain.with_dilation([1, 2, 2])] {
        let layer = config.init(&device::cpu());
        assert_close(&layer.convolve(clip.clone()), &layer.forward(clip.clone()), 0.0);
    }
}

#[test]
fn gradients_are_differences() {
    let inputs = [("clip", noise(2 * 2 * 60, 1)), ("weight", noise(3 * 2 * 27, 2)), ("bias", noise(3, 3))];
    for count in [2, 3] {
        assert_gradients_are_differences(&inputs[..count], |p| {
            let (clip, weight) = (p[0].clone().reshape([2, 2, 3, 4, 5]), p[1].clone().reshape([3, 2, 3, 3, 3]));
            convolution3d(clip, weight, p.get(2).cloned(), [1, 2, 2], [1; 3])
        });
    }
    assert_gradients_are_differences(&inputs[..1], |p| {
        let pool = ClipPool { kernel: [2, 3, 2], stride: [1, 1, 2], padding: [0; 3] };
        pool.average(p[0].clone().reshape([2, 2, 3, 4, 5]))
    });
}

#[test]
fn costs_have_the_shapes_of_the_pass() {
    for [kernel, stride, padding] in GEOMETRIES {
        let padded = PaddingConfig3d::Explicit(padding[0], padding[1], padding[2]);
        let layer = Conv3dConfig::new([3, 5], kernel).with_stride(stride).with_padding(padded).init(&device::cpu());
        let clip = random([1, 3, 5, 7, 8], 1);
        let mut ledger = Ledger::default();
        assert_eq!(layer.cost(vec![3, 5, 7, 8], &mut ledger), layer.convolve(clip.clone()).dims()[1..]);
        assert_eq!(ledger.parameters(), 5 * (3 * kernel.iter().product::<usize>() as u64 + 1));
        let pool = ClipPool { kernel, stride, padding };
        assert_eq!(pool.cost(vec![3, 5, 7, 8], &mut ledger), pool.max(clip).dims()[1..]);
    }
}

#[test]
#[should_panic(expected = "convolution: weight has channels 5, clip has channels 3")]
fn a_weight_for_other_channels_is_refused() {
    convolution3d(random([1, 3, 2, 4, 4], 1), random([2, 5, 1, 3, 3], 2), None, [1; 3], [0, 1, 1]);
}

#[test]
#[should_panic(expected = "max pool: no window of 3 with padding 0 and stride 1 fits [2, 4, 4]")]
fn a_window_that_does_not_fit_is_refused() {
    ClipPool { kernel: [3, 1, 1], stride: [1; 3], padding: [0; 3] }.max(random([1, 1, 2, 4, 4], 1));
}
