//! Pictures of one size with a class each, as classifiers learn from them.

use std::sync::Arc;

use super::loader::{BatchId, Mixing, SampleId, Samples};
use super::{Augment, Batch, Dataset, Mix, Preprocess, Target, channels, prepare, to_channels};
use crate::Error;
use crate::random::{Purpose, generator};

/// How pictures become batches.
#[derive(Clone, Debug, PartialEq)]
pub struct Preparation {
    /// Rows and columns of an image.
    pub image: [usize; 2],
    /// 3, or 1 for gray.
    pub channels: usize,
    pub preprocess: Preprocess,
    /// `None` in evaluation: resized and centre-cropped.
    pub augment: Option<Augment>,
    pub mix: Mix,
    pub seed: u64,
}

impl Preparation {
    /// # Errors
    /// When a field cannot work; the error names it and its value.
    pub fn validate(&self) -> Result<(), Error> {
        let [rows, columns] = self.image;
        if rows == 0 || columns == 0 {
            return Err(Error::config("image", format!("must have pixels, got {rows} x {columns}")));
        }
        channels::check(self.channels)?;
        self.mix.validate()?;
        self.augment.as_ref().map_or(Ok(()), Augment::validate)
    }
}

/// The pictures of a dataset, prepared.
#[derive(Clone, Debug)]
pub struct LabelledImages {
    pub dataset: Arc<dyn Dataset>,
    pub preparation: Preparation,
}

impl Samples for LabelledImages {
    /// An image `[C, H, W]` and its class.
    type Sample = (Vec<f32>, usize);
    type Batch = Batch;

    fn len(&self) -> usize {
        self.dataset.len()
    }

    fn name(&self, index: usize) -> String {
        self.dataset.name(index)
    }

    fn validate(&self) -> Result<(), Error> {
        self.preparation.validate()
    }

    fn load(&self, SampleId { index, epoch, draw_id }: SampleId) -> Result<Self::Sample, Error> {
        let Preparation { image, channels, preprocess, augment, seed, .. } = &self.preparation;
        let picture = self.dataset.picture(index)?;
        let rgb = match augment {
            None => prepare(&picture, preprocess, *image),
            Some(augment) => {
                let mut random = generator(*seed, Purpose::Augment, [epoch, draw_id]);
                augment.apply(&picture, preprocess, *image, &mut random)
            }
        };
        Ok((to_channels(rgb, *channels)?, self.dataset.label(index)))
    }

    fn collate(&self, samples: Vec<Self::Sample>) -> Result<Batch, Error> {
        let Preparation { image: [rows, columns], channels, .. } = self.preparation;
        let shape = [samples.len(), channels, rows, columns];
        let mut images = Vec::with_capacity(shape.iter().product());
        let mut targets = Vec::with_capacity(samples.len());
        for (image, class) in samples {
            images.extend_from_slice(&image);
            targets.push(Target::pure(class));
        }
        Ok(Batch { images, shape, targets })
    }

    fn mix(&self, BatchId { epoch, step }: BatchId) -> Option<Mixing<Batch>> {
        let Preparation { mix, seed, image, .. } = self.preparation;
        let blend = mix.draw(image, &mut generator(seed, Purpose::Mix, [epoch, step]))?;
        Some(Box::new(move |batch, partners| blend.apply(batch, partners)))
    }
}
