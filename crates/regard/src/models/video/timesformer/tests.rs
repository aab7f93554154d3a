use super::*;
use crate::cost::{Convention, Ledger};
use crate::device;
use crate::function::cross_entropy;
use crate::pass::{Axes, Geometry};
use crate::testing::{
    Fixture, assert_close, assert_gradient_close, copies, distance, fill, gradients, random, random_on, shapes,
    stirred, values, without_gradient,
};

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

const SCHEMES: [SpaceTime; 5] =
    [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];

fn config(fixture: &Fixture) -> TimesformerConfig {
    TimesformerConfig {
        scheme: match fixture.text("scheme") {
            "space" => SpaceTime::Space,
            "joint" => SpaceTime::Joint,
            "divided" => SpaceTime::Divided,
            "local_global" => SpaceTime::SparseLocalGlobal,
            "axial" => SpaceTime::Axial,
            other => panic!("no scheme `{other}`"),
        },
        frames: fixture.usize("frames"),
        image: serde_json::from_value(fixture.config["image"].clone()).unwrap(),
        patch: fixture.usize("patch"),
        channels: 3,
        classes: fixture.usize("classes"),
        dim: fixture.usize("dim"),
        depth: fixture.usize("depth"),
        heads: fixture.usize("heads"),
        mlp_dim: fixture.usize("hidden"),
        epsilon: 1e-6,
        start: Start::Paper,
    }
}

fn filled(fixture: &Fixture, device: &Device) -> Timesformer {
    let tensors = fixture.checkpoint(|name| name.strip_prefix("model.").map(str::to_string));
    fill(config(fixture).init(device).unwrap(), &tensors).unwrap()
}

/// Logits of a silent and of a recorded pass equal the reference, and so do the recorded weights of the last block.
fn assert_parity(case: &str) {
    let fixture = Fixture::load(case);
    let (model, config) = (filled(&fixture, &device::cpu()), config(&fixture));
    let clips = Clips { pixels: fixture.tensor("io/input") };
    let silent = model.forward(&clips, &mut Pass::silent());
    assert_close(&silent, &fixture.tensor("io/logits"), TOLERANCE);
    let mut pass = Pass::recording();
    assert_close(&model.forward(&clips, &mut pass), &silent, TOLERANCE);

    let trace = pass.into_trace();
    let steps = config.scheme.steps().len();
    assert_eq!(trace.attention().count(), config.depth * steps);
    let ClipGrid { frames, height, width } = config.grid();
    let frames = if config.scheme == SpaceTime::Space { 1 } else { frames };
    let axes = Axes::Clip { prefix: 1, frames, size: [height, width] };
    for (_, geometry) in trace.attention() {
        assert_eq!(*geometry, Geometry::everywhere(axes.clone(), axes.clone()));
    }
    let mut compared = 0;
    for name in fixture.names("io/").filter(|name| name.ends_with(".weights")) {
        let weights = trace.get::<4>(name).unwrap();
        assert!(distance(&values(&weights), fixture.values(&format!("io/{name}"))) < 1e-5, "{case}: {name}");
        compared += 1;
    }
    assert_eq!(compared, steps, "{case}");
}

#[test]
fn the_schemes_of_the_released_code_equal_it_with_their_weights() {
    for case in ["fb_timesformer_space", "fb_timesformer_joint", "fb_timesformer_divided"] {
        assert_parity(case);
    }
}

#[test]
fn local_global_and_axial_attention_equal_their_reference_with_their_weights() {
    for case in ["timesformer_local_global", "timesformer_axial"] {
        assert_parity(case);
    }
}

#[test]
fn gradients_are_those_of_the_references() {
    for case in ["fb_timesformer_divided", "timesformer_local_global", "timesformer_axial"] {
        let (fixture, device) = (Fixture::load(case), device::cpu().autodiff());
        let model = filled(&fixture, &device);
        let clips = Clips { pixels: fixture.tensor_on("io/input", &device) };
        let targets = fixture.indices("io/target").into_iter().map(|target| Some(target as u32)).collect::<Vec<_>>();
        let count = targets.len() as f32;
        let loss = cross_entropy(model.forward(&clips, &mut Pass::silent()), targets, 0.0) / count;
        assert_close(&loss.clone().inner(), &fixture.tensor("io/loss"), 1e-5);
        let ours = gradients(&model, &loss.backward());
        assert!(fixture.names("io/grad.").count() >= 5, "{case}");
        for name in fixture.names("io/grad.") {
            let flat = |values: &[f32]| Tensor::<1>::from_floats(values, &device::cpu());
            let expected = flat(fixture.values(&format!("io/grad.{name}")));
            assert_gradient_close(name, &flat(&ours[name]), &expected);
        }
    }
}

