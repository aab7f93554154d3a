//! Additive attention: a small network scores every pair of decoder state and memory.
//! Bahdanau, Cho and Bengio 2014, arXiv:1409.0473.
//!
//! `e_nm = v_a . tanh(W_a s_n + U_a h_m)`, `out_n = sum_m softmax_m(e_nm) value_m`. A query that may
//! look at no key at all gets zeros, never NaN.
//!
//! Differences from the paper:
//! - values need not be the memory (the paper: `value = memory`);
//! - any number of queries at once; the paper's decoder computes one per step.

use burn::tensor::activation::softmax;
use burn::tensor::module::linear;
use burn::tensor::{Bool, Int, Tensor};

use regard_kernels::additive as kernels;

use super::{Attended, check};
use crate::Pass;
use crate::fused::{self, Kernel, Saved};

const NAME: &str = "additive";

/// The alignment network; `P` is its hidden width.
#[derive(Clone, Debug)]
pub struct AdditiveWeights {
    /// `W_a [P, Q]`, applied to the queries.
    pub query: Tensor<2>,
    /// `U_a [P, E]`, applied to the memory.
    pub key: Tensor<2>,
    /// `v_a [P]`, from hidden units to a score.
    pub energy: Tensor<1>,
}

/// A memory with its projection `U_a h_m`, computed once for all decoding steps.
#[derive(Clone, Debug)]
pub struct AdditiveMemory {
    key: Tensor<3>,
    value: Tensor<3>,
    padding: Option<Tensor<2, Bool>>,
}

/// `[B, N, Q], [B, M, E], [B, M, V] -> [B, N, V]`, weights `[B, N, M]`; `padding [B, M]` is true for keys that are padding.
///
/// # Panics
/// When the shapes do not fit together; the message names the axis and both sizes.
pub fn additive(
    query: Tensor<3>,
    memory: Tensor<3>,
    value: Tensor<3>,
    weights: &AdditiveWeights,
    padding: Option<Tensor<2, Bool>>,
    pass: &mut Pass,
) -> Attended<3, 3> {
    AdditiveMemory::new(memory, value, weights, padding).attend(query, weights, pass)
}

impl AdditiveMemory {
    /// `[B, M, E], [B, M, V]`, `padding [B, M]`.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    #[must_use]
    pub fn new(
        memory: Tensor<3>,
        value: Tensor<3>,
        weights: &AdditiveWeights,
        padding: Option<Tensor<2, Bool>>,
    ) -> Self {
        let [batch, keys, width] = memory.dims();
        let [hidden, key_width] = weights.key.dims();
        check::not_empty(NAME, "memory", &[("batch", batch), ("tokens", keys), ("width", width)]);
        check::not_empty(NAME, "value", &[("width", value.dims()[2])]);
        check::not_empty(NAME, "weights.key", &[("hidden units", hidden)]);
        check::agree(NAME, "width", ("memory", width), ("weights.key", key_width));
        check::agree(NAME, "batch", ("memory", batch), ("value", value.dims()[0]));
        check::agree(NAME, "tokens", ("memory", keys), ("value", value.dims()[1]));
        if let Some(padding) = &padding {
            check::agree(NAME, "batch", ("padding mask", padding.dims()[0]), ("memory", batch));
            check::agree(NAME, "tokens", ("padding mask", padding.dims()[1]), ("memory", keys));
        }
        Self { key: linear(memory, weights.key.clone().transpose(), None), value, padding }
    }

    /// The batch elements with these indices, in this order.
    #[must_use]
    pub fn select(&self, indices: &Tensor<1, Int>) -> Self {
        let pick = |tensor: &Tensor<3>| tensor.clone().select(0, indices.clone());
        let padding = self.padding.clone().map(|padding| padding.int().select(0, indices.clone()).bool());
        Self { key: pick(&self.key), value: pick(&self.value), padding }
    }

