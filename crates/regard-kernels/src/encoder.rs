//! One fused pre-norm transformer block: a few pictures at a time stay in the cache from the first norm to the last
//! residual sum, and threads do not synchronise inside the block.

use rayon::prelude::*;

use crate::attention::{BLOCK, softmax_row_backward};
use crate::elementwise::{add_all, piece, written, written_pair, written_with};
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, multiply_rows, push_rows};
use crate::heads::Head;
use crate::parallel::with_scratch;
use crate::product::{self, Matrix, Size, transpose, transpose_strided};
use crate::size;
use crate::uninit::{UninitWriter, new_array};
use crate::{gelu, layer_norm};

/// Fewest rows of a group of pictures: enough for products to be worth their packed sides.
const ROWS: usize = 96;
/// Most parts that sum gradients of the parameters, and most numbers in all of them.
const PARTS: usize = 8;
const NUMBERS: usize = 1 << 26;

/// Sizes of a block: `x = x + proj(attention(qkv(norm1(x))))`, then `x = x + fc2(gelu(fc1(norm2(x))))`.
#[derive(Clone, Copy, Debug)]
pub struct Encoder {
    /// Of one picture.
    pub tokens: usize,
    pub dim: usize,
    pub heads: usize,
    /// Width between the two layers of the MLP.
    pub inner: usize,
    pub epsilon: f32,
}

/// Names of the parameters, in the order in which they and their gradients are passed.
///
/// Weights of linear maps are `[out, in]`.
pub const PARAMETERS: [&str; 12] = [
    "norm1.weight",
    "norm1.bias",
    "qkv.weight",
    "qkv.bias",
    "proj.weight",
    "proj.bias",
    "norm2.weight",
    "norm2.bias",
    "fc1.weight",
    "fc1.bias",
    "fc2.weight",
    "fc2.bias",
];

/// What the forward pass saves of a group of pictures for the backward pass.
struct Saved<'a> {
    /// `[rows, 3D]`
    qkv: &'a [f32],
    /// `[rows, D]`, the output of the heads
    attended: &'a [f32],
    /// `[rows, D]`, after the first sum
    middle: &'a [f32],
    /// `[rows, M]`, before the activation
    inner: &'a [f32],
    /// Mean and scale of each row in both norms: `[rows, 2]` each
    norms: [&'a [f32]; 2],
    /// Log-sum-exp of each query: `[pictures, A, N]`
    lse: &'a [f32],
}

impl Encoder {
    /// Numbers of each parameter.
    #[must_use]
    pub fn lengths(&self) -> [usize; 12] {
        let (d, m) = (self.dim, self.inner);
        // the largest of them, so that none wraps
        size::product("encoder", &[3, d, d]);
        size::product("encoder", &[d, m]);
        [d, d, 3 * d * d, 3 * d, d * d, d, d, d, m * d, m, d * m, d]
    }

    /// The output, and what [`backward`](Self::backward) needs.
    #[must_use]
    pub fn forward(&self, x: &[f32], parameters: [&[f32]; 12]) -> (Vec<f32>, Vec<f32>) {
        self.check(x, &parameters);
        let (d, maps) = (self.dim, self.maps(&parameters));
        let (rows, group) = (x.len() / d, self.group());
        let pieces = [d, self.saved()].map(|width| group * width);
        let [out, saved] = written_pair([x.len(), rows * self.saved()], pieces, |index, out, saved| {
            self.forward_group(piece(x, index, group * d), &maps, &parameters, saved, out);
        });
        (out, saved)
    }

    /// The output alone.
    #[must_use]
    pub fn infer(&self, x: &[f32], parameters: [&[f32]; 12]) -> Vec<f32> {
        self.check(x, &parameters);
        let maps = self.maps(&parameters);
        let group = self.group() * self.dim;
        written(x.len(), group, |index, out| {
            let x = piece(x, index, group);
            with_scratch(x.len() / self.dim * self.saved(), |saved| {
                self.forward_group(x, &maps, &parameters, &mut UninitWriter::overwrite(saved), out);
            });
        })
    }

    /// The packed weights of the linear layers for the forward pass.
    fn maps(&self, parameters: &[&[f32]; 12]) -> [Panels; 4] {
        let (d, m) = (self.dim, self.inner);
        [(2, d, 3 * d), (4, d, d), (8, d, m), (10, m, d)]
            .map(|(map, inputs, outputs)| Panels::new(Matrix::transposed(parameters[map], inputs), inputs, outputs))
    }

