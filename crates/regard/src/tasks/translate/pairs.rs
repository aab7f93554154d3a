//! The sentence pairs of a recipe: the parts of its data, further training pairs, and none that are also held out.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::Recipe;
use crate::Error;
use crate::data::text::{SentencePair, TextPart, has_part, read};
use crate::tasks::sentences::Parts;

/// Pairs to train on, to choose the best epoch by, and to measure at the end.
#[derive(Debug)]
pub(super) struct Pairs {
    pub train: Vec<SentencePair>,
    pub validation: Vec<SentencePair>,
    pub test: Option<Vec<SentencePair>>,
    /// Number of training pairs that were dropped because another part has one of their sentences.
    pub shared: usize,
}

impl Pairs {
    pub fn of(recipe: &Recipe) -> Result<Self, Error> {
        let (path, languages) = (Path::new(&recipe.common.data), recipe.own.languages());
        // a single file has no test part
        let has = |part| !path.is_file() && has_part(path, part, &languages);
        let mut parts = Parts::read(recipe.common.validation, has, |part| read(path, part, &languages))?;
        parts.truncate(recipe.own.pairs, recipe.own.test_pairs);
        let Parts { train, validation, test } = parts;
        let mut train: Vec<SentencePair> = std::iter::repeat_n(train, recipe.own.repeat).flatten().collect();
        for name in &recipe.own.more {
            train.extend(read(&further(path, name), TextPart::Train, &languages)?);
        }
        let whole = train.len();
        if recipe.own.drop_shared {
            let held_out = Sentences::of(validation.iter().chain(test.iter().flatten()));
            train.retain(|pair| !held_out.has_side_of(pair));
        }
        Ok(Self { shared: whole - train.len(), train, validation, test })
    }
}

/// A file with further pairs: in the folder of the data, or where its path says.
fn further(data: &Path, name: &str) -> PathBuf {
    let folder = if data.is_dir() { Some(data) } else { data.parent() };
    let near = folder.map(|folder| folder.join(name)).filter(|path| path.is_file());
    near.unwrap_or_else(|| name.into())
}

/// Sentences of both languages, compared by their letters and digits in lower case.
struct Sentences([HashSet<String>; 2]);

impl Sentences {
    fn of<'a>(pairs: impl Iterator<Item = &'a SentencePair>) -> Self {
        let mut sentences = Self(Default::default());
        for pair in pairs {
            for (all, side) in sentences.0.iter_mut().zip([&pair.source, &pair.target]) {
                all.insert(letters(side));
            }
        }
        sentences
    }

    fn has_side_of(&self, pair: &SentencePair) -> bool {
        self.0.iter().zip([&pair.source, &pair.target]).any(|(all, side)| all.contains(&letters(side)))
    }
}

fn letters(sentence: &str) -> String {
    sentence.chars().filter(|letter| letter.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder() -> (tempfile::TempDir, Recipe) {
        let folder = tempfile::tempdir().unwrap();
        let files = [
            ("train.tsv", "Go!\tVai!\nStop.\tFerma.\nI see.\tVedo.\n"),
            ("dev.tsv", "Wait.\tAspetta.\n"),
            ("test.tsv", "stop\tAlt!\n"),
            ("more.tsv", "Run.\tCorri.\nHold on.\tAspetta!\n"),
        ];
        files.iter().for_each(|(name, text)| fs::write(folder.path().join(name), text).unwrap());
        let mut recipe = Recipe::default();
        recipe.common.data = folder.path().display().to_string();
        (folder, recipe)
    }

    fn english(recipe: &Recipe) -> Vec<String> {
        Pairs::of(recipe).unwrap().train.into_iter().map(|pair| pair.target).collect()
    }

    #[test]
    fn further_pairs_come_once_and_the_training_part_as_often_as_the_recipe_says() {
        let (_folder, mut recipe) = folder();
        recipe.own.more = vec!["more.tsv".into()];
        recipe.own.repeat = 2;
        assert_eq!(english(&recipe), ["Go!", "Stop.", "I see.", "Go!", "Stop.", "I see.", "Run.", "Hold on."]);
    }

    #[test]
    fn no_training_pair_has_a_sentence_that_is_held_out() {
        let (_folder, mut recipe) = folder();
        recipe.own.more = vec!["more.tsv".into()];
        recipe.own.drop_shared = true;
        assert_eq!(english(&recipe), ["Go!", "I see.", "Run."]);
        assert_eq!(Pairs::of(&recipe).unwrap().shared, 2);
    }

    #[test]
    fn a_missing_file_of_further_pairs_is_named() {
        let (_folder, mut recipe) = folder();
        recipe.own.more = vec!["none.tsv".into()];
        let error = Pairs::of(&recipe).unwrap_err().to_string();
        assert!(error.contains("none.tsv"), "{error}");
    }
}
