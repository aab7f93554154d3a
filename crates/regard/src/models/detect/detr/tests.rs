mod training;

use super::*;
use crate::cost::{Convention, Costed, Ledger};
use crate::device;
use crate::testing::weights::{Upstream, detr_config, recognise, translate};
use crate::testing::{Fixture, assert_close, random, random_on, stirred, values, weights, without_gradient};

fn named(name: &str) -> DetrConfig {
    preset(name).unwrap()
}

fn ledger(config: &DetrConfig, image: [usize; 2]) -> Ledger {
    config.ledger(image).unwrap()
}

/// Parameters as the paper counts them: without the frozen stem and first stage.
fn trained(ledger: &Ledger) -> u64 {
    let frozen = ["backbone.0.body.conv1", "backbone.0.body.layer1."];
    let lines = ledger.lines().iter().filter(|line| !frozen.iter().any(|start| line.name.starts_with(start)));
    lines.map(|line| line.parameters).sum()
}

#[test]
fn parameters_are_those_of_the_paper() {
    for (name, all, without_frozen) in [
        ("detr-r50", 41_524_768, 41_302_368),
        ("detr-r101", 60_464_672, 60_242_272),
        ("detr-r50-dc5", 41_524_768, 41_302_368),
        ("detr-r101-dc5", 60_464_672, 60_242_272),
    ] {
        let ledger = ledger(&named(name), [800, 1066]);
        assert_eq!((ledger.parameters(), trained(&ledger)), (all, without_frozen), "{name}");
    }
    let nano = ledger(&named("detr-nano"), [64, 64]).parameters();
    assert!((500_000..1_000_000).contains(&nano), "{nano}");
}

#[test]
fn multiply_adds_are_those_counted_by_hand() {
    for (name, small, middle, large) in [
        ("detr-r50", 81.2, 91.1, 101.7),
        ("detr-r50-dc5", 173.3, 198.5, 227.8),
        ("detr-r101", 144.7, 162.2, 181.2),
        ("detr-r101-dc5", 236.7, 269.5, 307.3),
    ] {
        for (columns, expected) in [(1066, small), (1199, middle), (1333, large)] {
            let total = ledger(&named(name), [800, columns]).total(Convention::MultiplyAdds) as f64 / 1e9;
            assert!((total - expected).abs() < 0.5, "{name} at 800x{columns}: {total}");
        }
    }
}

#[test]
fn the_ledger_has_exactly_the_parameters_of_the_model_by_name() {
    let learned = DetrConfig { position: GridPositionKind::Learned, queries: QueryKind::Learned, ..named("detr-nano") };
    for config in PRESETS.iter().map(|preset| (preset.config)()).chain([learned]) {
        let model = config.init(&device::cpu()).unwrap();
        let ledger = ledger(&config, [64, 64]);
        let is_constant = |name: &str| {
            name.ends_with("running_mean")
                || name.ends_with("running_var")
                || (config.backbone.norm != NormKind::Batch
                    && name.starts_with("backbone.0.body")
                    && name.contains("bn"))
                || (config.backbone.norm != NormKind::Batch && name.contains("downsample.1"))
        };
        let shapes = weights::shapes(&model);
        let parameters: usize = shapes
            .iter()
            .filter(|(name, _)| !is_constant(name))
            .map(|(_, shape)| shape.iter().product::<usize>())
            .sum();
        assert_eq!(ledger.parameters(), parameters as u64, "{config:?}");
        for line in ledger.lines().iter().filter(|line| line.parameters > 0) {
            let of_line = |name: &&String| **name == line.name || name.starts_with(&format!("{}.", line.name));
            assert!(shapes.keys().any(|name| of_line(&name)), "{}", line.name);
        }
    }
}

/// The detector of a fixture and its images.
fn from_fixture(case: &str) -> (Fixture, Detr, Images) {
    from_fixture_on(case, &device::cpu())
}

