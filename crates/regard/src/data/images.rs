//! Batches of pictures of different sizes, as in DETR.
//!
//! Each picture is at the top left of an image as high as the highest and as wide as the widest picture; the area right of it
//! and below it is zero after normalisation, so that padding has the mean colour. A mask marks the padding.

use burn::tensor::{Bool, Device, Tensor, TensorData};

use crate::Error;

/// Images of one batch on a device.
#[derive(Clone, Debug)]
pub struct Images {
    /// `[B, C, H, W]`
    pub pixels: Tensor<4>,
    /// `[B, H, W]`, true where there is padding; none when nothing is padded.
    pub padding: Option<Tensor<3, Bool>>,
    /// Rows and columns of each picture without its padding.
    pub sizes: Vec<[usize; 2]>,
}

/// Images of one batch as plain arrays, made by the threads of a loader.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageBatch {
    /// `[B, C, H, W]`
    pub pixels: Vec<f32>,
    /// `[B, C, H, W]`
    pub shape: [usize; 4],
    /// Rows and columns of each picture without its padding.
    pub sizes: Vec<[usize; 2]>,
}

/// A normalised picture.
#[derive(Clone, Debug, PartialEq)]
pub struct NormalisedPicture {
    /// `[C, H, W]`
    pub values: Vec<f32>,
    /// Rows and columns.
    pub size: [usize; 2],
}

impl ImageBatch {
    /// Pictures of any sizes in one batch, padded at the right and at the bottom.
    ///
    /// # Errors
    /// When there is no picture, one has no pixels, or they have different numbers of channels.
    pub fn collate(pictures: &[NormalisedPicture]) -> Result<Self, Error> {
        let channels = |picture: &NormalisedPicture| {
            let pixels = picture.size[0] * picture.size[1];
            (pixels > 0 && picture.values.len().is_multiple_of(pixels)).then(|| picture.values.len() / pixels)
        };
        let wrong = |reason: String| Error::config("pictures", reason);
        let first = pictures.first().ok_or_else(|| wrong("a batch has none".into()))?;
        let expected = channels(first).unwrap_or(0);
        for (index, NormalisedPicture { values, size: [rows, columns] }) in pictures.iter().enumerate() {
            if expected == 0 || channels(&pictures[index]) != Some(expected) {
                let count = values.len();
                let reason = format!("picture {index} has {count} values for {expected} x {rows} x {columns} pixels");
                return Err(wrong(reason));
            }
        }
        let sizes: Vec<[usize; 2]> = pictures.iter().map(|picture| picture.size).collect();
        let [rows, columns] = [0, 1].map(|axis| sizes.iter().map(|size| size[axis]).max().unwrap_or(0));
        let shape = [pictures.len(), expected, rows, columns];
        let mut pixels = vec![0.0; shape.iter().product()];
        for (picture, image) in pictures.iter().zip(pixels.chunks_exact_mut(expected * rows * columns)) {
            let [height, width] = picture.size;
            for (plane, values) in image.chunks_exact_mut(rows * columns).zip(picture.values.chunks(height * width)) {
                for (line, values) in plane.chunks_exact_mut(columns).zip(values.chunks_exact(width)) {
                    line[..width].copy_from_slice(values);
                }
            }
        }
        Ok(Self { pixels, shape, sizes })
    }

    /// Number of pictures.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.shape[0]
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.shape[0] == 0
    }

    /// `[B, H, W]`, true where there is padding; none when nothing is padded.
    #[must_use]
    pub fn padding(&self) -> Option<Vec<bool>> {
        let [_, _, rows, columns] = self.shape;
        padding_mask(&self.sizes, [rows, columns])
    }

    #[must_use]
    pub fn to_device(&self, device: &Device) -> Images {
        let [batch, _, rows, columns] = self.shape;
        let mask = |padding| Tensor::from_data(TensorData::new(padding, [batch, rows, columns]), device);
        Images {
            pixels: Tensor::from_data(TensorData::new(self.pixels.clone(), self.shape), device),
            padding: self.padding().map(mask),
            sizes: self.sizes.clone(),
        }
    }
}

impl Images {
    /// Images of one size, without padding.
    #[must_use]
    pub fn unpadded(pixels: Tensor<4>) -> Self {
        let [batch, _, rows, columns] = pixels.dims();
        Self { pixels, padding: None, sizes: vec![[rows, columns]; batch] }
    }

    /// The padding of a feature map of this size, `[B, H', W']`: for each cell that of the nearest pixel, as
    /// `F.interpolate` of PyTorch finds it (mode `nearest`).
    #[must_use]
    pub fn padding_at(&self, size: [usize; 2]) -> Option<Tensor<3, Bool>> {
        self.padding.as_ref()?;
        let [batch, _, rows, columns] = self.pixels.dims();
        let [map_rows, map_columns] = [(rows, size[0]), (columns, size[1])].map(|(from, to)| nearest_indices(from, to));
        let is_padded = |[height, width]: &[usize; 2]| {
            let (height, width) = (*height, *width);
            let columns = &map_columns;
            map_rows
                .iter()
                .flat_map(move |row| columns.iter().map(move |column| *row >= height || *column >= width))
                .collect::<Vec<bool>>()
        };
        let mask: Vec<bool> = self.sizes.iter().flat_map(is_padded).collect();
        Some(Tensor::from_data(TensorData::new(mask, [batch, size[0], size[1]]), &self.pixels.device()))
    }
}

