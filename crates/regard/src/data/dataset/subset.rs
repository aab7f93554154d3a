//! Subsets of a dataset.

use std::sync::Arc;

use super::{Dataset, Picture};
use crate::Error;

/// The pictures of a dataset with given indices, in their order.
#[derive(Clone, Debug)]
pub struct Subset {
    of: Arc<dyn Dataset>,
    indices: Vec<usize>,
}

impl Subset {
    /// # Panics
    /// When an index is not one of the dataset.
    #[must_use]
    pub fn new(of: Arc<dyn Dataset>, indices: Vec<usize>) -> Self {
        let beyond = indices.iter().find(|&&index| index >= of.len());
        assert!(beyond.is_none(), "subset: picture {} of {}", beyond.unwrap_or(&0), of.len());
        Self { of, indices }
    }
}

impl Dataset for Subset {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn classes(&self) -> &[String] {
        self.of.classes()
    }

    fn label(&self, index: usize) -> usize {
        self.of.label(self.indices[index])
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        self.of.picture(self.indices[index])
    }

    fn name(&self, index: usize) -> String {
        self.of.name(self.indices[index])
    }
}

/// The first `most` pictures of every class, or all of a class that has fewer.
#[must_use]
pub fn take_per_class(of: Arc<dyn Dataset>, most: usize) -> Subset {
    let mut taken = vec![0; of.classes().len()];
    let indices = (0..of.len()).filter(|&index| {
        let taken = &mut taken[of.label(index)];
        *taken += 1;
        *taken <= most
    });
    let indices = indices.collect();
    Subset::new(of, indices)
}

#[cfg(test)]
mod tests {
    use super::super::{Part, open};
    use super::*;

    #[test]
    fn a_subset_is_the_pictures_of_its_indices() {
        let all = open("fashion", Part::Test).unwrap();
        let some = Subset::new(all.clone(), vec![7, 3, 7]);
        assert_eq!(some.len(), 3);
        for (index, of) in [7, 3, 7].into_iter().enumerate() {
            assert_eq!(some.picture(index).unwrap(), all.picture(of).unwrap());
            assert_eq!((some.label(index), some.name(index)), (all.label(of), all.name(of)));
        }
        assert_eq!(some.classes(), all.classes());
    }

    #[test]
    fn every_class_gives_as_many_as_it_has_up_to_the_most() {
        let all = open("fashion", Part::Test).unwrap();
        // 25 pictures, not the same number of each class
        let uneven: Arc<dyn Dataset> = Arc::new(Subset::new(all, (0..25).collect()));
        let some = take_per_class(uneven.clone(), 2);
        for class in 0..10 {
            let count = |of: &dyn Dataset| (0..of.len()).filter(|&index| of.label(index) == class).count();
            assert_eq!(count(&some), count(uneven.as_ref()).min(2));
        }
    }

    #[test]
    #[should_panic(expected = "subset: picture 2000 of 2000")]
    fn an_index_beyond_the_dataset_is_a_bug() {
        let _ = Subset::new(open("fashion", Part::Test).unwrap(), vec![0, 2000]);
    }
}
