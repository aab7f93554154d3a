use super::*;
use crate::encoder::Encoder;
use crate::naive::{assert_close, assert_same_on_threads, layer_norm, linear, noise, wide};
use crate::simd::{Path, with_path};

const D: usize = 24;
const BLOCKS: usize = 3;
const CASE: Encoder = Encoder { tokens: 8, dim: D, heads: 3, inner: 40, epsilon: 1e-5 };

fn pair(pair: &[Vec<f32>]) -> (&[f32], &[f32]) {
    (&pair[0], &pair[1])
}

/// Two tokens before six patches of 4 x 4 in two channels; three classes.
struct Numbers {
    embed: [Vec<f32>; 2],
    prefix: Vec<f32>,
    positions: Vec<f32>,
    blocks: Vec<Vec<Vec<f32>>>,
    scales: [Vec<f32>; 2],
    norm: [Vec<f32>; 2],
    classifiers: [[Vec<f32>; 2]; 2],
}

impl Numbers {
    fn new() -> Self {
        let pair = |weight: usize, bias: usize, seed: u64| [noise(weight, seed), noise(bias, seed + 1)];
        let block = |b: u64| (0..).zip(CASE.lengths()).map(|(i, len)| noise(len, 100 * b + i)).collect();
        Self {
            embed: pair(D * 32, D, 1),
            prefix: noise(2 * D, 3),
            positions: noise(6 * D, 4),
            blocks: (1..=BLOCKS as u64).map(block).collect(),
            scales: [noise(D, 5), noise(D, 6)],
            norm: pair(D, D, 7),
            classifiers: [pair(3 * D, 3, 9), pair(3 * D, 3, 11)],
        }
    }

    fn block(&self, index: usize, scaled: bool) -> BlockParameters<'_> {
        let p = &self.blocks[index];
        BlockParameters {
            norm1: pair(p),
            qkv: pair(&p[2..]),
            proj: pair(&p[4..]),
            norm2: pair(&p[6..]),
            fc1: pair(&p[8..]),
            fc2: pair(&p[10..]),
            scales: scaled.then_some([&self.scales[0], &self.scales[1]]),
        }
    }

    fn prepared(&self, readout: Readout, scaled: bool, precision: Precision) -> Transformer {
        self.with_blocks(BLOCKS, readout, scaled, precision)
    }

    fn with_blocks(&self, blocks: usize, readout: Readout, scaled: bool, precision: Precision) -> Transformer {
        let parameters = Parameters {
            channels: 2,
            image: [8, 12],
            patch: 4,
            heads: 3,
            epsilon: 1e-5,
            embed: pair(&self.embed),
            prefix: self.prefix.clone(),
            positions: &self.positions,
            blocks: (0..blocks).map(|index| self.block(index, scaled)).collect(),
            readout,
            norm: pair(&self.norm),
            classifiers: self
                .classifiers
                .iter()
                .map(|classifier| pair(classifier))
                .take(if readout == Readout::Mean { 1 } else { 2 })
                .collect(),
        };
        Transformer::new(&parameters, precision)
    }

    /// By its parts, for one picture.
    fn definition(&self, image: &[f32], readout: Readout, scaled: bool) -> Vec<f64> {
        let mut x: Vec<f64> = wide(&self.prefix);
        for (patch, position) in self.positions.chunks_exact(D).enumerate() {
            let at = |i: usize| (i / 16 * 8 + patch / 3 * 4 + i / 4 % 4) * 12 + patch % 3 * 4 + i % 4;
            let pixels: Vec<f64> = (0..32).map(|i| f64::from(image[at(i)])).collect();
            let token = linear(&pixels, &wide(&self.embed[0]), &wide(&self.embed[1]));
            x.extend(token.iter().zip(position).map(|(x, position)| x + f64::from(*position)));
        }
        for block in &self.blocks {
            let mut block = block.clone();
            if scaled {
                for (map, scale) in [(4, &self.scales[0]), (10, &self.scales[1])] {
                    let width = block[map].len() / D;
                    block[map].iter_mut().enumerate().for_each(|(i, x)| *x *= scale[i / width]);
                    block[map + 1].iter_mut().zip(scale).for_each(|(x, scale)| *x *= scale);
                }
            }
            let narrow: Vec<f32> = x.iter().map(|x| *x as f32).collect();
            x = wide(&CASE.infer(&narrow, std::array::from_fn(|i| block[i].as_slice())));
        }
        let norm = |x: &[f64]| layer_norm(x, &wide(&self.norm[0]), &wide(&self.norm[1]), 1e-5);
        let classifier =
            |i: usize, x: &[f64]| linear(x, &wide(&self.classifiers[i][0]), &wide(&self.classifiers[i][1]));
        match readout {
            Readout::Tokens => {
                let heads = [0, 1].map(|i| classifier(i, &norm(&x[i * D..(i + 1) * D])));
                heads[0].iter().zip(&heads[1]).map(|(a, b)| f64::midpoint(*a, *b)).collect()
            }
            Readout::Mean => {
                let mean: Vec<f64> = (0..D).map(|i| x.iter().skip(i).step_by(D).sum::<f64>() / 8.0).collect();
                classifier(0, &norm(&mean))
            }
        }
    }
}

