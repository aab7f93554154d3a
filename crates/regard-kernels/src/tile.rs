//! The steps of window attention on tiles of sixteen neighbouring pixels of one row.
//!
//! A tile is `[rows, 16]`: a channel, or a weight of one offset, for sixteen pixels. Lanes beyond the right
//! edge of the image hold zeros in every tile that is read from it.

use crate::math::exp_of_negative;
use crate::simd::{Vector, kernel};
use crate::size;
use crate::window::Window;

/// Pixels of a tile.
pub(crate) const TILE: usize = 16;

/// Padded planes and the top left corner of the window of a tile's first pixel.
#[derive(Clone, Copy)]
pub(crate) struct WindowOrigin {
    pub plane: usize,
    pub stride: usize,
    /// Elements from a pixel to its right neighbour.
    step: usize,
    pub row: usize,
    column: usize,
}

impl WindowOrigin {
    /// The tile at (row, column) of planes that hold `rows` of the image.
    pub fn new(window: &Window, rows: usize, row: usize, column: usize) -> Self {
        Self { plane: window.plane(rows), stride: window.stride(), step: window.step(), row, column }
    }

    /// The same tile seen through an offset of the window.
    pub fn shifted(self, rows: usize, columns: usize) -> Self {
        Self { row: self.row + rows, column: self.column + columns * self.step, ..self }
    }

    #[inline(always)]
    fn start(&self, channel: usize) -> usize {
        channel * self.plane + self.row * self.stride + self.column
    }

    /// Panics unless windows of so many rows and columns of `channels` planes lie inside `len` elements.
    #[inline(always)]
    fn check(&self, channels: usize, [rows, columns]: Span, len: usize) {
        let last = || {
            let window = size::strided(columns, self.step, self.column.checked_add(TILE)?)?;
            let row = self.row.checked_add(rows)?;
            size::strided(channels, self.plane, size::strided(row, self.stride, window)?)
        };
        assert!(
            rows > 0 && last().is_some_and(|last| last <= len),
            "windows of {rows} x {columns} in {channels} planes do not fit {len} elements"
        );
    }
}

/// Rows and columns of a window, or of some rows of it.
pub(crate) type Span = [usize; 2];

/// Which channels share weights: channel `i` of group `g` is `g * group_step + i * step`.
#[derive(Clone, Copy)]
pub(crate) struct Groups {
    pub count: usize,
    pub size: usize,
    group_step: usize,
    step: usize,
}

impl Groups {
    /// Neighbouring channels belong together: heads.
    pub fn blocked(count: usize, size: usize) -> Self {
        Self { count, size, group_step: size, step: 1 }
    }
    /// Channel c belongs to group `c mod count`: SAN's shared weights.
    pub fn interleaved(count: usize, size: usize) -> Self {
        Self { count, size, group_step: 1, step: count }
    }
    #[inline(always)]
    fn channel(&self, group: usize, index: usize) -> usize {
        group * self.group_step + index * self.step
    }
    fn channels(&self) -> usize {
        self.count.checked_mul(self.size).expect("window: too many channels")
    }
}

/// Reads a tile of every channel of `[C, H, W]`; lanes beyond `count` are zero.
pub(crate) fn read(x: &[f32], window: &Window, (row, column, count): (usize, usize, usize), tile: &mut [f32]) {
    let start = row * window.width + column;
    for (tile, x) in tile.as_chunks_mut::<TILE>().0.iter_mut().zip(x.chunks_exact(window.pixels())) {
        copy_whole_or_some(&x[start..][..count], tile);
        tile[count..].fill(0.0);
    }
}

/// A whole tile is a copy of known length, without a call.
#[inline(always)]
fn copy_whole_or_some(from: &[f32], to: &mut [f32]) {
    match (from.first_chunk::<TILE>(), to.first_chunk_mut::<TILE>()) {
        (Some(from), Some(to)) => *to = *from,
        _ => to[..from.len()].copy_from_slice(from),
    }
}

/// Writes a tile of every channel into planes of `plane` elements and rows of `width`.
pub(crate) fn write(tile: &[f32], count: usize, to: &mut [f32], plane: usize, start: usize) {
    for (tile, to) in tile.chunks_exact(TILE).zip(to.chunks_exact_mut(plane)) {
        copy_whole_or_some(&tile[..count], &mut to[start..][..count]);
    }
}

/// Reads a tile of every channel of padded planes.
pub(crate) fn read_padded(planes: &[f32], origin: WindowOrigin, tile: &mut [f32]) {
    for (channel, tile) in tile.chunks_exact_mut(TILE).enumerate() {
        copy_whole_or_some(&planes[origin.start(channel)..][..TILE], tile);
    }
}

