//! Pictures with texts about them, wherever they come from: questions with answers, captions, and statements that are true or not.
//!
//! One file a format: VQA v2, COCO's captions, NLVR and NLVR2, easy-VQA, and tables of `image,text` or
//! `image,question,answer`; `scenes` of the embedded world have questions and captions. `listing` joins what files list: parts
//! that are missing are drawn by picture, so that no picture is in two of them. [`open_parts`] refuses data that a model cannot
//! learn from and names what is at fault; [`survey`] takes what can be taken and lists all faults.
//!
//! Regions of pictures are one trait, [`RegionSource`]: given boxes, a grid of patches, features from files; those of our own
//! detectors are with the task. [`Cached`] keeps on disk what a source costs.

mod answers;
mod blind;
mod cache;
mod captions;
mod check;
mod easy_vqa;
mod listing;
mod nlvr;
mod regions;
mod stored;
mod table;
mod vqa;
mod world;

pub use answers::{AnswerList, normalised, vqa_score};
pub use blind::BlindBaseline;
pub use cache::Cached;
pub use check::{AnswerStatistics, TextPartReport, VisionLanguageReport, check, picture_count};
pub use regions::{Crops, GivenBox, OnePicture, Patches, RegionFeatures, RegionPicture, RegionSource};
pub use stored::{StoredRegions, image_number};
pub use world::{WorldCaptions, WorldQuestions};

use serde::Serialize;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Picture;
use super::dataset::{Origin, Origins, Part};
use super::detection::Issue;
use crate::Error;
use listing::{ListedPart, Listing};

/// How texts relate to their pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TextKind {
    /// Sentences that tell what is to be seen.
    Captions,
    /// Questions with answers.
    Questions,
    /// Sentences that are true or false.
    Statements,
}

/// A text and what is known about it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextSample {
    pub text: String,
    /// Answers with their scores from 0 to 1: of a question, what people said; of a statement, `true` or `false`. Empty for a
    /// caption, and if unknown.
    pub answers: Vec<(String, f32)>,
    /// Index in [`VisionLanguageDataset::groups`].
    pub group: Option<usize>,
    /// Index in [`VisionLanguageDataset::answer_types`].
    pub answer_type: Option<usize>,
}

/// Texts about pictures, by index.
pub trait VisionLanguageDataset: Debug + Send + Sync {
    /// Number of texts.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn kind(&self) -> TextKind;

    /// # Errors
    /// When it cannot be read.
    fn sample(&self, index: usize) -> Result<TextSample, Error>;

    /// A caption of the same picture that is wrong by one word; none if it cannot be made. It depends only on the draw.
    fn hard_negative(&self, _index: usize, _draw_id: [u64; 2]) -> Option<String> {
        None
    }

    /// How many pictures each text is about: one, or two.
    fn pictures(&self) -> usize {
        1
    }

    /// A number of a picture of a text: texts about the same picture have the same.
    fn picture_id(&self, index: usize, which: usize) -> u64;

    /// # Errors
    /// When it cannot be read; the error names the file.
    fn picture(&self, index: usize, which: usize) -> Result<Picture, Error>;

    /// The picture's name for messages: its path, or the name of a set and a number in it.
    fn picture_name(&self, index: usize, which: usize) -> String;

    /// The file of a picture; none when it is in no file.
    fn picture_path(&self, _index: usize, _which: usize) -> Option<&Path> {
        None
    }

    /// Boxes that the data has for a picture; empty where it has none.
    ///
    /// # Errors
    /// When the data's boxes do not fit the picture.
    fn boxes(&self, _index: usize, _which: usize, _picture: &Picture) -> Result<Vec<GivenBox>, Error> {
        Ok(Vec::new())
    }

    /// Names of the classes of the boxes.
    fn box_classes(&self) -> &[String] {
        &[]
    }

    /// The text's name for errors.
    fn name(&self, index: usize) -> String;

    /// Kinds of questions, such as templates.
    fn groups(&self) -> &[String] {
        &[]
    }

    /// Kinds of answers, such as `yes/no`.
    fn answer_types(&self) -> &[String] {
        &[]
    }

    /// The answers that there are, if the data says so.
    fn answers(&self) -> Option<&[String]> {
        None
    }

    /// The words that there are, a line each, if the data says so.
    fn vocabulary(&self) -> Option<String> {
        None
    }
}

/// The three parts of a dataset, and what was found on the way.
#[derive(Clone, Debug)]
pub struct VisionLanguageParts {
    pub train: Arc<dyn VisionLanguageDataset>,
    pub validation: Arc<dyn VisionLanguageDataset>,
    pub test: Arc<dyn VisionLanguageDataset>,
    pub layout: &'static str,
    pub origins: Origins,
    pub issues: Vec<Issue>,
    /// Pictures that are not where they should be; without them there may still be features of their regions.
    pub missing: Vec<Issue>,
}

impl VisionLanguageParts {
    /// Those of one of the three parts.
    #[must_use]
    pub fn part(&self, part: Part) -> Option<&Arc<dyn VisionLanguageDataset>> {
        match part {
            Part::Train => Some(&self.train),
            Part::Validation => Some(&self.validation),
            Part::Test => Some(&self.test),
            _ => None,
        }
    }
}

