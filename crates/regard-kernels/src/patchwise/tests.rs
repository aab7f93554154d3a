use super::*;
use crate::gamma::{Moments, Statistics};
use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
use crate::simd::{Path, with_path};
use crate::window::Window;

const RELATIONS: [Relation; 4] = [Relation::Star, Relation::Clique, Relation::Concatenation, Relation::Patch];

fn relate(relation: Relation, size: usize) -> PatchRelate {
    let window = Window::new(6, 7, size);
    PatchRelate { batch: 2, features: 3, hidden: 4, window, relation, epsilon: 1e-3 }
}

fn relate_inputs(case: &PatchRelate) -> [Vec<f32>; 3] {
    let pixels = case.batch * case.window.pixels();
    [noise(pixels * case.centre(), 1), noise(pixels * case.features, 2), noise(case.delta() * (2 + case.hidden), 3)]
}

fn assert_relate_equals_its_definition(case: &PatchRelate, statistics: Statistics) {
    let inputs = relate_inputs(case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    let batch = statistics == Statistics::Batch;
    for &path in Path::available() {
        with_path(path, || {
            let given = Moments {
                mean: noise(case.delta(), 6),
                variance: noise(case.delta(), 7).iter().map(|v| v + 1.5).collect(),
                count: 1,
            };
            let moments = if batch { case.moments(slices) } else { given };
            let fixed = (!batch).then_some(&moments);
            let out = case.forward(slices, &moments);
            assert_close(&out, &naive::patch_relate(case, &slices.map(wide), fixed), 2e-5);
            let seed = noise(out.len(), 8);
            let grads = case.backward(slices, &moments, statistics, &seed);
            assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| {
                naive::patch_relate(case, p, fixed)
            });
        });
    }
}

#[test]
fn every_relation_equals_the_definition_in_evaluation_and_training() {
    for relation in RELATIONS {
        for statistics in [Statistics::Given, Statistics::Batch] {
            assert_relate_equals_its_definition(&relate(relation, 3), statistics);
        }
    }
}

#[test]
fn large_footprints_equal_the_definition() {
    for size in [5, 7, 9, 11] {
        assert_relate_equals_its_definition(&relate(Relation::Concatenation, size), Statistics::Batch);
    }
}

#[test]
fn the_sum_under_the_weights_equals_its_definition_and_differences() {
    for size in [1, 3, 7] {
        let window = Window::new(5, 18, size);
        let case = PatchAggregate { batch: 2, hidden: 3, values: 6, weights: 2, window };
        let (pixels, outputs) = (2 * window.pixels(), 2 * window.offsets());
        let inputs = [noise(pixels * 3, 1), noise(outputs * 3, 2), noise(outputs, 3), noise(pixels * 6, 4)];
        let slices = inputs.each_ref().map(Vec::as_slice);
        for &path in Path::available() {
            with_path(path, || {
                let out = case.forward(slices);
                assert_close(&out, &naive::patch_aggregate(&case, &slices.map(wide)), 2e-5);
                let seed = noise(out.len(), 5);
                let grads = case.backward(slices, &seed);
                assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| {
                    naive::patch_aggregate(&case, p)
                });
            });
        }
    }
}

#[test]
fn narrow_images_in_large_batches_equal_each_by_itself() {
    let case = PatchRelate { batch: 32, ..relate(Relation::Concatenation, 5) };
    let inputs = relate_inputs(&case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    let (moments, alone) = (case.moments(slices), case.sweep_moments(slices));
    let hidden = case.forward(slices, &moments);
    assert_close(&hidden, &wide(&case.relate(slices, &alone)), 1e-5);
    let close = |grads: &[Vec<f32>], expected: &[Vec<f32>]| {
        for (grad, expected) in grads.iter().zip(expected) {
            let largest = expected.iter().fold(1.0f32, |a, x| a.max(x.abs()));
            assert_close(grad, &wide(expected), 1e-4 * f64::from(largest));
        }
    };
    let seed = noise(hidden.len(), 9);
    let expected = case.relate_backward(slices, &alone, Statistics::Batch, &seed);
    close(&case.backward(slices, &moments, Statistics::Batch, &seed), &expected);

    let sum = PatchAggregate { batch: 32, hidden: case.hidden, values: 6, weights: 2, window: case.window };
    let outputs = 2 * case.window.offsets();
    let (linear, bias) = (noise(outputs * case.hidden, 1), noise(outputs, 2));
    let beta = noise(32 * case.window.pixels() * 6, 3);
    let inputs = [&hidden[..], &linear, &bias, &beta];
    assert_close(&sum.forward(inputs), &wide(&sum.attend(inputs)), 1e-4);
    close(&sum.backward(inputs, &beta), &sum.attend_backward(inputs, &beta));
}

#[test]
fn one_thread_and_two_give_the_same_bytes() {
    let window = Window::new(19, 18, 5);
    let case = PatchRelate { window, ..relate(Relation::Concatenation, 5) };
    let inputs = relate_inputs(&case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    let sum = PatchAggregate { batch: 2, hidden: 4, values: 6, weights: 2, window };
    let (linear, bias, beta) = (noise(50 * 4, 1), noise(50, 2), noise(2 * window.pixels() * 6, 3));
    assert_same_on_threads(|| {
        let moments = case.moments(slices);
        let hidden = case.forward(slices, &moments);
        let out = sum.forward([&hidden, &linear, &bias, &beta]);
        let sums = sum.backward([&hidden, &linear, &bias, &beta], &out);
        let relations = case.backward(slices, &moments, Statistics::Batch, &sums[0]);
        [vec![out], sums.to_vec(), relations.to_vec()].concat()
    });
}
