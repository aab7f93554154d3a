use super::*;
use crate::attention::gamma::samples::{Widths, after};
use crate::attention::naive;
use crate::testing::{assert_close, assert_gradients_are_differences, assert_paths_agree, noise, random, values};

const RELATIONS: [PairRelation; 5] = [
    PairRelation::Summation,
    PairRelation::Subtraction,
    PairRelation::Concatenation,
    PairRelation::Hadamard,
    PairRelation::Dot,
];
const POSITIONS: [PairPosition; 3] = [PairPosition::Relative, PairPosition::Absolute, PairPosition::None];

/// Three relation channels, four value channels, two weight channels.
fn widths(options: &Pairwise) -> Widths {
    Widths { inputs: options.relation.channels(3) + options.position.channels(), hidden: 4, outputs: 2 }
}

fn maps(batch: usize, height: usize, width: usize) -> [Tensor<4>; 3] {
    [(3, 31), (3, 32), (4, 33)].map(|(channels, seed)| random([batch, channels, height, width], seed))
}

fn planes(options: &Pairwise, height: usize, width: usize) -> Option<Tensor<3>> {
    (options.position != PairPosition::None).then(|| random([2, height, width], 34))
}

fn attend([phi, psi, beta]: [Tensor<4>; 3], options: &Pairwise) -> (Tensor<4>, Tensor<4>) {
    let [_, _, height, width] = phi.dims();
    let (gamma, position) = (widths(options).random(7), planes(options, height, width));
    let attended = pairwise(phi, psi, beta, position, &gamma, options, &mut Pass::recording());
    (attended.out, attended.weights.unwrap())
}

fn content_only(window: usize) -> Pairwise {
    Pairwise { relation: PairRelation::Subtraction, position: PairPosition::None, window }
}

#[test]
fn every_relation_and_position_is_its_naive_twin() {
    for relation in RELATIONS {
        for position in POSITIONS {
            for window in [1, 3, 5] {
                let options = Pairwise { relation, position, window };
                let inputs = maps(2, 4, 3);
                let (out, weights) = attend(inputs.clone(), &options);
                let planes = planes(&options, 4, 3).map(|planes| naive::Images::from(&planes.unsqueeze::<4>()));
                let [phi, psi, beta] = inputs.each_ref().map(naive::Images::from);
                let twin = naive::Gamma::from(&widths(&options).random(7));
                let (twin_out, twin_weights) = naive::pairwise([&phi, &psi, &beta], planes.as_ref(), &twin, &options);
                naive::assert_twin(&out, &twin_out);
                naive::assert_twin(&weights, &twin_weights);
            }
        }
    }
}

#[test]
fn every_footprint_of_the_paper_is_its_naive_twin() {
    for window in [3, 5, 7, 9, 11] {
        let options = Pairwise { relation: PairRelation::Subtraction, position: PairPosition::Relative, window };
        let inputs = maps(1, 6, 7);
        let (out, weights) = attend(inputs.clone(), &options);
        assert_eq!((out.dims(), weights.dims()), ([1, 4, 6, 7], [1, 2, window * window, 42]));
        let planes = planes(&options, 6, 7).map(|planes| naive::Images::from(&planes.unsqueeze::<4>()));
        let [phi, psi, beta] = inputs.each_ref().map(naive::Images::from);
        let twin = naive::Gamma::from(&widths(&options).random(7));
        naive::assert_twin(&out, &naive::pairwise([&phi, &psi, &beta], planes.as_ref(), &twin, &options).0);
    }
}

#[test]
fn rows_of_weights_sum_to_one() {
    for relation in RELATIONS {
        let options = Pairwise { relation, position: PairPosition::Relative, window: 5 };
        let (_, weights) = attend(maps(2, 4, 5), &options);
        assert_close(&weights.sum_dim(2), &Tensor::ones([2, 2, 1, 20], &crate::device::cpu()), 1e-6);
    }
}

/// The footprint of the centre of a `k x k` image is the image.
fn middle(map: Tensor<4>) -> Tensor<4> {
    let [_, _, height, width] = map.dims();
    map.narrow(2, height / 2, 1).narrow(3, width / 2, 1)
}

/// Shuffles the pixels of a 3x3 image around its middle.
fn shuffled(map: Tensor<4>) -> Tensor<4> {
    const ORDER: [i32; 9] = [7, 2, 5, 0, 4, 8, 1, 3, 6];
    let [batch, channels, _, _] = map.dims();
    let order = Tensor::from_data(ORDER, &crate::device::cpu());
    map.reshape([batch, channels, 9]).select(2, order).reshape([batch, channels, 3, 3])
}

