//! The loss of DETR: every object is matched with one query, all other queries should predict "no object".
//! Carion et al. 2020, arXiv:2005.12872, sections 3.1 and A.2.
//!
//! Each decoder layer has its own matching. The divisors of losses follow from the objects alone, so that
//! several processes can sum them beforehand.

use burn::tensor::Tensor;
use rayon::prelude::*;
use regard_kernels::boxes::CostWeights;
use serde::{Deserialize, Serialize};

use super::DetrOutput;
use super::matcher::{MatchedPair, match_objects};
use crate::Error;
use crate::boxes::{giou, rows, to_tensor};
use crate::data::Object;
use crate::function::{cross_entropy, softmax};

/// Weights of the parts of the loss and of the matching cost; by default the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DetrCriterion {
    /// Cross-entropy.
    pub class: f64,
    /// L1 distance of centres and sides.
    pub l1: f64,
    pub giou: f64,
    /// Weight of a query without an object in the cross-entropy; one with an object has weight 1.
    pub no_object: f64,
}

impl Default for DetrCriterion {
    fn default() -> Self {
        Self { class: 1.0, l1: 5.0, giou: 2.0, no_object: 0.1 }
    }
}

/// The divisors of the losses: sums over the pictures of a batch, to be summed over processes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct DetrCounts {
    pub pictures: f64,
    /// Number of objects, for boxes; at least 1 is used.
    pub objects: f64,
    /// Objects that are matched: per picture at most the number of queries.
    pub matched: f64,
}

impl DetrCounts {
    /// The counts of pictures, from their objects alone.
    #[must_use]
    pub fn of(pictures: &[Vec<Object>], queries: usize) -> Self {
        let of_picture = |objects: &Vec<Object>| {
            let objects = targets(objects).len();
            Self { pictures: 1.0, objects: objects as f64, matched: objects.min(queries) as f64 }
        };
        pictures.iter().map(of_picture).fold(Self::default(), |sum, counts| sum + counts)
    }

    /// Weights of all queries in the cross-entropy.
    fn class_weights(&self, queries: usize, no_object: f64) -> f64 {
        self.matched + (self.pictures * queries as f64 - self.matched) * no_object
    }
}

impl std::ops::Add for DetrCounts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (pictures, objects) = (self.pictures + other.pictures, self.objects + other.objects);
        Self { pictures, objects, matched: self.matched + other.matched }
    }
}

/// The losses of one layer, divided but not weighted.
#[derive(Clone, Debug)]
pub struct LayerLosses {
    pub class: Tensor<1>,
    /// Distance of centres and sides.
    pub l1: Tensor<1>,
    pub giou: Tensor<1>,
    /// Mean difference between the numbers of objects and of queries that predict one; not part of the loss.
    pub cardinality_error: f64,
}

/// The losses of a batch.
#[derive(Clone, Debug)]
pub struct DetrLosses {
    /// The loss to differentiate: the weighted sum over parts and layers.
    pub total: Tensor<1>,
    /// In the order of the decoder layers.
    pub layers: Vec<LayerLosses>,
    /// Percent of matched queries of the last layer with a wrong best class; 100 if no query is matched.
    pub class_error: f64,
}

impl DetrLosses {
    /// `class`, `box` and `giou`, each summed over the layers, divided and not weighted.
    #[must_use]
    pub fn parts(&self) -> [(&'static str, Tensor<1>); 3] {
        let sum = |part: fn(&LayerLosses) -> &Tensor<1>| {
            let parts = self.layers.iter().map(|layer| part(layer).clone());
            parts.reduce(|sum, part| sum + part).expect("a decoder has a layer")
        };
        [("class", sum(|layer| &layer.class)), ("box", sum(|layer| &layer.l1)), ("giou", sum(|layer| &layer.giou))]
    }

    /// Mean difference between the numbers of objects and of queries of the last layer that predict one.
    #[must_use]
    pub fn cardinality_error(&self) -> f64 {
        self.layers.last().map_or(0.0, |layer| layer.cardinality_error)
    }
}

/// Class and cx, cy, w, h of the objects to detect, without crowds and boxes without sides.
fn targets(objects: &[Object]) -> Vec<(usize, [f32; 4])> {
    let target = |object: &Object| {
        let bounds = object.bounds;
        (object.class, [bounds.cx, bounds.cy, bounds.w, bounds.h].map(|side| side as f32))
    };
    // NaN is kept: matching reports it
    let counts = |object: &&Object| !(object.crowd || object.bounds.w <= 0.0 || object.bounds.h <= 0.0);
    objects.iter().filter(counts).map(target).collect()
}

impl DetrCriterion {
    /// # Errors
    /// When a weight is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        let Self { class, l1, giou, no_object } = *self;
        for (field, weight) in [("class", class), ("l1", l1), ("giou", giou), ("no-object", no_object)] {
            if !(weight.is_finite() && weight >= 0.0) {
                return Err(Error::config(field, format!("must be at least 0, got {weight}")));
            }
        }
        Ok(())
    }

