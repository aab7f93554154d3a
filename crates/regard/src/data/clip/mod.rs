//! Clips with a class, wherever they come from: files of video, folders of frames, and the embedded world.

mod sample;

pub use sample::{FrameSampling, TestCrop, short_side_size};

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use super::world::WorldClips;
use super::{Part, Picture};
use crate::Error;

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

    /// What a person would call a clip: its path, or the name of a set and a number in it.
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
}

/// How long a clip is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ClipLength {
    /// Number of frames, at least one.
    pub frames: usize,
    /// Frames per second.
    pub rate: f64,
}

/// A dataset by the name of an embedded one: `clips` has motions as classes, `clips-garment` what moves. Behind a colon, the
/// number of frames and the side of a frame may follow: `clips:16x64`.
///
/// # Errors
/// When there is no such thing; the error names it.
pub fn open(source: &str, part: Part) -> Result<Arc<dyn ClipDataset>, Error> {
    match WorldClips::parse(source) {
        Some((target, size)) => Ok(Arc::new(WorldClips::open(part, target, size)?)),
        None => Err(Error::file(Path::new(source), "not a dataset of clips")),
    }
}
