//! Non-maximum suppression: of overlapping boxes, the one with the best score is kept.
//!
//! Greedy as torchvision's `nms`: by falling score, the earlier index first among equals, a box goes when its intersection
//! over union with one that stayed is greater than the threshold, computed in f32 in the same order of operations. Classes
//! are kept apart exactly, where torchvision shifts each class to a place of its own and so rounds coordinates.
//!
//! A candidate is compared with the kept boxes, a vector at a time, up to the first that overlaps too much.
//! Whether a division is needed is decided before it by a bound.

use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BTreeMap;

use crate::simd::{Vector, kernel};

/// The boxes (x1, y1, x2, y2) that stay, by falling score.
///
/// A score that is NaN is the lowest of all. A box with a NaN, or without area, overlaps with nothing.
///
/// # Panics
/// When there is not one score for each box, or the threshold is not from 0 to 1.
#[must_use]
pub fn nms(boxes: &[[f32; 4]], scores: &[f32], threshold: f64) -> Vec<usize> {
    check(boxes, scores, threshold);
    suppress(boxes, by_falling_score(scores, (0..boxes.len()).collect()), threshold)
}

/// The same for each class apart: boxes of different classes do not suppress each other.
///
/// # Panics
/// As [`nms`], and when there is not one class for each box.
#[must_use]
pub fn nms_by_class(boxes: &[[f32; 4]], scores: &[f32], classes: &[usize], threshold: f64) -> Vec<usize> {
    check(boxes, scores, threshold);
    assert_eq!(boxes.len(), classes.len(), "nms: one class for each box");
    let mut of_class: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for index in by_falling_score(scores, (0..boxes.len()).collect()) {
        of_class.entry(classes[index]).or_default().push(index);
    }
    let of_class: Vec<Vec<usize>> = of_class.into_values().collect();
    let kept = of_class.into_par_iter().flat_map_iter(|candidates| suppress(boxes, candidates, threshold));
    let mut kept: Vec<usize> = kept.collect();
    kept.sort_unstable();
    by_falling_score(scores, kept)
}

fn check(boxes: &[[f32; 4]], scores: &[f32], threshold: f64) {
    assert_eq!(boxes.len(), scores.len(), "nms: one score for each box");
    assert!((0.0..=1.0).contains(&threshold), "nms: a threshold of {threshold} is not from 0 to 1");
}

/// Sorts indices that are in rising order; equal scores stay in it, NaN comes last.
fn by_falling_score(scores: &[f32], mut indices: Vec<usize>) -> Vec<usize> {
    indices.sort_by(|&a, &b| {
        let (a, b) = (scores[a], scores[b]);
        b.partial_cmp(&a).unwrap_or_else(|| match (a.is_nan(), b.is_nan()) {
            (true, false) => Ordering::Greater,
            (false, true) => Ordering::Less,
            _ => Ordering::Equal,
        })
    });
    indices
}

/// Those of the candidates, best first, that stay.
fn suppress(boxes: &[[f32; 4]], mut candidates: Vec<usize>, threshold: f64) -> Vec<usize> {
    let threshold = round_down(threshold);
    let mut kept = Kept::default();
    candidates.retain(|&index| {
        let corners = boxes[index];
        let stays = !overlaps(&kept, corners, threshold);
        if stays {
            kept.push(corners);
        }
        stays
    });
    candidates
}

/// The largest f32 that is not greater: a quotient in f32 is greater than the one exactly when it is greater than the other.
fn round_down(threshold: f64) -> f32 {
    let nearest = threshold as f32;
    if f64::from(nearest) > threshold { nearest.next_down() } else { nearest }
}

/// The boxes that stayed, each coordinate in an array of its own.
#[derive(Default)]
struct Kept {
    corners: [Vec<f32>; 4],
    areas: Vec<f32>,
}

impl Kept {
    fn push(&mut self, corners: [f32; 4]) {
        self.corners.iter_mut().zip(corners).for_each(|(all, x)| all.push(x));
        self.areas.push(area(corners));
    }
}

#[inline(always)]
fn area([x1, y1, x2, y2]: [f32; 4]) -> f32 {
    (x2 - x1) * (y2 - y1)
}

