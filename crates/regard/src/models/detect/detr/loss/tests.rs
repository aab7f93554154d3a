use super::*;
use crate::data::Bounds;
use crate::device;
use crate::testing::{Fixture, assert_gradient_close, random, values};
use burn::tensor::Device;

fn object(class: usize, bounds: &[f32]) -> Object {
    let [cx, cy, w, h] = [0, 1, 2, 3].map(|side| f64::from(bounds[side]));
    Object { class, bounds: Bounds { cx, cy, w, h }, crowd: false }
}

/// The objects of both pictures of a case.
fn pictures(fixture: &Fixture, case: &str) -> Vec<Vec<Object>> {
    (0..2)
        .map(|picture| {
            let labels = fixture.values(&format!("io/{case}.labels.{picture}"));
            let boxes = fixture.values(&format!("io/{case}.targets_cxcywh.{picture}"));
            labels.iter().zip(boxes.chunks(4)).map(|(class, bounds)| object(*class as usize, bounds)).collect()
        })
        .collect()
}

fn output(fixture: &Fixture, case: &str, device: &Device) -> ([Tensor<4>; 2], DetrOutput) {
    let inputs = ["logits", "boxes_cxcywh"].map(|name| {
        fixture.tensor_on::<4>(&format!("io/{case}.{name}"), device).set_require_grad(device.is_autodiff())
    });
    let layers =
        |all: &Tensor<4>| all.clone().chunk(all.dims()[0], 0).into_iter().map(|one| one.squeeze_dim(0)).collect();
    let output = DetrOutput { logits: layers(&inputs[0]), boxes: layers(&inputs[1]) };
    (inputs, output)
}

const CASES: [&str; 4] = ["plain", "both", "crowded", "empty"];

#[test]
fn pairs_are_the_references() {
    let fixture = Fixture::load("detr_loss");
    for case in CASES {
        let (_, output) = output(&fixture, case, &device::cpu());
        let objects: Vec<_> = pictures(&fixture, case).iter().map(|objects| targets(objects)).collect();
        for (layer, (logits, boxes)) in output.logits.iter().zip(&output.boxes).enumerate() {
            let [_, queries, classes] = logits.dims();
            let probabilities = numbers(softmax(logits.clone()));
            let pairs = DetrCriterion::default()
                .pairs(&probabilities, &numbers(boxes.clone()), [queries, classes], &objects)
                .unwrap();
            for (picture, pairs) in pairs.iter().enumerate() {
                let expected = |side: &str| fixture.values(&format!("io/{case}.match.{layer}.{picture}.{side}"));
                let found =
                    |side: fn(&MatchedPair) -> usize| pairs.iter().map(|pair| side(pair) as f32).collect::<Vec<_>>();
                assert_eq!(found(|pair| pair.query), expected("query"), "{case} {layer} {picture}");
                assert_eq!(found(|pair| pair.object), expected("target"), "{case} {layer} {picture}");
            }
        }
    }
}

#[test]
fn losses_and_gradients_are_the_references() {
    let fixture = Fixture::load("detr_loss");
    let device = device::cpu().autodiff();
    for case in CASES {
        let (inputs, output) = output(&fixture, case, &device);
        let (pictures, criterion) = (pictures(&fixture, case), DetrCriterion::default());
        let counts = DetrCounts::of(&pictures, output.logits[0].dims()[1]);
        let losses = criterion.losses(&output, &pictures, &counts).unwrap();
        let expected = fixture.values(&format!("io/{case}.loss_terms"));
        for (layer, expected) in losses.layers.iter().zip(expected.chunks(4)) {
            let terms = [&layer.class, &layer.l1, &layer.giou].map(|term| term.clone().into_scalar::<f32>());
            let found = [terms[0], terms[1], terms[2], layer.cardinality_error as f32];
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5), "{case}: {found:?} {expected:?}");
        }
        let total = losses.total.clone().into_scalar::<f32>();
        let wanted = fixture.values(&format!("io/{case}.total"))[0];
        assert!((total - wanted).abs() < 1e-5 * wanted.max(1.0), "{case}: {total} {wanted}");
        let gradients = losses.total.backward();
        for (name, input) in ["logits_grad", "boxes_grad"].iter().zip(&inputs) {
            // boxes of a batch without objects take no part
            let found = input.grad(&gradients).unwrap_or_else(|| input.clone().inner().zeros_like());
            assert_gradient_close(&format!("{case} {name}"), &found, &fixture.tensor(&format!("io/{case}.{name}")));
        }
    }
}

