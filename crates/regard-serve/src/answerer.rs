//! Models of vision and language: from a picture and texts to answers, to how well they match, and to what words look at.

use regard::data::text::Encoded;
use regard::data::vision_language::{GivenBox, OnePicture, RegionFeatures};
use regard::data::{Bounds, Picture};
use regard::tasks::vision_language::{CrossModal, RegionRecipe, TextWithRegions, VisionLanguageBundle};
use std::sync::Arc;

use crate::budget::{Budget, Charge};
use crate::classifier::count_parameters;
use crate::detector::MOST_PIXELS;
use crate::error::ApiError;
use crate::lane::{Batch, Permit, Served};
use crate::passes::passes;
use crate::slot::ModelSlot;

/// Maximum number of words and regions per request.
pub const MOST_TOKENS: usize = 1 << 14;

/// Maximum number of attention weights in a response.
const MOST_WEIGHTS: usize = 1 << 20;

/// What errors call a picture of a client.
const PICTURE: &str = "the picture";

/// A model with all that it needs to read texts and to find regions.
#[derive(Debug)]
pub struct Answerer {
    bundle: VisionLanguageBundle,
}

/// A picture of a client, and the boxes that the client drew into it.
#[derive(Debug)]
pub struct SentPicture {
    picture: Picture,
    boxes: Vec<GivenBox>,
    /// Held as long as the picture is queued.
    _charge: Charge,
}

impl SentPicture {
    /// Rows and columns.
    pub const fn size(&self) -> [usize; 2] {
        self.picture.size()
    }
}

/// What the texts of a request are about.
pub enum Seen {
    /// One picture, or two for statements, the same for all texts.
    Pictures(Vec<SentPicture>),
    /// The regions of the pictures of each text, from the client.
    Regions(Vec<Vec<RegionFeatures>>),
}

/// What is wanted of the texts of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// Probabilities of all answers.
    Answers,
    /// The probability that each is about its picture.
    Matches,
    /// Those of all answers to the first text, and what it looks at: in one layer, or in all.
    Attention { layer: Option<String> },
}

pub struct AnswererRequest {
    pub texts: Vec<Encoded>,
    pub seen: Seen,
    pub wanted: Wanted,
}

/// What was found.
#[derive(Debug)]
pub struct Found {
    /// Probabilities for each text.
    pub rows: Vec<Vec<f32>>,
    /// Of each picture; empty for regions from the client.
    pub regions: Vec<RegionFeatures>,
    pub cross: Option<CrossModal>,
}

pub type AnswererResponse = Result<Found, ApiError>;

impl Answerer {
    /// # Errors
    /// When a model cannot be used over HTTP.
    pub fn new(bundle: VisionLanguageBundle) -> Result<Self, String> {
        if bundle.config().features().is_none() {
            return Err(format!("a {} reads clips, which no request has", bundle.config().family()));
        }
        Ok(Self { bundle })
    }

    pub const fn bundle(&self) -> &VisionLanguageBundle {
        &self.bundle
    }

    pub fn parameters(&self) -> usize {
        count_parameters(self.bundle.model())
    }

    /// Whether it answers; otherwise it can at most match.
    pub fn answers(&self) -> bool {
        self.bundle.missing_for_answers().is_none()
    }

    /// Numbers of a region's feature.
    pub fn features(&self) -> usize {
        self.bundle.config().features().unwrap_or(0)
    }

    /// Texts as the model reads them, within the bounds of a request; `regions` are those of a text, as far as they are known.
    ///
    /// # Errors
    /// When a text is empty or too long, or all of them together are.
    pub fn read(&self, what: &'static str, texts: &[String], regions: usize) -> Result<Vec<Encoded>, ApiError> {
        let (mut tokens, mut read) = (0, Vec::new());
        for text in texts {
            let encoded = self.bundle.encode(what, text)?;
            tokens += encoded.ids.len() + regions;
            if tokens > MOST_TOKENS {
                let reason = format!("the texts have more than {MOST_TOKENS} words and regions; send fewer at a time");
                return Err(ApiError::Unprocessable(reason));
            }
            read.push(encoded);
        }
        Ok(read)
    }

