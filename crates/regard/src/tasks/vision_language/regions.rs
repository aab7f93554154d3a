//! Where a recipe's regions come from: boxes of the data, a grid, features in files, a classifier's map, or a detector.
//!
//! Detectors and classifiers are frozen. What they find is kept in the cache of downloads, by the content of the picture.

use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::boxes::{Corners, RoiAlign, SamplingPoints, roi_align};
use crate::data::vision_language::{
    Cached, Crops, GivenBox, OnePicture, Patches, RegionFeatures, RegionPicture, RegionSource, StoredRegions,
    image_number,
};
use crate::data::{Bounds, Detection, DetectionPreprocess, Images, Picture, prepare};
use crate::models::Model;
use crate::models::detect::Detector;
use crate::weights::{self, Fetcher, LoadedDetector, LoadedModel};
use crate::{Error, Pass, file};

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

/// What is taken of a detector's box.
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

    /// What answers depend on beside the picture: this recipe, and the weights where a run or a file has them.
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

/// A model for one picture at a time, whoever asks.
#[derive(Debug)]
struct Shared<M>(Mutex<M>);

impl<M> Shared<M> {
    const fn new(model: M) -> Self {
        Self(Mutex::new(model))
    }

    fn with<T>(&self, run: impl FnOnce(&M) -> T) -> T {
        // a panic in a model leaves nothing half done
        run(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The boxes of a detector.
#[derive(Debug)]
pub struct DetectedRegions {
    detector: Shared<LoadedDetector>,
    preprocess: DetectionPreprocess,
    feature: DetectedFeature,
    limits: DetectedLimits,
    /// Of the detector, without a background.
    classes: usize,
    width: usize,
    device: Device,
}

/// Boxes with their features and distributions over classes.
struct Found {
    bounds: Vec<Bounds>,
    features: Vec<f32>,
    classes: Vec<f32>,
}

/// Pixels of a side of a crop.
const CROP: usize = 16;

impl DetectedRegions {
    /// # Errors
    /// When there is no such detector.
    pub fn open(model: &str, feature: DetectedFeature, limits: DetectedLimits, device: &Device) -> Result<Self, Error> {
        let detector = weights::resolve_detector(model, &mut |_| {})?.load(device)?;
        let (classes, preprocess) = (detector.config.classes(), detector.preprocess);
        let (detector, device) = (Shared::new(detector), device.clone());
        let mut source = Self { detector, preprocess, feature, limits, classes, width: 0, device };
        // what a feature has is known from one picture
        let [rows, columns] = source.detector.with(|detector| detector.config.image());
        let picture = Picture::new([rows, columns], vec![0; 3 * rows * columns])?;
        source.width = match feature {
            DetectedFeature::Crop => 3 * CROP * CROP,
            DetectedFeature::Own => {
                let found = source.found(&picture)?;
                found.features.len() / found.bounds.len()
            }
        };
        Ok(source)
    }

    /// Boxes of a picture, the best first.
    ///
    /// # Errors
    /// When the picture does not fit the detector.
    pub fn boxes(&self, picture: &Picture) -> Result<Vec<Detection>, Error> {
        self.detector.with(|detector| {
            let batch = detector.preprocess.batch(&[detector.preprocess.prepare(picture)])?;
            let found = detector.model.detect(&batch.to_device(&self.device), &mut Pass::silent()).remove(0);
            Ok(self.chosen(found))
        })
    }

    fn chosen(&self, mut found: Vec<Detection>) -> Vec<Detection> {
        found.retain(|one| one.score >= self.limits.score && one.bounds.clipped().is_some());
        found.truncate(self.limits.most);
        found
    }

    /// Boxes with features and distributions of the detector's own.
    fn found(&self, picture: &Picture) -> Result<Found, Error> {
        self.detector.with(|detector| {
            let batch = detector.preprocess.batch(&[detector.preprocess.prepare(picture)])?;
            let images = batch.to_device(&self.device);
            Ok(match &detector.model {
                Detector::Detr(model) => queries(model, &images, self.limits),
                Detector::Retinanet(model) => {
                    let found = self.chosen_or_whole(model.detect(&images, &mut Pass::silent()).remove(0));
                    pooled(
                        model.backbone.forward(images.pixels.clone(), &mut Pass::silent()),
                        &images,
                        &found,
                        self.classes,
                    )
                }
                Detector::FasterRcnn(model) => {
                    let found = self.chosen_or_whole(model.detect(&images, &mut Pass::silent()).remove(0));
                    pooled(
                        model.backbone.forward(images.pixels.clone(), &mut Pass::silent()),
                        &images,
                        &found,
                        self.classes,
                    )
                }
            })
        })
    }

    /// What a detector found, or the whole picture as background where it found nothing.
    fn chosen_or_whole(&self, found: Vec<Detection>) -> Vec<Detection> {
        let chosen = self.chosen(found);
        if chosen.is_empty() { vec![Detection { class: 0, score: 0.0, bounds: Bounds::WHOLE }] } else { chosen }
    }
}

/// The class of a detection as a distribution: what its score leaves is background.
fn of_score(found: &Detection, classes: usize) -> impl Iterator<Item = f32> {
    let (class, score) = (found.class + 1, found.score as f32);
    (0..=classes).map(move |index| match index {
        0 => 1.0 - score,
        index if index == class => score,
        _ => 0.0,
    })
}

/// The queries of a DETR that found something: their boxes, what the decoder gives for them, and their distributions with the
/// background first.
fn queries(model: &crate::models::detect::detr::Detr, images: &Images, limits: DetectedLimits) -> Found {
    let last = model.transformer.decoder.layers.len() - 1;
    let name = format!("transformer.decoder.layers.{last}");
    let mut pass = Pass::recording_only([name.clone()]);
    let output = model.forward(images, &mut pass);
    let (logits, boxes) = (&output.logits[last], &output.boxes[last]);
    let hidden = pass.into_trace().get::<3>(&name).expect("the decoder watches its layers");
    let hidden = model.transformer.decoder.norm.forward(hidden);
    let [_, _, width] = hidden.dims();
    let classes = logits.dims()[2];
    let values = |tensor: Tensor<3>| tensor.into_data().iter::<f32>().collect::<Vec<f32>>();
    let (shares, boxes) = (values(crate::function::softmax(logits.clone())), values(boxes.clone()));
    let hidden = values(hidden);
    // the last class says that there is nothing
    let score = |query: usize| shares[query * classes..][..classes - 1].iter().copied().fold(0.0, f32::max);
    let mut order: Vec<usize> = (0..boxes.len() / 4).collect();
    order.sort_by(|a, b| score(*b).total_cmp(&score(*a)).then(a.cmp(b)));
    let kept = order.iter().filter(|query| f64::from(score(**query)) >= limits.score).count().clamp(1, limits.most);
    let (mut bounds, mut features, mut distributions) = (Vec::new(), Vec::new(), Vec::new());
    for &query in &order[..kept] {
        let [cx, cy, w, h] = [0, 1, 2, 3].map(|side| f64::from(boxes[4 * query + side]));
        let own = Bounds { cx, cy, w, h };
        bounds.push(own.clipped().unwrap_or(Bounds::WHOLE));
        features.extend_from_slice(&hidden[query * width..][..width]);
        let row = &shares[query * classes..][..classes];
        distributions.push(row[classes - 1]);
        distributions.extend_from_slice(&row[..classes - 1]);
    }
    Found { bounds, features, classes: distributions }
}

/// Boxes with the mean of the finest map inside of each.
fn pooled(levels: Vec<crate::boxes::Level>, images: &Images, found: &[Detection], classes: usize) -> Found {
    let bounds: Vec<Bounds> = found.iter().map(|one| one.bounds.clipped().unwrap_or(Bounds::WHOLE)).collect();
    let corners: Vec<Corners> =
        bounds.iter().map(|own| own.pixel_corners(images.sizes[0]).map(|side| side as f32)).collect();
    let finest = levels.into_iter().next().expect("a detector reads a map");
    let align = RoiAlign {
        output: [4, 4],
        spatial_scale: 1.0 / finest.stride as f32,
        points: SamplingPoints::Fixed(2),
        aligned: true,
    };
    let grids = roi_align(finest.map, &vec![0; corners.len()], &corners, align);
    let [count, width, rows, columns] = grids.dims();
    let means = grids.reshape([count, width, rows * columns]).mean_dim(2);
    let features = means.into_data().iter::<f32>().collect();
    Found { bounds, features, classes: found.iter().flat_map(|one| of_score(one, classes)).collect() }
}

impl RegionSource for DetectedRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn network_pixels(&self, size: [usize; 2]) -> usize {
        let [rows, columns] = self.preprocess.size(size);
        rows.saturating_mul(columns)
    }

    fn classes(&self) -> usize {
        self.classes + 1
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        if self.feature == DetectedFeature::Own {
            let Found { bounds, features, classes } = self.found(&picture)?;
            let boxes = bounds.iter().map(|own| own.corners().map(|side| side as f32)).collect();
            return Ok(RegionFeatures { features, boxes, classes });
        }
        let found = self.chosen_or_whole(self.boxes(&picture)?);
        let given: Vec<GivenBox> = found.iter().map(|one| GivenBox { bounds: one.bounds, class: None }).collect();
        let crops = Crops { side: CROP, classes: 0 };
        let regions = crops.regions(&OnePicture { name: &source.name(), picture: &picture, boxes: &given })?;
        let classes = found.iter().flat_map(|one| of_score(one, self.classes)).collect();
        Ok(RegionFeatures { classes, ..regions })
    }
}

/// Boxes of the data; of a picture without boxes, those of a detector.
#[derive(Debug)]
struct BoxesOrDetected {
    crops: Crops,
    finder: Arc<DetectedRegions>,
}

impl RegionSource for BoxesOrDetected {
    fn width(&self) -> usize {
        self.crops.width()
    }

    fn network_pixels(&self, size: [usize; 2]) -> usize {
        self.finder.network_pixels(size)
    }

    fn classes(&self) -> usize {
        self.crops.classes()
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        let mut boxes = source.boxes(&picture)?;
        if boxes.is_empty() {
            // the detector's classes are the data's where there are as many
            let knows = self.finder.classes == self.crops.classes;
            let found = self.finder.boxes(&picture)?.into_iter();
            boxes = found.map(|one| GivenBox { bounds: one.bounds, class: knows.then_some(one.class) }).collect();
        }
        self.crops.regions(&OnePicture { name: &source.name(), picture: &picture, boxes: &boxes })
    }
}

/// The places of a classifier's last map.
#[derive(Debug)]
struct MapRegions {
    model: Shared<LoadedModel>,
    /// Rows and columns of what it sees.
    image: [usize; 2],
    width: usize,
    device: Device,
}

impl MapRegions {
    fn open(name: &str, device: &Device) -> Result<Self, Error> {
        let model = weights::resolve(name, &mut |_| {})?.load(device)?;
        let image = model.config.image();
        let mut source = Self { model: Shared::new(model), image, width: 0, device: device.clone() };
        let [rows, columns] = image;
        let picture = Picture::new([rows, columns], vec![0; 3 * rows * columns])?;
        let found = source.regions(&OnePicture { name, picture: &picture, boxes: &[] })?;
        source.width = found.features.len() / found.len();
        Ok(source)
    }
}

impl RegionSource for MapRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn network_pixels(&self, _: [usize; 2]) -> usize {
        self.image.iter().product()
    }

    fn classes(&self) -> usize {
        0
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        let map = self.model.with(|loaded| {
            let image = loaded.config.image();
            let pixels = prepare(&picture, &loaded.preprocess, image);
            let pixels = crate::data::to_channels(pixels, loaded.config.channels())?;
            let shape = [1, loaded.config.channels(), image[0], image[1]];
            let images = Tensor::<4>::from_data(TensorData::new(pixels, shape), &self.device);
            last_map(&loaded.model, images)
        })?;
        let [_, width, rows, columns] = map.dims();
        let features = map.reshape([width, rows * columns]).transpose().into_data().iter::<f32>().collect();
        let share = |at: usize, of: usize| at as f32 / of as f32;
        let place = |at: usize| {
            let [row, column] = [at / columns, at % columns];
            [share(column, columns), share(row, rows), share(column + 1, columns), share(row + 1, rows)]
        };
        Ok(RegionFeatures { features, boxes: (0..rows * columns).map(place).collect(), classes: Vec::new() })
    }
}

/// `[1, D, H, W]`: what is pooled for the head, or the tokens of the patches after the last block.
fn last_map(model: &Model, images: Tensor<4>) -> Result<Tensor<4>, Error> {
    let inspected = model.inspect();
    if let Some(transformer) = inspected.as_transformer() {
        let [rows, columns] = transformer.patch_embed().grid();
        let tokens = transformer.through(images, &mut Pass::silent());
        let [_, count, dim] = tokens.dims();
        let patches = tokens.narrow(1, count - rows * columns, rows * columns);
        return Ok(patches.swap_dims(1, 2).reshape([1, dim, rows, columns]));
    }
    let pattern = inspected.pooled().ok_or_else(|| Error::config("regions.model", "the classifier has no map"))?;
    let mut pass = Pass::recording_only([pattern]);
    let _ = model.forward(images, &mut pass);
    let trace = pass.into_trace();
    // in the order of the forward pass
    let last = trace.names().last().map(String::from);
    trace.get(&last.ok_or_else(|| Error::config("regions.model", "the classifier records no map"))?)
}

/// UNITER's features: a `.npz` file for each picture with `features`, `norm_bb` and perhaps `soft_labels`.
#[derive(Debug)]
struct NpzRegions {
    files: HashMap<u64, PathBuf>,
    width: usize,
    classes: usize,
}

impl NpzRegions {
    fn open(folder: &Path) -> Result<Self, Error> {
        let wrong = |error: std::io::Error| Error::file(folder, error);
        let mut files = HashMap::new();
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let number = image_number(&path.to_string_lossy());
            if let Some(number) = number.filter(|_| path.extension().is_some_and(|ending| ending == "npz")) {
                files.insert(number, path);
            }
        }
        let first = files.values().min().ok_or_else(|| Error::file(folder, "no .npz file with a number at its end"))?;
        let regions = read_npz(first)?;
        let (width, classes) = (regions.features.len() / regions.len(), regions.classes.len() / regions.len());
        Ok(Self { files, width, classes })
    }
}