    fn forward_group(
        &self,
        x: &[f32],
        maps: &[Panels; 4],
        parameters: &[&[f32]; 12],
        saved: &mut UninitWriter,
        out: &mut UninitWriter,
    ) {
        let [norm1, norm1_bias, _, qkv_bias, _, proj, norm2, norm2_bias, _, fc1, _, fc2] = *parameters;
        let (d, m, epsilon) = (self.dim, self.inner, self.epsilon);
        let rows = x.len() / d;
        let lengths = self.saved_widths().map(|width| rows * width);
        saved.push_parts(lengths, |[qkv, attended, middle, inner, first_norm, second_norm, lse]| {
            for part in [&mut *attended, first_norm, second_norm, lse] {
                part.push_zeros(part.room());
            }
            let mut normed = new_array(x.len(), |normed| {
                layer_norm::forward_rows(x, norm1, norm1_bias, epsilon, normed, first_norm.written());
            });
            push_rows(&normed, d, &maps[0], Init::ColumnBias(qkv_bias), qkv);
            self.attend(qkv.written(), attended.written(), lse.written());
            middle.push_slice(x);
            let middle = middle.written();
            multiply_rows(attended.written(), d, &maps[1], Init::OutPlusColumnBias(proj), middle);
            let again = &mut UninitWriter::overwrite(&mut normed);
            layer_norm::forward_rows(middle, norm2, norm2_bias, epsilon, again, second_norm.written());
            push_rows(&normed, d, &maps[2], Init::ColumnBias(fc1), inner);
            let active = new_array(rows * m, |active| gelu::forward(inner.written(), &[], active));
            out.push_slice(middle);
            multiply_rows(&active, m, &maps[3], Init::OutPlusColumnBias(fc2), out.written());
        });
    }

    /// Gradients of the input and of the parameters; the latter are empty when not wanted.
    #[must_use]
    pub fn backward(
        &self,
        x: &[f32],
        parameters: [&[f32]; 12],
        saved: &[f32],
        grad: &[f32],
        wanted: bool,
    ) -> (Vec<f32>, [Vec<f32>; 12]) {
        self.check(x, &parameters);
        assert_eq!(grad.len(), x.len(), "encoder: length of the gradient");
        assert_eq!(saved.len(), x.len() / self.dim * self.saved(), "encoder: length of the saved values");
        let [_, _, qkv, _, proj, _, _, _, fc1, _, fc2, _] = parameters;
        let (d, m) = (self.dim, self.inner);
        let maps = [(qkv, d, 3 * d), (proj, d, d), (fc1, d, m), (fc2, m, d)]
            .map(|(weight, inputs, outputs)| Panels::new(Matrix::rows(weight, inputs), outputs, inputs));
        let (group, numbers) = (self.group(), self.lengths().iter().sum::<usize>());
        let groups = (x.len() / d).div_ceil(group);
        // by shapes alone: sums in other parts have other bits
        let part = groups.div_ceil((NUMBERS / numbers).clamp(2, PARTS)).max(1) * group;
        let (input_grad, sums) = written_with(x.len(), part * d, |index, input_grad| {
            let [x, grad] = [x, grad].map(|x| piece(x, index, part * d));
            let saved = piece(saved, index, part * self.saved());
            let mut sums = self.lengths().map(|len| vec![0.0; len]);
            for index in 0..x.len().div_ceil(group * d) {
                let [x, grad] = [x, grad].map(|x| piece(x, index, group * d));
                let saved = self.split(piece(saved, index, group * self.saved()));
                self.backward_group([x, grad], &maps, &parameters, &saved, input_grad, &mut sums, wanted);
            }
            sums
        });
        if !wanted {
            return (input_grad, Default::default());
        }
        let mut sums = sums.into_iter();
        let mut whole = sums.next().unwrap_or_else(|| self.lengths().map(|len| vec![0.0; len]));
        let mut others: [Vec<Vec<f32>>; 12] = Default::default();
        for part in sums {
            others.iter_mut().zip(part).for_each(|(others, part)| others.push(part));
        }
        whole.par_iter_mut().zip(others).for_each(|(whole, others)| add_all(whole, others));
        (input_grad, whole)
    }