    /// `[B, N, Q] -> [B, N, V]`, weights `[B, N, M]`.
    ///
    /// # Panics
    /// When the shapes do not fit together.
    pub fn attend(&self, query: Tensor<3>, weights: &AdditiveWeights, pass: &mut Pass) -> Attended<3, 3> {
        let [batch, queries, width] = query.dims();
        let [_, keys, hidden] = self.key.dims();
        check::not_empty(NAME, "query", &[("tokens", queries), ("width", width)]);
        check::agree(NAME, "batch", ("query", batch), ("memory", self.key.dims()[0]));
        check::agree(NAME, "width", ("query", width), ("weights.query", weights.query.dims()[1]));
        check::agree(NAME, "hidden units", ("weights.query", weights.query.dims()[0]), ("weights.key", hidden));
        check::agree(NAME, "hidden units", ("weights.energy", weights.energy.dims()[0]), ("weights.key", hidden));

        let state = linear(query, weights.query.clone().transpose(), None);
        let energy = if fused::runs_on(&state) {
            let inputs =
                [state.into_dispatch(), self.key.clone().into_dispatch(), weights.energy.clone().into_dispatch()];
            fused::apply(Fused(kernels::Additive { batch, queries, keys, hidden }), inputs, [batch, queries, keys])
        } else {
            energies(state, self.key.clone(), weights.energy.clone())
        };
        let attention = match &self.padding {
            Some(padding) => {
                let padding = padding.clone().reshape([batch, 1, keys]).expand([batch, queries, keys]);
                // a finite fill keeps a row without any key finite; the second fill makes its weights zero
                softmax(energy.mask_fill(padding.clone(), -1e30), 2).mask_fill(padding, 0.0)
            }
            None => softmax(energy, 2),
        };
        pass.record_weights(&attention, |pass| pass.geometry(queries, keys));
        let out = attention.clone().matmul(self.value.clone());
        Attended { out, weights: pass.wants_weights().then_some(attention) }
    }
}

/// `[B, N, P], [B, M, P], [P] -> [B, N, M]` with Burn operations.
fn energies(state: Tensor<3>, key: Tensor<3>, energy: Tensor<1>) -> Tensor<3> {
    let ([batch, queries, hidden], [_, keys, _]) = (state.dims(), key.dims());
    let activity = (state.reshape([batch, queries, 1, hidden]) + key.reshape([batch, 1, keys, hidden])).tanh();
    linear(activity, energy.reshape([hidden, 1]), None).reshape([batch, queries, keys])
}

#[derive(Clone, Debug)]
struct Fused(kernels::Additive);

