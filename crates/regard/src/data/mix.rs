//! Pictures of a batch mixed with each other.

use serde::{Deserialize, Serialize};

/// Mixup (Zhang et al. 2018) and CutMix (Yun et al. 2019); off by default.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mix {
    /// Alpha of the Beta distribution of Mixup's share; 0 is never.
    pub mixup: f64,
    /// Alpha of the Beta distribution of CutMix's share; 0 is never.
    pub cutmix: f64,
    /// Probability of CutMix where both are on.
    pub switch: f64,
    /// Probability that a batch is mixed at all.
    pub probability: f64,
}

impl Default for Mix {
    fn default() -> Self {
        Self { mixup: 0.0, cutmix: 0.0, switch: 0.5, probability: 1.0 }
    }
}
