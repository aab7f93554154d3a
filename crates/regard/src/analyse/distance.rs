//! Mean attention distance: how many pixels away are the keys that a head attends to?
//! Dosovitskiy et al. 2020, arXiv:2010.11929, figure 7; Raghu et al. 2021, arXiv:2108.08810, section 3.
//!
//! Prefix tokens are dropped, as queries and as keys, and the rest of a row is normalised to sum to one again; some code
//! omits that. A negative weight of patchwise attention counts by its magnitude. A pixel beyond the edge of a
//! mirrored image counts where the mirror shows it.

use super::attention::{Attention, WeightRow};
use crate::Error;

/// The mean over queries of the weighted distance between a query and its keys, in pixels of the image.
///
/// # Errors
/// When it is not attention within an image.
pub fn distance(attention: &Attention, sample: usize, head: usize) -> Result<f64, Error> {
    const NAME: &str = "attention distance";
    let [queries, keys] = attention.grids(NAME)?;
    let image = attention.image.ok_or_else(|| Error::analysis(NAME, "the size of the image is not known"))?;
    let stride = [0, 1].map(|axis| image[axis] as f64 / queries[axis] as f64);
    // keys may be fewer than queries: their centres, in units of queries
    let scale = [0, 1].map(|axis| queries[axis] as f64 / keys[axis] as f64);
    let centre = |key: usize, axis: usize| {
        let at = if axis == 0 { key / keys[1] } else { key % keys[1] };
        (at as f64 + 0.5) * scale[axis] - 0.5
    };
    let [query_prefix, key_prefix] = [attention.geometry.queries.prefix(), attention.geometry.keys.prefix()];
    let pixels = queries[0] * queries[1];
    let mut sum = 0.0;
    for pixel in 0..pixels {
        let own = [pixel / queries[1], pixel % queries[1]];
        let (mut weighted, mut all) = (0.0, 0.0);
        attention.each_key(WeightRow { sample, head, query: query_prefix + pixel }, |key, weight| {
            let Some(key) = key.checked_sub(key_prefix) else { return };
            let away = [0, 1].map(|axis| (centre(key, axis) - own[axis] as f64) * stride[axis]);
            let weight = f64::from(weight.abs());
            weighted += weight * away[0].hypot(away[1]);
            all += weight;
        });
        // a pixel that attends to nothing but the class token has no distance
        if all > 0.0 {
            sum += weighted / all;
        }
    }
    Ok(sum / pixels as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::of_tokens;
    use crate::testing::Fixture;

    #[test]
    fn it_is_that_of_the_reference() {
        let fixture = Fixture::load("analysis");
        let attention = fixture.values("io/attention");
        let expected = fixture.values("io/attention_distance");
        for (layer, weights) in attention.chunks(3 * 100).enumerate() {
            let attention = of_tokens(3, 1, [3, 3], [48, 48], weights.to_vec());
            for head in 0..3 {
                let found = distance(&attention, 0, head).unwrap();
                assert!((found - f64::from(expected[3 * layer + head])).abs() < 1e-5, "{layer} {head}: {found}");
            }
        }
    }

    #[test]
    fn who_looks_at_itself_looks_nowhere_else() {
        let identity = (0..81).map(|i| f32::from(i % 10 == 0)).collect();
        assert_eq!(distance(&of_tokens(1, 0, [3, 3], [12, 12], identity), 0, 0).unwrap(), 0.0);
    }

    #[test]
    fn attention_to_the_class_token_changes_nothing_and_pixels_scale_it() {
        let row = |class: f32| [class, (1.0 - class) * 0.25, (1.0 - class) * 0.75];
        let weights = |class: f32| [row(class), row(class), row(class)].concat();
        let found =
            |class: f32, width: usize| distance(&of_tokens(1, 1, [1, 2], [8, width], weights(class)), 0, 0).unwrap();
        assert!((found(0.9, 16) - found(0.0, 16)).abs() < 1e-6);
        assert!((found(0.0, 16) - 8.0 * f64::midpoint(0.75, 0.25)).abs() < 1e-6);
        assert!((found(0.0, 32) - 2.0 * found(0.0, 16)).abs() < 1e-6);
    }
}
