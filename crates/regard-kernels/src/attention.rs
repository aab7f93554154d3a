//! Scaled dot-product attention without its score matrix.
//!
//! A task takes one head and a block of queries and loops over blocks of keys: scores, softmax, values, combined by their
//! log-sum-exp (lse), as `FlashAttention` does. The backward pass recomputes the scores from the saved lse. Memory is
//! linear in the number of tokens.

use rayon::prelude::*;
use std::ops::Range;

use crate::math::exp_of_negative;
use crate::product::{Matrix, Size, multiply, transpose};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::softmax::rest_or_lowest;

/// Queries of one task: a multiple of the rows that the product keeps in registers.
pub(crate) const BLOCK: usize = 48;
/// Most keys of a block: its scores, keys and values stay in the second-level cache.
const KEYS: usize = 240;
/// Into how many spans of keys the backward pass of a head is cut when there are few heads.
const SPANS: usize = 4;

/// The sizes of an attention: `query [B, A, N, K]`, `key [B, A, M, K]`, `value [B, A, M, V]`.
#[derive(Clone, Debug)]
pub struct Attention {
    pub batch: usize,
    pub heads: usize,
    pub queries: usize,
    pub keys: usize,
    pub width: usize,
    pub value_width: usize,
    pub scale: f32,
    /// Query n attends to keys 0..=n + (M - N).
    pub causal: bool,
    /// `[B, M]`, 1 for keys and 0 for padding; empty for no padding.
    pub visible: Vec<f32>,
    /// `[batches, heads]` of the bias `[.., .., N, M]`, each 1 or the full number; `None` for no bias.
    pub bias: Option<[usize; 2]>,
}

impl Attention {
    /// The output `[B, A, N, V]` and the log-sum-exp of each query's scores `[B, A, N]`.
    pub fn forward(&self, query: &[f32], key: &[f32], value: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<f32>) {
        self.check(query, key, value, bias);
        let (n, k, v) = (self.queries, self.width, self.value_width);
        let keys = self.key_blocks();
        let mut out = vec![0.0; self.batch * self.heads * n * v];
        let mut lse = vec![0.0; self.batch * self.heads * n];
        out.par_chunks_mut(n * v).zip(lse.par_chunks_mut(n)).enumerate().for_each(|(head, (out, lse))| {
            let [query, key, value] = self.of_head(head, query, key, value);
            let keys_t: Vec<Vec<f32>> = keys.iter().map(|keys| transposed_rows(key, keys, k)).collect();
            let blocks = out.par_chunks_mut(BLOCK * v).zip(lse.par_chunks_mut(BLOCK));
            blocks.enumerate().for_each(|(block, (out, lse))| {
                let (start, rows) = (block * BLOCK, lse.len());
                let mut scores = vec![0.0; rows * keys[0].len()];
                let mut part = vec![0.0; if keys.len() > 1 { rows * v } else { 0 }];
                for (index, (keys, keys_t)) in keys.iter().zip(&keys_t).enumerate() {
                    if index > 0 && self.is_hidden(start + rows - 1, keys) {
                        break;
                    }
                    let count = keys.len();
                    let scores = &mut scores[..rows * count];
                    self.scores(&query[start * k..], keys_t, rows, scores);
                    let mut own = [0.0; BLOCK];
                    for (row, scores) in scores.chunks_exact_mut(count).enumerate() {
                        own[row] = softmax_row(scores, &self.row(head, start + row, bias).within(keys));
                    }
                    let size = Size { m: rows, inner: count, n: v };
                    let weights = Matrix::rows(scores, count);
                    if index == 0 {
                        lse.copy_from_slice(&own[..rows]);
                        multiply(size, weights, (&value[keys.start * v..], v), (&mut *out, v), false);
                        continue;
                    }
                    multiply(size, weights, (&value[keys.start * v..], v), (&mut part, v), false);
                    for (row, sum) in lse.iter_mut().enumerate() {
                        let [old, new] = joined(sum, own[row]);
                        let of_row = row * v..(row + 1) * v;
                        let pairs = out[of_row.clone()].iter_mut().zip(&part[of_row]);
                        pairs.for_each(|(out, part)| *out = *out * old + part * new);
                    }
                }
            });
        });
        (out, lse)
    }