/// `[B, H, W]` for images of `[H, W]`: true right of and below each picture; none when all are of that size.
fn padding_mask(sizes: &[[usize; 2]], [rows, columns]: [usize; 2]) -> Option<Vec<bool>> {
    if sizes.iter().all(|size| *size == [rows, columns]) {
        return None;
    }
    let mask = |[height, width]: &[usize; 2]| {
        let (height, width) = (*height, *width);
        (0..rows).flat_map(move |row| (0..columns).map(move |column| row >= height || column >= width))
    };
    Some(sizes.iter().flat_map(mask).collect())
}

/// For each of `to` positions the nearest of `from`, in single precision as in PyTorch.
pub(crate) fn nearest_indices(from: usize, to: usize) -> Vec<usize> {
    let scale = from as f32 / to as f32;
    (0..to).map(|place| ((place as f32 * scale) as usize).min(from.saturating_sub(1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::Fixture;

    /// All values differ.
    fn picture(size: [usize; 2], start: f32) -> NormalisedPicture {
        let values = (0..3 * size[0] * size[1]).map(|i| start + i as f32).collect();
        NormalisedPicture { values, size }
    }

    fn bools(mask: Tensor<3, Bool>) -> Vec<bool> {
        mask.into_data().iter::<bool>().collect()
    }

    #[test]
    fn equal_sizes_give_no_padding() {
        let pictures = [picture([4, 5], 1.0), picture([4, 5], 100.0)];
        let batch = ImageBatch::collate(&pictures).unwrap();
        assert_eq!((batch.shape, batch.padding()), ([2, 3, 4, 5], None));
        assert_eq!(batch.pixels, [pictures[0].values.clone(), pictures[1].values.clone()].concat());
        let images = batch.to_device(&device::cpu());
        assert!(images.padding.is_none() && images.padding_at([2, 3]).is_none());
        assert_eq!(Images::unpadded(images.pixels).sizes, batch.sizes);
    }

    #[test]
    fn a_padded_batch_is_exactly_the_pictures_and_zeros_where_the_mask_is_true() {
        let pictures = [picture([4, 3], 1.0), picture([2, 7], 100.0), picture([5, 1], 1000.0)];
        let batch = ImageBatch::collate(&pictures).unwrap();
        assert_eq!((batch.shape, &batch.sizes[..]), ([3, 3, 5, 7], &[[4, 3], [2, 7], [5, 1]][..]));
        let padding = batch.padding().unwrap();
        for (index, NormalisedPicture { values, size }) in pictures.iter().enumerate() {
            let mask = &padding[35 * index..][..35];
            assert_eq!(mask.iter().filter(|padded| !**padded).count(), size[0] * size[1]);
            for channel in 0..3 {
                let plane = &batch.pixels[35 * (3 * index + channel)..][..35];
                let kept: Vec<f32> = plane.iter().zip(mask).filter(|(_, padded)| !**padded).map(|(x, _)| *x).collect();
                assert_eq!(kept, values[size[0] * size[1] * channel..][..size[0] * size[1]]);
                assert!(plane.iter().zip(mask).all(|(x, padded)| !padded || *x == 0.0));
            }
        }
        let images = batch.to_device(&device::cpu());
        assert_eq!(bools(images.padding.clone().unwrap()), padding);
        assert_eq!(bools(images.padding_at([5, 7]).unwrap()), padding, "at its own size");
    }

    #[test]
    fn the_mask_of_a_feature_map_is_that_of_detr() {
        let fixture = Fixture::load("padded_batch");
        let sizes: Vec<[usize; 2]> = serde_json::from_value(fixture.config["image_sizes"].clone()).unwrap();
        let pictures: Vec<NormalisedPicture> = sizes.iter().map(|size| picture(*size, 1.0)).collect();
        let images = ImageBatch::collate(&pictures).unwrap().to_device(&device::cpu());
        let [batch, rows, columns] = fixture.tensor::<3>("io/feature_mask").dims();
        assert_eq!(batch, sizes.len());
        let expected = |name: &str| fixture.values(name).iter().map(|value| *value > 0.0).collect::<Vec<bool>>();
        assert_eq!(bools(images.padding.clone().unwrap()), expected("io/mask"));
        assert_eq!(bools(images.padding_at([rows, columns]).unwrap()), expected("io/feature_mask"));
    }

    #[test]
    fn the_nearest_of_detrs_usual_sizes_is_that_of_torch() {
        assert_eq!(nearest_indices(800, 25), (0..25).map(|i| 32 * i).collect::<Vec<_>>());
        let columns = nearest_indices(1066, 34);
        assert_eq!(columns[..4], [0, 31, 62, 94]);
        assert_eq!((columns[17], columns[33]), (533, 1034));
        assert_eq!((nearest_indices(3, 6), nearest_indices(1, 2)), (vec![0, 0, 1, 1, 2, 2], vec![0, 0]));
    }

    #[test]
    fn what_is_no_batch_is_refused_with_its_picture() {
        assert!(ImageBatch::collate(&[]).is_err());
        let gray = NormalisedPicture { values: vec![0.0; 4], size: [2, 2] };
        let error = ImageBatch::collate(&[picture([2, 2], 0.0), gray]).unwrap_err().to_string();
        assert!(error.contains("picture 1 has 4 values for 3 x 2 x 2 pixels"), "{error}");
        let empty = NormalisedPicture { values: vec![], size: [0, 2] };
        assert!(ImageBatch::collate(&[empty]).is_err());
    }
}
