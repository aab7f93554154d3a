//! Samples the anchors or regions of an image that are learned in a step: a fixed number, with a maximum fraction of objects.
//! Girshick 2015, "Fast R-CNN", arXiv:1504.08083.
//!
//! Draws depend on the seed, the step and the image alone. Tests, and comparisons of losses with other libraries,
//! use their own [`Sampler`].

use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};

use crate::random::{Purpose, generator};

/// How many samples are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Per image.
    pub count: usize,
    /// Maximum fraction of objects.
    pub positive: f64,
}

/// Identifies a draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawId {
    /// Anchors of an image of the batch.
    Anchors { image: usize },
    /// Regions of an image of the batch.
    Regions { image: usize },
}

/// Samples from objects and background.
pub trait Sampler {
    /// Samples of `positive` and of `negative`, as many as `balance` allows.
    fn sample(&self, draw: DrawId, positive: &[usize], negative: &[usize], balance: Balance) -> [Vec<usize>; 2];
}

/// Draws without replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    pub seed: u64,
    /// Unique for each batch of the run.
    pub step: u64,
}

impl Sampler for RandomSampler {
    fn sample(&self, draw: DrawId, positive: &[usize], negative: &[usize], balance: Balance) -> [Vec<usize>; 2] {
        let place = match draw {
            DrawId::Anchors { image } => 2 * image as u64,
            DrawId::Regions { image } => 2 * image as u64 + 1,
        };
        let mut random = generator(self.seed, Purpose::Sample, [self.step, place]);
        let mut some = |of: &[usize], count: usize| {
            let mut indices = of.to_vec();
            let (drawn, _) = indices.partial_shuffle(&mut random, count);
            let mut drawn = drawn.to_vec();
            drawn.sort_unstable();
            drawn
        };
        let objects = ((balance.count as f64 * balance.positive) as usize).min(positive.len());
        [some(positive, objects), some(negative, (balance.count - objects).min(negative.len()))]
    }
}
