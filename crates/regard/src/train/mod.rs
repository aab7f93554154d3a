//! Training: recipes in, run folders out.

mod average;
pub mod checkpoint;
mod distill;
mod engine;
mod folder;
mod loss;
mod optimiser;
mod parameters;
mod pictures;
mod ranks;
mod recipe;
mod run;
mod schedule;
mod text_recipe;
mod together;
mod translation;

pub use distill::{Distillation, DistillationKind};
pub use engine::{Engine, Rules, Step, Task};
pub use folder::{Folder, read_history, read_recipe, read_written};
pub use loss::{Loss, LossKind, SmoothingOver};
pub use optimiser::Optimiser;
pub use parameters::Groups;
pub use pictures::Pictures;
#[cfg(feature = "mpi")]
pub use ranks::Mpi;
pub use ranks::{Alone, Ranks};
pub use recipe::{Common, Recipe, Written};
pub use run::{Course, Event, Measured, Outcome, Pace, Parts, Steps, test, train};
pub use schedule::{Schedule, Shape};
pub use text_recipe::{AnyRecipe, TextRecipe, TextTask};
pub use translation::{Counts, Example, Sentences, TextBatch, TextParts, foresee, train_text};
