//! Small pictures of one size, kept in memory in the layout of their files.

use std::fmt;
use std::sync::Arc;

use super::{Dataset, Picture};
use crate::Error;

/// The memory layout of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PixelOrder {
    /// `[H, W]`
    Gray,
    /// `[H, W, 3]`
    Interleaved,
    /// `[3, H, W]`
    Planes,
}

/// The pictures of one file.
pub struct PackedFile {
    pub file: String,
    pub labels: Vec<u8>,
    pub pixels: Vec<u8>,
}

impl fmt::Debug for PackedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackedFile")
            .field("file", &self.file)
            .field("pictures", &self.labels.len())
            .finish_non_exhaustive()
    }
}

/// The pictures of some files.
#[derive(Debug)]
pub struct PackedPictures {
    classes: Vec<String>,
    size: [usize; 2],
    order: PixelOrder,
    blocks: Vec<Arc<PackedFile>>,
    /// Index of the first picture of each block, and the number of all.
    starts: Vec<usize>,
}

impl PackedPictures {
    /// # Errors
    /// When a file has more or fewer pictures than labels, or a label without a class.
    pub fn new(
        classes: Vec<String>,
        size: [usize; 2],
        order: PixelOrder,
        blocks: Vec<Arc<PackedFile>>,
    ) -> Result<Self, Error> {
        let memory = Self { classes, size, order, blocks, starts: Vec::new() };
        let mut starts = vec![0];
        for PackedFile { file, labels, pixels } in memory.blocks.iter().map(AsRef::as_ref) {
            let wrong = |reason| Error::File { path: file.clone(), reason };
            let (labels, pictures) = (labels, pixels.len() / memory.bytes().max(1));
            if pixels.len() != labels.len() * memory.bytes() {
                return Err(wrong(format!("{pictures} pictures, but {} labels", labels.len())));
            }
            if let Some(at) = labels.iter().position(|&label| usize::from(label) >= memory.classes.len()) {
                let reason = format!("picture {at} has label {}, of {} classes", labels[at], memory.classes.len());
                return Err(wrong(reason));
            }
            starts.push(starts[starts.len() - 1] + labels.len());
        }
        Ok(Self { starts, ..memory })
    }

    /// Bytes of a picture.
    const fn bytes(&self) -> usize {
        let channels = if matches!(self.order, PixelOrder::Gray) { 1 } else { 3 };
        channels * self.size[0] * self.size[1]
    }

    /// The block of a picture, and its index there.
    fn locate(&self, index: usize) -> (&PackedFile, usize) {
        let block = self.starts.partition_point(|&start| start <= index) - 1;
        (&self.blocks[block], index - self.starts[block])
    }
}

impl Dataset for PackedPictures {
    fn len(&self) -> usize {
        self.starts[self.starts.len() - 1]
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        let (block, at) = self.locate(index);
        block.labels[at].into()
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        let (block, at) = self.locate(index);
        let bytes = &block.pixels[at * self.bytes()..(at + 1) * self.bytes()];
        let plane = self.size[0] * self.size[1];
        let pixels = match self.order {
            PixelOrder::Gray => bytes.iter().flat_map(|&level| [level; 3]).collect(),
            PixelOrder::Interleaved => bytes.to_vec(),
            PixelOrder::Planes => (0..plane).flat_map(|i| [bytes[i], bytes[i + plane], bytes[i + 2 * plane]]).collect(),
        };
        Picture::new(self.size, pixels)
    }

    fn name(&self, index: usize) -> String {
        let (block, at) = self.locate(index);
        format!("{} #{at}", block.file)
    }
}
