//! Pictures as torchvision's detectors resize them inside the model (`GeneralizedRCNNTransform`): after normalisation, so
//! that nothing is rounded to 8 bits, and between pixels without a low pass.
//!
//! Weights that were trained so see shrunken pictures a little sharper than [`prepare`](super::prepare) makes them.

use serde::{Deserialize, Serialize};

use super::{ImageBatch, NormalisedPicture};

/// The short side becomes so long, unless the long one would be longer than allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResizeInside {
    pub short: usize,
    pub long: usize,
}

impl ResizeInside {
    /// That of COCO weights.
    pub const COCO: Self = Self { short: 800, long: 1333 };

    /// Rows and columns after resizing, at least one of each.
    #[must_use]
    pub fn size(&self, size: [usize; 2]) -> [usize; 2] {
        let (short, long) = (size[0].min(size[1]) as f64, size[0].max(size[1]) as f64);
        let scale = (self.short as f64 / short).min(self.long as f64 / long);
        size.map(|side| ((side as f64 * scale).floor() as usize).max(1))
    }

    /// The picture at that size.
    ///
    /// # Panics
    /// When the picture has no pixels.
    #[must_use]
    pub fn resize(&self, picture: &NormalisedPicture) -> NormalisedPicture {
        let [rows, columns] = picture.size;
        let size = self.size(picture.size);
        let (row_places, column_places) = (places(rows, size[0]), places(columns, size[1]));
        let mut values = Vec::with_capacity(picture.values.len() / (rows * columns) * size[0] * size[1]);
        for plane in picture.values.chunks_exact(rows * columns) {
            for &(above, below, down) in &row_places {
                let [above, below] = [above, below].map(|row| &plane[row * columns..][..columns]);
                values.extend(column_places.iter().map(|&(left, right, along)| {
                    let mixed = |row: &[f32]| (1.0 - along) * row[left] + along * row[right];
                    (1.0 - down) * mixed(above) + down * mixed(below)
                }));
            }
        }
        NormalisedPicture { values, size }
    }
}

/// For each new pixel the two old ones around it, and how far it is from the first.
fn places(from: usize, to: usize) -> Vec<(usize, usize, f32)> {
    let scale = from as f32 / to as f32;
    let place = |pixel: usize| {
        let place = (scale * (pixel as f32 + 0.5) - 0.5).max(0.0);
        let low = (place as usize).min(from - 1);
        (low, (low + 1).min(from - 1), place - low as f32)
    };
    (0..to).map(place).collect()
}

impl ImageBatch {
    /// The batch with zeros added at the right and at the bottom, until both sides are multiples: of 32 for detectors whose
    /// maps are halved five times.
    ///
    /// # Panics
    /// When `multiple` is 0.
    #[must_use]
    pub fn padded_to_multiple(self, multiple: usize) -> Self {
        let [batch, channels, rows, columns] = self.shape;
        let [height, width] = [rows, columns].map(|side| side.next_multiple_of(multiple));
        if [height, width] == [rows, columns] {
            return self;
        }
        let mut pixels = vec![0.0; batch * channels * height * width];
        let planes = pixels.chunks_exact_mut(height * width).zip(self.pixels.chunks_exact(rows * columns));
        for (plane, old) in planes {
            for (line, old) in plane.chunks_exact_mut(width).zip(old.chunks_exact(columns)) {
                line[..columns].copy_from_slice(old);
            }
        }
        Self { pixels, shape: [batch, channels, height, width], sizes: self.sizes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Fixture, distance};

    #[test]
    fn the_batch_is_that_of_torchvision() {
        let fixture = Fixture::load("torchvision_retinanet");
        let resize = ResizeInside { short: fixture.usize("min_size"), long: fixture.usize("max_size") };
        let moments = |field: &str| serde_json::from_value::<[f32; 3]>(fixture.config[field].clone()).unwrap();
        let (mean, std) = (moments("mean"), moments("std"));
        let pictures: Vec<NormalisedPicture> = [0, 1]
            .map(|index| {
                let image = fixture.tensor::<3>(&format!("io/image.{index}"));
                let [_, rows, columns] = image.dims();
                let values = fixture.values(&format!("io/image.{index}")).iter().enumerate();
                let values = values.map(|(at, x)| (x - mean[at / (rows * columns)]) / std[at / (rows * columns)]);
                resize.resize(&NormalisedPicture { values: values.collect(), size: [rows, columns] })
            })
            .into();
        let batch = ImageBatch::collate(&pictures).unwrap().padded_to_multiple(fixture.usize("size_divisible"));
        assert_eq!((batch.shape, &batch.sizes[..]), ([2, 3, 64, 96], &[[64, 82], [53, 88]][..]));
        assert!(distance(&batch.pixels, fixture.values("io/batch")) < 1e-5);
    }

    #[test]
    fn the_long_side_is_never_longer_than_allowed() {
        assert_eq!(ResizeInside::COCO.size([480, 640]), [800, 1066]);
        assert_eq!(ResizeInside::COCO.size([100, 1000]), [133, 1333]);
        assert_eq!(ResizeInside::COCO.size([1, 100_000]), [1, 1333]);
    }

    #[test]
    fn a_picture_of_the_right_size_stays_as_it_is() {
        let picture = NormalisedPicture { values: (0..24).map(|x| x as f32).collect(), size: [2, 4] };
        assert_eq!(ResizeInside { short: 2, long: 9 }.resize(&picture), picture);
        let batch = ImageBatch::collate(&[picture]).unwrap();
        assert_eq!(batch.clone().padded_to_multiple(2), batch);
    }
}
