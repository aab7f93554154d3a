//! The evidence for a detection: for DETR the cross-attention of its query, for detectors with anchors Grad-CAM of its
//! score.

use regard::Pass;
use regard::analyse::{box_cam, cross_attention};
use regard::data::{Detection, Images};
use regard::models::detect::{BoxScore, Detector, detr::Detr};
use serde::Serialize;

use crate::error::ApiError;

/// A heat map for one detection.
#[derive(Clone, Debug, PartialEq)]
pub struct BoxAttention {
    pub detection: Detection,
    pub method: Method,
    /// The path of the map's layer.
    pub layer: String,
    pub grid: [usize; 2],
    /// Height and width that the grid spans, as fractions of the picture: the last cells may reach beyond it.
    pub span: [f64; 2],
    /// `[H, W]` of the grid; the mean over heads if there are several.
    pub values: Vec<f32>,
    /// By head; none for Grad-CAM.
    pub heads: Vec<Vec<f32>>,
}

/// The method of a heat map.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Attention weights of the query in the last decoder layer.
    CrossAttention,
    /// Gradients of the score at the level of the box.
    GradCam,
}

impl BoxAttention {
    /// Whether all numbers are finite: JSON has no others.
    pub fn is_finite(&self) -> bool {
        is_finite(&self.detection)
            && self.values.iter().chain(self.heads.iter().flatten()).all(|value| value.is_finite())
    }
}

pub fn is_finite(Detection { score, bounds, .. }: &Detection) -> bool {
    score.is_finite() && bounds.corners().iter().all(|corner| corner.is_finite())
}

/// Sorts by falling score, stably: the order in which clients index detections.
pub fn best_first<T>(all: &mut [T], score: impl Fn(&T) -> f64) {
    all.sort_by(|one, other| score(other).total_cmp(&score(one)));
}

/// The heat map of a detection in the first picture, by its index in falling score.
///
/// # Errors
/// When the index is too large, or the score does not depend on the picture.
pub fn of(model: &Detector, images: &Images, index: usize) -> Result<BoxAttention, ApiError> {
    match model {
        Detector::Detr(detr) => query_attention(detr, images, index),
        Detector::Retinanet(model) => grad_cam(model, images, index),
        Detector::FasterRcnn(model) => grad_cam(model, images, index),
    }
}

fn missing(index: usize, count: usize) -> ApiError {
    ApiError::Unprocessable(format!("no detection at `index` {index}: there are {count} on this picture"))
}

/// The extent of a grid of cells: the last ones may reach beyond the picture.
fn span(size: [usize; 2], cell: [f64; 2]) -> [f64; 2] {
    [0, 1].map(|axis| size[axis] as f64 * cell[axis])
}

fn grad_cam<D: BoxScore>(model: &D, images: &Images, index: usize) -> Result<BoxAttention, ApiError> {
    let mut sources = model.sources(images, &mut Pass::silent());
    best_first(&mut sources, |source| source.detection.score);
    let source = sources.get(index).ok_or_else(|| missing(index, sources.len()))?;
    let cam = box_cam(model, images, source)?;
    Ok(BoxAttention {
        detection: cam.detection,
        method: Method::GradCam,
        layer: cam.layer,
        grid: cam.size,
        span: span(cam.size, cam.cell),
        values: cam.values,
        heads: Vec::new(),
    })
}

fn query_attention(detr: &Detr, images: &Images, index: usize) -> Result<BoxAttention, ApiError> {
    let attention = cross_attention(detr, images, None)?;
    let queries = attention.detected(0.0);
    let query = *queries.get(index).ok_or_else(|| missing(index, queries.len()))?;
    let map = attention.map(query)?;
    Ok(BoxAttention {
        detection: attention.detections[query],
        method: Method::CrossAttention,
        grid: map.size,
        span: span(map.size, map.cell),
        values: map.mean(),
        layer: map.layer,
        heads: map.heads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::{Distribution, Tensor};
    use regard::data::ImageBatch;
    use regard::device::cpu;
    use regard::weights::resolve_detector;

    fn loaded(name: &str) -> Detector {
        resolve_detector(name, &mut |_| {}).unwrap().load(&cpu()).unwrap().model
    }

    fn noise(rows: usize, columns: usize) -> Images {
        Images::unpadded(Tensor::random([1, 3, rows, columns], Distribution::Default, &cpu()))
    }

    #[test]
    fn the_heads_of_a_query_sum_to_one_and_their_mean_is_the_map() {
        let (detr, images) = (loaded("detr-nano"), noise(48, 64));
        for index in [0, 15] {
            let found = of(&detr, &images, index).unwrap();
            assert_eq!((found.method, found.heads.len()), (Method::CrossAttention, 4));
            for head in found.heads.iter().chain([&found.values]) {
                assert_eq!(head.len(), found.grid[0] * found.grid[1]);
                assert!((head.iter().sum::<f32>() - 1.0).abs() < 1e-4);
            }
        }
        let refused = of(&detr, &images, 16).unwrap_err().to_string();
        assert!(refused.contains("`index` 16: there are 16"), "{refused}");
    }

    #[test]
    fn the_map_of_an_index_is_that_of_the_detection_of_that_index() {
        let (detr, images) = (loaded("detr-nano"), noise(48, 64));
        let mut all = detr.detect(&images, &mut Pass::silent()).remove(0);
        best_first(&mut all, |detection| detection.score);
        for (index, one) in all.iter().enumerate() {
            let same = of(&detr, &images, index).unwrap().detection;
            assert!((same.score - one.score).abs() < 1e-5);
        }
    }

    #[test]
    fn grad_cam_of_a_box_on_a_padded_picture_leaves_the_padding_out() {
        let detector = loaded("scenes-retinanet");
        let values = (0..3 * 40 * 64).map(|i| ((i * 37) as f32 * 0.7).sin()).collect();
        let picture = regard::data::NormalisedPicture { values, size: [40, 64] };
        let images = ImageBatch::collate(&[picture]).unwrap().padded_to_multiple(16).to_device(&cpu());
        match of(&detector, &images, 0) {
            Ok(found) => {
                assert_eq!(found.method, Method::GradCam);
                // cells of padding are left out; the last may reach beyond the picture
                assert!(found.span[0] >= 1.0 && found.span[0] <= 1.2 && found.span[1] == 1.0, "{:?}", found.span);
                assert!(found.heads.is_empty() && found.is_finite());
                assert_eq!(found.values.len(), found.grid[0] * found.grid[1]);
            }
            // noise may have no garment
            Err(error) => assert!(error.to_string().contains("there are 0")),
        }
    }
}
