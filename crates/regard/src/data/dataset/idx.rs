//! Gray pictures in the IDX format of MNIST and Fashion-MNIST, plain or compressed by gzip.
//!
//! A header of big-endian numbers (a kind, then the sizes), then bytes. Classes are the digits, the names of
//! Fashion-MNIST in a folder with `fashion` in its path, or the lines of `classes.txt` beside the files.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::memory::{PackedFile, PackedPictures, PixelOrder};
use super::{Opened, Part, bytes};
use crate::data::{MOST_PIXELS, labels};
use crate::{Error, data::dataset::embedded};

/// Bytes, in one dimension and in three.
const LABELS: u32 = 0x0801;
const PICTURES: u32 = 0x0803;

pub fn is_here(folder: &Path) -> bool {
    ["train", "t10k"].iter().any(|part| find(folder, part, "images-idx3").is_some())
}

pub fn open(folder: &Path, part: Part) -> Result<Opened, Error> {
    let parts = [("train", part.needs_train()), ("t10k", part.has_test())];
    let (mut size, mut blocks, mut train) = (None, Vec::new(), 0);
    for (name, _) in parts.iter().filter(|(_, wanted)| *wanted) {
        let (block, found) = read(folder, name)?;
        if size.is_some_and(|size| size != found) {
            return Err(Error::File { path: block.file, reason: "pictures of another size than in training".into() });
        }
        size = Some(found);
        if *name == "train" {
            train = block.labels.len();
        }
        blocks.push(Arc::new(block));
    }
    Ok(Opened::packed(PackedPictures::new(classes(folder)?, size.unwrap_or([1, 1]), PixelOrder::Gray, blocks)?, train))
}

/// The pictures of a part, and their size.
fn read(folder: &Path, part: &str) -> Result<(PackedFile, [usize; 2]), Error> {
    let path = |what: &str| {
        find(folder, part, what)
            .ok_or_else(|| Error::file(&folder.join(format!("{part}-{what}-ubyte")), "no such file"))
    };
    let (pictures, labels) = (path("images-idx3")?, path("labels-idx1")?);
    let ([count, rows, columns], pixels) = read_idx(&pictures, PICTURES)?;
    let ([labelled], labels) = read_idx(&labels, LABELS)?;
    let wrong = |reason| Err(Error::file(&pictures, reason));
    if count > 0 && (rows == 0 || columns == 0) {
        return wrong(format!("pictures of {columns} x {rows} pixels"));
    }
    if labelled != count {
        return wrong(format!("{count} pictures, but {labelled} labels"));
    }
    Ok((PackedFile { file: pictures.display().to_string(), labels, pixels }, [rows, columns].map(|side| side as usize)))
}

/// The sizes and the bytes of a file of this kind.
fn read_idx<const D: usize>(path: &Path, kind: u32) -> Result<([u64; D], Vec<u8>), Error> {
    let mut reader = bytes::reader(path)?;
    let mut number = || {
        let mut bytes = [0; 4];
        reader.read_exact(&mut bytes).map_err(|error| Error::file(path, format!("in its header: {error}")))?;
        Ok(u32::from_be_bytes(bytes))
    };
    let found = number()?;
    if found != kind {
        return Err(Error::file(
            path,
            format!("it begins with {found:#010x} and not with {kind:#010x}: not such an IDX"),
        ));
    }
    let mut sizes = [0; D];
    for size in &mut sizes {
        *size = u64::from(number()?);
    }
    let header = || sizes.map(|size| size.to_string()).join(" x ");
    let count = sizes.iter().try_fold(1u64, |product, &size| product.checked_mul(size));
    let count = count.filter(|&count| count <= bytes::MOST && sizes.iter().skip(1).product::<u64>() <= MOST_PIXELS);
    let count = count.ok_or_else(|| Error::file(path, format!("{} bytes are too many", header())))?;
    let content = bytes::exactly(&mut reader, count, path).map_err(|error| match error {
        Error::File { path, reason } => Error::File { path, reason: format!("it says {}, but {reason}", header()) },
        other => other,
    })?;
    Ok((sizes, content))
}

/// A file by any of its usual names.
fn find(folder: &Path, part: &str, what: &str) -> Option<PathBuf> {
    let dotted = what.replace('-', ".");
    let names = [format!("{part}-{what}-ubyte"), format!("{part}-{dotted}-ubyte")];
    let paths = names.iter().flat_map(|name| [folder.join(name), folder.join(format!("{name}.gz"))]);
    paths.into_iter().find(|path| path.is_file())
}

