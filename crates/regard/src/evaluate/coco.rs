//! Average precision as COCO measures it: the twelve numbers of `pycocotools.cocoeval` (Lin et al. 2014, arXiv:1405.0312).
//!
//! For each class and each of ten IoU thresholds from 0.50 to 0.95, detections of all pictures are sorted by falling score and
//! matched to objects one by one ([`matching`]); precision is read at 101 recalls. Crowds, and objects with an area
//! outside the measured range, count neither for nor against a detection.
//!
//! Differences from pycocotools:
//! - an annotation with id 0 counts like any other (there it can never be matched);
//! - no detections at all give zeros instead of a crash;
//! - a detection that is not finite, or of an unknown class, is an error, as an unknown picture is in pycocotools.

mod diagnosis;
mod matching;

pub use diagnosis::{Diagnosis, DiagnosisOptions, FalseAlarm, Miss, Mistake, diagnose};

use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashSet;

use super::{Better, Metric, Unit, Values};
use crate::Error;
use crate::data::detection::DetectionDataset;
use matching::{MatchOutcome, PictureClass};

/// An annotated object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CocoTruth {
    /// The id of the annotation, only for messages and lists.
    pub id: u64,
    pub image: u64,
    pub class: usize,
    /// Left, top, width and height in pixels of the dataset's picture, before preprocessing.
    pub bounds: [f64; 4],
    /// The annotation's area in pixels; of the mask if there is one.
    pub area: f64,
    /// One box around many objects, not counted when missed.
    pub crowd: bool,
}

/// A box predicted by a detector.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CocoDetection {
    pub image: u64,
    pub class: usize,
    /// Left, top, width and height in pixels, as [`CocoTruth::bounds`].
    pub bounds: [f64; 4],
    pub score: f64,
}

/// Number of IoU thresholds.
pub const THRESHOLDS: usize = 10;
/// Number of recalls at which precision is read.
pub const RECALLS: usize = 101;
/// Maximum number of detections per class and picture: for AR1, for AR10, and for everything else.
pub const MOST_DETECTIONS: [usize; 3] = [1, 10, 100];

/// A range of areas in pixels (pycocotools' `areaRng`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaRange {
    All,
    /// At most 32 x 32.
    Small,
    /// From 32 x 32 to 96 x 96, both included.
    Medium,
    /// At least 96 x 96.
    Large,
}

impl AreaRange {
    const EACH: [Self; 4] = [Self::All, Self::Small, Self::Medium, Self::Large];

    /// Both ends are included.
    const fn contains(self, area: f64) -> bool {
        let (least, most) = match self {
            Self::All => (0.0, 1e10),
            Self::Small => (0.0, 1024.0),
            Self::Medium => (1024.0, 9216.0),
            Self::Large => (9216.0, 1e10),
        };
        least <= area && area <= most
    }
}

/// The IoU thresholds 0.50, 0.55, .., 0.95 with the rounding of `numpy.linspace`.
#[must_use]
pub fn thresholds() -> [f64; THRESHOLDS] {
    let step = (0.95 - 0.5) / 9.0;
    std::array::from_fn(|index| if index == THRESHOLDS - 1 { 0.95 } else { index as f64 * step + 0.5 })
}

/// The recalls 0, 0.01, .., 1 with the rounding of `numpy.linspace`.
fn recalls() -> [f64; RECALLS] {
    std::array::from_fn(|index| if index == RECALLS - 1 { 1.0 } else { index as f64 * 0.01 })
}

/// The twelve numbers; -1 if there is no object to measure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Mean over all thresholds, recalls and classes.
    pub ap: f64,
    pub ap50: f64,
    pub ap75: f64,
    pub ap_small: f64,
    pub ap_medium: f64,
    pub ap_large: f64,
    /// Mean recall with one detection per picture and class.
    pub ar1: f64,
    pub ar10: f64,
    pub ar100: f64,
    pub ar_small: f64,
    pub ar_medium: f64,
    pub ar_large: f64,
}

/// The names of [`Summary`] for reports.
pub const METRICS: [Metric; 12] = {
    const fn metric(name: &'static str, label: &'static str) -> Metric {
        Metric::new(name, label, Better::Higher, Unit::Percent)
    }
    [
        metric("ap", "AP"),
        metric("ap50", "AP50"),
        metric("ap75", "AP75"),
        metric("ap_small", "AP small"),
        metric("ap_medium", "AP medium"),
        metric("ap_large", "AP large"),
        metric("ar1", "AR1"),
        metric("ar10", "AR10"),
        metric("ar100", "AR100"),
        metric("ar_small", "AR small"),
        metric("ar_medium", "AR medium"),
        metric("ar_large", "AR large"),
    ]
};

