//! Scaled dot-product attention without its score matrix.
//!
//! A task takes one head and a block of queries: scores of the block, softmax, values. The backward pass
//! recomputes the scores from the saved logarithms of the sums. Memory is linear in the number of tokens.

use rayon::prelude::*;

use crate::elementwise::add_all;
use crate::math::exp;
use crate::product::{Matrix, Size, multiply, transpose};
use crate::simd::{Vector, kernel};
use crate::softmax::largest;

/// Queries of one task: a multiple of the rows that the product keeps in registers.
pub(crate) const BLOCK: usize = 48;

/// What to attend: `query [B, A, N, K]`, `key [B, A, M, K]`, `value [B, A, M, V]`.
#[derive(Clone, Debug)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
    pub scale: f32,
    /// Query n sees keys 0..=n + (M - N).
    pub causal: bool,
    /// `[B, M]`, 1 for keys that take part and 0 for padding; empty for no padding.
    pub visible: Vec<f32>,
    /// `[batches, heads]` of the bias `[.., .., N, M]`, each 1 or the full number; `None` for no bias.
    pub bias: Option<[usize; 2]>,
}

impl Attention {
    /// The output `[B, A, N, V]` and the logarithm of each query's sum `[B, A, N]`.
    pub fn forward(&self, query: &[f32], key: &[f32], value: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
        self.check(query, key, value, bias);
        let (n, m, v) = (self.queries, self.keys, self.value_width);
        let mut out = vec![0.0; self.batch * self.heads * n * v];
        let mut sums = vec![0.0; self.batch * self.heads * n];
        out.par_chunks_mut(n * v).zip(sums.par_chunks_mut(n)).enumerate().for_each(|(head, (out, sums))| {
            let [query, key, value] = self.of_head(head, query, key, value);
            let across = transpose(key, self.width, m);
            let blocks = out.par_chunks_mut(BLOCK * v).zip(sums.par_chunks_mut(BLOCK));
            blocks.enumerate().for_each(|(block, (out, sums))| {
                let (start, rows) = (block * BLOCK, sums.len());
                let mut scores = vec![0.0; rows * m];
                self.scores(&query[start * self.width..], &across, rows, &mut scores);
                for (row, scores) in scores.chunks_exact_mut(m).enumerate() {
                    sums[row] = weigh(scores, &self.row(head, start + row, bias));
                }
                let size = Size { m: rows, inner: m, n: v };
                multiply(size, Matrix::rows(&scores, m), (value, v), (out, v), false);
            });
        });
        (out, sums)
    }

    /// Gradients of the query, the key, the value and the bias (empty without one).
    pub fn backward(&self, inputs: [&[f32]; 4], out: &[f32], sums: &[f32], grad: &[f32]) -> [Vec<f32>; 4] {
        let [query, key, value, bias] = inputs;
        self.check(query, key, value, bias);
        let heads = self.batch * self.heads;
        // heads that share a bias add to the same gradient, so one task takes all of them in order
        let slots = self.bias.map_or(heads, |[batches, heads]| batches * heads);
        let mut members = vec![Vec::new(); slots];
        for head in 0..heads {
            members[if self.bias.is_some() { self.bias_slot(head) } else { head }].push(head);
        }
        let parts: Vec<(Vec<HeadGrads>, Vec<f32>)> = members
            .par_iter()
            .map(|members| {
                let mut bias_grad = vec![0.0; if self.bias.is_some() { self.queries * self.keys } else { 0 }];
                let grads = members
                    .iter()
                    .map(|&head| self.backward_head(head, [query, key, value, bias], [out, sums, grad], &mut bias_grad))
                    .collect();
                (grads, bias_grad)
            })
            .collect();

        let mut grads = [vec![0.0; query.len()], vec![0.0; key.len()], vec![0.0; value.len()]];
        let mut bias_grad = Vec::with_capacity(bias.len());
        for (members, (heads, part)) in members.iter().zip(parts) {
            for (&head, part) in members.iter().zip(heads) {
                for (whole, part) in grads.iter_mut().zip(part) {
                    whole[head * part.len()..][..part.len()].copy_from_slice(&part);
                }
            }
            bias_grad.extend(part);
        }
        let [query_grad, key_grad, value_grad] = grads;
        [query_grad, key_grad, value_grad, bias_grad]
    }

