//! Regions of pictures: what a model of vision and language sees of a picture instead of its pixels.
//!
//! A region has a feature, a box and, where somebody knows, a distribution over classes, which masked regions are learned from.
//! The sources of regions have one trait: boxes that the data has ([`Crops`]), a grid ([`Patches`]), files
//! ([`super::StoredRegions`]), or a detector.

use std::fmt::Debug;

use super::VisionLanguageDataset;
use crate::Error;
use crate::data::{Bounds, Filter, Picture};

/// A box that data has for a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GivenBox {
    pub bounds: Bounds,
    /// Its class, if known.
    pub class: Option<usize>,
}

/// The regions of one picture.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RegionFeatures {
    /// `[R, F]`
    pub features: Vec<f32>,
    /// Left, top, right and bottom as shares of the picture.
    pub boxes: Vec<[f32; 4]>,
    /// `[R, C]`: probabilities, the first of which is that of the background. Empty if unknown.
    pub classes: Vec<f32>,
}

impl RegionFeatures {
    /// Number of regions.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.boxes.len()
    }

    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.boxes.is_empty()
    }

    /// The first so many regions.
    #[must_use]
    pub fn first(mut self, most: usize) -> Self {
        if self.len() > most {
            let (width, classes) = (self.features.len() / self.len(), self.classes.len() / self.len());
            self.features.truncate(most * width);
            self.classes.truncate(most * classes);
            self.boxes.truncate(most);
        }
        self
    }
}

/// A picture whose regions are wanted; it is read only if the source needs it.
pub trait RegionPicture {
    /// Its name for messages.
    fn name(&self) -> String;

    /// # Errors
    /// When it cannot be read.
    fn picture(&self) -> Result<Picture, Error>;

    /// Boxes that the data has for it.
    ///
    /// # Errors
    /// When they do not fit the picture.
    fn boxes(&self, picture: &Picture) -> Result<Vec<GivenBox>, Error>;
}

/// A picture of a dataset: which text's, and which of its pictures.
impl RegionPicture for (&dyn VisionLanguageDataset, usize, usize) {
    fn name(&self) -> String {
        self.0.picture_name(self.1, self.2)
    }

    fn picture(&self) -> Result<Picture, Error> {
        self.0.picture(self.1, self.2)
    }

    fn boxes(&self, picture: &Picture) -> Result<Vec<GivenBox>, Error> {
        self.0.boxes(self.1, self.2, picture)
    }
}

/// A picture that somebody shows.
#[derive(Clone, Debug)]
pub struct OnePicture<'a> {
    pub name: &'a str,
    pub picture: &'a Picture,
    pub boxes: &'a [GivenBox],
}

impl RegionPicture for OnePicture<'_> {
    fn name(&self) -> String {
        self.name.into()
    }

    fn picture(&self) -> Result<Picture, Error> {
        Ok(self.picture.clone())
    }

    fn boxes(&self, _: &Picture) -> Result<Vec<GivenBox>, Error> {
        Ok(self.boxes.to_vec())
    }
}

/// Where regions come from.
pub trait RegionSource: Debug + Send + Sync {
    /// Numbers of a feature, `F`.
    fn width(&self) -> usize;

    /// Classes of a region with the background, `C`; 0 if unknown.
    fn classes(&self) -> usize;

    /// Pixels that a network runs on to find the regions of a picture of so many rows and columns; 0 where there is none.
    fn network_pixels(&self, _size: [usize; 2]) -> usize {
        0
    }

    /// The regions of a picture, at least one.
    ///
    /// # Errors
    /// When the picture cannot be read, or has no region.
    fn regions(&self, picture: &dyn RegionPicture) -> Result<RegionFeatures, Error>;
}

/// The pixels of given boxes, each resized to a square; where the data has no box, the whole picture is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crops {
    /// Pixels of a side of a resized crop.
    pub side: usize,
    /// Classes of the boxes, without a background; 0 where they have none.
    pub classes: usize,
}

/// Label smoothing of the class of a box.
const SMOOTHING: f32 = 0.1;

impl RegionSource for Crops {
    fn width(&self) -> usize {
        3 * self.side * self.side
    }

    fn classes(&self) -> usize {
        if self.classes == 0 { 0 } else { self.classes + 1 }
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        let mut given = source.boxes(&picture)?;
        if given.is_empty() {
            given.push(GivenBox { bounds: Bounds::WHOLE, class: None });
        }
        let mut regions = RegionFeatures::default();
        for GivenBox { bounds, class } in given {
            let inside = bounds.clipped().ok_or_else(|| Error::File {
                path: source.name(),
                reason: format!("a region without area inside of the picture: {:?}", bounds.corners()),
            })?;
            regions.features.extend(crop(&picture, &inside, self.side));
            regions.boxes.push(inside.corners().map(|side| side as f32));
            regions.classes.extend(soft_label(class, self.classes));
        }
        Ok(regions)
    }
}

/// A class as a distribution with the background first; nothing where there are no classes. A box without one is background.
fn soft_label(class: Option<usize>, classes: usize) -> impl Iterator<Item = f32> {
    let right = class.map_or(0, |class| class + 1);
    let rest = if class.is_some() { SMOOTHING / classes.max(1) as f32 } else { 0.0 };
    let all = if classes == 0 { 0 } else { classes + 1 };
    let value = move |index: usize| {
        let base = if index == 0 { 0.0 } else { rest };
        let own = if class.is_some() { 1.0 - SMOOTHING } else { 1.0 };
        if index == right { base + own } else { base }
    };
    (0..all).map(value)
}

