//! Hierarchical k-means: a vector goes to the nearest of `k` children at every level of a tree; its path is its token.
//! Nistér and Stewénius 2006, "Scalable Recognition with a Vocabulary Tree", as `VideoBERT` uses it.
//!
//! The token is the path as a number of base `k`, the first level most significant. The nearest leaf of all can be another one.

use rand::RngExt as _;
use rayon::prelude::*;

use crate::Error;
use crate::random::{Purpose, generator};

/// A tree of centroids.
#[derive(Clone, Debug, PartialEq)]
pub struct HierarchicalKMeans {
    branches: usize,
    width: usize,
    /// For each level `k^l` nodes of `k` children each, one after the other.
    levels: Vec<Vec<f32>>,
}

/// How a tree is learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KMeansConfig {
    /// Children of each node, `k`.
    pub branches: usize,
    pub levels: u32,
    /// Steps of k-means at each node, at most: they end when nothing moves.
    pub steps: usize,
    pub seed: u64,
}

/// The most centroids of a level.
const MOST: usize = 1 << 20;

impl HierarchicalKMeans {
    /// From the centroids of each level, of `k^l` nodes with `k` children of `width` numbers.
    ///
    /// # Errors
    /// When a level has another number of numbers, or one of them is not finite.
    pub fn new(branches: usize, width: usize, levels: Vec<Vec<f32>>) -> Result<Self, Error> {
        check(branches, width, levels.len() as u32)?;
        for (level, numbers) in levels.iter().enumerate() {
            let wanted = branches.pow(level as u32 + 1) * width;
            if numbers.len() != wanted || !numbers.iter().all(|number| number.is_finite()) {
                let reason = format!("level {level} must have {wanted} finite numbers, got {}", numbers.len());
                return Err(Error::config("centroids", reason));
            }
        }
        Ok(Self { branches, width, levels })
    }

    /// Learns a tree from vectors of `width` numbers, one after the other. The same for the same vectors and seed.
    ///
    /// # Errors
    /// When there is no vector, one is not whole or not finite, or the tree would be too large.
    pub fn fit(vectors: &[f32], width: usize, config: KMeansConfig) -> Result<Self, Error> {
        let KMeansConfig { branches, levels, .. } = config;
        check(branches, width, levels)?;
        let count = vectors.len() / width;
        if count == 0 || !vectors.len().is_multiple_of(width) || !vectors.iter().all(|number| number.is_finite()) {
            let reason = format!("must be vectors of {width} finite numbers, got {} numbers", vectors.len());
            return Err(Error::config("vectors", reason));
        }
        // the vectors of each node, and where a node without vectors stays
        let mut nodes = vec![((0..count).collect::<Vec<usize>>(), mean(vectors, width, 0..count))];
        let mut tree = Vec::new();
        for level in 0..levels {
            let split = |(node, (own, centre)): (usize, &(Vec<usize>, Vec<f32>))| {
                let place = [u64::from(level), node as u64];
                split_node(vectors, width, own, centre, &config, place)
            };
            let children: Vec<Vec<(Vec<usize>, Vec<f32>)>> = nodes.par_iter().enumerate().map(split).collect();
            nodes = children.into_iter().flatten().collect();
            tree.push(nodes.iter().flat_map(|(_, centre)| centre.iter().copied()).collect());
        }
        Ok(Self { branches, width, levels: tree })
    }

    /// The token of a vector.
    ///
    /// # Panics
    /// When it is not as wide as the centroids.
    #[must_use]
    pub fn token(&self, vector: &[f32]) -> u32 {
        assert!(vector.len() == self.width, "quantiser: {} numbers, centroids have {}", vector.len(), self.width);
        let size = self.branches * self.width;
        let step = |node: usize, level: &Vec<f32>| {
            node * self.branches + nearest(vector, &level[node * size..][..size], self.width)
        };
        self.levels.iter().fold(0, step) as u32
    }

    /// The centroid that a token stands for.
    ///
    /// # Panics
    /// When there is no such token.
    #[must_use]
    pub fn centroid(&self, token: u32) -> &[f32] {
        let leaves = self.levels.last().expect("a tree has a level");
        &leaves[token as usize * self.width..][..self.width]
    }

