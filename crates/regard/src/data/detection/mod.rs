//! Detection datasets: COCO, VOC, YOLO, CSV, and the embedded `scenes`.
//!
//! One file a format. Each gives [`listing::ListedPart`]s, a part's pictures with their boxes; `listing` joins them: one
//! list of classes for all parts, parts that are missing drawn as for classification, faults collected. [`open`] refuses
//! data that a model cannot learn from and names what is at fault; [`survey`] takes what can be taken and lists all faults.
//!
//! Boxes are in pixels of the picture as the annotations see it: upright by its EXIF orientation, unless the annotations'
//! own width and height fit only the stored picture.

mod check;
mod coco;
mod convert;
mod csv;
mod listing;
mod picture;
mod sample;
mod voc;
mod yolo;

pub use check::{BoxFault, DetectionPartReport, DetectionReport, FaultKind, Histogram, check};
pub use convert::{AnnotationFormat, Converted, convert};
pub(super) use listing::{Folders, part_of_name};
pub use listing::{Issue, Severity};
pub use picture::{Orientation, orientation};
pub use sample::DetectionSample;

use serde::Serialize;
use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use super::dataset::Part;
use super::dataset_parts::DatasetParts;
use super::world::Scenes;
use super::{Bounds, Object, Picture};
use crate::Error;
use listing::{ListedPart, Listing};

/// Pictures with boxes, by index.
pub trait DetectionDataset: Debug + Send + Sync {
    /// Number of pictures.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the classes, in the order of their labels.
    fn classes(&self) -> &[String];

    /// # Errors
    /// When it cannot be read; the error names the file.
    fn picture(&self, index: usize) -> Result<Picture, Error>;

    /// The boxes of a picture. YOLO's are fractions, so that the picture's size has to be read.
    ///
    /// # Errors
    /// When the picture's size is needed and cannot be read.
    fn annotations(&self, index: usize) -> Result<Vec<Annotation>, Error>;

    /// A picture with its boxes, read once.
    ///
    /// # Errors
    /// When it cannot be read; the error names the file.
    fn sample(&self, index: usize) -> Result<(Picture, Vec<Annotation>), Error> {
        Ok((self.picture(index)?, self.annotations(index)?))
    }

    /// The id of the picture in results: COCO's `image_id`, or a number from 1 on.
    fn image_id(&self, index: usize) -> u64;

    /// The name of a picture for messages: its path, or the name of a set and an index in it.
    fn name(&self, index: usize) -> String;

    /// Rows and columns according to the annotations, if they say.
    fn declared_size(&self, index: usize) -> Option<[usize; 2]>;

    /// The file of a picture; `None` if it has none.
    fn path(&self, _index: usize) -> Option<&Path> {
        None
    }
}

/// An annotated object.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Annotation {
    pub id: u64,
    pub class: usize,
    /// Left, top, width and height in pixels, as in COCO.
    pub bounds: [f64; 4],
    /// In pixels; of the mask if COCO has one.
    pub area: f64,
    /// One box around many objects, not counted when missed.
    pub crowd: bool,
    /// VOC's `difficult`: hard to recognise.
    pub difficult: bool,
}

impl Annotation {
    /// An object whose area is that of its box, neither crowd nor difficult.
    #[must_use]
    pub const fn new(id: u64, class: usize, bounds: [f64; 4]) -> Self {
        Self { id, class, bounds, area: bounds[2] * bounds[3], crowd: false, difficult: false }
    }

    /// Without its id and with a box as fractions of a picture of `[rows, columns]`.
    #[must_use]
    pub fn object(&self, size: [usize; 2]) -> Object {
        Object { class: self.class, bounds: Bounds::from_coco(self.bounds, size), crowd: self.crowd }
    }
}

/// The parts of a detection dataset.
pub type DetectionParts = DatasetParts<dyn DetectionDataset>;

