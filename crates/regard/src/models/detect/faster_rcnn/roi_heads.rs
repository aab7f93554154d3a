//! The second stage: the features of a region as a small grid, a few layers, a class and a box for each class.
//!
//! As torchvision's `RoIHeads`, with options for the differences of detectron2.

use burn::module::Module;
use burn::nn::conv::Conv2d;
use burn::tensor::activation::relu;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::rpn::Proposal;
use crate::boxes::{
    Balance, BoxCoder, Corners, DrawId, Level, LevelRule, Match, Matcher, RoiAlign, Sampler, SamplingPoints, clip,
    has_sides, nms_by_class, roi_align_levels, rows, smooth_l1, to_tensor,
};
use crate::convolution::{After, Convolve};
use crate::cost::{Ledger, Work};
use crate::function;
use crate::layers::{BatchNorm, Linear, check_size, square};
use crate::models::detect::{DetectionLimits, Targets, detection};
use crate::{Error, Pass};

/// How regions are pooled, sampled for training, and turned into detections.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegionsConfig {
    /// Levels that regions are read from, the finest first.
    pub levels: usize,
    pub rule: LevelRule,
    /// Rows and columns of a region's grid.
    pub grid: usize,
    /// Sampling points of a cell along an axis; `None` is about one for each pixel of the map.
    pub points: Option<usize>,
    /// Pixels have their centres at halves.
    pub aligned: bool,
    pub head: BoxHeadKind,
    pub background: Background,
    pub matcher: Matcher,
    pub sample: Balance,
    /// Where the box loss becomes linear; 0 is L1.
    pub beta: f64,
    /// Detections with a shorter side are dropped.
    pub smallest: f32,
}

/// The box head, between a grid and the predictors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum BoxHeadKind {
    /// Two linear layers.
    Linear { hidden: usize },
    /// 3x3 convolutions with norms, then a linear layer.
    Convolutions { layers: usize, hidden: usize },
}

/// Which logit is the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Background {
    /// The first, which has a box too: torchvision.
    First,
    /// The last, which has none: detectron2.
    Last,
}

impl Background {
    /// The logit of a class.
    const fn logit(self, class: usize) -> usize {
        match self {
            Self::First => class + 1,
            Self::Last => class,
        }
    }

    /// The background logit.
    const fn none(self, classes: usize) -> usize {
        match self {
            Self::First => 0,
            Self::Last => classes,
        }
    }
}

impl RegionsConfig {
    pub(super) fn init(&self, width: usize, classes: usize, device: &Device) -> Result<RoiHeads, Error> {
        for (field, value) in [("levels", self.levels), ("grid", self.grid), ("classes", classes)] {
            check_size(field, value)?;
        }
        if self.points == Some(0) {
            return Err(Error::config("points", "must be at least 1, got 0"));
        }
        let inputs = width * self.grid * self.grid;
        let (box_head, hidden) = match self.head {
            BoxHeadKind::Linear { hidden } => {
                check_size("hidden", hidden)?;
                let [fc6, fc7] = [inputs, hidden].map(|inputs| Linear::new(inputs, hidden, device));
                (BoxHead::Linear(LinearHead { fc6, fc7 }), hidden)
            }
            BoxHeadKind::Convolutions { layers, hidden } => {
                check_size("hidden", hidden)?;
                if layers > 64 {
                    return Err(Error::config("layers", format!("must be at most 64, got {layers}")));
                }
                let layer = |_| (square([width; 2], 3).init(device), BatchNorm::new(width, device));
                let head =
                    ConvolutionHead { conv: (0..layers).map(layer).collect(), fc: Linear::new(inputs, hidden, device) };
                (BoxHead::Convolution(head), hidden)
            }
        };
        let boxes = if self.background == Background::First { classes + 1 } else { classes };
        let box_predictor = BoxPredictor {
            cls_score: Linear::new(hidden, classes + 1, device),
            bbox_pred: Linear::new(hidden, boxes * 4, device),
        };
        Ok(RoiHeads { box_head, box_predictor, config: *self, classes })
    }
}

/// The second stage; made with the detector.
#[derive(Module, Debug)]
pub struct RoiHeads {
    pub box_head: BoxHead,
    pub box_predictor: BoxPredictor,
    #[module(skip)]
    config: RegionsConfig,
    classes: usize,
}

#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // a detector has one
pub enum BoxHead {
    Linear(LinearHead),
    Convolution(ConvolutionHead),
}

#[derive(Module, Debug)]
pub struct LinearHead {
    pub fc6: Linear,
    pub fc7: Linear,
}

#[derive(Module, Debug)]
pub struct ConvolutionHead {
    pub conv: Vec<(Conv2d, BatchNorm)>,
    pub fc: Linear,
}

#[derive(Module, Debug)]
pub struct BoxPredictor {
    pub cls_score: Linear,
    pub bbox_pred: Linear,
}