fn classes(folder: &Path) -> Result<Vec<String>, Error> {
    let names = folder.join("classes.txt");
    if names.is_file() {
        return Ok(labels::read(&names)?.into_iter().filter(|name| !name.is_empty()).collect());
    }
    let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.into());
    let fashion = folder.to_string_lossy().to_lowercase().contains("fashion");
    Ok(if fashion { embedded::class_names() } else { (0..10).map(|digit| digit.to_string()).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write as _;

    fn idx(kind: u32, sizes: &[u32], bytes: &[u8]) -> Vec<u8> {
        let numbers = [&[kind], sizes].concat();
        numbers.into_iter().flat_map(u32::to_be_bytes).chain(bytes.iter().copied()).collect()
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        let mut packer = GzEncoder::new(Vec::new(), Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    /// Two training pictures and a test picture, of 2 rows and 3 columns.
    fn files() -> [(&'static str, Vec<u8>); 4] {
        [
            ("train-images-idx3-ubyte", idx(PICTURES, &[2, 2, 3], &[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15])),
            ("train-labels-idx1-ubyte", idx(LABELS, &[2], &[7, 0])),
            ("t10k-images-idx3-ubyte", idx(PICTURES, &[1, 2, 3], &[20, 21, 22, 23, 24, 25])),
            ("t10k-labels-idx1-ubyte", idx(LABELS, &[1], &[9])),
        ]
    }

    fn folder_with(files: &[(&str, Vec<u8>)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        files.iter().for_each(|(name, bytes)| std::fs::write(folder.path().join(name), bytes).unwrap());
        folder
    }

    #[test]
    fn pictures_are_gray_in_three_channels_plain_or_packed() {
        let packed = files().map(|(name, bytes)| (name.to_string() + ".gz", packed(&bytes)));
        let packed: Vec<(&str, Vec<u8>)> = packed.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        let dotted = files().map(|(name, bytes)| (name.replace("-idx", ".idx"), bytes));
        let dotted: Vec<(&str, Vec<u8>)> = dotted.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
        for files in [files().to_vec(), packed, dotted] {
            let folder = folder_with(&files);
            assert!(is_here(folder.path()));
            let open = |part| open(folder.path(), part).unwrap().only(part);
            let train = open(Part::TrainAndValidation);
            assert_eq!((train.len(), train.label(0), train.label(1), train.classes()[7].as_str()), (2, 7, 0, "7"));
            let picture = train.picture(1).unwrap();
            assert_eq!(picture.size(), [2, 3]);
            assert_eq!(picture.pixels()[..6], [10, 10, 10, 11, 11, 11]);
            assert_eq!(open(Part::Test).label(0), 9);
            let all = open(Part::All);
            assert_eq!((all.len(), all.picture(2).unwrap().pixels()[0]), (3, 20));
            assert!(all.name(2).contains("t10k-images") && all.name(2).ends_with(" #0"), "{}", all.name(2));
        }
    }

    #[test]
    fn a_folder_of_fashion_has_names_of_clothes() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("Fashion-MNIST");
        std::fs::create_dir(&folder).unwrap();
        files().iter().for_each(|(name, bytes)| std::fs::write(folder.join(name), bytes).unwrap());
        assert_eq!(open(&folder, Part::Test).unwrap().dataset.classes()[9], "ankle boot");
        std::fs::write(folder.join("classes.txt"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\nk\n").unwrap();
        assert_eq!(open(&folder, Part::Test).unwrap().dataset.classes().len(), 11);
    }

    #[test]
    fn a_hostile_file_is_named_with_its_reason() {
        let images = |sizes: &[u32], bytes: &[u8]| ("train-images-idx3-ubyte", idx(PICTURES, sizes, bytes));
        let labels = |sizes: &[u32], bytes: &[u8]| ("train-labels-idx1-ubyte", idx(LABELS, sizes, bytes));
        let half = packed(&files()[0].1);
        for (file, reason) in [
            (("train-images-idx3-ubyte", idx(LABELS, &[2], &[1, 2])), "it begins with 0x00000801"),
            (("train-images-idx3-ubyte", vec![0, 0, 8]), "in its header"),
            (("train-images-idx3-ubyte", Vec::new()), "in its header"),
            (images(&[2, 2, 3], &[1; 11]), "it says 2 x 2 x 3, but it ends after 11 bytes of 12"),
            (images(&[2, 2, 3], &[1; 13]), "it says 2 x 2 x 3, but it goes on after 12 bytes"),
            (images(&[u32::MAX, u32::MAX, u32::MAX], &[]), "bytes are too many"),
            (images(&[1, 1 << 15, 1 << 15], &[]), "bytes are too many"),
            (images(&[1 << 20, 28, 28], &[1; 10]), "it ends after 10 bytes"),
            (images(&[2, 0, 3], &[]), "pictures of 3 x 0 pixels"),
            (("train-images-idx3-ubyte", half[..half.len() - 9].to_vec()), "train-images-idx3-ubyte: "),
            (labels(&[3], &[1, 2, 3]), "2 pictures, but 3 labels"),
            (labels(&[2], &[1, 10]), "picture 1 has label 10, of 10 classes"),
        ] {
            let folder = folder_with(&files());
            std::fs::write(folder.path().join(file.0), &file.1).unwrap();
            let error = open(folder.path(), Part::Train).err().unwrap().to_string();
            assert!(error.contains(reason) && error.contains("train-"), "{error}");
        }
        let folder = folder_with(&files()[..1]);
        let error = open(folder.path(), Part::Train).err().unwrap().to_string();
        assert!(error.contains("train-labels-idx1-ubyte: no such file"), "{error}");
    }
}
