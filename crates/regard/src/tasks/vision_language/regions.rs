//! Where a recipe's regions come from: boxes of the data, a grid, features in files, a classifier's map, or a detector.
//!
//! Detectors and classifiers are frozen. What they find is kept in the cache of downloads, by the content of the picture.

mod detector;
mod feature_map;
mod npz;

pub use detector::DetectedRegions;

use burn::tensor::Device;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::data::vision_language::{Cached, Crops, Patches, RegionSource, StoredRegions};
use crate::weights::Fetcher;
use crate::{Error, file};
use detector::BoxesOrDetected;
use feature_map::MapRegions;
use npz::NpzRegions;

/// Where regions of pictures come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "source", rename_all = "kebab-case", deny_unknown_fields)]
pub enum RegionRecipe {
    /// Boxes of the data, and where it has none those of a detector; the feature is what is inside, resized to a square.
    Boxes {
        /// Pixels of a side of the square.
        #[serde(default = "usual_side")]
        side: usize,
        /// A detector by any of its names, for pictures without boxes; without one the whole picture is a region.
        #[serde(default)]
        detector: Option<String>,
        #[serde(default)]
        limits: DetectedLimits,
    },
    /// A grid of patches: `grid` of a side, each of `side` pixels a side.
    Grid { grid: usize, side: usize },
    /// The last map of a classifier, by any of its names: a region for each place.
    Map { model: String },
    /// A detector by any of its names: its boxes, with features of its own.
    Detector {
        model: String,
        #[serde(default)]
        feature: DetectedFeature,
        #[serde(default)]
        limits: DetectedLimits,
    },
    /// A `.tsv` file of bottom-up attention, or a folder of UNITER's `.npz` files.
    File { path: String },
}

const fn usual_side() -> usize {
    16
}

impl Default for RegionRecipe {
    fn default() -> Self {
        Self::Boxes { side: usual_side(), detector: None, limits: DetectedLimits::default() }
    }
}

/// Whether the regions that a network finds are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionCache {
    /// Where downloads are kept, by the content of the picture: a data set is looked at again in every epoch.
    OnDisk,
    /// For pictures of strangers, of which nothing may stay behind.
    Off,
}

/// The feature of a detector's box.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DetectedFeature {
    /// The query that found it, of a detector with queries; else the mean of the finest map inside of the box.
    #[default]
    Own,
    /// Its pixels, resized to 16 x 16.
    Crop,
}

/// Which boxes of a detector are taken.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DetectedLimits {
    /// Those of a higher score.
    pub score: f64,
    /// At most so many, the best.
    pub most: usize,
}

impl Default for DetectedLimits {
    fn default() -> Self {
        Self { score: 0.2, most: 36 }
    }
}

impl RegionRecipe {
    /// # Errors
    /// When a number cannot work; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let side = |field: &'static str, value: usize| {
            let fine = (1..=1024).contains(&value);
            if fine { Ok(()) } else { Err(Error::config(field, format!("must be from 1 to 1024, got {value}"))) }
        };
        let limits = |limits: &DetectedLimits| {
            side("regions.limits.most", limits.most)?;
            let fine = (0.0..=1.0).contains(&limits.score);
            let reason = || format!("must be from 0 to 1, got {}", limits.score);
            if fine { Ok(()) } else { Err(Error::config("regions.limits.score", reason())) }
        };
        match self {
            Self::Boxes { side: pixels, limits: own, .. } => side("regions.side", *pixels).and_then(|()| limits(own)),
            Self::Grid { grid, side: pixels } => {
                side("regions.grid", *grid)?;
                side("regions.side", *pixels)
            }
            Self::Detector { limits: own, .. } => limits(own),
            Self::Map { .. } | Self::File { .. } => Ok(()),
        }
    }

    /// Whether pictures are read at all.
    #[must_use]
    pub const fn needs_pictures(&self) -> bool {
        !matches!(self, Self::File { .. })
    }

    /// The source, for data whose boxes have so many classes.
    ///
    /// # Errors
    /// When there is no such model or file.
    pub fn open(&self, classes: usize, device: &Device, cache: RegionCache) -> Result<Arc<dyn RegionSource>, Error> {
        let cached = |source: Arc<dyn RegionSource>, key: &str| match cache {
            RegionCache::OnDisk => cached(source, key),
            RegionCache::Off => source,
        };
        Ok(match self {
            Self::Boxes { side, detector: None, .. } => Arc::new(Crops { side: *side, classes }),
            Self::Boxes { side, detector: Some(model), limits } => {
                let crops = Crops { side: *side, classes };
                let finder = Arc::new(DetectedRegions::open(model, DetectedFeature::Crop, *limits, device)?);
                cached(Arc::new(BoxesOrDetected { crops, finder }), &self.key(classes, model)?)
            }
            Self::Grid { grid, side } => Arc::new(Patches { grid: *grid, side: *side }),
            Self::Map { model } => cached(Arc::new(MapRegions::open(model, device)?), &self.key(0, model)?),
            Self::Detector { model, feature, limits } => {
                let source = DetectedRegions::open(model, *feature, *limits, device)?;
                cached(Arc::new(source), &self.key(0, model)?)
            }
            Self::File { path } if Path::new(path).is_dir() => Arc::new(NpzRegions::open(Path::new(path))?),
            Self::File { path } => Arc::new(StoredRegions::open(Path::new(path))?),
        })
    }

    /// What the regions depend on besides the picture: this recipe and the hash of the weights.
    fn key(&self, classes: usize, model: &str) -> Result<String, Error> {
        let recipe = toml::to_string(self).expect("plain data");
        let weights = model.split_once('=').map_or(model, |(_, weights)| weights);
        let paths = [PathBuf::from(weights), Path::new(weights).join("best.safetensors")];
        let mut key = format!("{recipe}\n{classes}\n");
        if let Some(path) = paths.iter().find(|path| path.is_file()) {
            let hash = Sha256::digest(file::read_bounded(path, 1 << 34)?);
            key.extend(hash.iter().map(|byte| format!("{byte:02x}")));
        }
        Ok(key)
    }
}

/// A source whose answers are kept where downloads are, if there is such a place.
fn cached(source: Arc<dyn RegionSource>, key: &str) -> Arc<dyn RegionSource> {
    match Fetcher::from_environment() {
        Ok(fetcher) => Arc::new(Cached::new(source, &fetcher.cache.join("regions"), key)),
        Err(_) => source,
    }
}

/// A frozen model that threads use in turn.
#[derive(Debug)]
struct SharedModel<M>(Mutex<M>);

impl<M> SharedModel<M> {
    const fn new(model: M) -> Self {
        Self(Mutex::new(model))
    }

    fn with<T>(&self, run: impl FnOnce(&M) -> T) -> T {
        // a panic in a model leaves nothing half done
        run(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
