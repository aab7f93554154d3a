//! Pairs of boxes: intersection over union, generalised IoU with its gradient, and DETR's matching cost.
//!
//! GIoU is arXiv:1902.09630: intersection over union, less the fraction of the hull that neither box covers. Boxes are corners
//! x1, y1, x2, y2 unless a name says otherwise. Formulas are those of torchvision's `box_iou` and `generalized_box_iou`:
//! without a small number in the denominators, so that two boxes without area give NaN.

use crate::elementwise::{rows_per_task, written};
use crate::simd::{Vector, kernel};
use crate::size;
use crate::uninit::UninitWriter;

/// Intersection over union of every pair: `[N, M]`.
#[must_use]
pub fn pairwise_iou(a: &[[f32; 4]], b: &[[f32; 4]]) -> Vec<f32> {
    pairwise(a, b, iou_row)
}

/// Generalised intersection over union of every pair: `[N, M]`.
#[must_use]
pub fn pairwise_giou(a: &[[f32; 4]], b: &[[f32; 4]]) -> Vec<f32> {
    pairwise(a, b, giou_row)
}

fn pairwise(a: &[[f32; 4]], b: &[[f32; 4]], row: fn([f32; 4], &Columns, &mut UninitWriter)) -> Vec<f32> {
    let (len, task) = (size::product("boxes", &[a.len(), b.len()]), rows_per_task(b.len()));
    let b = Columns::new(b);
    written(len, task * b.areas.len(), |index, out| {
        a[index * task..].iter().take(task).for_each(|&a| row(a, &b, out));
    })
}

/// Generalised intersection over union of `a[i]` and `b[i]`; `epsilon` is added to both denominators.
#[must_use]
pub fn giou(a: &[[f32; 4]], b: &[[f32; 4]], epsilon: f32) -> Vec<f32> {
    assert_eq!(a.len(), b.len(), "giou: boxes in pairs");
    a.iter().zip(b).map(|(a, b)| giou_of(*a, *b, epsilon).0 as f32).collect()
}

/// The gradient of [`giou`] by the boxes `a`, for a gradient of its values.
#[must_use]
pub fn giou_backward(a: &[[f32; 4]], b: &[[f32; 4]], epsilon: f32, grad: &[f32]) -> Vec<[f32; 4]> {
    assert!(a.len() == b.len() && a.len() == grad.len(), "giou: boxes and gradients in pairs");
    let pairs = a.iter().zip(b).zip(grad);
    pairs.map(|((a, b), &grad)| giou_of(*a, *b, epsilon).1.map(|slope| slope as f32 * grad)).collect()
}

/// Value and derivatives by the corners of `a`. Where two corners are equal, each has half of the derivative, as in PyTorch.
fn giou_of(a: [f32; 4], b: [f32; 4], epsilon: f32) -> (f64, [f64; 4]) {
    let ([a, b], epsilon) = ([a, b].map(|corners| corners.map(f64::from)), f64::from(epsilon));
    // sides of a box, of the intersection and of the hull; and the derivatives of the last two by the corners of `a`
    let own = [a[2] - a[0], a[3] - a[1]];
    let other = [b[2] - b[0], b[3] - b[1]];
    let common = [0, 1].map(|axis| smaller(a[axis + 2], b[axis + 2]).0 - larger(a[axis], b[axis]).0);
    let hull = [0, 1].map(|axis| larger(a[axis + 2], b[axis + 2]).0 - smaller(a[axis], b[axis]).0);
    let inside = common.map(|side| if side < 0.0 { 0.0 } else { side });
    let (intersection, hull_area) = (inside[0] * inside[1], hull[0] * hull[1]);
    let union = own[0] * own[1] + other[0] * other[1] - intersection;
    let value = intersection / (union + epsilon) - (hull_area - union) / (hull_area + epsilon);
    let slopes = std::array::from_fn(|corner| {
        let (axis, high) = (corner % 2, corner >= 2);
        let (x, y, sign) = (a[corner], b[corner], if high { 1.0 } else { -1.0 });
        let (shrinks, grows) = if high { (smaller(x, y).1, larger(x, y).1) } else { (larger(x, y).1, smaller(x, y).1) };
        let in_common = if common[axis] < 0.0 { 0.0 } else { sign * shrinks * inside[1 - axis] };
        let in_hull = sign * grows * hull[1 - axis];
        let in_union = sign * own[1 - axis] - in_common;
        let of_ratio = in_common / (union + epsilon) - intersection * in_union / (union + epsilon).powi(2);
        let of_rest = (in_hull - in_union) / (hull_area + epsilon)
            - (hull_area - union) * in_hull / (hull_area + epsilon).powi(2);
        of_ratio - of_rest
    });
    (value, slopes)
}