    #[allow(clippy::too_many_arguments)]
    fn backward_group(
        &self,
        [x, grad]: [&[f32]; 2],
        maps: &[Panels; 4],
        parameters: &[&[f32]; 12],
        saved: &Saved,
        input_grad: &mut UninitWriter,
        sums: &mut [Vec<f32>; 12],
        wanted: bool,
    ) {
        let [norm1, norm1_bias, _, _, _, _, norm2, norm2_bias, ..] = *parameters;
        let (d, m) = (self.dim, self.inner);
        let rows = x.len() / d;
        let mut add = |map: usize, x: &[f32], out_grad: &[f32]| {
            if wanted {
                let [weight, bias] = sums.get_disjoint_mut([map, map + 1]).expect("parameters come in pairs");
                add_products(x, out_grad, rows, weight, bias);
            }
        };
        let mut active = new_array(rows * m, |active| gelu::forward(saved.inner, &[], active));
        add(10, &active, grad);
        multiply_rows(grad, d, &maps[3], Init::Zero, &mut active);
        let inner = new_array(rows * m, |inner| gelu::backward(saved.inner, &[], &active, inner));
        let mut statistics = vec![0.0; rows * 2];
        let mut normed = new_array(rows * d, |normed| {
            layer_norm::forward_rows(saved.middle, norm2, norm2_bias, self.epsilon, normed, &mut statistics);
        });
        add(8, &normed, &inner);
        multiply_rows(&inner, m, &maps[2], Init::Zero, &mut normed);
        let mut norm_sums = Vec::new();
        let mut middle = new_array(rows * d, |middle| {
            norm_sums = layer_norm::backward_rows(saved.middle, norm2, saved.norms[1], &normed, middle);
        });
        middle.iter_mut().zip(grad).for_each(|(middle, grad)| *middle += grad);
        add(4, saved.attended, &middle);
        multiply_rows(&middle, d, &maps[1], Init::Zero, &mut normed);
        let mut qkv = vec![0.0; rows * 3 * d];
        self.attend_backward(saved, &normed, &mut qkv);
        let again = &mut UninitWriter::overwrite(&mut normed);
        layer_norm::forward_rows(x, norm1, norm1_bias, self.epsilon, again, &mut statistics);
        add(2, &normed, &qkv);
        multiply_rows(&qkv, 3 * d, &maps[0], Init::Zero, &mut normed);
        let start = input_grad.len();
        let first_sums = layer_norm::backward_rows(x, norm1, saved.norms[0], &normed, input_grad);
        input_grad.written()[start..].iter_mut().zip(&middle).for_each(|(grad, middle)| *grad += middle);
        for (first, norm_sums) in [(0, first_sums), (6, norm_sums)] {
            for (sum, part) in sums[first..first + 2].iter_mut().flatten().zip(norm_sums) {
                *sum += part;
            }
        }
    }

    /// Every head of every picture: `[rows, 3D] -> [rows, D]`, and the sums.
    fn attend(&self, qkv: &[f32], attended: &mut [f32], lse: &mut [f32]) {
        let (n, d) = (self.tokens, self.dim);
        let [mut keys_t, mut scores] = self.head(0).scratch().map(|len| vec![0.0; len]);
        let pictures = qkv.chunks_exact(n * 3 * d).zip(attended.chunks_exact_mut(n * d));
        for ((qkv, attended), lse) in pictures.zip(lse.chunks_exact_mut(self.heads * n)) {
            for (index, lse) in lse.chunks_exact_mut(n).enumerate() {
                let head = self.head(index);
                let out = (&mut attended[index * head.width()..], d);
                head.attend(qkv, n, [&mut keys_t, &mut scores], out, |query, value| lse[query] = value);
            }
        }
    }

