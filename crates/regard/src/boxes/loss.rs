//! Losses of detectors: focal loss, generalised IoU of pairs, smooth L1. Fused on the CPU if that is faster.

use burn::tensor::activation::{log_sigmoid, sigmoid};
use burn::tensor::{Tensor, TensorData};
use regard_kernels::boxes as kernels;
use regard_kernels::focal::{Focal, FocalTarget};

use super::{Corners, to_tensor};
use crate::fused::{self, Kernel, Saved};

/// The sigmoid focal loss of rows of logits `[R, K]`, summed; arXiv:1708.02002.
///
/// A row has a target (a class, background, or ignored) and a weight, such as one over the number of objects of its picture.
///
/// # Panics
/// When there is not one target and one weight for each row, or a target is not among the logits.
pub fn sigmoid_focal(
    logits: Tensor<2>,
    targets: Vec<FocalTarget>,
    weights: Vec<f32>,
    [alpha, gamma]: [f32; 2],
) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    assert!(rows == targets.len(), "sigmoid_focal: {rows} rows of logits, {} targets", targets.len());
    assert!(rows == weights.len(), "sigmoid_focal: {rows} rows of logits, {} weights", weights.len());
    if fused::runs_on(&logits) {
        let kernel = Focal { classes, targets, weights, alpha, gamma };
        return fused::apply(kernel, [logits.into_dispatch()], [1]);
    }
    plain_focal(logits, &targets, &weights, [alpha, gamma])
}

/// The definition.
fn plain_focal(logits: Tensor<2>, targets: &[FocalTarget], weights: &[f32], [alpha, gamma]: [f32; 2]) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    // 1 for a target, -1 for other classes: the logit of the right answer
    let mut signs = vec![-1.0f32; rows * classes];
    let mut factors = vec![0.0f32; rows * classes];
    for (row, (target, weight)) in targets.iter().zip(weights).enumerate() {
        let place = row * classes;
        if *target != FocalTarget::Ignored {
            factors[place..place + classes].fill(weight * (1.0 - alpha));
        }
        if let FocalTarget::Class(class) = target {
            signs[place + *class as usize] = 1.0;
            factors[place + *class as usize] = weight * alpha;
        }
    }
    let device = logits.device();
    let tensor = |values: Vec<f32>| Tensor::<2>::from_data(TensorData::new(values, [rows, classes]), &device);
    let right = logits * tensor(signs);
    let wrong = sigmoid(right.clone().neg());
    (log_sigmoid(right).neg() * wrong.powf_scalar(gamma) * tensor(factors)).sum()
}

impl Kernel<1> for Focal {
    fn forward(&self, [logits]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        let (loss, gradient) = self.loss_and_gradient(logits);
        (vec![loss], gradient)
    }
    fn backward(&self, _: [&[f32]; 1], saved: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        [saved.extra.iter().map(|gradient| gradient * grad[0]).collect()]
    }
}

/// Generalised intersection over union of `[N, 4]` with N other boxes: `[N]`. `epsilon` is added to the denominators.
///
/// # Panics
/// When they are not in pairs.
pub fn giou(boxes: Tensor<2>, others: &[Corners], epsilon: f32) -> Tensor<1> {
    let [count, sides] = boxes.dims();
    assert!(sides == 4 && count == others.len(), "giou: {count} boxes of {sides} numbers, {} others", others.len());
    if fused::runs_on(&boxes) {
        let kernel = Giou { others: others.to_vec(), epsilon };
        return fused::apply(kernel, [boxes.into_dispatch()], [count]);
    }
    plain_giou(boxes, others, epsilon)
}

fn plain_giou(boxes: Tensor<2>, others: &[Corners], epsilon: f32) -> Tensor<1> {
    let others = to_tensor(others, &boxes.device());
    let low = |tensor: &Tensor<2>| tensor.clone().narrow(1, 0, 2);
    let high = |tensor: &Tensor<2>| tensor.clone().narrow(1, 2, 2);
    let area = |sides: Tensor<2>| -> Tensor<2> { sides.clone().narrow(1, 0, 1) * sides.narrow(1, 1, 1) };
    let common = (high(&boxes).min_pair(high(&others)) - low(&boxes).max_pair(low(&others))).clamp_min(0.0);
    let hull = area(high(&boxes).max_pair(high(&others)) - low(&boxes).min_pair(low(&others)));
    let common = area(common);
    let union = area(high(&boxes) - low(&boxes)) + area(high(&others) - low(&others)) - common.clone();
    let giou = common / union.clone().add_scalar(epsilon) - (hull.clone() - union) / hull.add_scalar(epsilon);
    giou.squeeze_dim(1)
}

