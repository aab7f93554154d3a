//! Features of regions from a file of bottom-up attention (Anderson et al. 2018, arXiv:1707.07998): a line for each picture with
//! `image_id`, width, height, number of boxes, and boxes and features as 32-bit floats in base64, between tabs.
//!
//! The file is read once to find its lines, and then line by line as pictures come: that of COCO has dozens of gigabytes.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use super::{RegionFeatures, RegionPicture, RegionSource};
use crate::{Error, file};

/// The most bytes of a line: a thousand regions of 4,096 numbers.
const MOST_LINE: u64 = 1 << 25;
/// The most lines.
const MOST_PICTURES: usize = 1 << 24;

/// Regions by the numbers at the end of pictures' names.
#[derive(Debug)]
pub struct StoredRegions {
    path: PathBuf,
    /// Where the line of each picture begins.
    lines: HashMap<u64, u64>,
    width: usize,
}

impl StoredRegions {
    /// Finds the lines of a file.
    ///
    /// # Errors
    /// When it cannot be read, or a line is none of such a file; the error names it.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let mut reader = BufReader::with_capacity(1 << 20, file::open_regular(path)?);
        let (mut lines, mut start, mut width, mut number) = (HashMap::new(), 0, 0, 0usize);
        let mut line = Vec::new();
        loop {
            line.clear();
            number += 1;
            let wrong = |reason: String| Error::file(path, format!("line {number}: {reason}"));
            let read = reader.by_ref().take(MOST_LINE + 1).read_until(b'\n', &mut line);
            let read = read.map_err(|error| wrong(error.to_string()))? as u64;
            if read == 0 {
                break;
            }
            if read > MOST_LINE || number > MOST_PICTURES {
                return Err(wrong(format!("more than {MOST_LINE} bytes, or more than {MOST_PICTURES} lines")));
            }
            if line.iter().any(|byte| !byte.is_ascii_whitespace()) {
                let fields = Fields::of(&line).map_err(wrong)?;
                if width == 0 {
                    width = fields.regions().map_err(wrong)?.1;
                }
                lines.insert(fields.image, start);
            }
            start += read;
        }
        if lines.is_empty() {
            return Err(Error::file(path, "no line of `image_id`, width, height, number of boxes, boxes and features"));
        }
        Ok(Self { path: path.into(), lines, width })
    }

    /// Number of pictures.
    #[must_use]
    pub fn len(&self) -> usize {
        self.lines.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// The number at the end of a file's name without its ending: 9 for `COCO_train2014_000000000009.jpg`.
#[must_use]
pub fn image_number(name: &str) -> Option<u64> {
    let stem = Path::new(name).file_stem()?.to_string_lossy().into_owned();
    let digits = stem.len() - stem.trim_end_matches(|letter: char| letter.is_ascii_digit()).len();
    stem[stem.len() - digits..].parse().ok()
}

/// The columns of a line.
struct Fields<'a> {
    image: u64,
    /// Width and height.
    size: [f64; 2],
    count: usize,
    boxes: &'a [u8],
    features: &'a [u8],
}

impl<'a> Fields<'a> {
    fn of(line: &'a [u8]) -> Result<Self, String> {
        let columns: Vec<&[u8]> = line.trim_ascii_end().split(|byte| *byte == b'\t').collect();
        let [image, width, height, count, boxes, features] = columns[..] else {
            return Err(format!("{} columns between tabs, not 6", columns.len()));
        };
        let text = |name: &str, bytes: &[u8]| {
            std::str::from_utf8(bytes).map(str::trim).map(String::from).map_err(|_| format!("`{name}` is not a number"))
        };
        let number = |name: &str, bytes: &[u8]| {
            text(name, bytes)?.parse::<f64>().map_err(|_| format!("`{name}` is not a number"))
        };
        let size = [number("image_w", width)?, number("image_h", height)?];
        let image = text("image_id", image)?.parse().map_err(|_| "`image_id` is not a number".to_string())?;
        let count = text("num_boxes", count)?.parse().map_err(|_| "`num_boxes` is not a number".to_string())?;
        if !size.iter().all(|side| *side >= 1.0 && side.is_finite()) || !(1..=10_000).contains(&count) {
            return Err(format!("{} x {} pixels with {count} boxes", size[0], size[1]));
        }
        Ok(Self { image, size, count, boxes, features })
    }