    /// The losses of a batch, divided by `counts`: those of the batch, or of all processes together.
    ///
    /// # Errors
    /// When an output or a box is not finite; the error names the picture by its index in the batch.
    ///
    /// # Panics
    /// When the numbers of pictures differ, or an object's class is not among the detector's.
    pub fn losses(
        &self,
        output: &DetrOutput,
        pictures: &[Vec<Object>],
        counts: &DetrCounts,
    ) -> Result<DetrLosses, Error> {
        let pictures: Vec<Vec<(usize, [f32; 4])>> = pictures.iter().map(|objects| targets(objects)).collect();
        let layers = output.logits.iter().zip(&output.boxes);
        let layers = layers
            .map(|(logits, boxes)| self.of_layer(logits, boxes, &pictures, counts))
            .collect::<Result<Vec<_>, Error>>()?;
        let class_error = layers.last().map_or(100.0, |(_, error)| *error);
        let layers: Vec<LayerLosses> = layers.into_iter().map(|(losses, _)| losses).collect();
        let weighted = layers.iter().map(|LayerLosses { class, l1, giou, .. }| {
            let boxes = l1.clone().mul_scalar(self.l1) + giou.clone().mul_scalar(self.giou);
            class.clone().mul_scalar(self.class) + boxes
        });
        let total = weighted.reduce(|sum, layer| sum + layer).expect("a decoder has a layer");
        Ok(DetrLosses { total, layers, class_error })
    }

    /// The losses of a layer, and its class error.
    fn of_layer(
        &self,
        logits: &Tensor<3>,
        boxes: &Tensor<3>,
        pictures: &[Vec<(usize, [f32; 4])>],
        counts: &DetrCounts,
    ) -> Result<(LayerLosses, f64), Error> {
        let [batch, queries, classes] = logits.dims();
        assert!(batch == pictures.len(), "detr: {batch} pictures in the output, objects of {}", pictures.len());
        let probabilities = numbers(softmax(logits.clone().detach()));
        let pairs = self.pairs(&probabilities, &numbers(boxes.clone().detach()), [queries, classes], pictures)?;

        let no_object = (classes - 1) as u32;
        let (mut found, mut nothing) = (vec![None; batch * queries], vec![Some(no_object); batch * queries]);
        let (mut matched, mut wanted) = (Vec::new(), Vec::new());
        for (index, (pairs, objects)) in pairs.iter().zip(pictures).enumerate() {
            for MatchedPair { query, object } in pairs {
                let (row, (class, bounds)) = (index * queries + query, objects[*object]);
                (found[row], nothing[row]) = (Some(class as u32), None);
                matched.push(row);
                wanted.push(bounds);
            }
        }
        let best = |row: &[f32]| (0..classes).fold(0, |best, class| if row[class] > row[best] { class } else { best });
        let best: Vec<usize> = probabilities.chunks_exact(classes).map(best).collect();
        let right = matched.iter().filter(|row| found[**row] == Some(best[**row] as u32)).count();
        let class_error = 100.0 - 100.0 * right as f64 / matched.len().max(1) as f64;
        let thinks = |queries: &[usize]| queries.iter().filter(|best| **best != classes - 1).count();
        let differences =
            best.chunks(queries).zip(pictures).map(|(best, objects)| thinks(best).abs_diff(objects.len()));
        let cardinality_error = differences.sum::<usize>() as f64 / batch as f64;

        let flat = logits.clone().reshape([batch * queries, classes]);
        let class =
            cross_entropy(flat.clone(), found, 0.0) + cross_entropy(flat, nothing, 0.0).mul_scalar(self.no_object);
        let class = class.div_scalar(counts.class_weights(queries, self.no_object).max(f64::MIN_POSITIVE));
        let [l1, giou] = box_losses(boxes.clone().reshape([batch * queries, 4]), &matched, wanted);
        let objects = counts.objects.max(1.0);
        let (l1, giou) = (l1.div_scalar(objects), giou.div_scalar(objects));
        Ok((LayerLosses { class, l1, giou, cardinality_error }, class_error))
    }

    /// The matched pairs of every picture.
    fn pairs(
        &self,
        probabilities: &[f32],
        boxes: &[f32],
        [queries, classes]: [usize; 2],
        pictures: &[Vec<(usize, [f32; 4])>],
    ) -> Result<Vec<Vec<MatchedPair>>, Error> {
        let weights = CostWeights { class: self.class as f32, l1: self.l1 as f32, giou: self.giou as f32 };
        let (boxes, _) = boxes.as_chunks::<4>();
        let of_picture = |(index, objects): (usize, &Vec<(usize, [f32; 4])>)| {
            let probabilities = &probabilities[index * queries * classes..][..queries * classes];
            match_objects(index, weights, (probabilities, classes), &boxes[index * queries..][..queries], objects)
        };
        pictures.par_iter().enumerate().map(of_picture).collect()
    }
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("it was converted")
}

/// Sums over pairs of the distance of centres and sides, and of one minus the generalised overlap; `numbers` are the rows
/// of the matched boxes.
fn box_losses(boxes: Tensor<2>, numbers: &[usize], wanted: Vec<[f32; 4]>) -> [Tensor<1>; 2] {
    let device = boxes.device();
    if numbers.is_empty() {
        return [(); 2].map(|()| Tensor::zeros([1], &device));
    }
    let boxes = rows(boxes, numbers);
    let l1 = (boxes.clone() - to_tensor(&wanted, &device)).abs().sum();
    let wanted: Vec<[f32; 4]> = wanted.into_iter().map(corners).collect();
    let (centres, sides) = (boxes.clone().narrow(1, 0, 2), boxes.narrow(1, 2, 2).mul_scalar(0.5));
    let boxes = Tensor::cat(vec![centres.clone() - sides.clone(), centres + sides], 1);
    [l1, giou(boxes, &wanted, 0.0).neg().add_scalar(1.0).sum()]
}

fn corners([cx, cy, w, h]: [f32; 4]) -> [f32; 4] {
    [cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h]
}

#[cfg(test)]
mod tests;
