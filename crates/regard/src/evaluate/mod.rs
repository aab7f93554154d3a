//! Evaluation: metrics of a model, and the history of its training.

mod accuracy;
mod calibration;
mod classification;
pub mod coco;
mod confusion;
pub mod history;
mod metric;
mod number;
mod robustness;
mod translation;

pub use accuracy::{Accuracy, ClassProbability, top_classes};
pub use calibration::{BINS, Bin, Calibration};
pub use classification::ClassificationMetrics;
pub use confusion::Confusion;
pub use history::{EpochRecord, History, Record, StepRecord, TestRecord};
pub use metric::{Better, Metric, TaskInfo, Unit, Values};
pub use robustness::{Robustness, Rotation};
pub use translation::{TranslationScore, score};
