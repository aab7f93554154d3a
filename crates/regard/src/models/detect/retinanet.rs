//! RetinaNet: a class and a box at every anchor of a pyramid, with a loss that easy background cannot dominate.
//! Lin et al. 2017, "Focal Loss for Dense Object Detection", arXiv:1708.02002.
//!
//! As in torchvision 0.29, whose names are used (`retinanet_resnet50_fpn` and its second version), with
//! - any trunk of the zoo, and heads of local attention, as in "Stand-Alone Self-Attention in Vision Models"
//!   (arXiv:1906.05909), which has no published code: the 3x3 convolutions of the two heads become attention, the last ones
//!   attention and a 1x1 convolution; the pyramid stays as it is. Its 6 anchors for 90 classes follow from its parameters;
//! - resizing and normalising outside the model: [`ResizeInside`](crate::data::ResizeInside);
//! - classes from 0 without an unused one. Weights of torchvision for COCO have 91: the numbers that COCO gives them;
//! - losses that are sums over pictures, so that processes can share a batch: each picture's own is divided by its
//!   positive anchors, which follow from its objects alone.

mod head;
mod presets;

use burn::module::Module;
use burn::tensor::{Device, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use self::head::{Last, NamedHead, TowerLayer};
use super::{
    BackboneConfig, BoxPlace, BoxScore, BoxSource, DetectionLimits, DetectionLosses, DetectorBackbone, Targets,
    best_of, detection, per_anchor,
};
use crate::boxes::{
    Anchors, BoxCoder, Corners, FocalTarget, Level, Match, Matcher, clip, giou, nms_by_class, rows, sigmoid_focal,
    smooth_l1, to_tensor,
};
use crate::cost::{Costed, Ledger};
use crate::data::{Detection, Images, Object};
use crate::layers::{GroupNorm, check_size};
use crate::models::limits::{check_image, check_parameters};
use crate::{Error, Pass};

pub use head::{HeadConfig, HeadKind};
pub use presets::PRESETS;

/// The configuration of a RetinaNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RetinaNetConfig {
    /// Rows and columns of typical pictures; others are accepted too.
    pub image: [usize; 2],
    pub classes: usize,
    pub backbone: BackboneConfig,
    pub anchors: Anchors,
    pub head: HeadConfig,
    pub box_loss: BoxLoss,
    #[serde(default = "matcher")]
    pub matcher: Matcher,
    /// Maximum number of pairs of anchor and class per level, before suppression.
    #[serde(default = "candidates")]
    pub candidates: usize,
    #[serde(default = "limits")]
    pub limits: DetectionLimits,
}

/// The loss of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoxLoss {
    /// Distance of the deltas.
    L1,
    /// One minus the generalised IoU of the boxes.
    Giou,
}

const fn matcher() -> Matcher {
    Matcher { object: 0.5, background: 0.4, best_of_object: true }
}

const fn candidates() -> usize {
    1000
}

const fn limits() -> DetectionLimits {
    DetectionLimits { score: 0.05, overlap: 0.5, detections: 300 }
}

/// Alpha and gamma of the focal loss.
const FOCAL: [f32; 2] = [0.25, 2.0];

/// Added to the denominators of generalised IoU.
const EPSILON: f32 = 1e-7;

/// Initial prediction of the class head: one object in a hundred anchors.
const PRIOR: f64 = 0.01;

impl RetinaNetConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        check_size("classes", self.classes)?;
        self.anchors.validate()?;
        let (levels, sizes) = (self.backbone.levels(), self.anchors.sizes.len());
        if levels != sizes {
            return Err(Error::config("anchors", format!("have sizes for {sizes} levels, there are {levels}")));
        }
        self.limits.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<RetinaNet, Error> {
        self.validate()?;
        let (width, places) = (self.backbone.width()?, self.anchors.per_place());
        let bias = -((1.0 - PRIOR) / PRIOR).ln();
        let class = self.head.init(width, places * self.classes, bias, device)?;
        let boxes = self.head.init(width, places * 4, 0.0, device)?;
        check_parameters(RetinaNet {
            backbone: self.backbone.init(device)?,
            head: RetinaNetHead {
                classification_head: ClassificationHead { conv: class.conv, cls_logits: class.last },
                regression_head: RegressionHead { conv: boxes.conv, bbox_reg: boxes.last },
            },
            config: self.clone(),
        })
    }
}