/// The small model with another scheme, and noise on what starts at zero.
fn nano(scheme: SpaceTime) -> Timesformer {
    let config = TimesformerConfig { scheme, depth: 2, ..TimesformerConfig::nano() };
    stirred(config.init(&device::cpu()).unwrap())
}

fn clips(batch: usize) -> Clips {
    Clips { pixels: random([batch, 3, 8, 32, 32], 1) }
}

#[test]
fn only_attention_in_space_alone_gives_the_same_for_a_clip_played_backwards() {
    for scheme in SCHEMES {
        let model = nano(scheme);
        let [forwards, backwards] =
            [clips(2), clips(2).reversed()].map(|clips| values(&model.forward(&clips, &mut Pass::silent())));
        let difference = distance(&forwards, &backwards);
        assert_eq!(difference < 1e-4, scheme == SpaceTime::Space, "{scheme:?}: {difference:e}");
    }
}

#[test]
fn without_times_a_fresh_divided_model_cannot_tell_the_order_of_frames_either() {
    let config = TimesformerConfig { depth: 2, start: Start::Paper, ..TimesformerConfig::nano() };
    let model = config.init(&device::cpu()).unwrap();
    let [forwards, backwards] = [clips(1), clips(1).reversed()].map(|clips| model.forward(&clips, &mut Pass::silent()));
    assert_close(&forwards, &backwards, 1e-5);
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    for scheme in SCHEMES {
        let model = nano(scheme);
        let both = model.forward(&clips(2), &mut Pass::silent());
        for b in 0..2 {
            let one = Clips { pixels: clips(2).pixels.narrow(0, b, 1) };
            assert_close(&both.clone().narrow(0, b, 1), &model.forward(&one, &mut Pass::silent()), TOLERANCE);
        }
    }
}

fn ledger(config: &TimesformerConfig) -> Ledger {
    let model = config.init(&device::cpu()).unwrap();
    let ledger = Ledger::of(&model, [3, config.frames, config.image[0], config.image[1]]);
    for (name, shape) in shapes(&model) {
        let part = name.rsplit_once('.').map_or("", |(part, _)| part);
        let known = ledger.lines().iter().any(|line| line.parameters > 0 && (line.name == part || line.name == name));
        assert!(known, "`{name}` {shape:?} is in no line");
    }
    let own: usize = shapes(&model).values().map(|shape| shape.iter().product::<usize>()).sum();
    assert_eq!(ledger.parameters(), own as u64, "the ledger misses parameters");
    assert!(!model.head.weight.is_initialized(), "counting made the weights");
    ledger
}

/// Exact parameters with 400 classes, by the released code; with the 174 classes of the paper's table they are 85.9, 85.9, 121.4,
/// 121.4 and 156.8 million. Multiply-adds in billions, counted here.
const PUBLISHED: &[(&str, u64, &str)] = &[
    ("timesformer-nano", 131_482, "0.017"),
    ("timesformer-base", 121_566_352, "195.668"),
    ("timesformer-base-space", 86_106_256, "140.505"),
    ("timesformer-base-joint", 86_112_400, "179.563"),
    ("timesformer-base-local-global", 121_566_352, "206.823"),
    ("timesformer-base-axial", 157_020_304, "246.400"),
    ("timesformer-hr", 122_024_080, "1702.296"),
    ("timesformer-l", 121_633_936, "2377.203"),
];

#[test]
fn every_preset_has_the_published_parameters_without_making_them() {
    assert_eq!(PRESETS.len(), PUBLISHED.len());
    for (name, parameters, billions) in PUBLISHED {
        let ledger = ledger(&preset(name).unwrap());
        assert_eq!(ledger.parameters(), *parameters, "{name}");
        let counted = ledger.total(Convention::MultiplyAdds);
        assert_eq!(format!("{:.3}", counted as f64 / 1e9), *billions, "{name}: {counted}");
    }
}

