//! Faster R-CNN: region proposals, then a class and a box for each region.
//! Ren et al. 2015, "Faster R-CNN", arXiv:1506.01497; pyramids by Lin et al. 2017, arXiv:1612.03144.
//!
//! As in torchvision 0.29, whose names are used (`fasterrcnn_resnet50_fpn` and its second version), and as in detectron2
//! for the rows of DETR's table: background is the last class, regions are aligned, cells have as many
//! points as pixels, the trunk strides in its first 1x1 convolutions; DC5 reads one dilated level. Differences:
//! - resizing and normalising are outside the model: [`ResizeInside`](crate::data::ResizeInside). Weights of detectron2
//!   are for BGR: they are converted to RGB when loaded;
//! - classes are from 0, without background: torchvision's class `i` is `i - 1` here. For COCO there are 90;
//! - losses are sums over pictures. A mean over samples is one over the pictures of this process: with several
//!   processes the step is that of the mean of their means, weighted by their pictures, as in torchvision and detectron2.

mod presets;
mod roi_heads;
mod rpn;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::{
    BackboneConfig, BoxPlace, BoxScore, BoxSource, DetectionLimits, DetectionLosses, DetectorBackbone, Targets,
};
use crate::boxes::{Corners, Level, Sampler};
use crate::cost::{Costed, Ledger};
use crate::data::{Detection, Images, Object};
use crate::layers::check_size;
use crate::models::limits::{check_image, check_parameters};
use crate::{Error, Pass};

pub use presets::PRESETS;
pub use roi_heads::{
    Background, BoxHead, BoxHeadKind, BoxPredictor, ConvolutionHead, LinearHead, RegionDetection, RegionOutput,
    RegionsConfig, RoiHeads,
};
pub use rpn::{Proposal, ProposalCount, Rpn, RpnConfig, RpnHead, RpnOutput};

/// The configuration of a Faster R-CNN.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FasterRcnnConfig {
    /// Rows and columns of typical pictures; others are accepted too.
    pub image: [usize; 2],
    /// Without background.
    pub classes: usize,
    pub backbone: BackboneConfig,
    pub rpn: RpnConfig,
    pub regions: RegionsConfig,
    #[serde(default = "limits")]
    pub limits: DetectionLimits,
}

const fn limits() -> DetectionLimits {
    DetectionLimits { score: 0.05, overlap: 0.5, detections: 100 }
}

impl FasterRcnnConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        check_image(self.image)?;
        check_size("classes", self.classes)?;
        let (levels, sizes) = (self.backbone.levels(), self.rpn.anchors.sizes.len());
        if levels != sizes {
            return Err(Error::config("anchors", format!("have sizes for {sizes} levels, there are {levels}")));
        }
        if self.regions.levels > levels {
            let reason = format!("regions are read from {}, there are {levels}", self.regions.levels);
            return Err(Error::config("levels", reason));
        }
        self.limits.validate()
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<FasterRcnn, Error> {
        self.validate()?;
        let width = self.backbone.width()?;
        check_parameters(FasterRcnn {
            backbone: self.backbone.init(device)?,
            rpn: self.rpn.init(width, device)?,
            roi_heads: self.regions.init(width, self.classes, device)?,
            config: self.clone(),
        })
    }
}

/// The detector; made by [`FasterRcnnConfig::init`].
#[derive(Module, Debug)]
pub struct FasterRcnn {
    pub backbone: DetectorBackbone,
    pub rpn: Rpn,
    pub roi_heads: RoiHeads,
    #[module(skip)]
    config: FasterRcnnConfig,
}

/// The outputs of a Faster R-CNN.
#[derive(Clone, Debug)]
pub struct FasterRcnnOutput {
    pub rpn: RpnOutput,
    /// The proposals of each picture, best first, which are the regions.
    pub proposals: Vec<Vec<Proposal>>,
    pub regions: RegionOutput,
}

impl FasterRcnn {
    pub const fn config(&self) -> &FasterRcnnConfig {
        &self.config
    }

    /// The outputs for a batch. Records the trunk (`backbone.body.layer1`); watches the levels
    /// (`backbone.fpn.layer_blocks.0`), the maps of the proposal head (`rpn.head.conv.level0`) and the grids of the regions
    /// (`roi_heads.box_roi_pool`).
    ///
    /// # Panics
    /// When the images do not fit the trunk.
    pub fn forward(&self, images: &Images, pass: &mut Pass) -> FasterRcnnOutput {
        let (levels, rpn) = self.propose(images, pass);
        let proposals = self.rpn.proposals(&rpn, &images.sizes, false);
        let (of_image, corners) = flat(&proposals);
        let regions = pass.within("roi_heads", |pass| self.roi_heads.forward(&levels, (&of_image, &corners), pass));
        FasterRcnnOutput { rpn, proposals, regions }
    }