    fn backward_head(&self, head: usize, inputs: [&[f32]; 4], kept: [&[f32]; 3], bias_grad: &mut [f32]) -> HeadGrads {
        let (n, m, k, v) = (self.queries, self.keys, self.width, self.value_width);
        let [query, key, value] = self.of_head(head, inputs[0], inputs[1], inputs[2]);
        let [out, sums, grad] = [&kept[0][head * n * v..], &kept[1][head * n..], &kept[2][head * n * v..]];
        let (keys_across, values_across) = (transpose(key, k, m), transpose(value, v, m));
        let mut grads = [vec![0.0; n * k], vec![0.0; m * k], vec![0.0; m * v]];
        let (mut weights, mut slopes) = (vec![0.0; BLOCK.min(n) * m], vec![0.0; BLOCK.min(n) * m]);
        for start in (0..n).step_by(BLOCK) {
            let rows = BLOCK.min(n - start);
            let (weights, slopes) = (&mut weights[..rows * m], &mut slopes[..rows * m]);
            let (out, grad) = (&out[start * v..][..rows * v], &grad[start * v..][..rows * v]);
            self.scores(&query[start * k..], &keys_across, rows, weights);
            multiply(Size { m: rows, inner: v, n: m }, Matrix::rows(grad, v), (&values_across, m), (slopes, m), false);
            for row in 0..rows {
                let range = row * m..(row + 1) * m;
                let dot: f32 = out[row * v..][..v].iter().zip(&grad[row * v..]).map(|(o, g)| o * g).sum();
                let at = self.row(head, start + row, inputs[3]);
                slope(&mut weights[range.clone()], &mut slopes[range], &at, sums[start + row], dot);
            }
            if let Some(bias_grad) = bias_grad.get_mut(start * m..(start + rows) * m) {
                add_all(bias_grad, [slopes.to_vec()]);
            }
            multiply(
                Size { m, inner: rows, n: v },
                Matrix::transposed(weights, m),
                (grad, v),
                (&mut grads[2], v),
                true,
            );
            slopes.iter_mut().for_each(|slope| *slope *= self.scale);
            let block = &query[start * k..][..rows * k];
            multiply(
                Size { m, inner: rows, n: k },
                Matrix::transposed(slopes, m),
                (block, k),
                (&mut grads[1], k),
                true,
            );
            let query_grad = &mut grads[0][start * k..][..rows * k];
            multiply(Size { m: rows, inner: m, n: k }, Matrix::rows(slopes, m), (key, k), (query_grad, k), false);
        }
        grads
    }

    fn scores(&self, query: &[f32], across: &[f32], rows: usize, scores: &mut [f32]) {
        let (m, k) = (self.keys, self.width);
        multiply(Size { m: rows, inner: k, n: m }, Matrix::rows(query, k), (across, m), (scores, m), false);
    }

