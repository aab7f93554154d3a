use super::*;
use crate::cost::Convention;
use crate::device;
use crate::testing::{Fixture, assert_close, fill, random, random_on, shapes, values, without_gradient};

use PairRelation::{Concatenation, Dot, Hadamard, Subtraction, Summation};
use PatchRelation::{Clique, Star};

const SHARINGS: [Sharing; 3] = [Sharing::AllDifferent, Sharing::RelationShared, Sharing::AllShared];
const POSITIONS: [PairPosition; 3] = [PairPosition::Relative, PairPosition::Absolute, PairPosition::None];

fn pairs(relation: PairRelation) -> SanRelation {
    SanRelation::Pairwise { relation, position: PairPosition::Relative }
}

fn patches(relation: PatchRelation) -> SanRelation {
    SanRelation::Patchwise { relation }
}

fn small(relation: SanRelation) -> SanConfig {
    SanConfig {
        image: [16, 20],
        widths: vec![32, 64],
        blocks: vec![1, 1],
        footprints: vec![3, 5],
        ..SanConfig::nano(relation)
    }
}

fn counts(config: &SanConfig) -> (u64, u64) {
    let model = config.init(&device::cpu()).unwrap();
    let ledger = Ledger::of(&model, [config.channels, config.image[0], config.image[1]]);
    (ledger.parameters(), ledger.total(Convention::San))
}

fn parameters(model: &San) -> u64 {
    let trained = shapes(model).into_iter().filter(|(name, _)| !name.contains("running_"));
    trained.map(|(_, shape)| shape.iter().product::<usize>() as u64).sum()
}

fn assert_parity(case: &str, relation: SanRelation) {
    let fixture = Fixture::load(case);
    let list = |field: &str| -> Vec<usize> { serde_json::from_value(fixture.config[field].clone()).unwrap() };
    let config = SanConfig {
        widths: list("widths"),
        blocks: list("layers"),
        footprints: list("kernels"),
        classes: fixture.usize("classes"),
        ..SanConfig::nano(relation)
    };
    let model = config.init(&device::cpu()).unwrap();
    let model = fill(model, &fixture.checkpoint(|key| Some(upstream_name(key)))).unwrap();
    for mut pass in [Pass::silent(), Pass::recording()] {
        assert_close(&model.forward(fixture.tensor("io/input"), &mut pass), &fixture.tensor("io/logits"), 1e-4);
    }
}

#[test]
fn the_pairwise_network_equals_its_reference() {
    assert_parity("san_net_pairwise", SanConfig::PAIRWISE);
}

#[test]
fn the_patchwise_network_equals_its_reference() {
    assert_parity("san_net_patchwise", SanConfig::PATCHWISE);
}

#[test]
fn every_row_of_the_papers_tables_has_its_parameters_and_costs() {
    let network = |blocks, relation| SanConfig::paper(blocks, relation);
    let ten = |relation| SanConfig::paper(BLOCKS_10, relation);
    let shared = |relation, sharing| SanConfig { sharing, ..ten(relation) };
    let wide = |relation, k| SanConfig { footprints: vec![3, k, k, k, k], ..ten(relation) };
    let placed = |position| ten(SanRelation::Pairwise { relation: Subtraction, position });
    let (pair, patch) = (SanConfig::PAIRWISE, SanConfig::PATCHWISE);
    let rows = [
        ("SAN10 pairwise", network(BLOCKS_10, pair), 10_531_848, 2_155_268_622),
        ("SAN10 patchwise", network(BLOCKS_10, patch), 11_841_124, 1_865_421_568),
        ("SAN15 pairwise", network(BLOCKS_15, pair), 14_065_436, 3_022_716_308),
        ("SAN15 patchwise", network(BLOCKS_15, patch), 16_181_310, 2_582_850_560),
        ("SAN19 pairwise", network(BLOCKS_19, pair), 17_596_156, 3_844_152_602),
        ("SAN19 patchwise", network(BLOCKS_19, patch), 20_518_470, 3_258_984_704),
        ("summation", ten(pairs(Summation)), 10_531_848, 2_155_268_622),
        ("subtraction", ten(pairs(Subtraction)), 10_531_848, 2_155_268_622),
        ("concatenation", ten(pairs(Concatenation)), 10_567_896, 2_490_757_902),
        ("Hadamard", ten(pairs(Hadamard)), 10_531_848, 2_155_268_622),
        ("dot", ten(pairs(Dot)), 10_496_292, 1_821_270_657),
        ("star", ten(patches(Star)), 10_929_828, 1_682_105_267),
        ("clique", ten(patches(Clique)), 11_513_700, 1_914_602_819),
        ("patch concatenation", ten(patches(PatchRelation::Concatenation)), 11_841_124, 1_865_421_568),
        ("pairwise, all shared", shared(pair, Sharing::AllShared), 9_515_720, 2_994_374_414),
        ("pairwise, relation shared", shared(pair, Sharing::RelationShared), 9_969_712, 2_045_828_494),
        ("pairwise, all different", shared(pair, Sharing::AllDifferent), 10_531_848, 2_155_268_622),
        ("patchwise, all shared", shared(patch, Sharing::AllShared), 13_413_428, 2_197_110_016),
        ("patchwise, relation shared", shared(patch, Sharing::RelationShared), 11_278_988, 1_755_981_440),
        ("patchwise, all different", shared(patch, Sharing::AllDifferent), 11_841_124, 1_865_421_568),
        ("pairwise, footprint 3", wide(pair, 3), 10_531_848, 1_683_473_102),
        ("patchwise, footprint 3", wide(patch, 3), 10_742_564, 1_625_705_728),
        ("pairwise, footprint 5", wide(pair, 5), 10_531_848, 1_872_191_310),
        ("patchwise, footprint 5", wide(patch, 5), 11_181_988, 1_721_592_064),
        ("pairwise, footprint 7", wide(pair, 7), 10_531_848, 2_155_268_622),
        ("patchwise, footprint 7", wide(patch, 7), 11_841_124, 1_865_421_568),
        ("pairwise, footprint 9", wide(pair, 9), 10_531_848, 2_532_705_038),
        ("patchwise, footprint 9", wide(patch, 9), 12_719_972, 2_057_194_240),
        ("pairwise, footprint 11", wide(pair, 11), 10_531_848, 3_004_500_558),
        ("patchwise, footprint 11", wide(patch, 11), 13_818_532, 2_296_910_080),
        ("no position", placed(PairPosition::None), 10_530_804, 2_133_935_296),
        ("absolute position", placed(PairPosition::Absolute), 10_531_848, 2_154_274_412),
        ("relative position", placed(PairPosition::Relative), 10_531_848, 2_155_268_622),
    ];
    for (row, config, parameters, counted) in rows {
        assert_eq!(counts(&config), (parameters, counted), "{row}");
    }
}

