//! The input of a model of vision and language, the same for all families: words, regions of pictures, and which heads are
//! wanted.
//!
//! Each family encodes boxes (as seven, five or four numbers, or not at all), masked regions and whole pictures in its own way.
//! Lists over all texts or pictures count row by row, padding included: position `n` of text `b` is `b * N + n`.

use burn::tensor::{Bool, Tensor, TensorData};

use crate::data::Words;
use crate::layers::rows_at;

/// A batch of texts, each with a picture or without.
#[derive(Clone, Debug)]
pub struct VisionLanguageInput {
    pub words: Words,
    /// Regions of the picture of each text; `None` for text only, which shows how much can be answered without looking.
    pub regions: Option<Regions>,
    pub wanted: Wanted,
}

/// Regions of pictures, padded at the end of each picture.
#[derive(Clone, Debug)]
pub struct Regions {
    /// What is seen in each region, `[B, R, F]`.
    pub features: Tensor<3>,
    /// Left, top, right and bottom of each region as shares of the picture, from 0 to 1: `[B, R, 4]`.
    pub boxes: Tensor<3>,
    /// Regions of each picture, `B` of them, each at least 1 and at most `R`.
    pub counts: Vec<usize>,
    /// Regions whose features the model must not see, `B * R` of them. Empty if none.
    pub masked: Vec<bool>,
    /// 0 for regions of the left picture and 1 for those of the right one, where a text is about two pictures: `B * R` of them.
    /// Empty if every text has one picture.
    pub pictures: Vec<u8>,
    /// The words that each region is known to show, as positions in its text: `B * R` lists. Empty if nothing is known.
    pub aligned: Vec<Vec<usize>>,
}

/// Which outputs are computed; the others are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Positions of words whose logits are wanted, through all texts.
    pub words: Vec<usize>,
    /// Regions whose features and classes are wanted, through all pictures.
    pub regions: Vec<usize>,
    /// Whether the text is about the picture.
    pub matching: bool,
    /// Which words are about which regions.
    pub alignment: bool,
    /// The answer to a question, or whether a statement about two pictures is true.
    pub answer: bool,
}

impl VisionLanguageInput {
    /// Number of texts.
    #[must_use]
    pub fn batch(&self) -> usize {
        self.words.tokens.batch()
    }

    /// # Panics
    /// When sizes of lists and tensors do not agree.
    pub(super) fn check(&self) {
        let Words { tokens, types } = &self.words;
        let (batch, places) = (tokens.batch(), tokens.batch() * tokens.length());
        let agree = |what: &str, found: usize, wanted: usize| {
            assert!(found == wanted, "vision and language: {found} {what}, expected {wanted}");
        };
        if !types.is_empty() {
            agree("types of tokens", types.len(), places);
        }
        assert!(
            self.wanted.words.iter().all(|at| *at < places),
            "vision and language: a wanted word is beyond {batch} x {}",
            tokens.length()
        );
        let Some(regions) = &self.regions else { return };
        let [pictures, count, _] = regions.features.dims();
        agree("pictures", pictures, batch);
        assert_eq!(regions.boxes.dims(), [batch, count, 4], "vision and language: boxes are not those of the regions");
        agree("counts of regions", regions.counts.len(), batch);
        assert!(
            regions.counts.iter().all(|own| (1..=count).contains(own)),
            "vision and language: a picture has no region, or more than {count}"
        );
        for (what, found) in [
            ("flags of masked regions", regions.masked.len()),
            ("pictures of regions", regions.pictures.len()),
            ("lists of aligned words", regions.aligned.len()),
        ] {
            if found > 0 {
                agree(what, found, batch * count);
            }
        }
        assert!(
            self.wanted.regions.iter().all(|at| *at < batch * count),
            "vision and language: a wanted region is beyond {batch} x {count}"
        );
    }
}

impl Regions {
    /// All regions of all pictures, of which nothing else is known.
    ///
    /// # Panics
    /// When there are not as many boxes as regions.
    #[must_use]
    pub fn new(features: Tensor<3>, boxes: Tensor<3>, counts: Vec<usize>) -> Self {
        let [batch, count, _] = features.dims();
        assert_eq!(boxes.dims(), [batch, count, 4], "regions: boxes are not those of the features");
        Self { features, boxes, counts, masked: Vec::new(), pictures: Vec::new(), aligned: Vec::new() }
    }

    /// Regions of the largest picture, `R`.
    #[must_use]
    pub fn length(&self) -> usize {
        self.features.dims()[1]
    }

    /// `[B, R]`, true for padding; none if all pictures have the same number of regions.
    pub fn padding(&self) -> Option<Tensor<2, Bool>> {
        let length = self.length();
        if self.counts.iter().all(|count| *count == length) {
            return None;
        }
        let hidden = self.counts.iter().flat_map(|count| (0..length).map(move |place| place >= *count));
        let data = TensorData::new(hidden.collect::<Vec<bool>>(), [self.counts.len(), length]);
        Some(Tensor::from_data(data, &self.features.device()))
    }

