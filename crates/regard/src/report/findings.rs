//! What a task found out about a trained model, for its report.

use super::canvas::Drawing;
use super::table::Table;

/// Numbers, figures and tables, in the order in which they are shown.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Names and values.
    pub facts: Vec<(String, String)>,
    /// With the names of their files.
    pub figures: Vec<(&'static str, Drawing)>,
    pub tables: Vec<Table>,
}
