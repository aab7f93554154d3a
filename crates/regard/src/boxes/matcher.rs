//! Matches anchors or regions with objects, by intersection over union.
//! Ren et al. 2015, "Faster R-CNN", arXiv:1506.01497.
//!
//! As torchvision's and detectron2's `Matcher`, with one difference: an object without overlap with any anchor is not matched.
//! There it would be matched with all anchors, since all share its best overlap of zero.

use serde::{Deserialize, Serialize};

use super::{Corners, pairwise_iou};

/// The thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    /// IoU from which on a box is positive.
    pub object: f32,
    /// IoU below which a box is background.
    pub background: f32,
    /// Whether the best anchors of an object are matched regardless of their overlap: all that reach the best one, each with
    /// the object that the anchor itself overlaps most, which may be another.
    pub best_of_object: bool,
}

/// The match of an anchor or region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    /// The object with this index.
    Object(usize),
    Background,
    /// Between the thresholds: ignored.
    Ignored,
}

impl Match {
    /// The object, if there is one.
    #[must_use]
    pub const fn object(self) -> Option<usize> {
        match self {
            Self::Object(object) => Some(object),
            Self::Background | Self::Ignored => None,
        }
    }
}

impl Matcher {
    /// One match for each box.
    #[must_use]
    pub fn matches(&self, objects: &[Corners], boxes: &[Corners]) -> Vec<Match> {
        if objects.is_empty() {
            return vec![Match::Background; boxes.len()];
        }
        let overlaps = pairwise_iou(objects, boxes);
        let mut best = vec![(0, f32::NEG_INFINITY); boxes.len()];
        for (object, row) in overlaps.chunks_exact(boxes.len().max(1)).enumerate() {
            for (best, &overlap) in best.iter_mut().zip(row) {
                if overlap > best.1 {
                    *best = (object, overlap);
                }
            }
        }
        let judged = |&(object, overlap): &(usize, f32)| match overlap {
            _ if overlap >= self.object => Match::Object(object),
            // NaN counts as no overlap
            _ if overlap >= self.background => Match::Ignored,
            _ => Match::Background,
        };
        let mut matches: Vec<Match> = best.iter().map(judged).collect();
        if self.best_of_object {
            for row in overlaps.chunks_exact(boxes.len().max(1)) {
                let highest = row.iter().copied().fold(0.0, f32::max);
                if highest > 0.0 {
                    let reached = row.iter().enumerate().filter(|(_, overlap)| **overlap == highest);
                    reached.for_each(|(index, _)| matches[index] = Match::Object(best[index].0));
                }
            }
        }
        matches
    }
}