kernel!(
    /// Whether the intersection over union with any of the kept boxes is greater than the threshold.
    fn overlaps<'a>(kept: &'a Kept, corners: [f32; 4], threshold: f32) -> bool = overlaps_body
);
#[inline(always)]
fn overlaps_body<V: Vector>(kept: &Kept, corners: [f32; 4], threshold: f32) -> bool {
    let own_area = V::splat(area(corners));
    let [x1, y1, x2, y2] = corners.map(V::splat);
    // a little below the threshold: rounding of the product cannot hide what the quotient would say
    let bound = V::splat(threshold * (1.0 - 1e-5));
    let [one, zero] = [1.0, 0.0].map(V::splat);
    for at in (0..kept.areas.len()).step_by(V::LANES) {
        let [left, top, right, bottom] = [0, 1, 2, 3].map(|side| V::get(&kept.corners[side], at));
        let width = right.min(x2).sub(left.max(x1)).max(zero);
        let height = bottom.min(y2).sub(top.max(y1)).max(zero);
        let intersection = width.mul(height);
        // lanes behind the last box are zero, as is their intersection with anything
        let union = V::get(&kept.areas, at).add(own_area).sub(intersection);
        // where one side is NaN, so are area and union, and neither comparison holds
        if intersection.sub(bound.mul(union)).positive(one, zero).max_lane() > 0.0 {
            let ratio = intersection.div(union);
            if ratio.sub(V::splat(threshold)).positive(one, zero).max_lane() > 0.0 {
                return true;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, noise};
    use crate::simd::{Path, with_path};

    /// Boxes that overlap a good deal, with scores of which many are equal.
    fn boxes(count: usize) -> (Vec<[f32; 4]>, Vec<f32>, Vec<usize>) {
        let numbers = noise(count * 6, 3);
        let boxes = numbers.chunks_exact(6).map(|n| {
            let (x, y) = (50.0 + 40.0 * n[0], 50.0 + 40.0 * n[1]);
            [x, y, x + 20.0 + 15.0 * n[2], y + 20.0 + 15.0 * n[3]]
        });
        let scores = numbers.chunks_exact(6).map(|n| (n[4] * 20.0).round() / 20.0);
        let classes = numbers.chunks_exact(6).map(|n| ((n[5] + 1.0) * 2.0) as usize);
        (boxes.collect(), scores.collect(), classes.collect())
    }

    #[test]
    fn every_path_keeps_what_the_definition_keeps() {
        for count in [0, 1, 2, 17, 300] {
            let (boxes, scores, _) = boxes(count);
            for threshold in [0.0, 0.3, 0.5, 0.7, 1.0] {
                let expected = naive::nms(&boxes, &scores, threshold);
                for &path in Path::available() {
                    let kept = with_path(path, || nms(&boxes, &scores, threshold));
                    assert_eq!(kept, expected, "{path:?}, {count} boxes, {threshold}");
                }
            }
        }
    }

    #[test]
    fn by_class_is_each_class_alone_in_the_order_of_scores() {
        let (boxes, scores, classes) = boxes(300);
        let mut expected = Vec::new();
        for class in 0..4 {
            let own: Vec<usize> = (0..300).filter(|&index| classes[index] == class).collect();
            let kept = nms(
                &own.iter().map(|&i| boxes[i]).collect::<Vec<_>>(),
                &own.iter().map(|&i| scores[i]).collect::<Vec<_>>(),
                0.4,
            );
            expected.extend(kept.iter().map(|&place| own[place]));
        }
        expected.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).unwrap().then(a.cmp(&b)));
        assert_eq!(nms_by_class(&boxes, &scores, &classes, 0.4), expected);
    }

    #[test]
    fn what_stays_stays_when_asked_again() {
        let (boxes, scores, _) = boxes(300);
        let kept = nms(&boxes, &scores, 0.5);
        let again = nms(
            &kept.iter().map(|&i| boxes[i]).collect::<Vec<_>>(),
            &kept.iter().map(|&i| scores[i]).collect::<Vec<_>>(),
            0.5,
        );
        assert_eq!(again, (0..kept.len()).collect::<Vec<_>>());
        assert!(kept.windows(2).all(|pair| scores[pair[0]] >= scores[pair[1]]));
    }

    #[test]
    fn an_overlap_that_equals_the_threshold_stays() {
        let boxes = [[0.0, 0.0, 10.0, 10.0], [0.0, 0.0, 10.0, 5.0], [0.0, 0.0, 10.0, 5.1]];
        assert_eq!(nms(&boxes, &[3.0, 2.0, 1.0], 0.5), [0, 1]);
        assert_eq!(nms(&boxes, &[3.0, 2.0, 1.0], 1.0), [0, 1, 2]);
    }

    #[test]
    fn nan_comes_last_and_overlaps_with_nothing() {
        let (nan, square) = (f32::NAN, [0.0, 0.0, 10.0, 10.0]);
        let boxes = [[nan; 4], square, square, [5.0, 5.0, 5.0, 5.0], [0.0, nan, 10.0, 10.0]];
        for &path in Path::available() {
            with_path(path, || {
                assert_eq!(nms(&boxes, &[0.5, nan, 0.1, 0.9, nan], 0.5), [3, 0, 2, 4]);
                assert_eq!(nms(&boxes, &[nan; 5], 0.5), [0, 1, 3, 4]);
            });
        }
    }
}
