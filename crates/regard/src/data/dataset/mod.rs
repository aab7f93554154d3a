//! Pictures with classes, wherever they come from.
//!
//! One file a layout; what they share is below them: `files` reads pictures when they are asked for, `memory` keeps small
//! ones in memory, `split` draws the parts that are missing.

mod bytes;
mod cifar;
mod embedded;
mod files;
mod folder;
mod idx;
mod manifest;
mod memory;
mod packed;
pub(super) mod split;
mod sprites;
mod subset;
mod tiny_imagenet;

pub(super) use embedded::garment;
pub use files::is_picture;
pub(super) use files::{entries, is_hidden, pictures_below};
pub use subset::{Subset, take_per_class};

use serde::Serialize;
use std::fmt::{self, Debug, Display};
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Pictures to learn from.
    Train,
    /// Pictures that choose: the best epoch, a setting.
    Validation,
    /// Pictures that are measured once, at the end, and choose nothing.
    Test,
    /// Everything but the test.
    TrainAndValidation,
    All,
}

impl Part {
    /// Whether pictures of `one` of the first three parts belong to it.
    pub(super) const fn contains(self, one: Self) -> bool {
        match self {
            Self::All => true,
            Self::TrainAndValidation => matches!(one, Self::Train | Self::Validation),
            Self::Train => matches!(one, Self::Train),
            Self::Validation => matches!(one, Self::Validation),
            Self::Test => matches!(one, Self::Test),
        }
    }

    /// Whether training pictures have to be read; validation may be drawn from them.
    const fn needs_train(self) -> bool {
        !matches!(self, Self::Test)
    }

    const fn has_test(self) -> bool {
        matches!(self, Self::Test | Self::All)
    }
}

impl Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Train => "train",
            Self::Validation => "validation",
            Self::Test => "test",
            Self::TrainAndValidation => "train and validation",
            Self::All => "all",
        })
    }
}

/// The three parts of a dataset; what they read into memory is shared.
#[derive(Clone, Debug)]
pub struct Parts {
    pub train: Arc<dyn Dataset>,
    pub validation: Arc<dyn Dataset>,
    pub test: Arc<dyn Dataset>,
}

/// Where validation and test of a dataset come from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Origins {
    pub validation: Origin,
    pub test: Origin,
}

/// Where a part comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The data has it: the folder, the file or the rows.
    Own(String),
    /// The same fifth of every class, drawn once and for all.
    Fifth,
    /// The same fifth of all pictures, drawn once and for all.
    FifthOfPictures,
    /// The same tenth of every class of the training pictures, drawn once and for all.
    TenthOfTrain,
    /// There is none.
    None,
}

impl Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Own(place) => place,
            Self::Fifth => "a fifth of every class",
            Self::FifthOfPictures => "a fifth of the pictures",
            Self::TenthOfTrain => "a tenth of train",
            Self::None => "none",
        })
    }
}

impl Serialize for Origin {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A dataset by the name of an embedded one (`fashion`), or by a path whose layout is recognised.
///
/// Data without validation gets one: the same tenth of every class of its training pictures. A folder of classes without
/// parts is split: the same fifth of every class is the test, a tenth of the rest is validation. A part may be empty.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn open(source: &str, part: Part) -> Result<Arc<dyn Dataset>, Error> {
    let (layout, place) = find(source)?;
    Ok((layout.open)(&place, part)?.only(part))
}

/// Train, validation and test of a dataset, as [`open`] has them, with one reading.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn open_parts(source: &str) -> Result<Parts, Error> {
    let (layout, place) = find(source)?;
    let opened = (layout.open)(&place, Part::All)?;
    let [train, validation, test] = [Part::Train, Part::Validation, Part::Test].map(|part| opened.only(part));
    Ok(Parts { train, validation, test })
}

/// Where validation and test of a source come from.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn origins(source: &str) -> Result<Origins, Error> {
    let (layout, place) = find(source)?;
    (layout.origins)(&place)
}

/// Whether a source says itself what the test is; a fifth of what does not is the test only because something must be.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn has_parts(source: &str) -> Result<bool, Error> {
    Ok(origins(source)?.test != Origin::Fifth)
}

/// What the layout of a source is called.
///
/// # Errors
/// When there is no such thing, or its layout is none that is known.
pub fn layout(source: &str) -> Result<&'static str, Error> {
    Ok(find(source)?.0.name)
}

/// How the files of a classification dataset are laid out.
struct DatasetLayout {
    name: &'static str,
    /// What is there when it is this one.
    files: &'static str,
    is_here: fn(&Path) -> bool,
    /// At least the pictures of a part, each with its own part.
    open: fn(&Path, Part) -> Result<Opened, Error>,
    origins: fn(&Path) -> Result<Origins, Error>,
}

/// Pictures, and for each whether it is for training, for validation or for the test.
struct Opened {
    dataset: Arc<dyn Dataset>,
    parts: Vec<Part>,
}

impl Opened {
    /// Packed pictures, of which the first `train` are for training.
    fn packed(dataset: impl Dataset + 'static, train: usize) -> Self {
        Self { parts: split::split_packed(&dataset, train), dataset: Arc::new(dataset) }
    }

