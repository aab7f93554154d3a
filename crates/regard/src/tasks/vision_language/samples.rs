//! Texts with the regions of their pictures, ready for a model, as samples of a loader.

use rand::{Rng, RngExt as _};
use std::sync::Arc;

use crate::Error;
use crate::data::text::{Encoded, WordPiece};
use crate::data::vision_language::{AnswerList, RegionFeatures, RegionSource, VisionLanguageDataset};
use crate::data::{SampleId, Samples};
use crate::random::{Purpose, generator};

/// How texts become tokens.
#[derive(Clone, Debug)]
pub struct TextEncoder {
    pub tokenizer: Arc<WordPiece>,
    /// Most tokens.
    pub longest: usize,
    /// Whether a question ends with a hidden word, in whose place the model answers.
    pub ends_with_mask: bool,
}

impl TextEncoder {
    /// # Errors
    /// When the tokenizer fails.
    pub fn encode(&self, text: &str) -> Result<Encoded, Error> {
        if !self.ends_with_mask {
            return self.tokenizer.encode(text, Some(self.longest));
        }
        // `[CLS] question [MASK] [SEP]`
        let mut encoded = self.tokenizer.encode(text, Some(self.longest - 1))?;
        let end = encoded.ids.len() - 1;
        encoded.ids.insert(end, self.tokenizer.special().mask);
        encoded.types.insert(end, encoded.types[end]);
        encoded.offsets.insert(end, (0, 0));
        Ok(encoded)
    }
}

/// Texts about pictures, ready for a model.
#[derive(Clone, Debug)]
pub struct TextSamples {
    pub dataset: Arc<dyn VisionLanguageDataset>,
    /// The texts that are taken, by their index in the dataset.
    pub indices: Arc<Vec<usize>>,
    pub encoder: TextEncoder,
    /// None leaves pictures out.
    pub regions: Option<Arc<dyn RegionSource>>,
    pub most_regions: usize,
    pub answers: Option<Arc<AnswerList>>,
    /// Whether half of the texts get one that is not about their picture, and how often that is wrong by one word alone.
    pub wrong_texts: Option<f64>,
    pub seed: u64,
}

/// A text, ready for a model.
#[derive(Clone, Debug)]
pub struct PreparedText {
    /// Its index in the dataset.
    pub index: usize,
    pub text: Encoded,
    /// A text that is not about the picture.
    pub wrong: Option<Encoded>,
    /// Whether matching shows the right text.
    pub is_matched: bool,
    /// Of each of its pictures; none when pictures are left out.
    pub regions: Vec<RegionFeatures>,
    /// Numbers of answers with their scores.
    pub answers: Vec<(usize, f32)>,
    /// The seed of its masked words and regions.
    pub draw: [u64; 2],
}

/// The draw in evaluation, the same in every epoch of every run.
pub const MEASURED: u64 = u64::MAX;

impl TextSamples {
    /// A text that is not about the picture: nearly right, or of another picture.
    fn wrong_text(&self, index: usize, hard: f64, draw: [u64; 2], random: &mut impl Rng) -> Result<String, Error> {
        if random.random::<f64>() < hard
            && let Some(text) = self.dataset.hard_negative(index, draw)
        {
            return Ok(text);
        }
        let own = self.dataset.sample(index)?.text;
        let picture = self.dataset.picture_id(index, 0);
        let mut other = String::new();
        // a dataset may have one picture alone: then any text does
        for _ in 0..20 {
            let at = self.indices[random.random_range(0..self.indices.len())];
            other = self.dataset.sample(at)?.text;
            if self.dataset.picture_id(at, 0) != picture && other != own {
                break;
            }
        }
        Ok(other)
    }
}

impl Samples for TextSamples {
    type Sample = PreparedText;
    type Batch = Vec<PreparedText>;

    fn len(&self) -> usize {
        self.indices.len()
    }

    fn name(&self, index: usize) -> String {
        self.dataset.name(self.indices[index])
    }

    fn validate(&self) -> Result<(), Error> {
        Ok(())
    }

    fn load(&self, id: SampleId) -> Result<PreparedText, Error> {
        let index = self.indices[id.index];
        let draw = [id.epoch, id.draw_id];
        let sample = self.dataset.sample(index)?;
        let mut random = generator(self.seed, Purpose::WrongText, draw);
        let is_matched = random.random::<bool>();
        let wrong = match self.wrong_texts {
            Some(hard) => Some(self.encoder.encode(&self.wrong_text(index, hard, draw, &mut random)?)?),
            None => None,
        };
        let mut regions = Vec::new();
        if let Some(source) = &self.regions {
            for which in 0..self.dataset.pictures() {
                let found = source.regions(&(&*self.dataset, index, which))?;
                if found.is_empty() {
                    let path = self.dataset.picture_name(index, which);
                    return Err(Error::File { path, reason: "no region in it".into() });
                }
                regions.push(found.first(self.most_regions));
            }
        }
        let answers = self.answers.as_ref().map_or(Vec::new(), |list| list.scores(&sample.answers));
        Ok(PreparedText { index, text: self.encoder.encode(&sample.text)?, wrong, is_matched, regions, answers, draw })
    }

    fn collate(&self, samples: Vec<PreparedText>) -> Result<Vec<PreparedText>, Error> {
        Ok(samples)
    }
}
