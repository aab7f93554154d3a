//! Figures, tables and pages: plain data in, text out.

mod arrows;
mod attention;
mod axis;
mod bars;
mod boxes;
mod canvas;
pub mod classes;
mod crop_sheet;
pub mod figure;
mod findings;
mod flow;
pub mod font;
mod heat_map;
mod lines;
pub mod overlay;
pub mod page;
mod point_panels;
mod raster;
mod robustness;
mod run;
mod sheet;
mod table;

pub use arrows::{Arrow, ArrowStrip, FramePoint};
pub use attention::{AttentionKind, AttentionLayer, AttentionReport};
pub use boxes::{LabelledBox, draw_boxes};
pub use crop_sheet::{BoxOrigin, CropSheet, LabelledCrop};
pub use figure::{Drawing, Figure, Line, Lines, Scale, Stroke};
pub use findings::Findings;
pub use page::{Page, PageSection};
pub use point_panels::{PanelPoint, PointPanel, PointPanels};
pub use raster::png;
pub use robustness::robustness;
pub use run::RunReport;
pub use table::Table;