/// A dataset by the name `scenes`, or by a path whose format is recognised.
///
/// As for classification: `val` without `test` is the test; data without validation gets the same tenth of its training
/// pictures; data without parts is split, and a fifth is the test part. A part may be empty.
///
/// # Errors
/// When there is no such thing, its format is none that is known, or an annotation cannot be used; the error names the
/// file, the annotation and the field.
pub fn open(source: &str, part: Part) -> Result<Arc<dyn DetectionDataset>, Error> {
    match find(source)? {
        Found::Scenes => Ok(Arc::new(Scenes::open(part)?)),
        Found::Files(layout, path) => {
            let listing = Listing::new((layout.read)(&path)?);
            listing.refuse_errors()?;
            Ok(listing.only(part))
        }
    }
}

/// Train, validation and test as [`open`] has them, with one reading.
///
/// # Errors
/// As [`open`].
pub fn open_parts(source: &str) -> Result<DetectionParts, Error> {
    let (parts, listing) = parts(source)?;
    listing.as_ref().map_or(Ok(()), Listing::refuse_errors)?;
    Ok(parts)
}

/// The three parts without unusable pictures and boxes; every fault is among the issues.
///
/// # Errors
/// When there is no such thing, or its format is none that is known.
pub fn survey(source: &str) -> Result<DetectionParts, Error> {
    Ok(parts(source)?.0)
}

/// Whether a source is recognised as a detection dataset.
#[must_use]
pub fn is_detection(source: &str) -> bool {
    find(source).is_ok()
}

fn parts(source: &str) -> Result<(DetectionParts, Option<Listing>), Error> {
    match find(source)? {
        Found::Scenes => {
            let open = |part| Ok(Arc::new(Scenes::open(part)?) as Arc<dyn DetectionDataset>);
            Ok((DetectionParts::embedded(open)?, None))
        }
        Found::Files(layout, path) => {
            let listing = Listing::new((layout.read)(&path)?);
            let found = (listing.origins.clone(), listing.issues.clone());
            Ok((DetectionParts::listed(layout.name, found, |part| listing.only(part)), Some(listing)))
        }
    }
}

/// A file format of a detection dataset.
struct DetectionFormat {
    name: &'static str,
    /// How it is recognised, in words.
    files: &'static str,
    is_here: fn(&Path) -> bool,
    read: fn(&Path) -> Result<Vec<ListedPart>, Error>,
}

const FORMATS: [DetectionFormat; 4] = [
    DetectionFormat {
        name: "COCO",
        files: "annotations/instances_*.json, a .json file with `images`, `annotations` and `categories`, or _annotations.coco.json in train/, valid/ and test/",
        is_here: coco::is_here,
        read: coco::read,
    },
    DetectionFormat {
        name: "VOC",
        files: "Annotations/*.xml with JPEGImages/ and ImageSets/Main/, or .xml files beside their pictures",
        is_here: voc::is_here,
        read: voc::read,
    },
    DetectionFormat {
        name: "YOLO",
        files: "data.yaml, or images/ and labels/ with a .txt file for each picture",
        is_here: yolo::is_here,
        read: yolo::read,
    },
    DetectionFormat {
        name: "CSV of boxes",
        files: "a .csv file of `image,x1,y1,x2,y2,class`, or boxes.csv, annotations.csv or _annotations.csv in a folder",
        is_here: csv::is_here,
        read: csv::read,
    },
];

enum Found {
    Scenes,
    Files(DetectionFormat, std::path::PathBuf),
}

fn find(source: &str) -> Result<Found, Error> {
    if source == Scenes::NAME {
        return Ok(Found::Scenes);
    }
    let path = Path::new(source);
    std::fs::metadata(path).map_err(|error| {
        Error::file(path, format!("{error}; a dataset is a path, or `{}` for the embedded one", Scenes::NAME))
    })?;
    if let Some(layout) = FORMATS.into_iter().find(|layout| (layout.is_here)(path)) {
        return Ok(Found::Files(layout, path.into()));
    }
    let known: Vec<String> = FORMATS.iter().map(|layout| format!("\n  {}: {}", layout.name, layout.files)).collect();
    Err(Error::file(
        path,
        format!("no pictures with boxes; known are{}\n  the name `{}`", known.concat(), Scenes::NAME),
    ))
}

#[cfg(test)]
mod tests;