    /// A picture that waits for its turn, charged to the budget; `boxes` are left, top, width and height in pixels.
    ///
    /// # Errors
    /// When it has too many pixels, a box has no area in it, or the budget is used up.
    pub fn picture(&self, picture: &Picture, boxes: &[[f64; 4]], budget: &Budget) -> Result<SentPicture, ApiError> {
        if let Some(RegionRecipe::File { .. }) = self.bundle.regions() {
            let reason = "the model knows regions from files only; send their features to `/v2/models/NAME/infer`";
            return Err(ApiError::Unprocessable(reason.into()));
        }
        let size = picture.size();
        if self.bundle.network_pixels(size) > MOST_PIXELS {
            let [rows, columns] = size;
            let reason = format!("regions of {columns} x {rows} pixels would be found in more than {MOST_PIXELS}");
            return Err(ApiError::Unprocessable(format!("{reason}; send a smaller picture")));
        }
        let given = |(number, corners): (usize, &[f64; 4])| {
            let bounds = Bounds::from_coco(*corners, size);
            let inside = bounds.clipped().filter(|_| corners.iter().all(|side| side.is_finite()));
            let reason = || format!("`regions[{number}]` has no area inside of the picture: {corners:?}");
            let bounds = inside.ok_or_else(|| ApiError::Unprocessable(reason()))?;
            Ok(GivenBox { bounds, class: None })
        };
        let boxes = boxes.iter().enumerate().map(given).collect::<Result<_, ApiError>>()?;
        let charge = budget.charge(picture.pixels().len())?;
        Ok(SentPicture { picture: picture.clone(), boxes, _charge: charge })
    }

    /// The regions of each text of a request, one list for all texts if they are about the same picture.
    fn see(&self, request: &AnswererRequest, batch: &Batch<'_>) -> Result<Vec<Vec<RegionFeatures>>, ApiError> {
        let pictures = match &request.seen {
            Seen::Regions(regions) => return Ok(regions.clone()),
            Seen::Pictures(pictures) => pictures,
        };
        if !batch.is_wanted() {
            return Err(ApiError::Internal);
        }
        let shown: Vec<OnePicture> = pictures
            .iter()
            .map(|sent| OnePicture { name: PICTURE, picture: &sent.picture, boxes: &sent.boxes })
            .collect();
        self.bundle.find_regions(&shown).map(|found| vec![found]).map_err(|error| match error {
            regard::Error::File { path, reason } if path == PICTURE => {
                ApiError::Unprocessable(format!("{PICTURE}: {reason}"))
            }
            other => other.into(),
        })
    }

    /// Rows of texts of several requests, in forward passes of bounded size.
    fn rows(&self, texts: &[TextWithRegions], wanted: &Wanted, batch: &Batch<'_>) -> Result<Vec<Vec<f32>>, ApiError> {
        let regions = |text: &TextWithRegions| text.1.iter().map(RegionFeatures::len).sum::<usize>();
        let lengths = texts.iter().map(|text| [text.0.ids.len(), regions(text)]).collect();
        let mut rows = vec![Vec::new(); texts.len()];
        for pass in passes(lengths, batch.max_size) {
            if !batch.is_wanted() {
                // no client waits for the rest
                return Err(ApiError::Internal);
            }
            let part: Vec<TextWithRegions> = pass.iter().map(|text| texts[*text]).collect();
            let found = if *wanted == Wanted::Matches {
                self.bundle.match_probabilities(&part)?.into_iter().map(|share| vec![share as f32]).collect()
            } else {
                self.bundle.probabilities(&part)?
            };
            for (text, row) in pass.into_iter().zip(found) {
                rows[text] = row;
            }
        }
        Ok(rows)
    }

    fn explain(
        &self,
        text: &Encoded,
        regions: Vec<RegionFeatures>,
        layer: Option<&str>,
        batch: &Batch<'_>,
    ) -> AnswererResponse {
        if !batch.is_wanted() {
            return Err(ApiError::Internal);
        }
        let (row, mut cross) = self.bundle.cross_modal((text, &regions))?;
        if let Some(layer) = layer {
            let known: Vec<String> = cross.layers.iter().map(|one| path(&one.layer).to_string()).collect();
            cross.layers.retain(|one| path(&one.layer) == layer);
            if cross.layers.is_empty() {
                let reason = format!("no layer `{layer}`; there are: {}", known.join(", "));
                return Err(ApiError::Unprocessable(reason));
            }
        }
        let weights: usize = cross.layers.iter().map(|layer| layer.weights.len()).sum();
        if weights > MOST_WEIGHTS {
            let reason = format!("attention of {weights} weights, the most is {MOST_WEIGHTS}; `layer` chooses one");
            return Err(ApiError::Unprocessable(reason));
        }
        Ok(Found { rows: vec![row], regions, cross: Some(cross) })
    }
}

