//! The released sizes.

use super::BertConfig;
use crate::Error;
use crate::models::config;
use crate::models::text::TextPreset;

/// Turc et al. 2019, table 1 of their release, and Devlin et al. 2018:
///
/// | | layers | D | heads |
/// |---|---|---|---|
/// | tiny | 2 | 128 | 2 |
/// | mini | 4 | 256 | 4 |
/// | small | 4 | 512 | 8 |
/// | medium | 8 | 512 | 8 |
/// | base | 12 | 768 | 12 |
/// | large | 24 | 1024 | 16 |
impl BertConfig {
    const fn uncased(layers: usize, dim: usize) -> Self {
        Self {
            vocabulary: 30_522,
            positions: 512,
            types: 2,
            layers,
            dim,
            heads: dim / 64,
            inner: 4 * dim,
            dropout: 0.1,
            epsilon: 1e-12,
            pooler: true,
            masked_words: true,
            next_sentence: true,
        }
    }

    #[must_use]
    pub const fn tiny() -> Self {
        Self::uncased(2, 128)
    }

    #[must_use]
    pub const fn mini() -> Self {
        Self::uncased(4, 256)
    }

    #[must_use]
    pub const fn small() -> Self {
        Self::uncased(4, 512)
    }

    #[must_use]
    pub const fn medium() -> Self {
        Self::uncased(8, 512)
    }

    #[must_use]
    pub const fn base() -> Self {
        Self::uncased(12, 768)
    }

    #[must_use]
    pub const fn large() -> Self {
        Self::uncased(24, 1024)
    }
}

const PAPER: &str = "arXiv:1810.04805";
const SMALL: &str = "arXiv:1908.08962";

/// Every preset; parameters are in the tests.
pub const PRESETS: &[TextPreset<BertConfig>] = &[
    TextPreset { name: "bert-tiny", paper: SMALL, config: BertConfig::tiny },
    TextPreset { name: "bert-mini", paper: SMALL, config: BertConfig::mini },
    TextPreset { name: "bert-small", paper: SMALL, config: BertConfig::small },
    TextPreset { name: "bert-medium", paper: SMALL, config: BertConfig::medium },
    TextPreset { name: "bert-base", paper: PAPER, config: BertConfig::base },
    TextPreset { name: "bert-large", paper: PAPER, config: BertConfig::large },
];

/// The configuration of this name.
///
/// # Errors
/// When there is none; the error suggests the nearest name.
pub fn preset(name: &str) -> Result<BertConfig, Error> {
    let preset = config::find(PRESETS.to_vec(), name, |preset| preset.name)?;
    Ok((preset.config)())
}
