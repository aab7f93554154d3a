//! The attention of one query by layer and head, laid out as the keys are.

use serde::Serialize;

use super::attention::{Attention, WeightRow};
use super::check::{Check, largest};
use crate::Error;
use crate::pass::Reach;

/// Which query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Query {
    /// A prefix token; 0 is the class token.
    Token(usize),
    /// A point of an image, as fractions of its height and width: the centre is `[0.5, 0.5]` for every layer.
    At([f64; 2]),
    /// The n-th token after the prefix: a word, a slot, a patch of a clip.
    Index(usize),
}

/// The attention of one query in one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AttentionMaps {
    pub layer: String,
    /// Rows and columns of a map: those of an image, frames one below the other, or a single row.
    pub size: [usize; 2],
    /// Rows and columns of the queries; more than those of a map if keys are pooled.
    pub queries: [usize; 2],
    /// Row and column of the query; `None` for a prefix token.
    pub query: Option<[usize; 2]>,
    /// `[head][row, column]`: a head, or a group of channels with the same weights.
    pub heads: Vec<Vec<f32>>,
    /// `[head][token]`: the weights of prefix tokens.
    pub tokens: Vec<Vec<f32>>,
    /// The windows as computed; `None` if queries attend to all keys.
    pub kernels: Option<Kernels>,
    /// Whether the weights of a head sum to one.
    pub sums_to_one: bool,
}

/// Adaptive kernels: the weights that a query gives to its window, for each group of channels.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Kernels {
    /// Side of the window.
    pub side: usize,
    /// `[group][k*k]`, row by row.
    pub values: Vec<Vec<f32>>,
}