    fn propose(&self, images: &Images, pass: &mut Pass) -> (Vec<Level>, RpnOutput) {
        let [_, _, rows, columns] = images.pixels.dims();
        let levels = pass.within("backbone", |pass| self.backbone.forward(images.pixels.clone(), pass));
        let rpn = pass.within("rpn", |pass| self.rpn.forward(&levels, [rows, columns], pass));
        (levels, rpn)
    }

    /// The detections of every picture, best first.
    ///
    /// # Panics
    /// When the images do not fit the trunk.
    pub fn detect(&self, images: &Images, pass: &mut Pass) -> Vec<Vec<Detection>> {
        let found = self.read_out(&self.forward(images, pass), &images.sizes);
        found.into_iter().map(|found| found.into_iter().map(|found| found.detection).collect()).collect()
    }

    /// The detections of pictures of these sizes, best first, each with its region.
    #[must_use]
    pub fn read_out(&self, output: &FasterRcnnOutput, sizes: &[[usize; 2]]) -> Vec<Vec<RegionDetection>> {
        let corners = |proposals: &Vec<Proposal>| proposals.iter().map(|proposal| proposal.corners).collect();
        let regions: Vec<Vec<Corners>> = output.proposals.iter().map(corners).collect();
        self.roi_heads.read_out(&output.regions, &regions, sizes, self.config.limits)
    }

    /// The logit of a class of a region, for differentiation with respect to watched tensors: `[1]`.
    #[must_use]
    pub fn logit(&self, output: &FasterRcnnOutput, region: usize, class: usize) -> Tensor<1> {
        self.roi_heads.logit(&output.regions, region, class)
    }

    /// The losses of a batch: `objectness`, `rpn_box`, `class` and `box`. `sampler` chooses anchors and regions.
    ///
    /// # Panics
    /// When the images do not fit the trunk, or an object has a class that the model does not have.
    pub fn losses(
        &self,
        images: &Images,
        objects: &[Vec<Object>],
        sampler: &dyn Sampler,
        pass: &mut Pass,
    ) -> DetectionLosses {
        assert_eq!(images.sizes.len(), objects.len(), "faster r-cnn: one list of objects for each picture");
        let of = objects.iter().zip(&images.sizes);
        let targets: Vec<Targets> =
            of.map(|(objects, size)| Targets::of(objects, *size, self.config.classes)).collect();
        let (levels, rpn) = self.propose(images, pass);
        let proposals = self.rpn.proposals(&rpn, &images.sizes, true);
        let sampled = self.roi_heads.sample(&proposals, &targets, sampler);
        let regions = pass.within("roi_heads", |pass| self.roi_heads.forward(&levels, sampled.regions(), pass));
        let [objectness, rpn_box] = self.rpn.losses(rpn, &targets, sampler);
        let [class, boxes] = self.roi_heads.losses(regions, &sampled);
        let parts = [("objectness", objectness), ("rpn_box", rpn_box), ("class", class), ("box", boxes)];
        let pictures = objects.len() as f64;
        DetectionLosses { parts: parts.map(|(name, mean)| (name, mean.mul_scalar(pictures))).into() }
    }
}

impl BoxScore for FasterRcnn {
    fn sources(&self, images: &Images, pass: &mut Pass) -> Vec<BoxSource> {
        let output = self.forward(images, pass);
        let found = self.read_out(&output, &images.sizes).into_iter().next().unwrap_or_default();
        let source = |found: RegionDetection| BoxSource {
            detection: found.detection,
            // those of the first picture come first
            place: BoxPlace::Region(output.proposals[0][found.region].corners),
        };
        found.into_iter().map(source).collect()
    }

    fn score(&self, images: &Images, source: &BoxSource, pass: &mut Pass) -> Tensor<1> {
        let BoxPlace::Region(corners) = source.place else { panic!("faster r-cnn: answers come from regions") };
        let levels = pass.within("backbone", |pass| self.backbone.forward(images.pixels.clone(), pass));
        let regions = pass.within("roi_heads", |pass| self.roi_heads.forward(&levels, (&[0], &[corners]), pass));
        self.roi_heads.logit(&regions, 0, source.detection.class)
    }

    fn levels(&self) -> Vec<String> {
        self.backbone.level_names()
    }
}

/// The image of each region, and its corners.
fn flat(proposals: &[Vec<Proposal>]) -> (Vec<usize>, Vec<Corners>) {
    let each = proposals.iter().enumerate();
    each.flat_map(|(image, proposals)| proposals.iter().map(move |proposal| (image, proposal.corners))).unzip()
}

impl Costed for FasterRcnn {
    /// With the maximum number of proposals as regions.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let levels = ledger.within("backbone", |ledger| self.backbone.cost(shape, ledger));
        ledger.within("rpn", |ledger| self.rpn.cost(&levels, ledger));
        let regions = self.config.rpn.inference.after;
        ledger.within("roi_heads", |ledger| self.roi_heads.cost(levels[0][0], regions, ledger));
        vec![regions, self.config.classes + 1]
    }
}

#[cfg(test)]
mod tests;
