//! The mistakes of a detector at one score threshold and IoU 0.5: confusions, misses and false alarms.
//!
//! As in the evaluation, a detection first matches an object of its own class. The rest of both is then paired
//! across classes, so that a right box with a wrong class is one confusion, not a miss and a false alarm.

use rayon::prelude::*;
use serde::Serialize;
use std::collections::BTreeMap;

use super::matching::overlap;
use super::{CocoDetection, CocoTruth};
use crate::evaluate::Confusion;

/// The IoU from which on a box is right.
const RIGHT: f64 = 0.5;
/// The IoU from which on a wrong box is attributed to an object.
const NEAR: f64 = 0.1;

/// Options of a diagnosis.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct DiagnosisOptions {
    /// Minimum score of detections.
    pub score: f64,
    /// Maximum number of listed misses, and of listed false alarms.
    pub worst: usize,
}

/// The mistakes of a detector.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    pub settings: DiagnosisOptions,
    /// `[true class][detected class]`; the last row and column are background: false alarms and misses.
    pub confusion: Confusion,
    /// Number of objects without a detection of their class.
    pub missed: usize,
    /// Number of detections without an object of their class.
    pub alarms: usize,
    /// The largest missed objects.
    pub misses: Vec<Miss>,
    /// The wrong detections with the highest scores.
    pub false_alarms: Vec<FalseAlarm>,
}

/// A missed object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Miss {
    pub truth: CocoTruth,
    /// The detection of any class that overlaps it most.
    pub nearest: Option<CocoDetection>,
    pub overlap: f64,
}

/// A wrong detection.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FalseAlarm {
    pub detection: CocoDetection,
    pub mistake: Mistake,
    /// The object of any class that it overlaps most.
    pub nearest: Option<CocoTruth>,
    pub overlap: f64,
}

/// Why a detection is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mistake {
    /// The object was found already.
    Duplicate,
    /// The box is that of an object of another class.
    WrongClass,
    /// It overlaps an object of its class too little.
    WrongBox,
    /// It overlaps no object.
    Background,
}

/// Compares detections above the threshold with objects; both as in [`super::evaluate`].
///
/// # Panics
/// When a class is not among `0..classes`.
#[must_use]
pub fn diagnose(
    classes: usize,
    truths: &[CocoTruth],
    detections: &[CocoDetection],
    settings: DiagnosisOptions,
) -> Diagnosis {
    let mut pictures: BTreeMap<u64, (Vec<&CocoTruth>, Vec<&CocoDetection>)> = BTreeMap::new();
    for truth in truths {
        pictures.entry(truth.image).or_default().0.push(truth);
    }
    for detection in detections.iter().filter(|detection| detection.score >= settings.score) {
        pictures.entry(detection.image).or_default().1.push(detection);
    }
    let pictures: Vec<(Vec<&CocoTruth>, Vec<&CocoDetection>)> = pictures.into_values().collect();
    let found: Vec<PictureDiagnosis> =
        pictures.into_par_iter().map(|(truths, detections)| picture(classes, &truths, detections)).collect();
    let mut confusion = Confusion { counts: vec![vec![0; classes + 1]; classes + 1] };
    let (mut misses, mut false_alarms) = (Vec::new(), Vec::new());
    for PictureDiagnosis { pairs, misses: own_misses, false_alarms: own_alarms } in found {
        pairs.into_iter().for_each(|[truth, detection]| confusion.counts[truth][detection] += 1);
        misses.extend(own_misses);
        false_alarms.extend(own_alarms);
    }
    let (missed, alarms) = (misses.len(), false_alarms.len());
    misses.sort_by(|a, b| b.truth.area.total_cmp(&a.truth.area));
    false_alarms.sort_by(|a, b| b.detection.score.total_cmp(&a.detection.score));
    misses.truncate(settings.worst);
    false_alarms.truncate(settings.worst);
    Diagnosis { settings, confusion, missed, alarms, misses, false_alarms }
}

struct PictureDiagnosis {
    /// Classes of objects and detections; one past the last is background.
    pairs: Vec<[usize; 2]>,
    misses: Vec<Miss>,
    false_alarms: Vec<FalseAlarm>,
}

fn picture(background: usize, truths: &[&CocoTruth], mut detections: Vec<&CocoDetection>) -> PictureDiagnosis {
    detections.sort_by(|a, b| b.score.total_cmp(&a.score));
    let mut taken = vec![false; truths.len()];
    let mut pairs = Vec::new();
    // on a tie, the last unmatched object
    let best = |detection: &CocoDetection, taken: &[bool], fits: &dyn Fn(&CocoTruth) -> bool| {
        let mut best: Option<(usize, f64)> = None;
        for (place, truth) in truths.iter().enumerate().filter(|(place, truth)| !taken[*place] && fits(truth)) {
            let overlap = overlap(detection.bounds, truth);
            if overlap > 0.0 && best.is_none_or(|(_, most)| overlap >= most) {
                best = Some((place, overlap));
            }
        }
        best
    };
    let is_right = |(_, overlap): &(usize, f64)| *overlap >= RIGHT;
    let none = vec![false; truths.len()];
    let mut wrong: Vec<&CocoDetection> = Vec::new();
    for detection in &detections {
        let own = |truth: &CocoTruth| truth.class == detection.class && !truth.crowd;
        let crowd = |truth: &CocoTruth| truth.class == detection.class && truth.crowd;
        if let Some((place, _)) = best(detection, &taken, &own).filter(is_right) {
            taken[place] = true;
            pairs.push([detection.class; 2]);
        } else if !best(detection, &none, &crowd).is_some_and(|best| is_right(&best)) {
            wrong.push(detection);
        }
    }
    let found = taken.clone();
    let mut false_alarms = Vec::new();
    for detection in wrong {
        let proper = |truth: &CocoTruth| !truth.crowd;
        let own = |truth: &CocoTruth| truth.class == detection.class && !truth.crowd;
        let (any, of_class) = (best(detection, &none, &proper), best(detection, &none, &own));
        let confused = best(detection, &taken, &proper).filter(is_right);
        let mistake = if of_class.is_some_and(|best| is_right(&best)) {
            Mistake::Duplicate
        } else if any.is_some_and(|best| is_right(&best)) {
            Mistake::WrongClass
        } else if of_class.is_some_and(|(_, overlap)| overlap >= NEAR) {
            Mistake::WrongBox
        } else {
            Mistake::Background
        };
        let class = match confused {
            Some((place, _)) => {
                taken[place] = true;
                truths[place].class
            }
            None => background,
        };
        pairs.push([class, detection.class]);
        false_alarms.push(FalseAlarm {
            detection: *detection,
            mistake,
            nearest: any.map(|(place, _)| *truths[place]),
            overlap: any.map_or(0.0, |(_, overlap)| overlap),
        });
    }
    let mut misses = Vec::new();
    for (place, truth) in truths.iter().enumerate().filter(|(place, truth)| !found[*place] && !truth.crowd) {
        if !taken[place] {
            pairs.push([truth.class, background]);
        }
        let overlaps = detections.iter().map(|detection| (**detection, overlap(detection.bounds, truth)));
        let nearest = overlaps.filter(|(_, overlap)| *overlap > 0.0).max_by(|a, b| a.1.total_cmp(&b.1));
        misses.push(Miss {
            truth: **truth,
            nearest: nearest.map(|(detection, _)| detection),
            overlap: nearest.map_or(0.0, |(_, overlap)| overlap),
        });
    }
    PictureDiagnosis { pairs, misses, false_alarms }
}
