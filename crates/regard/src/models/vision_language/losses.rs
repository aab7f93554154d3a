//! The losses of models of vision and language. Each loss is a **sum**, so that it can be added over batches and processes; papers
//! divide it by different counts:
//!
//! | | UNITER | `ViLBERT` | LXMERT | `VisualBERT` |
//! |---|---|---|---|---|
//! | masked words | words | words | words | words |
//! | features of regions | regions * F, squared | | all regions * F, smooth L1 | |
//! | classes of regions | regions; KL: regions * C | regions, KL | all regions | |
//! | answers | BCE, texts | BCE, texts | BCE, texts | KL, texts |
//! | word-region alignment | texts | | | |
//!
//! Logits and classes are [`cross_entropy`](crate::function::cross_entropy).

use burn::tensor::{Tensor, activation};

use crate::function::log_softmax;

/// `sum (prediction - target)^2`
pub fn squared_error(prediction: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    (prediction - target).square().sum()
}

/// `sum d^2 / 2` where a difference `d` is below 1, `|d| - 1/2` elsewhere.
pub fn smooth_l1(prediction: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let distance = (prediction - target).abs();
    let small = distance.clone().clamp_max(1.0);
    // d^2/2 up to 1, then a line of slope 1
    (small.clone() * (distance - small / 2.0)).sum()
}

/// `sum t (log t - log softmax)`: how far predicted classes are from soft ones.
pub fn divergence(logits: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    let own = target.clone() * target.clone().clamp_min(1e-30).log();
    (own - target * log_softmax(logits)).sum()
}

/// Binary cross-entropy of each answer by itself, with soft scores from 0 to 1, summed.
pub fn binary_cross_entropy(logits: Tensor<2>, target: Tensor<2>) -> Tensor<1> {
    // log(1 + exp(x)) - t x
    (activation::softplus(logits.clone(), 1.0) - logits * target).sum()
}

/// Word-region alignment: the transport cost of matching texts and pictures, minus that of the others.
///
/// # Panics
/// When there are not as many flags as costs.
pub fn transport_loss(distance: Tensor<1>, matched: &[bool]) -> Tensor<1> {
    assert!(
        distance.dims()[0] == matched.len(),
        "transport_loss: {} costs, {} flags",
        distance.dims()[0],
        matched.len()
    );
    let signs: Vec<f32> = matched.iter().map(|matched| if *matched { 1.0 } else { -1.0 }).collect();
    let signs = Tensor::<1>::from_floats(signs.as_slice(), &distance.device());
    (distance * signs).sum()
}

/// The best class of each soft label other than 0, the background.
///
/// # Panics
/// When labels do not have at least two classes.
#[must_use]
pub fn foreground_classes(labels: &[f32], classes: usize) -> Vec<Option<u32>> {
    assert!(classes >= 2, "foreground_classes: {classes} classes have no foreground");
    let best = |row: &[f32]| {
        let scores = row.iter().enumerate().skip(1);
        scores
            .fold((1, f32::NEG_INFINITY), |best, (class, score)| if *score > best.1 { (class, *score) } else { best })
            .0
    };
    labels.chunks_exact(classes).map(|row| Some(best(row) as u32)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::cpu;
    use crate::testing::{assert_gradients_are_differences, noise, values};

    fn tensor(values: [[f32; 2]; 2]) -> Tensor<2> {
        Tensor::from_data(values, &cpu())
    }

    #[track_caller]
    fn assert_is(loss: &Tensor<1>, expected: f32) {
        let loss = values(loss)[0];
        assert!((loss - expected).abs() < 1e-5, "{loss} {expected}");
    }

    #[test]
    fn losses_are_those_of_their_formulas() {
        let (x, y) = (tensor([[0.5, -1.0], [3.0, 0.0]]), tensor([[0.0, 1.0], [0.0, 0.5]]));
        assert_is(&squared_error(x.clone(), y.clone()), 0.25 + 4.0 + 9.0 + 0.25);
        assert_is(&smooth_l1(x.clone(), y.clone()), 0.125 + 1.5 + 2.5 + 0.125);
        let softplus = |x: f32| x.exp().ln_1p();
        let expected = softplus(0.5) + softplus(-1.0) + 1.0 + softplus(3.0) + softplus(0.0);
        assert_is(&binary_cross_entropy(x.clone(), y), expected);
        let target = tensor([[0.25, 0.75], [0.0, 1.0]]);
        let log_p = |row: [f32; 2], at: usize| row[at] - (row[0].exp() + row[1].exp()).ln();
        let first = 0.25 * (0.25f32.ln() - log_p([0.5, -1.0], 0)) + 0.75 * (0.75f32.ln() - log_p([0.5, -1.0], 1));
        assert_is(&divergence(x, target), first - log_p([3.0, 0.0], 1));
        let distance = Tensor::<1>::from_floats([0.5, 2.0], &cpu());
        assert_is(&transport_loss(distance, &[true, false]), -1.5);
        assert_eq!(foreground_classes(&[0.9, 0.02, 0.08, 0.1, 0.7, 0.2], 3), [Some(2), Some(1)]);
    }

    #[test]
    fn gradients_are_differences() {
        let shaped = |x: &Tensor<1>| x.clone().reshape([2, 3]);
        let target = |x: &Tensor<1>| Tensor::<2>::from_data([[0.2, 0.3, 0.5], [0.0, 0.9, 0.1]], &x.device());
        let inputs = [("x", noise(6, 1))];
        assert_gradients_are_differences(&inputs, |x| divergence(shaped(&x[0]), target(&x[0])));
        assert_gradients_are_differences(&inputs, |x| binary_cross_entropy(shaped(&x[0]), target(&x[0])));
        assert_gradients_are_differences(&inputs, |x| smooth_l1(shaped(&x[0]), target(&x[0])));
    }
}
