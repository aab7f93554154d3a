//! A light card to draw on, measured in pixels of its nominal size.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plotters::backend::{DrawingBackend, SVGBackend};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color as _, FontFamily, FontStyle, FontTransform, IntoTextStyle as _, RGBColor, ShapeStyle};

use crate::data::Picture;

/// Plotters has integer coordinates: units of a quarter pixel keep curves smooth.
const UNIT: f64 = 4.0;

/// Default text height.
pub const TEXT: f64 = 12.0;
/// Margin of the card.
pub const MARGIN: f64 = 16.0;

pub const CARD: RGBColor = RGBColor(0xff, 0xff, 0xff);
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
pub const FADED: RGBColor = RGBColor(0x59, 0x59, 0x59);
pub const GRID: RGBColor = RGBColor(0xe2, 0xe2, 0xe2);
/// Colour of missing values.
pub const GAP: RGBColor = RGBColor(0xcc, 0xcc, 0xcc);

/// Okabe and Ito's colours without yellow, which is hard to see on a light background.
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x00, 0x00, 0x00),
];

/// Alignment of a text to its position.
#[derive(Clone, Copy, Debug)]
pub enum Anchor {
    Start,
    Middle,
    End,
}

/// How a text looks.
#[derive(Clone, Copy, Debug)]
pub struct Font {
    pub size: f64,
    pub colour: RGBColor,
    pub anchor: Anchor,
    pub bold: bool,
    /// Read from the bottom to the top.
    pub upwards: bool,
}

impl Font {
    pub const fn new(anchor: Anchor) -> Self {
        Self { size: TEXT, colour: INK, anchor, bold: false, upwards: false }
    }

    pub const fn size(self, size: f64) -> Self {
        Self { size, ..self }
    }

    pub const fn colour(self, colour: RGBColor) -> Self {
        Self { colour, ..self }
    }

    pub const fn bold(self) -> Self {
        Self { bold: true, ..self }
    }

    pub const fn upwards(self) -> Self {
        Self { upwards: true, ..self }
    }
}

/// Collects the shapes of a figure.
#[derive(Debug, Default)]
pub struct Canvas {
    shapes: Vec<Shape>,
}

/// A shape on a card.
#[derive(Clone, Debug)]
pub(super) enum Shape {
    Text {
        at: [f64; 2],
        text: String,
        font: Font,
    },
    Line {
        from: [f64; 2],
        to: [f64; 2],
        colour: RGBColor,
        width: f64,
    },
    Path {
        points: Vec<[f64; 2]>,
        colour: RGBColor,
        opacity: f64,
        width: f64,
    },
    Rectangle {
        from: [f64; 2],
        to: [f64; 2],
        colour: RGBColor,
    },
    Dot {
        at: [f64; 2],
        radius: f64,
        colour: RGBColor,
    },
    /// Drawn below all other shapes.
    Picture {
        from: [f64; 2],
        to: [f64; 2],
        picture: Picture,
    },
}

/// A finished figure, to be written as SVG or PNG.
#[derive(Clone, Debug)]
pub struct Drawing {
    /// Columns and rows in pixels.
    pub(super) size: [f64; 2],
    pub(super) title: String,
    pub(super) shapes: Vec<Shape>,
}

/// Draws a card of this many columns and rows with a title; screen readers read the title.
pub fn draw([width, height]: [f64; 2], title: &str, paint: impl FnOnce(&mut Canvas)) -> Drawing {
    let mut canvas = Canvas::default();
    let heading = Font::new(Anchor::Start).size(15.0).bold();
    canvas.text([MARGIN, MARGIN + 8.0], &shorten(title, heading.size, width - 2.0 * MARGIN), heading);
    paint(&mut canvas);
    Drawing { size: [width, height], title: title.into(), shapes: canvas.shapes }
}

impl Drawing {
    /// One `svg` element.
    #[must_use]
    pub fn svg(&self) -> String {
        let [width, height] = self.size;
        let mut text = String::new();
        let mut svg = SVGBackend::with_string(&mut text, (units(width) as u32, units(height) as u32));
        let card = Shape::Rectangle { from: [0.0, 0.0], to: self.size, colour: CARD };
        std::iter::once(&card).chain(&self.shapes).for_each(|shape| shape.write(&mut svg));
        svg.present().expect(IN_MEMORY);
        drop(svg);
        // plotters writes the size in units; here it is in pixels, and shrinks with the page
        let body = text.split_once('>').map_or("", |(_, body)| body);
        // plotters has no bitmaps: insert them after the background
        let (card, rest) = body.split_once("/>").unwrap_or((body, ""));
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" width=\"{width:.0}\" height=\"{height:.0}\" \
             style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"{}\" stroke-linejoin=\"round\">{card}/>{}{rest}",
            units(width),
            units(height),
            escaped(&self.title),
            self.shapes.iter().filter_map(Shape::picture).collect::<String>()
        )
    }
}