/// The larger one, and its derivative by the first; NaN if either is.
fn larger(a: f64, b: f64) -> (f64, f64) {
    if a == b {
        (a, 0.5)
    } else if a > b || a.is_nan() {
        (a, 1.0)
    } else {
        (b, 0.0)
    }
}

fn smaller(a: f64, b: f64) -> (f64, f64) {
    let (value, slope) = larger(-a, -b);
    (-value, slope)
}

/// Weights of the three parts of DETR's matching cost; arXiv:2005.12872.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostWeights {
    /// Of the probability of the object's class.
    pub class: f32,
    /// Of the distance of centres and sides.
    pub l1: f32,
    pub giou: f32,
}

impl CostWeights {
    /// The paper's weights.
    pub const DETR: Self = Self { class: 1.0, l1: 5.0, giou: 2.0 };

    /// `l1 |q - o| - class p(o) - giou GIoU(q, o)` of every query and object of an image: `[N, M]`.
    ///
    /// `probabilities` are `[N, classes]`; boxes of queries and objects are cx, cy, w, h.
    ///
    /// # Panics
    /// When lengths differ, or an object's class is not among the classes.
    #[must_use]
    pub fn matrix(
        &self,
        probabilities: &[f32],
        classes: usize,
        queries: &[[f32; 4]],
        objects: &[(usize, [f32; 4])],
    ) -> Vec<f32> {
        let len = size::product("detr cost", &[queries.len(), classes]);
        assert_eq!(probabilities.len(), len, "detr cost: length of the probabilities");
        let known = objects.iter().all(|(class, _)| *class < classes);
        assert!(known, "detr cost: an object's class is not among {classes}");
        let centres = Columns::new(&objects.iter().map(|(_, bounds)| *bounds).collect::<Vec<_>>());
        let corners = Columns::new(&objects.iter().map(|(_, bounds)| corners(*bounds)).collect::<Vec<_>>());
        let (count, task) = (objects.len(), rows_per_task(objects.len()));
        written(size::product("detr cost", &[queries.len(), count]), task * count, |index, out| {
            let mut chances = vec![0.0; count];
            let rows = queries.iter().zip(probabilities.chunks_exact(classes.max(1)));
            for (query, row) in rows.skip(index * task).take(task) {
                chances.iter_mut().zip(objects).for_each(|(chance, (class, _))| *chance = row[*class]);
                cost_row(*self, *query, &chances, &centres, &corners, out);
            }
        })
    }
}

/// cx, cy, w, h to x1, y1, x2, y2.
fn corners([cx, cy, w, h]: [f32; 4]) -> [f32; 4] {
    [cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h]
}

/// Boxes, each coordinate in an array of its own.
struct Columns {
    sides: [Vec<f32>; 4],
    areas: Vec<f32>,
}

impl Columns {
    fn new(boxes: &[[f32; 4]]) -> Self {
        let sides = [0, 1, 2, 3].map(|side| boxes.iter().map(|corners| corners[side]).collect());
        Self { sides, areas: boxes.iter().map(|[x1, y1, x2, y2]| (x2 - x1) * (y2 - y1)).collect() }
    }

    /// Some boxes from `at` on.
    #[inline(always)]
    fn get<V: Vector>(&self, at: usize) -> [V; 4] {
        [0, 1, 2, 3].map(|side| V::get(&self.sides[side], at))
    }
}

/// `[intersection, union]` with some boxes. A NaN anywhere makes the union NaN.
#[inline(always)]
fn overlap<V: Vector>([x1, y1, x2, y2]: [V; 4], [a1, b1, a2, b2]: [V; 4], area: V) -> [V; 2] {
    let width = V::zero().max(x2.min(a2).sub(x1.max(a1)));
    let height = V::zero().max(y2.min(b2).sub(y1.max(b1)));
    let intersection = width.mul(height);
    [intersection, x2.sub(x1).mul(y2.sub(y1)).add(area).sub(intersection)]
}

