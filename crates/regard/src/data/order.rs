//! Which pictures make the batches of an epoch.

/// The order of pictures: a function of the seed, the epoch and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Pictures in the dataset.
    pub pictures: usize,
    /// Pictures of a batch, over all ranks.
    pub batch: usize,
    /// How many times a picture comes in a row, each time changed differently: repeated augmentation
    /// (Hoffer et al. 2020). An epoch keeps its length, so that it sees 1 / repeats of the pictures.
    pub repeats: usize,
    /// None is the order of the dataset with a short last batch, for tests; with a seed it is shuffled and the short batch left out.
    pub seed: Option<u64>,
    /// This one of so many processes; each makes an equal part of every batch.
    pub rank: usize,
    pub ranks: usize,
}
