//! Models by name that one task evaluates outside of a run.

use burn::tensor::Device;

use super::{clips, detect};
use crate::Error;
use crate::train::{EvalReport, NamedModel, NamedRequest};
use crate::weights::{DetectorSource, VideoSource};

/// Implements [`NamedModel`] for a model that is not loaded yet; `$data` is what its task evaluates it on.
macro_rules! named_model {
    ($source:ty, $kind:literal, $request:ident => $data:expr, $evaluate:path) => {
        impl NamedModel for $source {
            fn kind(&self) -> &'static str {
                $kind
            }

            fn classes(&self) -> usize {
                self.config.classes()
            }

            fn is_fresh(&self) -> bool {
                self.is_fresh()
            }

            fn set(&mut self, field: &str, value: serde_json::Value) -> Result<(), Error> {
                self.config = self.config.with(field, value)?;
                Ok(())
            }

            fn name_classes(&mut self, names: Vec<String>) {
                self.labels = Some(names);
            }

            fn evaluate(
                &self,
                $request: &NamedRequest,
                device: &Device,
                watch: &mut dyn FnMut(usize, usize),
            ) -> Result<EvalReport, Error> {
                let mut loaded = self.load(device)?;
                // `set` may have changed the number of classes
                loaded.labels = loaded.labels.filter(|labels| labels.len() == loaded.config.classes());
                $evaluate(&loaded, &$data, device, watch)
            }
        }
    };
}

named_model!(
    DetectorSource,
    "a detector",
    request => detect::DetectorData { name: request.data, part: request.part, is_own: false, batch: request.batch },
    detect::evaluate_detector
);

named_model!(
    VideoSource,
    "a model of video",
    request => clips::ClipData {
        name: request.data,
        part: request.part,
        is_own: false,
        batch: request.batch,
        views: request.views,
    },
    clips::evaluate_video
);
