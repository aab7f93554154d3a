//! Shared by the text tasks: the parts of their data, and how processes divide batches within a budget of tokens.

use burn::module::Module;
use rand::RngExt as _;

use crate::data::Part;
use crate::data::text::{Buckets, TextPart};
use crate::random::{Purpose, generator};
use crate::train::{Share, Validation, no_part};
use crate::{Error, weights};

/// One in this many samples is for validation if the data has no such part.
const HELD_OUT: u32 = 10;

/// The samples of a recipe's data.
#[derive(Debug)]
pub(super) struct Parts<T> {
    /// For training.
    pub train: Vec<T>,
    /// Chooses the best epoch.
    pub validation: Vec<T>,
    /// Measured at the end; `None` if the data has no test part.
    pub test: Option<Vec<T>>,
}

impl<T: Clone> Parts<T> {
    /// Reads the parts, and draws a validation part if it is missing.
    pub fn read(
        validation: Validation,
        has: impl Fn(TextPart) -> bool,
        read: impl Fn(TextPart) -> Result<Vec<T>, Error>,
    ) -> Result<Self, Error> {
        let test = if has(TextPart::Test) { Some(read(TextPart::Test)?) } else { None };
        let whole = read(TextPart::Train)?;
        let (train, validation) = match validation {
            Validation::Test => {
                let test = test.clone().ok_or_else(|| Error::config("validation", "the data has no test part"))?;
                (whole, test)
            }
            Validation::Part if has(TextPart::Dev) => (whole, read(TextPart::Dev)?),
            Validation::Part => {
                let mut index = 0;
                // the same samples for every seed
                whole.into_iter().partition(|_| {
                    index += 1;
                    generator(0, Purpose::Split, [index, 0]).random_range(0..HELD_OUT) > 0
                })
            }
        };
        Ok(Self { train, validation, test })
    }

    /// Limits the numbers of training and evaluation samples; 0 means all.
    pub fn truncate(&mut self, learned: usize, measured: usize) {
        let truncate = |samples: &mut Vec<T>, most: usize| {
            if most > 0 {
                samples.truncate(most);
            }
        };
        truncate(&mut self.train, learned);
        truncate(&mut self.validation, measured);
        self.test.iter_mut().for_each(|test| truncate(test, measured));
    }
}

/// The samples of a part.
pub(super) fn text_part(part: Part) -> Result<TextPart, Error> {
    match part {
        Part::Train => Ok(TextPart::Train),
        Part::Validation => Ok(TextPart::Dev),
        Part::Test => Ok(TextPart::Test),
        Part::TrainAndValidation | Part::All => Err(no_part(part, "is no part of sentences")),
    }
}

/// A model with the tensors of a file or an address, or as it is without one.
pub(super) fn with_weights<M: Module>(model: M, address: Option<&str>) -> Result<M, Error> {
    match address {
        Some(address) => weights::fill(model, &weights::read(&weights::fetch(address, &mut |_| {})?)?.tensors),
        None => Ok(model),
    }
}

/// The sentences of one process in each batch of each step of an epoch; all processes together have those of a single one.
pub(super) fn shares(
    buckets: &Buckets,
    epoch: usize,
    accumulate: usize,
    Share { rank, ranks }: Share,
) -> impl Iterator<Item = Vec<Vec<usize>>> + use<> {
    let batches = buckets.epoch(epoch);
    let steps: Vec<Vec<Vec<usize>>> = batches.chunks(accumulate).map(<[_]>::to_vec).collect();
    steps.into_iter().map(move |step| {
        let shares = step.iter().map(|batch| batch.iter().copied().skip(rank).step_by(ranks).collect());
        // a batch with fewer sentences than processes leaves some of them without any
        shares.filter(|share: &Vec<usize>| !share.is_empty()).collect()
    })
}
