//! The pictures for an analysis; their classes are not used.

use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use regard::data::detection::{self, DetectionDataset};
use regard::data::{Dataset, Part, Picture, dataset};
use std::io::{Write as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::failure::Failure;

/// Pictures in memory.
pub struct Pictures {
    readable: Vec<Picture>,
    /// How many could not be read.
    pub unreadable: usize,
    batch: usize,
}

/// The opened data.
enum OpenedData {
    Files(Vec<PathBuf>),
    Data(Arc<dyn Dataset>),
    Boxes(Arc<dyn DetectionDataset>),
}

impl OpenedData {
    /// A folder of pictures, or the test part of a dataset with classes or boxes.
    fn open(source: &str) -> Result<Self, Failure> {
        let files = files(Path::new(source));
        if !files.is_empty() {
            return Ok(Self::Files(files));
        }
        let hint = "a folder of pictures, `fashion`, `scenes`, or a dataset as `regard eval` takes it";
        if detection::is_detection(source) {
            let parts = detection::open_parts(source).map_err(|error| Failure::input(error, hint))?;
            return Ok(Self::Boxes(if parts.test.is_empty() { parts.train } else { parts.test }));
        }
        let of = |part| dataset::open(source, part).map_err(|error| Failure::input(error, hint));
        let test = of(Part::Test)?;
        Ok(Self::Data(if test.is_empty() { of(Part::All)? } else { test }))
    }

    fn len(&self) -> usize {
        match self {
            Self::Files(files) => files.len(),
            Self::Data(data) => data.len(),
            Self::Boxes(data) => data.len(),
        }
    }

    fn picture(&self, index: usize) -> Result<Picture, regard::Error> {
        match self {
            Self::Files(files) => Picture::open(&files[index]),
            Self::Data(data) => data.picture(index),
            Self::Boxes(data) => data.picture(index),
        }
    }
}

/// The pictures of a folder, by name.
fn files(folder: &Path) -> Vec<PathBuf> {
    // with a manifest it is a dataset
    if folder.join("labels.csv").is_file() {
        return Vec::new();
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.is_file() && dataset::is_picture(path)).collect();
    found.sort();
    found
}

impl Pictures {
    /// Reads `count` pictures, spread evenly; prints the names of those that cannot be read.
    pub fn open(source: &str, count: usize, batch: usize) -> Result<Self, Failure> {
        let from = OpenedData::open(source)?;
        let count = count.min(from.len());
        let chosen: Vec<usize> = (0..count).map(|index| index * from.len() / count).collect();
        let read: Vec<_> = chosen.par_iter().map(|index| from.picture(*index)).collect();
        let mut pictures = Vec::new();
        for picture in read {
            match picture {
                Ok(picture) => pictures.push(picture),
                Err(error) => writeln!(stderr(), "error: {error}")?,
            }
        }
        if pictures.is_empty() {
            return Err(Failure::input(
                format!("no picture of `{source}` could be read"),
                "is it a folder of pictures?",
            ));
        }
        Ok(Self { unreadable: count - pictures.len(), readable: pictures, batch })
    }

    pub fn len(&self) -> usize {
        self.readable.len()
    }

    /// Batch size.
    pub fn batches(&self) -> std::slice::Chunks<'_, Picture> {
        self.readable.chunks(self.batch)
    }

    pub fn first(&self) -> &[Picture] {
        &self.readable[..1]
    }

    /// Calls `show` with every batch, with a progress bar of `steps` for each.
    pub fn visit(
        &self,
        steps: usize,
        what: &str,
        mut see: impl FnMut(&[Picture], &ProgressBar) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let bar = ProgressBar::new((self.len() * steps) as u64);
        bar.set_style(
            ProgressStyle::with_template("{msg} {wide_bar} {percent} % {eta}").expect("the template is fixed"),
        );
        bar.set_message(what.to_string());
        for batch in self.batches() {
            see(batch, &bar)?;
            if steps == 1 {
                bar.inc(batch.len() as u64);
            }
        }
        bar.finish_and_clear();
        Ok(())
    }
}
