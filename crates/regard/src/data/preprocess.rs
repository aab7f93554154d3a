//! Preprocessing of a picture for a model: resized, cropped, normalised.

use serde::{Deserialize, Serialize};
use std::path::Path;

use crate::{Error, file};

/// How pixels are interpolated; both as PIL does, with antialiasing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    Bilinear,
    Bicubic,
}

/// How a picture is resized before the crop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resize {
    /// Its short side decides, and its shape is kept: torchvision, timm's `center`.
    #[default]
    ShortSide,
    /// Both sides are stretched to fit: Hugging Face's ViT and DeiT, timm's `squash`.
    Stretch,
}

/// Whether serde omits a field.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde hands over a reference
fn is_usual(resize: &Resize) -> bool {
    *resize == Resize::default()
}

/// The preprocessing that a model expects.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preprocess {
    /// Mean of each channel, for values from 0 to 1.
    pub mean: [f32; 3],
    /// Deviation of each channel.
    pub std: [f32; 3],
    /// The part of the short side that the central crop keeps: 0.875 resizes to 256 for a crop of 224.
    pub crop: f64,
    pub filter: Filter,
    #[serde(default, skip_serializing_if = "is_usual")]
    pub resize: Resize,
}

impl Preprocess {
    /// DeiT by its authors: ImageNet's colours, 256 to 224, bicubic.
    pub const DEIT: Self = Self { crop: 0.875, filter: Filter::Bicubic, ..Self::TORCHVISION };
    /// DeiT-III, and everything fine-tuned at 384: no crop.
    pub const WHOLE: Self = Self { crop: 1.0, filter: Filter::Bicubic, ..Self::TORCHVISION };
    /// ViT by Google and timm.
    pub const VIT: Self = Self { mean: [0.5; 3], std: [0.5; 3], crop: 0.9, ..Self::DEIT };
    /// Residual networks of torchvision, SAN, SASA.
    pub const TORCHVISION: Self = Self {
        mean: [0.485, 0.456, 0.406],
        std: [0.229, 0.224, 0.225],
        crop: 0.875,
        filter: Filter::Bilinear,
        resize: Resize::ShortSide,
    };

    /// Reads a TOML file with its fields.
    ///
    /// # Errors
    /// When it cannot be read, or a field is unknown, missing or does not fit.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let text = file::read_text(path)?;
        toml::from_str(&text).map_err(|error| Error::file(path, error.message()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_an_unknown_field_is_named_with_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("preprocess.toml");
        let text = toml::to_string(&Preprocess::VIT).unwrap();
        std::fs::write(&path, &text).unwrap();
        assert_eq!(Preprocess::read(&path).unwrap(), Preprocess::VIT);
        std::fs::write(&path, text.replace("crop", "corp")).unwrap();
        let error = Preprocess::read(&path).unwrap_err().to_string();
        assert!(error.contains("preprocess.toml: ") && error.contains("`corp`"), "{error}");
    }
}
