//! The classes of the data, and which of the model's they are.

use std::path::PathBuf;

use super::pictures::Pictures;
use crate::failure::Failure;
use crate::predict::label_names;

#[derive(Debug, PartialEq, Eq)]
pub struct Classes {
    /// The model's class for each class of the data.
    in_model: Vec<usize>,
    /// Names of the model's classes.
    pub names: Vec<String>,
}

impl Classes {
    pub fn of(pictures: &Pictures, classes: usize, labels: Option<&PathBuf>) -> Result<Self, Failure> {
        let names = label_names(labels, classes)?;
        Self::matched(pictures.classes(), names, labels.is_some())
    }

    /// As many classes as the model has are its classes in their order; other data, and names that the user gave, are
    /// matched by name or number.
    fn matched(data: &[String], names: Vec<String>, given: bool) -> Result<Self, Failure> {
        let in_order = || (0..data.len()).collect();
        let as_many = data.len() == names.len();
        if as_many && !given {
            // numbers say less than the names that are known
            let numbers = data.iter().enumerate().all(|(class, name)| *name == class.to_string());
            return Ok(Self { in_model: in_order(), names: if numbers { names } else { data.to_vec() } });
        }
        let by_name: Result<Vec<usize>, &String> = data.iter().map(|name| class_of(name, &names).ok_or(name)).collect();
        match by_name {
            Ok(in_model) => Ok(Self { in_model, names }),
            Err(_) if as_many => Ok(Self { in_model: in_order(), names }),
            Err(stranger) => Err(Failure::input(
                format!("unknown class `{stranger}`: the data has {} classes, the model {}", data.len(), names.len()),
                "a class is a name of `--labels FILE` or a number, unless there are as many as the model has",
            )),
        }
    }

    /// Labels of the data as the model's.
    pub fn of_data(&self, labels: &[usize]) -> Vec<usize> {
        labels.iter().map(|label| self.in_model[*label]).collect()
    }
}

fn class_of(label: &str, names: &[String]) -> Option<usize> {
    label.parse().ok().filter(|class| *class < names.len()).or_else(|| names.iter().position(|name| name == label))
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