/// The adjoint of [`read_padded`].
pub(crate) fn add_padded(tile: &[f32], planes: &mut [f32], origin: WindowOrigin) {
    for (channel, tile) in tile.chunks_exact(TILE).enumerate() {
        planes[origin.start(channel)..][..TILE].iter_mut().zip(tile).for_each(|(sum, value)| *sum += value);
    }
}

kernel!(
    /// `out[g][o] = sum over the channels of g of tile * window at o`
    pub(crate) fn dots<'a>(tile: &'a [f32], planes: &'a [f32], origin: WindowOrigin, groups: Groups, span: Span, out: &'a mut [f32]) = dots_body
);

#[inline(always)]
fn dots_body<V: Vector>(
    tile: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    groups: Groups,
    span: Span,
    out: &mut [f32],
) {
    origin.check(groups.channels(), span, planes.len());
    let [rows, columns] = span;
    assert!(size::holds(tile.len(), [groups.count, groups.size, TILE]), "a tile of other channels");
    assert!(size::holds(out.len(), [groups.count, rows, columns, TILE]), "an output of other offsets");
    // a compiled width keeps one sum per column of the window in registers
    match columns {
        1 => dots_wide::<V, 1>(tile, planes, origin, groups, rows, out),
        2 => dots_wide::<V, 2>(tile, planes, origin, groups, rows, out),
        3 => dots_wide::<V, 3>(tile, planes, origin, groups, rows, out),
        4 => dots_wide::<V, 4>(tile, planes, origin, groups, rows, out),
        5 => dots_wide::<V, 5>(tile, planes, origin, groups, rows, out),
        6 => dots_wide::<V, 6>(tile, planes, origin, groups, rows, out),
        7 => dots_wide::<V, 7>(tile, planes, origin, groups, rows, out),
        8 => dots_wide::<V, 8>(tile, planes, origin, groups, rows, out),
        9 => dots_wide::<V, 9>(tile, planes, origin, groups, rows, out),
        10 => dots_wide::<V, 10>(tile, planes, origin, groups, rows, out),
        11 => dots_wide::<V, 11>(tile, planes, origin, groups, rows, out),
        _ => panic!("window is {columns}, needs 1 to {}", Window::LARGEST),
    }
}

#[inline(always)]
fn dots_wide<V: Vector, const S: usize>(
    tile: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    groups: Groups,
    rows: usize,
    out: &mut [f32],
) {
    for group in 0..groups.count {
        for row in 0..rows {
            for lane in (0..TILE).step_by(V::LANES) {
                let mut sums = [V::zero(); S];
                for index in 0..groups.size {
                    let channel = groups.channel(group, index);
                    // SAFETY: `dots_body` checked the tile and the last window of the last channel
                    unsafe {
                        let left = V::load(tile.as_ptr().add(channel * TILE + lane));
                        let right = planes.as_ptr().add(origin.start(channel) + row * origin.stride + lane);
                        for (column, sum) in sums.iter_mut().enumerate() {
                            *sum = left.fma(V::load(right.add(column * origin.step)), *sum);
                        }
                    }
                }
                for (column, sum) in sums.iter().enumerate() {
                    sum.put(out, ((group * rows + row) * S + column) * TILE + lane);
                }
            }
        }
    }
}

kernel!(
    /// `out[c] = sum over offsets of weights[group of c][o] * window of c at o`
    pub(crate) fn gather<'a>(weights: &'a [f32], planes: &'a [f32], origin: WindowOrigin, groups: Groups, span: Span, out: &'a mut [f32]) = gather_body
);

#[inline(always)]
fn gather_body<V: Vector>(
    weights: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    groups: Groups,
    span: Span,
    out: &mut [f32],
) {
    origin.check(groups.channels(), span, planes.len());
    assert!(size::holds(weights.len(), [groups.count, span[0], span[1], TILE]), "weights of other offsets");
    assert!(size::holds(out.len(), [groups.count, groups.size, TILE]), "an output of other channels");
    for group in 0..groups.count {
        let mut index = 0;
        while index + 8 <= groups.size {
            gather_some::<V, 8>(weights, planes, origin, groups, (group, index), span, out);
            index += 8;
        }
        while index + 2 <= groups.size {
            gather_some::<V, 2>(weights, planes, origin, groups, (group, index), span, out);
            index += 2;
        }
        if index < groups.size {
            gather_some::<V, 1>(weights, planes, origin, groups, (group, index), span, out);
        }
    }
}

