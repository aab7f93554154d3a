//! Figures as SVG, each valid as a file and inside of a page, and as PNG.
//!
//! Colours are those of Okabe and Ito (2008), which people who see fewer colours can tell apart. A figure brings its own
//! light background, so that it can be read on a dark page. Values that are not finite are gaps.

pub use super::axis::Scale;
pub use super::bars::{Bar, Bars};
pub use super::canvas::Drawing;
pub use super::heat_map::{HeatMap, Shades};
pub use super::lines::{Line, Lines, Stroke};
pub use super::sheet::{Panel, Sheet};

/// Something that can be drawn.
pub trait Figure {
    /// The figure as shapes on a card.
    fn drawing(&self) -> Drawing;

    /// The whole figure as one `svg` element.
    fn svg(&self) -> String {
        self.drawing().svg()
    }

    /// The whole figure as the bytes of a PNG file, at twice its size; letters are coarse there.
    fn png(&self) -> Vec<u8> {
        self.drawing().png()
    }
}

impl Figure for Drawing {
    fn drawing(&self) -> Drawing {
        self.clone()
    }
}
