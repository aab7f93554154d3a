//! Attention entropy: at how many things does a head look at once?
//!
//! In nats: 0 when it looks at one, the logarithm of their number when it looks at all alike. Rows are those that were
//! recorded, tokens before places included; a negative weight of patchwise attention counts by its magnitude.

use super::attention::{Attention, Reach, Row};

/// The mean entropy of the rows of a head.
#[must_use]
pub fn entropy(attention: &Attention, picture: usize, head: usize) -> f64 {
    if let Some(matrix) = attention.matrix(picture, head) {
        let rows = matrix.chunks_exact(attention.key_tokens());
        let count = rows.len();
        return rows.map(|row| of_row(row.iter().copied())).sum::<f64>() / count as f64;
    }
    let of_place = |query: usize| {
        let row = Row { picture, head, query };
        match attention.reach {
            // places that a mirror shows twice are looked at twice
            Reach::Window { .. } => of_row(attention.kernel(row).unwrap_or_default().into_iter()),
            Reach::Everywhere | Reach::Block { .. } => {
                let mut weights = Vec::new();
                attention.each(row, |_, weight| weights.push(weight));
                of_row(weights.into_iter())
            }
        }
    };
    (0..attention.places()).map(of_place).sum::<f64>() / attention.places() as f64
}

/// `-sum p ln p` of weights made to sum to one; 0 of a row of zeros.
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

    #[test]
    fn looking_at_all_alike_is_the_logarithm_of_their_number_and_at_one_is_nothing() {
        let attention = |row: [f32; 4]| Attention::of_tokens("layer", 1, 0, [2, 2], [8, 8], row.repeat(4));
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
