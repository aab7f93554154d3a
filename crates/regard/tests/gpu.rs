//! Every operator on the GPU device against the CPU kernels: `./test gpu`. Without a graphics card it runs on a
//! software Vulkan driver.

use burn::module::Module;
use burn::tensor::{Bool, Device, Tensor, TensorData};
use regard::attention::{
    AdditiveWeights, Affinity, ClipGrid, DotProduct, Gamma, Local, PairPosition, PairRelation, Pairwise, PatchRelation,
    Patchwise, Relative, SpaceTime, Stem, additive, dot_product, local, pairwise, patchwise, position, stem,
};
use regard::layers::NonLocalConfig;
use regard::{Pass, device, function};
use regard_kernels::naive::noise;

/// Two devices that should agree: the kernels on the first, plain Burn operations on the second.
fn devices() -> [Device; 2] {
    [device::cpu(), device::by_name("wgpu").expect("built with wgpu")]
}

fn random<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(noise(shape.iter().product(), seed), shape.to_vec()), device)
}

/// Runs an operator on both devices, forward, and backward into its first input; both must agree to 1e-4.
fn agree<const I: usize, const O: usize>(
    name: &str,
    shape: [usize; I],
    operator: impl Fn(Tensor<I>, &Device) -> Tensor<O>,
) {
    let run = |device: Device| {
        let out = operator(random(shape, 1, &device), &device);
        let training = device.autodiff();
        let input = random(shape, 1, &training).require_grad();
        let tracked = operator(input.clone(), &training);
        let seed = random(tracked.dims(), 2, &training);
        let grads = (tracked * seed).sum().backward();
        let grad = input.grad(&grads).expect("the gradient reaches the input");
        [out.into_data(), grad.into_data()].map(|data| data.iter::<f32>().collect::<Vec<_>>())
    };
    let [cpu, gpu] = devices().map(run);
    for (what, (cpu, gpu)) in ["output", "gradient"].iter().zip(cpu.iter().zip(&gpu)) {
        let largest = cpu.iter().fold(1.0f32, |a, x| a.max(x.abs()));
        let error = cpu.iter().zip(gpu).map(|(c, g)| (c - g).abs()).fold(0.0, f32::max) / largest;
        assert!(error < 1e-4, "{name}: {what} differs by {error:e}");
    }
}

#[test]
fn gpu_row_functions_equal_the_kernels() {
    agree("softmax", [3, 4, 21], |x, _| function::softmax(x));
    agree("log_softmax", [3, 4, 21], |x, _| function::log_softmax(x));
    agree("gelu", [3, 4, 21], |x, _| function::gelu(x));
    agree("bias_gelu", [3, 4, 21], |x, d| function::bias_gelu(x, random([21], 3, d)));
    agree("layer_norm", [3, 4, 21], |x, d| function::layer_norm(x, random([21], 3, d), random([21], 4, d), 1e-6));
}

#[test]
fn gpu_dot_product_and_additive_attention_equal_the_kernels() {
    agree("dot_product", [2, 3, 7, 8], |query, d| {
        let hidden: Vec<bool> = (0..18).map(|i| i % 4 == 1).collect();
        let padding: Tensor<2, Bool> = Tensor::from_data(TensorData::new(hidden, [2, 9]), d);
        let options =
            DotProduct { causal: true, padding: Some(padding), bias: Some(random([1, 3, 7, 9], 5, d)), scale: None };
        dot_product(query, random([2, 3, 9, 8], 3, d), random([2, 3, 9, 5], 4, d), &options, &mut Pass::silent()).out
    });
    agree("additive", [2, 3, 6], |query, d| {
        let weights =
            AdditiveWeights { query: random([5, 6], 6, d), key: random([5, 4], 7, d), energy: random([5], 8, d) };
        additive(query, random([2, 7, 4], 3, d), random([2, 7, 4], 4, d), &weights, None, &mut Pass::silent()).out
    });
}

#[test]
fn gpu_window_attention_equals_the_kernels() {
    for window in [3, 4, 7] {
        agree("local", [2, 8, 6, 7], |query, d| {
            let relative = Some(Relative { rows: random([2, 2, window], 5, d), columns: random([2, 2, window], 6, d) });
            let options = Local { heads: 2, window, relative, scale: Some(0.7) };
            local(query, random([2, 8, 6, 7], 3, d), random([2, 8, 6, 7], 4, d), &options, &mut Pass::silent()).out
        });
    }
    agree("stem", [2, 8, 8, 8], |query, d| {
        let options = Stem { heads: 2, block: 4, relative: None, scale: None };
        let (key, values) = (random([2, 8, 8, 8], 3, d), random([2, 3, 8, 8, 8], 4, d));
        stem(query, key, values, random([3, 4, 4], 5, d), &options, &mut Pass::silent()).out
    });
}

#[test]
fn gpu_vector_attention_equals_the_kernels() {
    let [cpu, _] = devices();
    let pairs = [
        PairRelation::Summation,
        PairRelation::Subtraction,
        PairRelation::Concatenation,
        PairRelation::Hadamard,
        PairRelation::Dot,
    ];
    for relation in pairs {
        for place in [PairPosition::Relative, PairPosition::Absolute] {
            let gamma = Gamma::new(relation.channels(3) + 2, 4, 2, &cpu);
            agree("pairwise", [2, 3, 6, 7], |phi, d| {
                let options = Pairwise { relation, position: place, window: 5 };
                let (psi, beta) = (random([2, 3, 6, 7], 3, d), random([2, 4, 6, 7], 4, d));
                let (planes, gamma) = (position::absolute(6, 7, d), gamma.clone().to_device(d));
                pairwise(phi, psi, beta, Some(planes), &gamma, &options, &mut Pass::silent()).out
            });
        }
    }
    for relation in [PatchRelation::Star, PatchRelation::Clique, PatchRelation::Concatenation] {
        let gamma = Gamma::new(relation.channels(3, 3, 3), 4, 2 * 9, &cpu);
        agree("patchwise", [2, 3, 6, 7], |phi, d| {
            let options = Patchwise { relation, window: 3 };
            let (psi, beta) = (random([2, 3, 6, 7], 3, d), random([2, 4, 6, 7], 4, d));
            let gamma = gamma.clone().to_device(d);
            patchwise(Some(phi), psi, beta, &gamma, &options, &mut Pass::silent()).out
        });
    }
}

#[test]
fn gpu_non_local_and_space_time_attention_equal_the_kernels() {
    let [cpu, _] = devices();
    for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation] {
        let config = NonLocalConfig { affinity, sub_sample: true, ..NonLocalConfig::new(4, 2) };
        let block = config.init(&cpu).expect("the configuration is valid");
        agree("non_local", [2, 4, 6, 8], |x, d| block.clone().to_device(d).forward(x, &mut Pass::silent()).out);
    }
    let grid = ClipGrid { frames: 2, height: 4, width: 4 };
    let shape = [1, 2, 33, 4];
    let schemes =
        [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];
    for (scheme, step) in schemes.iter().flat_map(|scheme| scheme.steps().iter().map(move |step| (scheme, step))) {
        agree(&format!("{scheme:?} {step:?}"), shape, |query, d| {
            step.attend(grid, query, random(shape, 3, d), random(shape, 4, d), &mut Pass::silent()).out
        });
    }
}

#[test]
fn gpu_resampled_positions_equal_the_cpu() {
    agree("resample", [1, 17, 6], |x, _| position::resample(x, [4, 4], [6, 8], 1));
}
