//! Which detection finds which object, as `COCOeval.evaluateImg` decides it.
//!
//! Each detection of a class in a picture, by falling score, matches the object that it overlaps most, if the IoU is at
//! least the threshold. Ignored objects (crowds, other sizes) come last and are matched only if no other fits;
//! a crowd can be matched many times. On a tie the last object wins.

use super::{AreaRange, CocoDetection, CocoTruth, MOST_DETECTIONS, THRESHOLDS, thresholds};

/// One class in one picture.
pub struct PictureClass<'a> {
    pub truths: Vec<&'a CocoTruth>,
    /// By falling score, at most the maximum that counts.
    pub detections: Vec<&'a CocoDetection>,
    /// `[detections, truths]`
    overlaps: Vec<f64>,
}

/// The outcome of a detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchOutcome {
    Hit,
    FalseAlarm,
    Ignored,
}

/// The outcomes of one class in one picture for objects of one size.
pub struct Matches {
    /// `[THRESHOLDS, detections]`
    outcomes: Vec<MatchOutcome>,
    detections: usize,
    /// Objects that should be found.
    pub proper: usize,
}

impl Matches {
    pub fn outcome(&self, threshold: usize, detection: usize) -> MatchOutcome {
        self.outcomes[threshold * self.detections + detection]
    }

    /// Hits among the first `most`.
    pub fn hits(&self, threshold: usize, most: usize) -> usize {
        let outcomes = &self.outcomes[threshold * self.detections..][..self.detections];
        outcomes.iter().take(most).filter(|outcome| **outcome == MatchOutcome::Hit).count()
    }
}

/// For each class, its pictures by rising id.
pub fn pairs<'a>(
    classes: usize,
    truths: &'a [CocoTruth],
    detections: &'a [CocoDetection],
) -> Vec<Vec<PictureClass<'a>>> {
    let mut truths: Vec<&CocoTruth> = truths.iter().collect();
    let mut detections: Vec<&CocoDetection> = detections.iter().collect();
    // sorting is stable: ties stay in the order of the list
    truths.sort_by_key(|truth| (truth.class, truth.image));
    detections.sort_by(|a, b| (a.class, a.image).cmp(&(b.class, b.image)).then_with(|| b.score.total_cmp(&a.score)));
    let (mut truths, mut detections) = (&truths[..], &detections[..]);
    let mut pairs: Vec<Vec<PictureClass<'a>>> = (0..classes).map(|_| Vec::new()).collect();
    loop {
        let first = [
            truths.first().map(|truth| (truth.class, truth.image)),
            detections.first().map(|detection| (detection.class, detection.image)),
        ];
        let Some(place) = first.into_iter().flatten().min() else { return pairs };
        let own = truths.partition_point(|truth| (truth.class, truth.image) <= place);
        let found = detections.partition_point(|detection| (detection.class, detection.image) <= place);
        let most = found.min(MOST_DETECTIONS[2]);
        pairs[place.0].push(PictureClass::new(truths[..own].to_vec(), detections[..most].to_vec()));
        (truths, detections) = (&truths[own..], &detections[found..]);
    }
}

impl<'a> PictureClass<'a> {
    fn new(truths: Vec<&'a CocoTruth>, detections: Vec<&'a CocoDetection>) -> Self {
        let overlap = |detection: &&CocoDetection| {
            let bounds = detection.bounds;
            truths.iter().map(move |truth| overlap(bounds, truth)).collect::<Vec<f64>>()
        };
        Self { overlaps: detections.iter().flat_map(overlap).collect(), truths, detections }
    }

    /// Matches at every threshold.
    pub fn matches(&self, size: AreaRange) -> Matches {
        let is_ignored = |truth: &CocoTruth| truth.crowd || !size.contains(truth.area);
        // proper objects first
        let mut order: Vec<usize> = (0..self.truths.len()).collect();
        order.sort_by_key(|&truth| is_ignored(self.truths[truth]));
        let proper = order.iter().filter(|&&truth| !is_ignored(self.truths[truth])).count();
        let mut outcomes = Vec::with_capacity(THRESHOLDS * self.detections.len());
        let mut taken = vec![false; order.len()];
        for threshold in thresholds() {
            taken.fill(false);
            for (detection, overlaps) in self.detections.iter().zip(self.overlaps_by_detection()) {
                let mut best = threshold.min(1.0 - 1e-10);
                let mut chosen = None;
                for (place, &truth) in order.iter().enumerate() {
                    if taken[place] && !self.truths[truth].crowd {
                        continue;
                    }
                    if place >= proper && chosen.is_some_and(|chosen| chosen < proper) {
                        break;
                    }
                    if overlaps[truth] >= best {
                        (best, chosen) = (overlaps[truth], Some(place));
                    }
                }
                outcomes.push(match chosen {
                    Some(place) => {
                        taken[place] = true;
                        if place < proper { MatchOutcome::Hit } else { MatchOutcome::Ignored }
                    }
                    None if size.contains(detection.bounds[2] * detection.bounds[3]) => MatchOutcome::FalseAlarm,
                    None => MatchOutcome::Ignored,
                });
            }
        }
        Matches { outcomes, detections: self.detections.len(), proper }
    }

    fn overlaps_by_detection(&self) -> impl Iterator<Item = &[f64]> {
        let width = self.truths.len();
        (0..self.detections.len()).map(move |detection| &self.overlaps[detection * width..][..width])
    }
}

/// Intersection over union; for a crowd, intersection over the area of the detection.
pub fn overlap(detection: [f64; 4], truth: &CocoTruth) -> f64 {
    let ([x, y, w, h], [tx, ty, tw, th]) = (detection, truth.bounds);
    let width = (x + w).min(tx + tw) - x.max(tx);
    let height = (y + h).min(ty + th) - y.max(ty);
    if width <= 0.0 || height <= 0.0 {
        return 0.0;
    }
    let common = width * height;
    common / if truth.crowd { w * h } else { w * h + tw * th - common }
}