impl Shape {
    fn write(&self, svg: &mut SVGBackend) {
        match self {
            Self::Text { at, text, font } => {
                let anchor = match font.anchor {
                    Anchor::Start => HPos::Left,
                    Anchor::Middle => HPos::Center,
                    Anchor::End => HPos::Right,
                };
                // plotters writes a size divided by this
                let size = font.size * UNIT * 1.24;
                let weight = if font.bold { FontStyle::Bold } else { FontStyle::Normal };
                let mut style = (FontFamily::SansSerif, size, weight).into_text_style(&svg.get_size());
                style.color = font.colour.to_backend_color();
                style.pos = Pos::new(anchor, VPos::Center);
                if font.upwards {
                    style = style.transform(FontTransform::Rotate270);
                }
                svg.draw_text(&printable(text), &style, place(*at))
            }
            Self::Line { from, to, colour, width } => {
                svg.draw_line(place(*from), place(*to), &stroke(*colour, 1.0, *width))
            }
            Self::Path { points, colour, opacity, width } => {
                svg.draw_path(points.iter().copied().map(place), &stroke(*colour, *opacity, *width))
            }
            Self::Rectangle { from, to, colour } => svg.draw_rect(place(*from), place(*to), &colour.filled(), true),
            Self::Dot { at, radius, colour } => {
                svg.draw_circle(place(*at), units(*radius) as u32, &colour.filled(), true)
            }
            Self::Picture { .. } => Ok(()),
        }
        .expect(IN_MEMORY);
    }

    /// A picture as an element of its own.
    fn picture(&self) -> Option<String> {
        let Self::Picture { from, to, picture } = self else { return None };
        let [left, top, width, height] = [from[0], from[1], to[0] - from[0], to[1] - from[1]].map(units);
        let png = STANDARD.encode(super::raster::png(picture.size(), picture.pixels()));
        Some(format!(
            "<image x=\"{left}\" y=\"{top}\" width=\"{width}\" height=\"{height}\" preserveAspectRatio=\"none\" \
             style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{png}\"/>"
        ))
    }
}

/// A card with the text "no data".
pub fn nothing(size: [f64; 2], title: &str) -> Drawing {
    draw(size, title, |canvas| {
        let middle = [size[0] / 2.0, size[1] / 2.0];
        canvas.text(middle, "no data", Font::new(Anchor::Middle).size(15.0).colour(FADED));
    })
}

const IN_MEMORY: &str = "a figure in memory can always be written";

impl Canvas {
    /// A text whose middle line is at this height.
    pub fn text(&mut self, at: [f64; 2], text: &str, font: Font) {
        self.shapes.push(Shape::Text { at, text: text.into(), font });
    }

    pub fn line(&mut self, from: [f64; 2], to: [f64; 2], colour: RGBColor, width: f64) {
        self.shapes.push(Shape::Line { from, to, colour, width });
    }

    pub fn path(&mut self, points: &[[f64; 2]], colour: RGBColor, opacity: f64, width: f64) {
        self.shapes.push(Shape::Path { points: points.to_vec(), colour, opacity, width });
    }

    pub fn rectangle(&mut self, from: [f64; 2], to: [f64; 2], colour: RGBColor) {
        self.shapes.push(Shape::Rectangle { from, to, colour });
    }

    pub fn dot(&mut self, at: [f64; 2], radius: f64, colour: RGBColor) {
        self.shapes.push(Shape::Dot { at, radius, colour });
    }

    /// A picture between two corners, below all other shapes.
    pub fn picture(&mut self, from: [f64; 2], to: [f64; 2], picture: &Picture) {
        self.shapes.push(Shape::Picture { from, to, picture: picture.clone() });
    }
}

fn stroke(colour: RGBColor, opacity: f64, width: f64) -> ShapeStyle {
    ShapeStyle { color: colour.mix(opacity), filled: false, stroke_width: units(width) as u32 }
}

fn units(pixels: f64) -> i32 {
    (pixels * UNIT).round() as i32
}

fn place(at: [f64; 2]) -> (i32, i32) {
    (units(at[0]), units(at[1]))
}

/// An upper estimate of the width of a text in common fonts.
pub fn width(text: &str, size: f64) -> f64 {
    0.6 * size * text.chars().count() as f64
}

/// Shortens a text in the middle if there is not enough room, because similar names often differ at the end.
pub fn shorten(text: &str, size: f64, room: f64) -> String {
    if width(text, size) <= room {
        return text.to_string();
    }
    let letters = ((room / (0.6 * size)) as usize).saturating_sub(1).max(1);
    let (begin, end) = (letters.div_ceil(2), letters / 2);
    let skipped = text.chars().count().saturating_sub(end);
    text.chars().take(begin).chain(['…']).chain(text.chars().skip(skipped)).collect()
}

/// Without characters that XML forbids.
fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| if letter.is_control() || "\u{fffe}\u{ffff}".contains(letter) { ' ' } else { letter })
        .collect()
}

fn escaped(text: &str) -> String {
    maud::Render::render(&printable(text)).into_string()
}
