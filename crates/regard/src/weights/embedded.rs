//! Small classifiers embedded in the library, trained on the dataset embedded in it (`fashion`).
//!
//! `docs/results.md` has the commands that trained them; `examples/embed_classifiers.rs` makes their files from the runs.

use burn::tensor::Device;
use std::path::Path;

use super::{fill, from_bytes};
use crate::Error;
use crate::data::{Part, Preprocess, dataset};
use crate::models::{Model, ModelConfig};

/// A classifier of ten kinds of clothes.
#[derive(Clone, Copy, Debug)]
pub struct Embedded {
    pub name: &'static str,
    model: &'static str,
    preprocess: &'static str,
    /// In half precision.
    weights: &'static [u8],
}

macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        [$(Embedded {
            name: concat!("fashion-", $name),
            model: include_str!(concat!("../../assets/small/", $name, "/model.toml")),
            preprocess: include_str!(concat!("../../assets/small/", $name, "/preprocess.toml")),
            weights: include_bytes!(concat!("../../assets/small/", $name, "/best.safetensors")),
        }),*]
    };
}

/// One model for each kind of attention, and one without attention.
pub static EMBEDDED: [Embedded; 4] = embedded!["vit", "san", "sasa", "resnet"];

impl Embedded {
    /// # Errors
    /// When the embedded files are damaged.
    pub fn load(&self, device: &Device) -> Result<(Model, ModelConfig, Preprocess), Error> {
        let (config, preprocess) = self.describe()?;
        Ok((self.fill(config.init(device)?)?, config, preprocess))
    }

    /// Its configuration and preprocessing.
    pub(super) fn describe(&self) -> Result<(ModelConfig, Preprocess), Error> {
        let spoiled = |error: toml::de::Error| Error::file(Path::new(self.name), error.message());
        Ok((ModelConfig::from_toml(self.model)?, toml::from_str(self.preprocess).map_err(spoiled)?))
    }

    /// Loads its weights into a model of its configuration.
    pub(super) fn fill(&self, model: Model) -> Result<Model, Error> {
        fill(model, &from_bytes(self.weights, Path::new(self.name))?)
    }

    /// The class names.
    ///
    /// # Panics
    /// Never: the dataset is embedded.
    #[must_use]
    pub fn labels(&self) -> Vec<String> {
        dataset::open("fashion", Part::Test).expect("it is embedded").classes().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pass;
    use crate::data::{Picture, prepare, to_channels};
    use crate::device::cpu;
    use burn::tensor::{Tensor, TensorData};

    #[test]
    fn each_names_most_of_the_first_hundred_test_pictures() {
        let pictures = dataset::open("fashion", Part::Test).unwrap();
        for one in EMBEDDED {
            let (model, config, preprocess) = one.load(&cpu()).unwrap();
            let fitted = |picture: Picture| to_channels(prepare(&picture, &preprocess, config.image()), 3).unwrap();
            let pixels: Vec<f32> = (0..100).flat_map(|index| fitted(pictures.picture(index).unwrap())).collect();
            let [rows, columns] = config.image();
            let images = Tensor::from_data(TensorData::new(pixels, [100, 3, rows, columns]), &cpu());
            let logits: Vec<f32> = model.forward(images, &mut Pass::silent()).into_data().iter::<f32>().collect();
            let best = |row: &[f32]| (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            let right = logits.chunks(10).enumerate().filter(|(i, row)| best(row) == Some(pictures.label(*i))).count();
            assert!(right >= 80, "{}: {right} of 100", one.name);
            assert_eq!(one.labels().len(), config.classes());
        }
    }

    #[test]
    fn together_they_are_small() {
        let bytes: usize = EMBEDDED.iter().map(|one| one.weights.len() + one.model.len()).sum();
        assert!(bytes <= 3_000_000, "{bytes}");
    }
}