#[test]
fn the_product_of_a_clique_is_counted_where_multiply_adds_are() {
    let model = SanConfig::paper(BLOCKS_10, patches(Clique)).init(&device::cpu()).unwrap();
    let hidden = |work| matches!(work, Work::HiddenProduct { .. });
    let ledger = Ledger::of(&model, [3, 224, 224]);
    let products = ledger.lines().iter().filter(|line| hidden(line.work));
    let macs: u64 = products.map(|line| Convention::MultiplyAdds.count(line.work)).sum();
    // each of the first stage's 2 blocks compares 4 channels of 9 x 9 pairs at 112 x 112 pixels; the others 49 x 49 pairs
    let later = 16 * 56 * 56 + 2 * 32 * 28 * 28 + 4 * 64 * 14 * 14 + 128 * 7 * 7;
    assert_eq!(macs, 2 * 4 * 81 * 112 * 112 + 2401 * later);
}

#[test]
fn every_relation_sharing_and_position_can_be_built_and_counted() {
    let mut relations = vec![patches(Star), patches(Clique), patches(PatchRelation::Concatenation)];
    for relation in [Summation, Subtraction, Concatenation, Hadamard, Dot] {
        relations.extend(POSITIONS.map(|position| SanRelation::Pairwise { relation, position }));
    }
    let images = random([2, 3, 16, 20], 1);
    for relation in relations {
        for sharing in SHARINGS {
            let config = SanConfig { sharing, ..small(relation) };
            let model = config.init(&device::cpu()).unwrap();
            assert_eq!(counts(&config).0, parameters(&model), "{relation:?} {sharing:?}");
            let logits = model.forward(images.clone(), &mut Pass::silent());
            let mut recording = Pass::recording();
            assert_close(&model.forward(images.clone(), &mut recording), &logits, 1e-4);
            let trace = recording.into_trace();
            let expected =
                [0, 1].map(|stage| ["layer.0.sam.weights", "layer.0", ""].map(|part| format!("stages.{stage}.{part}")));
            let expected: Vec<String> =
                expected.concat().iter().map(|name| name.trim_end_matches('.').into()).collect();
            assert_eq!(trace.names().collect::<Vec<_>>(), expected);
            assert_eq!(trace.get::<4>(&expected[3]).unwrap().dims(), [2, 2, 25, 4 * 5]);
        }
    }
}

#[test]
fn every_preset_is_valid_and_counts_its_parameters() {
    for preset in PRESETS {
        let config = (preset.config)();
        let model = config.init(&device::cpu()).unwrap();
        assert_eq!(counts(&config).0, parameters(&model), "{}", preset.name);
        if preset.name.contains("nano") {
            assert!((800_000..=1_200_000).contains(&parameters(&model)), "{}: {}", preset.name, parameters(&model));
        }
        let json = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<SanConfig>(&json).unwrap(), config);
        assert!(serde_json::from_str::<SanConfig>(&json.replace("footprints", "kernels")).is_err());
    }
}

