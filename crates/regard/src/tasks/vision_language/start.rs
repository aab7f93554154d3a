//! A model that begins with the weights of another one: pre-trained, then fine-tuned for answers.

use super::VisionLanguageModel;
use crate::Error;
use crate::weights::{self, Tensors};
use std::path::Path;

/// The model with all tensors of a file or run folder that it has, too; what is missing there, such as a new head, stays fresh.
///
/// # Errors
/// When there is no such file, or hardly anything of it fits.
pub fn start(model: VisionLanguageModel, address: &str) -> Result<VisionLanguageModel, Error> {
    let run = Path::new(address).join("best.safetensors");
    let path = if run.is_file() { run } else { weights::fetch(address, &mut |_| {})? };
    let given = weights::read(&path)?.tensors;
    let mut all: Tensors = weights::tensors(&model);
    let mut fresh = Vec::new();
    for (name, tensor) in &mut all {
        match given.get(name).filter(|given| given.shape() == tensor.shape()) {
            Some(given) => *tensor = given.clone(),
            None => fresh.push(format!("`{name}` is not there with shape {:?}", tensor.shape().to_vec())),
        }
    }
    // a head or a vocabulary may be new, the layers may not
    if 2 * fresh.len() > all.len() {
        return Err(Error::Weights { problems: fresh, looks_like: None, classes: None });
    }
    weights::fill(model, &all)
}