fn from_fixture_on(case: &str, device: &Device) -> (Fixture, Detr, Images) {
    let fixture = Fixture::load(case);
    let hugging_face = case.starts_with("hf");
    let config = if hugging_face {
        detr_config(&fixture.config).unwrap()
    } else {
        let number = |field: &str| fixture.usize(field);
        let network = [("stem_width", "stem"), ("layers", "layers"), ("widths", "planes")].into_iter();
        let network = network.fold(classifier("resnet-50").unwrap().config, |network, (ours, theirs)| {
            network.with(ours, fixture.config[theirs].clone()).unwrap()
        });
        let dilated = fixture.config["dc5"].as_bool().unwrap();
        let last_stage = if dilated { LastStage::Dilated } else { LastStage::Strided };
        DetrConfig {
            classes: number("classes"),
            backbone: TrunkConfig { network, norm: NormKind::FROZEN, last_stage },
            dim: number("d_model"),
            heads: number("heads"),
            inner: number("ff"),
            encoder_layers: number("encoder_layers"),
            decoder_layers: number("decoder_layers"),
            num_queries: number("queries"),
            ..named("detr-r50")
        }
    };
    let checkpoint = fixture.checkpoint(|name| Some(name.to_string()));
    let upstream = recognise(checkpoint.keys().map(String::as_str));
    assert_eq!(upstream, if hugging_face { Upstream::HuggingFace } else { Upstream::Facebook }, "{case}");
    let tensors = translate(checkpoint, upstream).unwrap();
    let detr = weights::fill(config.init(device).unwrap(), &tensors).unwrap();

    let pixels = fixture.tensor_on::<4>("io/input", device);
    let [_, _, rows, columns] = pixels.dims();
    let name = if hugging_face { "io/pixel_mask" } else { "io/mask" };
    let is_padding = |value: &f32| (*value > 0.5) != hugging_face;
    let mask: Vec<bool> = fixture.values(name).iter().map(is_padding).collect();
    let sizes = mask.chunks(rows * columns).map(|picture| {
        let width = picture[..columns].iter().filter(|padded| !**padded).count();
        let height = picture.iter().step_by(columns).filter(|padded| !**padded).count();
        [height, width]
    });
    let sizes: Vec<[usize; 2]> = sizes.collect();
    let padding = Tensor::from_data(TensorData::new(mask, [sizes.len(), rows, columns]), device);
    (fixture, detr, Images { pixels, padding: Some(padding), sizes })
}

#[test]
fn it_equals_facebooks_from_the_trunk_to_the_answer() {
    for case in ["fb_detr", "fb_detr_dc5"] {
        let (fixture, detr, images) = from_fixture(case);
        let mut pass = Pass::recording();
        let output = detr.forward(&images, &mut pass);
        let trace = pass.into_trace();
        assert_close(&trace.get("backbone.0.body.layer4").unwrap(), &fixture.tensor::<4>("io/c5"), 1e-4);
        let last = detr.transformer.encoder.layers.len() - 1;
        let memory = trace.get(&format!("transformer.encoder.layers.{last}")).unwrap();
        assert_close(&memory, &fixture.tensor::<3>("io/memory"), 1e-4);
        let weights = trace.get(&format!("transformer.encoder.layers.{last}.self_attn.weights")).unwrap();
        assert_close(&weights, &fixture.tensor::<4>("io/encoder.last.self.weights"), 1e-4);
        let last = detr.transformer.decoder.layers.len() - 1;
        let name = format!("transformer.decoder.layers.{last}.multihead_attn.weights");
        assert_close(&trace.get(&name).unwrap(), &fixture.tensor::<4>("io/decoder.last.cross.weights"), 1e-4);
        let [_, _, rows, columns] = fixture.tensor::<4>("io/c5").dims();
        let geometry = trace.geometry(&name).unwrap();
        assert_eq!(geometry.queries, Axes::Slots(detr.num_queries()));
        assert_eq!(geometry.keys, Axes::Grid { prefix: 0, size: [rows, columns] });

        assert_close(&output.logits[last], &fixture.tensor("io/logits"), 1e-4);
        assert_close(&output.boxes[last], &fixture.tensor("io/boxes"), 1e-4);
        for (found, name) in [(&output.logits, "io/aux.logits"), (&output.boxes, "io/aux.boxes")] {
            let expected = fixture.tensor::<4>(name);
            for (layer, found) in found[..last].iter().enumerate() {
                assert_close(found, &expected.clone().narrow(0, layer, 1).squeeze_dim(0), 1e-4);
            }
        }
        // nothing is recorded: the fused kernels
        let silent = detr.forward(&images, &mut Pass::silent());
        assert_close(&silent.logits[last], &fixture.tensor("io/logits"), 1e-4);
        assert_close(&silent.boxes[last], &fixture.tensor("io/boxes"), 1e-4);
    }
}

