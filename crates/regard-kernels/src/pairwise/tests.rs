use super::*;
use crate::gamma::Statistics;
use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
use crate::simd::{Path, with_path};

const RELATIONS: [Relation; 5] =
    [Relation::Summation, Relation::Subtraction, Relation::Hadamard, Relation::Concatenation, Relation::Dot];

fn case(relation: Relation, position: Position, size: usize) -> Pairwise {
    let window = Window::new(6, 7, size);
    Pairwise { batch: 2, features: 3, values: 6, weights: 2, hidden: 5, window, relation, position, epsilon: 1e-3 }
}

fn inputs(case: &Pairwise) -> [Vec<f32>; 5] {
    let pixels = case.batch * case.window.pixels();
    [
        noise(pixels * case.features, 1),
        noise(pixels * case.features, 2),
        noise(pixels * case.values, 3),
        noise(case.places() * case.window.pixels(), 4),
        noise(case.gamma(), 5),
    ]
}

fn given(case: &Pairwise) -> [Moments; 2] {
    [case.delta(), case.hidden].map(|rows| Moments {
        mean: noise(rows, 6),
        variance: noise(rows, 7).iter().map(|v| v + 1.5).collect(),
        count: 1,
    })
}

fn assert_equals_its_definition(case: &Pairwise, statistics: Statistics) {
    let inputs = inputs(case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    let batch = statistics == Statistics::Batch;
    for &path in Path::available() {
        with_path(path, || {
            let moments = if batch { case.moments(slices) } else { given(case) };
            let fixed = (!batch).then_some(&moments);
            let out = case.forward(slices, &moments);
            assert_close(&out, &naive::pairwise(case, &slices.map(wide), fixed), 5e-6);
            let seed = noise(out.len(), 8);
            let grads = case.backward(slices, &moments, statistics, &seed);
            assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| {
                naive::pairwise(case, p, fixed)
            });
        });
    }
}

#[test]
fn every_relation_and_position_equals_the_definition_in_evaluation() {
    for relation in RELATIONS {
        for position in [Position::None, Position::Relative, Position::Absolute] {
            let case = case(relation, position, 3);
            assert_equals_its_definition(&case, Statistics::Given);
        }
    }
}

#[test]
fn every_relation_equals_the_definition_in_training() {
    for relation in RELATIONS {
        assert_equals_its_definition(&case(relation, Position::Relative, 3), Statistics::Batch);
    }
}

#[test]
fn large_footprints_equal_the_definition() {
    for size in [5, 7, 9, 11] {
        assert_equals_its_definition(&case(Relation::Subtraction, Position::Relative, size), Statistics::Batch);
    }
}

#[test]
fn narrow_images_in_large_batches_equal_each_by_itself() {
    for statistics in [Statistics::Given, Statistics::Batch] {
        let case = Pairwise { batch: 32, ..case(Relation::Subtraction, Position::Relative, 5) };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        let moments = if statistics == Statistics::Batch { case.moments(slices) } else { given(&case) };
        let alone = if statistics == Statistics::Batch { case.both_moments(slices) } else { given(&case) };
        assert_close(&case.forward(slices, &moments), &wide(&case.attend(slices, &alone)), 1e-5);
        let seed = noise(inputs[2].len(), 6);
        let expected = case.attend_backward(slices, &alone, statistics, &seed);
        for (grad, expected) in case.backward(slices, &moments, statistics, &seed).iter().zip(expected) {
            let largest = expected.iter().fold(1.0f32, |a, x| a.max(x.abs()));
            assert_close(grad, &wide(&expected), 1e-4 * f64::from(largest));
        }
    }
}

#[test]
fn one_thread_and_two_give_the_same_bytes() {
    let case = Pairwise { window: Window::new(19, 18, 5), ..case(Relation::Hadamard, Position::Relative, 5) };
    let inputs = inputs(&case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    assert_same_on_threads(|| {
        let moments = case.moments(slices);
        let out = case.forward(slices, &moments);
        let grads = case.backward(slices, &moments, Statistics::Batch, &out);
        [vec![out], grads.to_vec()].concat()
    });
}
