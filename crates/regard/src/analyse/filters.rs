//! The principal components of the filters of the first layer.
//! Dosovitskiy et al. 2020, arXiv:2010.11929, figure 7 (left): patch embeddings; here first convolutions, too.

use burn::tensor::Tensor;
use serde::Serialize;

use super::check::{Check, largest};
use super::eigen::eigen;
use crate::Error;
use crate::models::Model;

/// Principal components of filters, by falling variance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Filters {
    pub channels: usize,
    /// Rows and columns of a filter.
    pub size: [usize; 2],
    /// `[component][C, H, W]` of length one; its element of greatest magnitude is positive.
    pub components: Vec<Vec<f32>>,
    /// The fraction of the filters' variance that each component explains.
    pub explained: Vec<f64>,
    pub check: Check,
}

/// The first `count` components, fewer when there are fewer.
///
/// # Errors
/// When the first layer has no filters of more than one pixel, or all are the same.
pub fn filters(model: &Model, count: usize) -> Result<Filters, Error> {
    let filters = model.inspect().first_filters().ok_or_else(|| {
        Error::analysis("filters", "the model has no filters of more than one pixel in its first layer")
    })?;
    components(filters, count)
}

/// `[D, C, H, W]`
fn components(filters: Tensor<4>, count: usize) -> Result<Filters, Error> {
    let [number, channels, rows, columns] = filters.dims();
    let width = channels * rows * columns;
    let values: Vec<f64> = filters.into_data().iter::<f32>().map(f64::from).collect();
    let mean: Vec<f64> =
        (0..width).map(|at| values.iter().skip(at).step_by(width).sum::<f64>() / number as f64).collect();
    let centred: Vec<f64> = values.iter().enumerate().map(|(at, value)| value - mean[at % width]).collect();
    let all: f64 = centred.iter().map(|value| value * value).sum();
    if !all.is_finite() || all <= 1e-20 * values.iter().map(|value| value * value).sum::<f64>() {
        return Err(Error::analysis("filters", "all filters are the same, or one is not finite"));
    }
    // the products of filters with each other have the same components as those of pixels, and may be fewer
    let by_filter = number < width;
    let side = if by_filter { number } else { width };
    let row = |at: usize| -> Vec<f64> {
        if by_filter {
            centred[at * width..(at + 1) * width].to_vec()
        } else {
            centred.iter().skip(at).step_by(width).copied().collect()
        }
    };
    let rows_of: Vec<Vec<f64>> = (0..side).map(row).collect();
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let products = (0..side * side).map(|at| dot(&rows_of[at / side], &rows_of[at % side])).collect();
    // components that are only rounding errors are left out
    let found: Vec<(f64, Vec<f64>)> =
        eigen(products, side).into_iter().take(count).take_while(|(value, _)| *value > 1e-12 * all).collect();
    let component = |(value, vector): &(f64, Vec<f64>)| -> Vec<f64> {
        let mut component = vec![0.0; width];
        if by_filter {
            for (share, row) in vector.iter().zip(&rows_of) {
                component.iter_mut().zip(row).for_each(|(sum, value)| *sum += share * value);
            }
            component.iter_mut().for_each(|sum| *sum /= value.sqrt());
        } else {
            component.copy_from_slice(vector);
        }
        let strongest = component.iter().copied().fold(0.0, |a: f64, b: f64| if b.abs() > a.abs() { b } else { a });
        component.iter_mut().for_each(|value| *value *= strongest.signum());
        component
    };
    let components: Vec<Vec<f64>> = found.iter().map(component).collect();
    let pairs = || (0..components.len()).flat_map(|a| (0..=a).map(move |b| (a, b)));
    let off = |(a, b): (usize, usize)| (dot(&components[a], &components[b]) - f64::from(u8::from(a == b))).abs();
    let deviation = pairs().map(off).fold(0.0, largest);
    Ok(Filters {
        channels,
        size: [rows, columns],
        explained: found.iter().map(|(value, _)| value / all).collect(),
        components: components.iter().map(|component| component.iter().map(|value| *value as f32).collect()).collect(),
        check: Check::new("components are orthogonal and of length one", deviation, 1e-6),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::model;
    use crate::testing::{random, values};

    #[test]
    fn filters_along_one_direction_have_one_component_with_all_the_variance() {
        let direction = random::<4>([1, 3, 2, 2], 1);
        let filters = Tensor::cat((-3i8..4).map(|i| direction.clone().mul_scalar(i)).collect(), 0) + 5.0;
        let found = components(filters, 4).unwrap();
        assert_eq!(found.components.len(), 1);
        assert!((found.explained[0] - 1.0).abs() < 1e-6 && found.check.holds());
        let length = values(&direction).iter().map(|value| value * value).sum::<f32>().sqrt();
        let along: f32 = values(&direction).iter().zip(&found.components[0]).map(|(a, b)| a * b / length).sum();
        assert!((along.abs() - 1.0).abs() < 1e-5);
    }

    #[test]
    fn more_filters_than_pixels_and_fewer_agree() {
        // each filter twice has the same components
        let few = random::<4>([10, 3, 2, 2], 2);
        let many = Tensor::cat(vec![few.clone(), few.clone()], 0);
        let (few, many) = (components(few, 5).unwrap(), components(many, 5).unwrap());
        for component in 0..5 {
            let distance = crate::testing::distance(&few.components[component], &many.components[component]);
            assert!(distance < 1e-4, "{component}: {distance}");
            assert!((few.explained[component] - many.explained[component]).abs() < 1e-6);
        }
        assert!(few.explained.windows(2).all(|pair| pair[0] >= pair[1]));
    }

    #[test]
    fn models_have_filters_or_say_that_they_have_none_and_equal_ones_are_an_error() {
        for (name, size) in [("vit-nano", [4, 4]), ("resnet-nano", [3, 3])] {
            let found = filters(&model(name).0, 8).unwrap();
            assert_eq!((found.size, found.components.len()), (size, 8), "{name}");
        }
        assert!(filters(&model("san-nano-pairwise").0, 8).is_err());
        assert!(components(Tensor::ones([4, 3, 2, 2], &crate::device::cpu()), 2).is_err());
    }
}
