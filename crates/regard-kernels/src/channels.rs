//! Some channels of images that have more of them.

use crate::elementwise::{piece, rows_per_task, written, zeroed};
use crate::size;

/// Channels `first..first + count` of images `[whole, pixels]`.
#[derive(Clone, Copy, Debug)]
pub struct Channels {
    pub whole: usize,
    pub first: usize,
    pub count: usize,
    pub pixels: usize,
}

impl Channels {
    /// `[B, whole, pixels] -> [B, count, pixels]`
    ///
    /// # Panics
    /// When images do not divide the length.
    #[must_use]
    pub fn select(&self, images: &[f32]) -> Vec<f32> {
        let [all, some] = self.sizes();
        assert!(images.len().is_multiple_of(all), "channels: images of {all} do not divide {}", images.len());
        let task = rows_per_task(some);
        written(images.len() / all * some, task * some, |index, out| {
            let images = piece(images, index, task * all).chunks_exact(all);
            images.for_each(|image| out.push_slice(&image[self.first * self.pixels..][..some]));
        })
    }

    /// The adjoint of [`select`](Self::select): zeros in all other channels.
    ///
    /// # Panics
    /// When images do not divide the length.
    #[must_use]
    pub fn place(&self, images: &[f32]) -> Vec<f32> {
        let [all, some] = self.sizes();
        assert!(images.len().is_multiple_of(some), "channels: images of {some} do not divide {}", images.len());
        size::product("channels", &[images.len() / some, all]);
        let task = rows_per_task(all);
        zeroed(images.len() / some * all, task * all, |index, out| {
            for (out, image) in out.chunks_exact_mut(all).zip(piece(images, index, task * some).chunks_exact(some)) {
                out[self.first * self.pixels..][..some].copy_from_slice(image);
            }
        })
    }

    /// Numbers of an image, and of its chosen channels.
    fn sizes(&self) -> [usize; 2] {
        let last = size::sum("channels", &[self.first, self.count]);
        assert!(self.count > 0 && self.pixels > 0 && last <= self.whole, "channels: {self:?}");
        [self.whole, self.count].map(|channels| size::product("channels", &[channels, self.pixels]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_channels_go_back_to_where_they_were() {
        let case = Channels { whole: 3, first: 1, count: 2, pixels: 2 };
        let images: Vec<f32> = (1..=12u8).map(f32::from).collect();
        let chosen = case.select(&images);
        assert_eq!(chosen, [3.0, 4.0, 5.0, 6.0, 9.0, 10.0, 11.0, 12.0]);
        assert_eq!(case.place(&chosen), [0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 9.0, 10.0, 11.0, 12.0]);
    }
}