    fn of_head<'a>(&self, head: usize, query: &'a [f32], key: &'a [f32], value: &'a [f32]) -> [&'a [f32]; 3] {
        let part = |x: &'a [f32], len: usize| &x[head * len..][..len];
        [
            part(query, self.queries * self.width),
            part(key, self.keys * self.width),
            part(value, self.keys * self.value_width),
        ]
    }

    fn bias_slot(&self, head: usize) -> usize {
        let [batches, heads] = self.bias.unwrap_or([1, 1]);
        (head / self.heads % batches) * heads + head % self.heads % heads
    }

    fn row<'a>(&'a self, head: usize, query: usize, bias: &'a [f32]) -> Row<'a> {
        let m = self.keys;
        let seen = if self.causal { (query + 1 + m).saturating_sub(self.queries).min(m) } else { m };
        let visible = if self.visible.is_empty() { &[] } else { &self.visible[head / self.heads * m..][..m] };
        let bias = match self.bias {
            Some(_) => &bias[(self.bias_slot(head) * self.queries + query) * m..][..m],
            None => &[],
        };
        Row { seen, visible, bias, scale: self.scale }
    }

    fn check(&self, query: &[f32], key: &[f32], value: &[f32], bias: &[f32]) {
        let heads = self.batch * self.heads;
        assert_eq!(query.len(), heads * self.queries * self.width, "attention: length of the query");
        assert_eq!(key.len(), heads * self.keys * self.width, "attention: length of the key");
        assert_eq!(value.len(), heads * self.keys * self.value_width, "attention: length of the value");
        if let Some([batches, heads]) = self.bias {
            assert_eq!(bias.len(), batches * heads * self.queries * self.keys, "attention: length of the bias");
        }
        if !self.visible.is_empty() {
            assert_eq!(self.visible.len(), self.batch * self.keys, "attention: length of the padding mask");
        }
    }
}

/// Gradients of one head's query, key and value.
type HeadGrads = [Vec<f32>; 3];

/// What stands between the scores of one query and its weights.
pub(crate) struct Row<'a> {
    pub seen: usize,
    pub visible: &'a [f32],
    pub bias: &'a [f32],
    pub scale: f32,
}

impl Row<'_> {
    #[inline(always)]
    fn score<V: Vector>(&self, scores: &[f32], i: usize) -> V {
        let mut score = V::get(scores, i).mul(V::splat(self.scale));
        if !self.bias.is_empty() {
            score = score.add(V::get(self.bias, i));
        }
        if !self.visible.is_empty() {
            score = V::get(self.visible, i).positive(score, V::splat(f32::NEG_INFINITY));
        }
        score
    }
}

kernel!(
    /// Scores become weights; the logarithm of their sum, infinite when there is no key at all.
    pub(crate) fn weigh(scores: &mut [f32], row: &Row) -> f32 = weigh_body
);
#[inline(always)]
fn weigh_body<V: Vector>(scores: &mut [f32], row: &Row) -> f32 {
    let (scores, hidden) = scores.split_at_mut(row.seen);
    hidden.fill(0.0);
    for i in (0..scores.len()).step_by(V::LANES) {
        row.score::<V>(scores, i).put(scores, i);
    }
    let largest = largest::<V>(scores);
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return f32::INFINITY;
    }
    let mut sum = V::zero();
    for i in (0..scores.len()).step_by(V::LANES) {
        exp(V::get(scores, i).sub(V::splat(largest))).put(scores, i);
        sum = sum.add(V::get(scores, i));
    }
    let sum = sum.sum();
    let scale = V::splat(1.0 / sum);
    for i in (0..scores.len()).step_by(V::LANES) {
        V::get(scores, i).mul(scale).put(scores, i);
    }
    largest + sum.ln()
}

