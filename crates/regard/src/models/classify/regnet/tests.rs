use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{Fixture, assert_close, random, random_on, values, weights, without_gradient};

fn ledger(config: &RegNetConfig) -> Ledger {
    let [rows, columns] = config.image;
    Ledger::of(&config.init(&device::cpu()).unwrap(), [config.channels, rows, columns])
}

fn tiny() -> RegNetConfig {
    RegNetConfig { image: [64, 64], classes: 10, ..RegNetConfig::imagenet(8, 16, [16.0, 2.0], 8) }
}

#[test]
fn five_numbers_give_the_stages_of_the_paper() {
    let stages = |config: &RegNetConfig| -> Vec<(usize, usize, usize)> {
        config.stages().iter().map(|stage| (stage.width, stage.blocks, stage.group)).collect()
    };
    let expected = [
        [(128, 2, 64), (192, 6, 64), (512, 12, 64), (1088, 2, 64)],
        [(168, 2, 56), (448, 4, 56), (896, 10, 56), (2016, 1, 56)],
        [(224, 2, 112), (448, 4, 112), (1232, 11, 112), (3024, 1, 112)],
    ];
    for (preset, expected) in PRESETS.iter().zip(expected) {
        assert_eq!(stages(&(preset.config)()), expected, "{}", preset.name);
    }
    // a group is never wider than its stage
    assert_eq!(stages(&RegNetConfig { group_width: 24, ..tiny() })[0], (16, 1, 16));
}

#[test]
fn parameters_and_multiply_adds_are_those_of_the_paper() {
    for (preset, (parameters, billions)) in
        PRESETS.iter().zip([(20_646_656, 3.973), (39_180_068, 7.963), (83_590_140, 15.912)])
    {
        let ledger = ledger(&(preset.config)());
        assert_eq!(ledger.parameters(), parameters, "{}", preset.name);
        let total = ledger.total(Convention::MultiplyAdds) as f64 / 1e9;
        assert!((total - billions).abs() < 5e-4, "{}: {total}", preset.name);
    }
}

#[test]
fn it_equals_the_reference() {
    let fixture = Fixture::load("regnety");
    assert_eq!(
        serde_json::json!(tiny().stages().iter().map(|s| s.width).collect::<Vec<_>>()),
        fixture.config["stage_widths"]
    );
    let model = tiny().init(&device::cpu()).unwrap();
    let model = weights::fill(model, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap();
    let logits = model.forward(fixture.tensor("io/input"), &mut Pass::silent());
    assert_close(&logits, &fixture.tensor("io/logits"), 1e-4);
}

#[test]
fn every_parameter_has_a_line_of_its_name() {
    for preset in PRESETS {
        let model = (preset.config)().init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 64, 64]);
        for name in weights::shapes(&model).keys() {
            let layer = name.rsplit_once('.').unwrap().0;
            assert!(ledger.lines().iter().any(|line| line.name == layer), "{}: no line `{layer}`", preset.name);
        }
    }
}

#[test]
fn blocks_stages_and_gates_are_recorded_by_name() {
    let model = tiny().init(&device::cpu()).unwrap();
    let mut pass = Pass::recording();
    let logits = model.forward(random([2, 3, 40, 33], 1), &mut pass);
    let trace = pass.into_trace();
    assert_close(&model.forward(random([2, 3, 40, 33], 1), &mut Pass::silent()), &logits, 0.0);
    assert_eq!(trace.get::<4>("s4.b3").unwrap().dims(), [2, 128, 2, 2]);
    assert_close(&trace.get::<4>("s4").unwrap(), &trace.get("s4.b3").unwrap(), 0.0);
    let gates = values(&trace.get::<2>("s3.b2.se.gates").unwrap());
    assert!(gates.iter().all(|gate| (0.0..=1.0).contains(gate)));
}

#[test]
fn shut_gates_leave_nothing_of_a_map() {
    let mut se = tiny().init(&device::cpu()).unwrap().s_.remove(0).b_.remove(0).se;
    se.fc2.bias = se.fc2.bias.map(|bias| bias.map(|bias| bias.full_like(-200.0)));
    let map = random([2, 16, 3, 4], 1);
    assert_close(&se.forward(map.clone(), &mut Pass::silent()), &map.zeros_like(), 0.0);
}

#[test]
fn the_smallest_preset_gives_finite_logits() {
    let config = (PRESETS[0].config)();
    let logits = config.init(&device::cpu()).unwrap().forward(random([1, 3, 224, 224], 1), &mut Pass::silent());
    assert_eq!(logits.dims(), [1, 1000]);
    assert!(values(&logits).iter().all(|logit| logit.is_finite()));
}

#[test]
fn a_gradient_reaches_every_parameter_in_training() {
    let device = device::cpu().autodiff();
    device.seed(1); // with other seeds a ReLU may be dead for every picture
    let model = RegNetConfig { channels: 2, classes: 3, ..tiny() }.init(&device).unwrap();
    let logits = model.forward(random_on([2, 2, 48, 64], 1, &device), &mut Pass::silent());
    let gradients = logits.powi_scalar(2).sum().backward();
    assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new());
}

#[test]
#[should_panic(expected = "regnet: images have channels 1, the model has channels 3")]
fn pictures_of_other_channels_are_refused() {
    tiny().init(&device::cpu()).unwrap().forward(random([1, 1, 8, 8], 1), &mut Pass::silent());
}

#[test]
fn what_cannot_work_is_named() {
    let refusal = |config: RegNetConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(refusal(RegNetConfig { depth: 0, ..tiny() }), "`depth`: must be from 1 to 1000, got 0");
    assert_eq!(refusal(RegNetConfig { multiplier: 1.0, ..tiny() }), "`multiplier`: must be from 1.1 to 16, got 1");
    assert_eq!(refusal(RegNetConfig { slope: f64::NAN, ..tiny() }), "`slope`: must be from 0 to 65536, got NaN");
    assert_eq!(refusal(RegNetConfig { image: [8, 0], ..tiny() }), "`image`: must have at least one pixel, got 8 x 0");
    let wide = refusal(RegNetConfig { slope: 65536.0, depth: 9, ..tiny() });
    assert!(wide.starts_with("`slope`: makes a stage of width"), "{wide}");
}

#[test]
fn a_config_reads_back_and_refuses_unknown_words() {
    for preset in PRESETS {
        let json = serde_json::to_string(&(preset.config)()).unwrap();
        assert_eq!(serde_json::from_str::<RegNetConfig>(&json).unwrap(), (preset.config)());
        assert!(serde_json::from_str::<RegNetConfig>(&json.replace("slope", "steepness")).is_err());
    }
}
