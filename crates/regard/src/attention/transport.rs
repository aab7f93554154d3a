//! Optimal transport between two sets of tokens, such as words and regions: how much of each goes to each at the least cost.
//! Xie et al. 2018, "A Fast Proximal Point Method for Computing Exact Wasserstein Distance", arXiv:1802.04307 (IPOT), as UNITER
//! uses it (Chen et al. 2019, arXiv:1909.11740).
//!
//! With costs `C` of `N` words and `R` regions: `A = exp(-C' / beta)`, `T = 1`, `s = 1/N`; repeat `Q = A * T`,
//! `d = 1 / (R Q s)`, `s = 1 / (N Q' d)`, `T = d Q s`. Every word and region of a sample has the same mass.
//!
//! No gradient goes through the plan, as upstream: it is a constant of the costs that it adds up.

use burn::tensor::{Bool, Tensor};

use super::check;

/// Options of the transport.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TransportOptions {
    /// Costs are divided by it before the exponential.
    pub beta: f64,
    pub iterations: usize,
}

/// UNITER's.
impl Default for TransportOptions {
    fn default() -> Self {
        Self { beta: 0.5, iterations: 50 }
    }
}

/// The transport plan: how much of each region goes to each word.
#[derive(Clone, Debug)]
pub struct Transport {
    /// `[B, R, N]`; rows and columns of padding are zero, all others sum to one over their number.
    pub plan: Tensor<3>,
    /// The cost of the plan, `[B]`: it sends gradients to the tokens.
    pub distance: Tensor<1>,
}

/// Transport of regions `[B, R, D]` to words `[B, N, D]` at one minus the cosine of each pair. Padding is `[B, N]` and `[B, R]`,
/// true where there is nothing.
///
/// # Panics
/// When batches or widths differ, or a mask is of another size.
pub fn cosine_transport(
    [words, regions]: [Tensor<3>; 2],
    [word_padding, region_padding]: [Option<Tensor<2, Bool>>; 2],
    options: TransportOptions,
) -> Transport {
    let ([batch, word_count, dim], [_, region_count, _]) = (words.dims(), regions.dims());
    check::agree("transport", "batch", ("words", batch), ("regions", regions.dims()[0]));
    check::agree("transport", "width", ("words", dim), ("regions", regions.dims()[2]));
    let device = words.device();
    let present = |padding: Option<Tensor<2, Bool>>, count: usize, what: &str| match padding {
        Some(padding) => {
            check::agree("transport", "batch", (what, padding.dims()[0]), ("tokens", batch));
            check::agree("transport", "tokens", (what, padding.dims()[1]), ("tokens", count));
            padding.bool_not().float()
        }
        None => Tensor::ones([batch, count], &device),
    };
    let words_there = present(word_padding, word_count, "padding of words");
    let regions_there = present(region_padding, region_count, "padding of regions");
    let both =
        regions_there.clone().reshape([batch, region_count, 1]) * words_there.clone().reshape([batch, 1, word_count]);
    // [B, R, N]
    let cost = (unit(regions).matmul(unit(words).transpose()).neg() + 1.0) * both.clone();
    let plan = ipot(cost.clone().detach(), [regions_there.detach(), words_there.detach()], options) * both.detach();
    let distance = (cost * plan.clone()).sum_dim(2).sum_dim(1).reshape([batch]);
    Transport { plan, distance }
}

/// Vectors of length one; those shorter than 1e-5 stay short, as upstream.
fn unit(x: Tensor<3>) -> Tensor<3> {
    let norms = x.clone().square().sum_dim(2).sqrt().clamp_min(1e-5);
    x / norms
}

