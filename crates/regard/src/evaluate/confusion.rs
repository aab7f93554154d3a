//! The confusion matrix.

use serde::{Deserialize, Serialize};

/// `counts[true class][predicted class]`, over the pictures so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Confusion {
    pub counts: Vec<Vec<u64>>,
}

impl Confusion {
    /// # Panics
    /// When the label or the prediction is not a class.
    pub(super) fn count(&mut self, classes: usize, label: usize, answer: usize) {
        if self.counts.is_empty() {
            self.counts = vec![vec![0; classes]; classes];
        }
        self.counts[label][answer] += 1;
    }

    /// Number of pictures of a class.
    #[must_use]
    pub fn pictures(&self, class: usize) -> u64 {
        self.counts[class].iter().sum()
    }

    /// The recall of a class; NaN for a class without pictures.
    #[must_use]
    pub fn accuracy(&self, class: usize) -> f64 {
        self.counts[class][class] as f64 / self.pictures(class) as f64
    }

    /// The class that a class is most often mistaken for, and how often; none if never.
    #[must_use]
    pub fn taken_for(&self, class: usize) -> Option<(usize, u64)> {
        let others = self.counts[class].iter().copied().enumerate().filter(|&(answer, _)| answer != class);
        // the first on a tie
        others.filter(|&(_, count)| count > 0).max_by_key(|&(answer, count)| (count, std::cmp::Reverse(answer)))
    }

    /// `[true class][predicted class]` as a fraction of the pictures of the true class.
    #[must_use]
    pub fn shares(&self) -> Vec<Vec<f64>> {
        let share = |row: &Vec<u64>| {
            let pictures: u64 = row.iter().sum();
            row.iter().map(|&count| count as f64 / pictures as f64).collect()
        };
        self.counts.iter().map(share).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_true_classes_and_columns_are_answers() {
        let mut confusion = Confusion::default();
        for (label, answer) in [(0, 0), (0, 2), (0, 2), (0, 1), (1, 1)] {
            confusion.count(3, label, answer);
        }
        assert_eq!(confusion.counts, [[1, 1, 2], [0, 1, 0], [0, 0, 0]]);
        assert_eq!((confusion.accuracy(0), confusion.accuracy(1)), (0.25, 1.0));
        assert_eq!((confusion.taken_for(0), confusion.taken_for(1)), (Some((2, 2)), None));
        assert_eq!(confusion.shares()[0], [0.25, 0.25, 0.5]);
        assert!(confusion.accuracy(2).is_nan(), "nothing is known of a class without pictures");
    }
}