/// The path of a layer by the name of its weights.
pub fn path(weights: &str) -> &str {
    weights.strip_suffix(".weights").unwrap_or(weights)
}

impl Served for Answerer {
    type Request = AnswererRequest;
    type Response = AnswererResponse;

    /// Finds the regions of one picture after the other, runs texts of all requests together, and explains one by one.
    fn answer(&self, requests: &[AnswererRequest], batch: &Batch<'_>) -> Vec<AnswererResponse> {
        let mut seen: Vec<Result<Vec<Vec<RegionFeatures>>, ApiError>> =
            requests.iter().map(|request| self.see(request, batch)).collect();
        let mut rows: Vec<Vec<Vec<f32>>> = requests.iter().map(|_| Vec::new()).collect();
        let mut failed: Vec<Option<ApiError>> = vec![None; requests.len()];
        for wanted in [Wanted::Answers, Wanted::Matches] {
            let of_kind =
                || requests.iter().zip(&seen).enumerate().filter(|(_, (request, _))| request.wanted == wanted);
            let mut owners = Vec::new();
            let mut texts: Vec<TextWithRegions> = Vec::new();
            for (index, (request, regions)) in of_kind() {
                let Ok(regions) = regions else { continue };
                for (number, text) in request.texts.iter().enumerate() {
                    owners.push(index);
                    texts.push((text, regions.get(number).unwrap_or(&regions[0]).as_slice()));
                }
            }
            match self.rows(&texts, &wanted, batch) {
                Ok(found) => owners.into_iter().zip(found).for_each(|(owner, row)| rows[owner].push(row)),
                Err(error) => owners.into_iter().for_each(|owner| failed[owner] = Some(error.clone())),
            }
        }
        let mut responses = Vec::new();
        for (index, (request, rows)) in requests.iter().zip(rows).enumerate() {
            let seen = std::mem::replace(&mut seen[index], Ok(Vec::new()));
            responses.push(match (seen, failed[index].take(), &request.wanted) {
                (Err(error), ..) | (_, Some(error), _) => Err(error),
                (Ok(seen), None, Wanted::Attention { layer }) => {
                    let regions = seen.into_iter().next().unwrap_or_default();
                    self.explain(&request.texts[0], regions, layer.as_deref(), batch)
                }
                (Ok(seen), None, Wanted::Answers | Wanted::Matches) => {
                    let is_sent = matches!(request.seen, Seen::Regions(_));
                    let regions = if is_sent { Vec::new() } else { seen.into_iter().next().unwrap_or_default() };
                    Ok(Found { rows, regions, cross: None })
                }
            });
        }
        responses
    }
}