#[test]
fn its_answers_are_facebooks() {
    for case in ["fb_detr", "fb_detr_dc5"] {
        let (fixture, detr, images) = from_fixture(case);
        let answers = detr.forward(&images, &mut Pass::silent()).detections();
        let queries = detr.num_queries();
        let sizes = fixture.values("io/post.original_sizes");
        let (scores, labels) = (fixture.values("io/post.scores"), fixture.values("io/post.labels"));
        for (picture, detections) in answers.iter().enumerate() {
            assert_eq!(detections.len(), queries);
            let size = [0, 1].map(|side| sizes[2 * picture + side] as usize);
            for (query, detection) in detections.iter().enumerate() {
                let at = picture * queries + query;
                assert_eq!(detection.class, labels[at] as usize, "{case} {at}");
                assert!((detection.score - f64::from(scores[at])).abs() < 1e-4, "{case} {at}");
                let expected = &fixture.values("io/post.boxes")[4 * at..][..4];
                let found = detection.bounds.pixel_corners(size);
                let close = found.iter().zip(expected).all(|(a, b)| (a - f64::from(*b)).abs() < 0.1);
                assert!(close, "{case} {at}: {found:?} {expected:?}");
            }
        }
    }
}

#[test]
fn it_equals_hugging_faces() {
    let (fixture, detr, images) = from_fixture("hf_detr");
    let mut pass = Pass::recording();
    let output = detr.forward(&images, &mut pass);
    let trace = pass.into_trace();
    assert_close(output.logits.last().unwrap(), &fixture.tensor("io/logits"), 1e-4);
    assert_close(output.boxes.last().unwrap(), &fixture.tensor("io/boxes"), 1e-4);
    for (ours, theirs) in [
        ("transformer.encoder.layers.1.self_attn.weights", "io/encoder.1.weights"),
        ("transformer.decoder.layers.1.multihead_attn.weights", "io/decoder.1.cross.weights"),
    ] {
        assert_close(&trace.get::<4>(ours).unwrap(), &fixture.tensor(theirs), 1e-4);
    }
}

/// Small enough to be run often.
fn tiny(queries: QueryKind, norm: NormPlace) -> DetrConfig {
    let network = [("stem_width", json!(8)), ("layers", json!([1, 1])), ("widths", json!([8, 16]))];
    let nano = named("detr-nano");
    let network = network
        .into_iter()
        .fold(nano.backbone.network.clone(), |network, (field, value)| network.with(field, value).unwrap());
    DetrConfig {
        backbone: TrunkConfig { network, ..nano.backbone },
        dim: 16,
        heads: 2,
        inner: 24,
        encoder_layers: 1,
        decoder_layers: 2,
        num_queries: 6,
        queries,
        norm,
        ..named("detr-nano")
    }
}

const KINDS: [(QueryKind, NormPlace); 4] = [
    (QueryKind::Learned, NormPlace::Post),
    (QueryKind::Learned, NormPlace::Pre),
    (QueryKind::ReferencePoints, NormPlace::Post),
    (QueryKind::ReferencePoints, NormPlace::Pre),
];