/// The outputs for regions.
#[derive(Clone, Debug)]
pub struct RegionOutput {
    /// `[R, classes + 1]`
    pub logits: Tensor<2>,
    /// `[R, boxes * 4]`: a box for each class, relative to the region.
    pub deltas: Tensor<2>,
}

/// A detection and its region.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RegionDetection {
    pub detection: crate::data::Detection,
    /// The index of the region in the batch.
    pub region: usize,
}

/// The sampled regions of a batch.
pub(super) struct SampledRegions {
    images: Vec<usize>,
    corners: Vec<Corners>,
    /// The target logit of each region.
    labels: Vec<usize>,
    /// Regions with objects, and the objects.
    positive: Vec<(usize, Corners)>,
}

impl SampledRegions {
    pub fn regions(&self) -> (&[usize], &[Corners]) {
        (&self.images, &self.corners)
    }
}

impl RoiHeads {
    /// The features of regions, `[R, C, grid, grid]`.
    pub(super) fn pooled(&self, levels: &[Level], regions: (&[usize], &[Corners])) -> Tensor<4> {
        let RegionsConfig { grid, points, aligned, .. } = self.config;
        let points = points.map_or(SamplingPoints::Adaptive, SamplingPoints::Fixed);
        let align = RoiAlign { output: [grid, grid], spatial_scale: 1.0, points, aligned };
        roi_align_levels(&levels[..self.config.levels], self.config.rule, regions, align)
    }

    pub(super) fn forward(&self, levels: &[Level], regions: (&[usize], &[Corners]), pass: &mut Pass) -> RegionOutput {
        let [classes, boxes] =
            [&self.box_predictor.cls_score, &self.box_predictor.bbox_pred].map(|map| map.weight.lazy_shape()[0]);
        if regions.1.is_empty() {
            let device = levels[0].map.device();
            return RegionOutput {
                logits: Tensor::empty([0, classes], &device),
                deltas: Tensor::empty([0, boxes], &device),
            };
        }
        let grids = pass.watch("box_roi_pool", self.pooled(levels, regions));
        let hidden = match &self.box_head {
            BoxHead::Linear(head) => {
                let hidden: Tensor<2> = relu(head.fc6.forward(grids.flatten(1, 3)));
                relu(head.fc7.forward(hidden))
            }
            BoxHead::Convolution(head) => {
                let block =
                    |grids, (conv, norm): &(Conv2d, BatchNorm)| conv.convolve_then(grids, After::norm_relu(norm));
                let grids = head.conv.iter().fold(grids, block);
                relu(head.fc.forward(grids.flatten::<2>(1, 3)))
            }
        };
        RegionOutput {
            logits: self.box_predictor.cls_score.forward(hidden.clone()),
            deltas: self.box_predictor.bbox_pred.forward(hidden),
        }
    }

    /// Samples regions from the proposals and the objects themselves, some with objects and some without.
    pub(super) fn sample(
        &self,
        proposals: &[Vec<Proposal>],
        targets: &[Targets],
        sampler: &dyn Sampler,
    ) -> SampledRegions {
        let mut sampled =
            SampledRegions { images: Vec::new(), corners: Vec::new(), labels: Vec::new(), positive: Vec::new() };
        let background = self.config.background;
        for (image, (proposals, targets)) in proposals.iter().zip(targets).enumerate() {
            let mut candidates: Vec<Corners> = proposals.iter().map(|proposal| proposal.corners).collect();
            candidates.extend(&targets.corners);
            let matches = self.config.matcher.matches(&targets.corners, &candidates);
            let of = |wanted: fn(&Match) -> bool| -> Vec<usize> {
                matches.iter().enumerate().filter(|(_, matched)| wanted(matched)).map(|(at, _)| at).collect()
            };
            let all = [of(|matched| matched.object().is_some()), of(|matched| *matched == Match::Background)];
            let drawn = sampler.sample(DrawId::Regions { image }, &all[0], &all[1], self.config.sample);
            for &candidate in drawn.iter().flatten() {
                let label = match matches[candidate].object() {
                    Some(object) => {
                        sampled.positive.push((sampled.corners.len(), targets.corners[object]));
                        background.logit(targets.classes[object])
                    }
                    None => background.none(self.classes),
                };
                sampled.labels.push(label);
                sampled.images.push(image);
                sampled.corners.push(candidates[candidate]);
            }
        }
        sampled
    }

