//! Draws missing parts: a fifth of every class is the test part, then a tenth of every class of the
//! rest is the validation part.
//!
//! Samples are drawn by a hash of a key: the path below the folder, or the index if a file holds many pictures.
//! So parts are the same on every machine and for every seed of a run, and do not depend on the order in which a file system
//! lists a folder; nor are they the last pictures of a series, which are alike.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

use super::files::LabelledFile;
use super::{Dataset, Origin, Origins, Part};

/// The path of a sample below `root`, with `/` on every system.
pub fn path_below(root: &Path, sample: &LabelledFile) -> String {
    let name = sample.path.strip_prefix(root).unwrap_or(&sample.path);
    name.iter().map(|part| part.to_string_lossy()).collect::<Vec<_>>().join("/")
}

/// Splits files with known classes into test, validation and train.
pub fn split_files(root: &Path, samples: &[LabelledFile]) -> Vec<Part> {
    let mut parts = vec![Part::Train; samples.len()];
    let key = |index: usize| path_below(root, &samples[index]);
    draw(&mut parts, Part::Test, fifth, |index| samples[index].label, key);
    draw(&mut parts, Part::Validation, tenth, |index| samples[index].label, key);
    parts
}

/// Splits training files into validation and train.
pub fn split_train_files(root: &Path, samples: &[LabelledFile]) -> Vec<Part> {
    let mut parts = vec![Part::Train; samples.len()];
    draw(&mut parts, Part::Validation, tenth, |index| samples[index].label, |index| path_below(root, &samples[index]));
    parts
}

/// Splits the training part of packed pictures, the first `train`.
pub fn split_packed(dataset: &dyn Dataset, train: usize) -> Vec<Part> {
    let part = |index| if index < train { Part::Train } else { Part::Test };
    let mut parts: Vec<Part> = (0..dataset.len()).map(part).collect();
    draw(&mut parts, Part::Validation, tenth, |index| dataset.label(index), |index| index.to_string());
    parts
}

/// Which parts listed data has, and which are drawn from others.
#[derive(Clone, Debug)]
pub struct PartPlan {
    pub origins: Origins,
    /// With one part alone, or none, everything is drawn.
    is_whole: bool,
    has_test: bool,
}

impl PartPlan {
    /// From the part that each section says it is, if it says so, and its place for people.
    pub fn new<'a>(sections: impl Iterator<Item = (Option<Part>, &'a str)> + Clone) -> Self {
        let find = |wanted| sections.clone().find(|(part, _)| *part == Some(wanted));
        let place = |part| find(part).map_or(Origin::None, |(_, place)| Origin::Own(place.into()));
        let [train, validation, test] = [Part::Train, Part::Validation, Part::Test].map(|part| find(part).is_some());
        let is_whole = [train, validation, test].iter().filter(|has| **has).count() <= 1;
        let origins = match (is_whole, validation, test) {
            (true, ..) => Origins { validation: Origin::TenthOfTrain, test: Origin::FifthOfPictures },
            (_, true, false) => Origins { validation: Origin::TenthOfTrain, test: place(Part::Validation) },
            (_, true, true) => Origins { validation: place(Part::Validation), test: place(Part::Test) },
            (_, false, _) => Origins { validation: Origin::TenthOfTrain, test: place(Part::Test) },
        };
        Self { origins, is_whole, has_test: test }
    }

    /// What a section is used as.
    pub fn part_of(&self, own: Option<Part>) -> Part {
        match own {
            _ if self.is_whole => Part::Train,
            Some(Part::Validation) if !self.has_test => Part::Test,
            Some(part) => part,
            None => Part::Train,
        }
    }

    /// Moves what is drawn to its part, by the keys of samples.
    pub fn draw(&self, parts: &mut [Part], key: impl Fn(usize) -> String) {
        if self.is_whole {
            draw(parts, Part::Test, fifth, |_| 0, &key);
        }
        if self.origins.validation == Origin::TenthOfTrain {
            draw(parts, Part::Validation, tenth, |_| 0, &key);
        }
    }
}