kernel!(
    /// Scores become weights again, and gradients of weights become gradients of scores.
    pub(crate) fn slope(scores: &mut [f32], slopes: &mut [f32], row: &Row, sum: f32, dot: f32) = slope_body
);
#[inline(always)]
fn slope_body<V: Vector>(scores: &mut [f32], slopes: &mut [f32], row: &Row, sum: f32, dot: f32) {
    let (scores, hidden) = scores.split_at_mut(row.seen);
    hidden.fill(0.0);
    let (slopes, hidden) = slopes.split_at_mut(row.seen);
    hidden.fill(0.0);
    for i in (0..scores.len()).step_by(V::LANES) {
        let weight = exp(row.score::<V>(scores, i).sub(V::splat(sum)));
        weight.put(scores, i);
        weight.mul(V::get(slopes, i).sub(V::splat(dot))).put(slopes, i);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, Masks, assert_close, assert_differences, assert_same_on_threads, noise};
    use crate::simd::{Path, with_path};

    fn case(queries: usize, keys: usize) -> Attention {
        Attention {
            batch: 2,
            heads: 2,
            queries,
            keys,
            width: 5,
            value_width: 3,
            scale: 0.7,
            causal: false,
            visible: Vec::new(),
            bias: None,
        }
    }

    fn naive(case: &Attention, p: &[Vec<f64>]) -> Vec<f64> {
        let (n, m, k, v) = (case.queries, case.keys, case.width, case.value_width);
        (0..case.batch * case.heads)
            .flat_map(|head| {
                let hidden = |i: usize, j: usize| {
                    (case.causal && j + n > i + m)
                        || (!case.visible.is_empty() && case.visible[head / case.heads * m + j] == 0.0)
                };
                let bias = |i: usize, j: usize| case.bias.map_or(0.0, |_| p[3][(case.bias_slot(head) * n + i) * m + j]);
                let masks = Masks { scale: f64::from(case.scale), hidden: &hidden, bias: &bias };
                let part = |x: &[f64], len: usize| x[head * len..][..len].to_vec();
                naive::attention(&part(&p[0], n * k), &part(&p[1], m * k), &part(&p[2], m * v), [m, k, v], &masks)
            })
            .collect()
    }

    fn assert_equals_its_definition(case: &Attention) {
        let heads = case.batch * case.heads;
        let inputs = [
            noise(heads * case.queries * case.width, 1),
            noise(heads * case.keys * case.width, 2),
            noise(heads * case.keys * case.value_width, 3),
            noise(case.bias.map_or(0, |[b, a]| b * a * case.queries * case.keys), 4),
        ];
        let slices = inputs.each_ref().map(Vec::as_slice);
        for &path in Path::available() {
            with_path(path, || {
                let (out, sums) = case.forward(slices[0], slices[1], slices[2], slices[3]);
                assert_close(&out, &naive(case, &slices.map(naive::wide)), 2e-6);
                let seed = noise(out.len(), 5);
                let grads = case.backward(slices, &out, &sums, &seed);
                assert_differences(&slices, &grads.each_ref().map(Vec::as_slice), &seed, |p| naive(case, p));
            });
        }
    }

    #[test]
    fn self_and_cross_attention_equal_their_definition() {
        for (queries, keys) in [(1, 1), (7, 7), (5, 19), (60, 33)] {
            assert_equals_its_definition(&case(queries, keys));
        }
    }

    #[test]
    fn masks_and_biases_equal_their_definition() {
        for (queries, keys) in [(7, 7), (4, 9), (9, 4)] {
            assert_equals_its_definition(&Attention { causal: true, ..case(queries, keys) });
            for bias in [[1, 1], [1, 2], [2, 1], [2, 2]] {
                let visible = (0..2 * keys).map(|i| f32::from(u8::from(i % 3 != 1 && i >= 2))).collect();
                assert_equals_its_definition(&Attention { bias: Some(bias), visible, ..case(queries, keys) });
            }
        }
    }

    #[test]
    fn a_query_without_any_key_gets_zeros_and_no_gradient() {
        let case = Attention { visible: vec![0.0; 6], ..case(4, 3) };
        let (q, k, v) = (noise(80, 1), noise(60, 2), noise(36, 3));
        let (out, sums) = case.forward(&q, &k, &v, &[]);
        assert!(out.iter().all(|&x| x == 0.0));
        let grads = case.backward([&q, &k, &v, &[]], &out, &sums, &noise(out.len(), 4));
        assert!(grads.iter().flatten().all(|&x| x == 0.0));
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Attention { bias: Some([1, 2]), ..case(130, 77) };
        let (q, k, v, b) = (noise(4 * 130 * 5, 1), noise(4 * 77 * 5, 2), noise(4 * 77 * 3, 3), noise(2 * 130 * 77, 4));
        assert_same_on_threads(|| {
            let (out, sums) = case.forward(&q, &k, &v, &b);
            let grads = case.backward([&q, &k, &v, &b], &out, &sums, &out);
            [vec![out, sums], grads.to_vec()].concat()
        });
    }
}