/// The pixels of a box, rounded to whole ones, resized to a square, from -1 to 1: `[side, side, 3]`.
fn crop(picture: &Picture, bounds: &Bounds, side: usize) -> impl Iterator<Item = f32> {
    let [rows, columns] = picture.size();
    let [x1, y1, x2, y2] = bounds.pixel_corners([rows, columns]);
    let span = |start: f64, end: f64, count: usize| {
        let first = (start.round() as usize).min(count - 1);
        (first, (end.round() as usize).clamp(first + 1, count) - first)
    };
    let ((left, width), (top, height)) = (span(x1, x2, columns), span(y1, y2, rows));
    let part = picture.crop([top, left], [height, width]).resize([side; 2], Filter::Bilinear);
    part.pixels().to_vec().into_iter().map(level)
}

fn level(byte: u8) -> f32 {
    f32::from(byte) / 127.5 - 1.0
}

/// The picture resized to a square, cut into a grid of square patches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patches {
    /// Patches of a side of the grid.
    pub grid: usize,
    /// Pixels of a side of a patch.
    pub side: usize,
}

impl RegionSource for Patches {
    fn width(&self) -> usize {
        3 * self.side * self.side
    }

    fn classes(&self) -> usize {
        0
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let Self { grid, side } = *self;
        let whole = source.picture()?.resize([grid * side; 2], Filter::Bilinear);
        let mut regions = RegionFeatures::default();
        for place in 0..grid * grid {
            let [row, column] = [place / grid, place % grid];
            let patch = whole.crop([row * side, column * side], [side; 2]);
            regions.features.extend(patch.pixels().iter().copied().map(level));
            let share = |place: usize| place as f32 / grid as f32;
            regions.boxes.push([share(column), share(row), share(column + 1), share(row + 1)]);
        }
        Ok(regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture whose left half is black and whose right half is white.
    fn halves() -> Picture {
        let pixels = (0..40 * 60).flat_map(|place| [if place % 60 < 30 { 0 } else { 255 }; 3]);
        Picture::new([40, 60], pixels.collect()).unwrap()
    }

    fn shown<'a>(picture: &'a Picture, boxes: &'a [GivenBox]) -> OnePicture<'a> {
        OnePicture { name: "halves", picture, boxes }
    }

    #[test]
    fn a_crop_is_what_is_in_its_box_and_its_label_sums_to_one() {
        let (picture, source) = (halves(), Crops { side: 4, classes: 3 });
        let bounds = |corners| Bounds::from_corners(corners);
        let given = [
            GivenBox { bounds: bounds([0.0, 0.2, 0.5, 0.9]), class: Some(2) },
            GivenBox { bounds: bounds([0.6, 0.0, 1.2, 0.5]), class: None },
        ];
        let regions = source.regions(&shown(&picture, &given)).unwrap();
        assert_eq!((regions.len(), regions.features.len()), (2, 2 * source.width()));
        assert!(regions.features[..48].iter().all(|level| *level == -1.0));
        assert!(regions.features[48..].iter().all(|level| *level == 1.0));
        assert_eq!(regions.boxes[1], [0.6, 0.0, 1.0, 0.5]);
        for row in regions.classes.chunks(source.classes()) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{row:?}");
        }
        assert!((regions.classes[3] - 0.933_333).abs() < 1e-5 && regions.classes[0] == 0.0);
        assert_eq!(regions.classes[4..], [1.0, 0.0, 0.0, 0.0]);
        assert_eq!(source.regions(&shown(&picture, &[])).unwrap().boxes, [[0.0, 0.0, 1.0, 1.0]]);
        assert_eq!(regions.first(1).features.len(), source.width());
    }

    #[test]
    fn a_box_outside_is_refused_and_a_tiny_one_has_a_pixel() {
        let (picture, source) = (halves(), Crops { side: 2, classes: 0 });
        let outside = [GivenBox { bounds: Bounds::from_corners([1.1, 0.0, 1.2, 1.0]), class: None }];
        let error = source.regions(&shown(&picture, &outside)).unwrap_err().to_string();
        assert!(error.starts_with("halves: a region without area"), "{error}");
        let tiny = [GivenBox { bounds: Bounds::from_corners([0.999, 0.999, 1.0, 1.0]), class: None }];
        let regions = source.regions(&shown(&picture, &tiny)).unwrap();
        assert!(regions.features.iter().all(|level| *level == 1.0) && regions.classes.is_empty());
    }

    #[test]
    fn patches_cover_the_picture_without_overlap() {
        let (picture, source) = (halves(), Patches { grid: 4, side: 8 });
        let regions = source.regions(&shown(&picture, &[])).unwrap();
        assert_eq!((regions.len(), regions.features.len()), (16, 16 * 192));
        let area: f32 = regions.boxes.iter().map(|[x1, y1, x2, y2]| (x2 - x1) * (y2 - y1)).sum();
        assert!((area - 1.0).abs() < 1e-6);
        let mean = |patch: usize| regions.features[192 * patch..][..192].iter().sum::<f32>() / 192.0;
        assert!(mean(4) < -0.99 && mean(7) > 0.99);
    }
}