impl Summary {
    /// In the order in which pycocotools prints them.
    #[must_use]
    pub const fn numbers(&self) -> [f64; 12] {
        [
            self.ap,
            self.ap50,
            self.ap75,
            self.ap_small,
            self.ap_medium,
            self.ap_large,
            self.ar1,
            self.ar10,
            self.ar100,
            self.ar_small,
            self.ar_medium,
            self.ar_large,
        ]
    }

    /// By the names of [`METRICS`], without those that have no object.
    #[must_use]
    pub fn values(&self) -> Values {
        let named = METRICS.into_iter().zip(self.numbers());
        named.filter(|(_, value)| *value >= 0.0).map(|(metric, value)| (metric.name.to_string(), value)).collect()
    }
}

/// The numbers of one class; -1 if it has no object of a size.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ClassScore {
    /// Objects that are not crowds.
    pub objects: usize,
    /// Detections within the maximum per picture.
    pub detections: usize,
    pub ap: f64,
    pub ap50: f64,
    pub ap75: f64,
    pub ap_small: f64,
    pub ap_medium: f64,
    pub ap_large: f64,
    pub ar1: f64,
    pub ar10: f64,
    pub ar100: f64,
    /// The score threshold with the best F1; `None` without objects or hits.
    pub best: Option<BestThreshold>,
}

/// The score threshold with the best F1 at IoU 0.5, the higher one on a tie.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct BestThreshold {
    pub score: f64,
    pub f1: f64,
    pub precision: f64,
    pub recall: f64,
}

/// A point of a precision-recall curve: the highest precision at this recall or more.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CurvePoint {
    pub recall: f64,
    pub precision: f64,
    /// The score of the detection that reaches this recall; 0 if none does.
    pub score: f64,
}

/// The evaluation of a detector.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CocoEvaluation {
    pub summary: Summary,
    /// In the order of the classes.
    pub classes: Vec<ClassScore>,
    #[serde(skip)]
    arrays: Vec<Option<ClassArrays>>,
}

/// Precision and recall of one class.
#[derive(Clone, Debug, PartialEq)]
struct ClassArrays {
    /// By area range; `None` if the class has no object in it.
    sizes: [Option<SizeArrays>; 4],
    /// `[THRESHOLDS, RECALLS]` for objects of all sizes.
    scores: Vec<f64>,
}

#[derive(Clone, Debug, PartialEq)]
struct SizeArrays {
    /// `[THRESHOLDS, RECALLS]` with the maximum number of detections.
    precision: Vec<f64>,
    /// `[MOST_DETECTIONS, THRESHOLDS]`
    recall: [[f64; THRESHOLDS]; 3],
}

impl CocoEvaluation {
    /// `[THRESHOLDS, RECALLS]` with 100 detections per picture; `None` for a class without objects of this size.
    #[must_use]
    pub fn precision(&self, class: usize, size: AreaRange) -> Option<&[f64]> {
        Some(&self.arrays[class].as_ref()?.sizes[size as usize].as_ref()?.precision)
    }

    /// The recall of all detections at each threshold, with at most `MOST_DETECTIONS[most]` per picture.
    #[must_use]
    pub fn recall(&self, class: usize, size: AreaRange, most: usize) -> Option<&[f64; THRESHOLDS]> {
        Some(&self.arrays[class].as_ref()?.sizes[size as usize].as_ref()?.recall[most])
    }

    /// Precision over recall at an IoU threshold by its index; empty for a class without objects.
    #[must_use]
    pub fn curve(&self, class: usize, threshold: usize) -> Vec<CurvePoint> {
        let Some(precision) = self.precision(class, AreaRange::All) else { return Vec::new() };
        let scores = self.arrays[class].as_ref().map_or(&[][..], |arrays| &arrays.scores);
        let part = threshold * RECALLS..(threshold + 1) * RECALLS;
        let values = precision[part.clone()].iter().zip(&scores[part]);
        let point = |(recall, (precision, score)): (f64, (&f64, &f64))| CurvePoint {
            recall,
            precision: *precision,
            score: *score,
        };
        recalls().into_iter().zip(values).map(point).collect()
    }
}

/// The ids of the pictures of a dataset, and their objects.
///
/// # Errors
/// When the size of a picture is needed and cannot be read.
pub fn truths(dataset: &dyn DetectionDataset) -> Result<(Vec<u64>, Vec<CocoTruth>), Error> {
    let images: Vec<u64> = (0..dataset.len()).map(|index| dataset.image_id(index)).collect();
    let mut truths = Vec::new();
    for (index, &image) in images.iter().enumerate() {
        truths.extend(dataset.annotations(index)?.iter().map(|annotation| CocoTruth {
            id: annotation.id,
            image,
            class: annotation.class,
            bounds: annotation.bounds,
            area: annotation.area,
            crowd: annotation.crowd,
        }));
    }
    Ok((images, truths))
}

