//! Tasks, one folder each. All other code uses the [`Task`] trait and knows no task by name.

pub mod classify;
pub mod clips;
pub mod detect;
pub mod language;
mod named_model;
mod sentences;
mod token_loss;
mod training_batches;
pub mod translate;
pub mod vision_language;

pub use token_loss::TokenLoss;

use burn::tensor::Device;
use std::path::Path;

use crate::evaluate::TaskInfo;
use crate::train::{
    self, Common, EvalReport, EvalRequest, ModelCost, NamedModel, NamedResult, Ranks, Recipe, Task, TrainEvent,
    TrainOptions, TrainOutcome, read_recipe_text, read_task, task_of,
};
use crate::weights::Progress;
use crate::{Error, nearest};

/// Defines the enum over all tasks, so that adding a task is one line and no match can be forgotten.
macro_rules! tasks {
    ($($variant:ident $task:ty;)*) => {
        /// A recipe of any task; a recipe without `task` is of the first.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(clippy::large_enum_variant)] // there is one of them, not an array
        pub enum AnyRecipe {
            $($variant(Recipe<<$task as Task>::Section>),)*
        }

        /// The names of all tasks.
        pub const NAMES: &[&str] = &[$(<$task>::NAME),*];

        /// The model of a name, if only one task evaluates models of its kind.
        ///
        /// # Errors
        /// As [`Task::named_model`].
        pub fn named_model(
            name: &str,
            progress: &mut dyn FnMut(Progress),
        ) -> Result<Option<Box<dyn NamedModel>>, Error> {
            $(if let Some(model) = <$task>::named_model(name, progress)? {
                return Ok(Some(model));
            })*
            Ok(None)
        }

        impl AnyRecipe {
            /// # Errors
            /// As [`Recipe::from_toml`], and when there is no such task; the error suggests the nearest one.
            pub fn from_toml(text: &str) -> Result<Self, Error> {
                let name = task_of(text)?.unwrap_or_else(|| NAMES[0].into());
                $(if <$task>::NAME == name || <$task>::ALIASES.contains(&name.as_str()) {
                    return Recipe::from_toml(text).map(Self::$variant);
                })*
                Err(Error::config("task", format!("`{name}`: {}", nearest::unknown(&name, NAMES))))
            }

            /// What the task reports.
            #[must_use]
            pub fn info(&self) -> TaskInfo {
                match self {
                    $(Self::$variant(_) => <$task>::info(),)*
                }
            }

            /// The keys that recipes of every task have.
            #[must_use]
            pub const fn common(&self) -> &Common {
                match self {
                    $(Self::$variant(recipe) => &recipe.common,)*
                }
            }

            /// The same, mutable; call [`validate`](Self::validate) after changes.
            pub const fn common_mut(&mut self) -> &mut Common {
                match self {
                    $(Self::$variant(recipe) => &mut recipe.common,)*
                }
            }

            /// # Errors
            /// When a value is out of range; the error names it.
            pub fn validate(&self) -> Result<(), Error> {
                match self {
                    $(Self::$variant(recipe) => recipe.validate(),)*
                }
            }

            /// The whole recipe, as [`from_toml`](Self::from_toml) reads it.
            #[must_use]
            pub fn to_toml(&self) -> String {
                match self {
                    $(Self::$variant(recipe) => recipe.to_toml(<$task>::NAME),)*
                }
            }

            /// The same with one key changed, such as `optimiser.rate=1e-4`.
            ///
            /// # Errors
            /// When there is no such key, or the value is invalid.
            pub fn with(&self, key: &str, value: &str) -> Result<Self, Error> {
                match self {
                    $(Self::$variant(recipe) => recipe.with(key, value).map(Self::$variant),)*
                }
            }

            /// The cost of the model for its nominal input.
            ///
            /// # Errors
            /// When the data cannot be opened, or the model cannot be configured for it.
            pub fn cost(&self) -> Result<ModelCost, Error> {
                match self {
                    $(Self::$variant(recipe) => <$task>::open(recipe, &std::collections::BTreeMap::new())?.cost(),)*
                }
            }

            /// Measures the best weights of a run of this recipe.
            ///
            /// # Errors
            /// As [`Task::evaluate`].
            pub fn evaluate(
                &self,
                request: &EvalRequest,
                device: &Device,
                watch: &mut dyn FnMut(usize, usize),
            ) -> Result<EvalReport, Error> {
                match self {
                    $(Self::$variant(recipe) => <$task>::evaluate(recipe, request, device, watch),)*
                }
            }

            /// Measures a trained model by any of its names on the test part of this recipe's data.
            ///
            /// # Errors
            /// As [`Task::measure_named`].
            pub fn measure_named(&self, name: &str, device: &Device) -> Result<NamedResult, Error> {
                match self {
                    $(Self::$variant(recipe) => {
                        <$task>::open(recipe, &std::collections::BTreeMap::new())?.measure_named(name, device)
                    })*
                }
            }

            /// Trains in a folder, from its last checkpoint on; `watch` returns whether to continue.
            ///
            /// # Errors
            /// As [`train::train`].
            pub fn train(
                &self,
                folder: &Path,
                start: TrainOptions,
                device: &Device,
                ranks: &dyn Ranks,
                watch: &mut dyn FnMut(TrainEvent) -> bool,
            ) -> Result<TrainOutcome, Error> {
                match self {
                    $(Self::$variant(recipe) => {
                        train::train::<$task>(folder, recipe, start, device, ranks, watch)
                    })*
                }
            }
        }
    };
}

tasks! {
    Classify classify::Classification;
    Detect detect::ObjectDetection;
    Clips clips::ClipClassification;
    Translate translate::SentenceTranslation;
    Language language::Language;
    VisionLanguage vision_language::VisionLanguage;
}

/// What a run reports, according to its folder; for runs of older versions, according to the task of its recipe.
///
/// # Errors
/// When the folder does not hold a run.
pub fn info(folder: &Path) -> Result<TaskInfo, Error> {
    match read_task(folder)? {
        Some(info) => Ok(info),
        None => Ok(AnyRecipe::from_toml(&read_recipe_text(folder)?)?.info()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recipe_says_which_task_it_is_for_and_without_it_is_for_classification() {
        let task = |text: &str| AnyRecipe::from_toml(text).unwrap().info().task;
        assert_eq!(
            [task(""), task("task = 'classify'"), task("task = 'translate'"), task("task = 'translation'")],
            ["classify", "classify", "translate", "translate"]
        );
        let error = AnyRecipe::from_toml("task = 'clasify'").unwrap_err().to_string();
        assert!(error.contains("`task`") && error.contains("`classify`"), "{error}");
        assert!(AnyRecipe::from_toml("task = 3").unwrap_err().to_string().contains("`task`"));
    }

    #[test]
    fn every_recipe_is_written_with_its_task_and_read_back() {
        for task in NAMES {
            let recipe = AnyRecipe::from_toml(&format!("task = '{task}'")).unwrap();
            assert!(recipe.to_toml().starts_with(&format!("task = \"{task}\"")));
            assert_eq!(AnyRecipe::from_toml(&recipe.to_toml()).unwrap(), recipe);
            assert_eq!(recipe.info().task, *task);
        }
    }
}