    /// Adds the gradients of queries, keys and values to `[rows, 3D]` zeros.
    fn attend_backward(&self, saved: &Saved, grad: &[f32], qkv_grad: &mut [f32]) {
        let (n, d, k) = (self.tokens, self.dim, self.dim / self.heads);
        let row = self.head(0).row();
        let [mut keys_t, mut values_t] = [vec![0.0; k * n], vec![0.0; k * n]];
        let [mut weights, mut score_grads] = [(); 2].map(|()| vec![0.0; BLOCK.min(n) * n]);
        for picture in 0..grad.len() / (n * d) {
            let [qkv, attended, grad] =
                [(saved.qkv, 3 * d), (saved.attended, d), (grad, d)].map(|(x, width)| piece(x, picture, n * width));
            let qkv_grad = &mut qkv_grad[picture * n * 3 * d..][..n * 3 * d];
            for head in 0..self.heads {
                let lse = piece(saved.lse, picture * self.heads + head, n);
                let parts = self.head(head).starts();
                let [query, key, value] = parts.map(|first| &qkv[first..]);
                transpose_strided([n, k], (key, 3 * d), (&mut keys_t, n));
                transpose_strided([n, k], (value, 3 * d), (&mut values_t, n));
                for start in (0..n).step_by(BLOCK) {
                    let rows = BLOCK.min(n - start);
                    let (weights, score_grads) = (&mut weights[..rows * n], &mut score_grads[..rows * n]);
                    let [attended, grad] = [attended, grad].map(|x| &x[start * d + head * k..]);
                    let query = &query[start * 3 * d..];
                    let size = Size { m: rows, inner: k, n };
                    product::multiply(size, Matrix::rows(query, 3 * d), (&keys_t, n), (weights, n), false);
                    product::multiply(size, Matrix::rows(grad, d), (&values_t, n), (score_grads, n), false);
                    for at in 0..rows {
                        let [attended, grad] = [attended, grad].map(|x| &x[at * d..][..k]);
                        let dot: f32 = attended.iter().zip(grad).map(|(attended, grad)| attended * grad).sum();
                        let range = at * n..(at + 1) * n;
                        softmax_row_backward(
                            &mut weights[range.clone()],
                            &mut score_grads[range],
                            &row,
                            lse[start + at],
                            dot,
                        );
                    }
                    score_grads.iter_mut().for_each(|grad| *grad *= row.scale);
                    let size = Size { m: n, inner: rows, n: k };
                    let value_grad = &mut qkv_grad[parts[2]..];
                    product::multiply(size, Matrix::transposed(weights, n), (grad, d), (value_grad, 3 * d), true);
                    let key_grad = &mut qkv_grad[parts[1]..];
                    product::multiply(
                        size,
                        Matrix::transposed(score_grads, n),
                        (query, 3 * d),
                        (key_grad, 3 * d),
                        true,
                    );
                    let query_grad = &mut qkv_grad[parts[0] + start * 3 * d..];
                    let size = Size { m: rows, inner: n, n: k };
                    product::multiply(size, Matrix::rows(score_grads, n), (key, 3 * d), (query_grad, 3 * d), false);
                }
            }
        }
    }

    fn head(&self, index: usize) -> Head {
        Head { tokens: self.tokens, dim: self.dim, heads: self.heads, index }
    }

    /// Rows of the pictures that a task takes at once.
    fn group(&self) -> usize {
        ROWS.div_ceil(self.tokens) * self.tokens
    }

    /// Numbers saved of a row.
    fn saved(&self) -> usize {
        self.saved_widths().iter().sum()
    }

    /// What they are, in the order of [`Saved`].
    fn saved_widths(&self) -> [usize; 7] {
        let (d, m) = (self.dim, self.inner);
        [3 * d, d, d, m, 2, 2, self.heads]
    }

    fn split<'a>(&self, saved: &'a [f32]) -> Saved<'a> {
        let rows = saved.len() / self.saved();
        let mut rest = saved;
        let [qkv, attended, middle, inner, first, second, lse] = self.saved_widths().map(|width| {
            let (part, others) = rest.split_at(rows * width);
            rest = others;
            part
        });
        Saved { qkv, attended, middle, inner, norms: [first, second], lse }
    }

    fn check(&self, x: &[f32], parameters: &[&[f32]; 12]) {
        let Self { tokens, dim, heads, inner, .. } = *self;
        assert!(![tokens, dim, heads, inner].contains(&0) && dim.is_multiple_of(heads), "encoder: {self:?}");
        let picture = size::product("encoder", &[tokens, dim]);
        assert!(x.len().is_multiple_of(picture), "encoder: {tokens} x {dim} do not divide {}", x.len());
        // scores of a head, and what is saved of all rows
        size::product("encoder", &[BLOCK, tokens]);
        let widths = size::sum("encoder", &[dim, dim, dim, dim, dim, inner, 4, heads]);
        size::product("encoder", &[x.len() / dim, widths]);
        size::product("encoder", &[ROWS, tokens, widths]);
        for ((name, parameter), len) in PARAMETERS.iter().zip(parameters).zip(self.lengths()) {
            assert_eq!(parameter.len(), len, "encoder: length of {name}");
        }
    }
}