#[test]
fn small_models_of_every_scheme_run_and_send_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for scheme in SCHEMES {
        let config = TimesformerConfig { scheme, ..preset("timesformer-nano").unwrap() };
        let model = stirred(config.init(&device).unwrap());
        let clips = Clips { pixels: random_on([1, 3, 8, 32, 32], 1, &device) };
        let logits = model.forward(&clips, &mut Pass::silent());
        assert_eq!(logits.dims(), [1, 10]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{scheme:?}");
        let gradients = (logits * random_on([1, 10], 2, &device)).sum().backward();
        assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new(), "{scheme:?}");
    }
}

#[test]
fn models_of_the_paper_run() {
    for preset in PRESETS.iter().filter(|preset| preset.paper != "ours") {
        // one block: twelve of the long one are trillions of operations
        let config = TimesformerConfig { depth: 1, ..(preset.config)() };
        let model = config.init(&device::cpu()).unwrap();
        let [rows, columns] = config.image;
        let clips = Clips { pixels: random([1, 3, config.frames, rows, columns], 1) };
        let logits = model.forward(&clips, &mut Pass::silent());
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{}", preset.name);
    }
}

#[test]
fn twelve_blocks_give_finite_numbers() {
    let config = preset("timesformer-base").unwrap();
    let config = TimesformerConfig { image: [64, 48], frames: 3, ..config };
    let mut model = config.init(&device::cpu()).unwrap();
    model.blocks = copies(&model.blocks[0], config.depth);
    let logits = model.forward(&Clips { pixels: random([1, 3, 3, 64, 48], 1) }, &mut Pass::silent());
    assert!(values(&logits).iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_narrow_model_starts_with_louder_weights_and_places_and_the_same_zeros() {
    let deviation = |tensor: Vec<f32>| {
        (tensor.iter().map(|value| f64::from(value * value)).sum::<f64>() / tensor.len() as f64).sqrt()
    };
    for (start, weights, table, times) in [(Start::Paper, 0.02, 0.02, 0.0), (Start::Narrow, 1.0 / 24.0, 0.3, 0.3)] {
        let config = TimesformerConfig { dim: 192, frames: 16, start, ..TimesformerConfig::nano() };
        let model = config.init(&device::cpu()).unwrap();
        let block = &model.blocks[0];
        assert_eq!(deviation(values(&block.temporal_fc.as_ref().unwrap().weight.val())), 0.0);
        assert_eq!(deviation(values(&block.mlp.fc2.weight.val())) == 0.0, start == Start::Narrow);
        for (found, wanted) in [
            (values(&block.attn.qkv.weight.val()), weights),
            (values(&block.temporal_attn.as_ref().unwrap().proj.weight.val()), weights),
            (values(&model.pos_embed.val()), table),
            (values(&model.time_embed.as_ref().unwrap().val()), times),
        ] {
            let found = deviation(found);
            assert!((found - wanted).abs() <= 0.05 * wanted, "{found} for {wanted}");
        }
    }
}

#[test]
#[should_panic(expected = "the clip has 4 frames, times are learned for 8; build the model for the other number")]
fn a_clip_of_another_length_says_what_to_do() {
    let clips = Clips { pixels: random([1, 3, 4, 32, 32], 1) };
    TimesformerConfig::nano().init(&device::cpu()).unwrap().forward(&clips, &mut Pass::silent());
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: TimesformerConfig| config.init(&device::cpu()).unwrap_err().to_string();
    let nano = TimesformerConfig::nano;
    assert_eq!(refusal(TimesformerConfig { frames: 0, ..nano() }), "`frames`: must be from 1 to 65536, got 0");
    assert_eq!(refusal(TimesformerConfig { heads: 5, ..nano() }), "`heads`: must divide dim 48, got 5");
    assert_eq!(refusal(TimesformerConfig { patch: 5, ..nano() }), "`patch`: must divide the image of 32 x 32, got 5");
    let long = refusal(TimesformerConfig { frames: 65536, ..nano() });
    assert_eq!(long, "`frames`: 65536 frames of 4 x 4 patches are more than 65536 tokens");
    assert!(preset("timesformer-nanno").unwrap_err().to_string().contains("`timesformer-nano`"));
}

#[test]
fn a_config_reads_back_and_refuses_unknown_fields() {
    let json = serde_json::to_string(&TimesformerConfig::nano()).unwrap();
    assert!(json.contains(r#""scheme":"divided""#), "{json}");
    assert_eq!(serde_json::from_str::<TimesformerConfig>(&json).unwrap(), TimesformerConfig::nano());
    assert!(serde_json::from_str::<TimesformerConfig>(&json.replace("frames", "length")).is_err());
}