    /// Number of tokens, `k ^ levels`.
    #[must_use]
    pub fn vocabulary(&self) -> usize {
        self.branches.pow(self.levels.len() as u32)
    }

    /// Numbers of a vector.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }

    /// The centroids of each level, as [`new`](Self::new) takes them.
    #[must_use]
    pub fn levels(&self) -> &[Vec<f32>] {
        &self.levels
    }
}

fn check(branches: usize, width: usize, levels: u32) -> Result<(), Error> {
    let leaves = branches.checked_pow(levels);
    if branches == 0 || levels == 0 || leaves.is_none_or(|leaves| leaves > MOST) {
        let reason = format!("{branches} branches at {levels} levels must be from 1 to {MOST} centroids");
        return Err(Error::config("branches", reason));
    }
    if width == 0 {
        return Err(Error::config("width", "must be at least 1, got 0"));
    }
    Ok(())
}

fn distance(a: &[f32], b: &[f32]) -> f32 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The first of the nearest centroids.
fn nearest(vector: &[f32], centroids: &[f32], width: usize) -> usize {
    let distances = centroids.chunks_exact(width).map(|centroid| distance(vector, centroid));
    let best = distances.enumerate().fold((0, f32::INFINITY), |best, at| if at.1 < best.1 { at } else { best });
    best.0
}

fn mean(vectors: &[f32], width: usize, own: impl ExactSizeIterator<Item = usize>) -> Vec<f32> {
    let count = own.len() as f64;
    let mut sum = vec![0f64; width];
    for index in own {
        for (sum, number) in sum.iter_mut().zip(&vectors[index * width..][..width]) {
            *sum += f64::from(*number);
        }
    }
    sum.into_iter().map(|sum| (sum / count) as f32).collect()
}

/// k-means of the vectors of a node: its children with their vectors. A child without vectors stays where it started, one of a
/// node without vectors at the node.
fn split_node(
    vectors: &[f32],
    width: usize,
    own: &[usize],
    centre: &[f32],
    config: &KMeansConfig,
    place: [u64; 2],
) -> Vec<(Vec<usize>, Vec<f32>)> {
    let vector = |index: usize| &vectors[index * width..][..width];
    let mut centroids = start(vectors, width, own, centre, config, place);
    let assign = |centroids: &[f32]| -> Vec<usize> {
        own.iter().map(|index| nearest(vector(*index), centroids, width)).collect()
    };
    let mut children = assign(&centroids);
    for _ in 0..config.steps {
        for child in 0..config.branches {
            let members: Vec<usize> =
                own.iter().zip(&children).filter(|(_, of)| **of == child).map(|(index, _)| *index).collect();
            if !members.is_empty() {
                centroids[child * width..][..width].copy_from_slice(&mean(vectors, width, members.into_iter()));
            }
        }
        let next = assign(&centroids);
        if next == children {
            break;
        }
        children = next;
    }
    let child = |child: usize| {
        let members = own.iter().zip(&children).filter(|(_, of)| **of == child).map(|(index, _)| *index).collect();
        (members, centroids[child * width..][..width].to_vec())
    };
    (0..config.branches).map(child).collect()
}

