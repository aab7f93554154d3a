//! Comparison with torchvision, and laws of selections.

use super::*;
use crate::device;
use crate::testing::{Fixture, assert_close, assert_gradient_close, distance, values};

#[test]
fn roi_align_and_its_gradient_are_those_of_torchvision() {
    let fixture = Fixture::load("roi_align");
    let rois = fixture.values("io/rois");
    let images: Vec<usize> = rois.chunks(5).map(|roi| roi[0] as usize).collect();
    let corners: Vec<Corners> = rois.chunks(5).map(|roi| [roi[1], roi[2], roi[3], roi[4]]).collect();
    let device = device::cpu().autodiff();
    for (case, output, points, aligned) in [
        ("2x2_s1", [2, 2], SamplingPoints::Fixed(1), false),
        ("7x7_s2", [7, 7], SamplingPoints::Fixed(2), false),
        ("7x7_s2_aligned", [7, 7], SamplingPoints::Fixed(2), true),
        ("3x2_adaptive", [3, 2], SamplingPoints::Adaptive, false),
        ("3x2_adaptive_aligned", [3, 2], SamplingPoints::Adaptive, true),
    ] {
        let align = RoiAlign { output, spatial_scale: 0.25, points, aligned };
        let input = fixture.tensor_on::<4>(&format!("io/{case}.input"), &device).require_grad();
        let out = roi_align(input.clone(), &images, &corners, align);
        assert_close(&out, &fixture.tensor(&format!("io/{case}.output")), 1e-5);
        let grads = (out * fixture.tensor_on(&format!("io/{case}.output_grad"), &device)).sum().backward();
        let expected = fixture.tensor(&format!("io/{case}.input_grad"));
        assert_gradient_close(case, &input.grad(&grads).unwrap(), &expected);
    }
}

#[test]
fn regions_are_read_from_the_levels_of_torchvision() {
    let fixture = Fixture::load("roi_align");
    let levels: Vec<Level> = [("a", 16), ("b", 32), ("c", 64)]
        .map(|(name, stride)| Level { map: fixture.tensor(&format!("io/levels.{name}")), stride })
        .into();
    let corners = fixture.boxes("io/levels.boxes");
    let found: Vec<usize> = corners.iter().map(|corners| LevelRule::PAPER.level(*corners, 4, 6) - 4).collect();
    assert_eq!(found, fixture.indices("io/levels.index"));
    let align = RoiAlign { output: [4, 4], spatial_scale: 1.0, points: SamplingPoints::Fixed(2), aligned: false };
    let out = roi_align_levels(&levels, LevelRule::PAPER, (&[0; 4], &corners), align);
    assert_close(&out, &fixture.tensor("io/levels.output"), 1e-5);
}

#[test]
fn what_stays_is_what_stays_in_torchvision() {
    let fixture = Fixture::load("nms");
    let (boxes, scores, classes) =
        (fixture.boxes("io/boxes"), fixture.values("io/scores"), fixture.indices("io/classes"));
    for threshold in [0.3, 0.5, 0.7] {
        assert_eq!(nms(&boxes, scores, threshold), fixture.indices(&format!("io/keep.{threshold}")));
        let by_class = nms_by_class(&boxes, scores, &classes, threshold);
        assert_eq!(by_class, fixture.indices(&format!("io/keep_by_class.{threshold}")));
    }
    let (boxes, scores) = (fixture.boxes("io/ties.boxes"), fixture.values("io/ties.scores"));
    assert_eq!(nms(&boxes, scores, 0.5), fixture.indices("io/ties.keep.0.5"));
}

