//! What follows the sums of a convolution in inference: a factor and a term of every channel (bias, or a norm whose statistics
//! are given), another map that is added, and ReLU. Sums get it on their way from the cache to the output, which otherwise
//! would go through memory once more for each of these.

use rayon::prelude::*;

use crate::batch_norm::Activation;
use crate::elementwise::rows_per_task;
use crate::simd::{Vector, kernel};
use crate::uninit::UninitWriter;

/// `activation(scale * sum + shift + shortcut)`; an empty array is left out.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a> {
    /// A factor for each channel.
    pub scale: &'a [f32],
    /// A term for each channel.
    pub shift: &'a [f32],
    /// As long as the output.
    pub shortcut: &'a [f32],
    pub activation: Activation,
}

impl<'a> Epilogue<'a> {
    /// The sums as they are.
    pub const IDENTITY: Self = Self { scale: &[], shift: &[], shortcut: &[], activation: Activation::Identity };

    /// A bias for each channel, which may be empty.
    #[must_use]
    pub const fn bias(bias: &'a [f32]) -> Self {
        Self { shift: bias, ..Self::IDENTITY }
    }

    /// Checks the lengths for an output of `channels` and `len` numbers.
    pub(crate) fn check(&self, channels: usize, len: usize) {
        let fits = |array: &[f32], len: usize| array.is_empty() || array.len() == len;
        assert!(fits(self.scale, channels), "epilogue: {} factors for {channels} channels", self.scale.len());
        assert!(fits(self.shift, channels), "epilogue: {} terms for {channels} channels", self.shift.len());
        assert!(fits(self.shortcut, len), "epilogue: a shortcut of {} for an output of {len}", self.shortcut.len());
    }

    /// Writes what becomes of sums of a channel; `at` is where the first of them lies in the output.
    pub(crate) fn finish(&self, sums: &[f32], channel: usize, at: usize, out: &mut UninitWriter) {
        let affine = [(self.scale, 1.0), (self.shift, 0.0)]
            .map(|(of, default): (&[f32], f32)| of.get(channel).copied().unwrap_or(default));
        let shortcut = if self.shortcut.is_empty() { &[] } else { &self.shortcut[at..][..sums.len()] };
        finish_row(sums, affine, shortcut, self.activation, out);
    }

    /// The same for a whole output `[B, channels, pixels]`.
    pub(crate) fn apply(&self, out: &mut [f32], channels: usize, pixels: usize) {
        let idle = self.scale.is_empty() && self.shift.is_empty() && self.shortcut.is_empty();
        if idle && self.activation == Activation::Identity {
            return;
        }
        let task = rows_per_task(pixels);
        out.par_chunks_mut(task * pixels).enumerate().for_each_init(Vec::new, |sums: &mut Vec<f32>, (index, out)| {
            for (plane, out) in out.chunks_mut(pixels).enumerate() {
                let plane = index * task + plane;
                sums.clear();
                sums.extend_from_slice(out);
                self.finish(sums, plane % channels, plane * pixels, &mut UninitWriter::overwrite(out));
            }
        });
    }
}

kernel!(
    fn finish_row<'a, 'b>(sums: &'a [f32], affine: [f32; 2], shortcut: &'a [f32], activation: Activation, out: &'a mut UninitWriter<'b>) = finish_row_body
);

#[inline(always)]
fn finish_row_body<V: Vector>(
    sums: &[f32],
    [scale, shift]: [f32; 2],
    shortcut: &[f32],
    activation: Activation,
    out: &mut UninitWriter,
) {
    let (scale, shift, mut out) = (V::splat(scale), V::splat(shift), out.local());
    for at in (0..sums.len()).step_by(V::LANES) {
        let mut x = V::get(sums, at).fma(scale, shift);
        if !shortcut.is_empty() {
            x = x.add(V::get(shortcut, at));
        }
        if activation == Activation::Relu {
            x = V::zero().max(x);
        }
        out.push(x, sums.len() - at);
    }
    out.finish();
}

kernel!(
    /// ReLU in place.
    pub(crate) fn relu<'a>(x: &'a mut [f32]) = relu_body
);

#[inline(always)]
fn relu_body<V: Vector>(x: &mut [f32]) {
    for x in x.chunks_mut(V::LANES) {
        V::zero().max(V::get(x, 0)).put(x, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_close, noise, wide};
    use crate::simd::{Path, with_path};

    #[test]
    fn every_part_and_path_equals_its_definition() {
        let (channels, pixels) = (3, 37);
        let len = 2 * channels * pixels;
        let (sums, scale, shift, shortcut) = (noise(len, 1), noise(channels, 2), noise(channels, 3), noise(len, 4));
        for parts in 0..16 {
            let part = |bit: usize| parts >> bit & 1 == 1;
            let chosen = |bit: usize, array: &'static [f32]| if part(bit) { array } else { &[] };
            let [scale, shift, shortcut] = [&scale, &shift, &shortcut].map(|array| &*array.clone().leak());
            let after = Epilogue {
                scale: chosen(0, scale),
                shift: chosen(1, shift),
                shortcut: chosen(2, shortcut),
                activation: if part(3) { Activation::Relu } else { Activation::Identity },
            };
            after.check(channels, len);
            let (sums, all) = (wide(&sums), [scale, shift, shortcut].map(wide));
            let expected: Vec<f64> = (0..len)
                .map(|at| {
                    let channel = at / pixels % channels;
                    let factor = if part(0) { all[0][channel] } else { 1.0 };
                    let terms = [(1, all[1][channel]), (2, all[2][at])];
                    let sum = factor * sums[at] + terms.iter().filter(|(bit, _)| part(*bit)).map(|t| t.1).sum::<f64>();
                    if part(3) { sum.max(0.0) } else { sum }
                })
                .collect();
            for &path in Path::available() {
                let mut out: Vec<f32> = sums.iter().map(|x| *x as f32).collect();
                with_path(path, || after.apply(&mut out, channels, pixels));
                assert_close(&out, &expected, 1e-6);
            }
        }
    }

    #[test]
    fn nan_survives_relu() {
        let mut out = vec![f32::NAN, -1.0];
        Epilogue { activation: Activation::Relu, ..Epilogue::IDENTITY }.apply(&mut out, 1, 2);
        assert!(out[0].is_nan() && out[1] == 0.0);
    }

    #[test]
    #[should_panic(expected = "epilogue: 2 terms for 3 channels")]
    fn terms_for_other_channels_are_refused() {
        Epilogue::bias(&[0.0; 2]).check(3, 6);
    }
}
