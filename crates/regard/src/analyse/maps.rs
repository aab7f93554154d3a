//! Where one place looks, by layer and head: values on the grid of the picture.

use serde::Serialize;

use super::attention::{Attention, Reach, Row};
use super::check::{Check, largest};

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Query {
    /// A token before those of places: 0 is that of the class.
    Token(usize),
    /// A place of the picture, as shares of its height and width: the middle is `[0.5, 0.5]` for every layer.
    At([f64; 2]),
}

/// Where it looks in one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Maps {
    pub layer: String,
    /// Rows and columns of a map.
    pub size: [usize; 2],
    /// Rows and columns of places that look; more than those of a map when keys are pooled.
    pub queries: [usize; 2],
    /// Row and column of the place that looks; none for a token.
    pub query: Option<[usize; 2]>,
    /// `[head][row, column]`: a head, or a group of channels with the same weights.
    pub heads: Vec<Vec<f32>>,
    /// `[head][token]`: what tokens before places receive.
    pub tokens: Vec<Vec<f32>>,
    /// The windows as they were computed; none where a place looks everywhere.
    pub kernels: Option<Kernels>,
    /// Whether a head pays one in all.
    pub sums_to_one: bool,
}

/// Adaptive kernels: the weights that a place gives to its window, for each group of channels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernels {
    /// Side of the window.
    pub side: usize,
    /// `[group][k*k]`, row by row.
    pub values: Vec<Vec<f32>>,
}

/// Where a query of one picture looks; none when the layer has no such token.
#[must_use]
pub fn maps(attention: &Attention, picture: usize, query: Query) -> Option<Maps> {
    let (place, index) = match query {
        Query::Token(token) if token < attention.prefix => (None, token),
        Query::Token(_) => return None,
        Query::At(share) => {
            let [row, column] = place(attention.queries, share);
            (Some([row, column]), row * attention.queries[1] + column)
        }
    };
    let (mut heads, mut tokens, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for head in 0..attention.heads {
        let row = Row { picture, head, query: index };
        let token = if place.is_some() { attention.prefix + index } else { index };
        if let Some(matrix) = attention.matrix(picture, head) {
            let keys = attention.key_tokens();
            let (before, places) = matrix[token * keys..][..keys].split_at(attention.prefix);
            tokens.push(before.to_vec());
            heads.push(places.to_vec());
        } else {
            let mut map = vec![0.0; attention.keys[0] * attention.keys[1]];
            attention.each(row, |key, weight| map[key] += weight);
            tokens.push(Vec::new());
            heads.push(map);
        }
        kernels.extend(attention.kernel(row));
    }
    let kernels = match attention.reach {
        Reach::Window { side, .. } => Some(Kernels { side, values: kernels }),
        Reach::Everywhere | Reach::Block { .. } => None,
    };
    let &Attention { ref layer, keys: size, queries, sums_to_one, .. } = attention;
    Some(Maps { layer: layer.clone(), size, queries, query: place, heads, tokens, kernels, sums_to_one })
}

/// Row and column of a grid at shares of its sides; what is outside of the picture is at its edge.
fn place(grid: [usize; 2], share: [f64; 2]) -> [usize; 2] {
    [0, 1].map(|axis| ((share[axis].clamp(0.0, 1.0) * grid[axis] as f64) as usize).min(grid[axis] - 1))
}

impl Maps {
    /// The mean over heads.
    #[must_use]
    pub fn mean(&self) -> Vec<f32> {
        let mut mean = vec![0.0; self.size[0] * self.size[1]];
        for head in &self.heads {
            mean.iter_mut().zip(head).for_each(|(mean, value)| *mean += value / self.heads.len() as f32);
        }
        mean
    }

    /// Whether what is paid to places and tokens is one, where it should be.
    #[must_use]
    pub fn check(&self) -> Option<Check> {
        let paid = |(head, tokens): (&Vec<f32>, &Vec<f32>)| {
            (head.iter().chain(tokens).map(|weight| f64::from(*weight)).sum::<f64>() - 1.0).abs()
        };
        let deviation = self.heads.iter().zip(&self.tokens).map(paid).fold(0.0, largest);
        self.sums_to_one.then(|| Check::new("maps and tokens sum to one", deviation, 1e-4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::{attentions, tests::model};
    use crate::testing::random;
    use crate::{Pass, Trace};

    fn trace(name: &str) -> (Trace, crate::models::ModelConfig) {
        let (model, config) = model(name);
        let mut pass = Pass::recording();
        model.forward(random([1, 3, 32, 32], 1), &mut pass);
        (pass.into_trace(), config)
    }

    #[test]
    fn a_map_is_the_row_that_was_recorded() {
        let (trace, config) = trace("vit-nano");
        let recorded: Vec<f32> = trace.get::<4>("blocks.2.attn.weights").unwrap().into_data().iter::<f32>().collect();
        let attention = &attentions(trace, &config)[2];
        let class = maps(attention, 0, Query::Token(0)).unwrap();
        assert_eq!((class.size, class.query, class.heads.len()), ([8, 8], None, 4));
        assert_eq!(class.heads[1], recorded[65 * 65 + 1..65 * 65 + 65]);
        // the patch in row 4 and column 6
        let patch = maps(attention, 0, Query::At([0.55, 0.8])).unwrap();
        assert_eq!(patch.query, Some([4, 6]));
        let row = 3 * 65 * 65 + (1 + 4 * 8 + 6) * 65;
        assert_eq!((&patch.heads[3][..], &patch.tokens[3][..]), (&recorded[row + 1..row + 65], &recorded[row..=row]));
        assert!(maps(attention, 0, Query::Token(1)).is_none(), "there is one token");
        assert!(patch.check().unwrap().holds() && class.check().unwrap().holds());
    }

    #[test]
    fn a_kernel_lies_around_its_place() {
        for name in ["san-nano-pairwise", "san-nano-patchwise", "sasa-nano"] {
            let (trace, config) = trace(name);
            let attentions = attentions(trace, &config);
            let attention =
                attentions.iter().find(|attention| matches!(attention.reach, Reach::Window { .. })).unwrap();
            let middle = maps(attention, 0, Query::At([0.5, 0.5])).unwrap();
            let (kernels, [row, column]) = (middle.kernels.as_ref().unwrap(), middle.query.unwrap());
            assert_eq!(kernels.values.len(), attention.heads, "{name}");
            for (map, kernel) in middle.heads.iter().zip(&kernels.values) {
                let own = kernel[kernels.side * kernels.side / 2];
                assert_eq!(
                    map[row * middle.size[1] + column],
                    own,
                    "{name}: odd windows have their place in the middle"
                );
                let [sum, all] = [map, kernel].map(|values| values.iter().sum::<f32>());
                assert!((sum - all).abs() < 1e-4, "{name}: {sum} on the map, {all} in the kernel");
            }
            assert!(middle.check().is_none_or(|check| check.holds()), "{name}");
        }
    }
}