#[test]
fn how_much_padding_there_is_changes_nothing_and_nobody_looks_at_it() {
    for (queries, norm) in KINDS {
        let detr = stirred(tiny(queries, norm).init(&device::cpu()).unwrap());
        let picture = random([1, 3, 48, 64], 1);
        // far enough that cells of the picture do not depend on the end of the padding
        let [near, far] = [64, 128].map(|more| {
            let [rows, columns] = [48 + more, 64 + more];
            let pixels = Tensor::<4>::zeros([1, 3, rows, columns], &device::cpu());
            let pixels = pixels.slice_assign([0..1, 0..3, 0..48, 0..64], picture.clone());
            let mask = (0..rows * columns).map(|at| at / columns >= 48 || at % columns >= 64).collect::<Vec<bool>>();
            let padding = Tensor::from_data(TensorData::new(mask, [1, rows, columns]), &device::cpu());
            let images = Images { pixels, padding: Some(padding), sizes: vec![[48, 64]] };
            let mut pass = Pass::recording();
            let output = detr.forward(&images, &mut pass);
            let weights = pass.into_trace().get::<4>("transformer.decoder.layers.1.multihead_attn.weights").unwrap();
            let [_, heads, queries, _] = weights.dims();
            let weights = weights.reshape([1, heads, queries, rows / 8, columns / 8]);
            let below = weights.clone().slice_dim(3, 6..rows / 8).max().into_scalar::<f32>();
            let beside = weights.slice_dim(4, 8..columns / 8).max().into_scalar::<f32>();
            assert_eq!((below, beside), (0.0, 0.0));
            output
        });
        assert_close(&near.logits[1], &far.logits[1], 1e-4);
        assert_close(&near.boxes[1], &far.boxes[1], 1e-4);
    }
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    for (queries, norm) in KINDS {
        let detr = stirred(tiny(queries, norm).init(&device::cpu()).unwrap());
        let pixels = random([2, 3, 48, 64], 1);
        let both = detr.forward(&Images::unpadded(pixels.clone()), &mut Pass::silent());
        for picture in 0..2 {
            let one = Images::unpadded(pixels.clone().narrow(0, picture, 1));
            let one = detr.forward(&one, &mut Pass::silent());
            for (both, one) in both.logits.iter().zip(&one.logits).chain(both.boxes.iter().zip(&one.boxes)) {
                assert_close(&both.clone().narrow(0, picture, 1), one, 1e-4);
            }
        }
    }
}

#[test]
fn recorded_equals_unrecorded() {
    for (queries, norm) in KINDS {
        let detr = stirred(tiny(queries, norm).init(&device::cpu()).unwrap());
        let images = Images::unpadded(random([2, 3, 48, 64], 1));
        let silent = detr.forward(&images, &mut Pass::silent());
        let recorded = detr.forward(&images, &mut Pass::recording());
        assert_close(&silent.logits[1], &recorded.logits[1], 1e-4);
        assert_close(&silent.boxes[1], &recorded.boxes[1], 1e-4);
    }
}

#[test]
fn a_gradient_reaches_every_parameter_in_training() {
    let device = device::cpu().autodiff();
    device.seed(1);
    for (queries, norm) in KINDS {
        let start = weights::tensors(&stirred(tiny(queries, norm).init(&device::cpu()).unwrap()));
        let detr = weights::fill(tiny(queries, norm).init(&device).unwrap(), &start).unwrap();
        let images = Images::unpadded(random_on([2, 3, 48, 64], 1, &device));
        let output = detr.forward(&images, &mut Pass::silent());
        let object =
            |class, cx| crate::data::Object { class, bounds: Bounds { cx, cy: 0.4, w: 0.3, h: 0.3 }, crowd: false };
        let pictures = [vec![object(1, 0.3), object(2, 0.7)], vec![object(0, 0.5)]];
        let criterion = DetrCriterion::default();
        let losses = criterion.losses(&output, &pictures, &DetrCounts::of(&pictures, 6)).unwrap();
        let missing = without_gradient(&detr, &losses.total.backward());
        // the first self-attention gets zeros: all values are the same for any queries and keys
        let first =
            ["self_attn.in_proj.weight", "norm1.weight"].map(|name| format!("transformer.decoder.layers.0.{name}"));
        let alike = |name: &String| first.contains(name);
        assert_eq!(
            missing.iter().filter(|name| !alike(name)).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{queries:?} {norm:?}"
        );
    }
}

