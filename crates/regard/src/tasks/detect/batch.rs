//! Pictures with boxes as samples of a loader, and batches of them.

use std::sync::Arc;

use crate::Error;
use crate::data::detection::{DetectionDataset, DetectionSample};
use crate::data::{DetectionAugment, DetectionPreprocess, ImageBatch, NormalisedPicture, Object, SampleId, Samples};
use crate::random::{Purpose, generator};

/// Pictures with boxes, ready for a detector.
#[derive(Clone, Debug)]
pub struct DetectionSamples {
    pub dataset: Arc<dyn DetectionDataset>,
    /// The pictures that are taken, by their index in the dataset.
    pub indices: Arc<Vec<usize>>,
    pub preprocess: DetectionPreprocess,
    /// None measures: pictures as they are.
    pub augment: Option<DetectionAugment>,
    pub seed: u64,
}

/// A sample, ready for a detector.
#[derive(Clone, Debug)]
pub struct PreparedSample {
    picture: NormalisedPicture,
    /// Boxes as shares of the picture as the detector sees it. Without crowds, which teach nothing.
    objects: Vec<Object>,
    /// Its index in the dataset.
    index: usize,
    /// Rows and columns of the picture in the file.
    size: [usize; 2],
}

/// Pictures with boxes of one step.
#[derive(Clone, Debug)]
pub struct DetectionBatch {
    pub images: ImageBatch,
    pub objects: Vec<Vec<Object>>,
    /// Indices in the dataset.
    pub indices: Vec<usize>,
    /// Rows and columns of the pictures in their files.
    pub sizes: Vec<[usize; 2]>,
    pub names: Vec<String>,
}

impl Samples for DetectionSamples {
    type Sample = PreparedSample;
    type Batch = DetectionBatch;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn name(&self, index: usize) -> String {
        self.dataset.name(self.indices[index])
    }

    fn validate(&self) -> Result<(), Error> {
        self.augment.as_ref().map_or(Ok(()), DetectionAugment::validate)
    }

    fn load(&self, id: SampleId) -> Result<PreparedSample, Error> {
        let index = self.indices[id.index];
        let (sample, picture) = if let Some(augment) = &self.augment {
            let mut random = generator(self.seed, Purpose::Augment, [id.epoch, id.draw_id]);
            let sample = DetectionSample::augmented(&*self.dataset, index, augment, &mut random)?;
            let picture = self.preprocess.normalised(&sample.picture);
            (sample, picture)
        } else {
            let sample = DetectionSample::load(&*self.dataset, index)?;
            let picture = self.preprocess.prepare(&sample.picture);
            (sample, picture)
        };
        let objects = sample.objects.into_iter().filter(|object| !object.crowd).collect();
        Ok(PreparedSample { picture, objects, index, size: sample.original })
    }

    fn collate(&self, samples: Vec<PreparedSample>) -> Result<DetectionBatch, Error> {
        let (mut pictures, mut objects, mut indices, mut sizes) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for sample in samples {
            pictures.push(sample.picture);
            objects.push(sample.objects);
            indices.push(sample.index);
            sizes.push(sample.size);
        }
        let names = indices.iter().map(|index| self.dataset.name(*index)).collect();
        Ok(DetectionBatch { images: self.preprocess.batch(&pictures)?, objects, indices, sizes, names })
    }
}

impl DetectionBatch {
    /// Number of pictures.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.indices.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
}
