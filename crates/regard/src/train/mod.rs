//! Training: from a recipe to a run folder. Tasks are known only by the [`Task`] trait.

mod average;
pub mod checkpoint;
mod engine;
mod folder;
mod optimiser;
mod parameters;
mod ranks;
mod recipe;
mod run;
mod schedule;
mod task;
mod together;

pub use engine::{Engine, EngineConfig, StepResult};
pub use folder::{Folder, read_history, read_recipe, read_recipe_text, read_task};
pub use optimiser::Optimiser;
pub use parameters::Groups;
#[cfg(feature = "mpi")]
pub use ranks::Mpi;
pub use ranks::{Ranks, SingleProcess};
pub use recipe::{Common, Recipe, Section, Validation, task_of};
pub(crate) use recipe::{check_positive, check_share};
pub use run::{TrainEvent, TrainOptions, TrainOutcome, train};
pub use schedule::{Schedule, ScheduleShape};
pub(crate) use task::no_part;
pub use task::{
    BatchOf, EvalReport, EvalRequest, Losses, Measured, ModelCost, ModelOf, NamedModel, NamedRequest, NamedResult,
    Objective, Share, Split, Steps, Task, grouped,
};
