//! Matches the classes of the data with those of the model.

use std::path::PathBuf;

use regard::data::labels;

use super::pictures::Pictures;
use crate::candidates::Candidate;
use crate::failure::Failure;
use crate::model::class_names;

#[derive(Debug, PartialEq, Eq)]
pub struct Classes {
    /// The model's class for each class of the data.
    in_model: Vec<usize>,
    /// Names of the model's classes.
    pub names: Vec<String>,
}

impl Classes {
    pub fn of(pictures: &Pictures, candidate: &Candidate, file: Option<&PathBuf>) -> Result<Self, Failure> {
        let names = class_names(file, candidate.labels(), candidate.classes())?;
        Self::matched(pictures.classes(), names, file.is_some() || candidate.labels().is_some())
    }

    /// Data with as many classes as the model is matched in order; other data, and class names from the user, are
    /// matched by name or number.
    fn matched(data: &[String], names: Vec<String>, given: bool) -> Result<Self, Failure> {
        let in_order = || (0..data.len()).collect();
        let as_many = data.len() == names.len();
        if as_many && !given {
            // names are better than numbers
            let numbers = data.iter().enumerate().all(|(class, name)| *name == class.to_string());
            return Ok(Self { in_model: in_order(), names: if numbers { names } else { data.to_vec() } });
        }
        let by_name: Result<Vec<usize>, &String> =
            data.iter().map(|name| labels::find(name, &names).ok_or(name)).collect();
        match by_name {
            Ok(in_model) => Ok(Self { in_model, names }),
            Err(_) if as_many => Ok(Self { in_model: in_order(), names }),
            Err(stranger) => Err(Failure::input(
                format!("unknown class `{stranger}`: the data has {} classes, the model {}", data.len(), names.len()),
                "a class is a name of the model's or of `--labels FILE`, ImageNet's identifier (n01440764) or a number",
            )),
        }
    }

    /// Labels of the data as labels of the model.
    pub fn of_data(&self, labels: &[usize]) -> Vec<usize> {
        labels.iter().map(|label| self.in_model[*label]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_string()).collect()
    }

    #[test]
    fn as_many_classes_are_the_models_in_their_order() {
        let classes = Classes::matched(&names(&["cat", "dog"]), names(&["0", "1"]), false).unwrap();
        assert_eq!((classes.of_data(&[1, 0, 1]), classes.names), (vec![1, 0, 1], names(&["cat", "dog"])));
        let classes = Classes::matched(&names(&["n01", "n02"]), names(&["cat", "dog"]), true).unwrap();
        assert_eq!((classes.of_data(&[1]), classes.names), (vec![1], names(&["cat", "dog"])));
    }

    #[test]
    fn folders_of_imagenet_are_known_by_their_identifier_and_by_name() {
        let known = labels::imagenet();
        let classes = Classes::matched(&names(&["n01440764", "great_white_shark", "goldfish"]), known, false).unwrap();
        assert_eq!(classes.of_data(&[0, 1, 2]), [0, 2, 1]);
    }

    #[test]
    fn names_that_were_given_are_matched_whatever_their_order() {
        let classes = Classes::matched(&names(&["cat", "dog"]), names(&["dog", "cat"]), true).unwrap();
        assert_eq!(classes.of_data(&[0, 1]), [1, 0]);
    }

    #[test]
    fn fewer_classes_are_matched_by_name_or_number_and_a_stranger_is_named() {
        let known = names(&["ant", "bee", "cat"]);
        assert_eq!(Classes::matched(&names(&["cat", "1"]), known.clone(), false).unwrap().of_data(&[0, 1]), [2, 1]);
        let message = Classes::matched(&names(&["cat", "dog"]), known, false).unwrap_err().to_string();
        assert!(message.contains("unknown class `dog`: the data has 2 classes, the model 3"), "{message}");
    }
}
