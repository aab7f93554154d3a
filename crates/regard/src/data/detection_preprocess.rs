//! Preprocessing of detectors: size, normalisation, and how pictures of different sizes form a batch.

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::picture::normalise;
use super::{Filter, ImageBatch, NormalisedPicture, Picture, Preprocess, ResizeInside, ShortSide};
use crate::{Error, file};

/// The preprocessing of a detector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DetectionPreprocess {
    /// Mean of red, green and blue, for values from 0 to 1.
    pub mean: [f32; 3],
    /// Deviation of red, green and blue.
    pub std: [f32; 3],
    pub resize: DetectionResize,
    /// The sides of a batch become multiples of this.
    #[serde(default = "one")]
    pub multiple: usize,
}

fn one() -> usize {
    1
}

/// How a detector resizes a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DetectionResize {
    /// Not at all.
    Keep,
    /// By PIL's bilinear filter, rounded to 8 bits, before it is normalised: DETR, detectron2.
    ShortSide(ShortSide),
    /// Bilinear without antialiasing, after normalisation: torchvision.
    Inside(ResizeInside),
}

impl DetectionPreprocess {
    /// DETR's: short side 800, long side at most 1333, batches of any size.
    pub const DETR: Self =
        Self { resize: DetectionResize::ShortSide(ShortSide { short: 800, longest: Some(1333) }), ..Self::as_it_is(1) };
    /// The preprocessing of torchvision's detectors.
    pub const TORCHVISION: Self = Self { resize: DetectionResize::Inside(ResizeInside::COCO), ..Self::as_it_is(32) };
    /// The preprocessing of detectron2's Caffe weights: means from 0 to 255, no deviation. BGR becomes RGB when weights are
    /// loaded.
    pub const DETECTRON2: Self = Self {
        mean: [123.675 / 255.0, 116.28 / 255.0, 103.53 / 255.0],
        std: [1.0 / 255.0; 3],
        multiple: 32,
        ..Self::DETR
    };

    /// Pictures of any size, not resized, normalised by ImageNet's statistics; batches are padded to a multiple.
    #[must_use]
    pub const fn as_it_is(multiple: usize) -> Self {
        let Preprocess { mean, std, .. } = Preprocess::TORCHVISION;
        Self { mean, std, resize: DetectionResize::Keep, multiple }
    }

    /// The same for a detector that was trained on other sizes: at the largest short side of its training pictures, by the
    /// filter that resized them. Pictures that are seen as they are stay so when `own`, the size that the detector is meant
    /// for, has that short side.
    #[must_use]
    pub fn trained_at(self, side: ShortSide, own: [usize; 2]) -> Self {
        let is_same = match self.resize {
            DetectionResize::Keep => own[0].min(own[1]) == side.short,
            DetectionResize::ShortSide(usual) => usual == side,
            DetectionResize::Inside(usual) => usual.short == side.short && Some(usual.long) == side.longest,
        };
        if is_same { self } else { Self { resize: DetectionResize::ShortSide(side), ..self } }
    }

    /// Reads a TOML file with its fields.
    ///
    /// # Errors
    /// When it cannot be read, or a field is unknown, missing or does not fit.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = file::read_text(path)?;
        let read: Self = toml::from_str(&text).map_err(|error| Error::file(path, error.message()))?;
        if read.multiple == 0 {
            return Err(Error::file(path, "`multiple` must be at least 1, got 0"));
        }
        Ok(read)
    }

    /// Rows and columns of a picture of this size after resizing.
    #[must_use]
    pub fn size(&self, size: [usize; 2]) -> [usize; 2] {
        match self.resize {
            DetectionResize::Keep => size,
            DetectionResize::ShortSide(side) => side.detr(size),
            DetectionResize::Inside(resize) => resize.size(size),
        }
    }

    /// The resized and normalised picture.
    #[must_use]
    pub fn prepare(&self, picture: &Picture) -> NormalisedPicture {
        match self.resize {
            DetectionResize::Keep => self.normalised(picture),
            DetectionResize::ShortSide(side) => {
                self.normalised(&picture.resize(side.detr(picture.size()), Filter::Bilinear))
            }
            DetectionResize::Inside(resize) => resize.resize(&self.normalised(picture)),
        }
    }

    /// The normalised picture at its own size.
    #[must_use]
    pub fn normalised(&self, picture: &Picture) -> NormalisedPicture {
        let colours = Preprocess { mean: self.mean, std: self.std, ..Preprocess::TORCHVISION };
        NormalisedPicture { values: normalise(picture, &colours), size: picture.size() }
    }

    /// Prepared pictures as one batch.
    ///
    /// # Errors
    /// As [`ImageBatch::collate`].
    pub fn batch(&self, pictures: &[NormalisedPicture]) -> Result<ImageBatch, Error> {
        Ok(ImageBatch::collate(pictures)?.padded_to_multiple(self.multiple))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture() -> Picture {
        Picture::new([2, 3], (0..18).map(|level| level * 10).collect()).unwrap()
    }

    #[test]
    fn a_detector_trained_on_small_pictures_sees_pictures_as_small() {
        let side = ShortSide { short: 240, longest: Some(400) };
        for usual in [DetectionPreprocess::DETR, DetectionPreprocess::TORCHVISION, DetectionPreprocess::as_it_is(8)] {
            assert_eq!(usual.trained_at(side, [64, 64]).size([480, 640]), [240, 320]);
        }
        let coco = ShortSide { short: 800, longest: Some(1333) };
        for usual in [DetectionPreprocess::DETR, DetectionPreprocess::TORCHVISION] {
            assert_eq!(usual.trained_at(coco, [800, 800]), usual);
        }
        let scenes = DetectionPreprocess::as_it_is(16);
        assert_eq!(scenes.trained_at(ShortSide { short: 64, longest: Some(64) }, [64, 64]), scenes);
    }

    #[test]
    fn a_picture_is_seen_at_the_size_that_is_announced() {
        for preprocess in
            [DetectionPreprocess::DETR, DetectionPreprocess::TORCHVISION, DetectionPreprocess::as_it_is(8)]
        {
            let prepared = preprocess.prepare(&picture());
            assert_eq!(prepared.size, preprocess.size([2, 3]));
            let batch = preprocess.batch(&[prepared]).unwrap();
            assert!(batch.shape[2].is_multiple_of(preprocess.multiple));
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("preprocess.toml");
        for preprocess in [DetectionPreprocess::DETR, DetectionPreprocess::TORCHVISION, DetectionPreprocess::DETECTRON2]
        {
            std::fs::write(&path, toml::to_string(&preprocess).unwrap()).unwrap();
            assert_eq!(DetectionPreprocess::read(&path).unwrap(), preprocess);
        }
        std::fs::write(&path, toml::to_string(&DetectionPreprocess::as_it_is(0)).unwrap()).unwrap();
        assert!(DetectionPreprocess::read(&path).unwrap_err().to_string().contains("`multiple`"));
    }
}