    /// Gradients of the query, the key, the value and the bias (empty without one).
    pub fn backward(&self, inputs: [&[f32]; 4], out: &[f32], lse: &[f32], grad: &[f32]) -> [Vec<f32>; 4] {
        let [query, key, value, bias] = inputs;
        self.check(query, key, value, bias);
        let heads = self.batch * self.heads;
        let rows = size::product("attention", &[self.batch, self.heads, self.queries]);
        let outputs = size::product("attention", &[rows, self.value_width]);
        assert_eq!([out.len(), grad.len()], [outputs; 2], "attention: lengths of the output and its gradient");
        assert_eq!(lse.len(), rows, "attention: length of the log-sum-exp");
        let keys = self.key_blocks();
        let spans: Vec<&[Range<usize>]> = keys.chunks(keys.len().div_ceil(self.spans())).collect();
        // heads that share a bias add to the same gradient, so one task takes all of them in order
        let slots = self.bias.map_or(heads, |[batches, heads]| batches * heads);
        let mut members = vec![Vec::new(); slots];
        for head in 0..heads {
            members[if self.bias.is_some() { self.bias_slot(head) } else { head }].push(head);
        }
        let kept = [out, lse, grad];
        let parts: Vec<(Vec<Vec<HeadGrads>>, Vec<f32>)> = members
            .par_iter()
            .map(|members| {
                let mut bias_grad = vec![0.0; if self.bias.is_some() { self.queries * self.keys } else { 0 }];
                let mut of_head = |head: usize| match spans[..] {
                    [all] => vec![self.backward_span(head, all, inputs, kept, &mut bias_grad)],
                    _ => spans.par_iter().map(|span| self.backward_span(head, span, inputs, kept, &mut [])).collect(),
                };
                let grads = members.iter().map(|&head| of_head(head)).collect();
                (grads, bias_grad)
            })
            .collect();

        let mut grads = [vec![0.0; query.len()], vec![0.0; key.len()], vec![0.0; value.len()]];
        let mut bias_grad = Vec::with_capacity(bias.len());
        for (members, (heads, part)) in members.iter().zip(parts) {
            for (&head, spans) in members.iter().zip(heads) {
                let mut places = [self.keys * self.width, self.keys * self.value_width].map(|size| head * size);
                for [query_part, key_part, value_part] in spans {
                    let whole = &mut grads[0][head * query_part.len()..][..query_part.len()];
                    whole.iter_mut().zip(query_part).for_each(|(whole, part)| *whole += part);
                    for ((whole, place), part) in grads[1..].iter_mut().zip(&mut places).zip([key_part, value_part]) {
                        whole[*place..][..part.len()].copy_from_slice(&part);
                        *place += part.len();
                    }
                }
            }
            bias_grad.extend(part);
        }
        let [query_grad, key_grad, value_grad] = grads;
        [query_grad, key_grad, value_grad, bias_grad]
    }

