//! Matches queries with objects: the assignment with minimum total cost for a picture.
//! Kuhn 1955; here the shortest augmenting paths of Jonker and Volgenant in the form of scipy's `linear_sum_assignment`, which
//! the reference uses: exact, rectangular, and equal costs go to the first query.

pub use regard_kernels::boxes::CostWeights;

use crate::Error;

/// A query and its matched object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatchedPair {
    pub query: usize,
    pub object: usize,
}

/// The pairs of a picture, by rising query: as many as the smaller of the numbers of queries and objects. With more objects
/// than queries, the most expensive ones are not matched.
///
/// `probabilities` are `[Q, classes]`; boxes of queries and objects are cx, cy, w, h.
///
/// # Errors
/// When a cost is not finite, because an output or a box is not. `picture` is its index in the batch, for the error.
///
/// # Panics
/// When lengths differ, or an object's class is not among the classes.
pub fn match_objects(
    picture: usize,
    weights: CostWeights,
    (probabilities, classes): (&[f32], usize),
    queries: &[[f32; 4]],
    objects: &[(usize, [f32; 4])],
) -> Result<Vec<MatchedPair>, Error> {
    if objects.is_empty() {
        return Ok(Vec::new());
    }
    let costs = weights.matrix(probabilities, classes, queries, objects);
    if let Some(at) = costs.iter().position(|cost| !cost.is_finite()) {
        let (query, object) = (at / objects.len(), at % objects.len());
        let reason = format!(
            "the cost of query {query} and object {object} is {}: box {:?} of the query, {:?} of the object",
            costs[at], queries[query], objects[object].1
        );
        return Err(Error::Field { field: format!("picture {picture} of the batch"), reason });
    }
    let costs: Vec<f64> = costs.into_iter().map(f64::from).collect();
    let (rows, columns) =
        lsap::solve(queries.len(), objects.len(), &costs, false).expect("finite costs have an assignment");
    Ok(rows.into_iter().zip(columns).map(|(query, object)| MatchedPair { query, object }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    /// Boxes inside the picture, and probabilities of two classes.
    fn boxes(count: usize, seed: u64) -> Vec<[f32; 4]> {
        let numbers: Vec<f32> = noise(4 * count, seed).iter().map(|x| 0.5 + 0.2 * x.clamp(-2.0, 2.0)).collect();
        numbers.chunks_exact(4).map(|b| [b[0], b[1], b[2], b[3]]).collect()
    }

    fn objects(count: usize, seed: u64) -> Vec<(usize, [f32; 4])> {
        boxes(count, seed).into_iter().enumerate().map(|(index, bounds)| (index % 2, bounds)).collect()
    }

    fn pairs(queries: &[[f32; 4]], objects: &[(usize, [f32; 4])]) -> Vec<MatchedPair> {
        let probabilities = vec![0.5; 2 * queries.len()];
        match_objects(0, CostWeights::DETR, (&probabilities, 2), queries, objects).unwrap()
    }

    /// The minimum cost over all assignments, by brute force.
    fn least(costs: &[f32], columns: usize, row: usize, taken: &mut Vec<usize>, left: usize) -> f32 {
        let rows = costs.len() / columns;
        if left == 0 {
            return 0.0;
        }
        if row == rows {
            return f32::INFINITY;
        }
        let mut best = least(costs, columns, row + 1, taken, left);
        for column in 0..columns {
            if !taken.contains(&column) {
                taken.push(column);
                best = best.min(costs[row * columns + column] + least(costs, columns, row + 1, taken, left - 1));
                taken.pop();
            }
        }
        best
    }

    #[test]
    fn no_other_assignment_is_cheaper_whichever_side_is_larger() {
        for (count, of, seed) in [(5, 3, 1), (4, 4, 2), (3, 5, 3), (6, 1, 4), (1, 6, 5)] {
            let (queries, objects) = (boxes(count, seed), objects(of, seed + 10));
            let found = pairs(&queries, &objects);
            assert_eq!(found.len(), count.min(of));
            assert!(found.windows(2).all(|pair| pair[0].query < pair[1].query), "{found:?}");
            let costs = CostWeights::DETR.matrix(&vec![0.5; 2 * count], 2, &queries, &objects);
            let cost: f32 = found.iter().map(|pair| costs[pair.query * of + pair.object]).sum();
            assert!((cost - least(&costs, of, 0, &mut Vec::new(), count.min(of))).abs() < 1e-4, "{count} {of}");
        }
    }

    #[test]
    fn equal_costs_go_to_the_first_queries_and_a_picture_without_objects_has_no_pair() {
        let (query, object) = ([0.5, 0.5, 0.2, 0.2], [0.4, 0.5, 0.3, 0.2]);
        let found = pairs(&[query; 4], &[(0, object), (1, object)]);
        assert_eq!(found, [MatchedPair { query: 0, object: 0 }, MatchedPair { query: 1, object: 1 }]);
        assert_eq!(pairs(&[query; 4], &[]), []);
    }

    #[test]
    fn a_cost_that_is_no_number_names_the_picture() {
        let mut queries = boxes(3, 1);
        queries[2][1] = f32::NAN;
        let error = match_objects(7, CostWeights::DETR, (&[0.5; 6], 2), &queries, &objects(2, 2)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("picture 7 of the batch") && error.contains("query 2 and object 0"), "{error}");
    }
}