#[test]
fn small_presets_give_the_same_finite_logits_recorded_or_not() {
    for relation in [SanConfig::PAIRWISE, SanConfig::PATCHWISE] {
        let model = SanConfig::nano(relation).init(&device::cpu()).unwrap();
        for side in [28, 32, 64] {
            let images = random([1, 3, side, side], 1);
            let logits = model.forward(images.clone(), &mut Pass::silent());
            assert_eq!(logits.dims(), [1, 10]);
            assert!(values(&logits).iter().all(|logit| logit.is_finite()));
            assert_close(&model.forward(images, &mut Pass::recording()), &logits, 1e-4);
        }
    }
}

#[test]
fn the_smallest_network_of_the_paper_runs_on_smaller_pictures() {
    for relation in [SanConfig::PAIRWISE, SanConfig::PATCHWISE] {
        let config = SanConfig { image: [128, 160], ..SanConfig::paper(BLOCKS_10, relation) };
        let logits = config.init(&device::cpu()).unwrap().forward(random([1, 3, 128, 160], 1), &mut Pass::silent());
        assert_eq!(logits.dims(), [1, 1000]);
        assert!(values(&logits).iter().all(|logit| logit.is_finite()));
    }
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let model = small(SanConfig::PAIRWISE).init(&device::cpu()).unwrap();
    let images = random([2, 3, 16, 20], 1);
    let both = model.forward(images.clone(), &mut Pass::silent());
    for index in 0..2 {
        let one = model.forward(images.clone().narrow(0, index, 1), &mut Pass::silent());
        assert_close(&one, &both.clone().narrow(0, index, 1), 1e-5);
    }
}

#[test]
fn training_sends_a_gradient_to_every_parameter() {
    let device = device::cpu().autodiff();
    for relation in [SanConfig::PAIRWISE, SanConfig::PATCHWISE] {
        let model = SanConfig::nano(relation).init(&device).unwrap();
        let logits = model.forward(random_on([2, 3, 32, 32], 1, &device), &mut Pass::silent());
        let grads = (logits * random_on([2, 10], 2, &device)).sum().backward();
        // a shift before a norm of the batch or before softmax changes nothing: what reaches these is rounding
        let lost = |name: &String| name.contains("bias") && name != "fc.bias";
        let missed: Vec<String> = without_gradient(&model, &grads).into_iter().filter(|name| !lost(name)).collect();
        assert_eq!(missed, Vec::<String>::new());
    }
}

#[test]
fn names_of_the_published_code_become_ours() {
    for (theirs, ours) in [
        ("module.conv_in.weight", "conv_in.weight"),
        ("bn_in.running_mean", "bn_in.running_mean"),
        ("module.conv3.weight", "stages.3.conv.weight"),
        ("module.bn3.bias", "stages.3.bn.bias"),
        ("module.layer3.1.bn2.weight", "stages.3.layer.1.bn2.weight"),
        ("module.layer3.1.conv.bias", "stages.3.layer.1.conv.bias"),
        ("module.layer3.1.sam.conv3.bias", "stages.3.layer.1.sam.beta.bias"),
        ("module.layer3.1.sam.conv_w.5.weight", "stages.3.layer.1.sam.gamma.linear2"),
        ("module.fc.weight", "fc.weight"),
    ] {
        assert_eq!(upstream_name(theirs), ours);
    }
}

#[test]
fn what_cannot_work_is_named() {
    let good = SanConfig::paper(BLOCKS_10, SanConfig::PAIRWISE);
    let refusal = |config: SanConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(
        refusal(SanConfig { image: [256, 96], ..good.clone() }),
        "`image`: 256 x 96 leaves 8 x 3 for stage 4, whose footprint of 7 mirrors 3 beyond the edge"
    );
    assert_eq!(
        refusal(SanConfig { footprints: vec![3, 7, 7, 8, 7], ..good.clone() }),
        "`footprints`: must be odd, got 8 for stage 3"
    );
    assert_eq!(
        refusal(SanConfig { widths: vec![64, 256, 500, 1024, 2048], ..good.clone() }),
        "`widths`: 500 of stage 2 is not a multiple of 32"
    );
    assert_eq!(refusal(SanConfig { blocks: vec![1; 4], ..good.clone() }), "`blocks`: there are 4 for 5 widths");
    assert_eq!(
        refusal(SanConfig { blocks: vec![1, 1, 0, 1, 1], ..good.clone() }),
        "`blocks`: stage 2 has 0, must have 1 to 1024"
    );
    assert_eq!(refusal(SanConfig { widths: vec![], ..good.clone() }), "`widths`: a network has at least one stage");
    assert_eq!(refusal(SanConfig { classes: 0, ..good }), "`classes`: must be at least 1, got 0");
}