/// k-means++: each centroid is a vector, drawn by its squared distance to those before.
/// Arthur and Vassilvitskii 2007.
fn start(
    vectors: &[f32],
    width: usize,
    own: &[usize],
    centre: &[f32],
    config: &KMeansConfig,
    place: [u64; 2],
) -> Vec<f32> {
    let Some(count) = Some(own.len()).filter(|count| *count > 0) else { return centre.repeat(config.branches) };
    let vector = |at: usize| &vectors[own[at] * width..][..width];
    let mut random = generator(config.seed, Purpose::Cluster, place);
    let mut centroids = vector(random.random_range(0..count)).to_vec();
    let mut distances = vec![f32::INFINITY; count];
    while centroids.len() < config.branches * width {
        let last = &centroids[centroids.len() - width..];
        let mut total = 0.0;
        for (at, shortest) in distances.iter_mut().enumerate() {
            *shortest = shortest.min(distance(vector(at), last));
            total += f64::from(*shortest);
        }
        let mut left = random.random::<f64>() * total;
        let drawn = distances.iter().position(|distance| {
            left -= f64::from(*distance);
            left < 0.0
        });
        // all vectors are centroids already, or rounding left a rest
        let next = vector(drawn.unwrap_or(count - 1)).to_vec();
        centroids.extend(next);
    }
    centroids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    const CONFIG: KMeansConfig = KMeansConfig { branches: 3, levels: 2, steps: 50, seed: 1 };

    /// Nine heaps of twenty vectors each, in three groups.
    fn heaps() -> Vec<f32> {
        let spread = noise(9 * 20 * 2, 1);
        let vector = |at: usize| {
            let heap = at / 20;
            let centre = [(heap / 3) as f32 * 100.0, (heap % 3) as f32 * 10.0];
            [centre[0] + spread[2 * at] * 0.5, centre[1] + spread[2 * at + 1] * 0.5]
        };
        (0..180).flat_map(vector).collect()
    }

    #[test]
    fn heaps_of_vectors_become_tokens_and_groups_share_their_first_digit() {
        let vectors = heaps();
        let tree = HierarchicalKMeans::fit(&vectors, 2, CONFIG).unwrap();
        let tokens: Vec<u32> = vectors.chunks_exact(2).map(|vector| tree.token(vector)).collect();
        for heap in tokens.chunks_exact(20) {
            assert!(heap.iter().all(|token| *token == heap[0]), "{tokens:?}");
        }
        let firsts: Vec<u32> = tokens.chunks_exact(60).map(|group| group[0] / 3).collect();
        assert!(
            tokens.chunks_exact(60).zip(&firsts).all(|(group, first)| group.iter().all(|token| token / 3 == *first))
        );
        let mut all: Vec<u32> = tokens.chunks_exact(20).map(|heap| heap[0]).collect();
        all.sort_unstable();
        assert_eq!(all, (0..9).collect::<Vec<_>>());
        for (vector, token) in vectors.chunks_exact(2).zip(&tokens) {
            assert!(distance(vector, tree.centroid(*token)) < 2.0);
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_tree_and_its_levels_give_it_back() {
        let vectors = noise(50 * 4, 3);
        let tree = HierarchicalKMeans::fit(&vectors, 4, CONFIG).unwrap();
        assert_eq!(tree, HierarchicalKMeans::fit(&vectors, 4, CONFIG).unwrap());
        assert_eq!(HierarchicalKMeans::new(3, 4, tree.levels().to_vec()).unwrap(), tree);
        assert_eq!((tree.vocabulary(), tree.width()), (9, 4));
    }

    #[test]
    fn fewer_vectors_than_leaves_make_a_tree_all_the_same() {
        let tree = HierarchicalKMeans::fit(&[1.0, 5.0], 1, CONFIG).unwrap();
        assert_ne!(tree.token(&[1.0]), tree.token(&[5.0]));
        assert!(tree.levels().iter().flatten().all(|number| number.is_finite()));
    }

    #[test]
    fn what_cannot_be_a_tree_is_named() {
        let refusal =
            |vectors: &[f32], width, config| HierarchicalKMeans::fit(vectors, width, config).unwrap_err().to_string();
        assert!(refusal(&[], 2, CONFIG).starts_with("`vectors`: must be vectors of 2 finite numbers, got 0"));
        assert!(refusal(&[1.0, 2.0, 3.0], 2, CONFIG).contains("got 3 numbers"));
        assert!(refusal(&[f32::NAN, 2.0], 2, CONFIG).starts_with("`vectors`"));
        assert!(refusal(&[1.0], 0, CONFIG).starts_with("`width`"));
        assert!(refusal(&[1.0], 1, KMeansConfig { branches: 1000, levels: 9, ..CONFIG }).starts_with("`branches`"));
        assert!(
            HierarchicalKMeans::new(3, 2, vec![vec![0.0; 5]]).unwrap_err().to_string().contains("level 0 must have 6")
        );
    }
}
