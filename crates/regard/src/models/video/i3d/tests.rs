use burn::module::{Flag, ModuleMapper, Param};

use super::*;
use crate::cost::Convention;
use crate::device;
use crate::function::cross_entropy;
use crate::pass::{Axes, Geometry};
use crate::testing::{
    Fixture, Tensors, assert_close, assert_gradient_close, distance, fill, gradients, random, random_on, shapes,
    stirred, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

/// Attention scores reach 87 in these fixtures, so that PyTorch's f32 differs from its f64 by 3e-4 in the last map (of values to
/// 7.6), and 5e-5 in the weights.
const TOLERANCE_OF_MAPS: f32 = 6e-4;
const TOLERANCE_OF_WEIGHTS: f32 = 1e-4;

fn config(fixture: &Fixture) -> I3dConfig {
    let places = &fixture.config["places"];
    let in_stage = |stage: usize| -> Vec<[usize; 2]> {
        let blocks = places[format!("s{stage}")].as_array().into_iter().flatten();
        blocks.map(|block| [stage, block.as_u64().unwrap() as usize]).collect()
    };
    I3dConfig {
        kind: serde_json::from_value(fixture.config["arch"].clone()).unwrap(),
        frames: 4,
        image: [32, 64],
        channels: 3,
        classes: fixture.usize("classes"),
        stem: ResidualStem::Large,
        width: fixture.usize("width"),
        layers: serde_json::from_value(fixture.config["depths"].clone()).unwrap(),
        non_local: [in_stage(3), in_stage(4)].concat(),
        affinity: Affinity::EmbeddedGaussian,
        sub_sample: true,
    }
}

/// The checkpoint with our names for the layers of non-local blocks.
fn ours(fixture: &Fixture) -> Tensors {
    fixture.checkpoint(|name| Some(our_name(name)))
}

fn our_name(name: &str) -> String {
    let Some((block, layer)) = name.split_once("_nonlocal") else { return name.into() };
    let layer = [("conv_theta", "theta"), ("conv_phi", "phi"), ("conv_g", "g"), ("conv_out", "output"), ("bn", "norm")]
        .iter()
        .fold(layer.to_string(), |layer, (theirs, ours)| layer.replace(theirs, ours));
    format!("{block}_nonlocal{layer}")
}

#[test]
fn networks_with_non_local_blocks_equal_the_released_code_with_their_weights() {
    for case in ["nonlocal_c2d", "nonlocal_i3d"] {
        let fixture = Fixture::load(case);
        let model = fill(config(&fixture).init(&device::cpu()).unwrap(), &ours(&fixture)).unwrap();
        let clips = Clips { pixels: fixture.tensor("io/input") };
        let silent = model.forward(&clips, &mut Pass::silent());
        assert_close(&silent, &fixture.tensor("io/logits"), TOLERANCE);
        assert_close(&softmax(silent.clone(), 1), &fixture.tensor("io/probabilities"), 1e-5);
        assert_close(&model.probabilities(&clips, &mut Pass::silent()), &softmax(silent.clone(), 1), 1e-5);

        let mut pass = Pass::recording();
        assert_close(&model.forward(&clips, &mut pass), &silent, TOLERANCE);
        let trace = pass.into_trace();
        assert_close(&trace.get::<5>("s5").unwrap(), &fixture.tensor("io/stage5"), TOLERANCE_OF_MAPS);
        let name = "s4.pathway0_nonlocal2.weights";
        assert_close(&trace.get::<3>(name).unwrap(), &fixture.tensor(&format!("io/{name}")), TOLERANCE_OF_WEIGHTS);
        let axes = |size| Axes::Clip { prefix: 0, frames: 2, size };
        assert_eq!(trace.geometry(name), Some(&Geometry::everywhere(axes([2, 4]), axes([1, 2]))));
        assert_eq!(trace.attention().count(), 3);
    }
}

#[test]
fn the_fully_convolutional_test_equals_the_released_code() {
    for case in ["nonlocal_c2d", "nonlocal_i3d"] {
        let fixture = Fixture::load(case);
        let config = I3dConfig { frames: 2, ..config(&fixture) };
        let model = fill(config.init(&device::cpu()).unwrap(), &ours(&fixture)).unwrap();
        let large = Clips { pixels: fixture.tensor("io/input_large") };
        let probabilities = model.probabilities(&large, &mut Pass::silent());
        assert_close(&probabilities, &fixture.tensor("io/probabilities_large"), 1e-5);
    }
}

#[test]
fn gradients_are_those_of_the_released_code() {
    let (fixture, device) = (Fixture::load("nonlocal_i3d"), device::cpu().autodiff());
    // with running statistics, as in the fixture
    let model = fill(config(&fixture).init(&device).unwrap(), &ours(&fixture)).unwrap();
    let model = frozen_norms(model);
    let clips = Clips { pixels: fixture.tensor_on("io/input", &device) };
    let targets = fixture.indices("io/target").into_iter().map(|target| Some(target as u32)).collect();
    let loss = cross_entropy(model.forward(&clips, &mut Pass::silent()), targets, 0.0);
    assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), TOLERANCE);
    let ours = gradients(&model, &loss.backward());
    assert_eq!(fixture.names("io/grad.").count(), 6);
    for name in fixture.names("io/grad.") {
        let flat = |values: &[f32]| Tensor::<1>::from_floats(values, &device::cpu());
        let expected = flat(fixture.values(&format!("io/grad.{name}")));
        assert_gradient_close(name, &flat(&ours[&our_name(name)]), &expected);
    }
}