    /// Means over the sampled regions of the batch: classes, and boxes.
    pub(super) fn losses(&self, output: RegionOutput, sampled: &SampledRegions) -> [Tensor<1>; 2] {
        let device = output.logits.device();
        let count = sampled.labels.len();
        let zero = || Tensor::<1>::zeros([1], &device);
        if count == 0 {
            return [zero(), zero()];
        }
        let labels = sampled.labels.iter().map(|label| Some(*label as u32)).collect();
        let class = function::cross_entropy(output.logits, labels, 0.0).div_scalar(count as f64);
        if sampled.positive.is_empty() {
            return [class, zero()];
        }
        let boxes = output.deltas.dims()[1] / 4;
        let (mut numbers, mut references, mut objects) = (Vec::new(), Vec::new(), Vec::new());
        for &(region, object) in &sampled.positive {
            // the background's box, if it has one, is the first: logits and boxes have the same indices
            numbers.push(region * boxes + sampled.labels[region]);
            references.push(sampled.corners[region]);
            objects.push(object);
        }
        let wanted = to_tensor(&BoxCoder::REGIONS.encode(&objects, &references), &device);
        let deltas = rows(output.deltas.reshape([count * boxes, 4]), &numbers);
        [class, smooth_l1(deltas, wanted, self.config.beta).sum().div_scalar(count as f64)]
    }

    /// The detections of pictures of these sizes; `regions` are those of each picture.
    pub(super) fn read_out(
        &self,
        output: &RegionOutput,
        regions: &[Vec<Corners>],
        sizes: &[[usize; 2]],
        limits: DetectionLimits,
    ) -> Vec<Vec<RegionDetection>> {
        let boxes = output.deltas.dims()[1] / 4;
        let (logits, deltas) = (output.logits.clone().into_data(), output.deltas.clone().into_data());
        let logits: &[f32] = logits.as_slice().expect("models compute in f32");
        let deltas: &[f32] = deltas.as_slice().expect("models compute in f32");
        let mut first = 0;
        let mut found = Vec::new();
        for (regions, &size) in regions.iter().zip(sizes) {
            let (mut corners, mut scores, mut classes, mut sources) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
            for (region, reference) in regions.iter().enumerate().map(|(at, region)| (first + at, *region)) {
                let chances = softmax(&logits[region * (self.classes + 1)..][..=self.classes]);
                for class in 0..self.classes {
                    let logit = self.config.background.logit(class);
                    if chances[logit] <= limits.score {
                        continue;
                    }
                    let deltas = &deltas[4 * (region * boxes + logit)..][..4];
                    let deltas: [f32; 4] = deltas.try_into().expect("four deltas a box");
                    let answer = clip(BoxCoder::REGIONS.decode(deltas, reference), size);
                    if has_sides(answer, self.config.smallest) {
                        corners.push(answer);
                        scores.push(chances[logit]);
                        classes.push(class);
                        sources.push(region);
                    }
                }
            }
            first += regions.len();
            let kept = nms_by_class(&corners, &scores, &classes, limits.overlap);
            let answer = |index: usize| RegionDetection {
                detection: detection(classes[index], scores[index], corners[index], size),
                region: sources[index],
            };
            found.push(kept.into_iter().take(limits.detections).map(answer).collect());
        }
        found
    }

    /// The logit of a class of a region, for differentiation: `[1]`.
    pub(super) fn logit(&self, output: &RegionOutput, region: usize, class: usize) -> Tensor<1> {
        let logit = self.config.background.logit(class);
        output.logits.clone().narrow(0, region, 1).narrow(1, logit, 1).reshape([1])
    }

    /// Adds the costs for a number of regions of levels of a width.
    pub(super) fn cost(&self, width: usize, regions: usize, ledger: &mut Ledger) {
        let grid = self.config.grid;
        let outputs = regions * width * grid * grid;
        let points = self.config.points.unwrap_or(2).pow(2);
        let work = Work::Pool { inputs: (outputs * points) as u64, outputs: outputs as u64, window: points as u64 };
        ledger.within("box_roi_pool", |ledger| ledger.line(0, work, outputs));
        let hidden = ledger.within("box_head", |ledger| match &self.box_head {
            BoxHead::Linear(head) => {
                let hidden = ledger.part("fc6", &head.fc6, vec![regions, width * grid * grid]);
                ledger.each("relu6", &hidden, |elements| Work::Activation { elements });
                let hidden = ledger.part("fc7", &head.fc7, hidden);
                ledger.each("relu7", &hidden, |elements| Work::Activation { elements });
                hidden
            }
            BoxHead::Convolution(head) => {
                // stacked grids cost as much as separate ones
                let mut shape = vec![width, regions * grid, grid];
                for (index, (conv, norm)) in head.conv.iter().enumerate() {
                    ledger.within(format!("conv.{index}"), |ledger| {
                        shape = ledger.part("0", conv, shape.clone());
                        ledger.part("1", norm, shape.clone());
                        ledger.each("relu", &shape, |elements| Work::Activation { elements });
                    });
                }
                let hidden = ledger.part("fc", &head.fc, vec![regions, width * grid * grid]);
                ledger.each("relu", &hidden, |elements| Work::Activation { elements });
                hidden
            }
        });
        ledger.within("box_predictor", |ledger| {
            ledger.part("cls_score", &self.box_predictor.cls_score, hidden.clone());
            ledger.part("bbox_pred", &self.box_predictor.bbox_pred, hidden);
        });
    }
}

fn softmax(logits: &[f32]) -> Vec<f32> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}