    /// Gradients of a head by way of some blocks of keys: of all queries, and of these keys and values.
    fn backward_span(
        &self,
        head: usize,
        blocks: &[Range<usize>],
        inputs: [&[f32]; 4],
        kept: [&[f32]; 3],
        bias_grad: &mut [f32],
    ) -> HeadGrads {
        let (n, m, k, v) = (self.queries, self.keys, self.width, self.value_width);
        let [query, key, value] = self.of_head(head, inputs[0], inputs[1], inputs[2]);
        let [out, lse, grad] = [&kept[0][head * n * v..], &kept[1][head * n..], &kept[2][head * n * v..]];
        let first = blocks[0].start;
        let count = blocks[blocks.len() - 1].end - first;
        let transposed = blocks
            .iter()
            .map(|keys| [transposed_rows(key, keys, k), transposed_rows(value, keys, v)])
            .collect::<Vec<_>>();
        let [mut query_grads, mut key_grads, mut value_grads] =
            [n * k, count * k, count * v].map(|size| vec![0.0; size]);
        let widest = BLOCK.min(n) * blocks[0].len();
        let (mut weights, mut score_grads) = (vec![0.0; widest], vec![0.0; widest]);
        for start in (0..n).step_by(BLOCK) {
            let rows = BLOCK.min(n - start);
            let (out, grad) = (&out[start * v..][..rows * v], &grad[start * v..][..rows * v]);
            let query = &query[start * k..][..rows * k];
            let query_grad = &mut query_grads[start * k..][..rows * k];
            let dots: Vec<f32> = out
                .chunks_exact(v)
                .zip(grad.chunks_exact(v))
                .map(|(out, grad)| out.iter().zip(grad).map(|(o, g)| o * g).sum())
                .collect();
            for (keys, [keys_t, values_t]) in blocks.iter().zip(&transposed) {
                if self.is_hidden(start + rows - 1, keys) {
                    break;
                }
                let count = keys.len();
                let (weights, score_grads) = (&mut weights[..rows * count], &mut score_grads[..rows * count]);
                self.scores(query, keys_t, rows, weights);
                let size = Size { m: rows, inner: v, n: count };
                multiply(size, Matrix::rows(grad, v), (values_t, count), (&mut *score_grads, count), false);
                for (row, dot) in dots.iter().enumerate() {
                    let range = row * count..(row + 1) * count;
                    let at = self.row(head, start + row, inputs[3]).within(keys);
                    softmax_row_backward(
                        &mut weights[range.clone()],
                        &mut score_grads[range],
                        &at,
                        lse[start + row],
                        *dot,
                    );
                }
                if !bias_grad.is_empty() {
                    for (row, score_grads) in score_grads.chunks_exact(count).enumerate() {
                        let own = &mut bias_grad[(start + row) * m + keys.start..][..count];
                        own.iter_mut().zip(score_grads).for_each(|(own, grad)| *own += grad);
                    }
                }
                let (place, by_key) = (keys.start - first, |n: usize| Size { m: count, inner: rows, n });
                let value_grad = (&mut value_grads[place * v..], v);
                multiply(by_key(v), Matrix::transposed(weights, count), (grad, v), value_grad, true);
                score_grads.iter_mut().for_each(|grad| *grad *= self.scale);
                let key_grad = (&mut key_grads[place * k..], k);
                multiply(by_key(k), Matrix::transposed(score_grads, count), (query, k), key_grad, true);
                let size = Size { m: rows, inner: count, n: k };
                let keys = (&key[keys.start * k..], k);
                multiply(size, Matrix::rows(score_grads, count), keys, (&mut *query_grad, k), true);
            }
        }
        [query_grads, key_grads, value_grads]
    }

    /// `keys_t` is the transposed keys.
    fn scores(&self, query: &[f32], keys_t: &[f32], rows: usize, scores: &mut [f32]) {
        let (count, k) = (keys_t.len() / self.width, self.width);
        multiply(Size { m: rows, inner: k, n: count }, Matrix::rows(query, k), (keys_t, count), (scores, count), false);
    }

    /// Blocks of keys of about the same size.
    fn key_blocks(&self) -> Vec<Range<usize>> {
        let m = self.keys;
        // an odd number of cache lines: otherwise the rows of a block would map to the same cache sets
        let even = m.div_ceil(m.div_ceil(KEYS).max(1)).next_multiple_of(16) | 16;
        let size = if m <= KEYS { m.max(1) } else { even };
        (0..m.max(1)).step_by(size).map(|start| start..(start + size).min(m)).collect()
    }

    /// Into how many spans of keys the backward pass of a head is cut: few heads leave threads without work.
    fn spans(&self) -> usize {
        // a bias has one gradient for all keys
        if self.bias.is_some() || self.batch * self.heads >= SPANS { 1 } else { SPANS }
    }

    /// Whether no query up to this one attends to any of the keys.
    fn is_hidden(&self, query: usize, keys: &Range<usize>) -> bool {
        self.seen(query) <= keys.start
    }