    /// The regions and the numbers of a feature.
    fn regions(&self) -> Result<(RegionFeatures, usize), String> {
        let boxes = floats("boxes", self.boxes)?;
        let features = floats("features", self.features)?;
        if boxes.len() != 4 * self.count || features.is_empty() || !features.len().is_multiple_of(self.count) {
            let (boxes, features, count) = (boxes.len(), features.len(), self.count);
            return Err(format!("{boxes} numbers of `boxes` and {features} of `features` are not {count} regions"));
        }
        if !boxes.iter().chain(&features).all(|value| value.is_finite()) {
            return Err("a number of `boxes` or `features` is not finite".into());
        }
        let [width, height] = self.size.map(|side| side as f32);
        let share = |corners: &[f32; 4]| {
            let [x1, y1, x2, y2] = *corners;
            [x1 / width, y1 / height, x2 / width, y2 / height].map(|side| side.clamp(0.0, 1.0))
        };
        let boxes = boxes.as_chunks::<4>().0.iter().map(share).collect();
        let width = features.len() / self.count;
        Ok((RegionFeatures { features, boxes, classes: Vec::new() }, width))
    }
}

fn floats(name: &str, text: &[u8]) -> Result<Vec<f32>, String> {
    let bytes = STANDARD.decode(text).map_err(|error| format!("`{name}` is not base64: {error}"))?;
    let (values, rest) = bytes.as_chunks::<4>();
    if rest.is_empty() {
        Ok(values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect())
    } else {
        Err(format!("`{name}` has {} bytes, which are no 32-bit floats", bytes.len()))
    }
}

impl RegionSource for StoredRegions {
    fn width(&self) -> usize {
        self.width
    }

    fn classes(&self) -> usize {
        0
    }

    fn regions(&self, picture: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let name = picture.name();
        let start = image_number(&name).and_then(|number| self.lines.get(&number)).ok_or_else(|| {
            let reason = format!("no features of it in {}", self.path.display());
            Error::File { path: name.clone(), reason }
        })?;
        let wrong = |reason: String| Error::file(&self.path, format!("the line of {name}: {reason}"));
        let failed = |error: std::io::Error| wrong(error.to_string());
        let mut file = File::open(&self.path).map_err(failed)?;
        file.seek(SeekFrom::Start(*start)).map_err(failed)?;
        let mut line = Vec::new();
        BufReader::new(file.take(MOST_LINE)).read_until(b'\n', &mut line).map_err(failed)?;
        let (regions, width) = Fields::of(&line).and_then(|fields| fields.regions()).map_err(wrong)?;
        if width == self.width {
            Ok(regions)
        } else {
            Err(wrong(format!("features of {width} numbers, not {}", self.width)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Picture;
    use crate::data::vision_language::OnePicture;

    fn line(image: u64, boxes: &[f32], features: &[f32]) -> String {
        let encoded =
            |values: &[f32]| STANDARD.encode(values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>());
        format!("{image}\t200\t100\t{}\t{}\t{}\n", boxes.len() / 4, encoded(boxes), encoded(features))
    }

    fn regions(source: &StoredRegions, name: &str) -> Result<RegionFeatures, Error> {
        let picture = Picture::new([1, 1], vec![0; 3]).unwrap();
        source.regions(&OnePicture { name, picture: &picture, boxes: &[] })
    }

    #[test]
    fn lines_are_found_by_the_number_of_a_picture_whatever_their_order() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features.tsv");
        let two = line(7, &[0.0, 0.0, 100.0, 50.0, 20.0, 10.0, 220.0, 90.0], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        std::fs::write(&path, [two, line(123, &[0.0; 4], &[9.0, 8.0, 7.0])].concat()).unwrap();
        let source = StoredRegions::open(&path).unwrap();
        assert_eq!((source.len(), source.width()), (2, 3));
        let seven = regions(&source, "val/COCO_val2014_000000000007.jpg").unwrap();
        assert_eq!(seven.boxes, [[0.0, 0.0, 0.5, 0.5], [0.1, 0.1, 1.0, 0.9]]);
        assert_eq!(seven.features, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(regions(&source, "123.png").unwrap().features, [9.0, 8.0, 7.0]);
        assert!(regions(&source, "8.png").unwrap_err().to_string().contains("8.png: no features of it in"));
        assert!(regions(&source, "photo.png").is_err());
    }

    #[test]
    fn a_broken_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("features.tsv");
        let told = |text: &str| {
            std::fs::write(&path, text).unwrap();
            StoredRegions::open(&path).unwrap_err().to_string()
        };
        assert!(told("7\t200\t100\t1\tAAAA\n").contains("line 1: 5 columns"));
        assert!(told("7\t200\t100\t1\t!\tAAAAAA==\n").contains("`boxes` is not base64"));
        assert!(told("7\t200\t100\t9\tAAAAAA==\tAAAAAA==\n").contains("are not 9 regions"));
        assert!(told("7\t0\t100\t1\tAAAAAA==\tAAAAAA==\n").contains("0 x 100 pixels"));
        assert!(told(&line(7, &[f32::NAN; 4], &[0.0])).contains("not finite"));
        assert!(told("\n\n").contains("no line of `image_id`"));
    }
}
