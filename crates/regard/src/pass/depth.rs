//! Stochastic depth: in training, every picture skips some residual branches at random, so that it passes a shallower
//! network. Huang et al. 2016, "Deep Networks with Stochastic Depth", arXiv:1603.09382; also called drop path.
//!
//! Differences from the paper, as in timm: branches are dropped per picture, not per batch; kept branches are
//! scaled up, so that evaluation needs no scale; the first block is never dropped.

use burn::tensor::{Tensor, TensorData};
use rand::RngExt as _;

use super::Pass;
use crate::Error;
use crate::random::{Purpose, generator};

/// How often residual branches are dropped, and which.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StochasticDepth {
    /// Drop rate of the last block; rates grow linearly from zero in the first.
    pub rate: f64,
    /// The same rate in all blocks instead, as in DeiT III.
    pub uniform: bool,
    pub seed: u64,
    /// The random numbers depend on the seed and the step only: two batches with the same step draw the same.
    pub step: u64,
}

impl StochasticDepth {
    /// # Errors
    /// When the rate is not a probability below 1.
    pub fn validate(&self) -> Result<(), Error> {
        if (0.0..1.0).contains(&self.rate) {
            Ok(())
        } else {
            Err(Error::config("rate", format!("must be at least 0 and below 1, got {}", self.rate)))
        }
    }
}

/// The state of stochastic depth during one forward pass.
#[derive(Clone, Debug)]
pub(super) struct Depth {
    options: StochasticDepth,
    blocks: usize,
    /// Number of blocks entered so far.
    entered: usize,
    /// Number of branches drawn so far.
    drawn: u64,
}

impl Depth {
    /// Whether nothing is ever dropped.
    pub fn is_idle(&self) -> bool {
        self.options.rate == 0.0
    }

    /// The drop rate of the current block.
    fn rate(&self) -> f64 {
        let StochasticDepth { rate, uniform, .. } = self.options;
        match self.blocks {
            _ if uniform => rate,
            0 | 1 => 0.0,
            blocks => rate * self.entered.saturating_sub(1) as f64 / (blocks - 1) as f64,
        }
    }

    /// A factor for each picture: 0 to drop the branch, or `1 / (1 - rate)` to keep it.
    fn factors(&mut self, batch: usize) -> Option<Vec<f32>> {
        let StochasticDepth { seed, step, .. } = self.options;
        let mut generator = generator(seed, Purpose::StochasticDepth, [step, self.drawn]);
        self.drawn += 1;
        let keep = 1.0 - self.rate();
        let factor = |drawn: f64| if drawn < keep { (1.0 / keep) as f32 } else { 0.0 };
        (keep < 1.0).then(|| (0..batch).map(|_| factor(generator.random())).collect())
    }
}

impl Pass {
    /// A pass that records nothing and drops residual branches at random.
    #[must_use]
    pub fn with_stochastic_depth(depth: StochasticDepth) -> Self {
        Self { depth: Some(Depth { options: depth, blocks: 0, entered: 0, drawn: 0 }), ..Self::default() }
    }

    /// To be called by a model before its first residual block, with the number of blocks.
    pub fn begin_blocks(&mut self, blocks: usize) {
        if let Some(depth) = &mut self.depth {
            (depth.blocks, depth.entered) = (blocks, 0);
        }
    }

    /// To be called by a model at the start of every block.
    pub fn next_block(&mut self) {
        if let Some(depth) = &mut self.depth {
            depth.entered += 1;
        }
    }

    /// Whether [`branch`](Self::branch) may change its tensor.
    #[must_use]
    pub fn drops_branches(&self) -> bool {
        self.depth.as_ref().is_some_and(|depth| !depth.is_idle())
    }

    /// Applies stochastic depth to a residual branch `[B, ..]`, before it is added to its shortcut.
    #[must_use]
    pub fn branch<const D: usize>(&mut self, tensor: Tensor<D>) -> Tensor<D> {
        let batch = tensor.dims()[0];
        let Some(factors) = self.depth.as_mut().and_then(|depth| depth.factors(batch)) else { return tensor };
        let mut shape = [1; D];
        shape[0] = batch;
        let factors = Tensor::from_data(TensorData::new(factors, shape), &tensor.device());
        tensor * factors
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, random, random_on, values};

