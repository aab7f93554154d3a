//! Window attention by its definition.

use crate::gamma::Moments;
use crate::local::Local;
use crate::pairwise::{Pairwise, Position, Relation};
use crate::patchwise::{self, PatchAggregate, PatchRelate};
use crate::window::Window;

/// The pixel that offset `o` of the window around (row, column) shows, if it is inside the image.
fn neighbour(window: &Window, (row, column): (usize, usize), offset: usize) -> Option<(usize, usize)> {
    let before = (window.size - 1) / 2;
    let row = (row + offset / window.size).checked_sub(before)?;
    let column = (column + offset % window.size).checked_sub(before)?;
    (row < window.height && column < window.width).then_some((row, column))
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = scores.iter().map(|s| (s - largest).exp()).sum();
    scores.iter().map(|s| (s - largest).exp() / sum).collect()
}

/// Stand-alone self-attention; inputs as [`Local`] has them.
#[must_use]
pub fn local(case: &Local, p: &[Vec<f64>]) -> Vec<f64> {
    let window = &case.window;
    let (size, half) = (window.size, case.width / 2);
    let at = |channels: usize, b: usize, c: usize, (y, x): (usize, usize)| {
        ((b * channels + c) * window.height + y) * window.width + x
    };
    let (keys, values) = (case.heads * case.width, case.heads * case.value_width);
    let mut out = vec![0.0; case.batch * values * window.pixels()];
    for b in 0..case.batch {
        for head in 0..case.heads {
            for pixel in (0..window.pixels()).map(|i| (i / window.width, i % window.width)) {
                let query = |c: usize| p[0][at(keys, b, head * case.width + c, pixel)];
                let scores: Vec<f64> = (0..window.offsets())
                    .map(|offset| {
                        let Some(other) = neighbour(window, pixel, offset) else { return f64::NEG_INFINITY };
                        let key = |c: usize| p[1][at(keys, b, head * case.width + c, other)];
                        let mut score: f64 = (0..case.width).map(|c| query(c) * key(c)).sum();
                        if case.relative {
                            for c in 0..half {
                                score += query(c) * p[3][(head * half + c) * size + offset / size];
                                score += query(half + c) * p[4][(head * half + c) * size + offset % size];
                            }
                        }
                        score
                    })
                    .collect();
                for (offset, weight) in softmax(&scores).into_iter().enumerate() {
                    let Some(other) = neighbour(window, pixel, offset) else { continue };
                    for c in (0..case.value_width).map(|c| head * case.value_width + c) {
                        out[at(values, b, c, pixel)] += weight * p[2][at(values, b, c, other)];
                    }
                }
            }
        }
    }
    out
}

/// The pixel that an offset shows when the image is mirrored at its edges.
fn mirrored(window: &Window, (row, column): (usize, usize), offset: usize) -> (usize, usize) {
    let mirror = |index: usize, shift: usize, size: usize| {
        let index = (index + shift) as i64 - ((window.size - 1) / 2) as i64;
        let last = size as i64 - 1;
        (if index < 0 {
            -index
        } else if index > last {
            2 * last - index
        } else {
            index
        }) as usize
    };
    (mirror(row, offset / window.size, window.height), mirror(column, offset % window.size, window.width))
}

/// Batch norm and ReLU of rows of vectors, with given moments or their own.
fn norm_relu(x: &mut [Vec<f64>], weight: &[f64], bias: &[f64], moments: Option<&Moments>, epsilon: f64) {
    for c in 0..weight.len() {
        let count = x.len() as f64;
        let (mean, variance) = if let Some(given) = moments {
            (f64::from(given.mean[c]), f64::from(given.variance[c]))
        } else {
            let mean = x.iter().map(|x| x[c]).sum::<f64>() / count;
            (mean, x.iter().map(|x| (x[c] - mean).powi(2)).sum::<f64>() / count)
        };
        for x in x.iter_mut() {
            x[c] = ((x[c] - mean) / (variance + epsilon).sqrt() * weight[c] + bias[c]).max(0.0);
        }
    }
}

/// `[out, in]` times every vector.
fn linear(x: &[Vec<f64>], weights: &[f64]) -> Vec<Vec<f64>> {
    x.iter().map(|x| weights.chunks(x.len()).map(|row| row.iter().zip(x).map(|(w, x)| w * x).sum()).collect()).collect()
}

