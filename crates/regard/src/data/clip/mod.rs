//! Clips with a class, wherever they come from: files of video, folders of frames, and the embedded world.

mod check;
mod encode;
mod layout;
mod listing;
mod reader;
mod sample;
mod sampling_file;

pub use check::{BadClip, ClipPartReport, ClipReport, check};
pub use encode::encode_apng;
pub use layout::is_surely_a_clip;
pub use reader::Video;
pub use sample::{FrameSampling, TestCrop, short_side_size};

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use super::dataset_parts::DatasetParts;
use super::world::{ClipTarget, WorldClips};
use super::{Part, Picture};
use crate::Error;
use layout::{ClipLayout, LAYOUTS};
use listing::Listing;

/// Clips with a class, by index.
pub trait ClipDataset: Debug + Send + Sync {
    /// Number of clips.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the classes, in the order of their labels.
    fn classes(&self) -> &[String];

    /// The label of a clip.
    fn class(&self, index: usize) -> usize;

    /// The clip's name for messages: its path, or the name of a set and a number in it.
    fn name(&self, index: usize) -> String;

    /// How long a clip is; of a file, only what it says of itself is read.
    ///
    /// # Errors
    /// When it cannot be read; the error names the file.
    fn length(&self, index: usize) -> Result<ClipLength, Error>;

    /// The frames at these positions, which do not decrease and may repeat; others are not kept.
    ///
    /// # Errors
    /// When the clip cannot be read or has no such frame; the error names the file.
    fn frames(&self, index: usize, wanted: &[usize]) -> Result<Vec<Picture>, Error>;

    /// Gives every frame of a clip, one after the other.
    ///
    /// # Errors
    /// As [`Self::frames`].
    fn for_each_frame(&self, index: usize, each: &mut dyn FnMut(Picture)) -> Result<(), Error> {
        for frame in 0..self.length(index)?.frames {
            self.frames(index, &[frame])?.into_iter().for_each(&mut *each);
        }
        Ok(())
    }

    /// The file or folder of a clip; none when it is in no file.
    fn path(&self, _index: usize) -> Option<&Path> {
        None
    }
}

/// How long a clip is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipLength {
    /// Number of frames, at least one.
    pub frames: usize,
    /// Frames per second.
    pub rate: f64,
}

/// The parts of a dataset of clips.
pub type ClipParts = DatasetParts<dyn ClipDataset>;

/// A dataset by the name of an embedded one, or by a path whose layout is recognised.
///
/// `clips` has motions as classes, `clips-garment` what moves; behind a colon, the number of frames and the side of a frame
/// may follow: `clips:16x64`. As for pictures: `val` without `test` is the test; data without validation gets the same
/// tenth of every class of its training clips; data without parts is split, a fifth of every class is the test. Clips of
/// one recording stay together where names tell. A part may be empty.
///
/// # Errors
/// When there is no such thing, its layout is none that is known, or a list names what is not there; the error names the
/// file, the line and the field.
pub fn open(source: &str, part: Part) -> Result<Arc<dyn ClipDataset>, Error> {
    match find(source)? {
        Found::World(target, size) => Ok(Arc::new(WorldClips::open(part, target, size)?)),
        Found::Files(layout) => {
            let listing = read(&layout, Path::new(source))?;
            listing.refuse_errors()?;
            Ok(listing.only(part))
        }
    }
}

/// Train, validation and test as [`open`] has them, with one reading.
///
/// # Errors
/// As [`open`].
pub fn open_parts(source: &str) -> Result<ClipParts, Error> {
    let (parts, listing) = parts(source)?;
    listing.as_ref().map_or(Ok(()), Listing::refuse_errors)?;
    Ok(parts)
}

/// The three parts without what cannot be used; every fault is among the issues.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn survey(source: &str) -> Result<ClipParts, Error> {
    Ok(parts(source)?.0)
}

/// Whether a source is surely one of clips; folders of pictures in folders of classes could be either.
#[must_use]
pub fn is_clips(source: &str) -> bool {
    match find(source) {
        Ok(Found::World(..)) => true,
        Ok(Found::Files(layout)) => {
            let first = || {
                let contents = (layout.read)(Path::new(source)).ok()?;
                contents.sections.into_iter().flat_map(|section| section.entries).next()
            };
            !layout.is_ambiguous || first().is_some_and(|clip| layout::is_surely_a_clip(&clip.path))
        }
        Err(_) => false,
    }
}

fn read(layout: &ClipLayout, path: &Path) -> Result<Listing, Error> {
    Ok(Listing::new((layout.read)(path)?, path))
}

fn parts(source: &str) -> Result<(ClipParts, Option<Listing>), Error> {
    match find(source)? {
        Found::World(target, size) => {
            let open = |part| Ok(Arc::new(WorldClips::open(part, target, size)?) as Arc<dyn ClipDataset>);
            Ok((ClipParts::embedded(open)?, None))
        }
        Found::Files(layout) => {
            let listing = read(&layout, Path::new(source))?;
            let found = (listing.origins.clone(), listing.issues.clone());
            Ok((ClipParts::listed(layout.name, found, |part| listing.only(part)), Some(listing)))
        }
    }
}

enum Found {
    World(ClipTarget, [usize; 2]),
    Files(ClipLayout),
}

fn find(source: &str) -> Result<Found, Error> {
    if let Some((target, size)) = WorldClips::parse(source) {
        return Ok(Found::World(target, size));
    }
    let path = Path::new(source);
    let names = format!("`{}` or `{}`", WorldClips::NAME, WorldClips::GARMENT);
    std::fs::metadata(path).map_err(|error| {
        Error::file(path, format!("{error}; a dataset of clips is a path, or {names} for an embedded one"))
    })?;
    if let Some(layout) = LAYOUTS.into_iter().find(|layout| (layout.is_here)(path)) {
        return Ok(Found::Files(layout));
    }
    let known: Vec<String> = LAYOUTS.iter().map(|layout| format!("\n  {}: {}", layout.name, layout.files)).collect();
    Err(Error::file(path, format!("no dataset of clips; known are{}\n  the name {names}", known.concat())))
}

#[cfg(test)]
mod tests;