/// Adds the gradients of a linear map: `weight [out, in] += out_grad^T x`, `bias [out] += out_grad`.
fn add_products(x: &[f32], out_grad: &[f32], rows: usize, weight: &mut [f32], bias: &mut [f32]) {
    let (inputs, outputs) = (x.len() / rows, out_grad.len() / rows);
    let grad_t = transpose(out_grad, outputs, rows);
    let (columns, depth) = (Offsets::strided(outputs, rows), Offsets::strided(rows, 1));
    let left = Gathered { data: &grad_t, rows: &columns, range: (0, outputs), inner: &depth };
    multiply(left, &Panels::new(Matrix::rows(x, inputs), rows, inputs), Init::OutPlusColumnBias(&[]), (weight, inputs));
    for out_grad in out_grad.chunks_exact(outputs) {
        bias.iter_mut().zip(out_grad).for_each(|(sum, grad)| *sum += grad);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise, wide};
    use crate::simd::{Path, with_path};

    const CASE: Encoder = Encoder { tokens: 5, dim: 6, heads: 2, inner: 10, epsilon: 1e-2 };

    fn inputs(case: &Encoder, pictures: usize) -> Vec<Vec<f32>> {
        let parameters = case.lengths().into_iter().enumerate().map(|(i, len)| noise(len, 2 + i as u64));
        std::iter::once(noise(pictures * case.tokens * case.dim, 1)).chain(parameters).collect()
    }

    fn parameters(inputs: &[Vec<f32>]) -> [&[f32]; 12] {
        std::array::from_fn(|i| inputs[1 + i].as_slice())
    }

    /// The block by the definitions of its parts.
    fn definition(case: &Encoder, inputs: &[Vec<f64>]) -> Vec<f64> {
        let [x, norm1, norm1_bias, qkv, qkv_bias, proj, proj_bias, norm2, norm2_bias, fc1, fc1_bias, fc2, fc2_bias] =
            inputs
        else {
            panic!("an input and twelve parameters")
        };
        let (n, d, k) = (case.tokens, case.dim, case.dim / case.heads);
        let sum = |a: &[f64], b: Vec<f64>| a.iter().zip(b).map(|(a, b)| a + b).collect::<Vec<f64>>();
        let rows = naive::linear(&naive::layer_norm(x, norm1, norm1_bias, 1e-2), qkv, qkv_bias);
        let mut attended = vec![0.0; x.len()];
        for (picture, rows) in rows.chunks_exact(n * 3 * d).enumerate() {
            for (head, query) in (0..case.heads).flat_map(|head| (0..n).map(move |query| (head, query))) {
                let at = |part: usize, token: usize, i: usize| rows[token * 3 * d + part * d + head * k + i];
                let score =
                    |key: usize| (0..k).map(|i| at(0, query, i) * at(1, key, i)).sum::<f64>() / (k as f64).sqrt();
                let weights: Vec<f64> = (0..n).map(|key| score(key).exp()).collect();
                let total: f64 = weights.iter().sum();
                for i in 0..k {
                    let value = (0..n).map(|key| weights[key] / total * at(2, key, i)).sum();
                    attended[(picture * n + query) * d + head * k + i] = value;
                }
            }
        }
        let middle = sum(x, naive::linear(&attended, proj, proj_bias));
        let inner = naive::linear(&naive::layer_norm(&middle, norm2, norm2_bias, 1e-2), fc1, fc1_bias);
        sum(&middle, naive::linear(&naive::gelu(&inner), fc2, fc2_bias))
    }

    #[test]
    fn every_path_equals_the_definition_and_its_differences() {
        let (inputs, grad) = (inputs(&CASE, 3), noise(3 * 5 * 6, 30));
        for &path in Path::available() {
            with_path(path, || {
                let (out, saved) = CASE.forward(&inputs[0], parameters(&inputs));
                let wide: Vec<Vec<f64>> = inputs.iter().map(|x| wide(x)).collect();
                assert_close(&out, &definition(&CASE, &wide), 1e-5);
                let (input_grad, grads) = CASE.backward(&inputs[0], parameters(&inputs), &saved, &grad, true);
                let grads: Vec<&[f32]> = std::iter::once(&input_grad).chain(&grads).map(Vec::as_slice).collect();
                let inputs: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
                assert_differences(&inputs, &grads, &grad, |p| definition(&CASE, p));
            });
        }
    }

    #[test]
    fn gradients_of_parameters_are_left_out_when_not_wanted() {
        let (inputs, grad) = (inputs(&CASE, 2), noise(2 * 5 * 6, 30));
        let (_, saved) = CASE.forward(&inputs[0], parameters(&inputs));
        let [with, without] =
            [true, false].map(|wanted| CASE.backward(&inputs[0], parameters(&inputs), &saved, &grad, wanted));
        assert_eq!(with.0, without.0);
        assert!(without.1.iter().all(Vec::is_empty));
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Encoder { tokens: 50, dim: 24, heads: 3, inner: 40, epsilon: 1e-6 };
        let (inputs, grad) = (inputs(&case, 23), noise(23 * 50 * 24, 30));
        assert_same_on_threads(|| {
            let (out, saved) = case.forward(&inputs[0], parameters(&inputs));
            let (input_grad, grads) = case.backward(&inputs[0], parameters(&inputs), &saved, &grad, true);
            [vec![out, saved, input_grad], grads.to_vec()].concat()
        });
    }
}