/// The model whose norms use their running statistics in training too.
fn frozen_norms(model: I3d) -> I3d {
    struct Mapper;
    impl ModuleMapper for Mapper {
        fn map_flag(&mut self, flag: Param<Flag>) -> Param<Flag> {
            flag.with_value(false)
        }
    }
    model.map(&mut Mapper)
}

fn nano(kind: I3dKind, non_local: &[[usize; 2]]) -> I3dConfig {
    I3dConfig { width: 4, layers: [1, 2, 2, 2], ..I3dConfig::nano(kind, non_local) }
}

const PLACES: &[[usize; 2]] = &[[3, 1], [4, 0]];

fn clips(batch: usize) -> Clips {
    Clips { pixels: random([batch, 3, 4, 32, 32], 1) }
}

#[test]
fn a_clip_played_backwards_is_the_same_for_c2d_with_and_without_non_local_blocks_and_not_for_i3d() {
    for (kind, places) in
        [(I3dKind::C2d, &[][..]), (I3dKind::C2d, PLACES), (I3dKind::I3d, &[][..]), (I3dKind::I3d, PLACES)]
    {
        let model = stirred(nano(kind, places).init(&device::cpu()).unwrap());
        let [forwards, backwards] =
            [clips(2), clips(2).reversed()].map(|clips| values(&model.forward(&clips, &mut Pass::silent())));
        let scale = forwards.iter().fold(0f32, |most, logit| most.max(logit.abs()));
        let difference = distance(&forwards, &backwards) / scale;
        assert_eq!(difference < 1e-4, kind == I3dKind::C2d, "{kind:?} {places:?}: {difference:e}");
        assert!(kind == I3dKind::C2d || difference > 1e-3, "{kind:?} {places:?}: {difference:e}");
    }
}

#[test]
fn a_non_local_block_changes_nothing_before_it_learns_and_something_after() {
    let plain = nano(I3dKind::I3d, &[]).init(&device::cpu()).unwrap();
    let with = nano(I3dKind::I3d, PLACES).init(&device::cpu()).unwrap();
    let mut tensors = crate::testing::weights::tensors(&with);
    tensors.extend(crate::testing::weights::tensors(&plain));
    let with = fill(with, &tensors).unwrap();
    let logits = |model: &I3d| model.forward(&clips(1), &mut Pass::silent());
    assert_close(&logits(&with), &logits(&plain), 0.0);
    let mut awake = with.clone();
    for block in awake.s4.pathway0_nonlocal__.iter_mut().flatten() {
        block.norm.gamma = Param::from_tensor(block.norm.gamma.val().ones_like().detach());
    }
    assert_ne!(values(&logits(&awake)), values(&logits(&with)));
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = stirred(nano(I3dKind::I3d, PLACES).init(&device::cpu()).unwrap());
    let both = model.forward(&clips(2), &mut Pass::silent());
    for b in 0..2 {
        let one = Clips { pixels: clips(2).pixels.narrow(0, b, 1) };
        assert_close(&both.clone().narrow(0, b, 1), &model.forward(&one, &mut Pass::silent()), TOLERANCE);
    }
}

