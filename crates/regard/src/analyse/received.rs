//! How much attention every position receives, whatever the operator.

use burn::tensor::TensorData;

use crate::Trace;

/// Rows and columns of how much attention each position receives, from all others and over all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct Received {
    /// The name under which the weights were recorded.
    pub name: String,
    pub size: [usize; 2],
    /// `[H, W]`; without a prefix of tokens.
    pub values: Vec<f32>,
}

/// How far a model looks; the weights alone do not always tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// At everything: weights `[B, A, N, N]`.
    Global,
    /// At a window around each pixel: weights `[B, C, k*k, H*W]`.
    Window,
}

/// Of the first picture, for each recorded attention whose positions have the aspect of `image`, in the order of layers.
pub fn received(trace: Trace, image: [usize; 2], reach: Reach) -> Vec<Received> {
    trace
        .into_data()
        .into_iter()
        .filter(|(name, _)| name.ends_with("weights"))
        .filter_map(|(name, weights)| {
            let (size, values) = of_weights(&weights, image, reach)?;
            Some(Received { name, size, values })
        })
        .collect()
}

fn of_weights(weights: &TensorData, image: [usize; 2], reach: Reach) -> Option<([usize; 2], Vec<f32>)> {
    let &[_, heads, second, third] = weights.shape().to_vec().as_slice() else { return None };
    let values: Vec<f32> = weights.iter::<f32>().take(heads * second * third).collect();
    let (size, prefix) = grid(third, image)?;
    match reach {
        Reach::Global => (second == third).then(|| (size, of_rows(&values, third, prefix))),
        Reach::Window => {
            let side = second.isqrt();
            (prefix == 0 && side * side == second).then(|| (size, of_windows(&values, size, side)))
        }
    }
}

/// Rows and columns of so many positions of an image, and the tokens before them: at most two.
fn grid(positions: usize, [height, width]: [usize; 2]) -> Option<([usize; 2], usize)> {
    (0..=2).find_map(|prefix| {
        let patches = positions.checked_sub(prefix)?;
        let rows =
            (1..=patches).find(|rows| patches.is_multiple_of(*rows) && rows * width == patches / rows * height)?;
        Some(([rows, patches / rows], prefix))
    })
}

/// The columns of `[heads * N, M]` summed.
fn of_rows(values: &[f32], keys: usize, prefix: usize) -> Vec<f32> {
    let mut sums = vec![0.0; keys];
    for row in values.chunks_exact(keys) {
        sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += weight.abs());
    }
    sums.split_off(prefix)
}

/// `[C, k*k, H*W]`: what each pixel gives to the places of its window, gathered at those places.
///
/// Windows that are even reach one further to the top left, as the operators' do.
fn of_windows(values: &[f32], [rows, columns]: [usize; 2], side: usize) -> Vec<f32> {
    let before = side / 2;
    let mut sums = vec![0.0; rows * columns];
    for plane in values.chunks_exact(side * side * rows * columns) {
        for (place, weights) in plane.chunks_exact(rows * columns).enumerate() {
            for (pixel, weight) in weights.iter().enumerate() {
                let row = (pixel / columns + place / side).checked_sub(before).filter(|row| *row < rows);
                let column = (pixel % columns + place % side).checked_sub(before).filter(|column| *column < columns);
                if let (Some(row), Some(column)) = (row, column) {
                    sums[row * columns + column] += weight.abs();
                }
            }
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::preset;
    use crate::testing::random;
    use crate::{Pass, device};

    #[test]
    fn attention_that_all_pay_to_one_place_is_received_there() {
        let mut rows = vec![0.0; 5 * 5];
        (0..5).for_each(|query| rows[5 * query + 3] = 1.0);
        let (size, values) = of_weights(&TensorData::new(rows, [1, 1, 5, 5]), [8, 8], Reach::Global).unwrap();
        assert_eq!((size, values), ([2, 2], vec![0.0, 0.0, 5.0, 0.0]));
    }

    #[test]
    fn windows_give_to_the_places_they_look_at() {
        let mut windows = vec![0.0; 9 * 12];
        windows[3 * 12..4 * 12].fill(1.0);
        let values = of_windows(&windows, [3, 4], 3);
        assert_eq!(values, [1.0, 1.0, 1.0, 0.0].repeat(3));
    }

    #[test]
    fn every_attention_model_has_a_map_with_the_shape_of_its_picture() {
        for (name, reach) in [
            ("vit-nano", Reach::Global),
            ("san-nano-pairwise", Reach::Window),
            ("san-nano-patchwise", Reach::Window),
            ("sasa-nano", Reach::Window),
        ] {
            let model = preset(name).unwrap().config.init(&device::cpu()).unwrap();
            let mut pass = Pass::recording();
            model.forward(random([1, 3, 32, 32], 1), &mut pass);
            let maps = received(pass.into_trace(), [32, 32], reach);
            assert!(!maps.is_empty(), "{name}");
            for map in maps {
                assert_eq!(map.size[0], map.size[1], "{name} {}", map.name);
                assert_eq!(map.values.len(), map.size[0] * map.size[1], "{name} {}", map.name);
                assert!(map.values.iter().all(|value| value.is_finite() && *value >= 0.0), "{name} {}", map.name);
            }
        }
    }
}
