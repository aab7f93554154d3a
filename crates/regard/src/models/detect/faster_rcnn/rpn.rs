//! Region proposals: objectness and a box at every cell of every level.
//!
//! As torchvision's `RegionProposalNetwork`. detectron2 divides the losses by the nominal number of samples, here by
//! the actual number: they differ only for pictures with too few anchors.

use burn::module::{Initializer, Module};
use burn::nn::conv::Conv2d;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use crate::boxes::{
    Anchors, Balance, BoxCoder, Corners, DrawId, Level, Match, Matcher, Sampler, binary_cross_entropy, clip, has_sides,
    nms_by_class, rows, smooth_l1, to_tensor,
};
use crate::convolution::{After, Convolve};
use crate::cost::{Ledger, Work};
use crate::layers::biased;
use crate::models::detect::{Targets, best_of, per_anchor};
use crate::{Error, Pass};

/// Anchors, their sampling for training, and the number of proposals.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RpnConfig {
    pub anchors: Anchors,
    /// Number of 3x3 convolutions before the two predictors.
    pub layers: usize,
    pub matcher: Matcher,
    pub sample: Balance,
    pub training: ProposalCount,
    pub inference: ProposalCount,
    /// Non-maximum suppression per level: IoU above which the worse proposal is dropped.
    pub overlap: f64,
    /// Proposals with a shorter side are dropped.
    pub smallest: f32,
    /// Where the box loss becomes linear; 0 is L1.
    pub beta: f64,
}

/// Numbers of proposals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProposalCount {
    /// Per level, before suppression.
    pub before: usize,
    /// Per picture, after suppression.
    pub after: usize,
}

const NORMAL: Initializer = Initializer::Normal { mean: 0.0, std: 0.01 };

impl RpnConfig {
    pub(super) fn init(&self, width: usize, device: &Device) -> Result<Rpn, Error> {
        self.anchors.validate()?;
        if !(1..=16).contains(&self.layers) {
            return Err(Error::config("layers", format!("must be from 1 to 16, got {}", self.layers)));
        }
        if !(0.0..=1.0).contains(&self.overlap) {
            return Err(Error::config("overlap", format!("must be from 0 to 1, got {}", self.overlap)));
        }
        let places = self.anchors.per_place();
        let head = RpnHead {
            conv: (0..self.layers).map(|_| [biased([width; 2], 3, 1, NORMAL, device)]).collect(),
            cls_logits: biased([width, places], 1, 1, NORMAL, device),
            bbox_pred: biased([width, places * 4], 1, 1, NORMAL, device),
        };
        Ok(Rpn { head, config: self.clone() })
    }
}

/// The region proposal network; made with the detector.
#[derive(Module, Debug)]
pub struct Rpn {
    pub head: RpnHead,
    #[module(skip)]
    config: RpnConfig,
}

/// Shared by all levels.
#[derive(Module, Debug)]
pub struct RpnHead {
    pub conv: Vec<[Conv2d; 1]>,
    pub cls_logits: Conv2d,
    pub bbox_pred: Conv2d,
}

/// The outputs for every anchor, level by level.
#[derive(Clone, Debug)]
pub struct RpnOutput {
    /// `[B, N]`
    pub objectness: Tensor<2>,
    /// `[B, N, 4]`
    pub deltas: Tensor<3>,
    pub anchors: Vec<Corners>,
    /// Number of anchors of each level.
    pub levels: Vec<usize>,
}

/// A proposal and its objectness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Proposal {
    pub corners: Corners,
    pub score: f32,
}

