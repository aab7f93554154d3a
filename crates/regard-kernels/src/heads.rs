//! Tokens whose query, key and value lie side by side, and their heads.

use crate::attention::{Attention, BLOCK, RowMask, softmax_row};
use crate::elementwise::{piece, written};
use crate::product::{Matrix, Size, multiply, transpose_strided};
use crate::size;

/// The layout of rows `[B, N, P, A, K]`: P parts of A heads.
#[derive(Clone, Copy)]
struct HeadLayout {
    tokens: usize,
    parts: usize,
    heads: usize,
    width: usize,
}

impl HeadLayout {
    fn row(&self) -> usize {
        self.parts * self.heads * self.width
    }

    /// Part `part` as `[B, A, N, K]`.
    fn split(&self, x: &[f32], part: usize) -> Vec<f32> {
        written(x.len() / self.parts, self.tokens * self.heads * self.width, |index, out| {
            let x = piece(x, index, self.tokens * self.row());
            for head in 0..self.heads {
                let start = (part * self.heads + head) * self.width;
                x.chunks_exact(self.row()).for_each(|x| out.push_slice(&x[start..][..self.width]));
            }
        })
    }

    /// The inverse of [`split`](Self::split) for all parts.
    fn join(&self, parts: &[&[f32]]) -> Vec<f32> {
        let image = self.tokens * self.heads * self.width;
        written(parts.iter().map(|part| part.len()).sum(), self.tokens * self.row(), |index, out| {
            for token in 0..self.tokens {
                for part in parts {
                    for head in 0..self.heads {
                        let from = index * image + (head * self.tokens + token) * self.width;
                        out.push_slice(&part[from..][..self.width]);
                    }
                }
            }
        })
    }
}

/// One head of one picture in rows `[N, 3D]`, attended on the calling thread and without copies.
#[derive(Clone, Copy)]
pub(crate) struct Head {
    pub tokens: usize,
    pub dim: usize,
    pub heads: usize,
    /// Which of them.
    pub index: usize,
}

impl Head {
    pub fn width(&self) -> usize {
        self.dim / self.heads
    }

    /// Lengths of the arrays that [`attend`](Self::attend) works in.
    pub fn scratch(&self) -> [usize; 2] {
        [self.width() * self.tokens, BLOCK.min(self.tokens) * self.tokens]
    }

    /// Between scores and weights: every token sees every token.
    pub fn row(&self) -> RowMask<'static> {
        RowMask { seen: self.tokens, visible: &[], bias: &[], scale: 1.0 / (self.width() as f32).sqrt() }
    }

    /// Where queries, keys and values begin in a row.
    pub fn starts(&self) -> [usize; 3] {
        [0, 1, 2].map(|part| part * self.dim + self.index * self.width())
    }

    /// The first queries, into rows of a stride; `on_lse` is called with the log-sum-exp of each.
    pub fn attend(
        &self,
        qkv: &[f32],
        queries: usize,
        [keys_t, scores]: [&mut [f32]; 2],
        (out, stride): (&mut [f32], usize),
        mut on_lse: impl FnMut(usize, f32),
    ) {
        let (n, k, step) = (self.tokens, self.width(), 3 * self.dim);
        let [query, key, value] = self.starts().map(|start| &qkv[start..]);
        transpose_strided([n, k], (key, step), (keys_t, n));
        for start in (0..queries).step_by(BLOCK) {
            let rows = BLOCK.min(queries - start);
            let (query, scores) = (Matrix::rows(&query[start * step..], step), &mut scores[..rows * n]);
            multiply(Size { m: rows, inner: k, n }, query, (keys_t, n), (scores, n), false);
            for (row, scores) in scores.chunks_exact_mut(n).enumerate() {
                on_lse(start + row, softmax_row(scores, &self.row()));
            }
            let (size, out) = (Size { m: rows, inner: n, n: k }, &mut out[start * stride..]);
            multiply(size, Matrix::rows(scores, n), (value, step), (out, stride), false);
        }
    }
}

