//! Scores of additive attention: `score_nm = energy . tanh(state_n + key_m)`, without the activities `[N, M, P]`.

use rayon::prelude::*;

use crate::elementwise::add_all;
use crate::math::tanh;
use crate::simd::{Vector, kernel};
use crate::size;

/// `state [B, N, P]`, `key [B, M, P]`, `energy [P] -> [B, N, M]`
#[derive(Clone, Copy, Debug)]
pub struct Additive {
    pub batch: usize,
    pub queries: usize,
    pub keys: usize,
    pub hidden: usize,
}

impl Additive {
    /// The scores.
    #[must_use]
    pub fn forward(&self, [state, key, energy]: [&[f32]; 3]) -> Vec<f32> {
        self.check([state, key, energy]);
        let mut scores = vec![0.0; size::product("additive attention", &[self.batch, self.queries, self.keys])];
        scores.par_chunks_mut(self.keys).zip(state.par_chunks(self.hidden)).enumerate().for_each(
            |(row, (out, state))| {
                score_row(state, self.of_image(key, self.keys, row / self.queries), energy, out);
            },
        );
        scores
    }

    /// One gradient for each input.
    #[must_use]
    pub fn backward(&self, [state, key, energy]: [&[f32]; 3], grad: &[f32]) -> [Vec<f32>; 3] {
        self.check([state, key, energy]);
        let scores = size::product("additive attention", &[self.batch, self.queries, self.keys]);
        assert_eq!(grad.len(), scores, "additive attention: length of the gradient");
        let (n, m, p) = (self.queries, self.keys, self.hidden);
        let mut state_grad = vec![0.0; state.len()];
        let energies: Vec<Vec<f32>> = (state_grad.par_chunks_mut(p), state.par_chunks(p), grad.par_chunks(m))
            .into_par_iter()
            .enumerate()
            .map(|(row, (state_grad, state, grad))| {
                let mut energy_grad = vec![0.0; p];
                slope_row(state, self.of_image(key, m, row / n), energy, (grad, 1), state_grad, &mut energy_grad);
                energy_grad
            })
            .collect();
        let mut energy_grad = vec![0.0; p];
        add_all(&mut energy_grad, energies);

        // the same sum seen from the keys: every key meets all queries
        let mut key_grad = vec![0.0; key.len()];
        key_grad.par_chunks_mut(p).zip(key.par_chunks(p)).enumerate().for_each(|(row, (key_grad, key))| {
            let (image, column) = (row / m, row % m);
            let grad = &grad[image * n * m + column..(image + 1) * n * m];
            slope_row(key, self.of_image(state, n, image), energy, (grad, m), key_grad, &mut vec![0.0; p]);
        });
        [state_grad, key_grad, energy_grad]
    }

    fn of_image<'a>(&self, x: &'a [f32], tokens: usize, image: usize) -> &'a [f32] {
        &x[image * tokens * self.hidden..][..tokens * self.hidden]
    }

    fn check(&self, [state, key, energy]: [&[f32]; 3]) {
        let len = |tokens: usize| size::product("additive attention", &[self.batch, tokens, self.hidden]);
        assert_eq!(state.len(), len(self.queries), "additive attention: length of the state");
        assert_eq!(key.len(), len(self.keys), "additive attention: length of the key");
        assert_eq!(energy.len(), self.hidden, "additive attention: length of the energy");
    }
}

kernel!(fn score_row<'a>(state: &'a [f32], keys: &'a [f32], energy: &'a [f32], out: &'a mut [f32]) = score_row_body);
#[inline(always)]
fn score_row_body<V: Vector>(state: &[f32], keys: &[f32], energy: &[f32], out: &mut [f32]) {
    for (key, out) in keys.chunks_exact(state.len()).zip(out) {
        let mut sum = V::zero();
        for i in (0..state.len()).step_by(V::LANES) {
            // lanes beyond the end have no energy
            sum = tanh(V::get(state, i).add(V::get(key, i))).fma(V::get(energy, i), sum);
        }
        *out = sum.sum();
    }
}

kernel!(
    /// Gradients of one row against all `others`; `grads` holds theirs at the given stride.
    fn slope_row<'a>(row: &'a [f32], others: &'a [f32], energy: &'a [f32], grads: (&'a [f32], usize), row_grad: &'a mut [f32], energy_grad: &'a mut [f32]) = slope_row_body
);
#[inline(always)]
fn slope_row_body<V: Vector>(
    row: &[f32],
    others: &[f32],
    energy: &[f32],
    grads: (&[f32], usize),
    row_grad: &mut [f32],
    energy_grad: &mut [f32],
) {
    for (other, grad) in others.chunks_exact(row.len()).zip(grads.0.iter().step_by(grads.1)) {
        let grad = V::splat(*grad);
        for i in (0..row.len()).step_by(V::LANES) {
            let activity = tanh(V::get(row, i).add(V::get(other, i)));
            grad.fma(activity, V::get(energy_grad, i)).put(energy_grad, i);
            let slope = V::splat(1.0).sub(activity.mul(activity)).mul(V::get(energy, i));
            grad.fma(slope, V::get(row_grad, i)).put(row_grad, i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    fn naive(case: &Additive, p: &[Vec<f64>]) -> Vec<f64> {
        let Additive { batch, queries, keys, hidden } = *case;
        let mut scores = Vec::new();
        for (b, n, m) in (0..batch).flat_map(|b| (0..queries).flat_map(move |n| (0..keys).map(move |m| (b, n, m)))) {
            let activity = |c: usize| (p[0][(b * queries + n) * hidden + c] + p[1][(b * keys + m) * hidden + c]).tanh();
            scores.push((0..hidden).map(|c| p[2][c] * activity(c)).sum());
        }
        scores
    }

    fn inputs(case: &Additive) -> [Vec<f32>; 3] {
        let state = noise(case.batch * case.queries * case.hidden, 1).iter().map(|x| 3.0 * x).collect();
        [state, noise(case.batch * case.keys * case.hidden, 2), noise(case.hidden, 3)]
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        for hidden in [1, 7, 16, 33] {
            let case = Additive { batch: 2, queries: 3, keys: 5, hidden };
            let inputs = inputs(&case);
            let slices = inputs.each_ref().map(Vec::as_slice);
            for &path in Path::available() {
                with_path(path, || {
                    let out = case.forward(slices);
                    assert_close(&out, &naive(&case, &slices.map(wide)), 3e-6);
                    let seed = noise(out.len(), 4);
                    let grads = case.backward(slices, &seed);
                    assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| naive(&case, p));
                });
            }
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Additive { batch: 2, queries: 31, keys: 17, hidden: 20 };
        let inputs = inputs(&case);
        let slices = inputs.each_ref().map(Vec::as_slice);
        assert_same_on_threads(|| {
            let out = case.forward(slices);
            let grads = case.backward(slices, &out);
            [vec![out], grads.to_vec()].concat()
        });
    }
}