    const SHAPE: [usize; 3] = [500, 2, 3];

    fn depth(rate: f64) -> StochasticDepth {
        StochasticDepth { rate, uniform: false, seed: 1, step: 2 }
    }

    /// The factor of every picture in every block of a network with one branch a block.
    fn factors(depth: StochasticDepth, blocks: usize) -> Vec<Vec<f32>> {
        let mut pass = Pass::with_stochastic_depth(depth);
        pass.begin_blocks(blocks);
        let ones = Tensor::<3>::ones(SHAPE, &device::cpu());
        let block = |_| {
            pass.next_block();
            let out = values(&pass.branch(ones.clone()));
            let pictures = out.chunks(6);
            assert!(pictures.clone().all(|picture| picture.iter().all(|x| *x == picture[0])), "a picture is whole");
            pictures.map(|picture| picture[0]).collect()
        };
        (0..blocks).map(block).collect()
    }

    fn dropped(factors: &[f32]) -> f64 {
        factors.iter().filter(|factor| **factor == 0.0).count() as f64 / factors.len() as f64
    }

    #[test]
    fn without_it_or_at_rate_zero_a_branch_keep_what_it_is() {
        let branch = random([3, 4], 1);
        for mut pass in [Pass::silent(), Pass::recording(), Pass::with_stochastic_depth(depth(0.0))] {
            pass.begin_blocks(2);
            pass.next_block();
            pass.next_block();
            assert_close(&pass.branch(branch.clone()), &branch, 0.0);
        }
    }

    #[test]
    fn rates_grow_linearly_from_the_first_block_to_the_last() {
        let factors = factors(depth(0.6), 4);
        for (factors, rate) in factors.iter().zip([0.0, 0.2, 0.4, 0.6]) {
            assert!((dropped(factors) - rate).abs() < 0.07, "{} is not {rate}", dropped(factors));
        }
        assert_eq!(dropped(&factors[0]), 0.0);
    }

    #[test]
    fn uniform_rates_are_the_same_in_all_blocks() {
        for factors in factors(StochasticDepth { uniform: true, ..depth(0.3) }, 3) {
            assert!((dropped(&factors) - 0.3).abs() < 0.07, "{} is not 0.3", dropped(&factors));
        }
    }

    #[test]
    fn what_is_added_is_the_branch_on_average() {
        let factors = factors(StochasticDepth { uniform: true, ..depth(0.25) }, 8).concat();
        assert!(factors.iter().all(|factor| *factor == 0.0 || (factor - 1.0 / 0.75).abs() < 1e-6));
        let mean = factors.iter().sum::<f32>() / factors.len() as f32;
        assert!((mean - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn the_same_step_draws_the_same_and_another_step_block_or_seed_does_not() {
        let uniform = StochasticDepth { uniform: true, ..depth(0.5) };
        let first = factors(uniform, 2);
        assert_eq!(first, factors(uniform, 2));
        assert_ne!(first[0], first[1]);
        assert_ne!(first, factors(StochasticDepth { step: 3, ..uniform }, 2));
        assert_ne!(first, factors(StochasticDepth { seed: 3, ..uniform }, 2));
    }

    #[test]
    fn the_gradient_of_a_branch_is_its_factor() {
        let device = device::cpu().autodiff();
        let branch = random_on::<2>([40, 1], 1, &device).require_grad();
        let mut pass = Pass::with_stochastic_depth(StochasticDepth { uniform: true, ..depth(0.5) });
        let out = pass.branch(branch.clone());
        let grad = branch.grad(&out.clone().sum().backward()).unwrap();
        assert_close(&(grad.clone() * branch.inner()), &out.inner(), 1e-6);
        assert_eq!(values(&grad.clone().max()), [2.0]);
        assert_eq!(values(&grad.min()), [0.0]);
    }

    #[test]
    fn a_rate_that_is_no_probability_is_refused() {
        assert!(depth(0.0).validate().is_ok());
        for rate in [1.0, -0.1, f64::NAN] {
            let error = depth(rate).validate().unwrap_err().to_string();
            assert!(error.contains(&format!("`rate`: must be at least 0 and below 1, got {rate}")), "{error}");
        }
    }
}
