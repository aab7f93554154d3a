use super::*;
use crate::gamma::Statistics;
use crate::naive::{self, assert_close, assert_differences, noise, wide};
use crate::simd::{Path, with_path};

const RELATIONS: [Relation; 5] =
    [Relation::Summation, Relation::Subtraction, Relation::Hadamard, Relation::Concatenation, Relation::Dot];

fn case(relation: Relation, position: Position, size: usize) -> Pairwise {
    let window = Window { height: 6, width: 7, size };
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
fn one_thread_and_two_give_the_same_bytes() {
    let case = Pairwise {
        window: Window { height: 19, width: 18, size: 5 },
        ..case(Relation::Hadamard, Position::Relative, 5)
    };
    let inputs = inputs(&case);
    let slices = inputs.each_ref().map(Vec::as_slice);
    let run = |threads| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(|| {
            let moments = case.moments(slices);
            let out = case.forward(slices, &moments);
            let grads = case.backward(slices, &moments, Statistics::Batch, &out);
            (out, grads)
        })
    };
    assert_eq!(run(1), run(2));
}
