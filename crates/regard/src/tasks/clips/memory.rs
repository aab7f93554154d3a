//! The memory of a training step, estimated from shapes before it starts.

use std::collections::BTreeMap;

use super::ClipsSection;
use crate::Error;
use crate::cost::{LedgerLine, Work};
use crate::models::VideoConfig;
use crate::train::Recipe;

/// Bytes of a number.
const BYTES: u64 = 4;

/// Arrays of the size of the parameters while a checkpoint is written: parameters in the model and in the engine, gradients and
/// their sum, two moments, their copies by name, and the bytes of the file.
const PARAMETER_ARRAYS: u64 = 12;

/// Memory of the program without a model.
const PROGRAM: u64 = 64 << 20;

/// About how many bytes a run of this recipe takes at once: parameters, the activations of one part of a batch, and the batches
/// that are prepared ahead. Embedded data and decoders come on top.
///
/// # Errors
/// When the configuration is invalid.
pub fn training_bytes(config: &VideoConfig, recipe: &Recipe<ClipsSection>) -> Result<u64, Error> {
    let ledger = config.ledger()?;
    let batch = (recipe.own.batch / recipe.common.accumulate) as u64;
    let [rows, columns] = config.image();
    let clip = (config.channels() * config.frames() * rows * columns) as u64;
    let mut of_units: BTreeMap<&str, u64> = BTreeMap::new();
    for line in ledger.lines() {
        *of_units.entry(unit(&line.name)).or_default() += stored(line);
    }
    let all: u64 = of_units.values().sum();
    // the gradients of one unit at a time
    let gradients = of_units.values().max().copied().unwrap_or(0);
    let blocks = || of_units.iter().filter(|(name, _)| name.starts_with("blocks."));
    let activations = if recipe.own.checkpoint {
        let (sum, most) = blocks().fold((0, 0), |(sum, most), (_, stored)| (sum + stored, most.max(*stored)));
        // the input of every block, and all of one block
        let inputs =
            ledger.lines().iter().filter(|line| line.name.ends_with(".residual2")).map(|line| line.activations);
        all - sum + most + inputs.sum::<u64>()
    } else {
        all
    };
    let prepared = clip * batch * (2 * recipe.own.workers as u64 + 2);
    let numbers = PARAMETER_ARRAYS * ledger.parameters() + batch * (activations + gradients) + prepared;
    Ok(PROGRAM + BYTES * numbers)
}

/// The part of a model that a line belongs to: `blocks.3`.
fn unit(name: &str) -> &str {
    name.match_indices('.').nth(1).map_or(name, |(end, _)| &name[..end])
}

/// Numbers that the backward pass needs of a layer's output. Attention weights are never stored.
const fn stored(line: &LedgerLine) -> u64 {
    match line.work {
        Work::Product { .. } | Work::HiddenProduct { .. } | Work::Softmax { .. } | Work::Table => 0,
        _ => line.activations,
    }
}