#[derive(Clone, Debug)]
struct Giou {
    others: Vec<Corners>,
    epsilon: f32,
}

impl Kernel<1> for Giou {
    fn forward(&self, [boxes]: [&[f32]; 1]) -> (Vec<f32>, Vec<f32>) {
        (kernels::giou(boxes.as_chunks().0, &self.others, self.epsilon), Vec::new())
    }
    fn backward(&self, [boxes]: [&[f32]; 1], _: Saved, grad: &[f32]) -> [Vec<f32>; 1] {
        let gradient = kernels::giou_backward(boxes.as_chunks().0, &self.others, self.epsilon, grad);
        [gradient.into_flattened()]
    }
}

/// Smooth L1, element-wise: `d^2 / (2 beta)` below `beta`, `|d| - beta / 2` beyond; 0 is L1.
pub fn smooth_l1<const D: usize>(a: Tensor<D>, b: Tensor<D>, beta: f64) -> Tensor<D> {
    let distance = (a - b).abs();
    if beta == 0.0 {
        return distance;
    }
    let near = distance.clone().clamp_max(beta);
    near.clone() * near.clone().mul_scalar(0.5 / beta) + (distance - near)
}

/// Binary cross-entropy from logits, element-wise; targets are 1 or 0.
pub fn binary_cross_entropy<const D: usize>(logits: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
    // ln(1 + e^x) - t x
    log_sigmoid(logits.clone().neg()).neg() - logits * targets
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, assert_gradients_are_differences, noise, random};

    fn targets() -> Vec<FocalTarget> {
        vec![FocalTarget::Class(2), FocalTarget::Background, FocalTarget::Ignored, FocalTarget::Class(0)]
    }

    #[test]
    fn the_plain_focal_loss_is_the_fused_one() {
        let logits = random([4, 3], 1).mul_scalar(3.0);
        let weights = vec![1.0, 0.5, 2.0, 0.25];
        let fused = sigmoid_focal(logits.clone(), targets(), weights.clone(), [0.25, 2.0]);
        assert_close(&plain_focal(logits, &targets(), &weights, [0.25, 2.0]), &fused, 1e-5);
        assert_gradients_are_differences(&[("logits", noise(12, 1))], |p| {
            sigmoid_focal(p[0].clone().reshape([4, 3]), targets(), weights.clone(), [0.25, 2.0])
        });
        assert_gradients_are_differences(&[("logits", noise(12, 1))], |p| {
            plain_focal(p[0].clone().reshape([4, 3]), &targets(), &weights, [0.25, 2.0])
        });
    }

    #[test]
    fn the_plain_overlap_is_the_fused_one() {
        let boxes = [[0.0, 0.0, 4.0, 3.0], [1.0, 1.0, 2.0, 5.0], [9.0, 9.0, 12.0, 10.0]];
        let others = [[1.0, 1.0, 5.0, 5.0], [0.0, 0.0, 3.0, 3.0], [0.0, 0.0, 1.0, 1.0]];
        let boxes = to_tensor(&boxes, &crate::device::cpu());
        assert_close(&plain_giou(boxes.clone(), &others, 1e-7), &giou(boxes.clone(), &others, 1e-7), 1e-6);
        let flat = boxes.into_data().iter::<f32>().collect::<Vec<_>>();
        for run in [giou, plain_giou] {
            assert_gradients_are_differences(&[("boxes", flat.clone())], |p| {
                run(p[0].clone().reshape([3, 4]), &others, 0.0)
            });
        }
    }

    #[test]
    fn certain_answers_have_finite_losses() {
        let logits = Tensor::<1>::from_data([60.0, -60.0, 60.0, -60.0], &crate::device::cpu());
        let targets = Tensor::<1>::from_data([1.0, 0.0, 0.0, 1.0], &crate::device::cpu());
        let expected = Tensor::<1>::from_data([0.0, 0.0, 60.0, 60.0], &crate::device::cpu());
        assert_close(&binary_cross_entropy(logits, targets), &expected, 1e-5);
    }
}