/// The detector; made by [`RetinaNetConfig::init`].
#[derive(Module, Debug)]
pub struct RetinaNet {
    pub backbone: DetectorBackbone,
    pub head: RetinaNetHead,
    #[module(skip)]
    config: RetinaNetConfig,
}

#[derive(Module, Debug)]
pub struct RetinaNetHead {
    pub classification_head: ClassificationHead,
    pub regression_head: RegressionHead,
}

#[derive(Module, Debug)]
pub struct ClassificationHead {
    pub conv: Vec<(TowerLayer, Option<GroupNorm>)>,
    pub cls_logits: Last,
}

#[derive(Module, Debug)]
pub struct RegressionHead {
    pub conv: Vec<(TowerLayer, Option<GroupNorm>)>,
    pub bbox_reg: Last,
}

impl RetinaNetHead {
    /// The heads with their names.
    fn named(&self) -> [(&'static str, NamedHead<'_>); 2] {
        let ClassificationHead { conv, cls_logits } = &self.classification_head;
        let class = NamedHead { conv, name: "cls_logits", last: cls_logits };
        let RegressionHead { conv, bbox_reg } = &self.regression_head;
        let boxes = NamedHead { conv, name: "bbox_reg", last: bbox_reg };
        [("classification_head", class), ("regression_head", boxes)]
    }

    /// Logits `[B, H*W*A, K]` and deltas `[B, H*W*A, 4]` of a level, the anchors of a cell together.
    fn forward(&self, map: &Tensor<4>, level: usize, places: usize, pass: &mut Pass) -> [Tensor<3>; 2] {
        self.named()
            .map(|(name, head)| per_anchor(pass.within(name, |pass| head.forward(map.clone(), level, pass)), places))
    }
}

/// The outputs of a RetinaNet for every anchor, level by level.
#[derive(Clone, Debug)]
pub struct RetinaNetOutput {
    /// `[B, N, K]`
    pub logits: Tensor<3>,
    /// `[B, N, 4]`, relative to the anchors.
    pub deltas: Tensor<3>,
    /// The anchors of one picture, which are the same for all.
    pub anchors: Vec<Corners>,
    /// Number of anchors of each level.
    pub levels: Vec<usize>,
}

/// A detection and its anchor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AnchorDetection {
    pub detection: Detection,
    pub anchor: usize,
}

impl RetinaNetOutput {
    /// The logit of a class at an anchor, for differentiation with respect to watched tensors: `[1]`.
    #[must_use]
    pub fn logit(&self, image: usize, anchor: usize, class: usize) -> Tensor<1> {
        let logit = self.logits.clone().narrow(0, image, 1).narrow(1, anchor, 1).narrow(2, class, 1);
        logit.reshape([1])
    }
}

impl RetinaNet {
    pub const fn config(&self) -> &RetinaNetConfig {
        &self.config
    }

