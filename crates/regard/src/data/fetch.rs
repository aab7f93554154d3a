//! Public datasets from their official addresses.
//!
//! Files go to `FOLDER/NAME.partial`, where interrupted downloads continue. They are verified by SHA-256,
//! unpacked and opened; only then is the folder renamed to `NAME`.

mod unpack;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::dataset::{self, Part};
use crate::Error;
use crate::download::{Failure, Progress, download, sha256};

/// A public dataset.
#[derive(Clone, Copy, Debug)]
pub struct Public {
    pub name: &'static str,
    pub about: &'static str,
    /// The address of its files.
    base: &'static str,
    files: &'static [Remote],
    /// Numbers of classes, of training and of test pictures.
    counts: [usize; 3],
}

/// A file of a dataset.
#[derive(Clone, Copy, Debug)]
struct Remote {
    name: &'static str,
    sha256: &'static str,
}

/// Every dataset that can be fetched.
///
/// The hashes are those of TensorFlow Datasets for the same addresses; that of Tiny ImageNet, for which its authors
/// published none, is the one that independent users report.
pub const PUBLIC: [Public; 5] = [
    Public {
        name: "mnist",
        about: "handwritten digits, 28 x 28, gray: 60,000 and 10,000, 12 MB",
        // its home, yann.lecun.com, refuses downloads; this is the mirror of the Common Visual Data Foundation
        base: "https://storage.googleapis.com/cvdf-datasets/mnist",
        files: &[
            Remote {
                name: "train-images-idx3-ubyte.gz",
                sha256: "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            },
            Remote {
                name: "train-labels-idx1-ubyte.gz",
                sha256: "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            },
            Remote {
                name: "t10k-images-idx3-ubyte.gz",
                sha256: "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            },
            Remote {
                name: "t10k-labels-idx1-ubyte.gz",
                sha256: "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
            },
        ],
        counts: [10, 60_000, 10_000],
    },
    Public {
        name: "fashion-mnist",
        about: "clothes, 28 x 28, gray: 60,000 and 10,000, 31 MB",
        base: "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
        files: &[
            Remote {
                name: "train-images-idx3-ubyte.gz",
                sha256: "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
            },
            Remote {
                name: "train-labels-idx1-ubyte.gz",
                sha256: "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
            },
            Remote {
                name: "t10k-images-idx3-ubyte.gz",
                sha256: "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
            },
            Remote {
                name: "t10k-labels-idx1-ubyte.gz",
                sha256: "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            },
        ],
        counts: [10, 60_000, 10_000],
    },
    Public {
        name: "cifar-10",
        about: "things and animals, 32 x 32: 50,000 and 10,000 of 10 classes, 170 MB",
        base: "https://www.cs.toronto.edu/~kriz",
        files: &[Remote {
            name: "cifar-10-binary.tar.gz",
            sha256: "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
        }],
        counts: [10, 50_000, 10_000],
    },
    Public {
        name: "cifar-100",
        about: "things and animals, 32 x 32: 50,000 and 10,000 of 100 classes, 169 MB",
        base: "https://www.cs.toronto.edu/~kriz",
        files: &[Remote {
            name: "cifar-100-binary.tar.gz",
            sha256: "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
        }],
        counts: [100, 50_000, 10_000],
    },
    Public {
        name: "tiny-imagenet",
        about: "a part of ImageNet, 64 x 64: 100,000 and 10,000 of 200 classes, 248 MB",
        base: "http://cs231n.stanford.edu",
        files: &[Remote {
            name: "tiny-imagenet-200.zip",
            sha256: "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
        }],
        counts: [200, 100_000, 10_000],
    },
];

/// Progress of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchStep<'a> {
    /// A file is being downloaded.
    Download { file: &'a str, progress: Progress },
    /// This many files were unpacked from an archive.
    Unpack { files: usize },
    /// All files are there; the dataset is opened to verify it.
    Open,
}

/// A dataset by its name.
///
/// # Errors
/// When there is none; the error lists those there are.
pub fn public(name: &str) -> Result<Public, Error> {
    PUBLIC.into_iter().find(|public| public.name == name).ok_or_else(|| {
        let known = PUBLIC.map(|public| public.name).join(", ");
        Error::Fetch { address: name.into(), reason: format!("not a dataset that can be fetched; known: {known}") }
    })
}

/// Options of a fetch.
#[derive(Clone, Debug)]
pub struct Options {
    /// A mirror: a web folder with the same files.
    pub from: Option<String>,
    /// How long to wait before an interrupted download continues.
    pub pause: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { from: None, pause: Duration::from_secs(1) }
    }
}

impl Public {
    /// Fetches it into `folder/NAME`, unless it is there already, and returns that path.
    ///
    /// # Errors
    /// When it cannot be reached, has another hash, or cannot be written.
    pub fn fetch(&self, folder: &Path, options: &Options, on: &mut dyn FnMut(FetchStep<'_>)) -> Result<PathBuf, Error> {
        let place = folder.join(self.name);
        if place.exists() {
            on(FetchStep::Open);
            return self.verify(&place).map(|()| place);
        }
        let partial = folder.join(format!("{}.partial", self.name));
        let local = |error: std::io::Error| Error::file(&partial, error);
        std::fs::create_dir_all(&partial).map_err(local)?;
        let base = options.from.as_deref().unwrap_or(self.base).trim_end_matches('/');
        for remote in self.files {
            let file = partial.join(remote.name);
            remote.download(base, &file, options.pause, on)?;
            if unpack::is_archive(&file) {
                unpack::unpack(&file, &partial, &mut |files| on(FetchStep::Unpack { files }))?;
            }
        }
        on(FetchStep::Open);
        self.verify(&partial)?;
        for archive in self.files.iter().map(|remote| partial.join(remote.name)).filter(|file| unpack::is_archive(file))
        {
            std::fs::remove_file(archive).map_err(local)?;
        }
        std::fs::rename(&partial, &place).map_err(local)?;
        Ok(place)
    }

    /// Opens the dataset and compares its counts.
    fn verify(&self, place: &Path) -> Result<(), Error> {
        let source = place.to_str().ok_or_else(|| Error::file(place, "its name is not UTF-8"))?;
        let (train, test) = (dataset::open(source, Part::TrainAndValidation)?, dataset::open(source, Part::Test)?);
        let [classes, trained, tested] = self.counts;
        let found = [train.classes().len(), train.len(), test.len()];
        if found != self.counts {
            let [c, r, t] = found;
            let reason = format!(
                "it has {r} training and {t} test pictures of {c} classes; {} has {trained} and {tested} of {classes}",
                self.name
            );
            return Err(Error::file(place, reason));
        }
        Ok(())
    }
}

impl Remote {
    fn download(&self, base: &str, to: &Path, pause: Duration, on: &mut dyn FnMut(FetchStep<'_>)) -> Result<(), Error> {
        // an earlier fetch, or a user without a network, put it here
        if to.is_file() {
            let found =
                File::open(to).and_then(|mut file| sha256(&mut file)).map_err(|error| Error::file(to, error))?;
            let reason = || format!("its SHA-256 is {found}, and should be {}: remove it", self.sha256);
            return if found == self.sha256 { Ok(()) } else { Err(Error::file(to, reason())) };
        }
        let url = format!("{base}/{}", self.name);
        let progress = &mut |progress| on(FetchStep::Download { file: self.name, progress });
        download(&url, to, Some(self.sha256.into()), pause, progress).map_err(|failure| {
            let reason = match failure {
                Failure::Missing => "no such file on the server".into(),
                Failure::Interrupted(reason) => format!("{reason}; what came is kept"),
                Failure::Final(reason) => reason,
            };
            let hint = format!("without a network, put the file at {}", to.display());
            Error::Fetch { address: url, reason: format!("{reason}; {hint}") }
        })
    }
}

#[cfg(test)]
mod tests;
