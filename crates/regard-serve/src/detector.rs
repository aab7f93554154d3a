//! Detectors: from the bytes of a file to boxes with classes, and the evidence for a box.

use burn::tensor::Device;
use regard::Pass;
use regard::cost::Convention;
use regard::data::{Detection, DetectionPreprocess, NormalisedPicture, Picture};
use regard::models::detect::{self, DetectorConfig};
use regard::weights::LoadedDetector;
use std::sync::Arc;

use crate::box_attention::{self, BoxAttention, best_first};
use crate::budget::{Budget, Charge};
use crate::classifier::count_parameters;
use crate::error::ApiError;
use crate::lane::{Batch, Permit, Served};
use crate::slot::ModelSlot;

/// Maximum number of preprocessed pixels of one forward pass: a network needs hundreds of bytes for each.
pub const MOST_PIXELS: usize = 1 << 21;

/// Maximum number of detections per picture in tensors, regardless of the configuration.
const MOST_ROWS: usize = 1000;

/// Maximum magnitude of a normalised picture. Beyond it activations overflow, and an overflow would look like no detections.
const LARGEST_LEVEL: f32 = 1e4;

/// Bytes of a pixel after preprocessing: three channels in f32.
const BYTES_OF_PIXEL: usize = 12;

/// A detector with its preprocessing and class names.
#[derive(Debug)]
pub struct Detector {
    model: detect::Detector,
    config: DetectorConfig,
    preprocess: DetectionPreprocess,
    labels: Vec<String>,
    device: Device,
    multiply_adds: u64,
}

/// A picture after preprocessing.
#[derive(Debug)]
pub struct PreprocessedPicture {
    pub picture: NormalisedPicture,
    /// Rows and columns of the picture as it was sent, upright.
    pub size: [usize; 2],
    /// Its charge to the budget; keep it as long as the picture is queued.
    pub charge: Charge,
}

impl Detector {
    /// # Errors
    /// When the number of labels is not the number of classes.
    pub fn new(loaded: LoadedDetector, labels: Vec<String>, device: &Device) -> Result<Self, String> {
        let LoadedDetector { model, config, preprocess, .. } = loaded;
        if labels.len() != config.classes() {
            return Err(format!("{} labels for a detector of {} classes", labels.len(), config.classes()));
        }
        let ledger = config.ledger(config.image()).map_err(|error| error.to_string())?;
        let multiply_adds = ledger.total(Convention::MultiplyAdds);
        Ok(Self { model, config, preprocess, labels, device: device.clone(), multiply_adds })
    }

    pub const fn config(&self) -> &DetectorConfig {
        &self.config
    }

    pub fn labels(&self) -> &[String] {
        &self.labels
    }

    pub fn parameters(&self) -> usize {
        count_parameters(&self.model)
    }

    /// For one picture of the usual size.
    pub const fn multiply_adds(&self) -> u64 {
        self.multiply_adds
    }

    /// Maximum number of detections per picture.
    pub fn most_detections(&self) -> usize {
        let most = match &self.config {
            DetectorConfig::Detr(config) => config.num_queries,
            DetectorConfig::Retinanet(config) => config.limits.detections,
            DetectorConfig::FasterRcnn(config) => config.limits.detections,
        };
        most.min(MOST_ROWS)
    }

    /// A preprocessed picture, charged to the budget before it is made.
    ///
    /// # Errors
    /// When it has too many pixels, or the budget is used up.
    pub fn preprocess(&self, picture: &Picture, budget: &Budget) -> Result<PreprocessedPicture, ApiError> {
        let pixels = check_size(self.preprocess.size(picture.size()))?;
        let charge = budget.charge(BYTES_OF_PIXEL * pixels)?;
        let prepared = self.preprocess.prepare(picture);
        Ok(PreprocessedPicture { picture: prepared, size: picture.size(), charge })
    }

    /// Detections of each picture, best first. Pictures of one size share a forward pass; others would be padded, which
    /// changes detections at the border.
    fn detect(&self, pictures: &[&NormalisedPicture], batch: &Batch<'_>) -> Result<Vec<Vec<Detection>>, ApiError> {
        let mut found = vec![Vec::new(); pictures.len()];
        let mut order: Vec<usize> = (0..pictures.len()).collect();
        order.sort_by_key(|index| pictures[*index].size);
        for alike in order.chunk_by(|one, other| pictures[*one].size == pictures[*other].size) {
            let [rows, columns] = pictures[alike[0]].size;
            let together = (MOST_PIXELS / (rows * columns).max(1)).clamp(1, batch.max_size.max(1));
            for part in alike.chunks(together) {
                if !batch.is_wanted() {
                    return Err(ApiError::Internal);
                }
                let part_pictures: Vec<NormalisedPicture> = part.iter().map(|index| pictures[*index].clone()).collect();
                let images = self.preprocess.batch(&part_pictures)?.to_device(&self.device);
                for (index, mut detections) in part.iter().zip(self.model.detect(&images, &mut Pass::silent())) {
                    best_first(&mut detections, |detection| detection.score);
                    found[*index] = detections;
                }
            }
        }
        Ok(found)
    }

