use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{Fixture, assert_close, random, random_on, values, weights, without_gradient};

fn named(name: &str) -> ResNetConfig {
    (PRESETS.iter().find(|preset| preset.name == name).unwrap().config)()
}

fn ledger(config: &ResNetConfig) -> Ledger {
    let [rows, columns] = config.image;
    Ledger::of(&config.init(&device::cpu()).unwrap(), [config.channels, rows, columns])
}

#[test]
fn parameters_are_those_of_the_papers() {
    for (name, parameters) in [
        ("resnet-nano", 996_890),
        ("resnet-18", 11_689_512),
        ("resnet-34", 21_797_672),
        ("resnet-26", 13_696_552),
        ("resnet-38", 19_626_792),
        ("resnet-50", 25_557_032),
        ("resnet-101", 44_549_160),
        ("resnet-152", 60_192_808),
        ("resnet-26-5x5", 22_674_984),
        ("resnet-26-7x7", 36_142_632),
    ] {
        assert_eq!(ledger(&named(name)).parameters(), parameters, "{name}");
    }
}

#[test]
fn every_parameter_has_a_line_of_its_name() {
    for preset in PRESETS {
        let model = (preset.config)().init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 64, 64]);
        for (name, shape) in weights::shapes(&model) {
            let (layer, tensor) = name.rsplit_once('.').unwrap();
            let line = ledger.lines().iter().find(|line| line.name == layer);
            let line = line.unwrap_or_else(|| panic!("{}: no line `{layer}`", preset.name));
            let size = shape.iter().product::<usize>() as u64;
            assert!(line.parameters >= size, "{}: `{name}` {tensor}", preset.name);
        }
    }
}

#[test]
fn the_counter_of_san_gives_its_numbers() {
    for (name, total) in [
        ("resnet-26", 2_361_448_960),
        ("resnet-38", 3_241_686_528),
        ("resnet-50", 4_121_924_096),
        ("resnet-26-5x5", 4_005_616_128),
        ("resnet-26-7x7", 6_471_866_880),
    ] {
        assert_eq!(ledger(&named(name)).total(Convention::San), total, "{name}");
    }
}

#[test]
fn the_convention_of_sasa_gives_its_numbers() {
    for (name, billions) in [("resnet-26", 4.720), ("resnet-38", 6.480), ("resnet-50", 8.240)] {
        let total = ledger(&named(name)).total(Convention::Sasa) as f64 / 1e9;
        assert!((total - billions).abs() < 5e-4, "{name}: {total}");
    }
}

#[test]
fn the_factor_of_widths_gives_the_curve_of_sasa() {
    for (width, millions, billions) in
        [(0.25, 1.99, 0.57), (0.5, 6.92, 2.14), (0.75, 14.77, 4.69), (1.25, 39.27, 12.78), (1.5, 55.92, 18.31)]
    {
        let ledger = ledger(&ResNetConfig { width, ..named("resnet-50") });
        let (parameters, total) = (ledger.parameters() as f64 / 1e6, ledger.total(Convention::Sasa) as f64 / 1e9);
        assert!(
            (parameters - millions).abs() < 5e-3 && (total - billions).abs() < 5e-3,
            "{width}: {parameters} {total}"
        );
    }
}