/// Self-attention on rows of query, key and value: `[B, N, 3*A*K] -> [B, N, A*K]`.
impl Attention {
    /// The output and the log-sum-exp of each query `[B, A, N]`.
    #[must_use]
    pub fn forward_rows(&self, qkv: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let (rows, single) = self.layouts(qkv);
        let [query, key, value] = [0, 1, 2].map(|part| rows.split(qkv, part));
        let (out, lse) = self.forward(&query, &key, &value, &[]);
        (single.join(&[&out]), lse)
    }

    /// The gradient of the rows.
    #[must_use]
    pub fn backward_rows(&self, qkv: &[f32], out: &[f32], lse: &[f32], grad: &[f32]) -> Vec<f32> {
        let (rows, single) = self.layouts(qkv);
        assert!(
            out.len() == qkv.len() / 3 && grad.len() == out.len(),
            "attention: lengths of the output and its gradient"
        );
        let [query, key, value] = [0, 1, 2].map(|part| rows.split(qkv, part));
        let [out, grad] = [out, grad].map(|x| single.split(x, 0));
        let [query, key, value, _] = self.backward([&query, &key, &value, &[]], &out, lse, &grad);
        rows.join(&[&query, &key, &value])
    }

    fn layouts(&self, qkv: &[f32]) -> (HeadLayout, HeadLayout) {
        assert_eq!([self.queries, self.width], [self.keys, self.value_width], "attention: self-attention has one size");
        assert!(self.bias.is_none(), "attention: rows have no bias");
        let len = size::product("attention", &[self.batch, self.queries, 3, self.heads, self.width]);
        assert_eq!(qkv.len(), len, "attention: length of the rows");
        let single = HeadLayout { tokens: self.queries, parts: 1, heads: self.heads, width: self.width };
        (HeadLayout { parts: 3, ..single }, single)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_same_on_threads, noise};

    fn case() -> Attention {
        Attention {
            batch: 3,
            heads: 2,
            queries: 7,
            keys: 7,
            width: 4,
            value_width: 4,
            scale: 0.5,
            causal: false,
            visible: Vec::new(),
            bias: None,
        }
    }

    #[test]
    fn parts_and_heads_are_where_they_should_be() {
        let layout = HeadLayout { tokens: 2, parts: 3, heads: 2, width: 2 };
        let x: Vec<f32> = (0..24u8).map(f32::from).collect();
        // token 0 is 0..12: query heads 0 1 | 2 3, key heads 4 5 | 6 7; token 1 begins at 12
        assert_eq!(layout.split(&x, 1), [4.0, 5.0, 16.0, 17.0, 6.0, 7.0, 18.0, 19.0]);
        let parts = [0, 1, 2].map(|part| layout.split(&x, part));
        assert_eq!(layout.join(&parts.each_ref().map(Vec::as_slice)), x);
    }

    #[test]
    fn rows_are_attended_as_their_parts_are() {
        let case = case();
        let (qkv, grad) = (noise(3 * 7 * 24, 1), noise(3 * 7 * 8, 2));
        let (rows, single) = case.layouts(&qkv);
        let [query, key, value] = [0, 1, 2].map(|part| rows.split(&qkv, part));
        let (expected, _) = case.forward(&query, &key, &value, &[]);
        let (out, lse) = case.forward_rows(&qkv);
        assert_eq!(single.split(&out, 0), expected);
        let grads = case.backward([&query, &key, &value, &[]], &expected, &lse, &single.split(&grad, 0));
        let all = case.backward_rows(&qkv, &out, &lse, &grad);
        for (part, grad) in grads.iter().take(3).enumerate() {
            assert_eq!(rows.split(&all, part), *grad);
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (case, qkv) = (case(), noise(3 * 7 * 24, 1));
        assert_same_on_threads(|| {
            let (out, lse) = case.forward_rows(&qkv);
            let grad = case.backward_rows(&qkv, &out, &lse, &out);
            vec![out, lse, grad]
        });
    }
}
