use super::*;
use crate::cost::{Convention, Costed, Ledger};
use crate::device;
use crate::testing::{assert_close, random, random_on, shapes, values, without_gradient};

use SpatialChoice::{Attention, Convolution};

const CONVOLUTIONS: StemChoice = StemChoice::Convolution;

fn stem_of(maps: usize) -> StemChoice {
    StemChoice::Attention { heads: 4, block: 4, maps }
}

fn ledger(config: &SasaConfig) -> Ledger {
    Ledger::of(&config.init(&device::cpu()).unwrap(), [config.channels, config.image[0], config.image[1]])
}

/// Millions of parameters and billions of operations.
fn counts(config: &SasaConfig) -> (f64, f64) {
    let ledger = ledger(config);
    (ledger.parameters() as f64 / 1e6, ledger.total(Convention::Sasa) as f64 / 1e9)
}

/// Compares to the digits that are printed.
#[track_caller]
fn assert_counts(row: &str, config: &SasaConfig, parameters: &str, operations: &str) {
    let digits = |printed: &str| printed.split_once('.').map_or(0, |(_, digits)| digits.len());
    let (millions, billions) = counts(config);
    let counted = [format!("{millions:.*}", digits(parameters)), format!("{billions:.*}", digits(operations))];
    assert_eq!(counted, [parameters, operations], "{row}: {millions} M, {billions} G");
}

fn small() -> SasaConfig {
    SasaConfig {
        image: [12, 20],
        widths: vec![16, 32],
        blocks: vec![1, 2],
        spatial: vec![Attention; 2],
        ..SasaConfig::nano()
    }
}

fn parameters(model: &Sasa) -> u64 {
    let trained = shapes(model).into_iter().filter(|(name, _)| !name.contains("running_"));
    trained.map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
}

#[test]
fn the_main_table_has_its_parameters_and_costs() {
    let network = SasaConfig::paper;
    let without = |blocks| SasaConfig { spatial: vec![Convolution; 4], ..network(blocks, CONVOLUTIONS) };
    for (row, config, parameters, operations) in [
        ("ResNet-26", without(BLOCKS_26), "13.697", "4.720"),
        ("ResNet-38", without(BLOCKS_38), "19.627", "6.480"),
        ("ResNet-50", without(BLOCKS_50), "25.557", "8.240"),
        ("ResNet-26, conv stem", network(BLOCKS_26, CONVOLUTIONS), "10.343", "4.481"),
        ("ResNet-38, conv stem", network(BLOCKS_38, CONVOLUTIONS), "14.191", "5.725"),
        ("ResNet-50, conv stem", network(BLOCKS_50, CONVOLUTIONS), "18.039", "6.968"),
        ("ResNet-26", network(BLOCKS_26, stem_of(4)), "10.335", "4.673"),
        ("ResNet-26, 6 maps", network(BLOCKS_26, stem_of(6)), "10.335", "4.724"),
        ("ResNet-38", network(BLOCKS_38, stem_of(4)), "14.183", "5.916"),
        ("ResNet-38, 6 maps", network(BLOCKS_38, stem_of(6)), "14.183", "5.968"),
        ("ResNet-50", network(BLOCKS_50, stem_of(4)), "18.031", "7.160"),
        ("ResNet-50, 6 maps", network(BLOCKS_50, stem_of(6)), "18.031", "7.211"),
    ] {
        assert_counts(row, &config, parameters, operations);
    }
}

#[test]
fn the_tables_of_windows_groups_and_positions_have_their_costs() {
    let fifty = SasaConfig::paper(BLOCKS_50, CONVOLUTIONS);
    for (window, operations) in [(3, "6.560"), (5, "6.723"), (7, "6.968"), (9, "7.295"), (11, "7.704")] {
        let (_, billions) = counts(&SasaConfig { window, ..fifty.clone() });
        assert_eq!(format!("{billions:.3}"), operations, "window {window}");
    }
    for (groups, parameters, operations) in [
        ([2, 3, 4].as_slice(), "18.11", "7.265"),
        (&[3, 4], "18.50", "7.467"),
        (&[4], "20.85", "8.046"),
        (&[1], "25.48", "7.943"),
        (&[1, 2], "25.10", "7.741"),
        (&[1, 2, 3], "22.75", "7.162"),
    ] {
        let choice = |group| if groups.contains(&group) { Attention } else { Convolution };
        let config = SasaConfig { spatial: (1..=4).map(choice).collect(), ..fifty.clone() };
        assert_counts(&format!("attention in groups {groups:?}"), &config, parameters, operations);
    }
    assert_counts("no position", &SasaConfig { relative: false, ..fifty }, "18.012", "6.875");
}