#[inline(always)]
fn generalised<V: Vector>(own: [V; 4], other: [V; 4], area: V) -> V {
    let [intersection, union] = overlap(own, other, area);
    let width = own[2].max(other[2]).sub(own[0].min(other[0]));
    let height = own[3].max(other[3]).sub(own[1].min(other[1]));
    let hull = width.mul(height);
    intersection.div(union).sub(hull.sub(union).div(hull))
}

kernel!(fn iou_row<'a, 'b>(own: [f32; 4], others: &'a Columns, out: &'a mut UninitWriter<'b>) = iou_row_body);
#[inline(always)]
fn iou_row_body<V: Vector>(own: [f32; 4], others: &Columns, out: &mut UninitWriter) {
    let (own, count, mut out) = (own.map(V::splat), others.areas.len(), out.local());
    for at in (0..count).step_by(V::LANES) {
        let [intersection, union] = overlap(own, others.get(at), V::get(&others.areas, at));
        out.push(intersection.div(union), count - at);
    }
    out.finish();
}

kernel!(fn giou_row<'a, 'b>(own: [f32; 4], others: &'a Columns, out: &'a mut UninitWriter<'b>) = giou_row_body);
#[inline(always)]
fn giou_row_body<V: Vector>(own: [f32; 4], others: &Columns, out: &mut UninitWriter) {
    let (own, count, mut out) = (own.map(V::splat), others.areas.len(), out.local());
    for at in (0..count).step_by(V::LANES) {
        out.push(generalised(own, others.get(at), V::get(&others.areas, at)), count - at);
    }
    out.finish();
}

kernel!(fn cost_row<'a, 'b>(weights: CostWeights, query: [f32; 4], chances: &'a [f32], centres: &'a Columns, boxes: &'a Columns, out: &'a mut UninitWriter<'b>) = cost_row_body);
#[inline(always)]
fn cost_row_body<V: Vector>(
    weights: CostWeights,
    query: [f32; 4],
    chances: &[f32],
    centres: &Columns,
    boxes: &Columns,
    out: &mut UninitWriter,
) {
    let (own, query) = (corners(query).map(V::splat), query.map(V::splat));
    let (count, mut out) = (chances.len(), out.local());
    for at in (0..count).step_by(V::LANES) {
        let mut distance = V::zero();
        for (own, other) in query.into_iter().zip(centres.get::<V>(at)) {
            let difference = own.sub(other);
            distance = distance.add(difference.max(V::zero().sub(difference)));
        }
        let giou = generalised(own, boxes.get(at), V::get(&boxes.areas, at));
        let cost = V::splat(weights.l1).mul(distance);
        let cost = cost.sub(V::splat(weights.class).mul(V::get(chances, at)));
        out.push(cost.sub(V::splat(weights.giou).mul(giou)), count - at);
    }
    out.finish();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::{self, assert_close, assert_differences, assert_same_on_threads, noise};
    use crate::simd::{Path, with_path};

    /// Boxes of some size; one lies inside another, one far away.
    fn boxes(count: usize, seed: u64) -> Vec<[f32; 4]> {
        let mut boxes: Vec<[f32; 4]> = noise(count * 4, seed)
            .chunks_exact(4)
            .map(|n| [n[0], n[1], n[0] + 0.9 + 0.8 * n[2], n[1] + 0.9 + 0.8 * n[3]])
            .collect();
        if count > 2 {
            boxes[1] = [-9.0, -9.0, 9.0, 9.0];
            boxes[2] = [20.0, 20.0, 21.0, 22.0];
        }
        boxes
    }

    fn of_pairs(a: &[[f32; 4]], b: &[[f32; 4]], f: impl Fn([f64; 4], [f64; 4]) -> f64) -> Vec<f64> {
        a.iter().flat_map(|a| b.iter().map(|b| f(a.map(f64::from), b.map(f64::from))).collect::<Vec<_>>()).collect()
    }

    #[test]
    fn every_path_equals_the_definition() {
        for (n, m) in [(0, 3), (3, 0), (1, 1), (7, 16), (5, 37)] {
            let (a, b) = (boxes(n, 1), boxes(m, 2));
            for &path in Path::available() {
                with_path(path, || {
                    assert_close(&pairwise_iou(&a, &b), &of_pairs(&a, &b, naive::iou), 1e-6);
                    assert_close(&pairwise_giou(&a, &b), &of_pairs(&a, &b, |a, b| naive::giou(a, b, 0.0)), 1e-6);
                });
            }
        }
    }

    #[test]
    fn a_box_with_itself_is_one_and_far_boxes_go_to_minus_one() {
        let own = boxes(20, 3);
        for (index, row) in pairwise_giou(&own, &own).chunks(20).enumerate() {
            assert!((row[index] - 1.0).abs() < 1e-6 && row.iter().all(|x| (-1.0..=1.0 + 1e-6).contains(x)));
        }
        assert!(pairwise_giou(&[[0.0, 0.0, 1.0, 1.0]], &[[1e4, 1e4, 1e4 + 1.0, 1e4 + 1.0]])[0] < -0.999);
        assert_eq!(giou(&own, &own, 0.0).len(), 20);
    }

    #[test]
    fn pairs_equal_the_definition_and_its_differences() {
        let (a, b, grad) = (boxes(30, 1), boxes(30, 2), noise(30, 3));
        for epsilon in [0.0, 1e-2] {
            let of = |a: &[f64]| -> Vec<f64> {
                let pairs = a.chunks_exact(4).zip(&b);
                let value = |(a, b): (&[f64], &[f32; 4])| {
                    naive::giou([a[0], a[1], a[2], a[3]], b.map(f64::from), f64::from(epsilon))
                };
                pairs.map(value).collect()
            };
            let flat = a.as_flattened();
            assert_close(&giou(&a, &b, epsilon), &of(&naive::wide(flat)), 1e-6);
            let slopes = giou_backward(&a, &b, epsilon, &grad);
            assert_differences(&[flat], &[slopes.as_flattened()], &grad, |p| of(&p[0]));
        }
    }

    #[test]
    fn equal_boxes_are_at_the_top_and_boxes_apart_are_drawn_together() {
        let own = [[0.0, 0.0, 2.0, 1.0]];
        assert_eq!(giou_backward(&own, &own, 0.0, &[1.0]), [[0.0; 4]]);
        let [slopes] = giou_backward(&own, &[[5.0, 0.0, 7.0, 1.0]], 0.0, &[1.0])[..] else { panic!("one box") };
        assert!(slopes[2] > 0.0, "{slopes:?}");
    }

    #[test]
    fn the_cost_of_detr_is_its_formula_on_every_path() {
        let centred = |seed: u64, count: usize| -> Vec<[f32; 4]> {
            let noise = noise(count * 4, seed);
            noise.chunks_exact(4).map(|n| [n[0], n[1], n[2].abs() + 0.1, n[3].abs() + 0.1]).collect()
        };
        let (queries, classes) = (centred(1, 13), 4);
        let objects: Vec<_> = centred(2, 21).into_iter().enumerate().map(|(i, bounds)| (i % classes, bounds)).collect();
        let chances: Vec<f32> = noise(13 * classes, 3).iter().map(|x| x.abs()).collect();
        let expected: Vec<f64> = (0..13 * 21)
            .map(|at| {
                let ((class, object), query) = (objects[at % 21], at / 21);
                let chance = f64::from(chances[query * classes + class]);
                let wide = |bounds: [f32; 4]| bounds.map(f64::from);
                naive::detr_cost(&CostWeights::DETR, chance, wide(queries[query]), wide(object))
            })
            .collect();
        for &path in Path::available() {
            with_path(path, || {
                assert_close(&CostWeights::DETR.matrix(&chances, classes, &queries, &objects), &expected, 1e-5);
            });
        }
        assert!(CostWeights::DETR.matrix(&chances, classes, &queries, &[]).is_empty());
    }

    #[test]
    fn nan_is_seen() {
        let (good, bad) = ([[0.0, 0.0, 1.0, 1.0]], [[0.0, f32::NAN, 1.0, 1.0]]);
        for &path in Path::available() {
            with_path(path, || {
                for (a, b) in [(&good, &bad), (&bad, &good)] {
                    assert!(pairwise_iou(a, b)[0].is_nan() && pairwise_giou(a, b)[0].is_nan());
                    assert!(giou(a, b, 0.0)[0].is_nan());
                    assert!(CostWeights::DETR.matrix(&[0.5], 1, a, &[(0, b[0])])[0].is_nan());
                }
            });
        }
    }

    #[test]
    fn one_thread_and_two_give_the_same_bytes() {
        let (a, b) = (boxes(300, 1), boxes(200, 2));
        assert_same_on_threads(|| vec![pairwise_iou(&a, &b), pairwise_giou(&a, &b)]);
    }
}