    /// The outputs for images `[B, C, H, W]`. Records the trunk (`backbone.body.layer1`) and, in heads with
    /// attention, the weights at every level (`head.classification_head.conv.0.0.level2.weights`); watches the levels
    /// (`backbone.fpn.layer_blocks.0`).
    ///
    /// # Panics
    /// When the images do not fit the trunk.
    pub fn forward(&self, images: Tensor<4>, pass: &mut Pass) -> RetinaNetOutput {
        let [_, _, rows, columns] = images.dims();
        let levels = pass.within("backbone", |pass| self.backbone.forward(images, pass));
        let anchors = &self.config.anchors;
        let mut output = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, Level { map, stride }) in levels.iter().enumerate() {
            let [_, _, height, width] = map.dims();
            let own = anchors.level(index, [rows, columns], [height, width], *stride);
            let [logits, deltas] = pass.within("head", |pass| self.head.forward(map, index, anchors.per_place(), pass));
            output.0.push(logits);
            output.1.push(deltas);
            output.2.push(own.len());
            output.3.extend(own);
        }
        let (logits, deltas, levels, anchors) = output;
        RetinaNetOutput { logits: Tensor::cat(logits, 1), deltas: Tensor::cat(deltas, 1), anchors, levels }
    }

    /// The detections of every picture, best first.
    ///
    /// # Panics
    /// When the images do not fit the trunk.
    pub fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
        let output = self.forward(images.pixels.clone(), pass);
        let found = self.read_out(&output, &images.sizes);
        found.into_iter().map(|found| found.into_iter().map(|found| found.detection).collect()).collect()
    }

    /// The detections of pictures of these sizes, best first, each with its anchor.
    #[must_use]
    pub fn read_out(&self, output: &RetinaNetOutput, sizes: &[[usize; 2]]) -> Vec<Vec<AnchorDetection>> {
        let [_, count, classes] = output.logits.dims();
        let [logits, deltas] = [&output.logits, &output.deltas].map(|tensor| tensor.clone().into_data());
        let logits: &[f32] = logits.as_slice().expect("models compute in f32");
        let deltas: &[f32] = deltas.as_slice().expect("models compute in f32");
        let pictures = logits.chunks_exact(count * classes).zip(deltas.chunks_exact(count * 4)).zip(sizes);
        pictures.map(|((logits, deltas), size)| self.read_out_one(output, [logits, deltas], *size)).collect()
    }

    fn read_out_one(
        &self,
        output: &RetinaNetOutput,
        [logits, deltas]: [&[f32]; 2],
        size: [usize; 2],
    ) -> Vec<AnchorDetection> {
        let (classes, limits) = (self.config.classes, self.config.limits);
        let (mut corners, mut scores, mut places) = (Vec::new(), Vec::new(), Vec::new());
        let mut first = 0;
        for &anchors in &output.levels {
            let level = &logits[first * classes..][..anchors * classes];
            for (score, place) in best(level, limits.score, self.config.candidates) {
                let anchor = first + place / classes;
                let deltas: [f32; 4] = deltas[4 * anchor..][..4].try_into().expect("four deltas an anchor");
                corners.push(clip(BoxCoder::ANCHORS.decode(deltas, output.anchors[anchor]), size));
                scores.push(score);
                places.push((anchor, place % classes));
            }
            first += anchors;
        }
        let of_class: Vec<usize> = places.iter().map(|(_, class)| *class).collect();
        let kept = nms_by_class(&corners, &scores, &of_class, limits.overlap);
        let found = |index: usize| {
            let (anchor, class) = places[index];
            AnchorDetection { detection: detection(class, scores[index], corners[index], size), anchor }
        };
        kept.into_iter().take(limits.detections).map(found).collect()
    }

    /// The losses of a batch: `class` and `box`.
    ///
    /// # Panics
    /// When the images do not fit the trunk, or an object has a class that the model does not have.
    pub fn losses(&self, images: &Images, objects: &[Vec<Object>], pass: &mut Pass) -> DetectionLosses {
        assert_eq!(images.sizes.len(), objects.len(), "retinanet: one list of objects for each picture");
        let output = self.forward(images.pixels.clone(), pass);
        let targets: Vec<Targets> = objects
            .iter()
            .zip(&images.sizes)
            .map(|(objects, size)| Targets::of(objects, *size, self.config.classes))
            .collect();
        self.losses_of(output, &targets)
    }

    fn losses_of(&self, output: RetinaNetOutput, targets: &[Targets]) -> DetectionLosses {
        let RetinaNetOutput { logits, deltas, anchors, .. } = output;
        let [batch, count, classes] = logits.dims();
        let (mut wanted, mut weights) = (Vec::new(), Vec::new());
        let mut positive = Positive::default();
        for (image, targets) in targets.iter().enumerate() {
            let matches = self.config.matcher.matches(&targets.corners, &anchors);
            let objects = matches.iter().filter(|matched| matched.object().is_some()).count();
            let weight = 1.0 / objects.max(1) as f32;
            weights.extend(std::iter::repeat_n(weight, count));
            wanted.extend(matches.iter().map(|matched| match matched {
                Match::Object(object) => FocalTarget::Class(targets.classes[*object] as u32),
                Match::Background => FocalTarget::Background,
                Match::Ignored => FocalTarget::Ignored,
            }));
            for (anchor, object) in matches.iter().enumerate().filter_map(|(at, m)| Some((at, m.object()?))) {
                positive.rows.push(image * count + anchor);
                positive.anchors.push(anchors[anchor]);
                positive.objects.push(targets.corners[object]);
                positive.weights.push(weight);
            }
        }
        let class = sigmoid_focal(logits.reshape([batch * count, classes]), wanted, weights, FOCAL);
        let boxes = positive.loss(deltas.reshape([batch * count, 4]), self.config.box_loss);
        DetectionLosses { parts: vec![("class", class), ("box", boxes)] }
    }
}