impl Kernel<3> for Fused {
    fn forward(&self, inputs: [&[f32]; 3]) -> (Vec<f32>, Vec<f32>) {
        (self.0.forward(inputs), Vec::new())
    }
    fn backward(&self, inputs: [&[f32]; 3], _: Saved, grad: &[f32]) -> [Vec<f32>; 3] {
        self.0.backward(inputs, grad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fixture, assert_close, assert_gradients_are_differences, distance, random, values};
    use burn::tensor::{Shape, TensorData};

    #[test]
    fn the_kernel_equals_ordinary_operations() {
        let (state, key, energy) = (random([2, 3, 21], 1).mul_scalar(4.0), random([2, 5, 21], 2), random([21], 3));
        let kernel = Fused(kernels::Additive { batch: 2, queries: 3, keys: 5, hidden: 21 });
        let inputs = [state.clone().into_dispatch(), key.clone().into_dispatch(), energy.clone().into_dispatch()];
        assert_close(&fused::apply(kernel, inputs, [2, 3, 5]), &energies(state, key, energy), 1e-5);
    }

    const SIZES: [usize; 7] = [2, 3, 5, 4, 6, 7, 8]; // B N M Q E V P

    fn weights(seed: u64) -> AdditiveWeights {
        let [.., query, memory, _, hidden] = SIZES;
        AdditiveWeights {
            query: random([hidden, query], seed),
            key: random([hidden, memory], seed + 1),
            energy: random([hidden], seed + 2),
        }
    }

    fn inputs(seed: u64) -> (Tensor<3>, Tensor<3>, Tensor<3>) {
        let [batch, queries, keys, query, memory, value, _] = SIZES;
        (
            random([batch, queries, query], seed),
            random([batch, keys, memory], seed + 1),
            random([batch, keys, value], seed + 2),
        )
    }

    fn mask(rows: &[[bool; 5]]) -> Tensor<2, Bool> {
        let data = TensorData::new(rows.concat(), Shape::new([rows.len(), 5]));
        Tensor::from_data(data, &crate::device::cpu())
    }

    /// Additive attention by its definition.
    fn naive(
        (query, memory, value): &(Tensor<3>, Tensor<3>, Tensor<3>),
        weights: &AdditiveWeights,
        padding: &[[bool; 5]],
    ) -> (Vec<f32>, Vec<f32>) {
        let [batch, queries, keys, query_width, memory_width, value_width, hidden] = SIZES;
        let (query, memory, value) = (values(query), values(memory), values(value));
        let (w, u, v) = (values(&weights.query), values(&weights.key), values(&weights.energy));
        let (mut out, mut attention) = (Vec::new(), Vec::new());
        for b in 0..batch {
            for n in 0..queries {
                let mut row = vec![0.0; keys];
                for m in 0..keys {
                    if padding[b][m] {
                        continue;
                    }
                    let mut energy = 0.0;
                    for p in 0..hidden {
                        let mut sum = 0.0;
                        for i in 0..query_width {
                            sum += w[p * query_width + i] * query[(b * queries + n) * query_width + i];
                        }
                        for i in 0..memory_width {
                            sum += u[p * memory_width + i] * memory[(b * keys + m) * memory_width + i];
                        }
                        energy += v[p] * sum.tanh();
                    }
                    row[m] = energy.exp();
                }
                let total: f32 = row.iter().sum();
                if total > 0.0 {
                    for w in &mut row {
                        *w /= total;
                    }
                }
                for i in 0..value_width {
                    out.push((0..keys).map(|m| row[m] * value[(b * keys + m) * value_width + i]).sum());
                }
                attention.extend(row);
            }
        }
        (out, attention)
    }

    fn run(
        (query, memory, value): (Tensor<3>, Tensor<3>, Tensor<3>),
        weights: &AdditiveWeights,
        padding: Option<Tensor<2, Bool>>,
    ) -> Attended<3, 3> {
        additive(query, memory, value, weights, padding, &mut Pass::recording())
    }

    #[test]
    fn it_equals_its_definition() {
        let rows = [[false, true, false, false, true], [false; 5]];
        let attended = run(inputs(1), &weights(9), Some(mask(&rows)));
        let (out, attention) = naive(&inputs(1), &weights(9), &rows);
        assert!(distance(&values(&attended.out), &out) < 1e-5);
        assert!(distance(&values(&attended.weights.unwrap()), &attention) < 1e-5);
    }

    #[test]
    fn it_equals_the_reference() {
        let fixture = Fixture::load("additive_attention");
        let weights = AdditiveWeights {
            query: fixture.tensor("model/W_a"),
            key: fixture.tensor("model/U_a"),
            energy: fixture.tensor("model/v_a"),
        };
        let memory: Tensor<3> = fixture.tensor("io/memory");
        let state = fixture.tensor::<2>("io/state").unsqueeze_dim(1);
        let padding = fixture.tensor::<2>("io/padding").greater_elem(0.5);
        let attended = run((state, memory.clone(), memory), &weights, Some(padding));
        assert_close(&attended.out.squeeze_dim(1), &fixture.tensor::<2>("io/context"), 1e-5);
        assert_close(&attended.weights.unwrap().squeeze_dim(1), &fixture.tensor::<2>("io/weights"), 1e-5);
    }

    #[test]
    fn rows_of_weights_sum_to_one() {
        let sums = run(inputs(3), &weights(4), None).weights.unwrap().sum_dim(2);
        assert_close(&sums.clone(), &sums.ones_like(), 1e-5);
    }

    #[test]
    fn padded_keys_change_nothing() {
        let padding = mask(&[[false, false, true, true, true], [false, true, true, true, true]]);
        let changed = |seed| {
            let (query, memory, value) = inputs(5);
            let hidden = padding.clone().unsqueeze_dim::<3>(2);
            let other = inputs(seed);
            let memory = memory.clone().mask_where(hidden.clone().expand(memory.shape()), other.1);
            let value = value.clone().mask_where(hidden.expand(value.shape()), other.2);
            run((query, memory, value), &weights(6), Some(padding.clone())).out
        };
        assert_close(&changed(7), &changed(8), 1e-6);
    }

    #[test]
    fn a_query_without_any_key_gets_zeros() {
        let attended = run(inputs(1), &weights(2), Some(mask(&[[true; 5], [false; 5]])));
        let first = attended.out.slice_dim(0, 0..1);
        assert_close(&first.clone(), &first.zeros_like(), 0.0);
        let first = attended.weights.unwrap().slice_dim(0, 0..1);
        assert_close(&first.clone(), &first.zeros_like(), 0.0);
    }

    #[test]
    fn a_batch_of_two_equals_two_batches_of_one() {
        let (query, memory, value) = inputs(11);
        let both = run((query.clone(), memory.clone(), value.clone()), &weights(12), None).out;
        for b in 0..2 {
            let one = |t: &Tensor<3>| t.clone().slice_dim(0, b..=b);
            let single = run((one(&query), one(&memory), one(&value)), &weights(12), None).out;
            assert_close(&one(&both), &single, 1e-6);
        }
    }

    #[test]
    fn a_projected_memory_serves_every_decoding_step() {
        let (query, memory, value) = inputs(13);
        let together = run((query.clone(), memory.clone(), value.clone()), &weights(14), None).out;
        let ready = AdditiveMemory::new(memory, value, &weights(14), None);
        for n in 0..query.dims()[1] {
            let step = ready.attend(query.clone().slice([0..2, n..n + 1]), &weights(14), &mut Pass::silent());
            assert!(step.weights.is_none(), "nothing is recorded");
            assert_close(&step.out, &together.clone().slice([0..2, n..n + 1]), 1e-5);
        }
    }

    #[test]
    fn recorded_and_silent_passes_agree() {
        let (query, memory, value) = inputs(15);
        let silent = additive(query, memory, value, &weights(16), None, &mut Pass::silent());
        let mut pass = Pass::recording();
        let (query, memory, value) = inputs(15);
        let recorded = additive(query, memory, value, &weights(16), None, &mut pass);
        assert_close(&silent.out, &recorded.out, 1e-5);
        let trace = pass.into_trace();
        assert_eq!(trace.names().collect::<Vec<_>>(), ["weights"]);
        assert_close(&trace.get::<3>("weights").unwrap(), &recorded.weights.unwrap(), 0.0);
    }

    #[test]
    fn gradients_are_finite_differences() {
        let (query, memory, value) = inputs(21);
        let w = weights(22);
        let padding = mask(&[[false, true, false, false, true], [false; 5]]);
        let named = [
            ("query", values(&query)),
            ("memory", values(&memory)),
            ("value", values(&value)),
            ("weights.query", values(&w.query)),
            ("weights.key", values(&w.key)),
            ("weights.energy", values(&w.energy)),
        ];
        assert_gradients_are_differences(&named, |t| {
            let weights = AdditiveWeights {
                query: t[3].clone().reshape(w.query.shape()),
                key: t[4].clone().reshape(w.key.shape()),
                energy: t[5].clone(),
            };
            let query = t[0].clone().reshape(query.shape());
            let memory = t[1].clone().reshape(memory.shape());
            let value = t[2].clone().reshape(value.shape());
            let padding = Some(padding.clone().to_device(&query.device()));
            additive(query, memory, value, &weights, padding, &mut Pass::silent()).out
        });
    }

    #[test]
    fn numbers_that_are_not_finite_neither_hang_nor_crash() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (query, memory, value) = inputs(1);
            let out = run((query.mul_scalar(bad), memory, value), &weights(2), None).out;
            assert_eq!(out.dims(), [2, 3, 7]);
        }
    }

    #[test]
    #[should_panic(expected = "additive: memory has width 6, weights.key has width 4")]
    fn a_memory_of_another_width_is_refused_by_name() {
        let wrong = AdditiveWeights { key: random([8, 4], 1), ..weights(1) };
        run(inputs(1), &wrong, None);
    }

    #[test]
    #[should_panic(expected = "additive: weights.energy has hidden units 3, weights.key has hidden units 8")]
    fn an_energy_of_another_width_is_refused_by_name() {
        let wrong = AdditiveWeights { energy: random([3], 1), ..weights(1) };
        run(inputs(1), &wrong, None);
    }

    #[test]
    #[should_panic(expected = "additive: padding mask has batch 1, memory has batch 2")]
    fn a_mask_for_another_batch_is_refused_by_name() {
        run(inputs(1), &weights(1), Some(mask(&[[false; 5]])));
    }
}