/// The detections of a perfect model: every object that is not a crowd, with a score of 1.
#[must_use]
pub fn perfect(truths: &[CocoTruth]) -> Vec<CocoDetection> {
    let found =
        |truth: &CocoTruth| CocoDetection { image: truth.image, class: truth.class, bounds: truth.bounds, score: 1.0 };
    truths.iter().filter(|truth| !truth.crowd).map(found).collect()
}

/// Compares detections with the objects of pictures by their ids; classes are `0..classes`.
///
/// # Errors
/// When an image or a class is unknown, or a number is not finite.
pub fn evaluate(
    images: &[u64],
    classes: usize,
    truths: &[CocoTruth],
    detections: &[CocoDetection],
) -> Result<CocoEvaluation, Error> {
    check(images, classes, truths, detections)?;
    let pairs = matching::pairs(classes, truths, detections);
    let per_class: Vec<(ClassScore, Option<ClassArrays>)> =
        pairs.par_iter().map(|pairs| evaluate_class(pairs)).collect();
    let (classes, arrays): (Vec<ClassScore>, Vec<Option<ClassArrays>>) = per_class.into_iter().unzip();
    Ok(CocoEvaluation { summary: summarise(&arrays), classes, arrays })
}

/// Validates the input.
fn check(images: &[u64], classes: usize, truths: &[CocoTruth], detections: &[CocoDetection]) -> Result<(), Error> {
    let known: HashSet<u64> = images.iter().copied().collect();
    let wrong = |what: String, reason: String| Err(Error::analysis(what, reason));
    let image = |image: u64| (!known.contains(&image)).then(|| format!("image {image} is not among the images"));
    let class = |class: usize| (class >= classes).then(|| format!("class {class} is not among {classes} classes"));
    let finite = |name: &str, numbers: &[f64]| {
        (!numbers.iter().all(|number| number.is_finite())).then(|| format!("`{name}` is not finite: {numbers:?}"))
    };
    for truth in truths {
        let problem = image(truth.image).or_else(|| class(truth.class)).or_else(|| finite("bbox", &truth.bounds));
        if let Some(reason) = problem.or_else(|| finite("area", &[truth.area])) {
            return wrong(format!("annotation {}", truth.id), reason);
        }
    }
    for (index, detection) in detections.iter().enumerate() {
        let problem =
            image(detection.image).or_else(|| class(detection.class)).or_else(|| finite("bbox", &detection.bounds));
        if let Some(reason) = problem.or_else(|| finite("score", &[detection.score])) {
            return wrong(format!("detection {index}"), reason);
        }
    }
    Ok(())
}

