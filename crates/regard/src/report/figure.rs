//! Figures as SVG, each valid as a file and inside of a page.
//!
//! Colours are those of Okabe and Ito (2008), which people who see fewer colours can tell apart. A figure brings its own
//! light background, so that it can be read on a dark page. Values that are not finite are gaps.

pub use super::axis::Scale;
pub use super::bars::{Bar, Bars};
pub use super::heat_map::{HeatMap, Shades};
pub use super::lines::{Line, Lines, Stroke};

/// Something that can be drawn.
pub trait Figure {
    /// The whole figure as one `svg` element.
    fn svg(&self) -> String;
}