/// The plan `[B, R, N]` for costs of the same shape, with 1 for rows and columns that are there and 0 for others.
fn ipot(cost: Tensor<3>, [rows, columns]: [Tensor<2>; 2], options: TransportOptions) -> Tensor<3> {
    let [batch, row_count, column_count] = cost.dims();
    let counts = |there: &Tensor<2>| there.clone().sum_dim(1).reshape([batch, 1, 1]);
    let (row_total, column_total) = (counts(&rows), counts(&columns));
    let [rows, columns] = [rows.reshape([batch, row_count, 1]), columns.reshape([batch, 1, column_count])];
    let both = rows.clone() * columns.clone();
    let kernel = (cost / -options.beta).exp() * both.clone();
    // a padded row or column divides by one and is then set to zero
    let (no_row, no_column) = (rows.clone().neg() + 1.0, columns.clone().neg() + 1.0);
    let mut plan = both;
    let mut sigma = columns.clone() / column_total.clone();
    for _ in 0..options.iterations {
        let product = kernel.clone() * plan;
        // [B, R, 1]
        let sums = (product.clone() * sigma).sum_dim(2) * row_total.clone();
        let delta = rows.clone() / (sums + no_row.clone());
        // [B, 1, N]
        let sums = (product.clone() * delta.clone()).sum_dim(1) * column_total.clone();
        sigma = columns.clone() / (sums + no_column.clone());
        plan = delta * product * sigma.clone();
    }
    plan
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random, values};
    use burn::tensor::TensorData;

    /// The plan by its definition, for one sample: `cost[r][n]`.
    fn naive(cost: &[Vec<f64>], options: TransportOptions) -> Vec<Vec<f64>> {
        let (rows, columns) = (cost.len(), cost[0].len());
        let mut plan = vec![vec![1.0; columns]; rows];
        let mut sigma = vec![1.0 / columns as f64; columns];
        for _ in 0..options.iterations {
            let mut product = plan.clone();
            for r in 0..rows {
                for n in 0..columns {
                    product[r][n] *= (-cost[r][n] / options.beta).exp();
                }
            }
            let mut delta = vec![0.0; rows];
            for r in 0..rows {
                let sum: f64 = (0..columns).map(|n| product[r][n] * sigma[n]).sum();
                delta[r] = 1.0 / (rows as f64 * sum);
            }
            for n in 0..columns {
                let sum: f64 = (0..rows).map(|r| product[r][n] * delta[r]).sum();
                sigma[n] = 1.0 / (columns as f64 * sum);
            }
            for r in 0..rows {
                for n in 0..columns {
                    plan[r][n] = delta[r] * product[r][n] * sigma[n];
                }
            }
        }
        plan
    }

    fn costs(words: &[f32], regions: &[f32], dim: usize) -> Vec<Vec<f64>> {
        let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let cosine = |a: &[f32], b: &[f32]| dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
        let row = |region: &[f32]| words.chunks(dim).map(|word| 1.0 - cosine(region, word)).collect();
        regions.chunks(dim).map(row).collect()
    }

    fn mask(shape: [usize; 2], hidden: &[bool]) -> Tensor<2, Bool> {
        Tensor::from_data(TensorData::new(hidden.to_vec(), shape), &cpu())
    }

    const NOTHING_HIDDEN: [Option<Tensor<2, Bool>>; 2] = [None, None];

    #[test]
    fn the_plan_is_that_of_the_definition() {
        let (words, regions) = (random([2, 5, 6], 1), random([2, 3, 6], 2));
        let options = TransportOptions::default();
        let found = cosine_transport([words.clone(), regions.clone()], NOTHING_HIDDEN, options);
        let (words, regions, plans) = (values(&words), values(&regions), values(&found.plan));
        for sample in 0..2 {
            let cost = costs(&words[sample * 30..][..30], &regions[sample * 18..][..18], 6);
            let plan = naive(&cost, options);
            for (ours, expected) in plans[sample * 15..][..15].iter().zip(plan.concat()) {
                assert!((f64::from(*ours) - expected).abs() < 1e-5, "{ours} {expected}");
            }
            let distance: f64 = cost.concat().iter().zip(plan.concat()).map(|(cost, part)| cost * part).sum();
            assert!((f64::from(values(&found.distance)[sample]) - distance).abs() < 1e-5);
        }
    }

    #[test]
    fn every_word_and_region_gives_all_that_it_has() {
        let found =
            cosine_transport([random([1, 4, 6], 1), random([1, 7, 6], 2)], NOTHING_HIDDEN, TransportOptions::default());
        let columns = values(&found.plan.clone().sum_dim(1));
        assert!(columns.iter().all(|sum| (sum - 0.25).abs() < 1e-4), "{columns:?}");
        let rows = values(&found.plan.sum_dim(2));
        assert!(rows.iter().all(|sum| (sum - 1.0 / 7.0).abs() < 1e-2), "{rows:?}");
    }

    #[test]
    fn padding_changes_nothing_and_gets_nothing() {
        let (words, regions) = (random([1, 5, 6], 1), random([1, 4, 6], 2));
        let padding =
            [Some(mask([1, 5], &[false, false, false, true, true])), Some(mask([1, 4], &[false, false, false, true]))];
        let padded = cosine_transport([words.clone(), regions.clone()], padding, TransportOptions::default());
        let alone = [words.narrow(1, 0, 3), regions.narrow(1, 0, 3)];
        let alone = cosine_transport(alone, NOTHING_HIDDEN, TransportOptions::default());
        assert_close(&padded.plan.clone().slice([0..1, 0..3, 0..3]), &alone.plan, 1e-6);
        assert_close(&padded.distance, &alone.distance, 1e-5);
        assert_eq!(values(&padded.plan.clone().narrow(1, 3, 1)), [0.0; 5]);
        assert_eq!(values(&padded.plan.narrow(2, 3, 2)), [0.0; 8]);
    }

    #[test]
    fn equal_sets_cost_nothing_and_a_single_pair_its_cost() {
        let x = random([1, 3, 6], 1);
        let sharp = TransportOptions { beta: 0.05, iterations: 200 };
        let same = cosine_transport([x.clone(), x.clone()], NOTHING_HIDDEN, sharp);
        assert!(values(&same.distance)[0].abs() < 1e-3);
        let single = [x.clone().narrow(1, 0, 1), x.clone().narrow(1, 1, 1)];
        let found = cosine_transport(single, NOTHING_HIDDEN, TransportOptions::default());
        let x = values(&x);
        let cost = costs(&x[..6], &x[6..12], 6)[0][0];
        assert!(
            (f64::from(values(&found.distance)[0]) - cost).abs() < 1e-5 && (values(&found.plan)[0] - 1.0).abs() < 1e-5
        );
    }

    #[test]
    fn the_gradient_is_that_of_costs_under_a_plan_that_stays() {
        let (words, regions) = (noise(4 * 6, 1), noise(3 * 6, 2));
        let shaped = |x: &Tensor<1>, count: usize| x.clone().reshape([1, count, 6]);
        let plan = {
            let tensor = |x: &[f32]| Tensor::<1>::from_floats(x, &cpu());
            let both = [shaped(&tensor(&words), 4), shaped(&tensor(&regions), 3)];
            values(&cosine_transport(both, NOTHING_HIDDEN, TransportOptions::default()).plan)
        };
        // the same costs under a plan that is given
        assert_gradients_are_differences(&[("words", words.clone()), ("regions", regions.clone())], |x| {
            let plan = Tensor::<3>::from_data(TensorData::new(plan.clone(), [1, 3, 4]), &x[0].device());
            let cost = unit(shaped(&x[1], 3)).matmul(unit(shaped(&x[0], 4)).transpose()).neg() + 1.0;
            (cost * plan).sum()
        });
        let device = cpu().autodiff();
        let leaf = |x: &[f32]| Tensor::<1>::from_floats(x, &device).require_grad();
        let (words, regions) = (leaf(&words), leaf(&regions));
        let both = [shaped(&words, 4), shaped(&regions, 3)];
        let found = cosine_transport(both, NOTHING_HIDDEN, TransportOptions::default());
        let ours = found.distance.sum().backward();
        let plan = Tensor::<3>::from_data(TensorData::new(plan.clone(), [1, 3, 4]), &device);
        let (words_3d, regions_3d) = (shaped(&words, 4), shaped(&regions, 3));
        let fixed = ((unit(regions_3d).matmul(unit(words_3d).transpose()).neg() + 1.0) * plan).sum().backward();
        for leaf in [&words, &regions] {
            assert_close(&leaf.grad(&ours).unwrap(), &leaf.grad(&fixed).unwrap(), 1e-5);
        }
    }

    #[test]
    #[should_panic(expected = "transport: words has width 6, regions has width 5")]
    fn tokens_of_different_widths_are_named() {
        let _ =
            cosine_transport([random([1, 2, 6], 1), random([1, 2, 5], 2)], NOTHING_HIDDEN, TransportOptions::default());
    }
}
