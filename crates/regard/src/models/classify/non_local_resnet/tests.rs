use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{random, random_on, values, weights, without_gradient};
use burn::module::Param;

const AFFINITIES: [Affinity; 4] =
    [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation];

fn ledger(config: &NonLocalResNetConfig) -> Ledger {
    let [rows, columns] = config.image;
    Ledger::of(&config.init(&device::cpu()).unwrap(), [config.channels, rows, columns])
}

fn tiny(placement: NonLocalPlacement, affinity: Affinity) -> NonLocalResNetConfig {
    NonLocalResNetConfig {
        layers: vec![1, 2, 3, 1],
        widths: vec![4, 4, 8, 8],
        stem_width: 4,
        placement,
        affinity,
        scale: false,
        ..NonLocalResNetConfig::nano()
    }
}

#[test]
fn blocks_stand_where_the_paper_puts_them() {
    let places = |placement| NonLocalResNetConfig::resnet50(placement, Affinity::Gaussian).places();
    assert_eq!(places(NonLocalPlacement::BeforeLast), [[2, 4]]);
    assert_eq!(places(NonLocalPlacement::EverySecond), [[1, 1], [1, 3], [2, 1], [2, 3], [2, 5]]);
    assert_eq!(places(NonLocalPlacement::Every).len(), 10);
}

/// A fresh block's norm has weight zero, which hides the block: ones instead, and biases that keep the ReLU of pairs active.
fn with_active_blocks(mut model: NonLocalResNet) -> NonLocalResNet {
    let ones = |parameter: &Param<Tensor<1>>| Param::from_tensor(parameter.val().ones_like().detach());
    for block in &mut model.non_local {
        block.norm.gamma = ones(&block.norm.gamma);
        if let (Some(weight), Some(theta)) = (&mut block.concatenation, &mut block.theta) {
            *weight = ones(weight);
            theta.bias = theta.bias.as_ref().map(ones);
        }
    }
    model
}

#[test]
fn a_block_with_an_active_norm_changes_the_logits() {
    for placement in [NonLocalPlacement::BeforeLast, NonLocalPlacement::EverySecond, NonLocalPlacement::Every] {
        let model = tiny(placement, Affinity::EmbeddedGaussian).init(&device::cpu()).unwrap();
        let images = random([1, 3, 16, 16], 1);
        let logits = |model: &NonLocalResNet| values(&model.forward(images.clone(), &mut Pass::silent()));
        assert_ne!(logits(&model), logits(&with_active_blocks(model.clone())));
    }
}

#[test]
fn weights_are_recorded_for_every_place() {
    let model = tiny(NonLocalPlacement::EverySecond, Affinity::EmbeddedGaussian).init(&device::cpu()).unwrap();
    let mut pass = Pass::recording();
    model.forward(random([2, 3, 16, 12], 1), &mut pass);
    let trace = pass.into_trace();
    let names: Vec<&str> = trace.names().filter(|name| name.starts_with("non_local")).collect();
    assert_eq!(names, ["non_local.0.weights", "non_local.1.weights"]);
    // positions of res3 and res4, and a quarter of them
    assert_eq!(trace.get::<3>(names[0]).unwrap().dims(), [2, 48, 12]);
    assert_eq!(trace.get::<3>(names[1]).unwrap().dims(), [2, 12, 2]);
    assert_eq!(trace.get::<4>("layer3").unwrap().dims(), [2, 8, 4, 3]);
}

#[test]
fn parameters_and_multiply_adds_are_the_resnets_and_the_blocks() {
    // ResNet-50 alone
    let (base_parameters, base_macs) = (25_557_032, 4_089_184_256);
    // theta, phi, g and W_z with biases, and a norm: per block of C channels
    let block = |c: u64| 4 * c * c / 2 + 3 * c / 2 + c + 2 * c;
    for (placement, second, third) in [
        (NonLocalPlacement::BeforeLast, 0, 1),
        (NonLocalPlacement::EverySecond, 2, 3),
        (NonLocalPlacement::Every, 4, 6),
    ] {
        let ledger = ledger(&NonLocalResNetConfig::resnet50(placement, Affinity::EmbeddedGaussian));
        let parameters = base_parameters + second * block(512) + third * block(1024);
        assert_eq!(ledger.parameters(), parameters, "{placement:?}");
        // 784 and 196 positions; a quarter of them as keys, pooled before phi and g
        let macs = |n: u64, c: u64| n * c * c / 2 * 2 + 2 * (n / 4) * c * c / 2 + 2 * n * (n / 4) * c / 2;
        let total = base_macs + second * macs(784, 512) + third * macs(196, 1024);
        assert_eq!(ledger.total(Convention::MultiplyAdds), total, "{placement:?}");
    }
    let kinetics = NonLocalResNetConfig { classes: 400, ..(PRESETS[2].config)() };
    let millions = ledger(&kinetics).parameters() as f64 / 1e6;
    assert!((millions - 31.69).abs() < 5e-3, "{millions}, the video network has 31.69");
}

