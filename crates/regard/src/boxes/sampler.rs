//! Which anchors or regions of an image learn in a step: a fixed number, with at most some fraction of objects.
//! Girshick 2015, "Fast R-CNN", arXiv:1504.08083.
//!
//! What is drawn depends on the seed, the step and the image alone. Tests and whoever compares losses with another program
//! bring a [`Sampler`] of their own.

use rand::seq::SliceRandom as _;
use serde::{Deserialize, Serialize};

use crate::random::{Purpose, generator};

/// How many are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Balance {
    /// Of an image.
    pub count: usize,
    /// The most objects among them, as a share.
    pub positive: f64,
}

/// For what and where something is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DrawId {
    /// Anchors of an image of the batch.
    Anchors { image: usize },
    /// Regions of an image of the batch.
    Regions { image: usize },
}

/// Chooses among objects and background.
pub trait Sampler {
    /// Indices among `positive` and `negative`, as many as `balance` allows, those of `positive` apart.
    fn sample(&self, draw: DrawId, positive: &[usize], negative: &[usize], balance: Balance) -> [Vec<usize>; 2];
}

/// Draws without replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomSampler {
    pub seed: u64,
    /// One that no other batch of the run has.
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
