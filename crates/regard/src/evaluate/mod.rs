//! Evaluation: metrics of a model, and the history of its training.

mod accuracy;
mod calibration;
pub mod coco;
mod confusion;
mod evaluation;
pub mod history;
mod metric;
mod number;
mod robustness;
mod translation;

pub use accuracy::{Accuracy, Answer, answers};
pub use calibration::{BINS, Bin, Calibration};
pub use confusion::Confusion;
pub use evaluation::Evaluation;
pub use history::{EpochRecord, History, Record, StepRecord, TestRecord};
pub use metric::{Better, Metric, TaskInfo, Unit, Values};
pub use robustness::{Robustness, Turn};
pub use translation::{TranslationScore, score};
