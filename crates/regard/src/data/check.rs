//! Checks a dataset before training.

use rayon::prelude::*;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;

use super::dataset::{Dataset, Part, Parts};
use crate::Error;

/// A dataset is imbalanced if a class has more than this many times the training pictures of another.
pub const MOST_IMBALANCE: f64 = 10.0;

/// What was found in the parts of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DatasetReport {
    /// Pictures that can be read.
    pub train: usize,
    pub validation: usize,
    pub test: usize,
    pub classes: Vec<ClassCount>,
    /// `None` if there are no pictures.
    pub sizes: Option<Sizes>,
    pub unreadable: Vec<Unreadable>,
    /// Pictures with the same pixels as another.
    pub duplicates: Vec<Copies>,
    /// Classes with too few pictures, or none in a part.
    pub few: Vec<ClassCount>,
    /// Training pictures of the largest class divided by those of the smallest; `None` if a class has none.
    pub imbalance: Option<f64>,
}

/// Pictures of a class that can be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ClassCount {
    pub name: String,
    pub train: usize,
    pub validation: usize,
    pub test: usize,
}

/// Sizes of pictures, rows before columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Sizes {
    /// With the fewest pixels.
    pub smallest: [usize; 2],
    /// With the most pixels.
    pub largest: [usize; 2],
    /// Medians of rows and of columns.
    pub typical: [usize; 2],
}

/// A picture that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Unreadable {
    pub name: String,
    pub class: String,
    pub reason: String,
}

/// Pictures with the same pixels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Copies {
    pub pictures: Vec<Occurrence>,
    /// They have different classes.
    pub conflict: bool,
    /// They are in more than one part, so that a model is evaluated on pictures that it was trained or chosen on.
    pub leak: bool,
}

/// A sample among its copies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Occurrence {
    pub name: String,
    pub class: String,
    pub part: Part,
}

impl DatasetReport {
    /// Copies that are in more than one part.
    pub fn leaks(&self) -> impl Iterator<Item = &Copies> {
        self.duplicates.iter().filter(|copies| copies.leak)
    }

    /// Copies with different classes.
    pub fn conflicts(&self) -> impl Iterator<Item = &Copies> {
        self.duplicates.iter().filter(|copies| copies.conflict)
    }

    pub fn is_imbalanced(&self) -> bool {
        self.imbalance.is_some_and(|imbalance| imbalance > MOST_IMBALANCE)
    }

    /// How many things are wrong.
    pub fn problems(&self) -> usize {
        self.unreadable.len() + self.duplicates.len() + self.few.len() + usize::from(self.is_imbalanced())
    }
}

impl ClassCount {
    /// Classes without pictures.
    pub(super) fn none_of(names: &[String]) -> Vec<Self> {
        let none = |name: &String| Self { name: name.clone(), train: 0, validation: 0, test: 0 };
        names.iter().map(none).collect()
    }

    /// Counts one of a part.
    pub(super) const fn add(&mut self, part: Part) {
        *match part {
            Part::Validation => &mut self.validation,
            Part::Test => &mut self.test,
            _ => &mut self.train,
        } += 1;
    }

    /// The count in training of the largest class divided by that of the smallest; `None` if a class has none.
    pub(super) fn imbalance(classes: &[Self]) -> Option<f64> {
        let counts = || classes.iter().map(|count| count.train);
        let (most, fewest) = (counts().max().unwrap_or(0), counts().min().unwrap_or(0));
        (fewest > 0).then(|| most as f64 / fewest as f64)
    }
}

/// Looks at every sample of the three parts, on all threads; results are in the order of the samples.
pub(super) fn for_each_sample<D: ?Sized + Send + Sync, T: Send>(
    parts: [&Arc<D>; 3],
    len: fn(&D) -> usize,
    look: impl Fn(Part, &D, usize) -> T + Sync,
) -> Vec<T> {
    let names = [Part::Train, Part::Validation, Part::Test];
    let samples = names.iter().zip(parts).flat_map(|(part, own)| (0..len(own)).map(move |index| (*part, own, index)));
    let samples: Vec<(Part, &Arc<D>, usize)> = samples.collect();
    samples.into_par_iter().map(|(part, own, index)| look(part, own, index)).collect()
}

/// An error about a sample without the sample's name, which is shown beside it.
pub(super) fn reason_without(name: &str, error: &Error) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{name}: ")).unwrap_or(&text).to_string()
}

/// A picture that was read.
struct Seen {
    part: Part,
    name: String,
    label: usize,
    /// Its size and the hash of its pixels.
    content: Result<([usize; 2], [u8; 32]), String>,
}