    /// The regions of the left picture (0) or the right one (1) alone.
    ///
    /// # Panics
    /// When a text has no region of this picture.
    pub(super) fn of_picture(&self, picture: u8) -> Self {
        let length = self.length();
        let own = |sample: usize| -> Vec<usize> {
            let places = (0..self.counts[sample]).map(|at| sample * length + at);
            places.filter(|at| self.pictures.get(*at).copied().unwrap_or(0) == picture).collect()
        };
        let rows: Vec<Vec<usize>> = (0..self.counts.len()).map(own).collect();
        assert!(
            rows.iter().all(|row| !row.is_empty()),
            "vision and language: a text without regions of picture {picture}"
        );
        let counts: Vec<usize> = rows.iter().map(Vec::len).collect();
        let longest = counts.iter().copied().max().unwrap_or(0);
        // padding repeats the first region
        let indices: Vec<usize> =
            rows.iter().flat_map(|row| (0..longest).map(|at| *row.get(at).unwrap_or(&row[0]))).collect();
        let take = |x: &Tensor<3>| {
            let width = x.dims()[2];
            rows_at(x.clone(), &indices).reshape([rows.len(), longest, width])
        };
        let masked =
            if self.masked.is_empty() { Vec::new() } else { indices.iter().map(|at| self.masked[*at]).collect() };
        let mut regions = Self::new(take(&self.features), take(&self.boxes), counts);
        regions.masked = masked;
        regions
    }

    /// The features, zeros where a region is masked: `[B, R, F]`.
    pub(super) fn visible_features(&self) -> Tensor<3> {
        if !self.masked.iter().any(|masked| *masked) {
            return self.features.clone();
        }
        let factors: Vec<f32> = self.masked.iter().map(|masked| f32::from(u8::from(!masked))).collect();
        let [batch, length, _] = self.features.dims();
        self.features.clone() * Tensor::from_data(TensorData::new(factors, [batch, length, 1]), &self.features.device())
    }

    /// Width and height of each box: `[B, R, 2]`.
    pub(super) fn sides(&self) -> Tensor<3> {
        self.boxes.clone().narrow(2, 2, 2) - self.boxes.clone().narrow(2, 0, 2)
    }

    /// Share of the picture that each box covers: `[B, R, 1]`.
    pub(super) fn areas(&self) -> Tensor<3> {
        let sides = self.sides();
        sides.clone().narrow(2, 0, 1) * sides.narrow(2, 1, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Tokens;
    use crate::device::cpu;
    use crate::testing::{random, values};

    fn input() -> VisionLanguageInput {
        let words = Words::new(Tokens::new(&[vec![2, 7, 3], vec![2, 3]]));
        let boxes = Tensor::from_data([[[0.1, 0.2, 0.5, 0.4], [0.0, 0.0, 1.0, 1.0]]; 2], &cpu());
        let regions = Some(Regions::new(random([2, 2, 3], 1), boxes, vec![2, 1]));
        VisionLanguageInput { words, regions, wanted: Wanted::default() }
    }

    #[test]
    fn padding_follows_the_counts_and_masked_features_are_zero() {
        let mut regions = input().regions.unwrap();
        let padding = regions.padding().unwrap().into_data().iter::<bool>().collect::<Vec<_>>();
        assert_eq!(padding, [false, false, false, true]);
        regions.masked = vec![false, true, false, false];
        let (all, visible) = (values(&regions.features), values(&regions.visible_features()));
        assert_eq!(visible[3..6], [0.0; 3]);
        assert_eq!((&visible[..3], &visible[6..]), (&all[..3], &all[6..]));
    }

    #[test]
    fn areas_are_shares_of_the_picture() {
        let regions = input().regions.unwrap();
        let areas = values(&regions.areas());
        assert!((areas[0] - 0.08).abs() < 1e-6 && (areas[1] - 1.0).abs() < 1e-6, "{areas:?}");
    }

    #[test]
    #[should_panic(expected = "vision and language: 3 types of tokens, expected 6")]
    fn a_list_of_another_length_is_named() {
        let mut input = input();
        input.check();
        input.words.types = vec![0; 3];
        input.check();
    }

    #[test]
    fn the_regions_of_one_picture_move_to_the_front() {
        let mut regions = input().regions.unwrap();
        regions.counts = vec![2, 2];
        regions.pictures = vec![1, 0, 0, 1];
        let right = regions.of_picture(1);
        assert_eq!(right.counts, [1, 1]);
        let all = values(&regions.features);
        assert_eq!(values(&right.features), [&all[..3], &all[9..]].concat());
    }

    #[test]
    #[should_panic(expected = "a wanted region is beyond 2 x 2")]
    fn a_region_that_is_not_there_is_refused() {
        let wanted = Wanted { regions: vec![4], ..Wanted::default() };
        VisionLanguageInput { wanted, ..input() }.check();
    }
}