#[test]
fn overlaps_and_their_gradient_are_those_of_torchvision() {
    let fixture = Fixture::load("box_ops");
    let (a, b) = (fixture.boxes("io/a"), fixture.boxes("io/b"));
    assert!(distance(&pairwise_iou(&a, &b), fixture.values("io/iou")) < 1e-5);
    assert!(distance(&regard_kernels::boxes::pairwise_giou(&a, &b), fixture.values("io/giou")) < 1e-5);
    let device = device::cpu().autodiff();
    let pairs = fixture.tensor_on::<2>("io/giou_pairs.a", &device).require_grad();
    let value = giou(pairs.clone(), &fixture.boxes("io/giou_pairs.b"), 1e-7);
    assert_close(&value, &fixture.tensor("io/giou_pairs.value"), 1e-5);
    let grads = (value * fixture.tensor_on("io/giou_pairs.out_grad", &device)).sum().backward();
    assert_gradient_close("a", &pairs.grad(&grads).unwrap(), &fixture.tensor("io/giou_pairs.a_grad"));
}

#[test]
fn boxes_are_encoded_decoded_and_clipped_as_in_torchvision() {
    let fixture = Fixture::load("box_ops");
    let (objects, proposals) = (fixture.boxes("io/a"), fixture.boxes("io/proposals"));
    for (name, coder) in [("ones", BoxCoder::ANCHORS), ("roi", BoxCoder::REGIONS)] {
        let encoded = coder.encode(&objects, &proposals);
        assert!(distance(encoded.as_flattened(), fixture.values(&format!("io/encode.{name}"))) < 1e-5);
        // two boxes a proposal
        let deltas = fixture.boxes("io/deltas");
        let twice: Vec<Corners> = proposals.iter().flat_map(|proposal| [*proposal; 2]).collect();
        let decoded: Vec<Corners> = deltas.iter().zip(&twice).map(|(d, p)| coder.decode(*d, *p)).collect();
        let expected = fixture.values(&format!("io/decode.{name}"));
        let largest = expected.iter().fold(1f32, |a, x| a.max(x.abs()));
        assert!(distance(decoded.as_flattened(), expected) < 1e-5 * largest);
        let tensor = coder.decode_tensor(to_tensor(&deltas, &device::cpu()), &twice);
        assert!(distance(&values(&tensor), expected) < 1e-5 * largest);
    }
    let clipped: Vec<Corners> = fixture.boxes("io/clip.in").iter().map(|corners| clip(*corners, [80, 100])).collect();
    assert_eq!(clipped.as_flattened(), fixture.values("io/clip.out"));
}

#[test]
fn what_is_encoded_decodes_to_itself() {
    let (object, reference) = ([3.0, 4.0, 20.0, 30.0], [5.0, 1.0, 16.0, 40.0]);
    for coder in [BoxCoder::ANCHORS, BoxCoder::REGIONS] {
        let back = coder.decode(coder.encode(&[object], &[reference])[0], reference);
        assert!(distance(&back, &object) < 1e-4, "{back:?}");
    }
}