impl ModelSlot<Answerer> {
    /// Probabilities for the texts of a request.
    pub async fn run(&self, permit: Permit, model: Arc<Answerer>, request: AnswererRequest) -> AnswererResponse {
        let is_from_client = matches!(request.seen, Seen::Regions(_));
        let found = self.lane().submit(permit, model, request).await??;
        if found.rows.iter().flatten().all(|share| share.is_finite()) {
            return Ok(found);
        }
        let name = self.name().into();
        Err(if is_from_client { ApiError::Overflow(name) } else { ApiError::NotFinite(name) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regard::data::{Part, world};
    use regard::device::cpu;
    use regard::tasks::vision_language::{DetectedLimits, EMBEDDED_ANSWERERS, RegionCache};
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn answerer() -> Answerer {
        let bundle = EMBEDDED_ANSWERERS[0].load(&cpu()).unwrap();
        let limits = DetectedLimits { score: 0.3, ..DetectedLimits::default() };
        let regions = RegionRecipe::Boxes { side: 16, detector: Some("scenes-retinanet".into()), limits };
        Answerer::new(bundle.with_regions(&regions, RegionCache::Off).unwrap()).unwrap()
    }

    fn request(model: &Answerer, index: usize, wanted: Wanted) -> AnswererRequest {
        let question = world::question(0, Part::Test, index);
        let picture = model.picture(&question.scene.picture(), &[], &Budget::new(1 << 20)).unwrap();
        let texts = model.read("question", &[question.text], 0).unwrap();
        AnswererRequest { texts, seen: Seen::Pictures(vec![picture]), wanted }
    }

    #[test]
    fn a_batch_gives_what_single_requests_give() {
        let model = answerer();
        let requests: Vec<AnswererRequest> = (0..9).map(|index| request(&model, 7 * index, Wanted::Answers)).collect();
        let together = model.answer(&requests, &Batch::new(4, &|| true));
        for (request, together) in requests.iter().zip(together) {
            let alone = model.answer(std::slice::from_ref(request), &Batch::new(4, &|| true)).remove(0).unwrap();
            let together = together.unwrap();
            assert_eq!(alone.regions, together.regions);
            let worst = alone.rows[0].iter().zip(&together.rows[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-5 && alone.rows[0].len() == 32, "{worst}");
        }
    }

    #[test]
    fn the_probabilities_beside_attention_are_those_without() {
        let model = answerer();
        let all = [request(&model, 5, Wanted::Answers), request(&model, 5, Wanted::Attention { layer: None })];
        let mut found = model.answer(&all, &Batch::new(8, &|| true)).into_iter().map(Result::unwrap);
        let (plain, explained) = (found.next().unwrap(), found.next().unwrap());
        let worst = plain.rows[0].iter().zip(&explained.rows[0]).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(worst < 1e-5 && plain.cross.is_none(), "{worst}");
        let cross = explained.cross.unwrap();
        assert_eq!(cross.layers.len(), 8);
        assert!(cross.checks().iter().all(regard::analyse::Check::holds), "{:?}", cross.checks());
    }

    #[test]
    fn work_ends_when_the_last_client_leaves() {
        let model = answerer();
        let budget = Budget::new(1 << 20);
        let question = world::question(0, Part::Test, 0);
        let picture = model.picture(&question.scene.picture(), &[], &budget).unwrap();
        let texts = model.read("question", &vec![question.text; 40], 0).unwrap();
        let many = AnswererRequest { texts, seen: Seen::Pictures(vec![picture]), wanted: Wanted::Answers };
        let asked = AtomicUsize::new(0);
        // once for the picture, once for the first of ten passes
        let is_wanted = || asked.fetch_add(1, Ordering::SeqCst) < 2;
        let responses = model.answer(&[many], &Batch::new(4, &is_wanted));
        assert!(matches!(responses[..], [Err(ApiError::Internal)]));
        assert_eq!(asked.load(Ordering::SeqCst), 3);
        for wanted in [Wanted::Answers, Wanted::Attention { layer: None }] {
            let responses = model.answer(&[request(&model, 1, wanted)], &Batch::new(4, &|| false));
            assert!(matches!(responses[..], [Err(ApiError::Internal)]));
        }
    }

    #[test]
    fn texts_are_bounded_by_their_tokens_and_pictures_by_the_budget() {
        let model = answerer();
        let long = vec!["is there a red bag left of the white tee ?".to_string(); 2000];
        let refused = model.read("question", &long, 0).unwrap_err().to_string();
        assert!(refused.contains("more than 16384 words and regions"), "{refused}");
        assert!(model.read("question", &long[..500], 0).is_ok());
        assert!(model.read("question", &long[..500], 100).is_err());
        let picture = Picture::new([10, 10], vec![7; 300]).unwrap();
        assert_eq!(model.picture(&picture, &[], &Budget::new(299)).unwrap_err(), ApiError::OutOfMemory);
        let large = Picture::new([1500, 1500], vec![7; 3 * 1500 * 1500]).unwrap();
        let refused = model.picture(&large, &[], &Budget::new(1 << 30)).unwrap_err().to_string();
        assert!(refused.contains("send a smaller picture"), "{refused}");
        for flat in [[1.0, 1.0, 0.0, 5.0], [20.0, 1.0, 5.0, 5.0], [1.0, 1.0, -3.0, 5.0], [f64::NAN; 4]] {
            let refused = model.picture(&picture, &[flat], &Budget::new(1 << 20)).unwrap_err().to_string();
            assert!(refused.contains("`regions[0]` has no area"), "{refused}");
        }
    }
}