/// The positive anchors.
#[derive(Default)]
struct Positive {
    /// Their rows among the deltas of the batch.
    rows: Vec<usize>,
    anchors: Vec<Corners>,
    objects: Vec<Corners>,
    weights: Vec<f32>,
}

impl Positive {
    fn loss(&self, deltas: Tensor<2>, loss: BoxLoss) -> Tensor<1> {
        let device = deltas.device();
        if self.rows.is_empty() {
            return Tensor::zeros([1], &device);
        }
        let deltas = rows(deltas, &self.rows);
        let each: Tensor<1> = match loss {
            BoxLoss::L1 => {
                let wanted = to_tensor(&BoxCoder::ANCHORS.encode(&self.objects, &self.anchors), &device);
                smooth_l1(deltas, wanted, 0.0).sum_dim(1).squeeze_dim(1)
            }
            BoxLoss::Giou => {
                let boxes = BoxCoder::ANCHORS.decode_tensor(deltas, &self.anchors);
                giou(boxes, &self.objects, EPSILON).neg().add_scalar(1.0)
            }
        };
        let weights = TensorData::new(self.weights.clone(), [self.weights.len()]);
        (each * Tensor::<1>::from_data(weights, &device)).sum()
    }
}

/// The best sigmoids of logits over a threshold, by falling value; on a tie the earlier first.
fn best(logits: &[f32], threshold: f32, count: usize) -> Vec<(f32, usize)> {
    // most are far below the threshold and need no exponential
    let below = (threshold / (1.0 - threshold)).ln() - 1e-3;
    let above = logits.iter().enumerate().filter(|(_, logit)| **logit > below);
    let scores = above.map(|(place, logit)| (1.0 / (1.0 + (-logit).exp()), place));
    best_of(scores.filter(|(score, _)| *score > threshold).collect(), count)
}

impl BoxScore for RetinaNet {
    fn sources(&self, images: &Images, pass: &mut Pass) -> Vec<BoxSource> {
        let output = self.forward(images.pixels.clone(), pass);
        let found = self.read_out(&output, &images.sizes).into_iter().next().unwrap_or_default();
        let source =
            |found: AnchorDetection| BoxSource { detection: found.detection, place: BoxPlace::Anchor(found.anchor) };
        found.into_iter().map(source).collect()
    }

    fn score(&self, images: &Images, source: &BoxSource, pass: &mut Pass) -> Tensor<1> {
        let BoxPlace::Anchor(anchor) = source.place else { panic!("retinanet: answers come from anchors") };
        self.forward(images.pixels.clone(), pass).logit(0, anchor, source.detection.class)
    }

    fn levels(&self) -> Vec<String> {
        self.backbone.level_names()
    }
}

impl Costed for RetinaNet {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let levels = ledger.within("backbone", |ledger| self.backbone.cost(shape, ledger));
        for (index, level) in levels.iter().enumerate() {
            let write = |ledger: &mut Ledger| {
                for (name, head) in self.head.named() {
                    ledger.within("head", |ledger| ledger.part(name, &head, level.clone()));
                }
            };
            if index == 0 { write(ledger) } else { ledger.shared(write) }
        }
        let places: usize = levels.iter().map(|level| level[1] * level[2]).sum();
        vec![places * self.config.anchors.per_place(), self.config.classes + 4]
    }
}

#[cfg(test)]
mod tests;
