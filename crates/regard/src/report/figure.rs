//! Figures as SVG, valid both as a file and inside a page, and as PNG.
//!
//! Colours are those of Okabe and Ito (2008), which are safe for colour-blind readers. A figure has a light background, so
//! that it is readable on a dark page. Values that are not finite are gaps.

pub use super::axis::Scale;
pub use super::bars::{Bar, Bars};
pub use super::canvas::Drawing;
pub use super::flow::Flow;
pub use super::heat_map::{ColourScale, HeatMap};
pub use super::lines::{Line, Lines, Stroke};
pub use super::sheet::{Panel, Sheet};

/// Something that can be drawn.
pub trait Figure {
    /// The figure as shapes on a card.
    fn drawing(&self) -> Drawing;

    /// The figure as one `svg` element.
    fn svg(&self) -> String {
        self.drawing().svg()
    }

    /// The figure as a PNG file, at twice its size, with a coarse font.
    fn png(&self) -> Vec<u8> {
        self.drawing().png()
    }
}

impl Figure for Drawing {
    fn drawing(&self) -> Drawing {
        self.clone()
    }
}
