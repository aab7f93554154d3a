//! `VideoBERT`: a BERT over words and video tokens, `[CLS] words [>] video tokens [SEP]`.
//! Sun et al. 2019, "`VideoBERT`: A Joint Model for Video and Language Representation Learning", arXiv:1904.01766.
//!
//! A video token is the place of a clip's features in a [tree of centroids](HierarchicalKMeans). No code was released: types are
//! 0 up to and with `[>]` and 1 after, and 0 is for video and speech that belong together, as for BERT's next sentence.

mod quantiser;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::input::VisionLanguageInput;
use super::output::VisionLanguageOutput;
use crate::cost::{Costed, Ledger};
use crate::data::{Tokens, Words};
use crate::layers::bert::{BertHeads, BertLayerConfig, BertModel};
use crate::layers::{check_depth, check_size, rows_at};
use crate::models::limits::{check_parameters, check_vocabulary};
use crate::{Error, Pass};

pub use quantiser::{HierarchicalKMeans, KMeansConfig};

/// A `VideoBERT` in the paper's terms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VideoBertConfig {
    /// Words and special tokens, `[>]` among them; video tokens come after.
    pub words: usize,
    /// Children of each centroid.
    pub branches: usize,
    /// Levels of centroids: there are `branches ^ levels` video tokens.
    pub levels: u32,
    /// Most tokens of a text with its video.
    pub positions: usize,
    /// Segments: words and video.
    pub types: usize,
    pub layers: usize,
    /// Width of a token, `D`.
    pub dim: usize,
    pub heads: usize,
    /// Hidden width of the feed-forward network.
    pub inner: usize,
    /// Dropout rate.
    pub dropout: f64,
    /// Epsilon of norms.
    pub epsilon: f64,
}

impl VideoBertConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        self.layer().validate()?;
        check_depth(self.layers)?;
        check_size("positions", self.positions)?;
        if self.types < 2 {
            return Err(Error::config("types", format!("must be at least 2, got {}", self.types)));
        }
        check_vocabulary("words", self.words)?;
        let tokens = self.branches.checked_pow(self.levels).filter(|tokens| *tokens > 0);
        let Some(tokens) = tokens.and_then(|tokens| tokens.checked_add(self.words)) else {
            return Err(Error::config("branches", format!("{} ^ {} are no tokens", self.branches, self.levels)));
        };
        check_vocabulary("branches", tokens)
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<VideoBert, Error> {
        self.validate()?;
        let (layer, vocabulary) = (self.layer(), self.vocabulary());
        let bert = BertModel::new([vocabulary, self.positions, self.types], &layer, self.layers, device);
        check_parameters(VideoBert {
            bert: bert.with_pooler(&layer, device),
            cls: BertHeads::new(vocabulary, &layer, device),
        })
    }

    /// Number of video tokens.
    #[must_use]
    pub const fn video_tokens(&self) -> usize {
        self.branches.pow(self.levels)
    }

    /// Words and video tokens.
    #[must_use]
    pub const fn vocabulary(&self) -> usize {
        self.words + self.video_tokens()
    }

    const fn layer(&self) -> BertLayerConfig {
        let Self { dim, heads, inner, dropout, epsilon, .. } = *self;
        BertLayerConfig { dim, heads, inner, dropout, epsilon }
    }

    /// Texts and the video that each comes with. Words are `[CLS] .. ` without an end; `turn` is `[>]`, `end` is `[SEP]`, and
    /// video tokens count from 0.
    ///
    /// # Panics
    /// When texts and videos are not as many, or a video token is beyond the last.
    #[must_use]
    pub fn join(&self, texts: &[Vec<u32>], videos: &[Vec<u32>], turn: u32, end: u32) -> Words {
        assert_eq!(texts.len(), videos.len(), "video_bert: texts and videos are not as many");
        let last = self.video_tokens();
        let row = |(text, video): (&Vec<u32>, &Vec<u32>)| {
            assert!(video.iter().all(|token| (*token as usize) < last), "video_bert: a video token beyond {last}");
            let video = video.iter().map(|token| self.words as u32 + token);
            text.iter().copied().chain([turn]).chain(video).chain([end]).collect::<Vec<u32>>()
        };
        let tokens = Tokens::new(&texts.iter().zip(videos).map(row).collect::<Vec<_>>());
        let length = tokens.length();
        let types = texts.iter().flat_map(|text| (0..length).map(|at| u8::from(at > text.len()))).collect();
        Words { tokens, types }
    }
}

/// The model; made by [`VideoBertConfig::init`]. Its parameters have BERT's names.
#[derive(Module, Debug)]
pub struct VideoBert {
    pub bert: BertModel,
    pub cls: BertHeads,
}

impl VideoBert {
    /// Hidden states and the outputs that are wanted: words and video tokens are both among `words`, their alignment is
    /// `matching`. Weights are under `bert.encoder.layer.i.attention.self`.
    ///
    /// # Panics
    /// When the input has regions, or a text with its video has more tokens than there are positions.
    pub fn forward(&self, input: &VisionLanguageInput, pass: &mut Pass) -> VisionLanguageOutput {
        input.check();
        assert!(input.regions.is_none(), "video_bert: a video is tokens among the words, not regions");
        let text = pass.within("bert", |pass| self.bert.forward(&input.words, pass));
        let pooler = self.bert.pooler.as_ref().expect("init makes a pooler");
        let mut output = VisionLanguageOutput::of(text.clone(), None, pooler.forward(text));
        if let (Some(head), false) = (&self.cls.predictions, input.wanted.words.is_empty()) {
            let hidden = rows_at(output.text.clone(), &input.wanted.words);
            output.words = Some(head.forward(hidden, &self.bert.embeddings.word_embeddings));
        }
        if input.wanted.matching {
            output.matching = self.cls.seq_relationship.as_ref().map(|head| head.forward(output.pooled.clone()));
        }
        output
    }

    /// Most tokens of a text with its video.
    pub fn limit(&self) -> usize {
        self.bert.embeddings.limit()
    }
}

impl Costed for VideoBert {
    /// `[N, R] -> [N + R, D]` for words and video tokens, with the logits of all of them.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let [words, video] = shape[..] else { panic!("video_bert: words and video tokens are [N, R], got {shape:?}") };
        let x = ledger.within("bert", |ledger| self.bert.cost_of(words + video, ledger));
        ledger.within("cls", |ledger| self.cls.cost_of(&x, ledger));
        x
    }
}

impl HierarchicalKMeans {
    /// The tokens of clips `[T, F]`.
    ///
    /// # Panics
    /// When the features are not as wide as the centroids.
    pub fn tokens(&self, features: &Tensor<2>) -> Vec<u32> {
        let width = features.dims()[1];
        let values: Vec<f32> = features.clone().into_data().iter::<f32>().collect();
        values.chunks_exact(width).map(|vector| self.token(vector)).collect()
    }
}

#[cfg(test)]
mod tests;
