//! Training: recipes in, run folders out.

pub mod checkpoint;
mod distill;
mod engine;
mod folder;
mod loss;
mod optimiser;
mod parameters;
mod ranks;
mod recipe;
mod run;
mod schedule;
mod together;

pub use distill::{Distillation, DistillationKind};
pub use engine::{Engine, Step};
pub use folder::{Folder, read_history, read_recipe};
pub use loss::{Loss, LossKind, SmoothingOver};
pub use optimiser::Optimiser;
pub use parameters::Groups;
#[cfg(feature = "mpi")]
pub use ranks::Mpi;
pub use ranks::{Alone, Ranks};
pub use recipe::Recipe;
pub use run::{Event, Outcome, Parts, test, train};
pub use schedule::{Schedule, Shape};
