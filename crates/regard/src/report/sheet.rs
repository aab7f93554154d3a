//! A grid of pictures, each under its name.

use plotters::style::RGBColor;

use super::canvas::{Anchor, Drawing, FADED, Font, MARGIN, draw, nothing, shorten};
use super::figure::Figure;
use crate::data::Picture;

const GAP: f64 = 10.0;
/// Height of a name, and of its letters.
const NAME: f64 = 16.0;
const LETTERS: f64 = 11.0;
const FRAME: RGBColor = RGBColor(90, 220, 255);

/// A sheet of pictures.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    pub title: String,
    /// Pictures per row.
    pub columns: usize,
    /// Side of a picture in pixels.
    pub side: f64,
    pub panels: Vec<Panel>,
}

/// One picture of a sheet.
#[derive(Clone, Debug)]
pub struct Panel {
    pub name: String,
    pub picture: Picture,
    /// A frame as fractions of height and width: top, left, bottom, right.
    pub frame: Option<[f64; 4]>,
}

impl Figure for Sheet {
    fn drawing(&self) -> Drawing {
        if self.panels.is_empty() || self.columns == 0 {
            return nothing([480.0, 160.0], &self.title);
        }
        let columns = self.columns.min(self.panels.len());
        let rows = self.panels.len().div_ceil(columns);
        let (wide, high) = (self.side + GAP, self.side + NAME + GAP);
        let top = MARGIN + 28.0;
        let size = [2.0 * MARGIN + columns as f64 * wide - GAP, top + rows as f64 * high - GAP + MARGIN];
        draw([size[0].max(240.0), size[1]], &self.title, |canvas| {
            for (index, panel) in self.panels.iter().enumerate() {
                let left = MARGIN + (index % columns) as f64 * wide;
                let top = top + (index / columns) as f64 * high;
                let font = Font::new(Anchor::Start).size(LETTERS).colour(FADED);
                canvas.text([left, top + NAME / 2.0 - 1.0], &shorten(&panel.name, LETTERS, self.side), font);
                let [rows, columns] = panel.picture.size();
                let scale = self.side / rows.max(columns) as f64;
                let (from, shape) = ([left, top + NAME], [columns as f64 * scale, rows as f64 * scale]);
                canvas.picture(from, [from[0] + shape[0], from[1] + shape[1]], &panel.picture);
                if let Some([up, before, down, after]) = panel.frame {
                    let corner = |along: f64, down: f64| [from[0] + along * shape[0], from[1] + down * shape[1]];
                    let path = [corner(before, up), corner(after, up), corner(after, down), corner(before, down)];
                    canvas.path(&[path[0], path[1], path[2], path[3], path[0]], FRAME, 1.0, 2.0);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_picture_has_its_name_and_a_frame_when_it_wants_one() {
        let picture = Picture::new([2, 3], vec![7; 18]).unwrap();
        let panel = |name: &str, frame| Panel { name: name.into(), picture: picture.clone(), frame };
        let panels = vec![panel("one", None), panel("two", Some([0.0, 0.0, 0.5, 0.5])), panel("three", None)];
        let sheet = Sheet { title: "sheet".into(), columns: 2, side: 60.0, panels };
        let svg = sheet.svg();
        assert_eq!((svg.matches("<image").count(), svg.matches("<polyline").count()), (3, 1));
        assert!(["one", "two", "three"].iter().all(|name| svg.contains(name)));
        assert!(image::load_from_memory(&sheet.png()).is_ok());
        assert!(Sheet::default().svg().contains("no data"));
    }
}