/// The attention of one query of one sample.
///
/// # Errors
/// When the layer has no such query.
pub fn maps(attention: &Attention, sample: usize, query: Query) -> Result<AttentionMaps, Error> {
    let token = token_of(attention, query)?;
    let geometry = &attention.geometry;
    let [query_prefix, key_prefix] = [geometry.queries.prefix(), geometry.keys.prefix()];
    let (mut heads, mut tokens, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for head in 0..attention.heads {
        let row = WeightRow { sample, head, query: token };
        let mut weights = vec![0.0; attention.keys()];
        attention.each_key(row, |key, weight| weights[key] += weight);
        heads.push(weights.split_off(key_prefix));
        tokens.push(weights);
        kernels.extend(attention.kernel(row));
    }
    let kernels = match geometry.reach {
        Reach::Window { side, .. } => Some(Kernels { side, values: kernels }),
        Reach::Everywhere | Reach::Block { .. } => None,
    };
    let (size, queries) = (geometry.keys.sheet(), geometry.queries.sheet());
    let query = token.checked_sub(query_prefix).map(|index| [index / queries[1], index % queries[1]]);
    let (layer, sums_to_one) = (attention.layer.clone(), geometry.sums_to_one);
    Ok(AttentionMaps { layer, size, queries, query, heads, tokens, kernels, sums_to_one })
}

/// The index of the query's token in one layer, prefix included.
fn token_of(attention: &Attention, query: Query) -> Result<usize, Error> {
    let axes = &attention.geometry.queries;
    let missing = |what: &str, index: usize, count: usize| {
        Error::analysis("maps", format!("`{}` has {count} {what}, there is no number {index}", attention.layer))
    };
    match query {
        Query::Token(token) if token < axes.prefix() => Ok(token),
        Query::Token(token) => Err(missing("prefix tokens", token, axes.prefix())),
        Query::At(point) => {
            let [[rows, columns], _] = attention.grids("maps")?;
            let pixel = |axis: usize, size: usize| ((point[axis].clamp(0.0, 1.0) * size as f64) as usize).min(size - 1);
            Ok(axes.prefix() + pixel(0, rows) * columns + pixel(1, columns))
        }
        Query::Index(index) if axes.prefix() + index < axes.tokens() => Ok(axes.prefix() + index),
        Query::Index(index) => Err(missing("tokens", index, axes.tokens() - axes.prefix())),
    }
}

impl AttentionMaps {
    /// The mean over heads.
    #[must_use]
    pub fn mean(&self) -> Vec<f32> {
        let mut mean = vec![0.0; self.size[0] * self.size[1]];
        for head in &self.heads {
            mean.iter_mut().zip(head).for_each(|(mean, value)| *mean += value / self.heads.len() as f32);
        }
        mean
    }

    /// Checks that the weights of a head sum to one; `None` if they need not.
    #[must_use]
    pub fn check(&self) -> Option<Check> {
        let off = |(head, tokens): (&Vec<f32>, &Vec<f32>)| {
            (head.iter().chain(tokens).map(|weight| f64::from(*weight)).sum::<f64>() - 1.0).abs()
        };
        let deviation = self.heads.iter().zip(&self.tokens).map(off).fold(0.0, largest);
        self.sums_to_one.then(|| Check::new("maps and tokens sum to one", deviation, 1e-4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyse::attention::{attentions, tests::model};
    use crate::pass::{Axes, Geometry};
    use crate::testing::random;
    use crate::{Pass, Trace};

    fn trace(name: &str) -> Trace {
        let (model, _) = model(name);
        let mut pass = Pass::recording();
        model.forward(random([1, 3, 32, 32], 1), &mut pass);
        pass.into_trace()
    }

    fn read(trace: Trace) -> Vec<Attention> {
        attentions(trace, Some([32, 32])).unwrap()
    }

    #[test]
    fn a_map_is_the_row_that_was_recorded() {
        let trace = trace("vit-nano");
        let recorded: Vec<f32> = trace.get::<4>("blocks.2.attn.weights").unwrap().into_data().iter::<f32>().collect();
        let attention = &read(trace)[2];
        let class = maps(attention, 0, Query::Token(0)).unwrap();
        assert_eq!((class.size, class.query, class.heads.len()), ([8, 8], None, 4));
        assert_eq!(class.heads[1], recorded[65 * 65 + 1..65 * 65 + 65]);
        // the patch in row 4 and column 6
        let patch = maps(attention, 0, Query::At([0.55, 0.8])).unwrap();
        assert_eq!(patch.query, Some([4, 6]));
        let row = 3 * 65 * 65 + (1 + 4 * 8 + 6) * 65;
        assert_eq!((&patch.heads[3][..], &patch.tokens[3][..]), (&recorded[row + 1..row + 65], &recorded[row..=row]));
        let missing = maps(attention, 0, Query::Token(1)).unwrap_err().to_string();
        assert!(missing.contains("`blocks.2.attn` has 1 prefix tokens"), "{missing}");
        assert_eq!(maps(attention, 0, Query::Index(4 * 8 + 6)).unwrap(), patch);
        assert!(patch.check().unwrap().holds() && class.check().unwrap().holds());
    }

    #[test]
    fn a_kernel_lies_around_its_pixel() {
        for name in ["san-nano-pairwise", "san-nano-patchwise", "sasa-nano"] {
            let attentions = read(trace(name));
            let window = |attention: &&Attention| matches!(attention.geometry.reach, Reach::Window { .. });
            let attention = attentions.iter().find(window).unwrap();
            let middle = maps(attention, 0, Query::At([0.5, 0.5])).unwrap();
            let (kernels, [row, column]) = (middle.kernels.as_ref().unwrap(), middle.query.unwrap());
            assert_eq!(kernels.values.len(), attention.heads, "{name}");
            for (map, kernel) in middle.heads.iter().zip(&kernels.values) {
                let own = kernel[kernels.side * kernels.side / 2];
                assert_eq!(
                    map[row * middle.size[1] + column],
                    own,
                    "{name}: odd windows have their pixel in the middle"
                );
                let [sum, all] = [map, kernel].map(|values| values.iter().sum::<f32>());
                assert!((sum - all).abs() < 1e-4, "{name}: {sum} on the map, {all} in the kernel");
            }
            assert!(middle.check().is_none_or(|check| check.holds()), "{name}");
        }
    }

    #[test]
    fn words_and_clips_have_maps_and_points_of_an_image_are_refused_there() {
        let kinds = [
            (Axes::Words(6), [1, 6], [0, 4]),
            (Axes::Slots(6), [1, 6], [0, 4]),
            (Axes::Clip { prefix: 1, frames: 2, size: [2, 2] }, [4, 2], [2, 0]),
            (Axes::Joined(vec![Axes::Words(2), Axes::Slots(4)]), [1, 6], [0, 4]),
        ];
        for (axes, size, query) in kinds {
            let tokens = axes.tokens();
            let weights = burn::tensor::activation::softmax(random::<4>([1, 2, tokens, tokens], 1), 3).into_data();
            let geometry = Geometry::everywhere(axes.clone(), axes.clone());
            let attention = Attention::new("layer.weights", geometry, &weights, None).unwrap();
            let found = maps(&attention, 0, Query::Index(4)).unwrap();
            assert_eq!((found.size, found.query, found.heads.len()), (size, Some(query), 2), "{axes:?}");
            assert!(found.check().unwrap().holds());
            let refused = maps(&attention, 0, Query::At([0.5, 0.5])).unwrap_err().to_string();
            assert!(refused.contains("`layer` is not attention within an image"), "{refused}");
            assert!(maps(&attention, 0, Query::Index(99)).unwrap_err().to_string().contains("no number 99"));
        }
    }
}