#[test]
fn small_models_run_and_send_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for affinity in [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation] {
        let config = I3dConfig { affinity, ..nano(I3dKind::I3d, PLACES) };
        let mut model = stirred(config.init(&device).unwrap());
        // biases that keep the ReLU of pairs active
        for block in [&mut model.s3, &mut model.s4].into_iter().flat_map(|s| s.pathway0_nonlocal__.iter_mut().flatten())
        {
            if let (Some(weight), Some(theta)) = (&mut block.concatenation, &mut block.theta) {
                for parameter in [Some(weight), theta.bias.as_mut()].into_iter().flatten() {
                    *parameter = Param::from_tensor(parameter.val().ones_like().detach()).set_require_grad(true);
                }
            }
        }
        let clips = Clips { pixels: random_on([2, 3, 4, 32, 32], 1, &device) };
        let logits = model.forward(&clips, &mut Pass::silent());
        assert_eq!(logits.dims(), [2, 10]);
        let gradients = (logits * random_on([2, 10], 2, &device)).sum().backward();
        // a shift of all keys does not change the softmax
        let without = without_gradient(&model, &gradients);
        let without: Vec<_> = without.iter().filter(|name| !name.contains("phi.bias")).collect();
        assert_eq!(without, Vec::<&String>::new(), "{affinity:?}");
    }
}

/// Exact parameters with 400 classes, by the released code where it has the network; multiply-adds in billions, counted here.
const PUBLISHED: &[(&str, u64, &str)] = &[
    ("c2d-nano", 222_738, "0.047"),
    ("c2d-nano-nl1", 256_082, "0.055"),
    ("i3d-nano", 261_618, "0.066"),
    ("i3d-nano-nl1", 294_962, "0.073"),
    ("c2d-50", 24_327_632, "19.493"),
    ("c2d-50-nl1", 26_429_392, "20.678"),
    ("c2d-50-nl1-gaussian", 25_379_792, "20.243"),
    ("c2d-50-nl1-dot-product", 26_429_392, "20.678"),
    ("c2d-50-nl1-concatenation", 26_430_416, "20.600"),
    ("c2d-50-nl5", 31_686_096, "27.621"),
    ("c2d-50-nl10", 39_044_560, "35.749"),
    ("i3d-50", 28_043_472, "28.408"),
    ("i3d-50-nl1", 30_145_232, "29.593"),
    ("i3d-50-nl5", 35_401_936, "36.535"),
    ("i3d-50-nl10", 42_760_400, "44.663"),
    ("c2d-101", 43_319_760, "34.342"),
    ("c2d-101-nl5", 50_678_224, "42.470"),
    ("i3d-101", 51_754_192, "46.956"),
    ("i3d-101-nl5", 59_112_656, "55.084"),
];

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PUBLISHED.len());
    for (name, parameters, billions) in PUBLISHED {
        let config = preset(name).unwrap();
        let model = config.init(&device::cpu()).unwrap();
        let [rows, columns] = config.image;
        let ledger = Ledger::of(&model, [3, config.frames, rows, columns]);
        for (name, shape) in shapes(&model).iter().filter(|(name, _)| !name.contains("running")) {
            let part = name.rsplit_once('.').map_or("", |(part, _)| part);
            let known =
                ledger.lines().iter().any(|line| line.parameters > 0 && (line.name == part || line.name == *name));
            assert!(known, "`{name}` {shape:?} is in no line");
        }
        assert!(!model.head.projection.weight.is_initialized(), "counting made the weights");
        let ours = format!("{:.3}", ledger.total(Convention::MultiplyAdds) as f64 / 1e9);
        assert_eq!((ledger.parameters(), ours.as_str()), (*parameters, *billions), "{name}");
    }
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: I3dConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let nano = || I3dConfig::nano(I3dKind::I3d, &[]);
    assert_eq!(refusal(I3dConfig { frames: 1, ..nano() }), "`frames`: must be from 2 to 65536, got 1");
    assert_eq!(refusal(I3dConfig { width: 5000, ..nano() }), "`width`: must be at most 4096, got 5000");
    for places in [vec![[4, 2]], vec![[1, 0]], vec![[3, 0], [3, 0]]] {
        let refusal = refusal(I3dConfig { non_local: places, ..nano() });
        assert!(refusal.starts_with("`non_local`: each place is a stage from 2 to 5"), "{refusal}");
    }
    assert!(preset("i3d-nanno").unwrap_err().to_string().contains("`i3d-nano`"));
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let config = I3dConfig::nano(I3dKind::C2d, PLACES);
    let json = serde_json::to_string(&config).unwrap();
    assert!(json.contains(r#""kind":"c2d""#) && json.contains(r#""non_local":[[3,1],[4,0]]"#), "{json}");
    assert_eq!(serde_json::from_str::<I3dConfig>(&json).unwrap(), config);
    assert!(serde_json::from_str::<I3dConfig>(&json.replace("frames", "length")).is_err());
}