#[test]
fn without_position_a_footprint_is_a_set() {
    for relation in RELATIONS {
        let options = Pairwise { relation, ..content_only(3) };
        let inputs = maps(2, 3, 3);
        let (out, weights) = attend(inputs.clone(), &options);
        let (shuffled_out, shuffled_weights) = attend(inputs.map(shuffled), &options);
        assert_close(&middle(shuffled_out), &middle(out), 1e-6);
        // the weights move with their pixels
        let of_middle = |weights: Tensor<4>| weights.narrow(3, 4, 1).reshape([2, 2, 3, 3]);
        assert_close(&of_middle(shuffled_weights), &shuffled(of_middle(weights)), 1e-6);
    }
}

#[test]
fn with_position_the_order_in_a_footprint_matters() {
    for position in [PairPosition::Relative, PairPosition::Absolute] {
        let options = Pairwise { position, ..content_only(3) };
        let inputs = maps(1, 3, 3);
        let (out, _) = attend(inputs.clone(), &options);
        let (shuffled_out, _) = attend(inputs.map(shuffled), &options);
        assert!((middle(shuffled_out) - middle(out)).abs().max().into_scalar::<f32>() > 1e-3);
    }
}

#[test]
fn without_position_the_operator_commutes_with_mirroring_and_rotating() {
    let inputs = maps(1, 5, 5);
    for turn in [|map: Tensor<4>| map.flip([3]), |map: Tensor<4>| map.flip([2]), |map: Tensor<4>| map.swap_dims(2, 3)] {
        let (out, _) = attend(inputs.clone(), &content_only(5));
        let (turned, _) = attend(inputs.clone().map(turn), &content_only(5));
        assert_close(&turned, &turn(out), 1e-6);
    }
}

#[test]
fn a_shift_of_all_coordinates_changes_nothing_when_they_are_relative() {
    let options = Pairwise { position: PairPosition::Relative, ..content_only(3) };
    let ([phi, psi, beta], gamma) = (maps(1, 4, 4), widths(&options).random(7));
    let run = |position: Tensor<3>| {
        let inputs = (phi.clone(), psi.clone(), beta.clone());
        pairwise(inputs.0, inputs.1, inputs.2, Some(position), &gamma, &options, &mut Pass::silent()).out
    };
    let position = random([2, 4, 4], 34);
    assert_close(&run(position.clone().add_scalar(0.5)), &run(position), 1e-5);
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    let options = Pairwise { position: PairPosition::Relative, ..content_only(3) };
    let inputs = maps(2, 4, 3);
    let (both, _) = attend(inputs.clone(), &options);
    for sample in 0..2 {
        let (alone, _) = attend(inputs.clone().map(|map| map.narrow(0, sample, 1)), &options);
        assert_close(&both.clone().narrow(0, sample, 1), &alone, 1e-6);
    }
}

#[test]
fn recorded_equals_unrecorded() {
    for relation in RELATIONS {
        for position in POSITIONS {
            let options = Pairwise { relation, position, window: 3 };
            let ([phi, psi, beta], gamma) = (maps(2, 4, 5), widths(&options).random(7));
            let (recorded, weights) = attend([phi.clone(), psi.clone(), beta.clone()], &options);
            let mut pass = Pass::silent();
            let silent =
                pairwise(phi.clone(), psi.clone(), beta.clone(), planes(&options, 4, 5), &gamma, &options, &mut pass);
            assert!(silent.weights.is_none());
            assert_close(&silent.out, &recorded, 1e-5);
            let mut pass = Pass::recording();
            pairwise(phi, psi, beta, planes(&options, 4, 5), &gamma, &options, &mut pass);
            assert_close(&pass.into_trace().get::<4>("weights").unwrap(), &weights, 0.0);
        }
    }
}

