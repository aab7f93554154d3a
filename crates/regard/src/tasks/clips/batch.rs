//! Clips with a class as samples of a loader, and batches of them.

use burn::tensor::{Device, Tensor, TensorData};
use std::sync::Arc;

use crate::Error;
use crate::data::clip::ClipDataset;
use crate::data::{Clips, SampleId, Samples, Target};
use crate::random::{Purpose, generator};

use super::prepare::{ClipPreparation, PreparedViews};

/// Some clips of a dataset.
#[derive(Clone, Debug)]
pub struct ClipPart {
    pub dataset: Arc<dyn ClipDataset>,
    /// Those that are taken.
    pub indices: Arc<Vec<usize>>,
}

impl ClipPart {
    /// The first `most` clips of each class, or all for 0.
    #[must_use]
    pub fn first_per_class(dataset: Arc<dyn ClipDataset>, most: usize) -> Self {
        let mut taken = vec![0; dataset.classes().len()];
        let mut is_taken = |index: &usize| {
            let count: &mut usize = &mut taken[dataset.class(*index)];
            *count += 1;
            most == 0 || *count <= most
        };
        let indices = (0..dataset.len()).filter(|index| is_taken(index)).collect();
        Self { dataset, indices: Arc::new(indices) }
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.indices.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.indices.is_empty()
    }
}

/// The clips of a part, prepared.
#[derive(Clone, Debug)]
pub struct ClipSamples {
    pub part: ClipPart,
    pub preparation: ClipPreparation,
    /// The seed of random changes; `None` in evaluation.
    pub seed: Option<u64>,
}

/// Clips of one step.
#[derive(Clone, Debug)]
pub struct ClipBatch {
    /// `[B * views, C, T, H, W]`: the views of the first clip, then those of the second.
    pixels: Vec<f32>,
    shape: [usize; 5],
    /// Views of a clip.
    pub views: usize,
    pub targets: Vec<Target>,
    pub names: Vec<String>,
}

impl Samples for ClipSamples {
    /// The views of a clip, and its index in the dataset.
    type Sample = (PreparedViews, usize);
    type Batch = ClipBatch;

    fn len(&self) -> usize {
        self.part.len()
    }

    fn name(&self, index: usize) -> String {
        self.part.dataset.name(self.part.indices[index])
    }

    fn validate(&self) -> Result<(), Error> {
        self.preparation.validate()
    }

    fn load(&self, id: SampleId) -> Result<Self::Sample, Error> {
        let index = self.part.indices[id.index];
        let dataset = &self.part.dataset;
        let length = dataset.length(index)?;
        let read = |wanted: &[usize]| dataset.frames(index, wanted);
        let prepared = match self.seed {
            None => self.preparation.views(length, read),
            Some(seed) => {
                let mut random = generator(seed, Purpose::Augment, [id.epoch, id.draw_id]);
                self.preparation.augmented(length, read, &mut random)
            }
        };
        let prepared = prepared.map_err(|error| match error {
            Error::Config { reason, .. } => Error::File { path: dataset.name(index), reason },
            other => other,
        })?;
        Ok((prepared, index))
    }

    fn collate(&self, samples: Vec<Self::Sample>) -> Result<ClipBatch, Error> {
        let [channels, frames, rows, columns] = self.preparation.shape();
        let views = samples.first().map_or(1, |(views, _)| views.count);
        let mut pixels = Vec::with_capacity(samples.len() * views * channels * frames * rows * columns);
        let (mut targets, mut names) = (Vec::new(), Vec::new());
        for (prepared, index) in &samples {
            pixels.extend_from_slice(&prepared.pixels);
            targets.push(Target::pure(self.part.dataset.class(*index)));
            names.push(self.part.dataset.name(*index));
        }
        Ok(ClipBatch { pixels, shape: [samples.len() * views, channels, frames, rows, columns], views, targets, names })
    }
}

impl ClipBatch {
    /// Number of clips.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.targets.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.targets.is_empty()
    }

    /// `[B * views, C, T, H, W]`
    #[must_use]
    pub fn clips(&self, device: &Device) -> Clips {
        Clips { pixels: Tensor::from_data(TensorData::new(self.pixels.clone(), self.shape), device) }
    }
}
