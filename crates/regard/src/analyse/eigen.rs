//! Eigenvectors of a symmetric matrix by Jacobi's rotations: slow for large ones, accurate and short.

/// The eigenvalues of a symmetric `[n, n]`, greatest first, each with its eigenvector of length one.
pub fn eigen(mut matrix: Vec<f64>, n: usize) -> Vec<(f64, Vec<f64>)> {
    assert_eq!(matrix.len(), n * n, "eigen: a matrix of {n} rows");
    // its rows become the eigenvectors
    let mut vectors: Vec<f64> = (0..n * n).map(|i| f64::from(u8::from(i % (n + 1) == 0))).collect();
    let all: f64 = matrix.iter().map(|value| value * value).sum();
    for _ in 0..100 {
        let off: f64 = (0..n)
            .flat_map(|row| (0..row).map(move |column| (row, column)))
            .map(|(row, column)| matrix[row * n + column].powi(2))
            .sum();
        if off <= 1e-28 * all {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut matrix, &mut vectors, n, [p, q]);
            }
        }
    }
    let mut found: Vec<(f64, Vec<f64>)> =
        vectors.chunks_exact(n.max(1)).enumerate().map(|(i, vector)| (matrix[i * n + i], vector.to_vec())).collect();
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found
}

/// Turns rows and columns p and q so that their common element becomes zero.
fn rotate(matrix: &mut [f64], vectors: &mut [f64], n: usize, [p, q]: [usize; 2]) {
    let apart = matrix[p * n + q];
    if apart == 0.0 {
        return;
    }
    let ratio = (matrix[q * n + q] - matrix[p * n + p]) / (2.0 * apart);
    let tangent = ratio.signum() / (ratio.abs() + ratio.hypot(1.0));
    let cosine = 1.0 / tangent.hypot(1.0);
    let sine = tangent * cosine;
    let turn = |a: &mut f64, b: &mut f64| (*a, *b) = (cosine * *a - sine * *b, sine * *a + cosine * *b);
    let rows = |of: &mut [f64]| {
        let (before, after) = of.split_at_mut(q * n);
        before[p * n..(p + 1) * n].iter_mut().zip(&mut after[..n]).for_each(|(a, b)| turn(a, b));
    };
    rows(matrix);
    for row in matrix.chunks_exact_mut(n) {
        let (before, after) = row.split_at_mut(q);
        turn(&mut before[p], &mut after[0]);
    }
    rows(vectors);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    #[test]
    fn vectors_are_orthonormal_and_give_the_matrix_back() {
        let n = 9;
        let half: Vec<f64> = noise(n * n, 1).into_iter().map(f64::from).collect();
        let matrix: Vec<f64> = (0..n * n).map(|i| half[i] + half[i % n * n + i / n]).collect();
        let found = eigen(matrix.clone(), n);
        assert!(found.windows(2).all(|pair| pair[0].0 >= pair[1].0));
        for row in 0..n {
            for column in 0..n {
                let sum: f64 = found.iter().map(|(value, vector)| value * vector[row] * vector[column]).sum();
                assert!((sum - matrix[row * n + column]).abs() < 1e-12);
                let dot: f64 = found[row].1.iter().zip(&found[column].1).map(|(a, b)| a * b).sum();
                assert!((dot - f64::from(u8::from(row == column))).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_diagonal_is_sorted_and_nothing_has_no_vectors() {
        let found = eigen(vec![1.0, 0.0, 0.0, 5.0], 2);
        assert_eq!(found, [(5.0, vec![0.0, 1.0]), (1.0, vec![1.0, 0.0])]);
        assert!((eigen(vec![2.0, 2.0, 2.0, 2.0], 2)[0].0 - 4.0).abs() < 1e-12);
        assert!(eigen(Vec::new(), 0).is_empty());
    }
}
