//! Clips of one batch: short runs of frames, all of one length and size.

use burn::tensor::Tensor;

/// Clips of one batch on a device.
#[derive(Clone, Debug)]
pub struct Clips {
    /// `[B, C, T, H, W]`
    pub pixels: Tensor<5>,
}

impl Clips {
    /// Number of frames of a clip, `T`.
    #[must_use]
    pub fn frames(&self) -> usize {
        self.pixels.dims()[2]
    }

    /// Every frame as an image, clip after clip: `[B*T, C, H, W]`.
    #[must_use]
    pub fn images(&self) -> Tensor<4> {
        let [batch, channels, frames, rows, columns] = self.pixels.dims();
        self.pixels.clone().swap_dims(1, 2).reshape([batch * frames, channels, rows, columns])
    }

    /// The clips played backwards.
    #[must_use]
    pub fn reversed(&self) -> Self {
        Self { pixels: self.pixels.clone().flip([2]) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};

    #[test]
    fn images_are_the_frames_of_the_first_clip_then_of_the_second() {
        let clips = Clips { pixels: random([2, 3, 4, 5, 6], 1) };
        let frame = clips.pixels.clone().narrow(0, 1, 1).narrow(2, 2, 1).reshape([1, 3, 5, 6]);
        assert_close(&clips.images().narrow(0, 4 + 2, 1), &frame, 0.0);
        assert_eq!((clips.frames(), clips.images().dims()), (4, [8, 3, 5, 6]));
    }

    #[test]
    fn backwards_the_last_frame_comes_first_and_twice_backwards_is_forwards() {
        let clips = Clips { pixels: random([2, 3, 4, 5, 6], 1) };
        let backwards = clips.reversed();
        assert_close(&backwards.pixels.clone().narrow(2, 0, 1), &clips.pixels.clone().narrow(2, 3, 1), 0.0);
        assert_close(&backwards.reversed().pixels, &clips.pixels, 0.0);
    }
}