#[test]
fn every_parameter_has_a_line_of_its_name() {
    for preset in PRESETS {
        let model = (preset.config)().init(&device::cpu()).unwrap();
        let ledger = Ledger::of(&model, [3, 64, 64]);
        for name in weights::shapes(&model).keys() {
            let known = |layer: &str| ledger.lines().iter().any(|line| line.name == layer);
            // the weight of a concatenation is a parameter of its own
            assert!(known(name) || known(name.rsplit_once('.').unwrap().0), "{}: no line `{name}`", preset.name);
        }
    }
}

#[test]
fn presets_give_finite_logits() {
    // all but the small one have the residual parameters of the first, so that they are drawn once
    let mut drawn: Option<NonLocalResNet> = None;
    for preset in PRESETS {
        let config = (preset.config)();
        let images = random([1, config.channels, config.image[0], config.image[1]], 1);
        let mut model = with_active_blocks(config.init(&device::cpu()).unwrap());
        if let Some(NonLocalResNet { conv1, bn1, layer_, fc, .. }) = drawn.take() {
            model = NonLocalResNet { conv1, bn1, layer_, fc, ..model };
        }
        let logits = model.forward(images, &mut Pass::silent());
        assert_eq!(logits.dims(), [1, config.classes], "{}", preset.name);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()), "{}", preset.name);
        drawn = (config.block == ResidualBlock::Bottleneck).then_some(model);
    }
}

#[test]
fn a_gradient_reaches_every_parameter_in_training() {
    let device = device::cpu().autodiff();
    device.seed(1); // with other seeds a ReLU may be dead for every picture
    for affinity in AFFINITIES {
        let config = NonLocalResNetConfig { channels: 2, classes: 3, ..tiny(NonLocalPlacement::Every, affinity) };
        let model = with_active_blocks(config.init(&device).unwrap());
        let logits = model.forward(random_on([2, 2, 24, 24], 1, &device), &mut Pass::silent());
        let gradients = logits.powi_scalar(2).sum().backward();
        let mut unreached = without_gradient(&model, &gradients);
        // shifts that a softmax or the norm takes away again: their gradients are rounding
        unreached.retain(|name| !(name.starts_with("non_local.") && name.ends_with("bias")));
        assert_eq!(unreached, Vec::<String>::new(), "{affinity:?}");
    }
}

#[test]
#[should_panic(expected = "non-local resnet: images have channels 1, the model has channels 3")]
fn pictures_of_other_channels_are_refused() {
    let model = NonLocalResNetConfig::nano().init(&device::cpu()).unwrap();
    model.forward(random([1, 1, 8, 8], 1), &mut Pass::silent());
}

#[test]
fn what_cannot_work_is_named() {
    let good = tiny(NonLocalPlacement::EverySecond, Affinity::EmbeddedGaussian);
    let refusal = |config: NonLocalResNetConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(
        refusal(NonLocalResNetConfig { layers: vec![3, 1, 1, 3], ..good.clone() }),
        "`placement`: finds no place in the second and third stage of layers [3, 1, 1, 3]"
    );
    assert_eq!(
        refusal(NonLocalResNetConfig { layers: vec![3, 1], placement: NonLocalPlacement::BeforeLast, ..good.clone() }),
        "`placement`: finds no place in the second and third stage of layers [3, 1]"
    );
    assert_eq!(
        refusal(NonLocalResNetConfig { scale: true, affinity: Affinity::Concatenation, ..good.clone() }),
        "`scale`: the concatenation has no dot product to scale"
    );
    assert_eq!(refusal(NonLocalResNetConfig { classes: 0, ..good }), "`classes`: must be from 1 to 65536, got 0");
}

#[test]
fn a_config_reads_back_and_refuses_unknown_words() {
    for preset in PRESETS {
        let json = serde_json::to_string(&(preset.config)()).unwrap();
        assert_eq!(serde_json::from_str::<NonLocalResNetConfig>(&json).unwrap(), (preset.config)());
        assert!(serde_json::from_str::<NonLocalResNetConfig>(&json.replace("placement", "place")).is_err());
    }
    let json = serde_json::to_string(&NonLocalResNetConfig::nano()).unwrap();
    assert!(json.contains(r#""placement":"every-second","affinity":"embedded-gaussian""#), "{json}");
}