#[test]
fn in_training_recorded_and_unrecorded_agree_in_output_gradients_and_running_moments() {
    let device = crate::device::cpu().autodiff();
    for relation in RELATIONS {
        for position in POSITIONS {
            let options = Pairwise { relation, position, window: 3 };
            let run = |mut pass: Pass| {
                let gamma = widths(&options).training(7);
                let [phi, psi, beta] =
                    maps(2, 4, 5).map(|map| Tensor::from_data(map.into_data(), &device).require_grad());
                let place = planes(&options, 4, 5)
                    .map(|planes| Tensor::<3>::from_data(planes.into_data(), &device).require_grad());
                let inputs = (phi.clone(), psi.clone(), beta.clone(), place.clone());
                let out = pairwise(inputs.0, inputs.1, inputs.2, inputs.3, &gamma, &options, &mut pass).out;
                let seed = crate::testing::random_on([2, 4, 4, 5], 8, &device);
                let grads = (out.clone() * seed).sum().backward();
                let mut all = after(&gamma, &grads);
                all.push(("out", values(&out)));
                for (name, map) in [("phi", phi), ("psi", psi), ("beta", beta)] {
                    all.push((name, values(&map.grad(&grads).unwrap())));
                }
                all.extend(place.map(|place| ("position", values(&place.grad(&grads).unwrap()))));
                all
            };
            assert_paths_agree(&format!("{relation:?} {position:?}"), &run(Pass::silent()), &run(Pass::recording()));
        }
    }
}

#[test]
fn gradients_are_differences() {
    for relation in RELATIONS {
        for position in [PairPosition::Relative, PairPosition::Absolute] {
            let options = Pairwise { relation, position, window: 3 };
            let widths = widths(&options);
            let mut inputs = vec![
                ("phi", noise(3 * 12, 1)),
                ("psi", noise(3 * 12, 2)),
                ("beta", noise(4 * 12, 3)),
                ("position", noise(2 * 12, 4)),
            ];
            inputs.extend(widths.smooth_parameters(5));
            assert_gradients_are_differences(&inputs, |inputs| {
                let map = |index: usize, channels: usize| inputs[index].clone().reshape([1, channels, 3, 4]);
                let position = inputs[3].clone().reshape([2, 3, 4]);
                let gamma = widths.gamma(&inputs[4..]);
                pairwise(map(0, 3), map(1, 3), map(2, 4), Some(position), &gamma, &options, &mut Pass::silent()).out
            });
        }
    }
}

#[test]
fn what_is_not_a_number_stays_where_it_is_seen() {
    for poison in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for which in 0..3 {
            let mut inputs = maps(1, 5, 5);
            inputs[which] = inputs[which].clone().slice_fill([0..1, 0..1, 0..1, 0..1], poison);
            for mut pass in [Pass::recording(), Pass::silent()] {
                let ([phi, psi, beta], gamma) = (inputs.clone(), widths(&content_only(3)).random(7));
                let out = pairwise(phi, psi, beta, None, &gamma, &content_only(3), &mut pass).out;
                let far = values(&out.slice([0..1, 0..4, 2..5, 2..5]));
                assert!(far.iter().all(|value| value.is_finite()), "{poison} in input {which} reached {far:?}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "pairwise: phi has channels 3, psi has channels 2")]
fn features_of_different_widths_are_refused() {
    let [phi, _, beta] = maps(1, 3, 3);
    attend([phi, random([1, 2, 3, 3], 1), beta], &content_only(3));
}

#[test]
#[should_panic(expected = "pairwise: gamma has channels 3, the relation has channels 6")]
fn a_gamma_for_another_relation_is_refused() {
    let ([phi, psi, beta], gamma) = (maps(1, 3, 3), widths(&content_only(3)).random(1));
    let options = Pairwise { relation: PairRelation::Concatenation, ..content_only(3) };
    pairwise(phi, psi, beta, None, &gamma, &options, &mut Pass::silent());
}

#[test]
#[should_panic(expected = "pairwise: position has planes 0, the option has planes 2")]
fn a_missing_position_is_named() {
    let options = Pairwise { position: PairPosition::Relative, ..content_only(3) };
    let ([phi, psi, beta], gamma) = (maps(1, 3, 3), widths(&options).random(1));
    pairwise(phi, psi, beta, None, &gamma, &options, &mut Pass::silent());
}

#[test]
#[should_panic(expected = "pairwise: window 7 reflects 3 beyond the edge, image has height 3, needs at least 4")]
fn a_footprint_larger_than_its_reflection_is_named() {
    attend(maps(1, 3, 5), &content_only(7));
}

#[test]
#[should_panic(expected = "pairwise: window must be odd, got 4")]
fn an_even_footprint_is_refused() {
    attend(maps(1, 5, 5), &content_only(4));
}

#[test]
#[should_panic(expected = "pairwise: 2 weight channels do not divide beta channels 3")]
fn weights_that_cannot_be_shared_evenly_are_refused() {
    let [phi, psi, _] = maps(1, 3, 3);
    attend([phi, psi, random([1, 3, 3, 3], 1)], &content_only(3));
}
