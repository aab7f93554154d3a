//! How a model samples frames, as a file of its run folder: `sampling = "uniform"`.

use serde::{Deserialize, Serialize};
use std::path::Path;

use super::FrameSampling;
use crate::{Error, file};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SamplingFile {
    sampling: FrameSampling,
}

impl FrameSampling {
    /// In TOML, as [`from_toml`](Self::from_toml) reads it.
    ///
    /// # Panics
    /// Never: it is plain data.
    #[must_use]
    pub fn to_toml(self) -> String {
        toml::to_string(&SamplingFile { sampling: self }).expect("plain data")
    }

    /// # Errors
    /// When it is not TOML or has something else in it.
    pub fn from_toml(text: &str) -> Result<Self, Error> {
        let file: SamplingFile = toml::from_str(text).map_err(|error| Error::config("sampling", error.message()))?;
        Ok(file.sampling)
    }

    /// Reads a file of it.
    ///
    /// # Errors
    /// When it cannot be read or has something else in it; the error names the file.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_toml(&file::read_text(path)?).map_err(|error| Error::file(path, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back_and_something_else_is_named() {
        for sampling in [FrameSampling::Uniform, FrameSampling::Segments, FrameSampling::Dense { rate: 32 }] {
            assert_eq!(FrameSampling::from_toml(&sampling.to_toml()).unwrap(), sampling);
        }
        let error = FrameSampling::from_toml("sampling = 'dens'").unwrap_err().to_string();
        assert!(error.contains("`dens`"), "{error}");
    }
}
