//! The binary versions of CIFAR-10 and CIFAR-100: records of labels and of a 32 x 32 picture in planes.
//! <https://www.cs.toronto.edu/~kriz/cifar.html>

use std::path::Path;
use std::sync::Arc;

use super::memory::{PackedFile, PackedPictures, PixelOrder};
use super::{Opened, Part, bytes};
use crate::Error;
use crate::data::labels;

/// The classes of CIFAR-10.
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

pub const SIDE: usize = 32;

/// Bytes of a picture.
pub const BYTES: usize = 3 * SIDE * SIDE;

/// The differences between CIFAR-10 and CIFAR-100.
struct Version {
    train: &'static [&'static str],
    test: &'static str,
    /// Bytes before a picture; the last of them is the class.
    labels: usize,
    classes: usize,
    names: &'static str,
}

const TEN: Version = Version {
    train: &["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"],
    test: "test_batch.bin",
    labels: 1,
    classes: 10,
    names: "batches.meta.txt",
};

/// The fine label is the class, not the coarse one.
const HUNDRED: Version =
    Version { train: &["train.bin"], test: "test.bin", labels: 2, classes: 100, names: "fine_label_names.txt" };

pub fn ten_is_here(folder: &Path) -> bool {
    TEN.is_here(folder)
}

pub fn hundred_is_here(folder: &Path) -> bool {
    HUNDRED.is_here(folder)
}

pub fn open_ten(folder: &Path, part: Part) -> Result<Opened, Error> {
    TEN.open(folder, part)
}

pub fn open_hundred(folder: &Path, part: Part) -> Result<Opened, Error> {
    HUNDRED.open(folder, part)
}

impl Version {
    fn is_here(&self, folder: &Path) -> bool {
        folder.join(self.train[0]).is_file() || folder.join(self.test).is_file()
    }

    fn open(&self, folder: &Path, part: Part) -> Result<Opened, Error> {
        let read = |file: &str| self.read(&folder.join(file)).map(Arc::new);
        let train = self.train.iter().filter(|_| part.needs_train());
        let mut blocks = train.map(|file| read(file)).collect::<Result<Vec<_>, _>>()?;
        let count = blocks.iter().map(|block| block.labels.len()).sum();
        if part.has_test() {
            blocks.push(read(self.test)?);
        }
        Ok(Opened::packed(
            PackedPictures::new(self.class_names(folder)?, [SIDE, SIDE], PixelOrder::Planes, blocks)?,
            count,
        ))
    }

    fn read(&self, path: &Path) -> Result<PackedFile, Error> {
        let content = bytes::whole(path, bytes::MOST)?;
        let record = self.labels + BYTES;
        if content.is_empty() || content.len() % record != 0 {
            return Err(Error::file(path, format!("{} bytes are not records of {record}", content.len())));
        }
        let mut block = PackedFile { file: path.display().to_string(), labels: Vec::new(), pixels: Vec::new() };
        block.pixels.reserve_exact(content.len() / record * BYTES);
        for record in content.chunks_exact(record) {
            block.labels.push(record[self.labels - 1]);
            block.pixels.extend(&record[self.labels..]);
        }
        Ok(block)
    }

    fn class_names(&self, folder: &Path) -> Result<Vec<String>, Error> {
        let path = folder.join(self.names);
        if !path.is_file() {
            let numbers = || (0..self.classes).map(|class| class.to_string()).collect();
            return Ok(if self.classes == CLASSES.len() { CLASSES.map(String::from).to_vec() } else { numbers() });
        }
        let names: Vec<String> = labels::read(&path)?.into_iter().filter(|name| !name.is_empty()).collect();
        if names.len() != self.classes {
            return Err(Error::file(&path, format!("{} names for {} classes", names.len(), self.classes)));
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A picture whose red is `level`, with green and blue one and two higher.
    fn record(labels: &[u8], level: u8) -> Vec<u8> {
        let plane = |channel| [level + channel; SIDE * SIDE];
        [labels, &plane(0), &plane(1), &plane(2)].concat()
    }

    fn ten() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, file) in TEN.train.iter().chain([&TEN.test]).enumerate() {
            let number = number as u8;
            let bytes = [record(&[number], 10 * number), record(&[9 - number], 100)].concat();
            std::fs::write(folder.path().join(file), bytes).unwrap();
        }
        folder
    }

    #[test]
    fn batches_follow_each_other_and_planes_become_pixels() {
        let folder = ten();
        assert!(ten_is_here(folder.path()) && !hundred_is_here(folder.path()));
        let open = |part| open_ten(folder.path(), part).unwrap().only(part);
        let train = open(Part::TrainAndValidation);
        assert_eq!((train.len(), train.classes()), (10, &CLASSES.map(String::from)[..]));
        assert_eq!((train.label(4), train.label(5)), (2, 7));
        assert!(train.name(5).ends_with("data_batch_3.bin #1"));
        let picture = train.picture(4).unwrap();
        assert_eq!((picture.size(), &picture.pixels()[..6]), ([32, 32], &[20, 21, 22, 20, 21, 22][..]));
        assert_eq!(open(Part::Test).label(0), 5);
        assert_eq!(open(Part::All).len(), 12);
    }

    #[test]
    fn the_fine_label_of_cifar_100_is_the_class() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train.bin"), record(&[3, 99], 5)).unwrap();
        let open = || open_hundred(folder.path(), Part::Train).unwrap().only(Part::Train);
        let train = open();
        assert_eq!((train.len(), train.label(0), train.classes()[99].as_str()), (1, 99, "99"));
        let names: Vec<String> = (0..100).map(|class| format!("name {class}")).collect();
        std::fs::write(folder.path().join("fine_label_names.txt"), names.join("\n") + "\n\n").unwrap();
        assert_eq!(open().classes()[99], "name 99");
    }

    #[test]
    fn a_hostile_file_is_named_with_its_reason() {
        let cut = record(&[1], 1)[..3000].to_vec();
        for (file, bytes, reason) in [
            ("data_batch_2.bin", cut, "3000 bytes are not records of 3073"),
            ("data_batch_2.bin", Vec::new(), "0 bytes are not records of 3073"),
            ("data_batch_2.bin", record(&[10], 1), "picture 0 has label 10, of 10 classes"),
            ("batches.meta.txt", b"airplane\n".to_vec(), "1 names for 10 classes"),
        ] {
            let folder = ten();
            std::fs::write(folder.path().join(file), bytes).unwrap();
            let error = open_ten(folder.path(), Part::Train).err().unwrap().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        }
        let folder = ten();
        std::fs::remove_file(folder.path().join("data_batch_4.bin")).unwrap();
        assert!(open_ten(folder.path(), Part::Train).err().unwrap().to_string().contains("data_batch_4.bin: "));
        assert!(open_ten(folder.path(), Part::Test).is_ok(), "what is not asked for may be missing");
    }
}
