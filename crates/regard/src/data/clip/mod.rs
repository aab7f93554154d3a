//! Clips with a class, wherever they come from: files of video, folders of frames, and the embedded world.

use std::fmt::Debug;

use super::Picture;
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