#[inline(always)]
fn gather_some<V: Vector, const C: usize>(
    weights: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    groups: Groups,
    (group, first): (usize, usize),
    [rows, columns]: Span,
    out: &mut [f32],
) {
    for lane in (0..TILE).step_by(V::LANES) {
        let mut sums = [V::zero(); C];
        for row in 0..rows {
            for column in 0..columns {
                // SAFETY: `gather_body` checked the weights and the last window of the last channel
                unsafe {
                    let weight = V::load(weights.as_ptr().add(((group * rows + row) * columns + column) * TILE + lane));
                    for (index, sum) in sums.iter_mut().enumerate() {
                        let channel = groups.channel(group, first + index);
                        let at = origin.start(channel) + row * origin.stride + column * origin.step + lane;
                        *sum = weight.fma(V::load(planes.as_ptr().add(at)), *sum);
                    }
                }
            }
        }
        for (index, sum) in sums.iter().enumerate() {
            sum.put(out, groups.channel(group, first + index) * TILE + lane);
        }
    }
}

kernel!(
    /// `window of c at o += weights[group of c][o] * tile[c]`: the adjoint of [`gather`] and [`dots`]
    pub(crate) fn scatter<'a>(weights: &'a [f32], tile: &'a [f32], planes: &'a mut [f32], origin: WindowOrigin, groups: Groups, span: Span) = scatter_body
);

#[inline(always)]
fn scatter_body<V: Vector>(
    weights: &[f32],
    tile: &[f32],
    planes: &mut [f32],
    origin: WindowOrigin,
    groups: Groups,
    span: Span,
) {
    let [rows, columns] = span;
    origin.check(groups.channels(), span, planes.len());
    assert!(size::holds(weights.len(), [groups.count, rows, columns, TILE]), "weights of other offsets");
    assert!(size::holds(tile.len(), [groups.count, groups.size, TILE]), "a tile of other channels");
    let Groups { count, size, group_step, step } = groups;
    // elements from a group to the next, and from a channel of a group to the next
    let (weights_step, group_tile, group_plane) = (rows * columns * TILE, group_step * TILE, group_step * origin.plane);
    let (channel_tile, channel_plane) = (step * TILE, step * origin.plane);
    // channels innermost: neighbouring columns overlap in memory and would wait for each other
    let together = if size == 1 { count } else { 1 };
    for first in (0..count).step_by(together) {
        for row in 0..rows {
            for column in 0..columns {
                let offset = (row * columns + column) * TILE;
                let corner = origin.start(0) + row * origin.stride + column * origin.step;
                for group in first..first + together {
                    let (of_tile, of_plane) = (group * group_tile, corner + group * group_plane);
                    for lane in (0..TILE).step_by(V::LANES) {
                        // SAFETY: the weights, the tile and the last window of the last channel were checked
                        unsafe {
                            let weight = V::load(weights.as_ptr().add(group * weights_step + offset + lane));
                            for index in 0..size {
                                let own = V::load(tile.as_ptr().add(of_tile + index * channel_tile + lane));
                                let to = planes.as_mut_ptr().add(of_plane + index * channel_plane + lane);
                                weight.fma(own, V::load(to)).store(to);
                            }
                        }
                    }
                }
            }
        }
    }
}

kernel!(
    /// Softmax over the `offsets` of every group, pixel by pixel; offsets whose mask is zero take no part.
    pub(crate) fn softmax<'a>(scores: &'a mut [f32], offsets: usize, mask: &'a [f32]) = softmax_body
);

#[inline(always)]
fn softmax_body<V: Vector>(scores: &mut [f32], offsets: usize, mask: &[f32]) {
    let group = offsets.checked_mul(TILE).expect("window: too many offsets");
    assert!(mask.is_empty() || mask.len() >= group, "a mask of other offsets");
    for scores in scores.chunks_exact_mut(group) {
        for lane in (0..TILE).step_by(V::LANES) {
            // SAFETY: a group has `offsets` tiles, as has the mask
            unsafe {
                let scores = scores.as_mut_ptr().add(lane);
                // two of each, so that none waits for the one before
                let mut largest = [V::splat(f32::NEG_INFINITY); 2];
                for offset in 0..offsets {
                    let score = scores.add(offset * TILE);
                    if !mask.is_empty() {
                        let seen = V::load(mask.as_ptr().add(offset * TILE + lane));
                        seen.positive(V::load(score), V::splat(f32::NEG_INFINITY)).store(score);
                    }
                    largest[offset % 2] = largest[offset % 2].max(V::load(score));
                }
                // a pixel beyond the edge may see nothing: a finite shift keeps its weights zero instead of NaN
                let largest = V::splat(-1e30).max(largest[0].max(largest[1]));
                let mut sum = [V::zero(); 2];
                for offset in 0..offsets {
                    let score = scores.add(offset * TILE);
                    let weight = exp_of_negative(V::load(score).sub(largest));
                    weight.store(score);
                    sum[offset % 2] = sum[offset % 2].add(weight);
                }
                let sum = sum[0].add(sum[1]);
                let scale = sum.positive(V::splat(1.0).div(sum), sum);
                for offset in 0..offsets {
                    let weight = scores.add(offset * TILE);
                    V::load(weight).mul(scale).store(weight);
                }
            }
        }
    }
}