/// The last two names of a path: the same wherever the data is.
pub fn path_end(path: &Path) -> String {
    let mut ends: Vec<_> = path.iter().rev().take(2).map(|name| name.to_string_lossy()).collect();
    ends.reverse();
    ends.join("/")
}

/// Moves some of the training samples of every class to another part.
pub fn draw(
    parts: &mut [Part],
    to: Part,
    count: fn(usize) -> usize,
    label: impl Fn(usize) -> usize,
    key: impl Fn(usize) -> String,
) {
    let mut classes: BTreeMap<usize, Vec<([u8; 32], usize)>> = BTreeMap::new();
    for index in (0..parts.len()).filter(|&index| parts[index] == Part::Train) {
        classes.entry(label(index)).or_default().push((Sha256::digest(key(index)).into(), index));
    }
    for samples in classes.values_mut() {
        samples.sort_unstable();
        samples.iter().take(count(samples.len())).for_each(|&(_, index)| parts[index] = to);
    }
}

/// Number of test pictures: a fifth; of two pictures, one.
pub const fn fifth(count: usize) -> usize {
    match count {
        0 | 1 => 0,
        2..=7 => 1,
        count => (count + 2) / 5,
    }
}

/// Number of validation pictures: a tenth; of two pictures, one.
pub const fn tenth(count: usize) -> usize {
    match count {
        0 | 1 => 0,
        2..=14 => 1,
        count => (count + 5) / 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(counts: &[usize]) -> Vec<LabelledFile> {
        let of_class = |(label, &count): (usize, &usize)| {
            (0..count).map(move |i| LabelledFile { path: format!("root/{label}/{i}.png").into(), label })
        };
        counts.iter().enumerate().flat_map(of_class).collect()
    }

    /// The samples of each part: train, validation, test.
    fn split(samples: &[LabelledFile]) -> [Vec<LabelledFile>; 3] {
        let parts = split_files(Path::new("root"), samples);
        [Part::Train, Part::Validation, Part::Test].map(|wanted| {
            samples.iter().zip(&parts).filter(|(_, part)| **part == wanted).map(|(sample, _)| sample.clone()).collect()
        })
    }

    fn counts(samples: &[LabelledFile], classes: usize) -> Vec<usize> {
        (0..classes).map(|label| samples.iter().filter(|sample| sample.label == label).count()).collect()
    }

    #[test]
    fn parts_are_a_fifth_a_tenth_of_the_rest_and_the_rest_of_every_class() {
        let all = [1, 2, 3, 5, 8, 100, 1003];
        let [train, validation, test] = split(&samples(&all));
        assert_eq!(counts(&test, 7), [0, 1, 1, 1, 2, 20, 201]);
        assert_eq!(counts(&validation, 7), [0, 0, 1, 1, 1, 8, 80]);
        assert_eq!(counts(&train, 7), [1, 1, 1, 3, 5, 72, 722]);
    }

    #[test]
    fn the_split_depends_on_names_alone() {
        let all = samples(&[40, 40]);
        let mut reversed = all.clone();
        reversed.reverse();
        for (one, mut other) in split(&all).into_iter().zip(split(&reversed)) {
            other.reverse();
            assert_eq!(one, other);
        }
        // and not the end of a series
        let [_, validation, test] = split(&all);
        for part in [test, validation] {
            assert!(part.iter().any(|sample| sample.path < all[20].path && sample.label == 0));
        }
    }

    #[test]
    fn a_new_picture_moves_at_most_one_other_of_each_part() {
        let before = split(&samples(&[50]));
        let after = split(&samples(&[51]));
        for (before, after) in before.iter().zip(&after).skip(1) {
            assert!(before.iter().filter(|sample| !after.contains(sample)).count() <= 1);
        }
    }

    #[test]
    fn validation_of_train_is_the_same_wherever_the_folder_is() {
        let here = samples(&[30]);
        let there: Vec<LabelledFile> = here
            .iter()
            .map(|sample| LabelledFile { path: Path::new("/some/where").join(&sample.path), ..*sample })
            .collect();
        let parts = split_train_files(Path::new("root"), &here);
        assert_eq!(parts, split_train_files(Path::new("/some/where/root"), &there));
        assert_eq!(parts.iter().filter(|part| **part == Part::Validation).count(), 3);
    }
}
