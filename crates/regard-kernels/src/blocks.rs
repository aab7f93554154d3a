//! Images cut into aligned blocks, sixteen blocks side by side: the layout in which narrow windows fill their tiles.

use rayon::prelude::*;

use crate::size;
use crate::tile::TILE;

/// `[B, C, H, W]` as blocks of `b x b`, numbered row by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    pub batch: usize,
    pub channels: usize,
    pub height: usize,
    pub width: usize,
    /// Side of a block.
    pub block: usize,
}

impl Blocks {
    /// Groups of sixteen blocks; the last one may be filled up with blocks of zeros.
    #[must_use]
    pub fn groups(&self) -> usize {
        let block = size::product("blocks", &[self.block, self.block]);
        assert!(block > 0, "blocks: a side of zero");
        (size::product("blocks", &[self.batch, self.height, self.width]) / block).div_ceil(TILE)
    }

    /// Elements of a group of sixteen blocks.
    fn group(&self) -> usize {
        size::product("blocks", &[self.channels, self.block, self.block, TILE])
    }

    /// `[B, C, H, W] -> [groups, C, b*b, 16]`
    #[must_use]
    pub fn interleave(&self, x: &[f32]) -> Vec<f32> {
        self.check(x.len());
        let mut out = vec![0.0; size::product("blocks", &[self.groups(), self.group()])];
        out.par_chunks_mut(self.group()).enumerate().for_each(|(group, out)| {
            self.visit(group, |from, to| out[to] = x[from]);
        });
        out
    }

    /// The inverse and adjoint of [`interleave`](Self::interleave).
    #[must_use]
    pub fn separate(&self, x: &[f32]) -> Vec<f32> {
        let len = size::product("blocks", &[self.batch, self.channels, self.height, self.width]);
        self.check(len);
        let group = self.group();
        assert_eq!(x.len(), size::product("blocks", &[self.groups(), group]), "blocks: length of the groups");
        let mut out = vec![0.0; len];
        out.par_chunks_mut(self.channels * self.height * self.width).enumerate().for_each(|(image, out)| {
            let (blocks, start) = (self.height * self.width / (self.block * self.block), image * out.len());
            for index in image * blocks / TILE..((image + 1) * blocks).div_ceil(TILE) {
                let x = &x[index * group..][..group];
                self.visit(index, |from, to| {
                    if let Some(pixel) = from.checked_sub(start).and_then(|at| out.get_mut(at)) {
                        *pixel = x[to];
                    }
                });
            }
        });
        out
    }

    /// Every pixel of a group of blocks: where it is in the images, and where among the blocks.
    fn visit(&self, group: usize, mut pixel: impl FnMut(usize, usize)) {
        let Self { channels, height, width, block, .. } = *self;
        let (rows, columns) = (height / block, width / block);
        let last = (self.batch * rows * columns).min((group + 1) * TILE);
        let corners: Vec<usize> = (group * TILE..last)
            .map(|index| {
                let (image, index) = (index / (rows * columns), index % (rows * columns));
                image * channels * height * width + (index / columns * width + index % columns) * block
            })
            .collect();
        for channel in 0..channels {
            for place in 0..block * block {
                let from = channel * height * width + place / block * width + place % block;
                let to = (channel * block * block + place) * TILE;
                corners.iter().enumerate().for_each(|(lane, corner)| pixel(corner + from, to + lane));
            }
        }
    }

    fn check(&self, len: usize) {
        let Self { batch, channels, height, width, block } = *self;
        let images = size::product("blocks", &[batch, channels, height, width]);
        assert_eq!(len, images, "blocks: length of the images");
        assert!(
            channels > 0 && block > 0 && height.is_multiple_of(block) && width.is_multiple_of(block),
            "blocks of {block} x {block} do not fill {height} x {width}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{assert_same_on_threads, noise};

    #[test]
    fn a_lane_is_a_block() {
        let case = Blocks { batch: 2, channels: 3, height: 4, width: 10, block: 2 };
        let x = noise(2 * 3 * 40, 1);
        let lanes = case.interleave(&x);
        assert_eq!(lanes.len(), 2 * 3 * 4 * 16);
        // block 13 is the fourth of the second image: rows 0 and 1, columns 6 and 7
        let (channel, place) = (2, 3);
        assert_eq!(lanes[(channel * 4 + place) * 16 + 13], x[(3 + channel) * 40 + 10 + 7]);
    }

    #[test]
    fn blocks_go_back_where_they_were_and_the_rest_is_zero() {
        for batch in [1, 3, 16] {
            let case = Blocks { batch, channels: 2, height: 6, width: 9, block: 3 };
            let x = noise(batch * 2 * 54, 1);
            let lanes = case.interleave(&x);
            assert_eq!(case.separate(&lanes), x);
            let sum = |x: &[f32]| x.iter().map(|x| f64::from(x * x)).sum::<f64>();
            assert!((sum(&lanes) - sum(&x)).abs() < 1e-9);
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let case = Blocks { batch: 5, channels: 2, height: 6, width: 10, block: 2 };
        let x = noise(5 * 2 * 60, 1);
        assert_same_on_threads(|| vec![case.interleave(&x), case.separate(&case.interleave(&x))]);
    }
}
