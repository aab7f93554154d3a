//! Files that older versions of this library wrote.
//!
//! The layers of the non-local blocks of `non-local-resnet` were `[in, out]` once and are `[out, in]` now, as in PyTorch. In
//! weights and in training state (`model.`, `first.`, `second.`, `average.`) they have the same names. The shape tells which
//! layout a tensor has: these blocks map C channels to C/2 and back, so that no layer of theirs is square.

use burn::tensor::TensorData;

/// Whether a tensor is a layer of a non-local block in the layout `[in, out]`.
pub(super) fn is_in_out(name: &str, shape: &[usize]) -> bool {
    let &[rows, columns] = shape else { return false };
    let mut parts = name.rsplit('.');
    let (Some("weight"), Some(layer), Some(number)) = (parts.next(), parts.next(), parts.next()) else { return false };
    if parts.next() != Some("non_local") || number.parse::<usize>().is_err() {
        return false;
    }
    match layer {
        "theta" | "phi" | "g" => rows > columns && columns == rows / 2,
        "output" => columns > rows && rows == columns / 2,
        _ => false,
    }
}

/// The tensor of a file in today's layout.
pub(super) fn in_todays_layout(name: &str, tensor: TensorData) -> TensorData {
    if is_in_out(name, &tensor.shape().to_vec()) { transposed(&tensor) } else { tensor }
}

fn transposed(tensor: &TensorData) -> TensorData {
    let shape = tensor.shape().to_vec();
    let (rows, columns) = (shape[0], shape[1]);
    let values: &[f32] = tensor.as_slice().expect("tensors were read as f32");
    let transposed: Vec<f32> =
        (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect();
    TensorData::new(transposed, [columns, rows])
}

/// Tensors as they were written before: each layer of a non-local block transposed.
#[cfg(test)]
pub(crate) fn as_before(tensors: super::Tensors) -> super::Tensors {
    let is_layer = |name: &str, tensor: &TensorData| {
        name.contains("non_local.") && name.ends_with(".weight") && tensor.shape().to_vec().len() == 2
    };
    let before = |(name, tensor): (String, TensorData)| {
        if is_layer(&name, &tensor) { (name, transposed(&tensor)) } else { (name, tensor) }
    };
    tensors.into_iter().map(before).collect()
}

#[cfg(test)]
mod tests;