#[test]
fn focal_loss_and_smooth_l1_are_those_of_torchvision() {
    let fixture = Fixture::load("box_ops");
    let device = device::cpu().autodiff();
    let targets = fixture.values("io/focal.targets").to_vec();
    // a row has one class here, or none: rows with several are left out of the comparison
    let of_row = |row: &[f32]| match row.iter().filter(|target| **target > 0.0).count() {
        0 => Some(FocalTarget::Background),
        1 => row.iter().position(|target| *target > 0.0).map(|class| FocalTarget::Class(class as u32)),
        _ => None,
    };
    let rows: Vec<Option<FocalTarget>> = targets.chunks(3).map(of_row).collect();
    assert!(rows.iter().filter(|row| row.is_some()).count() >= 3, "{rows:?}");
    let logits = fixture.tensor_on::<2>("io/focal.logits", &device).require_grad();
    let wanted: Vec<FocalTarget> = rows.iter().map(|row| row.unwrap_or(FocalTarget::Ignored)).collect();
    let loss = sigmoid_focal(logits.clone(), wanted, vec![1.0; 6], [0.25, 2.0]);
    let kept = |name: &str| -> Vec<f32> {
        let rows = fixture.values(name).chunks(3).zip(&rows).filter(|(_, row)| row.is_some());
        rows.flat_map(|(values, _)| values.to_vec()).collect()
    };
    let expected: f32 = kept("io/focal.loss").iter().sum();
    assert!((loss.clone().into_scalar::<f32>() - expected).abs() < 1e-5);
    let gradient = values(&logits.grad(&loss.backward()).unwrap());
    let gradient = gradient.chunks(3).zip(&rows).filter(|(_, row)| row.is_some()).flat_map(|(g, _)| g.to_vec());
    assert!(distance(&gradient.collect::<Vec<_>>(), &kept("io/focal.logits_grad")) < 1e-5);

    let a = fixture.tensor_on::<1>("io/smooth_l1.a", &device).require_grad();
    let loss = smooth_l1(a.clone(), fixture.tensor_on("io/smooth_l1.b", &device), 1.0 / 9.0);
    assert_close(&loss, &fixture.tensor("io/smooth_l1.loss"), 1e-5);
    let gradient = a.grad(&loss.sum().backward()).unwrap();
    assert_gradient_close("a", &gradient, &fixture.tensor("io/smooth_l1.a_grad"));
}

#[test]
fn anchors_are_those_of_torchvision() {
    let fixture = Fixture::load("anchors");
    for (case, levels) in [("retinanet", 5), ("faster_rcnn", 5), ("one_level", 1), ("uneven", 1)] {
        let config = &fixture.config["cases"][case];
        let anchors = Anchors {
            sizes: serde_json::from_value(config["sizes"].clone()).unwrap(),
            ratios: serde_json::from_value(config["ratios"].clone()).unwrap(),
            rule: AnchorRule::Torchvision,
        };
        anchors.validate().unwrap();
        let grids: Vec<[usize; 2]> = serde_json::from_value(config["grids"].clone()).unwrap();
        for level in 0..levels {
            assert_eq!(anchors.cell(level), fixture.boxes(&format!("io/{case}.cell.{level}")), "{case} {level}");
        }
        let all = (0..levels).flat_map(|level| anchors.level(level, [80, 112], grids[level], 0));
        assert_eq!(all.collect::<Vec<_>>(), fixture.boxes(&format!("io/{case}.anchors")), "{case}");
    }
    assert_eq!(
        Anchors::three_scales(&[32, 64, 128, 256, 512]).sizes,
        serde_json::from_value::<Vec<Vec<f32>>>(fixture.config["cases"]["retinanet"]["sizes"].clone()).unwrap()
    );
}

#[test]
fn anchors_of_detectron2_have_the_area_of_their_size_and_the_stride_of_their_level() {
    let anchors = Anchors { sizes: vec![vec![32.0, 64.0]], ratios: vec![0.5, 2.0], rule: AnchorRule::Detectron2 };
    let cell = anchors.cell(0);
    for (index, [x1, y1, x2, y2]) in cell.iter().enumerate() {
        let (size, ratio) = ([32.0, 64.0][index / 2], [0.5, 2.0][index % 2]);
        assert!(((x2 - x1) * (y2 - y1) - size * size).abs() < 1e-2, "sizes are outside");
        assert!(((y2 - y1) / (x2 - x1) - ratio).abs() < 1e-5, "shapes are inside");
    }
    // 1066 / 67 would be 15
    let level = anchors.level(0, [800, 1066], [50, 67], 16);
    assert_eq!(
        level[4],
        cell[0].map(|x| x).into_iter().zip([16.0, 0.0, 16.0, 0.0]).map(|(a, b)| a + b).collect::<Vec<f32>>()[..]
    );
}

