//! The results of a task for the report of a run.

use super::canvas::Drawing;
use super::table::Table;

/// Numbers, figures and tables, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Names and values.
    pub facts: Vec<(String, String)>,
    /// Figures with their file names.
    pub figures: Vec<(&'static str, Drawing)>,
    pub tables: Vec<Table>,
}