    fn attend(&self, picture: &NormalisedPicture, index: usize) -> Result<BoxAttention, ApiError> {
        let images = self.preprocess.batch(std::slice::from_ref(picture))?.to_device(&self.device);
        box_attention::of(&self.model, &images, index)
    }
}

/// The number of pixels of a picture of this size.
///
/// # Errors
/// When there are too many.
fn check_size([rows, columns]: [usize; 2]) -> Result<usize, ApiError> {
    let pixels = rows.checked_mul(columns).filter(|pixels| *pixels <= MOST_PIXELS);
    pixels.ok_or_else(|| {
        let reason = format!("the detector would see {columns} x {rows} pixels, the most is {MOST_PIXELS}");
        ApiError::Unprocessable(format!("{reason}; send a smaller picture"))
    })
}

/// The pictures of a tensor `[B, 3, H, W]`, normalised by the client.
///
/// # Errors
/// When the numbers do not fit the shape or are out of range.
pub fn pictures_of(numbers: Vec<f32>, [count, rows, columns]: [usize; 3]) -> Result<Vec<NormalisedPicture>, ApiError> {
    let picture = 3 * check_size([rows, columns])?;
    if Some(numbers.len()) != picture.checked_mul(count) {
        let expected = picture as u128 * count as u128;
        return Err(ApiError::BadRequest(format!("`input` has {} numbers, its shape {expected}", numbers.len())));
    }
    if let Some(level) = numbers.iter().find(|level| level.is_nan() || level.abs() > LARGEST_LEVEL) {
        let reason =
            format!("`input` has the number {level}; those of a normalised picture are at most {LARGEST_LEVEL}");
        return Err(ApiError::Unprocessable(reason));
    }
    let size = [rows, columns];
    if count == 1 {
        return Ok(vec![NormalisedPicture { values: numbers, size }]);
    }
    Ok(numbers.chunks_exact(picture).map(|values| NormalisedPicture { values: values.to_vec(), size }).collect())
}

/// A request to a detector.
pub enum DetectorRequest {
    Detect {
        pictures: Vec<NormalisedPicture>,
    },
    /// The evidence for the detection of this index, in the order of [`DetectorRequest::Detect`].
    Attention {
        picture: NormalisedPicture,
        index: usize,
    },
}

/// Its response.
pub enum DetectorResponse {
    /// For each picture, best first.
    Detections(Result<Vec<Vec<Detection>>, ApiError>),
    Attention(Result<BoxAttention, ApiError>),
}

impl Served for Detector {
    type Request = DetectorRequest;
    type Response = DetectorResponse;

    /// Runs pictures of one size together, and explains boxes one by one.
    fn answer(&self, requests: &[DetectorRequest], batch: &Batch<'_>) -> Vec<DetectorResponse> {
        let mut all = Vec::new();
        for request in requests {
            if let DetectorRequest::Detect { pictures } = request {
                all.extend(pictures);
            }
        }
        let mut found = self.detect(&all, batch).map(Vec::into_iter);
        let answer = |request: &DetectorRequest| match request {
            DetectorRequest::Detect { pictures } => DetectorResponse::Detections(match &mut found {
                Ok(found) => Ok(found.by_ref().take(pictures.len()).collect()),
                Err(error) => Err(error.clone()),
            }),
            DetectorRequest::Attention { picture, index } => DetectorResponse::Attention(self.attend(picture, *index)),
        };
        requests.iter().map(answer).collect()
    }
}

impl ModelSlot<Detector> {
    /// Detections of each picture, best first; `None` if one is not finite.
    pub async fn detect(
        &self,
        permit: Permit,
        model: Arc<Detector>,
        pictures: Vec<NormalisedPicture>,
    ) -> Result<Option<Vec<Vec<Detection>>>, ApiError> {
        match self.lane().submit(permit, model, DetectorRequest::Detect { pictures }).await? {
            DetectorResponse::Detections(found) => {
                let found = found?;
                let is_finite = found.iter().flatten().all(box_attention::is_finite);
                Ok(is_finite.then_some(found))
            }
            DetectorResponse::Attention(_) => Err(ApiError::Internal),
        }
    }

