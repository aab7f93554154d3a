//! Regions that a frozen detector finds, with features of its own or with the pixels in the boxes.

use burn::tensor::{Device, Tensor};
use std::sync::Arc;

use super::{DetectedFeature, DetectedLimits, SharedModel};
use crate::boxes::{Corners, RoiAlign, SamplingPoints, roi_align};
use crate::data::vision_language::{Crops, GivenBox, OnePicture, RegionFeatures, RegionPicture, RegionSource};
use crate::data::{Bounds, Detection, DetectionPreprocess, Images, Picture};
use crate::models::detect::Detector;
use crate::weights::{self, LoadedDetector};
use crate::{Error, Pass};

/// The boxes of a detector.
#[derive(Debug)]
pub struct DetectedRegions {
    detector: SharedModel<LoadedDetector>,
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
        let (detector, device) = (SharedModel::new(detector), device.clone());
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
            let pixels = images.pixels.clone();
            let levels = match &detector.model {
                Detector::Detr(model) => return Ok(queries(model, &images, self.limits)),
                Detector::Retinanet(model) => model.backbone.forward(pixels, &mut Pass::silent()),
                Detector::FasterRcnn(model) => model.backbone.forward(pixels, &mut Pass::silent()),
            };
            let found = detector.model.detect(&images, &mut Pass::silent()).remove(0);
            Ok(pooled(levels, &images, &self.chosen_or_whole(found), self.classes))
        })
    }

    /// The detections, or the whole picture as background without any.
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
pub(super) struct BoxesOrDetected {
    pub(super) crops: Crops,
    pub(super) finder: Arc<DetectedRegions>,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Part;
    use crate::data::world::scene;
    use crate::device::cpu;

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
}