    /// Number of keys that a query may attend to.
    fn seen(&self, query: usize) -> usize {
        let m = self.keys;
        if self.causal { (query + 1 + m).saturating_sub(self.queries).min(m) } else { m }
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

    fn row<'a>(&'a self, head: usize, query: usize, bias: &'a [f32]) -> RowMask<'a> {
        let (m, seen) = (self.keys, self.seen(query));
        let visible = if self.visible.is_empty() { &[] } else { &self.visible[head / self.heads * m..][..m] };
        let bias = match self.bias {
            Some(_) => &bias[(self.bias_slot(head) * self.queries + query) * m..][..m],
            None => &[],
        };
        RowMask { seen, visible, bias, scale: self.scale }
    }

    fn check(&self, query: &[f32], key: &[f32], value: &[f32], bias: &[f32]) {
        let Self { batch, heads, queries, keys, width, value_width, .. } = *self;
        let len = |sizes: [usize; 4]| size::product("attention", &sizes);
        assert!(heads > 0 && queries > 0 && width > 0 && value_width > 0, "attention: a size of zero in {self:?}");
        assert_eq!(query.len(), len([batch, heads, queries, width]), "attention: length of the query");
        assert_eq!(key.len(), len([batch, heads, keys, width]), "attention: length of the key");
        assert_eq!(value.len(), len([batch, heads, keys, value_width]), "attention: length of the value");
        // what comes out
        len([batch, heads, queries, value_width]);
        if let Some([bias_batches, bias_heads]) = self.bias {
            let known = |given: usize, full: usize| given == 1 || given == full;
            assert!(known(bias_batches, batch) && known(bias_heads, heads), "attention: a bias of {:?}", self.bias);
            assert_eq!(bias.len(), len([bias_batches, bias_heads, queries, keys]), "attention: length of the bias");
        }
        if !self.visible.is_empty() {
            assert_eq!(self.visible.len(), len([batch, keys, 1, 1]), "attention: length of the padding mask");
        }
    }
}

/// Gradients of one head's query, key and value.
type HeadGrads = [Vec<f32>; 3];

/// How the scores of one query become logits: scale, bias, and which keys are visible.
pub(crate) struct RowMask<'a> {
    pub seen: usize,
    pub visible: &'a [f32],
    pub bias: &'a [f32],
    pub scale: f32,
}

/// The transpose of some rows of `[M, width]`.
fn transposed_rows(x: &[f32], rows: &Range<usize>, width: usize) -> Vec<f32> {
    transpose(&x[rows.start * width..rows.end * width], width, rows.len())
}

/// Merges another log-sum-exp into `sum` and returns the weight of both parts. Infinity stands for no keys at all.
fn joined(sum: &mut f32, other: f32) -> [f32; 2] {
    if other == f32::INFINITY {
        return [1.0, 0.0];
    }
    if *sum == f32::INFINITY {
        *sum = other;
        return [0.0, 1.0];
    }
    let largest = sum.max(other);
    let whole = largest + ((*sum - largest).exp() + (other - largest).exp()).ln();
    let shares = [(*sum - whole).exp(), (other - whole).exp()];
    *sum = whole;
    shares
}

impl<'a> RowMask<'a> {
    /// The part about some of the keys.
    fn within(&self, keys: &Range<usize>) -> RowMask<'a> {
        let part = |all: &'a [f32]| if all.is_empty() { all } else { &all[keys.clone()] };
        let seen = self.seen.saturating_sub(keys.start).min(keys.len());
        RowMask { seen, visible: part(self.visible), bias: part(self.bias), scale: self.scale }
    }
}

impl RowMask<'_> {
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
    /// Softmax of one query's scores in place. Returns their log-sum-exp, infinity when no key is visible.
    pub(crate) fn softmax_row<'a>(scores: &'a mut [f32], row: &'a RowMask<'a>) -> f32 = softmax_row_body
);
#[inline(always)]
fn softmax_row_body<V: Vector>(scores: &mut [f32], row: &RowMask) -> f32 {
    let (scores, hidden) = scores.split_at_mut(row.seen);
    hidden.fill(0.0);
    // whole vectors, and a last one that stays in a register
    let whole = scores.len() / V::LANES * V::LANES;
    let rest = rest_or_lowest(row.score::<V>(scores, whole), scores.len());
    let mut largest = rest;
    for i in (0..whole).step_by(V::LANES) {
        let score = row.score::<V>(scores, i);
        largest = largest.max(score);
        score.put(scores, i);
    }
    let largest = largest.max_lane();
    if largest == f32::NEG_INFINITY {
        scores.fill(0.0);
        return f32::INFINITY;
    }
    let (scores, last) = scores.split_at_mut(whole);
    let rest = exp_of_negative(rest.sub(V::splat(largest)));
    let mut sum = rest;
    for scores in scores.chunks_exact_mut(V::LANES) {
        let weight = exp_of_negative(V::get(scores, 0).sub(V::splat(largest)));
        sum = sum.add(weight);
        weight.put(scores, 0);
    }
    let sum = sum.sum();
    let scale = V::splat(1.0 / sum);
    for scores in scores.chunks_exact_mut(V::LANES) {
        V::get(scores, 0).mul(scale).put(scores, 0);
    }
    rest.mul(scale).put(last, 0);
    largest + sum.ln()
}