fn from_fixture(case: &str, block: ResidualBlock) -> (Fixture, ResNet) {
    let fixture = Fixture::load(case);
    let sizes = |field: &str| serde_json::from_value::<Vec<usize>>(fixture.config[field].clone()).unwrap();
    let config = ResNetConfig {
        image: [64, 64],
        classes: 10,
        // the checkpoint has a stem of 64 channels
        stem_width: fixture.tensor::<4>("model/conv1.weight").dims()[0],
        widths: sizes("channels"),
        layers: sizes("layers"),
        ..ResNetConfig::imagenet(block, [1; 4])
    };
    let model = config.init(&device::cpu()).unwrap();
    let model = weights::fill(model, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap();
    (fixture, model)
}

#[test]
fn it_equals_the_reference() {
    for (case, block) in [("resnet_bottleneck", ResidualBlock::Bottleneck), ("resnet_basic", ResidualBlock::Basic)] {
        let (fixture, model) = from_fixture(case, block);
        let mut pass = Pass::recording();
        let logits = model.forward(fixture.tensor("io/input"), &mut pass);
        assert_close(&pass.into_trace().get::<4>("layer4").unwrap(), &fixture.tensor("io/stage4"), 1e-4);
        assert_close(&logits, &fixture.tensor("io/logits"), 1e-4);
    }
}

#[test]
fn blocks_and_stages_are_recorded_by_name() {
    let (fixture, model) = from_fixture("resnet_basic", ResidualBlock::Basic);
    let mut pass = Pass::recording();
    model.forward(fixture.tensor("io/input"), &mut pass);
    let trace = pass.into_trace();
    let names: Vec<&str> = trace.names().collect();
    assert_eq!(
        names,
        ["layer1.0", "layer1", "layer2.0", "layer2.1", "layer2", "layer3.0", "layer3", "layer4.0", "layer4"]
    );
    assert_close(&trace.get::<4>("layer2").unwrap(), &trace.get("layer2.1").unwrap(), 0.0);
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = ResNetConfig::nano().init(&device::cpu()).unwrap();
    let images = random([2, 3, 28, 36], 1);
    let both = model.forward(images.clone(), &mut Pass::silent());
    for b in 0..2 {
        let one = model.forward(images.clone().slice_dim(0, b..=b), &mut Pass::silent());
        assert_close(&both.clone().slice_dim(0, b..=b), &one, 1e-4);
    }
}

/// Every preset up to ResNet-50 gives finite logits for its own size of picture.
#[test]
fn presets_give_finite_logits() {
    for preset in PRESETS {
        let config = (preset.config)();
        config.validate().unwrap();
        if ledger(&config).parameters() > 26_000_000 {
            continue;
        }
        let images = random([1, config.channels, config.image[0], config.image[1]], 1);
        let logits = config.init(&device::cpu()).unwrap().forward(images, &mut Pass::silent());
        assert_eq!(logits.dims(), [1, config.classes], "{}", preset.name);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{}", preset.name);
    }
}

#[test]
fn a_gradient_reaches_every_parameter_in_training() {
    let device = device::cpu().autodiff();
    device.seed(1); // with other seeds a ReLU may be dead for every picture
    for (name, classes, channels, side) in [("resnet-nano", 3, 1, 16), ("resnet-18", 2, 3, 64), ("resnet-26", 2, 4, 64)]
    {
        let config = ResNetConfig { channels, classes, ..named(name) };
        let model = config.init(&device).unwrap();
        let logits = model.forward(random_on([2, channels, side, side], 1, &device), &mut Pass::silent());
        let gradients = logits.powi_scalar(2).sum().backward();
        assert_eq!(without_gradient(&model, &gradients), Vec::<String>::new(), "{name}");
    }
}

#[test]
#[should_panic(expected = "resnet: images have channels 1, the model has channels 3")]
fn pictures_of_other_channels_are_refused() {
    ResNetConfig::nano().init(&device::cpu()).unwrap().forward(random([1, 1, 8, 8], 1), &mut Pass::silent());
}

#[test]
fn what_cannot_work_is_named() {
    let good = ResNetConfig::nano();
    let refusal = |config: ResNetConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(
        refusal(ResNetConfig { image: [0, 8], ..good.clone() }),
        "`image`: must have at least one pixel, got 0 x 8"
    );
    assert_eq!(refusal(ResNetConfig { classes: 0, ..good.clone() }), "`classes`: must be from 1 to 65536, got 0");
    assert_eq!(
        refusal(ResNetConfig { width: f64::NAN, ..good.clone() }),
        "`width`: must be over 0 and at most 64, got NaN"
    );
    assert_eq!(refusal(ResNetConfig { width: 0.01, ..good.clone() }), "`stem_width`: must be from 1 to 65536, got 0");
    assert_eq!(
        refusal(ResNetConfig { layers: vec![2; 3], ..good }),
        "`widths`: each of 3 stages has a width from 1 to 65536, got [16, 32, 64, 128]"
    );
}

#[test]
fn a_config_reads_in_words_and_refuses_unknown_ones() {
    for preset in PRESETS {
        let json = serde_json::to_string(&(preset.config)()).unwrap();
        assert_eq!(serde_json::from_str::<ResNetConfig>(&json).unwrap(), (preset.config)());
        assert!(serde_json::from_str::<ResNetConfig>(&json.replace("stem_width", "steam_width")).is_err());
    }
    let json = r#"{ "image": [32, 32], "channels": 3, "classes": 10, "block": "basic", "stem": "small", "stem_width": 16,
        "layers": [2, 2, 2, 3], "widths": [16, 32, 64, 128] }"#;
    assert_eq!(serde_json::from_str::<ResNetConfig>(json).unwrap(), ResNetConfig::nano());
}
