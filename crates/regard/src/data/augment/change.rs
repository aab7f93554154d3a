//! Changes of pixels, of boxes, and of the frames of a clip.
//!
//! Random numbers are drawn first. The result is a list of changes, each *geometric* (pixels move,
//! and boxes with them) or *photometric* (levels change, boxes do not). The same list can then be applied to
//! any number of pictures of one size, so that all frames of a clip change alike, and to the boxes in them.

use std::borrow::Borrow;

use super::geometry::{self, Affine, affine};
use super::{blur, colour, levels};
use crate::Error;
use crate::data::picture::normalise;
use crate::data::resample::resample;
use crate::data::{Bounds, Filter, Object, Picture, Preprocess};

/// A change, with its random numbers already drawn.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    Geometric(Geometric),
    Photometric(Photometric),
}

/// Moves pixels and boxes.
#[derive(Clone, Debug, PartialEq)]
pub enum Geometric {
    /// A crop: the corner and the size, rows before columns.
    Crop { corner: [usize; 2], size: [usize; 2] },
    /// The whole picture at another size.
    Resize { size: [usize; 2], filter: Filter },
    /// A resized crop: the picture is resized to `whole` and cropped from `corner` on.
    ResizedCrop { whole: [usize; 2], corner: [usize; 2], size: [usize; 2], filter: Filter },
    /// The same with a reflected border, so that the corner may be outside the picture.
    ReflectedCrop { whole: [usize; 2], corner: [isize; 2], size: [usize; 2], filter: Filter },
    /// A horizontal flip.
    Flip,
    /// A vertical flip.
    UpsideDown,
    /// A clockwise rotation by this many times 90 degrees.
    QuarterTurns(usize),
    /// An affine map from new to old positions: old x = `m[0]` x + `m[1]` y + `m[2]`, old y = `m[3]` x + `m[4]` y + `m[5]`;
    /// pixels from outside the picture are `fill`.
    Affine { matrix: Affine, fill: [u8; 3] },
}

/// Changes levels, not positions.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Photometric {
    AutoContrast,
    Equalize,
    Invert,
    /// Keeps the highest bits.
    Posterize(u32),
    /// Inverts levels from this one on.
    Solarize(u16),
    /// Raises levels below 128.
    SolarizeAdd(u8),
    Saturation(f32),
    Contrast(f32),
    Brightness(f32),
    Sharpness(f32),
    Grayscale,
    /// A Gaussian of this deviation in pixels.
    Blur(f64),
}

/// Random erasing: a rectangle of the normalised image becomes noise. Boxes stay, as with any occlusion.
#[derive(Clone, Debug, PartialEq)]
pub struct Erasure {
    pub corner: [usize; 2],
    pub size: [usize; 2],
    /// `[3, rows, columns]`
    pub noise: Vec<f32>,
}

/// All changes of a picture of one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Changes {
    /// The size of pictures that the changes were drawn for.
    pub from: [usize; 2],
    pub changes: Vec<Change>,
    pub erasure: Option<Erasure>,
}

impl Changes {
    /// No changes yet.
    #[must_use]
    pub const fn new(from: [usize; 2]) -> Self {
        Self { from, changes: Vec::new(), erasure: None }
    }

    /// The size after all changes.
    #[must_use]
    pub fn size(&self) -> [usize; 2] {
        self.changes.iter().fold(self.from, |size, change| match change {
            Change::Geometric(change) => change.size(size),
            Change::Photometric(_) => size,
        })
    }

    /// The changed picture, before normalisation and random erasing.
    ///
    /// # Panics
    /// When the picture does not have the size that the changes were drawn for.
    #[must_use]
    pub fn picture(&self, picture: &Picture) -> Picture {
        assert_eq!(picture.size(), self.from, "augment: the changes are for pictures of another size");
        let mut changes = self.changes.iter();
        // the first change often shrinks the picture: copying it first would be wasteful
        let mut changed = match self.changes.first() {
            Some(Change::Geometric(first)) => {
                changes.next();
                first.applied(picture)
            }
            _ => picture.clone(),
        };
        for change in changes {
            match change {
                Change::Geometric(change) => change.apply(&mut changed),
                Change::Photometric(change) => change.apply(&mut changed),
            }
        }
        changed
    }

