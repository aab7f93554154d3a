//! Weights of a TimeSformer: files of facebookresearch and Hugging Face, and any image ViT as a start.
//!
//! For other frames and images, positions and times are resampled as facebookresearch/TimeSformer does it: each the nearest one.
//! Its forward pass, and [`load_timesformer`], take the nearest row and column. Its start from pretrained weights, and
//! [`start_timesformer`], take the nearest place in the list of all patches, which moves columns.

use burn::tensor::{Device, Tensor};

use super::load::is_head;
use super::names::{fill_owned, not_finite, some_tensors};
use super::{Checkpoint, Loaded, Tensors, Upstream, recognise, shapes, translate};
use crate::attention::ClipGrid;
use crate::attention::position::resample_nearest;
use crate::layers::Start;
use crate::models::timesformer::{Timesformer, TimesformerConfig};
use crate::{Error, device};

const POSITIONS: &str = "pos_embed";
const TIMES: &str = "time_embed";
/// The steps before the last one of a block, as the names of their layers start.
const EARLIER_STEPS: [&str; 3] = ["temporal_", "local_", "width_"];

/// A TimeSformer with the weights of a checkpoint, in which nothing may be missing.
///
/// As many positions as there are patches are taken as they are; others must be of a square grid.
///
/// # Errors
/// When tensors are missing, unexpected, of the wrong shape or not finite; all are listed.
pub fn load_timesformer(
    config: &TimesformerConfig,
    checkpoint: Checkpoint,
    device: &Device,
) -> Result<Loaded<Timesformer>, Error> {
    let (mut tensors, upstream) = translated(checkpoint)?;
    let ClipGrid { height, width, .. } = config.grid();
    let resampled = resample_positions(&mut tensors, height * width, |patches| {
        let side = patches.isqrt();
        if side * side == patches {
            return Ok([[side, side], [height, width]]);
        }
        let reason =
            format!("the checkpoint has {patches} positions, which are no square and no grid of {height} x {width}");
        Err(Error::config("image", reason))
    })?;
    resample_times(&mut tensors, config.frames);
    Ok(Loaded { model: fill_owned(config.init(device)?, tensors)?, upstream, resampled, new_head: Vec::new() })
}

/// A TimeSformer that starts from an image ViT, or from another TimeSformer.
///
/// What the checkpoint does not have is as in a fresh model, but for the attention of earlier steps of a block and their norms,
/// which are copies of the last step's. A head for another number of classes is not used.
///
/// # Errors
/// When other tensors are missing, unexpected, of the wrong shape or not finite; all are listed.
pub fn start_timesformer(
    config: &TimesformerConfig,
    checkpoint: Checkpoint,
    device: &Device,
) -> Result<Loaded<Timesformer>, Error> {
    let (mut tensors, upstream) = translated(checkpoint)?;
    let ClipGrid { height, width, .. } = config.grid();
    let patches = height * width;
    let resampled = resample_positions(&mut tensors, patches, |stored| Ok([[1, stored], [1, patches]]))?;
    resample_times(&mut tensors, config.frames);

    // what is fresh joins trained layers, which see the clip as before only if it starts at zero
    let model = TimesformerConfig { start: Start::Paper, ..config.clone() }.init(device)?;
    let wanted = shapes(&model);
    let fits = |name: &String| wanted.get(name) == tensors.get(name).map(|tensor| tensor.shape().to_vec()).as_ref();
    let is_new = !wanted.keys().chain(tensors.keys()).filter(|name| is_head(name)).all(fits);
    let mut new_head = Vec::new();
    if is_new {
        tensors.retain(|name, _| !is_head(name));
        new_head.extend(wanted.keys().filter(|name| is_head(name)).cloned());
    }
    let fresh = some_tensors(&model, |name| is_head(name) || name == TIMES || name.contains("_fc."));
    for name in wanted.keys() {
        if tensors.contains_key(name) {
            continue;
        }
        let last_step = EARLIER_STEPS.iter().find_map(|step| tensors.get(&name.replacen(step, "", 1)));
        if let Some(tensor) = last_step.or_else(|| fresh.get(name)).cloned() {
            tensors.insert(name.clone(), tensor);
        }
    }
    Ok(Loaded { model: fill_owned(model, tensors)?, upstream, resampled, new_head })
}

/// The tensors of a checkpoint under our names.
fn translated(checkpoint: Checkpoint) -> Result<(Tensors, Upstream), Error> {
    if !checkpoint.not_finite.is_empty() {
        return Err(Error::weights(checkpoint.not_finite.iter().map(|name| not_finite(name)).collect()));
    }
    let upstream = recognise(checkpoint.tensors.keys().map(String::as_str));
    Ok((translate(checkpoint.tensors, upstream)?, upstream))
}

/// Resamples the positions of patches if they are not `wanted` ones; `grids` says from which grid to which, given their number.
fn resample_positions(
    tensors: &mut Tensors,
    wanted: usize,
    grids: impl FnOnce(usize) -> Result<[[usize; 2]; 2], Error>,
) -> Result<Option<[[usize; 2]; 2]>, Error> {
    let Some(patches) = length(tensors, POSITIONS).and_then(|tokens| tokens.checked_sub(1)) else { return Ok(None) };
    if patches == wanted || patches == 0 {
        return Ok(None);
    }
    let grids = grids(patches)?;
    resample_table(tensors, POSITIONS, grids, 1);
    Ok(Some(grids))
}

fn resample_times(tensors: &mut Tensors, frames: usize) {
    if let Some(stored) = length(tensors, TIMES).filter(|stored| *stored != frames && *stored > 0) {
        resample_table(tensors, TIMES, [[1, stored], [1, frames]], 0);
    }
}

/// Rows of a table `[1, N, D]`; none when it is missing or of another rank, which loading reports.
fn length(tensors: &Tensors, name: &str) -> Option<usize> {
    match tensors.get(name)?.shape().to_vec()[..] {
        [1, rows, _] => Some(rows),
        _ => None,
    }
}

fn resample_table(tensors: &mut Tensors, name: &str, [from, to]: [[usize; 2]; 2], prefix: usize) {
    let table = Tensor::<3>::from_data(tensors[name].clone(), &device::cpu());
    tensors.insert(name.into(), resample_nearest(table, from, to, prefix).into_data());
}

#[cfg(test)]
mod tests;
