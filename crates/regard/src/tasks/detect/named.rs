//! Detectors by name, evaluated outside of a run.

use burn::tensor::Device;

use super::{DetectorData, evaluate_detector};
use crate::Error;
use crate::train::{EvalReport, NamedModel, NamedRequest};
use crate::weights::DetectorSource;

impl NamedModel for DetectorSource {
    fn kind(&self) -> &'static str {
        "a detector"
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
        let NamedRequest { data: name, part, batch, .. } = *request;
        let mut loaded = self.load(device)?;
        // another number of classes by `--set`
        loaded.labels = loaded.labels.filter(|labels| labels.len() == loaded.config.classes());
        evaluate_detector(&loaded, &DetectorData { name, part, is_own: false, batch }, device, watch)
    }
}