/// The pictures of one class, by rising id.
fn evaluate_class(pairs: &[PictureClass<'_>]) -> (ClassScore, Option<ClassArrays>) {
    // all detections by falling score; on a tie in the order of pictures
    let mut order: Vec<(f64, u32, u32)> = Vec::new();
    for (picture, pair) in pairs.iter().enumerate() {
        let places = pair.detections.iter().enumerate();
        order.extend(places.map(|(place, detection)| (detection.score, picture as u32, place as u32)));
    }
    order.sort_by(|a, b| b.0.total_cmp(&a.0));
    let mut scores = vec![0.0; THRESHOLDS * RECALLS];
    let mut best = None;
    let sizes = AreaRange::EACH.map(|size| {
        let matches: Vec<matching::Matches> = pairs.iter().map(|pair| pair.matches(size)).collect();
        let proper: usize = matches.iter().map(|matches| matches.proper).sum();
        if proper == 0 {
            return None;
        }
        let mut precision = vec![0.0; THRESHOLDS * RECALLS];
        for threshold in 0..THRESHOLDS {
            let outcome = |(score, picture, place): &(f64, u32, u32)| {
                (*score, matches[*picture as usize].outcome(threshold, *place as usize))
            };
            let outcomes: Vec<(f64, MatchOutcome)> = order.iter().map(outcome).collect();
            let part = threshold * RECALLS..(threshold + 1) * RECALLS;
            let scores = (size == AreaRange::All).then(|| &mut scores[part.clone()]);
            interpolate(&outcomes, proper, &mut precision[part], scores);
            if size == AreaRange::All && threshold == 0 {
                best = best_threshold(&outcomes, proper);
            }
        }
        let recall = MOST_DETECTIONS.map(|most| {
            std::array::from_fn(|threshold| {
                let hits: usize = matches.iter().map(|matches| matches.hits(threshold, most)).sum();
                hits as f64 / proper as f64
            })
        });
        Some(SizeArrays { precision, recall })
    });
    let objects = pairs.iter().flat_map(|pair| &pair.truths).filter(|truth| !truth.crowd).count();
    let arrays = ClassArrays { sizes, scores };
    let own = [Some(arrays)];
    let numbers = summarise(&own);
    let score = ClassScore {
        objects,
        detections: order.len(),
        ap: numbers.ap,
        ap50: numbers.ap50,
        ap75: numbers.ap75,
        ap_small: numbers.ap_small,
        ap_medium: numbers.ap_medium,
        ap_large: numbers.ap_large,
        ar1: numbers.ar1,
        ar10: numbers.ar10,
        ar100: numbers.ar100,
        best,
    };
    let [arrays] = own;
    (score, arrays)
}

/// Precision at each recall, and the scores that reach it, from outcomes by falling score.
fn interpolate(outcomes: &[(f64, MatchOutcome)], proper: usize, precision: &mut [f64], scores: Option<&mut [f64]>) {
    let (mut hits, mut alarms) = (0.0, 0.0);
    let mut curve: Vec<(f64, f64)> = Vec::with_capacity(outcomes.len());
    for (_, outcome) in outcomes {
        match outcome {
            MatchOutcome::Hit => hits += 1.0,
            MatchOutcome::FalseAlarm => alarms += 1.0,
            MatchOutcome::Ignored => {}
        }
        // `numpy.spacing(1)` makes 0 / 0 zero
        curve.push((hits / proper as f64, hits / (alarms + hits + f64::EPSILON)));
    }
    for index in (1..curve.len()).rev() {
        curve[index - 1].1 = curve[index - 1].1.max(curve[index].1);
    }
    let mut at = 0;
    let mut places = [None; RECALLS];
    for (place, recall) in places.iter_mut().zip(recalls()) {
        while at < curve.len() && curve[at].0 < recall {
            at += 1;
        }
        *place = (at < curve.len()).then_some(at);
    }
    for (value, place) in precision.iter_mut().zip(places) {
        *value = place.map_or(0.0, |place| curve[place].1);
    }
    for (value, place) in scores.into_iter().flatten().zip(places) {
        *value = place.map_or(0.0, |place| outcomes[place].0);
    }
}

fn best_threshold(outcomes: &[(f64, MatchOutcome)], proper: usize) -> Option<BestThreshold> {
    let (mut hits, mut alarms) = (0usize, 0usize);
    let mut best: Option<BestThreshold> = None;
    for (index, (score, outcome)) in outcomes.iter().enumerate() {
        match outcome {
            MatchOutcome::Hit => hits += 1,
            MatchOutcome::FalseAlarm => alarms += 1,
            MatchOutcome::Ignored => {}
        }
        // a threshold includes all detections of a score or none
        let is_last = outcomes.get(index + 1).is_none_or(|(next, _)| next != score);
        let f1 = 2.0 * hits as f64 / (proper + hits + alarms) as f64;
        if is_last && hits > 0 && best.is_none_or(|best| f1 > best.f1) {
            let (precision, recall) = (hits as f64 / (hits + alarms) as f64, hits as f64 / proper as f64);
            best = Some(BestThreshold { score: *score, f1, precision, recall });
        }
    }
    best
}

/// Means over classes that have objects.
fn summarise(arrays: &[Option<ClassArrays>]) -> Summary {
    let of = |size: AreaRange| arrays.iter().flatten().filter_map(move |arrays| arrays.sizes[size as usize].as_ref());
    let precision = |size: AreaRange, threshold: Option<usize>| {
        let part =
            threshold.map_or(0..THRESHOLDS * RECALLS, |threshold| threshold * RECALLS..(threshold + 1) * RECALLS);
        mean(of(size).flat_map(|arrays| arrays.precision[part.clone()].iter().copied()))
    };
    let recall = |size: AreaRange, most: usize| mean(of(size).flat_map(|arrays| arrays.recall[most]));
    Summary {
        ap: precision(AreaRange::All, None),
        ap50: precision(AreaRange::All, Some(0)),
        ap75: precision(AreaRange::All, Some(5)),
        ap_small: precision(AreaRange::Small, None),
        ap_medium: precision(AreaRange::Medium, None),
        ap_large: precision(AreaRange::Large, None),
        ar1: recall(AreaRange::All, 0),
        ar10: recall(AreaRange::All, 1),
        ar100: recall(AreaRange::All, 2),
        ar_small: recall(AreaRange::Small, 2),
        ar_medium: recall(AreaRange::Medium, 2),
        ar_large: recall(AreaRange::Large, 2),
    }
}

/// -1 without values.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0usize), |(sum, count), value| (sum + value, count + 1));
    if count == 0 { -1.0 } else { sum / count as f64 }
}

#[cfg(test)]
mod tests;
