//! Models of video by name, evaluated outside of a run.

use burn::tensor::Device;

use super::{ClipData, evaluate_video};
use crate::Error;
use crate::train::{EvalReport, NamedModel, NamedRequest};
use crate::weights::VideoSource;

impl NamedModel for VideoSource {
    fn kind(&self) -> &'static str {
        "a model of video"
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
        request: &NamedRequest,
        device: &Device,
        watch: &mut dyn FnMut(usize, usize),
    ) -> Result<EvalReport, Error> {
        let NamedRequest { data: name, part, batch, views } = *request;
        let mut loaded = self.load(device)?;
        // another number of classes by `--set`
        loaded.labels = loaded.labels.filter(|labels| labels.len() == loaded.config.classes());
        evaluate_video(&loaded, &ClipData { name, part, is_own: false, batch, views }, device, watch)
    }
}
