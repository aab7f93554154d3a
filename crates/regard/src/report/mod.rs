//! Figures, tables and pages: plain data in, text out.

mod attention;
mod axis;
mod bars;
mod canvas;
pub mod classes;
pub mod figure;
mod heat_map;
mod lines;
pub mod page;
mod robustness;
mod run;
mod table;

pub use attention::{AttentionKind, AttentionLayer, AttentionReport};
pub use figure::Figure;
pub use page::{Page, Section};
pub use robustness::robustness;
pub use run::RunReport;
pub use table::Table;