#[test]
fn reference_points_start_as_a_grid_and_boxes_around_them() {
    let detr = DetrConfig { num_queries: 7, ..tiny(QueryKind::ReferencePoints, NormPlace::Pre) };
    let detr = detr.init(&device::cpu()).unwrap();
    let points = values(&sigmoid(detr.reference.as_ref().unwrap().points.val()));
    // rows of four and of three
    let expected = [0.125, 0.25, 0.375, 0.25, 0.625, 0.25, 0.875, 0.25, 1.0 / 6.0, 0.75, 0.5, 0.75, 5.0 / 6.0, 0.75];
    assert!(points.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6), "{points:?}");
    // a query attends most to the cell of its point
    let cells = Cells { batch: 1, size: [2, 4], padding: None };
    let bias = detr.reference.as_ref().unwrap().bias(1, &cells, &device::cpu());
    assert_eq!(bias.dims(), [1, 2, 7, 8]);
    let first = values(&bias.slice([0..1, 0..1, 0..1, 0..8]));
    assert!(first.iter().all(|value| *value <= first[0]) && first[0].abs() < 1e-6, "{first:?}");
}

#[test]
fn what_cannot_work_is_named() {
    let good = named("detr-nano");
    let refusal = |config: DetrConfig| config.init(&device::cpu()).unwrap_err().to_string();
    assert_eq!(refusal(DetrConfig { classes: 0, ..good.clone() }), "`classes`: must be from 1 to 65536, got 0");
    assert_eq!(refusal(DetrConfig { heads: 5, ..good.clone() }), "`heads`: must divide dim 64, got 5");
    assert!(refusal(DetrConfig { dim: 66, ..good.clone() }).contains("`dim`: must be a multiple of 4"));
    assert!(refusal(DetrConfig { decoder_layers: 0, ..good.clone() }).contains("`decoder_layers`: must be from 1"));
    assert!(refusal(DetrConfig { image: [0, 1], ..good }).contains("`image`"));
}

#[test]
fn a_config_reads_in_words_and_refuses_unknown_ones() {
    for preset in PRESETS {
        let config = (preset.config)();
        let text = toml::to_string(&config).unwrap();
        assert_eq!(toml::from_str::<DetrConfig>(&text).unwrap(), config, "{text}");
        assert!(toml::from_str::<DetrConfig>(&text.replace("num_queries", "queries_num")).is_err());
    }
    assert!(toml::to_string(&named("detr-nano")).unwrap().contains("queries = \"reference-points\""));
}

#[test]
fn presets_give_finite_answers() {
    for name in ["detr-nano", "detr-r50-dc5"] {
        let detr = named(name).init(&device::cpu()).unwrap();
        let images = Images::unpadded(random([1, 3, 64, 96], 1));
        let answers = detr.forward(&images, &mut Pass::silent()).detections();
        assert_eq!((answers.len(), answers[0].len()), (1, detr.num_queries()));
        assert!(answers[0].iter().all(|answer| answer.score.is_finite() && answer.bounds.area() > 0.0), "{name}");
    }
    let mut ledger = Ledger::default();
    let shape = named("detr-nano").init(&device::cpu()).unwrap().cost(vec![3, 64, 64], &mut ledger);
    assert_eq!(shape, [16, 4]);
}