#[test]
fn what_cannot_be_anchors_is_named() {
    let refusal = |sizes: Vec<Vec<f32>>| Anchors::torchvision(sizes).validate().unwrap_err().to_string();
    assert_eq!(refusal(vec![vec![1.0], vec![]]), "`anchors`: level 1 has 0 sizes, level 0 has 1");
    for sizes in [vec![], vec![vec![0.0]], vec![vec![f32::NAN]], vec![vec![1.0; 2000]]] {
        assert!(refusal(sizes).contains("needs sizes"));
    }
}

const MATCHER: Matcher = Matcher { object: 0.5, background: 0.4, best_of_object: true };

#[test]
fn an_anchor_is_matched_by_its_overlap_and_an_object_has_its_best_ones() {
    let object = [0.0, 0.0, 10.0, 10.0];
    // overlaps 1, 0.45, 0.1
    let boxes = [object, [0.0, 0.0, 10.0, 4.5], [0.0, 0.0, 10.0, 1.0]];
    assert_eq!(MATCHER.matches(&[object], &boxes), [Match::Object(0), Match::Ignored, Match::Background]);
    // the best of the object, though it is only 0.1
    assert_eq!(MATCHER.matches(&[object], &boxes[2..]), [Match::Object(0)]);
    let strict = Matcher { best_of_object: false, ..MATCHER };
    assert_eq!(strict.matches(&[object], &boxes[2..]), [Match::Background]);
}

#[test]
fn the_best_anchor_of_an_object_keeps_the_object_that_it_overlaps_most() {
    let objects = [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 3.0, 3.0]];
    // overlaps 0.49 with the first, less with the second, whose best one it is
    let boxes = [[0.0, 0.0, 7.0, 7.0]];
    assert_eq!(MATCHER.matches(&objects, &boxes), [Match::Object(0)]);
}

#[test]
fn an_object_that_nothing_touches_and_a_picture_without_objects_match_nothing() {
    let boxes = [[0.0, 0.0, 10.0, 10.0], [5.0, 5.0, 9.0, 9.0]];
    assert_eq!(MATCHER.matches(&[[90.0, 90.0, 99.0, 99.0]], &boxes), [Match::Background; 2]);
    assert_eq!(MATCHER.matches(&[], &boxes), [Match::Background; 2]);
    assert!(MATCHER.matches(&[[0.0, 0.0, 1.0, 1.0]], &[]).is_empty());
}

#[test]
fn a_sample_has_its_size_its_share_and_depends_on_seed_step_and_image_alone() {
    let (positive, negative): (Vec<usize>, Vec<usize>) = ((0..50).collect(), (50..500).collect());
    let balance = Balance { count: 64, positive: 0.25 };
    let sampler = RandomSampler { seed: 3, step: 5 };
    let draw = |sampler: RandomSampler, draw| sampler.sample(draw, &positive, &negative, balance);
    let [objects, background] = draw(sampler, DrawId::Anchors { image: 1 });
    assert_eq!((objects.len(), background.len()), (16, 48));
    for (drawn, of) in [(&objects, &positive), (&background, &negative)] {
        assert!(drawn.iter().all(|index| of.contains(index)) && drawn.windows(2).all(|pair| pair[0] < pair[1]));
    }
    assert_eq!(draw(sampler, DrawId::Anchors { image: 1 }), [objects.clone(), background.clone()]);
    for other in [
        draw(sampler, DrawId::Regions { image: 1 }),
        draw(sampler, DrawId::Anchors { image: 2 }),
        draw(RandomSampler { step: 6, ..sampler }, DrawId::Anchors { image: 1 }),
        draw(RandomSampler { seed: 4, ..sampler }, DrawId::Anchors { image: 1 }),
    ] {
        assert_ne!(other, [objects.clone(), background.clone()]);
    }
    // too few objects: background fills up; too little of both: all of it
    assert_eq!(sampler.sample(DrawId::Anchors { image: 0 }, &[7], &negative, balance).map(|some| some.len()), [1, 63]);
    assert_eq!(sampler.sample(DrawId::Anchors { image: 0 }, &[7], &[8], balance), [vec![7], vec![8]]);
}