    /// `[3, H, W]`: the changed picture, normalised.
    ///
    /// # Panics
    /// As [`Self::picture`].
    #[must_use]
    pub fn image(&self, picture: &Picture, preprocess: &Preprocess) -> Vec<f32> {
        let picture = self.picture(picture);
        let mut values = normalise(&picture, preprocess);
        if let Some(erasure) = &self.erasure {
            erasure.apply(&mut values, picture.size());
        }
        values
    }

    /// All frames of a clip, each changed in the same way: `[3, H, W]` for each.
    ///
    /// # Errors
    /// When a frame does not have the size that the changes were drawn for.
    pub fn clip(&self, frames: &[impl Borrow<Picture>], preprocess: &Preprocess) -> Result<Vec<Vec<f32>>, Error> {
        if let Some(index) = frames.iter().position(|frame| frame.borrow().size() != self.from) {
            let [[rows, columns], [other_rows, other_columns]] = [frames[index].borrow().size(), self.from];
            let reason = format!("frame {index} has {columns} x {rows} pixels, others {other_columns} x {other_rows}");
            return Err(Error::config("frames", reason));
        }
        Ok(frames.iter().map(|frame| self.image(frame.borrow(), preprocess)).collect())
    }

    /// The objects after all changes, clipped to the picture. An object is dropped if nothing of it is left, or
    /// less than `least` of its area is visible (0 keeps every visible object, as DETR does).
    #[must_use]
    pub fn objects(&self, objects: &[Object], least: f64) -> Vec<Object> {
        objects
            .iter()
            .filter_map(|object| Some(Object { bounds: self.bounds(object.bounds, least)?, ..*object }))
            .collect()
    }

    /// A box after all changes; `None` if it is dropped.
    fn bounds(&self, bounds: Bounds, least: f64) -> Option<Bounds> {
        // area that was outside the picture before is not lost by a change
        let (mut bounds, mut size, mut visible) = (bounds.clipped()?, self.from, 1.0);
        for change in &self.changes {
            let Change::Geometric(change) = change else { continue };
            let moved = change.moved(bounds, size);
            bounds = moved.clipped()?;
            visible *= bounds.area() / moved.area();
            size = change.size(size);
        }
        (visible >= least).then_some(bounds)
    }
}

impl Geometric {
    /// The size of a picture after it.
    #[must_use]
    pub const fn size(&self, before: [usize; 2]) -> [usize; 2] {
        match self {
            Self::Crop { size, .. }
            | Self::Resize { size, .. }
            | Self::ResizedCrop { size, .. }
            | Self::ReflectedCrop { size, .. } => *size,
            Self::QuarterTurns(quarters) if *quarters % 2 == 1 => [before[1], before[0]],
            Self::Flip | Self::UpsideDown | Self::QuarterTurns(_) | Self::Affine { .. } => before,
        }
    }

    fn apply(&self, picture: &mut Picture) {
        match self {
            Self::Flip => geometry::flip(picture),
            Self::UpsideDown => geometry::upside_down(picture),
            Self::QuarterTurns(quarters) => geometry::turn(picture, *quarters),
            Self::Affine { matrix, fill } => affine(picture, *matrix, *fill),
            _ => *picture = self.applied(picture),
        }
    }

