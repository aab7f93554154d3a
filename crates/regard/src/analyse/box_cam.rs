//! Grad-CAM for a box: the pixels of its level that support its class.
//! Selvaraju et al. 2017, "Grad-CAM", arXiv:1610.02391; Zhao and Chan 2023, "ODAM", arXiv:2304.06354.
//!
//! For detectors that read a box from one map: the map times the gradient of the score, summed over channels; negative values
//! become zero. Grad-CAM takes the mean of the gradient over all cells, which suits a class of the whole picture; the score of
//! a box is read from one place, so each cell keeps its own gradient, as in ODAM. With the mean, other objects of the class
//! light up too.

use burn::tensor::Tensor;
use burn::tensor::activation::relu;
use serde::Serialize;

use super::cells::{VisibleCells, check_finite};
use super::check::Check;
use super::gradients::slopes;
use crate::data::{Detection, Images};
use crate::models::detect::{BoxScore, BoxSource};
use crate::{Error, Pass};

/// The cells that support a box.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoxCam {
    pub detection: Detection,
    /// The level that the box is read from.
    pub layer: String,
    /// Rows and columns of cells; cells of padding are left out.
    pub size: [usize; 2],
    /// Height and width of a cell as fractions of the picture; the last cells may reach beyond it.
    pub cell: [f64; 2],
    /// `[H, W]`, never negative.
    pub values: Vec<f32>,
    pub check: Check,
}

/// The map of one detection in the first picture of a batch.
///
/// # Errors
/// When no level has a gradient: the score does not depend on the picture.
pub fn box_cam<D: BoxScore>(detector: &D, images: &Images, source: &BoxSource) -> Result<BoxCam, Error> {
    // norms use their running statistics, although maps are differentiated
    let detector = detector.clone().freeze();
    let levels = detector.levels();
    let mut pass = Pass::recording_only(levels.clone()).with_gradients();
    let gradients = detector.score(images, source, &mut pass).backward();
    let trace = pass.into_trace();
    let is_read = |gradient: &Tensor<4>| gradient.clone().abs().sum().into_scalar::<f32>() > 0.0;
    let found = levels.into_iter().find_map(|layer| {
        let gradient = trace.gradient::<4>(&layer, &gradients).ok().filter(is_read)?;
        Some((layer, gradient))
    });
    let (layer, gradient) =
        found.ok_or_else(|| Error::analysis("grad-cam", "no level changes the score of this box"))?;
    let map = trace.get::<4>(&layer)?.inner();
    let [_, _, rows, columns] = map.dims();
    let values = relu((gradient.clone() * map).sum_dim(1));
    let moved = |by: Tensor<4>| -> Result<f64, Error> {
        let score = detector.score(images, source, &mut Pass::silent().perturbed(layer.as_str(), by));
        Ok(score.into_scalar::<f32>().into())
    };
    let cells = VisibleCells::of(images, [rows, columns]);
    let values: Vec<f32> = values.into_data().iter::<f32>().take(rows * columns).collect();
    check_finite("grad-cam", &values)?;
    Ok(BoxCam {
        detection: source.detection,
        size: cells.size,
        cell: cells.cell,
        values: cells.crop(&values),
        check: slopes(&gradient, moved)?,
        layer,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::models::detect::faster_rcnn::FasterRcnnConfig;
    use crate::models::detect::retinanet::{HeadKind, RetinaNetConfig};
    use crate::testing::{random, stirred};

    fn assert_traced<D: BoxScore>(detector: &D) {
        let images = Images::unpadded(random([1, 3, 64, 64], 1));
        let sources = detector.sources(&images, &mut Pass::silent());
        let source = sources.first().expect("noise has an answer");
        let cam = box_cam(detector, &images, source).unwrap();
        assert!(cam.check.holds(), "{}", cam.check);
        assert!(cam.layer.starts_with("backbone.fpn.layer_blocks."));
        assert_eq!(cam.values.len(), cam.size[0] * cam.size[1]);
        assert!(cam.values.iter().all(|value| *value >= 0.0));
        // the score is the logit of the detection, before its sigmoid or softmax
        let score = f64::from(detector.score(&images, source, &mut Pass::silent()).into_scalar::<f32>());
        assert!(score.is_finite());
    }

    #[test]
    fn boxes_of_every_detector_with_anchors_can_be_traced_to_their_level() {
        let device = device::cpu();
        for kind in [HeadKind::Convolution, HeadKind::Attention { heads: 4, window: 5 }] {
            let mut config = RetinaNetConfig::nano(kind);
            config.limits.score = 0.0;
            assert_traced(&stirred(config.init(&device).unwrap()));
        }
        // random deltas would leave no proposal with an area
        let mut config = FasterRcnnConfig::nano();
        config.limits.score = 0.0;
        assert_traced(&config.init(&device).unwrap());
    }

    #[test]
    fn the_map_of_an_anchor_stays_within_reach_of_its_head() {
        let mut config = RetinaNetConfig::nano(HeadKind::Convolution);
        config.limits.score = 0.0;
        // a norm over groups would look at the whole level
        config.head.groups = None;
        let reach = 2 * (config.head.layers + 1) + 1;
        let detector = stirred(config.init(&device::cpu()).unwrap());
        let images = Images::unpadded(random([1, 3, 96, 96], 1));
        let sources = detector.sources(&images, &mut Pass::silent());
        let cams: Vec<BoxCam> =
            sources.iter().take(3).map(|source| box_cam(&detector, &images, source).unwrap()).collect();
        assert!(cams.iter().any(|cam| cam.size[0] > reach), "a level is larger than the reach of the head");
        for cam in cams {
            let lit = (0..cam.values.len()).filter(|cell| cam.values[*cell] > 0.0);
            let (rows, columns): (Vec<_>, Vec<_>) = lit.map(|cell| (cell / cam.size[1], cell % cam.size[1])).unzip();
            for axis in [rows, columns] {
                let (Some(first), Some(last)) = (axis.iter().min(), axis.iter().max()) else { continue };
                assert!(last - first < reach, "{first} to {last}, the head reaches {reach} cells");
            }
        }
    }

    #[test]
    fn the_score_of_an_anchor_is_the_logit_of_its_answer() {
        let mut config = RetinaNetConfig::nano(HeadKind::Convolution);
        config.limits.score = 0.0;
        let detector = stirred(config.init(&device::cpu()).unwrap());
        let images = Images::unpadded(random([1, 3, 64, 64], 1));
        let sources = detector.sources(&images, &mut Pass::silent());
        assert!(sources.len() >= 3);
        for source in sources.iter().take(3) {
            let logit = f64::from(detector.score(&images, source, &mut Pass::silent()).into_scalar::<f32>());
            assert!((1.0 / (1.0 + (-logit).exp()) - source.detection.score).abs() < 1e-5);
        }
    }
}
