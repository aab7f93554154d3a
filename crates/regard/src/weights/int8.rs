//! int8 weights: the linear layers of a transformer's blocks as bytes, with one scale per output.
//!
//! A file has `NAME` as int8 and `NAME_scale` as floats. Reading restores the floats, so every command takes such a file;
//! quantising those floats again gives the same bytes.

use burn::tensor::TensorData;
use regard_kernels::integer::QuantizedWeights;
use safetensors::SafeTensorError;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::BTreeMap;

use super::Tensors;

const SCALE: &str = "_scale";

/// Whether [`PackedModel::int8`](crate::PackedModel::int8) computes with this weight in eight bits.
pub(crate) fn is_quantised(name: &str) -> bool {
    let maps = ["attn.qkv.weight", "attn.proj.weight", "mlp.fc1.weight", "mlp.fc2.weight"];
    name.starts_with("blocks.") && maps.iter().any(|map| name.ends_with(map))
}

/// The bytes of a safetensors file.
pub(crate) fn to_bytes(tensors: &Tensors) -> Result<Vec<u8>, SafeTensorError> {
    let (mut bytes, mut floats) = (BTreeMap::new(), BTreeMap::new());
    for (name, tensor) in tensors {
        let shape = tensor.shape().to_vec();
        match (is_quantised(name), &shape[..]) {
            (true, &[outputs, inputs]) => {
                let weight: Vec<f32> = tensor.clone().try_to_vec().expect("tensors are f32 here");
                let QuantizedWeights { values, scales } = QuantizedWeights::new(&weight, inputs);
                bytes.insert(name.clone(), (values.into_iter().map(i8::cast_unsigned).collect::<Vec<_>>(), shape));
                floats.insert(format!("{name}{SCALE}"), TensorData::new(scales, [outputs]));
            }
            _ => drop(floats.insert(name.clone(), tensor.clone())),
        }
    }
    let mut views = BTreeMap::new();
    for (name, (values, shape)) in &bytes {
        views.insert(name.as_str(), TensorView::new(Dtype::I8, shape.clone(), values)?);
    }
    for (name, tensor) in &floats {
        views.insert(name.as_str(), TensorView::new(Dtype::F32, tensor.shape().to_vec(), tensor.as_bytes())?);
    }
    safetensors::serialize(views, Some([("format".to_string(), "int8".to_string())].into()))
}

/// Restores floats from integers with scales; integers without scales are counters, and skipped.
pub(crate) fn restore(tensors: &mut Tensors, bytes: Vec<(String, TensorView)>) -> Result<(), String> {
    for (name, view) in bytes {
        let Some(scales) = tensors.remove(&format!("{name}{SCALE}")) else { continue };
        let (shape, outputs) = (view.shape().to_vec(), scales.num_elements());
        if outputs == 0 || shape.first() != Some(&outputs) {
            return Err(format!("`{name}` is {shape:?}, with {outputs} scales"));
        }
        let values = view.data().iter().map(|x| x.cast_signed()).collect();
        let scales = scales.try_to_vec().map_err(|error| format!("`{name}{SCALE}`: {error:?}"))?;
        let floats = QuantizedWeights { values, scales }.dequantize();
        tensors.insert(name, TensorData::new(floats, shape));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::weights::files::from_bytes;
    use std::path::Path;

    fn tensors() -> Tensors {
        let weight = (0..6 * 40u8).map(|i| (f32::from(i) * 0.37).sin()).collect::<Vec<_>>();
        [
            ("blocks.0.attn.qkv.weight", TensorData::new(weight.clone(), [6, 40])),
            ("head.weight", TensorData::new(weight, [6, 40])),
            ("blocks.0.attn.qkv.bias", TensorData::new(vec![0.3f32; 6], [6])),
        ]
        .map(|(name, tensor)| (name.to_string(), tensor))
        .into()
    }

    #[test]
    fn maps_come_back_within_half_a_step_and_the_rest_as_it_was() {
        let (ours, path) = (tensors(), Path::new("int8.safetensors"));
        let bytes = to_bytes(&ours).unwrap();
        let again = from_bytes(&bytes, path).unwrap();
        assert_eq!(again.keys().collect::<Vec<_>>(), ours.keys().collect::<Vec<_>>());
        for name in ["head.weight", "blocks.0.attn.qkv.bias"] {
            assert_eq!(again[name], ours[name]);
        }
        let [before, after]: [Vec<f32>; 2] =
            [&ours, &again].map(|tensors| tensors["blocks.0.attn.qkv.weight"].clone().try_to_vec().unwrap());
        assert_ne!(before, after);
        for (before, after) in before.iter().zip(&after) {
            assert!((before - after).abs() < 0.501 / 63.0, "{before} {after}");
        }
        assert_eq!(to_bytes(&again).unwrap(), bytes, "rounded once is rounded");
    }

    #[test]
    fn scales_that_do_not_fit_are_named() {
        let mut ours = tensors();
        ours.insert("blocks.0.attn.qkv.weight_scale".into(), TensorData::new(vec![1.0f32; 5], [5]));
        let bytes = [7u8; 12];
        let view = TensorView::new(Dtype::I8, vec![6, 2], &bytes).unwrap();
        let error = restore(&mut ours, vec![("blocks.0.attn.qkv.weight".into(), view)]).unwrap_err();
        assert_eq!(error, "`blocks.0.attn.qkv.weight` is [6, 2], with 5 scales");
    }
}
