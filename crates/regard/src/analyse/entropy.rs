//! Attention entropy: over how many keys does a head spread its attention?
//!
//! In nats: 0 for a single key, the logarithm of the number of keys for uniform attention. Rows are those
//! that were recorded, prefix tokens included; a negative weight of patchwise attention counts by its magnitude.

use super::attention::{Attention, WeightRow};

/// The mean entropy of the rows of a head, for any layout of queries and keys.
#[must_use]
pub fn entropy(attention: &Attention, sample: usize, head: usize) -> f64 {
    let of_query = |query: usize| {
        let row = WeightRow { sample, head, query };
        // windows as computed: a pixel that a mirror shows twice counts twice
        let weights = attention.kernel(row).unwrap_or_else(|| {
            let mut weights = Vec::new();
            attention.each_key(row, |_, weight| weights.push(weight));
            weights
        });
        of_row(weights.into_iter())
    };
    (0..attention.queries()).map(of_query).sum::<f64>() / attention.queries() as f64
}

/// `-sum p ln p` of normalised weights; 0 for a row of zeros.
fn of_row(weights: impl Iterator<Item = f32>) -> f64 {
    let (mut all, mut logarithms) = (0.0, 0.0);
    for weight in weights.map(|weight| f64::from(weight.abs())).filter(|weight| *weight > 0.0) {
        all += weight;
        logarithms += weight * weight.ln();
    }
    if all > 0.0 { all.ln() - logarithms / all } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::tests::of_tokens;

    #[test]
    fn looking_at_all_alike_is_the_logarithm_of_their_number_and_at_one_is_nothing() {
        let attention = |row: [f32; 4]| of_tokens(1, 0, [2, 2], [8, 8], row.repeat(4));
        assert!((entropy(&attention([0.25; 4]), 0, 0) - 4f64.ln()).abs() < 1e-7);
        assert_eq!(entropy(&attention([0.0, 1.0, 0.0, 0.0]), 0, 0), 0.0);
        assert!((entropy(&attention([0.5, 0.5, 0.0, 0.0]), 0, 0) - 2f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn the_scale_of_a_row_does_not_matter_and_zeros_are_no_nan() {
        let row = [0.1f32, 0.2, 0.7];
        assert!((of_row(row.into_iter()) - of_row(row.into_iter().map(|weight| -5.0 * weight))).abs() < 1e-6);
        assert_eq!(of_row([0.0, 0.0].into_iter()), 0.0);
    }
}