fn read_npz(path: &Path) -> Result<RegionFeatures, Error> {
    let arrays = weights::read(path)?.tensors;
    let array = |name: &str| {
        let data = arrays.get(name)?;
        let values: Vec<f32> = data.iter::<f32>().collect();
        values.iter().all(|value| value.is_finite()).then_some((data.shape().to_vec(), values))
    };
    let needed =
        |name: &str| array(name).ok_or_else(|| Error::file(path, format!("no array `{name}` of finite numbers")));
    let ((shape, features), (box_shape, boxes)) = (needed("features")?, needed("norm_bb")?);
    let (&[count, _], &[own, sides]) = (&shape[..], &box_shape[..]) else {
        return Err(Error::file(path, "`features` and `norm_bb` must be rows of numbers"));
    };
    if count == 0 || own != count || sides < 4 {
        return Err(Error::file(path, format!("{count} rows of `features`, {own} of `norm_bb` with {sides} numbers")));
    }
    let boxes = boxes.chunks_exact(sides).map(|row| [row[0], row[1], row[2], row[3]]).collect();
    let classes =
        array("soft_labels").filter(|(shape, _)| shape.first() == Some(&count)).map_or(Vec::new(), |(_, all)| all);
    Ok(RegionFeatures { features, boxes, classes })
}

