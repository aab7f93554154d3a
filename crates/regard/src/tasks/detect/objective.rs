//! The loss of pictures and the boxes in them.

use burn::tensor::Device;

use super::DetectionBatch;
use crate::Error;
use crate::models::detect::{Detector, DetectorConfig, LossCounts, LossDraw};
use crate::train::{Losses, Objective};

/// The losses of a detector.
#[derive(Clone, Debug)]
pub struct DetectionLoss {
    config: DetectorConfig,
    seed: u64,
    device: Device,
}

impl DetectionLoss {
    #[must_use]
    pub fn new(config: DetectorConfig, seed: u64, device: &Device) -> Self {
        Self { config, seed, device: device.clone().autodiff() }
    }
}

impl Objective for DetectionLoss {
    type Model = Detector;
    type Batch = DetectionBatch;

    const COUNTS: usize = LossCounts::COUNT;

    fn counts(&self, batch: &DetectionBatch) -> Vec<usize> {
        self.config.counts(&batch.objects).to_vec()
    }

    fn parts(&self) -> &'static [&'static str] {
        self.config.loss_parts()
    }

    fn names(&self, batch: &DetectionBatch) -> Vec<String> {
        batch.names.clone()
    }

    fn losses(&self, model: &Detector, batch: &DetectionBatch, counts: &[f64], draw_id: u64) -> Result<Losses, Error> {
        let images = batch.images.to_device(&self.device);
        let draw = LossDraw { seed: self.seed, step: draw_id };
        let losses = model.losses(&images, &batch.objects, LossCounts::of(counts), draw).map_err(|error| {
            let names = batch.names.join(", ");
            Error::Field { field: format!("pictures {names}"), reason: error.to_string() }
        })?;
        Ok(Losses { sum: losses.sum, parts: losses.parts.into_iter().map(|(_, part)| part).collect() })
    }
}
