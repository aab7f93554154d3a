//! Preprocessing of clips: some frames are sampled, and all are changed alike.
//!
//! Measured as `PySlowFast` does it: views in time, and in each of them parts of the frame along its longer side. The parts of
//! three are its beginning, its middle (rounded up) and its end.

use rand::Rng;
use std::collections::BTreeMap;

use crate::Error;
use crate::data::clip::{ClipLength, FrameSampling};
use crate::data::{Augment, Changes, Picture, Preprocess, to_channels};
use crate::models::VideoConfig;
use crate::train::check_positive;

use super::section::check_crops;

/// How clips become tensors.
#[derive(Clone, Debug, PartialEq)]
pub struct ClipPreparation {
    /// Frames of a clip.
    pub frames: usize,
    /// Rows and columns of a frame.
    pub image: [usize; 2],
    pub channels: usize,
    pub preprocess: Preprocess,
    pub sampling: FrameSampling,
    /// Random changes of training clips.
    pub augment: Augment,
    /// Views in time when measured.
    pub views: usize,
    /// Parts of a frame in each of them.
    pub crops: usize,
}

/// A clip as a model sees it, once or in several views.
#[derive(Clone, Debug, PartialEq)]
pub struct PreparedViews {
    /// `[views, C, T, H, W]`
    pub pixels: Vec<f32>,
    /// Number of views: those in time times parts of a frame.
    pub count: usize,
    /// Which frames of the clip the views in time show.
    pub indices: Vec<Vec<usize>>,
}

impl ClipPreparation {
    /// For one view of a clip, as the model expects it.
    #[must_use]
    pub fn of(config: &VideoConfig, preprocess: Preprocess, sampling: FrameSampling) -> Self {
        Self {
            frames: config.frames(),
            image: config.image(),
            channels: config.channels(),
            preprocess,
            sampling,
            augment: Augment::default(),
            views: 1,
            crops: 1,
        }
    }

    /// # Errors
    /// When a field cannot work; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_positive("frames", self.frames)?;
        check_positive("views", self.views)?;
        check_crops(self.crops)?;
        if self.image.contains(&0) {
            let [rows, columns] = self.image;
            return Err(Error::config("image", format!("must have pixels, got {rows} x {columns}")));
        }
        self.augment.validate()
    }

    /// `[C, T, H, W]` of one view.
    #[must_use]
    pub const fn shape(&self) -> [usize; 4] {
        [self.channels, self.frames, self.image[0], self.image[1]]
    }

    /// The views of a clip of which `read` gives the frames at some positions.
    ///
    /// # Errors
    /// When the frames cannot be read, or they are not of one size.
    pub fn views(
        &self,
        length: ClipLength,
        read: impl FnOnce(&[usize]) -> Result<Vec<Picture>, Error>,
    ) -> Result<PreparedViews, Error> {
        self.validate()?;
        let indices: Vec<Vec<usize>> =
            (0..self.views).map(|view| self.sampling.view(length, self.frames, view, self.views)).collect();
        // views overlap: every frame is read once
        let mut wanted: Vec<usize> = indices.concat();
        wanted.sort_unstable();
        wanted.dedup();
        let found: BTreeMap<usize, Picture> = wanted.iter().copied().zip(read(&wanted)?).collect();
        let mut pixels = Vec::new();
        for view in &indices {
            let frames: Vec<&Picture> = view.iter().map(|index| &found[index]).collect();
            for crop in check_crops(self.crops)? {
                let changes = Changes::test_crop(frames[0].size(), &self.preprocess, self.image, *crop);
                self.push(&changes, &frames, &mut pixels)?;
            }
        }
        Ok(PreparedViews { pixels, count: self.views * self.crops, indices })
    }

    /// One random view of a clip, all of its frames changed alike.
    ///
    /// # Errors
    /// As [`views`](Self::views).
    pub fn augmented(
        &self,
        length: ClipLength,
        read: impl FnOnce(&[usize]) -> Result<Vec<Picture>, Error>,
        random: &mut impl Rng,
    ) -> Result<PreparedViews, Error> {
        let indices = self.sampling.train(length, self.frames, random);
        let frames = read(&indices)?;
        let frames: Vec<&Picture> = frames.iter().collect();
        let changes = self.augment.draw(frames[0].size(), &self.preprocess, self.image, random);
        let mut pixels = Vec::new();
        self.push(&changes, &frames, &mut pixels)?;
        Ok(PreparedViews { pixels, count: 1, indices: vec![indices] })
    }

    /// Adds a view, `[C, T, H, W]`.
    fn push(&self, changes: &Changes, frames: &[&Picture], pixels: &mut Vec<f32>) -> Result<(), Error> {
        let images = changes.clip(frames, &self.preprocess)?;
        let images =
            images.into_iter().map(|image| to_channels(image, self.channels)).collect::<Result<Vec<_>, _>>()?;
        let area = self.image[0] * self.image[1];
        for channel in 0..self.channels {
            for image in &images {
                pixels.extend_from_slice(&image[channel * area..][..area]);
            }
        }
        Ok(())
    }
}
