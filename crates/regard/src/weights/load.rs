//! Loads a file into a model: strictly, except for a new head or another grid of positions on request.

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use std::collections::BTreeMap;
use std::path::Path;

use super::files::{TensorStorage, read_with_storage};
use super::lookalike::{presets_like, same_shape};
use super::names::{fill_owned, not_finite, some_tensors};
use super::{Checkpoint, Tensors, Upstream, recognise, shapes, translate};
use crate::attention::position::resample;
use crate::{Error, device};

/// What may differ between a checkpoint and a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whose names the checkpoint uses; recognised if none.
    pub from: Option<Upstream>,
    /// Keep the model's own head, with this number of classes, instead of the checkpoint's.
    pub new_head: Option<usize>,
    /// Ignore the checkpoint's head: the backbone of a detector has none.
    pub without_head: bool,
    /// Rows and columns of patches of the model; a square if none.
    pub grid: Option<[usize; 2]>,
    /// Rows and columns of patches that the checkpoint was made for; a square if none.
    pub grid_from: Option<[usize; 2]>,
    /// Leave large tensors in the file until they are used, for [`StreamedModel`](crate::StreamedModel), which reads each once.
    /// The file must not change until then. Any other use of a tensor that can no longer be read panics.
    pub lazily: bool,
}

/// A model with its weights, and what was changed in them.
#[derive(Debug)]
pub struct Loaded<M> {
    pub model: M,
    pub upstream: Upstream,
    /// The grids from and to which the positions were resampled.
    pub resampled: Option<[[usize; 2]; 2]>,
    /// Tensors of the new head.
    pub new_head: Vec<String>,
}

/// Loads a file into a model.
///
/// # Errors
/// When the file cannot be read, or tensors are missing, unexpected or of the wrong shape; all are listed.
pub fn load<M: Module>(model: M, path: &Path, options: &LoadOptions) -> Result<Loaded<M>, Error> {
    let storage = if options.lazily { TensorStorage::InFile } else { TensorStorage::InMemory };
    fit(model, read_with_storage(path, storage)?, options)
}

/// Loads a checkpoint into a model.
///
/// # Errors
/// When tensors are missing, unexpected, of the wrong shape or not finite; all are listed.
pub fn fit<M: Module>(model: M, checkpoint: Checkpoint, options: &LoadOptions) -> Result<Loaded<M>, Error> {
    if !checkpoint.not_finite.is_empty() {
        return Err(Error::weights(checkpoint.not_finite.iter().map(|name| not_finite(name)).collect()));
    }
    let upstream = options.from.unwrap_or_else(|| recognise(checkpoint.tensors.keys().map(String::as_str)));
    let mut tensors = translate(checkpoint.tensors, upstream)?;
    if options.without_head {
        tensors.retain(|name, _| !is_head(name));
    }
    let wanted = shapes(&model);
    let new_head = match options.new_head {
        Some(classes) => replace_head(&model, &wanted, &mut tensors, classes)?,
        None => Vec::new(),
    };
    let resampled = fit_positions(&wanted, &mut tensors, options)?;
    let found: Shapes = tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec())).collect();
    let model = fill_owned(model, tensors).map_err(|error| with_suggestion(error, &wanted, &found))?;
    Ok(Loaded { model, upstream, resampled, new_head })
}

type Shapes = BTreeMap<String, Vec<usize>>;

/// Adds to the error which presets the checkpoint looks like.
fn with_suggestion(error: Error, wanted: &Shapes, found: &Shapes) -> Error {
    let Error::Weights { problems, .. } = error else { return error };
    let body = |shapes: &Shapes| shapes.iter().filter(|(name, _)| !is_head(name)).count();
    let fits = |(name, shape): (&String, &Vec<usize>)| found.get(name).is_some_and(|there| same_shape(there, shape));
    let same = wanted.iter().filter(|(name, _)| !is_head(name)).filter(|entry| fits(*entry)).count();
    let only_the_head = same == body(wanted) && same == body(found);
    let classes = |shapes: &Shapes| {
        shapes
            .iter()
            .find(|(name, _)| is_head(name) && name.ends_with("weight"))
            .and_then(|(_, shape)| shape.first().copied())
    };
    let classes = classes(found).filter(|there| only_the_head && Some(*there) != classes(wanted));
    let looks_like = if classes.is_none() { presets_like(found) } else { None };
    Error::Weights { problems, looks_like, classes }
}

