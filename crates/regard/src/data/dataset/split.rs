//! A test for what has none: a fifth of every class.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

use super::Part;
use super::files::Sample;

/// The samples of a part, in their order.
///
/// Samples are drawn by the hash of their path below `root`: the same wherever the folder is and in whatever order the
/// file system lists it, and not the last pictures of a series, which are all alike.
pub fn part_of(root: &Path, samples: Vec<Sample>, part: Part) -> Vec<Sample> {
    if part == Part::All {
        return samples;
    }
    let mut classes: BTreeMap<usize, Vec<([u8; 32], usize)>> = BTreeMap::new();
    for (index, sample) in samples.iter().enumerate() {
        let name = sample.path.strip_prefix(root).unwrap_or(&sample.path);
        let name: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        classes.entry(sample.label).or_default().push((Sha256::digest(name.join("/")).into(), index));
    }
    let mut is_test = vec![false; samples.len()];
    for drawn in classes.values_mut() {
        drawn.sort_unstable();
        drawn.iter().take(tests_of(drawn.len())).for_each(|&(_, index)| is_test[index] = true);
    }
    let wanted = is_test.iter().map(|&test| test == (part == Part::Test));
    samples.into_iter().zip(wanted).filter_map(|(sample, wanted)| wanted.then_some(sample)).collect()
}

/// How many of so many pictures are the test: a fifth, and one of either kind if there are two.
const fn tests_of(count: usize) -> usize {
    match count {
        0 | 1 => 0,
        2..=7 => 1,
        count => (count + 2) / 5,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(counts: &[usize]) -> Vec<Sample> {
        let of_class = |(label, &count): (usize, &usize)| {
            (0..count).map(move |i| Sample { path: format!("root/{label}/{i}.png").into(), label })
        };
        counts.iter().enumerate().flat_map(of_class).collect()
    }

    fn split(samples: &[Sample]) -> (Vec<Sample>, Vec<Sample>) {
        let part = |part| part_of(Path::new("root"), samples.to_vec(), part);
        (part(Part::Train), part(Part::Test))
    }

    #[test]
    fn parts_are_a_fifth_and_the_rest_of_every_class() {
        let counts = [1, 2, 3, 5, 8, 100, 1003];
        let all = samples(&counts);
        let (train, test) = split(&all);
        let tests = |label| test.iter().filter(|sample| sample.label == label).count();
        assert_eq!((0..counts.len()).map(tests).collect::<Vec<_>>(), [0, 1, 1, 1, 2, 20, 201]);
        assert_eq!(train.len() + test.len(), all.len());
        assert!(test.iter().all(|sample| !train.contains(sample)));
    }

    #[test]
    fn the_split_depends_on_names_alone() {
        let all = samples(&[40, 40]);
        let mut reversed = all.clone();
        reversed.reverse();
        let (_, test) = split(&all);
        let (_, mut other) = split(&reversed);
        other.reverse();
        assert_eq!(test, other);
        // and not the end of a series
        assert!(test.iter().any(|sample| sample.path < all[20].path && sample.label == 0));
    }

    #[test]
    fn a_new_picture_moves_at_most_one_other() {
        let (_, before) = split(&samples(&[50]));
        let (_, after) = split(&samples(&[51]));
        assert!(before.iter().filter(|sample| !after.contains(sample)).count() <= 1);
    }
}
