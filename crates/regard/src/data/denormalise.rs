//! Normalised pictures back to visible ones.

use super::{Batch, Picture, Preprocess};

/// The pictures of a batch before normalisation, clipped to black and white.
///
/// One channel becomes gray; this is exact for pictures that were gray.
#[must_use]
pub fn denormalise(batch: &Batch, preprocess: &Preprocess) -> Vec<Picture> {
    let [_, channels, rows, columns] = batch.shape;
    let Preprocess { mean, std, .. } = preprocess;
    let level = |value: f32, [mean, std]: [f32; 2]| ((value * std + mean) * 255.0).round() as u8;
    let plane = rows * columns;
    let images = batch.images.chunks_exact((channels * plane).max(1));
    // for gray a mean of (x - mean) / std over the channels, solved for x
    let slope = 3.0 / std.iter().map(|std| 1.0 / std).sum::<f32>();
    let offset = (0..3).map(|channel| mean[channel] / std[channel]).sum::<f32>() / 3.0;
    let pixels = images.map(|image| -> Vec<u8> {
        if channels == 3 {
            let place = |at: usize| level(image[at % 3 * plane + at / 3], [mean[at % 3], std[at % 3]]);
            (0..3 * plane).map(place).collect()
        } else {
            image[..plane].iter().flat_map(|value| [level(*value, [offset * slope, slope]); 3]).collect()
        }
    });
    pixels.map(|pixels| Picture { rows, columns, pixels }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Target, prepare, to_channels};
    use crate::testing::noise_picture;

    #[test]
    fn a_picture_that_was_prepared_is_shown_as_it_was() {
        let mut picture = noise_picture([6, 5], 1);
        for channels in [3, 1] {
            if channels == 1 {
                picture.pixels.as_chunks_mut::<3>().0.iter_mut().for_each(|pixel| *pixel = [pixel[0]; 3]);
            }
            let image = to_channels(prepare(&picture, &Preprocess::WHOLE, [6, 5]), channels).unwrap();
            let images = [image.clone(), image].concat();
            let batch = Batch { images, shape: [2, channels, 6, 5], targets: vec![Target::pure(0); 2] };
            assert_eq!(denormalise(&batch, &Preprocess::WHOLE), [picture.clone(), picture.clone()]);
        }
    }
}