fn random_output(batch: usize, seed: u64) -> DetrOutput {
    let boxes = random::<3>([batch, 5, 4], seed + 1).mul_scalar(0.1).add_scalar(0.4);
    DetrOutput { logits: vec![random([batch, 5, 4], seed)], boxes: vec![boxes] }
}

fn some_objects() -> Vec<Vec<Object>> {
    vec![
        vec![object(0, &[0.3, 0.4, 0.2, 0.3]), object(2, &[0.6, 0.5, 0.3, 0.3])],
        Vec::new(),
        vec![object(1, &[0.5, 0.5, 0.4, 0.4])],
    ]
}

#[test]
fn processes_that_share_their_counts_add_up_to_one_process() {
    let (output, pictures, criterion) = (random_output(3, 1), some_objects(), DetrCriterion::default());
    let counts = DetrCounts::of(&pictures, 5);
    let whole = criterion.losses(&output, &pictures, &counts).unwrap().total.into_scalar::<f32>();
    let part = |range: std::ops::Range<usize>| {
        let rows = |tensor: &Tensor<3>| vec![tensor.clone().slice_dim(0, range.clone())];
        let output = DetrOutput { logits: rows(&output.logits[0]), boxes: rows(&output.boxes[0]) };
        criterion.losses(&output, &pictures[range.clone()], &counts).unwrap().total.into_scalar::<f32>()
    };
    assert_eq!(DetrCounts::of(&pictures[..1], 5) + DetrCounts::of(&pictures[1..], 5), counts);
    assert!((part(0..1) + part(1..3) - whole).abs() < 1e-5);
}

#[test]
fn a_crowd_is_no_object() {
    let (output, mut pictures, criterion) = (random_output(3, 1), some_objects(), DetrCriterion::default());
    let counts = DetrCounts::of(&pictures, 5);
    let before = criterion.losses(&output, &pictures, &counts).unwrap().total.into_scalar::<f32>();
    pictures[1].push(Object { crowd: true, ..object(0, &[0.5, 0.5, 0.2, 0.2]) });
    assert_eq!(DetrCounts::of(&pictures, 5), counts);
    assert_eq!(criterion.losses(&output, &pictures, &counts).unwrap().total.into_scalar::<f32>(), before);
}

#[test]
fn class_error_and_cardinality_are_those_of_the_last_layer() {
    // two queries predict class 0, one predicts no object; the object is of class 0 or 1
    let logits = Tensor::<3>::from_floats([[[9.0, 0.0, 0.0], [9.0, 0.0, 0.0], [0.0, 0.0, 9.0]]], &device::cpu());
    let boxes = Tensor::<3>::from_floats([[[0.5, 0.5, 0.2, 0.2]; 3]], &device::cpu());
    let output = DetrOutput { logits: vec![logits], boxes: vec![boxes] };
    for (class, class_error) in [(0, 0.0), (1, 100.0)] {
        let pictures = [vec![object(class, &[0.5, 0.5, 0.2, 0.2])]];
        let criterion = DetrCriterion::default();
        let losses = criterion.losses(&output, &pictures, &DetrCounts::of(&pictures, 3)).unwrap();
        assert_eq!((losses.class_error, losses.cardinality_error()), (class_error, 1.0));
        let [(class, _), (bounds, l1), (giou, overlap)] = losses.parts();
        assert_eq!([class, bounds, giou], ["class", "box", "giou"]);
        assert!(values(&l1)[0].abs() < 1e-6 && values(&overlap)[0].abs() < 1e-6);
    }
}

#[test]
fn an_output_that_is_no_number_names_its_picture() {
    let (mut output, pictures, criterion) = (random_output(3, 1), some_objects(), DetrCriterion::default());
    output.boxes[0] = output.boxes[0].clone().slice_fill([2..3, 0..1, 0..1], f32::NAN);
    let error = criterion.losses(&output, &pictures, &DetrCounts::of(&pictures, 5)).unwrap_err().to_string();
    assert!(error.contains("picture 2 of the batch"), "{error}");
    assert!(DetrCriterion { no_object: f64::NAN, ..criterion }.validate().is_err());
}