/// The classification heads, and the hidden layer before them that only pre-training has.
pub(crate) fn is_head(name: &str) -> bool {
    ["head.", "head_dist.", "fc.", "pre_logits"].iter().any(|prefix| name.starts_with(prefix))
}

fn replace_head(
    model: &impl Module,
    wanted: &BTreeMap<String, Vec<usize>>,
    tensors: &mut Tensors,
    classes: usize,
) -> Result<Vec<String>, Error> {
    for (name, shape) in wanted.iter().filter(|(name, _)| is_head(name)) {
        if shape.first() != Some(&classes) {
            let reason = format!("{classes} classes were asked for, and the model's `{name}` is {shape:?}");
            return Err(Error::config("new_head", reason));
        }
    }
    tensors.retain(|name, _| !is_head(name));
    let head = some_tensors(model, is_head);
    if head.is_empty() {
        return Err(Error::config("new_head", "the model has no head"));
    }
    let names = head.keys().cloned().collect();
    tensors.extend(head);
    Ok(names)
}

const POSITIONS: &str = "pos_embed";

/// Resamples the positions to the model's grid; leaves errors in shapes to [`fill_owned`].
fn fit_positions(
    wanted: &BTreeMap<String, Vec<usize>>,
    tensors: &mut Tensors,
    options: &LoadOptions,
) -> Result<Option<[[usize; 2]; 2]>, Error> {
    let (Some(table), Some(wanted_shape)) = (tensors.get(POSITIONS), wanted.get(POSITIONS)) else { return Ok(None) };
    let shape = table.shape().to_vec();
    let (&[1, there, width], &[1, here, same]) = (shape.as_slice(), wanted_shape.as_slice()) else { return Ok(None) };
    if width != same || (there == here && options.grid == options.grid_from) {
        return Ok(None);
    }
    // a table for all tokens, or (DeiT-III) only for the patches
    let tokens = ["cls_token", "dist_token"].iter().filter(|token| wanted.contains_key(**token)).count();
    let found = [tokens, 0].into_iter().find_map(|prefix| {
        let grid = |positions: usize, given| grid(positions.checked_sub(prefix)?, given);
        Some((prefix, grid(there, options.grid_from)?, grid(here, options.grid)?))
    });
    let Some((prefix, from, to)) = found else {
        let shown =
            |given: Option<[usize; 2]>| given.map_or("a square".into(), |[rows, columns]| format!("{rows}x{columns}"));
        let reason = format!(
            "the model has {here} positions ({} and {tokens} tokens?), the checkpoint {there} ({}?): \
             the rows and columns of both are needed",
            shown(options.grid),
            shown(options.grid_from)
        );
        return Err(Error::config("grid", reason));
    };
    if from == to {
        return Ok(None);
    }
    let resampled = resample(positions(table), from, to, prefix).into_data();
    tensors.insert(POSITIONS.into(), resampled);
    Ok(Some([from, to]))
}

fn positions(table: &TensorData) -> Tensor<3> {
    Tensor::from_data(table.clone(), &device::cpu())
}

/// The grid of this number of patches: the given one if it fits, or a square.
fn grid(patches: usize, given: Option<[usize; 2]>) -> Option<[usize; 2]> {
    let [rows, columns] = given.unwrap_or([patches.isqrt(); 2]);
    (patches > 0 && rows.checked_mul(columns) == Some(patches)).then_some([rows, columns])
}

#[cfg(test)]
mod tests;
