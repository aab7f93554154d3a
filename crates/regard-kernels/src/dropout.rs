//! Dropout without a stored mask: whether an element is kept is a hash of its index, which the backward pass recomputes.

use crate::elementwise::{piece, rows_per_task, written};
use crate::simd::{Vector, kernel};
use crate::uninit::UninitWriter;

/// Which elements are dropped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Dropout {
    /// Elements with hashes below it are dropped.
    below: u32,
    factor: f32,
    key: [u32; 2],
}

impl Dropout {
    /// Drops a fraction `rate`, from 0 to below 1, chosen by the key.
    #[must_use]
    pub fn new(rate: f64, key: u64) -> Self {
        assert!((0.0..1.0).contains(&rate), "dropout: a rate of {rate} is not from 0 to below 1");
        let below = (rate * 2f64.powi(32)) as u32;
        Self { below, factor: (1.0 / (1.0 - rate)) as f32, key: [key as u32, (key >> 32) as u32] }
    }

    /// `x` with elements dropped and the others scaled up; the gradient is the same function.
    #[must_use]
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let task = rows_per_task(1);
        written(x.len(), task, |index, out| drop(self, (index * task) as u32, &[], piece(x, index, task), out))
    }

    /// `x + apply(branch)`
    #[must_use]
    pub fn add(&self, x: &[f32], branch: &[f32]) -> Vec<f32> {
        assert_eq!(x.len(), branch.len(), "dropout: length of the branch");
        let task = rows_per_task(1);
        written(x.len(), task, |index, out| {
            drop(self, (index * task) as u32, piece(x, index, task), piece(branch, index, task), out);
        })
    }

    /// The factor of the number at an index: two rounds of a finaliser with good avalanche, a word of the key for each.
    #[inline(always)]
    fn factor(&self, index: u32) -> f32 {
        let round = |mut x: u32| {
            x ^= x >> 16;
            x = x.wrapping_mul(0x85eb_ca6b);
            x ^= x >> 13;
            x = x.wrapping_mul(0xc2b2_ae35);
            x ^ (x >> 16)
        };
        let hash = round(round(index.wrapping_mul(0x9e37_79b9) ^ self.key[0]) ^ self.key[1]);
        if hash < self.below { 0.0 } else { self.factor }
    }
}

kernel!(fn drop<'a, 'b>(dropout: &'a Dropout, start: u32, x: &'a [f32], branch: &'a [f32], out: &'a mut UninitWriter<'b>) = drop_body);
#[inline(always)]
fn drop_body<V: Vector>(dropout: &Dropout, start: u32, x: &[f32], branch: &[f32], out: &mut UninitWriter) {
    let left =
        branch.iter().enumerate().map(|(index, branch)| branch * dropout.factor(start.wrapping_add(index as u32)));
    if x.is_empty() {
        out.extend(left);
    } else {
        out.extend(left.zip(x).map(|(left, x)| left + x));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_same_on_threads, noise};

    #[test]
    fn a_sum_is_the_sum_and_threads_change_nothing() {
        let (x, branch) = (noise(40_000, 1), noise(40_000, 2));
        let dropout = Dropout::new(0.3, 7);
        let sum: Vec<f32> = x.iter().zip(dropout.apply(&branch)).map(|(x, b)| x + b).collect();
        assert_eq!(dropout.add(&x, &branch), sum);
        assert_same_on_threads(|| vec![dropout.add(&x, &branch)]);
    }

    #[test]
    fn another_key_chooses_others() {
        let ones = vec![1.0; 10_000];
        let out = [1, 2, 1 << 32].map(|key| Dropout::new(0.5, key).apply(&ones));
        for (a, b) in [(0, 1), (0, 2), (1, 2)] {
            let same = out[a].iter().zip(&out[b]).filter(|(x, y)| x == y).count();
            assert!((4_700..5_300).contains(&same), "{same}");
        }
    }
}