/// Whether the pictures themselves are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PictureUse {
    Needed,
    /// Features of their regions are in a file.
    NotNeeded,
}

/// Texts about pictures by the names `questions` and `captions`, or by a path whose format is recognised.
///
/// `val` without `test` is the test; data without validation gives a tenth of its training pictures to it; data without parts is
/// split, a fifth of the pictures is the test.
///
/// # Errors
/// When there is no such thing, its format is none that is known, or something cannot be used; the error names the file, the
/// place and the field.
pub fn open_parts(source: &str, pictures: PictureUse) -> Result<VisionLanguageParts, Error> {
    let (parts, listing) = parts(source)?;
    listing.as_ref().map_or(Ok(()), |listing| listing.refuse_errors(pictures))?;
    Ok(parts)
}

/// One part, or all texts.
///
/// # Errors
/// As [`open_parts`].
pub fn open(source: &str, part: Part, pictures: PictureUse) -> Result<Arc<dyn VisionLanguageDataset>, Error> {
    match find(source)? {
        Found::World(name) => world::open(name, part),
        Found::Files(layout, path) => {
            let listing = Listing::new((layout.read)(&path)?)?;
            listing.refuse_errors(pictures)?;
            Ok(listing.only(part))
        }
    }
}

/// The three parts without what cannot be used; every fault is among the issues.
///
/// # Errors
/// When there is no such thing, or its format is none that is known.
pub fn survey(source: &str) -> Result<VisionLanguageParts, Error> {
    Ok(parts(source)?.0)
}

/// Whether a source is recognised as texts about pictures.
#[must_use]
pub fn is_vision_language(source: &str) -> bool {
    find(source).is_ok()
}

fn parts(source: &str) -> Result<(VisionLanguageParts, Option<Listing>), Error> {
    let each = [Part::Train, Part::Validation, Part::Test];
    match find(source)? {
        Found::World(name) => {
            let [train, validation, test] = each.map(|part| world::open(name, part));
            let own = || Origin::Own("its own".into());
            let parts = VisionLanguageParts {
                train: train?,
                validation: validation?,
                test: test?,
                layout: "embedded",
                origins: Origins { validation: own(), test: own() },
                issues: Vec::new(),
                missing: Vec::new(),
            };
            Ok((parts, None))
        }
        Found::Files(layout, path) => {
            let listing = Listing::new((layout.read)(&path)?)?;
            let [train, validation, test] = each.map(|part| listing.only(part));
            let (origins, issues, missing) = (listing.origins.clone(), listing.issues.clone(), listing.missing.clone());
            let layout = layout.name;
            Ok((VisionLanguageParts { train, validation, test, layout, origins, issues, missing }, Some(listing)))
        }
    }
}

/// A file format of texts about pictures.
struct TextFormat {
    name: &'static str,
    /// The files by which it is recognised.
    files: &'static str,
    is_here: fn(&Path) -> bool,
    read: fn(&Path) -> Result<Vec<ListedPart>, Error>,
}

const FORMATS: [TextFormat; 5] = [
    TextFormat {
        name: "easy-VQA",
        files: "questions.json (a list of [question, answer, image]) and images/, or such folders train/ and test/",
        is_here: easy_vqa::is_here,
        read: easy_vqa::read,
    },
    TextFormat {
        name: "VQA",
        files: "*questions.json and *annotations.json as VQA v2 has them, with folders of pictures beside them",
        is_here: vqa::is_here,
        read: vqa::read,
    },
    TextFormat {
        name: "COCO captions",
        files: "annotations/captions_*.json, or a .json file of `images` with captions (Karpathy's dataset_coco.json)",
        is_here: captions::is_here,
        read: captions::read,
    },
    TextFormat {
        name: "NLVR",
        files: "a .json file of a line for each statement: `sentence`, `label`, `identifier`; in a folder, one for each part",
        is_here: nlvr::is_here,
        read: nlvr::read,
    },
    TextFormat {
        name: "table of texts",
        files: "a .csv or .jsonl file of `image,text` or `image,question,answer`; in a folder, one for each part",
        is_here: table::is_here,
        read: table::read,
    },
];

enum Found {
    World(&'static str),
    Files(TextFormat, PathBuf),
}

fn find(source: &str) -> Result<Found, Error> {
    if let Some(name) = world::NAMES.into_iter().find(|name| *name == source) {
        return Ok(Found::World(name));
    }
    let path = Path::new(source);
    let embedded = world::NAMES.map(|name| format!("`{name}`")).join(" or ");
    std::fs::metadata(path)
        .map_err(|error| Error::file(path, format!("{error}; a dataset is a path, or {embedded} for embedded ones")))?;
    if let Some(layout) = FORMATS.into_iter().find(|layout| (layout.is_here)(path)) {
        return Ok(Found::Files(layout, path.into()));
    }
    let known: Vec<String> = FORMATS.iter().map(|layout| format!("\n  {}: {}", layout.name, layout.files)).collect();
    Err(Error::file(path, format!("no texts about pictures; known are{}\n  the names {embedded}", known.concat())))
}

#[cfg(test)]
mod tests;
