//! Mean attention distance: how many pixels away is what a head looks at?
//! Dosovitskiy et al. 2020, arXiv:2010.11929, figure 7; Raghu et al. 2021, arXiv:2108.08810, section 3.
//!
//! Tokens before places are dropped, as queries and as keys, and what is left of a row is made to sum to one again;
//! some code leaves that out. A negative weight of patchwise attention counts by its magnitude. A pixel beyond the edge
//! that is the picture mirrored is where the mirror shows it.

use super::attention::{Attention, Row};

/// The mean over places of the weighted distance between a place and what it looks at, in pixels.
#[must_use]
pub fn distance(attention: &Attention, picture: usize, head: usize) -> f64 {
    let stride = attention.stride();
    // keys may be fewer than queries: their middles in places of queries
    let scale = [0, 1].map(|axis| attention.queries[axis] as f64 / attention.keys[axis] as f64);
    let middle = |key: usize, axis: usize| {
        let at = if axis == 0 { key / attention.keys[1] } else { key % attention.keys[1] };
        (at as f64 + 0.5) * scale[axis] - 0.5
    };
    let mut sum = 0.0;
    for query in 0..attention.places() {
        let own = [query / attention.queries[1], query % attention.queries[1]];
        let (mut paid, mut all) = (0.0, 0.0);
        attention.each(Row { picture, head, query }, |key, weight| {
            let away = [0, 1].map(|axis| (middle(key, axis) - own[axis] as f64) * stride[axis]);
            let weight = f64::from(weight.abs());
            paid += weight * away[0].hypot(away[1]);
            all += weight;
        });
        // a place that looks at nothing but the class token looks nowhere
        if all > 0.0 {
            sum += paid / all;
        }
    }
    sum / attention.places() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Fixture;

    #[test]
    fn it_is_that_of_the_reference() {
        let fixture = Fixture::load("analysis");
        let attention = fixture.values("io/attention");
        let expected = fixture.values("io/attention_distance");
        for (layer, weights) in attention.chunks(3 * 100).enumerate() {
            let attention = Attention::of_tokens("layer", 3, 1, [3, 3], [48, 48], weights.to_vec());
            for head in 0..3 {
                let found = distance(&attention, 0, head);
                assert!((found - f64::from(expected[3 * layer + head])).abs() < 1e-5, "{layer} {head}: {found}");
            }
        }
    }

    #[test]
    fn who_looks_at_itself_looks_nowhere_else() {
        let identity = (0..81).map(|i| f32::from(i % 10 == 0)).collect();
        assert_eq!(distance(&Attention::of_tokens("layer", 1, 0, [3, 3], [12, 12], identity), 0, 0), 0.0);
    }

    #[test]
    fn attention_to_the_class_token_changes_nothing_and_pixels_scale_it() {
        let row = |class: f32| [class, (1.0 - class) * 0.25, (1.0 - class) * 0.75];
        let weights = |class: f32| [row(class), row(class), row(class)].concat();
        let found = |class: f32, width: usize| {
            distance(&Attention::of_tokens("layer", 1, 1, [1, 2], [8, width], weights(class)), 0, 0)
        };
        assert!((found(0.9, 16) - found(0.0, 16)).abs() < 1e-6);
        assert!((found(0.0, 16) - 8.0 * f64::midpoint(0.75, 0.25)).abs() < 1e-6);
        assert!((found(0.0, 32) - 2.0 * found(0.0, 16)).abs() < 1e-6);
    }
}
