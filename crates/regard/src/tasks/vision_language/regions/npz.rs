//! Regions in UNITER's files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::data::vision_language::{RegionFeatures, RegionPicture, RegionSource, image_number};
use crate::{Error, weights};

/// UNITER's features: a `.npz` file for each picture with `features`, `norm_bb` and perhaps `soft_labels`.
#[derive(Debug)]
pub(super) struct NpzRegions {
    files: HashMap<u64, PathBuf>,
    width: usize,
    classes: usize,
}

impl NpzRegions {
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let wrong = |error: std::io::Error| Error::file(folder, error);
        let mut files = HashMap::new();
        for entry in std::fs::read_dir(folder).map_err(wrong)? {
            let path = entry.map_err(wrong)?.path();
            let number = image_number(&path.to_string_lossy());
            if let Some(number) = number.filter(|_| path.extension().is_some_and(|ending| ending == "npz")) {
                files.insert(number, path);
            }
        }
        let first = files.values().min().ok_or_else(|| Error::file(folder, "no .npz file with a number at its end"))?;
        let regions = read_npz(first)?;
        let (width, classes) = (regions.features.len() / regions.len(), regions.classes.len() / regions.len());
        Ok(Self { files, width, classes })
    }
}

fn read_npz(path: &Path) -> Result<RegionFeatures, Error> {
    let arrays = weights::read(path)?.tensors;
    let array = |name: &str| {
        let data = arrays.get(name)?;
        let values: Vec<f32> = data.iter::<f32>().collect();
        values.iter().all(|value| value.is_finite()).then_some((data.shape().to_vec(), values))
    };
    let needed =
        |name: &str| array(name).ok_or_else(|| Error::file(path, format!("no array `{name}` of finite numbers")));
    let ((shape, features), (box_shape, boxes)) = (needed("features")?, needed("norm_bb")?);
    let (&[count, _], &[own, sides]) = (&shape[..], &box_shape[..]) else {
        return Err(Error::file(path, "`features` and `norm_bb` must be rows of numbers"));
    };
    if count == 0 || own != count || sides < 4 {
        return Err(Error::file(path, format!("{count} rows of `features`, {own} of `norm_bb` with {sides} numbers")));
    }
    let boxes = boxes.chunks_exact(sides).map(|row| [row[0], row[1], row[2], row[3]]).collect();
    let classes =
        array("soft_labels").filter(|(shape, _)| shape.first() == Some(&count)).map_or(Vec::new(), |(_, all)| all);
    Ok(RegionFeatures { features, boxes, classes })
}

impl RegionSource for NpzRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn classes(&self) -> usize {
        self.classes
    }

    fn regions(&self, picture: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let name = picture.name();
        let path = image_number(&name).and_then(|number| self.files.get(&number));
        let missing = || Error::File { path: name.clone(), reason: "no .npz file with its number".into() };
        let path = path.ok_or_else(missing)?;
        let regions = read_npz(path)?;
        let count = regions.len();
        let fits = regions.features.len() == count * self.width && regions.classes.len() == count * self.classes;
        if fits { Ok(regions) } else { Err(Error::file(path, "regions of another width than those of the first file")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Picture;
    use crate::data::vision_language::OnePicture;
    use std::io::{Cursor, Write as _};

    fn array(shape: &str, values: &[f32]) -> Vec<u8> {
        let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}\n");
        let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
        bytes.extend((header.len() as u16).to_le_bytes());
        bytes.extend(header.as_bytes());
        values.iter().for_each(|value| bytes.extend(value.to_le_bytes()));
        bytes
    }

    #[test]
    fn files_of_uniter_are_found_by_number_and_a_broken_one_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, arrays: &[(&str, Vec<u8>)]| {
            let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
            for (name, bytes) in arrays {
                archive
                    .start_file(
                        format!("{name}.npy"),
                        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored),
                    )
                    .unwrap();
                archive.write_all(bytes).unwrap();
            }
            std::fs::write(folder.path().join(name), archive.finish().unwrap().into_inner()).unwrap();
        };
        let boxes = array("(2, 6)", &[0.0, 0.1, 0.5, 0.6, 0.5, 0.5, 0.2, 0.2, 1.0, 1.0, 0.8, 0.8]);
        let labels = array("(2, 3)", &[0.1, 0.2, 0.7, 0.5, 0.5, 0.0]);
        let features = array("(2, 2)", &[1.0, 2.0, 3.0, 4.0]);
        let all = [("features", features), ("norm_bb", boxes.clone()), ("soft_labels", labels)];
        write("coco_val2014_000000000009.npz", &all);
        let source = NpzRegions::open(folder.path()).unwrap();
        let picture = Picture::new([1, 1], vec![0; 3]).unwrap();
        let regions = |name| source.regions(&OnePicture { name, picture: &picture, boxes: &[] });
        let nine = regions("COCO_val2014_000000000009.jpg").unwrap();
        assert_eq!((nine.features.as_slice(), nine.boxes[1]), (&[1.0, 2.0, 3.0, 4.0][..], [0.2, 0.2, 1.0, 1.0]));
        assert_eq!((source.width(), source.classes(), nine.classes.len()), (2, 3, 6));
        assert!(regions("8.jpg").unwrap_err().to_string().starts_with("8.jpg: no .npz file"));
        write("coco_val2014_000000000009.npz", &[("norm_bb", boxes)]);
        assert!(regions("9.jpg").unwrap_err().to_string().contains("no array `features`"));
    }
}