#[test]
fn the_sweep_of_widths_has_its_parameters_and_costs() {
    for (factor, convolution, attention) in [
        (0.25, ["1.99", "0.57"], ["1.53", "0.61"]),
        (0.5, ["6.92", "2.14"], ["5.04", "1.96"]),
        (0.75, ["14.77", "4.69"], ["10.55", "4.08"]),
        (1.0, ["25.56", "8.24"], ["18.04", "6.97"]),
        (1.25, ["39.27", "12.78"], ["27.52", "10.63"]),
        (1.5, ["55.92", "18.31"], ["38.98", "15.06"]),
    ] {
        for (choice, [parameters, operations]) in [(Convolution, convolution), (Attention, attention)] {
            let config = SasaConfig { spatial: vec![choice; 4], ..SasaConfig::paper(BLOCKS_50, CONVOLUTIONS) };
            assert_counts(&format!("{choice:?} x {factor}"), &config.scaled(factor), parameters, operations);
        }
    }
}

#[test]
fn an_attention_layer_costs_what_the_formula_says() {
    let config = LocalAttentionConfig { channels_in: 64, channels_out: 64, heads: 8, window: 7, relative: true };
    let mut ledger = Ledger::default();
    config.init(&device::cpu()).unwrap().cost(vec![64, 5, 6], &mut ledger);
    let (w, k, pixels) = (64, 49, 5 * 6);
    let formula = 6 * w * w * pixels + 4 * w * k * pixels + w * k * pixels + 5 * 8 * k * pixels;
    assert_eq!(ledger.total(Convention::Sasa), formula);
}

#[test]
fn an_attention_stem_costs_what_is_listed_for_a_pixel() {
    let mut ledger = Ledger::default();
    let config = AttentionStemConfig { relative: true, ..AttentionStemConfig::paper() };
    config.init(&device::cpu()).unwrap().cost(vec![3, 8, 8], &mut ledger);
    let maps = 4;
    let for_a_channel = 12 + 6 * maps + 2 * maps + 32 + 32 + 16;
    assert_eq!(ledger.total(Convention::Sasa), 64 * (64 * for_a_channel + 5 * 4 * 16));
}

#[test]
fn every_preset_is_valid_and_counts_its_parameters() {
    for preset in PRESETS {
        let config = (preset.config)();
        let counted = parameters(&config.init(&device::cpu()).unwrap());
        assert_eq!(ledger(&config).parameters(), counted, "{}", preset.name);
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<SasaConfig>(&json).unwrap(), config);
        assert!(serde_json::from_str::<SasaConfig>(&json.replace("widths", "planes")).is_err());
    }
    let nano = ledger(&SasaConfig::nano()).parameters();
    assert!((800_000..=1_200_000).contains(&nano), "{nano}");
}

#[test]
fn the_small_preset_gives_the_same_finite_logits_recorded_or_not() {
    let model = SasaConfig::nano().init(&device::cpu()).unwrap();
    for side in [28, 32, 64] {
        let images = random([1, 3, side, side], 1);
        let logits = model.forward(images.clone(), &mut Pass::silent());
        assert_eq!(logits.dims(), [1, 10]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()));
        assert_close(&model.forward(images, &mut Pass::recording()), &logits, 1e-4);
    }
}

#[test]
fn the_smallest_network_of_the_paper_runs_on_smaller_pictures() {
    for stem in [SasaConfig::ATTENTION_STEM, CONVOLUTIONS] {
        let config = SasaConfig { image: [64, 96], ..SasaConfig::paper(BLOCKS_26, stem) };
        let logits = config.init(&device::cpu()).unwrap().forward(random([1, 3, 64, 96], 1), &mut Pass::silent());
        assert_eq!(logits.dims(), [1, 1000]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()));
    }
}

#[test]
fn what_is_recorded_has_the_names_and_sizes_of_the_parts() {
    let config = SasaConfig { spatial: vec![Convolution, Attention], ..small() };
    let mut pass = Pass::recording();
    config.init(&device::cpu()).unwrap().forward(random([2, 3, 12, 20], 1), &mut pass);
    let trace = pass.into_trace();
    let weights = ["stem.attn.weights", "groups.1.0.spatial.weights", "groups.1.1.spatial.weights"];
    let expected = [weights[0], "groups.0.0", weights[1], "groups.1.0", weights[2], "groups.1.1"];
    assert_eq!(trace.names().collect::<Vec<_>>(), expected);
    assert_eq!(trace.get::<4>(weights[0]).unwrap().dims(), [2 * 6 * 10, 4, 4, 4]);
    assert_eq!(trace.get::<4>(weights[1]).unwrap().dims(), [2, 8, 25, 6 * 10], "before the map is halved");
    assert_eq!(trace.get::<4>(weights[2]).unwrap().dims(), [2, 8, 25, 3 * 5]);
    assert_eq!(trace.get::<4>("groups.1.1").unwrap().dims()[2..], [3, 5]);
}