#[test]
fn every_readout_and_path_equals_its_parts() {
    let (numbers, images) = (Numbers::new(), noise(3 * 2 * 8 * 12, 20));
    for (readout, scaled) in [(Readout::Tokens, false), (Readout::Tokens, true), (Readout::Mean, false)] {
        for &path in Path::available() {
            with_path(path, || {
                let logits = numbers.prepared(readout, scaled, Precision::Float).forward(&images);
                for (image, logits) in images.chunks_exact(2 * 8 * 12).zip(logits.chunks_exact(3)) {
                    assert_close(logits, &numbers.definition(image, readout, scaled), 1e-4);
                }
            });
        }
    }
}

#[test]
fn a_picture_alone_and_among_others_has_the_same_bytes_on_any_threads() {
    let (numbers, images) = (Numbers::new(), noise(5 * 2 * 8 * 12, 20));
    for precision in [Precision::Float, Precision::Int8] {
        let prepared = numbers.prepared(Readout::Tokens, true, precision);
        assert_same_on_threads(|| {
            let alone = images.chunks_exact(2 * 8 * 12).flat_map(|image| prepared.forward(image)).collect();
            assert_eq!(prepared.forward(&images), alone);
            vec![alone]
        });
    }
}

#[test]
fn maps_that_are_packed_when_their_turn_comes_answer_with_the_same_bytes() {
    let (numbers, image) = (Numbers::new(), noise(2 * 8 * 12, 20));
    for readout in [Readout::Tokens, Readout::Mean] {
        for precision in [Precision::Float, Precision::Int8] {
            let all = numbers.prepared(readout, true, precision).forward(&image);
            let none = numbers.with_blocks(0, readout, true, precision);
            let once = |broken: usize| {
                let block = |index: usize| {
                    let Block { pre: PreAttention { norm1, qkv }, post: PostAttention { proj, norm2, fc1, fc2 } } =
                        Block::new(&numbers.block(index, true), precision);
                    let lazy = |map: PackedLinear| -> LazyLinear<usize> { Box::new(|| Ok(map)) };
                    let fc2 = if index == broken { Box::new(move || Err(index)) } else { lazy(fc2) };
                    LazyBlock { norm1, qkv: lazy(qkv), proj: lazy(proj), norm2, fc1: lazy(fc1), fc2 }
                };
                none.forward_lazy(&image, (0..BLOCKS).map(block).collect())
            };
            assert_eq!(once(BLOCKS).unwrap(), all);
            assert_eq!(once(1).unwrap_err(), 1);
        }
    }
}

#[test]
fn eight_bits_answer_nearly_as_floats_do_on_every_path() {
    let (numbers, images) = (Numbers::new(), noise(3 * 2 * 8 * 12, 20));
    for (readout, scaled) in [(Readout::Tokens, false), (Readout::Tokens, true), (Readout::Mean, false)] {
        for &path in Path::available() {
            let [float, int8] = with_path(path, || {
                [Precision::Float, Precision::Int8]
                    .map(|precision| numbers.prepared(readout, scaled, precision).forward(&images))
            });
            let largest = float.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let error = float.iter().zip(&int8).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
            assert!(error > 0.0 && error < 0.03 * largest, "{readout:?} {path:?}: {error} of {largest}");
        }
    }
}