/// Reads every picture; a class should have at least `least`. `tick` is called after each picture.
pub fn check(parts: &Parts, least: usize, tick: impl Fn() + Sync) -> DatasetReport {
    let look = |part, own: &(dyn Dataset + 'static), index| {
        let name = own.name(index);
        let picture = own.picture(index).map_err(|error| reason_without(&name, &error));
        tick();
        let content = picture.map(|picture| (picture.size(), hash(picture.size(), picture.pixels())));
        Seen { part, name, label: own.label(index), content }
    };
    let Parts { train, validation, test } = parts;
    let seen = for_each_sample([train, validation, test], Dataset::len, look);

    let names = train.classes();
    let class = |seen: &Seen| names[seen.label].clone();
    let mut classes = ClassCount::none_of(names);
    let (mut sizes, mut unreadable) = (Vec::new(), Vec::new());
    let mut by_content: HashMap<[u8; 32], Vec<usize>> = HashMap::new();
    for (number, found) in seen.iter().enumerate() {
        match &found.content {
            Ok((size, hash)) => {
                sizes.push(*size);
                by_content.entry(*hash).or_default().push(number);
                classes[found.label].add(found.part);
            }
            Err(reason) => {
                let (name, reason) = (found.name.clone(), reason.clone());
                unreadable.push(Unreadable { name, class: class(found), reason });
            }
        }
    }
    let mut groups: Vec<Vec<usize>> = by_content.into_values().filter(|group| group.len() > 1).collect();
    // in the order of their first pictures, whatever the order of the hashes
    groups.sort_unstable_by_key(|group| group[0]);
    let groups = groups.into_iter().map(|group| group.into_iter().map(|number| &seen[number]).collect());
    let copies = |group: Vec<&Seen>| Copies {
        conflict: group.iter().any(|other| class(other) != class(group[0])),
        leak: group.iter().any(|other| other.part != group[0].part),
        pictures: group
            .iter()
            .map(|seen| Occurrence { name: seen.name.clone(), class: class(seen), part: seen.part })
            .collect(),
    };
    let lacks = |count: &&ClassCount| {
        count.train + count.validation + count.test < least
            || count.train == 0
            || (count.validation == 0 && !validation.is_empty())
            || (count.test == 0 && !test.is_empty())
    };
    DatasetReport {
        train: classes.iter().map(|count| count.train).sum(),
        validation: classes.iter().map(|count| count.validation).sum(),
        test: classes.iter().map(|count| count.test).sum(),
        sizes: Sizes::of(&sizes),
        unreadable,
        duplicates: groups.map(copies).collect(),
        few: classes.iter().filter(lacks).cloned().collect(),
        imbalance: ClassCount::imbalance(&classes),
        classes,
    }
}

impl Sizes {
    fn of(sizes: &[[usize; 2]]) -> Option<Self> {
        let pixels = |size: &&[usize; 2]| size[0] * size[1];
        let median = |axis: usize| {
            let mut sides: Vec<usize> = sizes.iter().map(|size| size[axis]).collect();
            let middle = sides.len() / 2;
            *sides.select_nth_unstable(middle).1
        };
        Some(Self {
            smallest: *sizes.iter().min_by_key(pixels)?,
            largest: *sizes.iter().max_by_key(pixels)?,
            typical: [median(0), median(1)],
        })
    }
}

