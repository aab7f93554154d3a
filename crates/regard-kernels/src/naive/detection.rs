//! The operators of detection by their definition.

use crate::boxes::CostWeights;
use crate::focal::{Focal, FocalTarget};
use crate::roi_align::{Regions, RoiAlign, SamplingPoints};

/// Every point of every cell, read between its four pixels.
#[must_use]
pub fn roi_align(case: &RoiAlign, features: &[f64], shape: [usize; 4], regions: Regions) -> Vec<f64> {
    let [_, channels, height, width] = shape;
    let [rows, columns] = case.output;
    let offset = if case.aligned { 0.5 } else { 0.0 };
    let mut out = Vec::new();
    for (image, corners) in regions.images.iter().zip(regions.corners) {
        let [x1, y1, x2, y2] = corners.map(|x| f64::from(x) * f64::from(case.spatial_scale) - offset);
        let smallest = if case.aligned { f64::NEG_INFINITY } else { 1.0 };
        let cell = [(y2 - y1).max(smallest) / rows as f64, (x2 - x1).max(smallest) / columns as f64];
        let points = cell.map(|side| match case.points {
            SamplingPoints::Fixed(points) => points,
            SamplingPoints::Adaptive => side.ceil().max(0.0) as usize,
        });
        for channel in 0..channels {
            let plane = &features[(image * channels + channel) * height * width..][..height * width];
            for at in 0..rows * columns {
                let mut sum = 0.0;
                for point in 0..points[0] * points[1] {
                    let place = |start: f64, cell: f64, index: usize, point: usize, points: usize| {
                        start + cell * (index as f64 + (point as f64 + 0.5) / points as f64)
                    };
                    let y = place(y1, cell[0], at / columns, point / points[1], points[0]);
                    let x = place(x1, cell[1], at % columns, point % points[1], points[1]);
                    sum += between(plane, [height, width], [y, x]);
                }
                out.push(sum / (points[0] * points[1]).max(1) as f64);
            }
        }
    }
    out
}

/// A plane between its pixels, zero more than a pixel outside.
fn between(plane: &[f64], [height, width]: [usize; 2], [y, x]: [f64; 2]) -> f64 {
    if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
        return 0.0;
    }
    let [y, x] = [y.clamp(0.0, height as f64 - 1.0), x.clamp(0.0, width as f64 - 1.0)];
    let mut sum = 0.0;
    for row in 0..height {
        for column in 0..width {
            let weight = |place: f64, pixel: usize| (1.0 - (place - pixel as f64).abs()).max(0.0);
            sum += weight(y, row) * weight(x, column) * plane[row * width + column];
        }
    }
    sum
}

/// Focal loss by `-alpha_t (1 - p_t)^gamma ln p_t`, for logits that are not extreme.
#[must_use]
pub fn focal(case: &Focal, logits: &[f64]) -> f64 {
    let (alpha, gamma) = (f64::from(case.alpha), f64::from(case.gamma));
    let rows = logits.chunks(case.classes).zip(&case.targets).zip(&case.weights);
    rows.map(|((row, target), weight)| {
        let of_class = |(class, logit): (usize, &f64)| {
            let chance = 1.0 / (1.0 + (-logit).exp());
            let is_target = *target == FocalTarget::Class(class as u32);
            let (chance, alpha) = if is_target { (chance, alpha) } else { (1.0 - chance, 1.0 - alpha) };
            -alpha * (1.0 - chance).powf(gamma) * chance.ln()
        };
        if *target == FocalTarget::Ignored {
            return 0.0;
        }
        f64::from(*weight) * row.iter().enumerate().map(of_class).sum::<f64>()
    })
    .sum()
}

fn area([x1, y1, x2, y2]: [f64; 4]) -> f64 {
    (x2 - x1) * (y2 - y1)
}

/// `[intersection, union]` of two boxes by their corners.
fn overlap(a: [f64; 4], b: [f64; 4]) -> [f64; 2] {
    let sides = [0, 1].map(|axis| (a[axis + 2].min(b[axis + 2]) - a[axis].max(b[axis])).max(0.0));
    let intersection = sides[0] * sides[1];
    [intersection, area(a) + area(b) - intersection]
}

/// Intersection over union.
#[must_use]
pub fn iou(a: [f64; 4], b: [f64; 4]) -> f64 {
    let [intersection, union] = overlap(a, b);
    intersection / union
}

/// Generalised intersection over union, arXiv:1902.09630; `epsilon` is added to both denominators.
#[must_use]
pub fn giou(a: [f64; 4], b: [f64; 4], epsilon: f64) -> f64 {
    let [intersection, union] = overlap(a, b);
    let hull = area([a[0].min(b[0]), a[1].min(b[1]), a[2].max(b[2]), a[3].max(b[3])]);
    intersection / (union + epsilon) - (hull - union) / (hull + epsilon)
}

/// DETR's matching cost of a query and an object: boxes are cx, cy, w, h.
#[must_use]
pub fn detr_cost(weights: &CostWeights, chance: f64, query: [f64; 4], object: [f64; 4]) -> f64 {
    let corners = |[cx, cy, w, h]: [f64; 4]| [cx - w / 2.0, cy - h / 2.0, cx + w / 2.0, cy + h / 2.0];
    let l1: f64 = query.iter().zip(object).map(|(a, b)| (a - b).abs()).sum();
    let giou = giou(corners(query), corners(object), 0.0);
    f64::from(weights.l1) * l1 - f64::from(weights.class) * chance - f64::from(weights.giou) * giou
}

/// Non-maximum suppression: the best box that is left stays, and takes away what overlaps with it.
#[must_use]
pub fn nms(boxes: &[[f32; 4]], scores: &[f32], threshold: f64) -> Vec<usize> {
    let mut left: Vec<usize> = (0..boxes.len()).collect();
    left.sort_by(|&a, &b| scores[b].partial_cmp(&scores[a]).expect("no score is NaN"));
    let mut kept = Vec::new();
    while !left.is_empty() {
        let best = left.remove(0);
        kept.push(best);
        let wide = |index: usize| boxes[index].map(f64::from);
        left.retain(|&other| {
            let overlap = iou(wide(best), wide(other));
            overlap.is_nan() || overlap <= threshold
        });
    }
    kept
}