kernel!(
    /// Gradients of weights become gradients of scores.
    pub(crate) fn softmax_backward<'a>(weights: &'a [f32], grads: &'a mut [f32], offsets: usize) = softmax_backward_body
);

#[inline(always)]
fn softmax_backward_body<V: Vector>(weights: &[f32], grads: &mut [f32], offsets: usize) {
    let group = offsets.checked_mul(TILE).expect("window: too many offsets");
    for (weights, grads) in weights.chunks_exact(group).zip(grads.chunks_exact_mut(group)) {
        for lane in (0..TILE).step_by(V::LANES) {
            // SAFETY: both have `offsets` tiles
            unsafe {
                let (weights, grads) = (weights.as_ptr().add(lane), grads.as_mut_ptr().add(lane));
                let mut dot = [V::zero(); 2];
                for offset in 0..offsets {
                    let (weight, grad) = (V::load(weights.add(offset * TILE)), V::load(grads.add(offset * TILE)));
                    dot[offset % 2] = weight.fma(grad, dot[offset % 2]);
                }
                let dot = dot[0].add(dot[1]);
                for offset in 0..offsets {
                    let grad = grads.add(offset * TILE);
                    V::load(weights.add(offset * TILE)).mul(V::load(grad).sub(dot)).store(grad);
                }
            }
        }
    }
}

/// How the value of a pixel is combined with that of its neighbour.
#[derive(Clone, Copy)]
pub(crate) enum Pairing {
    Add,
    Subtract,
    Multiply,
    First,
    Second,
}

kernel!(
    /// `out[c][o] = tile[c] (pairing) window of c at o`, for every channel of the tile
    pub(crate) fn pair<'a>(pairing: Pairing, tile: &'a [f32], planes: &'a [f32], origin: WindowOrigin, span: Span, out: &'a mut [f32]) = pair_body
);

#[inline(always)]
fn pair_body<V: Vector>(
    pairing: Pairing,
    tile: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    span: Span,
    out: &mut [f32],
) {
    // a loop for each, without a choice inside, and without closures: these have the plain instruction set
    match pairing {
        Pairing::Add => pair_by::<V, { Pairing::Add as u8 }>(tile, planes, origin, span, out),
        Pairing::Subtract => pair_by::<V, { Pairing::Subtract as u8 }>(tile, planes, origin, span, out),
        Pairing::Multiply => pair_by::<V, { Pairing::Multiply as u8 }>(tile, planes, origin, span, out),
        Pairing::First => pair_by::<V, { Pairing::First as u8 }>(tile, planes, origin, span, out),
        Pairing::Second => pair_by::<V, { Pairing::Second as u8 }>(tile, planes, origin, span, out),
    }
}

#[inline(always)]
fn pair_by<V: Vector, const PAIRING: u8>(
    tile: &[f32],
    planes: &[f32],
    origin: WindowOrigin,
    span: Span,
    out: &mut [f32],
) {
    const ADD: u8 = Pairing::Add as u8;
    const SUBTRACT: u8 = Pairing::Subtract as u8;
    const MULTIPLY: u8 = Pairing::Multiply as u8;
    const FIRST: u8 = Pairing::First as u8;
    let [rows, columns] = span;
    let channels = out.len() / size::exact([rows, columns, TILE]).expect("window: too many offsets");
    if channels == 0 {
        return;
    }
    origin.check(channels, span, planes.len());
    assert!(tile.len() >= channels * TILE, "a tile of {channels} channels");
    for channel in 0..channels {
        for lane in (0..TILE).step_by(V::LANES) {
            // SAFETY: the tile and the last window of the last channel were checked, `out` gave the channels
            unsafe {
                let first = V::load(tile.as_ptr().add(channel * TILE + lane));
                for row in 0..rows {
                    let start = planes.as_ptr().add(origin.start(channel) + row * origin.stride + lane);
                    let out = out.as_mut_ptr().add((channel * rows + row) * columns * TILE + lane);
                    for column in 0..columns {
                        let second = V::load(start.add(column * origin.step));
                        let value = match PAIRING {
                            ADD => first.add(second),
                            SUBTRACT => first.sub(second),
                            MULTIPLY => first.mul(second),
                            FIRST => first,
                            _ => second,
                        };
                        value.store(out.add(column * TILE));
                    }
                }
            }
        }
    }
}

/// `out[c] += sum over offsets of x[c][o]`
pub(crate) fn add_offsets(x: &[f32], offsets: usize, out: &mut [f32]) {
    for (x, out) in x.chunks_exact(offsets * TILE).zip(out.chunks_exact_mut(TILE)) {
        for x in x.chunks_exact(TILE) {
            out.iter_mut().zip(x).for_each(|(sum, x)| *sum += x);
        }
    }
}