#[test]
fn the_ledger_has_the_shapes_of_the_forward_pass() {
    for stem in [SasaConfig::nano().stem, CONVOLUTIONS] {
        for image in [[12, 20], [26, 14], [28, 28]] {
            let config = SasaConfig {
                image,
                stem,
                widths: vec![16; 3],
                blocks: vec![1; 3],
                spatial: vec![Attention; 3],
                ..small()
            };
            let model = config.init(&device::cpu()).unwrap();
            let mut map = model.stem.forward(random([1, 3, image[0], image[1]], 1), &mut Pass::silent());
            let mut shape = model.stem.cost(vec![3, image[0], image[1]], &mut Ledger::default());
            for block in model.groups.iter().flatten() {
                assert_eq!(map.dims()[1..], shape, "{stem:?} {image:?}");
                map = block.forward(map, &mut Pass::silent());
                shape = block.cost(shape, &mut Ledger::default());
            }
            assert_eq!(map.dims()[1..], shape, "{stem:?} {image:?}");
        }
    }
}

#[test]
fn an_odd_side_is_halved_with_a_last_window_of_what_there_is() {
    let map = Tensor::<4>::from_data([[[[1.0f32, 3.0, 10.0], [5.0, 7.0, 20.0], [2.0, 4.0, 9.0]]]], &device::cpu());
    assert_eq!(values(&halves(map)), [4.0, 15.0, 3.0, 9.0]);
}

#[test]
fn the_gradient_of_halving_is_shared_by_those_that_were_averaged() {
    let map = random_on([1, 1, 3, 3], 1, &device::cpu().autodiff()).require_grad();
    let grads = halves(map.clone()).sum().backward();
    let expected = [0.25, 0.25, 0.5, 0.25, 0.25, 0.5, 0.5, 0.5, 1.0];
    assert_eq!(values(&map.grad(&grads).unwrap()), expected);
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = small().init(&device::cpu()).unwrap();
    let images = random([2, 3, 12, 20], 1);
    let both = model.forward(images.clone(), &mut Pass::silent());
    for index in 0..2 {
        let one = model.forward(images.clone().narrow(0, index, 1), &mut Pass::silent());
        assert_close(&one, &both.clone().narrow(0, index, 1), 1e-5);
    }
}

#[test]
fn training_sends_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    let model = SasaConfig::nano().init(&device).unwrap();
    let logits = model.forward(random_on([2, 3, 32, 32], 1, &device), &mut Pass::silent());
    let grads = (logits * random_on([2, 10], 2, &device)).sum().backward();
    assert_eq!(without_gradient(&model, &grads), Vec::<String>::new());
}

#[test]
fn what_cannot_work_is_named() {
    let good = SasaConfig::paper(BLOCKS_26, SasaConfig::ATTENTION_STEM);
    let refusal = |config: SasaConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(refusal(SasaConfig { heads: 5, ..good.clone() }), "`heads`: must divide width 64 of group 0, got 5");
    assert_eq!(
        refusal(SasaConfig { heads: 64, ..good.clone() }),
        "`relative`: the width of a head must be even for row and column embeddings, got 1 in group 0"
    );
    assert_eq!(
        refusal(SasaConfig { stem_width: 66, ..good.clone() }),
        "`stem`: `heads`: must divide channels_out 66, got 4"
    );
    assert_eq!(
        refusal(SasaConfig { image: [224, 226], ..good.clone() }),
        "`image`: blocks of 4 x 4 do not fill a side of 226"
    );
    assert_eq!(refusal(SasaConfig { blocks: vec![1; 3], ..good.clone() }), "`blocks`: there are 3 for 4 widths");
    assert_eq!(
        refusal(SasaConfig { blocks: vec![1, 0, 1, 1], ..good.clone() }),
        "`blocks`: group 1 has 0, must have 1 to 1024"
    );
    assert_eq!(refusal(SasaConfig { spatial: vec![], ..good.clone() }), "`spatial`: there are 0 for 4 widths");
    assert_eq!(refusal(SasaConfig { window: 0, ..good.clone() }), "`window`: must be at least 1, got 0");
    assert_eq!(refusal(SasaConfig { classes: 1 << 17, ..good }), "`classes`: must be at most 65536, got 131072");
}