    fn applied(&self, picture: &Picture) -> Picture {
        match self {
            Self::Crop { corner, size } if *corner == [0, 0] && *size == picture.size() => picture.clone(),
            Self::Crop { corner, size } => picture.crop(*corner, *size),
            Self::Resize { size, filter } => picture.resize(*size, *filter),
            Self::ResizedCrop { whole, corner, size, filter } => {
                let part = [0, 1].map(|axis| corner[axis]..corner[axis] + size[axis]);
                let pixels = resample(&picture.pixels, picture.size(), *whole, part, *filter);
                Picture { rows: size[0], columns: size[1], pixels }
            }
            Self::ReflectedCrop { whole, corner, size, filter } => {
                geometry::reflected_part(picture, *whole, *corner, *size, *filter)
            }
            Self::Flip | Self::UpsideDown | Self::QuarterTurns(_) | Self::Affine { .. } => {
                let mut changed = picture.clone();
                self.apply(&mut changed);
                changed
            }
        }
    }

    /// The box around the moved corners of a box; it may lie outside the picture.
    fn moved(&self, bounds: Bounds, before: [usize; 2]) -> Bounds {
        let after = self.size(before);
        let [x1, y1, x2, y2] = bounds.pixel_corners(before);
        let corners = [[x1, y1], [x2, y1], [x1, y2], [x2, y2]].map(|corner| self.point(corner, before));
        let least = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::INFINITY, f64::min);
        let most = |axis: usize| corners.iter().map(|corner| corner[axis]).fold(f64::NEG_INFINITY, f64::max);
        Bounds::from_pixel_corners([least(0), least(1), most(0), most(1)], after)
    }

    /// The new position of a point, `[x, y]` in pixels.
    fn point(&self, [x, y]: [f64; 2], [rows, columns]: [usize; 2]) -> [f64; 2] {
        let (height, width) = (rows as f64, columns as f64);
        let scaled = |whole: [usize; 2], corner: [f64; 2]| {
            [x * whole[1] as f64 / width - corner[1], y * whole[0] as f64 / height - corner[0]]
        };
        match self {
            Self::Crop { corner, .. } => [x - corner[1] as f64, y - corner[0] as f64],
            Self::Resize { size, .. } => scaled(*size, [0.0; 2]),
            Self::ResizedCrop { whole, corner, .. } => scaled(*whole, corner.map(|place| place as f64)),
            Self::ReflectedCrop { whole, corner, .. } => scaled(*whole, corner.map(|place| place as f64)),
            Self::Flip => [width - x, y],
            Self::UpsideDown => [x, height - y],
            Self::QuarterTurns(quarters) => match quarters % 4 {
                0 => [x, y],
                1 => [height - y, x],
                2 => [width - x, height - y],
                _ => [y, width - x],
            },
            Self::Affine { matrix, .. } => geometry::inverse(*matrix, [x, y]),
        }
    }
}

impl Photometric {
    fn apply(self, picture: &mut Picture) {
        match self {
            Self::AutoContrast => levels::autocontrast(picture),
            Self::Equalize => levels::equalize(picture),
            Self::Invert => levels::invert(picture),
            Self::Posterize(bits) => levels::posterize(picture, bits),
            Self::Solarize(threshold) => levels::solarize(picture, threshold),
            Self::SolarizeAdd(more) => levels::solarize_add(picture, more),
            Self::Saturation(factor) => colour::saturation(picture, factor),
            Self::Contrast(factor) => colour::contrast(picture, factor),
            Self::Brightness(factor) => colour::brightness(picture, factor),
            Self::Sharpness(factor) => colour::sharpness(picture, factor),
            Self::Grayscale => colour::grayscale(picture),
            Self::Blur(radius) => blur::blur(picture, radius),
        }
    }
}

impl Erasure {
    pub(super) fn apply(&self, values: &mut [f32], image: [usize; 2]) {
        let ([top, left], [rows, columns]) = (self.corner, self.size);
        let planes = values.chunks_exact_mut(image[0] * image[1]);
        for (plane, noise) in planes.zip(self.noise.chunks_exact((rows * columns).max(1))) {
            let lines = plane.chunks_exact_mut(image[1]).skip(top).take(rows);
            for (line, noise) in lines.zip(noise.chunks_exact(columns)) {
                line[left..left + columns].copy_from_slice(noise);
            }
        }
    }
}

#[cfg(test)]
mod tests;