kernel!(
    /// Recomputes the weights from the scores and their log-sum-exp, and turns gradients of weights into gradients of scores.
    pub(crate) fn softmax_row_backward<'a>(scores: &'a mut [f32], score_grads: &'a mut [f32], row: &'a RowMask<'a>, lse: f32, dot: f32) = softmax_row_backward_body
);
#[inline(always)]
fn softmax_row_backward_body<V: Vector>(
    scores: &mut [f32],
    score_grads: &mut [f32],
    row: &RowMask,
    lse: f32,
    dot: f32,
) {
    let (scores, hidden) = scores.split_at_mut(row.seen);
    hidden.fill(0.0);
    let (score_grads, hidden) = score_grads.split_at_mut(row.seen);
    hidden.fill(0.0);
    for i in (0..scores.len()).step_by(V::LANES) {
        let weight = exp_of_negative(row.score::<V>(scores, i).sub(V::splat(lse)));
        weight.put(scores, i);
        weight.mul(V::get(score_grads, i).sub(V::splat(dot))).put(score_grads, i);
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
                let (out, lse) = case.forward(slices[0], slices[1], slices[2], slices[3]);
                assert_close(&out, &naive(case, &slices.map(naive::wide)), 2e-6);
                let seed = noise(out.len(), 5);
                let grads = case.backward(slices, &out, &lse, &seed);
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
    fn keys_in_several_blocks_equal_their_definition() {
        let small = |queries, keys| Attention { batch: 1, heads: 1, width: 2, value_width: 1, ..case(queries, keys) };
        let visible: Vec<f32> = (0..500).map(|key| f32::from(u8::from(key > 250 && key % 7 != 0))).collect();
        for case in [
            small(3, KEYS + 1),
            small(60, 2 * KEYS + 20),
            Attention { causal: true, ..small(50, 500) },
            Attention { causal: true, ..small(500, 490) },
            Attention { visible, ..small(4, 500) },
            Attention { bias: Some([1, 1]), ..small(3, 500) },
        ] {
            assert_equals_its_definition(&case);
        }
    }

    #[test]
    fn every_key_is_in_one_block_and_few_are_in_one_alone() {
        for keys in [1, 197, KEYS, KEYS + 1, 256, 500, 1024, 4096, 8192] {
            let blocks = case(1, keys).key_blocks();
            assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (0, keys));
            assert!(blocks.windows(2).all(|pair| pair[0].end == pair[1].start && pair[1].len() <= pair[0].len()));
            assert!(blocks[0].len() <= KEYS + 16 && (keys > KEYS || blocks.len() == 1), "{keys}: {blocks:?}");
        }
    }

    #[test]
    fn a_query_without_any_key_gets_zeros_and_no_gradient() {
        let case = Attention { visible: vec![0.0; 6], ..case(4, 3) };
        let (q, k, v) = (noise(80, 1), noise(60, 2), noise(36, 3));
        let (out, lse) = case.forward(&q, &k, &v, &[]);
        assert!(out.iter().all(|&x| x == 0.0));
        let grads = case.backward([&q, &k, &v, &[]], &out, &lse, &noise(out.len(), 4));
        assert!(grads.iter().flatten().all(|&x| x == 0.0));
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Attention { bias: Some([1, 2]), ..case(130, 77) };
        let (q, k, v, b) = (noise(4 * 130 * 5, 1), noise(4 * 77 * 5, 2), noise(4 * 77 * 3, 3), noise(2 * 130 * 77, 4));
        assert_same_on_threads(|| {
            let (out, lse) = case.forward(&q, &k, &v, &b);
            let grads = case.backward([&q, &k, &v, &b], &out, &lse, &out);
            [vec![out, lse], grads.to_vec()].concat()
        });
        let long = Attention { heads: 1, batch: 1, ..self::case(130, 900) };
        let (q, k, v) = (noise(130 * 5, 1), noise(900 * 5, 2), noise(900 * 3, 3));
        assert_same_on_threads(|| {
            let (out, lse) = long.forward(&q, &k, &v, &[]);
            let grads = long.backward([&q, &k, &v, &[]], &out, &lse, &out);
            [vec![out, lse], grads.to_vec()].concat()
        });
    }
}
