//! Random numbers whose every bit is ours: a new version of a crate, or another machine, changes no picture.

use rand::Rng as _;
use rand::rngs::ChaCha8Rng;

use crate::data::Part;
use crate::random::{Purpose, generator};

/// The kind of sample; each kind has its own random numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    Scene = 0,
    Clip = 1,
    /// A scene that has the answer to a question.
    Question = 2,
    /// The wording of a scene.
    Caption = 9,
    /// Boxes as somebody would draw them around what is in a scene.
    Region = 10,
}

/// What is drawn for a sample, in an order such that boxes are known without painting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Content = 0,
    Noise = 1,
}

#[derive(Debug)]
pub struct Draw(ChaCha8Rng);

impl Draw {
    pub fn new(seed: u64, part: Part, sample: (Sample, Stage), index: usize) -> Self {
        Self::of_frame(seed, part, sample, index, 0)
    }

    /// For one frame of a clip, so that the others need not be drawn.
    pub fn of_frame(seed: u64, part: Part, sample: (Sample, Stage), index: usize, frame: usize) -> Self {
        let part = match part {
            Part::Validation => 1,
            Part::Test => 2,
            _ => 0,
        };
        let place = (frame as u64) << 40 | part << 32 | (sample.0 as u64) << 8 | sample.1 as u64;
        Self(generator(seed, Purpose::World, [place, index as u64]))
    }

    /// For what is wrong on purpose, which a run draws anew in every epoch.
    pub fn negative(draw_id: [u64; 2]) -> Self {
        Self(generator(u64::MAX, Purpose::World, draw_id))
    }

    /// A whole number below `count`.
    pub fn below(&mut self, count: usize) -> usize {
        ((u128::from(self.0.next_u64()) * count as u128) >> 64) as usize
    }

    /// From `least` up to `most`.
    pub fn uniform(&mut self, least: f64, most: f64) -> f64 {
        let unit = (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
        least + (most - least) * unit
    }

    /// Heads of 144 coins less those expected: as good as normal, with a deviation of exactly 6.
    pub fn noise(&mut self) -> f64 {
        const COINS: u64 = (1 << 48) - 1;
        let heads: u32 = (0..3).map(|_| (self.0.next_u64() & COINS).count_ones()).sum();
        f64::from(heads) - 72.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_even_and_noise_has_its_deviation() {
        let mut draw = Draw::new(0, Part::Train, (Sample::Scene, Stage::Noise), 0);
        let mut counts = [0; 7];
        (0..70_000).for_each(|_| counts[draw.below(7)] += 1);
        // five deviations of a binomial
        assert!(counts.iter().all(|count| (*count - 10_000i32).abs() < 470), "{counts:?}");
        let values: Vec<f64> = (0..20_000).map(|_| draw.uniform(2.0, 4.0)).collect();
        assert!(values.iter().all(|value| (2.0..4.0).contains(value)));
        assert!((values.iter().sum::<f64>() / 20_000.0 - 3.0).abs() < 0.02);
        let noise: Vec<f64> = (0..50_000).map(|_| draw.noise()).collect();
        let mean = noise.iter().sum::<f64>() / 50_000.0;
        let variance = noise.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / 50_000.0;
        assert!(mean.abs() < 0.15 && (variance - 36.0).abs() < 1.2, "{mean} {variance}");
    }
}