impl Rpn {
    /// Levels of a padded picture of `image` rows and columns.
    pub(super) fn forward(&self, levels: &[Level], image: [usize; 2], pass: &mut Pass) -> RpnOutput {
        let config = &self.config.anchors;
        let (mut objectness, mut deltas, mut counts, mut anchors) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, Level { map, stride }) in levels.iter().enumerate() {
            let [_, _, height, width] = map.dims();
            let own = config.level(index, image, [height, width], *stride);
            let hidden = self.head.conv.iter().fold(map.clone(), |map, [conv]| conv.convolve_then(map, After::relu()));
            let hidden = pass.watch(&format!("head.conv.level{index}"), hidden);
            let logits = per_anchor(self.head.cls_logits.convolve(hidden.clone()), config.per_place());
            objectness.push(logits.squeeze_dim::<2>(2));
            deltas.push(per_anchor(self.head.bbox_pred.convolve(hidden), config.per_place()));
            counts.push(own.len());
            anchors.extend(own);
        }
        RpnOutput { objectness: Tensor::cat(objectness, 1), deltas: Tensor::cat(deltas, 1), anchors, levels: counts }
    }

    /// The proposals of pictures of these sizes, best first. They have no gradient.
    pub(super) fn proposals(&self, output: &RpnOutput, sizes: &[[usize; 2]], training: bool) -> Vec<Vec<Proposal>> {
        let count = output.anchors.len();
        let objectness = output.objectness.clone().into_data();
        let deltas = output.deltas.clone().into_data();
        let objectness: &[f32] = objectness.as_slice().expect("models compute in f32");
        let deltas: &[f32] = deltas.as_slice().expect("models compute in f32");
        let pictures = objectness.chunks_exact(count).zip(deltas.chunks_exact(count * 4)).zip(sizes);
        let number = if training { self.config.training } else { self.config.inference };
        pictures
            .map(|((objectness, deltas), size)| {
                let (mut corners, mut scores, mut of_level) = (Vec::new(), Vec::new(), Vec::new());
                let mut first = 0;
                for (level, &anchors) in output.levels.iter().enumerate() {
                    let own = objectness[first..][..anchors].iter().copied().enumerate();
                    for (logit, place) in best_of(own.map(|(place, logit)| (logit, place)).collect(), number.before) {
                        let anchor = first + place;
                        let deltas: [f32; 4] = deltas[4 * anchor..][..4].try_into().expect("four deltas an anchor");
                        let proposal = clip(BoxCoder::ANCHORS.decode(deltas, output.anchors[anchor]), *size);
                        if has_sides(proposal, self.config.smallest) {
                            corners.push(proposal);
                            scores.push(1.0 / (1.0 + (-logit).exp()));
                            of_level.push(level);
                        }
                    }
                    first += anchors;
                }
                let kept = nms_by_class(&corners, &scores, &of_level, self.config.overlap);
                let proposal = |index: usize| Proposal { corners: corners[index], score: scores[index] };
                kept.into_iter().take(number.after).map(proposal).collect()
            })
            .collect()
    }

    /// Means over the sampled anchors of the batch: objectness, and boxes.
    pub(super) fn losses(&self, output: RpnOutput, targets: &[Targets], sampler: &dyn Sampler) -> [Tensor<1>; 2] {
        let RpnOutput { objectness, deltas, anchors, .. } = output;
        let (device, count) = (objectness.device(), anchors.len());
        let (mut sampled, mut labels) = (Vec::new(), Vec::new());
        let (mut positive, mut references, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        for (image, targets) in targets.iter().enumerate() {
            let matches = self.config.matcher.matches(&targets.corners, &anchors);
            let of = |wanted: fn(&Match) -> bool| -> Vec<usize> {
                matches.iter().enumerate().filter(|(_, matched)| wanted(matched)).map(|(anchor, _)| anchor).collect()
            };
            let all = [of(|matched| matched.object().is_some()), of(|matched| *matched == Match::Background)];
            let drawn = sampler.sample(DrawId::Anchors { image }, &all[0], &all[1], self.config.sample);
            for (drawn, label) in drawn.iter().zip([1.0, 0.0]) {
                sampled.extend(drawn.iter().map(|anchor| image * count + anchor));
                labels.extend(drawn.iter().map(|_| label));
            }
            for &anchor in &drawn[0] {
                let object = matches[anchor].object().expect("only matched anchors are positive");
                positive.push(image * count + anchor);
                references.push(anchors[anchor]);
                objects.push(targets.corners[object]);
            }
        }
        let zero = || Tensor::<1>::zeros([1], &device);
        if sampled.is_empty() {
            return [zero(), zero()];
        }
        let all = objectness.dims()[0] * count;
        let number = sampled.len();
        let labels = Tensor::<1>::from_data(TensorData::new(labels, [number]), &device);
        let class = binary_cross_entropy(rows(objectness.reshape([all]), &sampled), labels).mean();
        if positive.is_empty() {
            return [class, zero()];
        }
        let wanted = to_tensor(&BoxCoder::ANCHORS.encode(&objects, &references), &device);
        let boxes = smooth_l1(rows(deltas.reshape([all, 4]), &positive), wanted, self.config.beta);
        [class, boxes.sum().div_scalar(number as f64)]
    }

    /// Adds the costs for levels of these shapes.
    pub(super) fn cost(&self, levels: &[Vec<usize>], ledger: &mut Ledger) {
        for (index, level) in levels.iter().enumerate() {
            let write = |ledger: &mut Ledger| {
                ledger.within("head", |ledger| {
                    let mut shape = level.clone();
                    for (layer, [conv]) in self.head.conv.iter().enumerate() {
                        shape = ledger.part(format!("conv.{layer}.0"), conv, shape);
                        ledger.each("relu", &shape, |elements| Work::Activation { elements });
                    }
                    ledger.part("cls_logits", &self.head.cls_logits, shape.clone());
                    ledger.part("bbox_pred", &self.head.bbox_pred, shape);
                });
            };
            if index == 0 { write(ledger) } else { ledger.shared(write) }
        }
    }
}