    /// The evidence for the detection of this index.
    pub async fn attention(
        &self,
        permit: Permit,
        model: Arc<Detector>,
        picture: NormalisedPicture,
        index: usize,
    ) -> Result<BoxAttention, ApiError> {
        match self.lane().submit(permit, model, DetectorRequest::Attention { picture, index }).await? {
            DetectorResponse::Attention(found) => {
                Some(found?).filter(BoxAttention::is_finite).ok_or_else(|| ApiError::NotFinite(self.name().into()))
            }
            DetectorResponse::Detections(_) => Err(ApiError::Internal),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard::device::cpu;
    use regard::weights::resolve_detector;

    fn detector(name: &str) -> Detector {
        let loaded = resolve_detector(name, &mut |_| {}).unwrap().load(&cpu()).unwrap();
        let labels = (0..loaded.config.classes()).map(|class| class.to_string()).collect();
        Detector::new(loaded, labels, &cpu()).unwrap()
    }

    fn noise([rows, columns]: [usize; 2], seed: usize) -> NormalisedPicture {
        let level = |i: usize| ((i * 37 + seed * 101) as f32 * 0.7).sin();
        NormalisedPicture { values: (0..3 * rows * columns).map(level).collect(), size: [rows, columns] }
    }

    fn answers(detector: &Detector, requests: &[DetectorRequest]) -> Vec<Vec<Vec<Detection>>> {
        let responses = detector.answer(requests, &Batch::new(4, &|| true));
        let detections = |response: DetectorResponse| match response {
            DetectorResponse::Detections(found) => found.unwrap(),
            DetectorResponse::Attention(_) => panic!("nobody asked for attention"),
        };
        responses.into_iter().map(detections).collect()
    }

    #[test]
    fn a_batch_of_mixed_sizes_is_answered_as_single_pictures_are() {
        for name in ["scenes-retinanet", "detr-nano"] {
            let detector = detector(name);
            let sizes = [[64, 64], [48, 80], [64, 64], [33, 70], [64, 64], [48, 80], [64, 64], [64, 64]];
            let pictures: Vec<NormalisedPicture> = sizes.iter().enumerate().map(|(i, size)| noise(*size, i)).collect();
            let one = |picture: &NormalisedPicture| DetectorRequest::Detect { pictures: vec![picture.clone()] };
            let mut requests: Vec<DetectorRequest> = pictures[..6].iter().map(one).collect();
            requests.push(DetectorRequest::Detect { pictures: pictures[6..].to_vec() });
            let together: Vec<Vec<Detection>> = answers(&detector, &requests).into_iter().flatten().collect();
            assert_eq!(together.len(), pictures.len());
            for (picture, together) in pictures.iter().zip(&together) {
                let alone = answers(&detector, &[one(picture)]).remove(0).remove(0);
                assert_eq!(alone.len(), together.len(), "{name}");
                for (alone, together) in alone.iter().zip(together) {
                    assert!((alone.score - together.score).abs() < 1e-5, "{name}: {alone:?} {together:?}");
                    assert_eq!(alone.class, together.class, "{name}");
                    let [one, other] = [alone, together].map(|found| found.bounds.corners());
                    assert!(one.iter().zip(other).all(|(a, b)| (a - b).abs() < 1e-4), "{name}: {one:?} {other:?}");
                }
                assert!(together.is_sorted_by(|one, other| one.score >= other.score), "{name}: the best first");
            }
        }
    }

    #[test]
    fn what_nobody_waits_for_is_not_computed() {
        let request = DetectorRequest::Detect { pictures: vec![noise([64, 64], 1)] };
        let responses = detector("scenes-retinanet").answer(&[request], &Batch::new(4, &|| false));
        assert!(matches!(responses[..], [DetectorResponse::Detections(Err(ApiError::Internal))]));
    }

    #[test]
    fn numbers_that_are_no_picture_are_refused_with_the_culprit() {
        let refused = |numbers: Vec<f32>, shape| pictures_of(numbers, shape).unwrap_err().to_string();
        assert!(refused(vec![0.0; 11], [1, 2, 2]).contains("11 numbers, its shape 12"));
        assert!(refused(vec![], [usize::MAX, 2, 2]).contains("0 numbers"));
        assert!(refused(vec![], [1, usize::MAX, 2]).contains("the most is 2097152"));
        assert!(refused([vec![0.0; 11], vec![3e38]].concat(), [1, 2, 2]).contains("at most 10000"));
        assert!(refused([vec![0.0; 11], vec![f32::NAN]].concat(), [1, 2, 2]).contains("NaN"));
        assert_eq!(pictures_of(vec![0.5; 24], [2, 2, 2]).unwrap().len(), 2);
    }

    #[test]
    fn a_picture_is_charged_before_it_is_made() {
        let detector = detector("scenes-retinanet");
        let picture = Picture::new([10, 10], vec![7; 300]).unwrap();
        assert_eq!(detector.preprocess(&picture, &Budget::new(1199)).unwrap_err(), ApiError::OutOfMemory);
        let budget = Budget::new(1200);
        let made = detector.preprocess(&picture, &budget).unwrap();
        assert_eq!((made.size, budget.charge(1).err()), ([10, 10], Some(ApiError::OutOfMemory)));
        drop(made);
        assert!(budget.charge(1200).is_ok());
    }
}