/// SAN's pairwise attention; inputs as [`Pairwise`] has them.
#[must_use]
pub fn pairwise(case: &Pairwise, p: &[Vec<f64>], moments: Option<&[Moments; 2]>) -> Vec<f64> {
    let window = &case.window;
    let at = |channels: usize, b: usize, c: usize, (y, x): (usize, usize)| {
        ((b * channels + c) * window.height + y) * window.width + x
    };
    let mut pairs = Vec::new();
    let mut deltas = Vec::new();
    for b in 0..case.batch {
        for i in (0..window.pixels()).map(|i| (i / window.width, i % window.width)) {
            for offset in 0..window.offsets() {
                let j = mirrored(window, i, offset);
                let phi: Vec<f64> = (0..case.features).map(|c| p[0][at(case.features, b, c, i)]).collect();
                let psi: Vec<f64> = (0..case.features).map(|c| p[1][at(case.features, b, c, j)]).collect();
                let each = |f: fn(f64, f64) -> f64| phi.iter().zip(&psi).map(|(a, b)| f(*a, *b)).collect::<Vec<_>>();
                let mut delta = match case.relation {
                    Relation::Summation => each(|a, b| a + b),
                    Relation::Subtraction => each(|a, b| a - b),
                    Relation::Hadamard => each(|a, b| a * b),
                    Relation::Concatenation => [phi, psi].concat(),
                    Relation::Dot => vec![each(|a, b| a * b).iter().sum()],
                };
                for c in 0..2 {
                    match case.position {
                        Position::None => {}
                        Position::Relative => delta.push(p[3][at(2, 0, c, i)] - p[3][at(2, 0, c, j)]),
                        Position::Absolute => delta.push(p[3][at(2, 0, c, j)]),
                    }
                }
                deltas.push(delta);
                pairs.push((b, i, j));
            }
        }
    }
    let (d, hidden, weights) = (case.delta(), case.hidden, case.weights);
    let mut gamma = p[4].as_slice();
    let [weight1, bias1, linear1, weight2, bias2, linear2, bias] =
        [d, d, hidden * d, hidden, hidden, weights * hidden, weights].map(|len| {
            let (part, rest) = gamma.split_at(len);
            gamma = rest;
            part
        });
    let epsilon = f64::from(case.epsilon);
    norm_relu(&mut deltas, weight1, bias1, moments.map(|m| &m[0]), epsilon);
    let mut hiddens = linear(&deltas, linear1);
    norm_relu(&mut hiddens, weight2, bias2, moments.map(|m| &m[1]), epsilon);
    let scores = linear(&hiddens, linear2);
    let mut out = vec![0.0; case.batch * case.values * window.pixels()];
    for start in (0..pairs.len()).step_by(window.offsets()) {
        for w in 0..weights {
            let scores: Vec<f64> = (0..window.offsets()).map(|o| scores[start + o][w] + bias[w]).collect();
            for (offset, weight) in softmax(&scores).into_iter().enumerate() {
                let (b, i, j) = pairs[start + offset];
                for c in (w..case.values).step_by(weights) {
                    out[at(case.values, b, c, i)] += weight * p[2][at(case.values, b, c, j)];
                }
            }
        }
    }
    out
}

/// The first half of SAN's patchwise attention; inputs as [`PatchRelate`] has them.
#[must_use]
pub fn patch_relate(case: &PatchRelate, p: &[Vec<f64>], moments: Option<&Moments>) -> Vec<f64> {
    let window = &case.window;
    let value = |x: &[f64], b: usize, c: usize, (row, column): (usize, usize)| {
        x[((b * case.features + c) * window.height + row) * window.width + column]
    };
    let offsets = window.offsets();
    let mut deltas = Vec::new();
    for b in 0..case.batch {
        for i in (0..window.pixels()).map(|i| (i / window.width, i % window.width)) {
            let patch: Vec<_> = (0..offsets).map(|o| mirrored(window, i, o)).collect();
            let dot = |i, j| (0..case.features).map(|c| value(&p[0], b, c, i) * value(&p[1], b, c, j)).sum::<f64>();
            let every = || {
                (0..case.features).flat_map(|c| patch.iter().map(move |&j| (c, j))).map(|(c, j)| value(&p[1], b, c, j))
            };
            deltas.push(match case.relation {
                patchwise::Relation::Star => patch.iter().map(|&j| dot(i, j)).collect(),
                patchwise::Relation::Clique => {
                    patch.iter().flat_map(|&i| patch.iter().map(move |&j| (i, j))).map(|(i, j)| dot(i, j)).collect()
                }
                patchwise::Relation::Concatenation => {
                    (0..case.features).map(|c| value(&p[0], b, c, i)).chain(every()).collect()
                }
                patchwise::Relation::Patch => every().collect::<Vec<_>>(),
            });
        }
    }
    let d = case.delta();
    norm_relu(&mut deltas, &p[2][..d], &p[2][d..2 * d], moments, f64::from(case.epsilon));
    let hidden = linear(&deltas, &p[2][2 * d..]);
    let mut out = vec![0.0; case.batch * case.hidden * window.pixels()];
    for (pixel, hidden) in hidden.iter().enumerate() {
        let (b, i) = (pixel / window.pixels(), pixel % window.pixels());
        for (c, value) in hidden.iter().enumerate() {
            out[(b * case.hidden + c) * window.pixels() + i] = *value;
        }
    }
    out
}

/// The second half of SAN's patchwise attention; inputs as [`PatchAggregate`] has them.
#[must_use]
pub fn patch_aggregate(case: &PatchAggregate, p: &[Vec<f64>]) -> Vec<f64> {
    let (window, pixels, offsets) = (&case.window, case.window.pixels(), case.window.offsets());
    let mut out = vec![0.0; case.batch * case.values * pixels];
    for b in 0..case.batch {
        for i in 0..pixels {
            for c in 0..case.values {
                for offset in 0..offsets {
                    let output = c % case.weights * offsets + offset;
                    let weight: f64 = p[2][output]
                        + (0..case.hidden)
                            .map(|h| p[1][output * case.hidden + h] * p[0][(b * case.hidden + h) * pixels + i])
                            .sum::<f64>();
                    let (row, column) = mirrored(window, (i / window.width, i % window.width), offset);
                    out[(b * case.values + c) * pixels + i] +=
                        weight * p[3][(b * case.values + c) * pixels + row * window.width + column];
                }
            }
        }
    }
    out
}
