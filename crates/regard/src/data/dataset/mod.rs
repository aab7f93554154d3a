//! Pictures with classes, wherever they come from.
//!
//! One file a layout; what they share is below them: `files` reads pictures when they are asked for, `memory` keeps small
//! ones in memory, `split` makes a test of what has none.

mod bytes;
mod cifar;
mod embedded;
mod files;
mod folder;
mod idx;
mod manifest;
mod memory;
mod packed;
mod split;
mod sprites;
mod subset;
mod tiny_imagenet;

pub use files::is_picture;
pub use subset::{Subset, take_per_class};

use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Picture;
use crate::Error;

/// Pictures with classes, by index.
pub trait Dataset: Debug + Send + Sync {
    /// Number of pictures.
    fn len(&self) -> usize;

    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Names of the classes, in the order of their labels.
    fn classes(&self) -> &[String];

    /// The class of a picture, known without reading it.
    fn label(&self, index: usize) -> usize;

    /// # Errors
    /// When it cannot be read; the error names the file.
    fn picture(&self, index: usize) -> Result<Picture, Error>;

    /// What a person would call a picture: its path, or a file and a number in it.
    fn name(&self, index: usize) -> String;
}

/// Which pictures of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Train,
    Test,
    /// Both, the training pictures first.
    All,
}

impl Part {
    const fn has_train(self) -> bool {
        matches!(self, Self::Train | Self::All)
    }

    const fn has_test(self) -> bool {
        matches!(self, Self::Test | Self::All)
    }
}

/// A dataset by the name of an embedded one (`fashion`), or by a path whose layout is recognised.
///
/// A folder of classes without parts is split: the same fifth of every class is the test. A part may be empty.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn open(source: &str, part: Part) -> Result<Arc<dyn Dataset>, Error> {
    let (layout, place) = find(source)?;
    (layout.open)(&place, part)
}

/// Whether a source says itself what the test is; a fifth of what does not is the test only because something must be.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn has_parts(source: &str) -> Result<bool, Error> {
    let (layout, place) = find(source)?;
    (layout.has_parts)(&place)
}

/// What the layout of a source is called.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn layout(source: &str) -> Result<&'static str, Error> {
    Ok(find(source)?.0.name)
}

/// A way to keep pictures with classes.
struct Layout {
    name: &'static str,
    /// What is there when it is this one.
    looks: &'static str,
    is_here: fn(&Path) -> bool,
    open: fn(&Path, Part) -> Opened,
    /// Whether it says itself what the test is.
    has_parts: fn(&Path) -> Result<bool, Error>,
}

type Opened = Result<Arc<dyn Dataset>, Error>;

/// Layouts with files of known names.
const PARTICULAR: [Layout; 6] = [
    Layout {
        name: "CSV manifest",
        looks: "labels.csv of `file,label[,part]`, or the path of such a file",
        is_here: manifest::is_here,
        open: manifest::open,
        has_parts: manifest::has_parts,
    },
    Layout {
        name: "IDX",
        looks: "train-images-idx3-ubyte[.gz] and its companions, as MNIST has them",
        is_here: idx::is_here,
        open: idx::open,
        has_parts: |_| Ok(true),
    },
    Layout {
        name: "CIFAR-10, binary version",
        looks: "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        is_here: cifar::ten_is_here,
        open: cifar::open_ten,
        has_parts: |_| Ok(true),
    },
    Layout {
        name: "CIFAR-100, binary version",
        looks: "train.bin and test.bin",
        is_here: cifar::hundred_is_here,
        open: cifar::open_hundred,
        has_parts: |_| Ok(true),
    },
    Layout {
        name: "CIFAR-10, PNG sprites",
        looks: "data_batch_1.png to data_batch_5.png, test_batch.png, train_lables.json, test_lables.json",
        is_here: sprites::is_here,
        open: sprites::open,
        has_parts: |_| Ok(true),
    },
    Layout {
        name: "Tiny ImageNet",
        looks: "wnids.txt, train/ and val/val_annotations.txt",
        is_here: tiny_imagenet::is_here,
        open: tiny_imagenet::open,
        has_parts: |_| Ok(true),
    },
];

const FOLDER: Layout = Layout {
    name: "folder of classes",
    looks: "a folder for each class, perhaps below train/ and val/ or test/",
    is_here: folder::is_here,
    open: folder::open,
    has_parts: folder::has_parts,
};

const EMBEDDED: Layout = Layout {
    name: "embedded",
    looks: "the name `fashion`",
    is_here: |path| path.as_os_str() == embedded::NAME,
    open: |_, part| Ok(embedded::open(part)),
    has_parts: |_| Ok(true),
};

/// Folders that archives of these datasets unpack to.
const ARCHIVED: [&str; 4] = ["cifar-10-batches-bin", "cifar-100-binary", "tiny-imagenet-200", "package"];

/// The layout of a source, and where it begins.
fn find(source: &str) -> Result<(Layout, PathBuf), Error> {
    let path = Path::new(source);
    if (EMBEDDED.is_here)(path) {
        return Ok((EMBEDDED, path.into()));
    }
    let data = std::fs::metadata(path).map_err(|error| {
        Error::file(path, format!("{error}; a dataset is a path, or `{}` for the embedded one", embedded::NAME))
    })?;
    let mut places = vec![path.to_path_buf()];
    if data.is_dir() {
        places.extend(ARCHIVED.iter().map(|inner| path.join(inner)));
    }
    for place in places {
        // what has files of known names comes first: unpacked archives look like folders of classes, too
        if let Some(layout) = PARTICULAR.into_iter().find(|layout| (layout.is_here)(&place)) {
            return Ok((layout, place));
        }
    }
    if (FOLDER.is_here)(path) {
        return Ok((FOLDER, path.into()));
    }
    let known = [&FOLDER].into_iter().chain(&PARTICULAR).chain([&EMBEDDED]);
    let known: Vec<String> = known.map(|layout| format!("\n  {}: {}", layout.name, layout.looks)).collect();
    Err(Error::file(path, format!("not a dataset; found {}; known are{}", contents(path), known.concat())))
}

/// What is at a path, in a line.
fn contents(path: &Path) -> String {
    let Ok(entries) = std::fs::read_dir(path) else { return "a file".into() };
    let (mut folders, mut pictures, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries.filter_map(Result::ok) {
        let kind = match entry.path() {
            path if path.is_dir() => &mut folders,
            path if is_picture(&path) => &mut pictures,
            _ => &mut others,
        };
        kind.push(entry.file_name().to_string_lossy().into_owned());
    }
    let told = |mut names: Vec<String>, kind: &str| {
        names.sort();
        let examples = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 3 { ", .." } else { "" };
        (!names.is_empty()).then(|| format!("{} {kind} ({examples}{more})", names.len()))
    };
    let found = [
        told(folders, "folders without pictures"),
        told(pictures, "pictures without classes"),
        told(others, "other files"),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

#[cfg(test)]
mod tests;