    /// The pictures of a part, in their order.
    fn only(&self, part: Part) -> Arc<dyn Dataset> {
        if self.parts.iter().all(|own| part.contains(*own)) {
            return self.dataset.clone();
        }
        let wanted = self.parts.iter().enumerate().filter(|(_, own)| part.contains(**own));
        Arc::new(Subset::new(self.dataset.clone(), wanted.map(|(index, _)| index).collect()))
    }
}

/// The origins of data with training and test pictures.
fn train_and_test(test: &str) -> Origins {
    Origins { validation: Origin::TenthOfTrain, test: Origin::Own(test.into()) }
}

/// Layouts with files of known names.
const BY_FILE_NAMES: [DatasetLayout; 6] = [
    DatasetLayout {
        name: "CSV manifest",
        files: "labels.csv of `file,label[,part]`, or the path of such a file",
        is_here: manifest::is_here,
        open: manifest::open,
        origins: manifest::origins,
    },
    DatasetLayout {
        name: "IDX",
        files: "train-images-idx3-ubyte[.gz] and its companions, as MNIST has them",
        is_here: idx::is_here,
        open: idx::open,
        origins: |_| Ok(train_and_test("the files t10k-*")),
    },
    DatasetLayout {
        name: "CIFAR-10, binary version",
        files: "data_batch_1.bin to data_batch_5.bin and test_batch.bin",
        is_here: cifar::ten_is_here,
        open: cifar::open_ten,
        origins: |_| Ok(train_and_test("test_batch.bin")),
    },
    DatasetLayout {
        name: "CIFAR-100, binary version",
        files: "train.bin and test.bin",
        is_here: cifar::hundred_is_here,
        open: cifar::open_hundred,
        origins: |_| Ok(train_and_test("test.bin")),
    },
    DatasetLayout {
        name: "CIFAR-10, PNG sprites",
        files: "data_batch_1.png to data_batch_5.png, test_batch.png, train_lables.json, test_lables.json",
        is_here: sprites::is_here,
        open: sprites::open,
        origins: |_| Ok(train_and_test("test_batch.png")),
    },
    DatasetLayout {
        name: "Tiny ImageNet",
        files: "wnids.txt, train/ and val/val_annotations.txt",
        is_here: tiny_imagenet::is_here,
        open: tiny_imagenet::open,
        origins: |_| Ok(train_and_test("val/")),
    },
];

const FOLDER: DatasetLayout = DatasetLayout {
    name: "folder of classes",
    files: "a folder for each class, perhaps below train/, val/ and test/",
    is_here: folder::is_here,
    open: folder::open,
    origins: folder::origins,
};

const EMBEDDED: DatasetLayout = DatasetLayout {
    name: "embedded",
    files: "the name `fashion`",
    is_here: |path| path.as_os_str() == embedded::NAME,
    open: |_, part| Ok(embedded::open(part)),
    origins: |_| Ok(train_and_test("its own")),
};

/// Folders that archives of these datasets unpack to.
const ARCHIVE_FOLDERS: [&str; 4] = ["cifar-10-batches-bin", "cifar-100-binary", "tiny-imagenet-200", "package"];

/// The layout of a source, and where it begins.
fn find(source: &str) -> Result<(DatasetLayout, PathBuf), Error> {
    let path = Path::new(source);
    if (EMBEDDED.is_here)(path) {
        return Ok((EMBEDDED, path.into()));
    }
    let data = std::fs::metadata(path).map_err(|error| {
        Error::file(path, format!("{error}; a dataset is a path, or `{}` for the embedded one", embedded::NAME))
    })?;
    let mut places = vec![path.to_path_buf()];
    if data.is_dir() {
        places.extend(ARCHIVE_FOLDERS.iter().map(|inner| path.join(inner)));
    }
    for place in places {
        // what has files of known names comes first: unpacked archives look like folders of classes, too
        if let Some(layout) = BY_FILE_NAMES.into_iter().find(|layout| (layout.is_here)(&place)) {
            return Ok((layout, place));
        }
    }
    if (FOLDER.is_here)(path) {
        return Ok((FOLDER, path.into()));
    }
    let known = [&FOLDER].into_iter().chain(&BY_FILE_NAMES).chain([&EMBEDDED]);
    let known: Vec<String> = known.map(|layout| format!("\n  {}: {}", layout.name, layout.files)).collect();
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
    let describe = |mut names: Vec<String>, kind: &str| {
        names.sort();
        let examples = names.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
        let more = if names.len() > 3 { ", .." } else { "" };
        (!names.is_empty()).then(|| format!("{} {kind} ({examples}{more})", names.len()))
    };
    let found = [
        describe(folders, "folders without pictures"),
        describe(pictures, "pictures without classes"),
        describe(others, "other files"),
    ];
    let found: Vec<String> = found.into_iter().flatten().collect();
    if found.is_empty() { "nothing".into() } else { found.join(", ") }
}

#[cfg(test)]
mod tests;