pub(super) fn hash(size: [usize; 2], pixels: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    size.iter().for_each(|&side| hash.update((side as u64).to_le_bytes()));
    hash.update(pixels);
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Picture;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Pictures by class and gray level; `None` is an unreadable one.
    #[derive(Debug)]
    struct Toy(Vec<String>, Vec<(usize, Option<u8>)>);

    impl Dataset for Toy {
        fn len(&self) -> usize {
            self.1.len()
        }

        fn classes(&self) -> &[String] {
            &self.0
        }

        fn label(&self, index: usize) -> usize {
            self.1[index].0
        }

        fn picture(&self, index: usize) -> Result<Picture, Error> {
            let broken = || Error::File { path: self.name(index), reason: "broken".into() };
            let level = self.1[index].1.ok_or_else(broken)?;
            // as many rows as the level has tens
            let rows = usize::from(level) / 10 + 1;
            Picture::new([rows, 2], vec![level; rows * 6])
        }

        fn name(&self, index: usize) -> String {
            format!("picture {index}")
        }
    }

    fn toy(pictures: &[(usize, Option<u8>)]) -> Arc<dyn Dataset> {
        Arc::new(Toy(vec!["a".into(), "b".into()], pictures.to_vec()))
    }

    fn parts(train: &[(usize, Option<u8>)], test: &[(usize, Option<u8>)]) -> Parts {
        Parts { train: toy(train), validation: toy(&[]), test: toy(test) }
    }

    fn report(train: &[(usize, Option<u8>)], test: &[(usize, Option<u8>)], least: usize) -> DatasetReport {
        check(&parts(train, test), least, || {})
    }

    #[test]
    fn a_sound_dataset_has_no_problems() {
        let report = report(&[(0, Some(1)), (0, Some(2)), (1, Some(3))], &[(0, Some(4)), (1, Some(55))], 2);
        assert_eq!((report.problems(), report.train, report.test, report.imbalance), (0, 3, 2, Some(2.0)));
        assert_eq!(report.classes[0], ClassCount { name: "a".into(), train: 2, validation: 0, test: 1 });
        let sizes = Sizes { smallest: [1, 2], largest: [6, 2], typical: [1, 2] };
        assert_eq!(report.sizes, Some(sizes));
    }

    #[test]
    fn unreadable_pictures_are_named_and_not_counted() {
        let report = report(&[(0, Some(1)), (1, None), (1, Some(2))], &[(0, Some(3)), (1, Some(4))], 1);
        let unreadable = Unreadable { name: "picture 1".into(), class: "b".into(), reason: "broken".into() };
        assert_eq!((report.unreadable, report.train), (vec![unreadable], 2));
    }

    #[test]
    fn duplicates_are_told_by_their_pixels_with_conflicts_and_leaks() {
        let train = [(0, Some(1)), (0, Some(1)), (0, Some(2)), (1, Some(2)), (1, Some(3)), (0, Some(4))];
        let test = [(1, Some(3)), (0, Some(4)), (1, Some(5)), (0, Some(2))];
        let report = report(&train, &test, 1);
        let found: Vec<_> = report
            .duplicates
            .iter()
            .map(|copies| {
                let pictures: Vec<String> = copies
                    .pictures
                    .iter()
                    .map(|copy| format!("{:?} {} {}", copy.part, copy.name, copy.class))
                    .collect();
                (pictures.join(", "), copies.conflict, copies.leak)
            })
            .collect();
        let expected = [
            ("Train picture 0 a, Train picture 1 a", false, false),
            ("Train picture 2 a, Train picture 3 b, Test picture 3 a", true, true),
            ("Train picture 4 b, Test picture 0 b", false, true),
            ("Train picture 5 a, Test picture 1 a", false, true),
        ];
        assert_eq!(found, expected.map(|(pictures, conflict, leak)| (pictures.to_string(), conflict, leak)));
        assert_eq!((report.leaks().count(), report.conflicts().count(), report.problems()), (3, 1, 4));
    }

    #[test]
    fn leaks_are_found_between_any_two_parts() {
        let pictures = |levels: [u8; 2]| toy(&[(0, Some(levels[0])), (1, Some(levels[1]))]);
        for (train, validation, test, leaks) in [
            ([1, 2], [1, 3], [4, 5], 1),
            ([1, 2], [3, 4], [1, 5], 1),
            ([1, 2], [3, 4], [4, 5], 1),
            ([1, 2], [1, 3], [1, 3], 2),
            ([1, 2], [3, 4], [5, 6], 0),
        ] {
            let [train, validation, test] = [train, validation, test].map(pictures);
            let report = check(&Parts { train, validation, test }, 1, || {});
            assert_eq!((report.leaks().count(), report.validation), (leaks, 2));
        }
        let half = Parts { train: pictures([1, 2]), validation: toy(&[(0, Some(3))]), test: pictures([4, 5]) };
        assert_eq!(check(&half, 1, || {}).few[0].name, "b", "it is missing in validation");
    }

    #[test]
    fn pictures_of_other_shapes_are_not_duplicates() {
        assert_ne!(hash([1, 4], &[0; 12]), hash([2, 2], &[0; 12]));
    }

    #[test]
    fn classes_with_few_pictures_or_none_in_a_part_are_told() {
        let few = |report: DatasetReport| report.few.into_iter().map(|count| count.name).collect::<Vec<_>>();
        assert_eq!(few(report(&[(0, Some(1)), (0, Some(2)), (1, Some(3))], &[], 2)), ["b"]);
        assert_eq!(few(report(&[(0, Some(1))], &[(1, Some(2))], 1)), ["a", "b"], "each is missing on one side");
        assert_eq!(few(report(&[(0, Some(1))], &[], 1)), ["b"], "nothing is left of it");
    }

    #[test]
    fn a_rare_class_is_told() {
        let mut train: Vec<_> = (0..=100).map(|level| (0, Some(level))).collect();
        train.push((1, Some(200)));
        let report = report(&train, &[], 1);
        assert_eq!((report.imbalance, report.is_imbalanced(), report.problems()), (Some(101.0), true, 1));
    }

    #[test]
    fn every_picture_ticks_once_and_nothing_is_a_report_too() {
        let ticks = AtomicUsize::new(0);
        let tick = || _ = ticks.fetch_add(1, Ordering::Relaxed);
        check(&parts(&[(0, Some(1)), (0, None)], &[(1, Some(1))]), 1, tick);
        assert_eq!(ticks.into_inner(), 3);
        let report = report(&[], &[], 1);
        assert_eq!((report.sizes, report.few.len(), report.imbalance), (None, 2, None));
    }
}