impl RegionSource for NpzRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn regions(&self, picture: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let name = picture.name();
        let path = image_number(&name).and_then(|number| self.files.get(&number));
        let missing = || Error::File { path: name.clone(), reason: "no .npz file with its number".into() };
        let path = path.ok_or_else(missing)?;
        let regions = read_npz(path)?;
        let count = regions.len();
        let fits = regions.features.len() == count * self.width && regions.classes.len() == count * self.classes;
        if fits { Ok(regions) } else { Err(Error::file(path, "regions of another width than those of the first file")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;
    use crate::data::world::scene;
    use crate::device::cpu;
    use std::io::{Cursor, Write as _};

    fn sums_to_one(classes: &[f32], count: usize) -> bool {
        classes.chunks_exact(count).all(|row| (row.iter().sum::<f32>() - 1.0).abs() < 1e-5)
    }

    #[test]
    fn detectors_of_every_kind_give_boxes_with_features_and_distributions() {
        let picture = scene(0, Part::Test, 3).picture();
        let shown = OnePicture { name: "scene", picture: &picture, boxes: &[] };
        for model in ["scenes-retinanet", "detr-nano", "faster-rcnn-nano"] {
            for feature in [DetectedFeature::Own, DetectedFeature::Crop] {
                let limits = DetectedLimits { score: 0.3, most: 5 };
                let source = DetectedRegions::open(model, feature, limits, &cpu()).unwrap();
                let regions = source.regions(&shown).unwrap();
                assert!((1..=5).contains(&regions.len()), "{model}");
                assert_eq!(regions.features.len(), regions.len() * source.width(), "{model} {feature:?}");
                assert_eq!(regions.classes.len(), regions.len() * source.classes());
                assert!(sums_to_one(&regions.classes, source.classes()), "{model} {:?}", regions.classes);
                assert!(regions.boxes.iter().flatten().all(|side| (-1e-6..=1.0 + 1e-6).contains(side)));
            }
        }
    }

    #[test]
    fn a_picture_without_boxes_gets_those_of_a_detector_and_one_with_boxes_keeps_them() {
        let scene = scene(0, Part::Test, 5);
        let picture = scene.picture();
        let limits = DetectedLimits::default();
        let finder =
            Arc::new(DetectedRegions::open("scenes-retinanet", DetectedFeature::Crop, limits, &cpu()).unwrap());
        let source = BoxesOrDetected { crops: Crops { side: 4, classes: 8 }, finder };
        let found = source.regions(&OnePicture { name: "scene", picture: &picture, boxes: &[] }).unwrap();
        let near = |truth: &[f64; 4]| {
            found.boxes.iter().any(|own| own.iter().zip(truth).all(|(a, b)| (f64::from(*a) - b / 64.0).abs() < 0.06))
        };
        assert!(scene.boxes().iter().any(near), "{:?} {:?}", scene.boxes(), found.boxes);
        let given = [GivenBox { bounds: Bounds::WHOLE, class: Some(2) }];
        let own = source.regions(&OnePicture { name: "scene", picture: &picture, boxes: &given }).unwrap();
        assert_eq!((own.len(), own.boxes[0]), (1, [0.0, 0.0, 1.0, 1.0]));
    }

    #[test]
    fn a_map_has_a_region_for_each_of_its_places() {
        let picture = scene(0, Part::Test, 3).picture();
        for model in ["fashion-vit", "fashion-resnet"] {
            let source = MapRegions::open(model, &cpu()).unwrap();
            let regions = source.regions(&OnePicture { name: "scene", picture: &picture, boxes: &[] }).unwrap();
            let area: f32 = regions.boxes.iter().map(|[x1, y1, x2, y2]| (x2 - x1) * (y2 - y1)).sum();
            assert!(regions.len() > 3 && (area - 1.0).abs() < 1e-4, "{model}");
            assert_eq!(regions.features.len(), regions.len() * source.width());
        }
    }

    fn array(shape: &str, values: &[f32]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    #[test]
    fn files_of_uniter_are_found_by_number_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, arrays: &[(&str, Vec<u8>)]| {
            let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
            for (name, bytes) in arrays {
                archive
                    .start_file(
                        format!("{name}.npy"),
                        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored),
                    )
                    .unwrap();
                archive.write_all(bytes).unwrap();
            }
            std::fs::write(folder.path().join(name), archive.finish().unwrap().into_inner()).unwrap();
        };
        let boxes = array("(2, 6)", &[0.0, 0.1, 0.5, 0.6, 0.5, 0.5, 0.2, 0.2, 1.0, 1.0, 0.8, 0.8]);
        let labels = array("(2, 3)", &[0.1, 0.2, 0.7, 0.5, 0.5, 0.0]);
        let features = array("(2, 2)", &[1.0, 2.0, 3.0, 4.0]);
        let all = [("features", features), ("norm_bb", boxes.clone()), ("soft_labels", labels)];
        write("coco_val2014_000000000009.npz", &all);
        let source = NpzRegions::open(folder.path()).unwrap();
        let picture = Picture::new([1, 1], vec![0; 3]).unwrap();
        let regions = |name| source.regions(&OnePicture { name, picture: &picture, boxes: &[] });
        let nine = regions("COCO_val2014_000000000009.jpg").unwrap();
        assert_eq!((nine.features.as_slice(), nine.boxes[1]), (&[1.0, 2.0, 3.0, 4.0][..], [0.2, 0.2, 1.0, 1.0]));
        assert_eq!((source.width(), source.classes(), nine.classes.len()), (2, 3, 6));
        assert!(regions("8.jpg").unwrap_err().to_string().starts_with("8.jpg: no .npz file"));
        write("coco_val2014_000000000009.npz", &[("norm_bb", boxes)]);
        assert!(regions("9.jpg").unwrap_err().to_string().contains("no array `features`"));
    }
}
