//! An I3D or C2D that starts from a trained ResNet of images, or from a network of fewer frames.
//!
//! Convolutions are inflated: a kernel over `T` frames is the one over a single frame `T` times, divided by `T`, so that a clip in
//! which nothing moves gives what its frames give, but for the ends of the clip, which are padded with zeros.
//! Complete files of facebookresearch/SlowFast load with [`fit`](fn@super::fit).

use burn::tensor::{Device, TensorData};

use super::load::is_head;
use super::names::{fill_owned, not_finite, some_tensors};
use super::rename::rename;
use super::{Checkpoint, Loaded, Tensors, recognise, shapes, translate};
use crate::Error;
use crate::models::i3d::{I3d, I3dConfig};

/// Names of torchvision's residual networks and ours; stages are counted from one there and from two here.
const IMAGES: &[(&str, &str)] = &[
    ("conv1.*", "s1.pathway0_stem.conv.*"),
    ("bn1.*", "s1.pathway0_stem.bn.*"),
    ("layer{s}.{b}.conv1.*", "s{s+1}.pathway0_res{b}.branch2.a.*"),
    ("layer{s}.{b}.bn1.*", "s{s+1}.pathway0_res{b}.branch2.a_bn.*"),
    ("layer{s}.{b}.conv2.*", "s{s+1}.pathway0_res{b}.branch2.b.*"),
    ("layer{s}.{b}.bn2.*", "s{s+1}.pathway0_res{b}.branch2.b_bn.*"),
    ("layer{s}.{b}.conv3.*", "s{s+1}.pathway0_res{b}.branch2.c.*"),
    ("layer{s}.{b}.bn3.*", "s{s+1}.pathway0_res{b}.branch2.c_bn.*"),
    ("layer{s}.{b}.downsample.0.*", "s{s+1}.pathway0_res{b}.branch1.*"),
    ("layer{s}.{b}.downsample.1.*", "s{s+1}.pathway0_res{b}.branch1_bn.*"),
    ("fc.*", "head.projection.*"),
];

/// A network that starts from a ResNet of torchvision, or from another C2D or I3D.
///
/// Non-local blocks that the checkpoint does not have are new, and so is a head for another number of classes.
///
/// # Errors
/// When other tensors are missing, unexpected, of the wrong shape or not finite; all are listed.
pub fn start_i3d(config: &I3dConfig, checkpoint: Checkpoint, device: &Device) -> Result<Loaded<I3d>, Error> {
    if !checkpoint.not_finite.is_empty() {
        return Err(Error::weights(checkpoint.not_finite.iter().map(|name| not_finite(name)).collect()));
    }
    let upstream = recognise(checkpoint.tensors.keys().map(String::as_str));
    let ours = |name: String| IMAGES.iter().find_map(|(there, here)| rename(&name, there, here)).unwrap_or(name);
    let tensors = translate(checkpoint.tensors, upstream)?;
    let mut tensors: Tensors = tensors.into_iter().map(|(name, tensor)| (ours(name), tensor)).collect();

    let model = config.init(device)?;
    let wanted = shapes(&model);
    for (name, tensor) in &mut tensors {
        if let Some(inflated) = wanted.get(name).and_then(|shape| inflated(tensor, shape)) {
            *tensor = inflated;
        }
    }
    let fits = |name: &String| wanted.get(name) == tensors.get(name).map(|tensor| tensor.shape().to_vec()).as_ref();
    let mut new_head = Vec::new();
    if !wanted.keys().chain(tensors.keys()).filter(|name| is_head(name)).all(fits) {
        tensors.retain(|name, _| !is_head(name));
        new_head.extend(wanted.keys().filter(|name| is_head(name)).cloned());
    }
    for (name, tensor) in some_tensors(&model, |name| is_head(name) || name.contains("_nonlocal")) {
        tensors.entry(name).or_insert(tensor);
    }
    Ok(Loaded { model: fill_owned(model, tensors)?, upstream, resampled: None, new_head })
}

/// A kernel `[O, C, H, W]` or `[O, C, 1, H, W]` as `[O, C, T, H, W]`; none if it is none of these, or wanted as it is.
fn inflated(tensor: &TensorData, wanted: &[usize]) -> Option<TensorData> {
    let &[outputs, inputs, frames, height, width] = wanted else { return None };
    let found = tensor.shape().to_vec();
    let flat = found == [outputs, inputs, height, width] || found == [outputs, inputs, 1, height, width];
    if !flat || frames == 0 || found == wanted {
        return None;
    }
    let values: &[f32] = tensor.as_slice().ok()?;
    let kernel = |kernel: &[f32]| kernel.iter().map(|weight| weight / frames as f32).collect::<Vec<_>>().repeat(frames);
    let values = values.chunks((height * width).max(1)).flat_map(kernel).collect::<Vec<_>>();
    Some(TensorData::new(values, wanted.to_vec()))
}

#[cfg(test)]
mod tests;
