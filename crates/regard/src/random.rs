//! Randomness without a state to lose: every generator is made from the seed, a purpose and a place, and thrown away.
//!
//! A run that was interrupted draws at step 1000 what it would have drawn without the interruption.

use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;

/// What is drawn; the same place draws independently for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Purpose {
    /// The order of pictures in an epoch.
    Order = 1,
    /// What happens to one picture.
    Augment,
    /// How the pictures of a batch are mixed.
    Mix,
    /// Which residual branches are left out.
    StochasticDepth,
    /// Fresh parameters.
    Weights,
    /// Which pictures are held out of training.
    Split,
    /// Which numbers are left out inside a model.
    Dropout,
    /// Which anchors or regions of a picture learn.
    Sample,
    /// Which tokens a masked language model does not see.
    Mask,
    /// Which token a causal language model writes.
    NextToken,
    /// Where the centroids of a cluster start.
    Cluster,
    /// What a step of several goals learns.
    Goal,
    /// Which texts are not about their pictures, and what is said instead.
    WrongText,
    /// The embedded worlds: what is in a picture. Its number is fixed, since their bytes depend on it.
    World = 32,
}

/// The generator of a purpose at a place, such as an epoch and a picture.
#[must_use]
pub fn generator(seed: u64, purpose: Purpose, place: [u64; 2]) -> ChaCha8Rng {
    let mut key = [0; 32];
    for (bytes, word) in key.chunks_exact_mut(8).zip([seed, purpose as u64, place[0], place[1]]) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    ChaCha8Rng::from_seed(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::RngExt as _;

    #[test]
    fn the_same_place_draws_the_same_and_any_other_draws_differently() {
        let draw = |seed, purpose, place| generator(seed, purpose, place).random::<u64>();
        let first = draw(1, Purpose::Order, [2, 3]);
        assert_eq!(first, draw(1, Purpose::Order, [2, 3]));
        for other in [
            draw(2, Purpose::Order, [2, 3]),
            draw(1, Purpose::Augment, [2, 3]),
            draw(1, Purpose::Order, [3, 2]),
            draw(1, Purpose::Order, [2, 4]),
        ] {
            assert_ne!(first, other);
        }
    }

    #[test]
    fn what_is_drawn_does_not_change_with_the_version_of_a_crate() {
        assert_eq!(generator(0, Purpose::Order, [0, 0]).random::<u64>(), 4_606_029_925_845_525_861);
    }
}
