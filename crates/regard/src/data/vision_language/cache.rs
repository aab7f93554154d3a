//! Regions kept on disk, by the content of the picture and the boxes given for it: a detector sees every picture once.

use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{GivenBox, RegionFeatures, RegionPicture, RegionSource};
use crate::data::Picture;
use crate::{Error, file};

/// The first bytes of a file, with the version of its layout.
const MAGIC: [u8; 8] = *b"regions1";

/// A source whose answers are written into a folder.
#[derive(Clone, Debug)]
pub struct Cached {
    source: Arc<dyn RegionSource>,
    folder: PathBuf,
    /// What the regions depend on besides the picture, such as the weights of a detector.
    key: String,
}

impl Cached {
    #[must_use]
    pub fn new(source: Arc<dyn RegionSource>, folder: &Path, key: &str) -> Self {
        Self { source, folder: folder.into(), key: key.into() }
    }

    fn file(&self, picture: &Picture, boxes: &[GivenBox]) -> PathBuf {
        let mut hash = Sha256::new();
        hash.update((self.key.len() as u64).to_le_bytes());
        hash.update(&self.key);
        picture.size().iter().for_each(|side| hash.update((*side as u64).to_le_bytes()));
        hash.update(picture.pixels());
        for GivenBox { bounds, class } in boxes {
            bounds.corners().iter().for_each(|side| hash.update(side.to_le_bytes()));
            hash.update(class.map_or(u64::MAX, |class| class as u64).to_le_bytes());
        }
        let name = hash.finalize().iter().fold(String::new(), |mut name, byte| {
            write!(name, "{byte:02x}").expect("a string can be written to");
            name
        });
        self.folder.join(&name[..2]).join(format!("{}.regions", &name[2..]))
    }

    /// The content of a file; `None` if it is damaged, and then the regions are computed again.
    fn read(&self, path: &Path) -> Option<RegionFeatures> {
        let bytes = file::read_bounded(path, 1 << 28).ok()?;
        let (magic, rest) = bytes.split_first_chunk::<8>()?;
        let (counts, values) = rest.split_first_chunk::<4>()?;
        let (count, width, classes) = (u32::from_le_bytes(*counts) as usize, self.width(), self.classes());
        let (values, left) = values.as_chunks::<4>();
        let values: Vec<f32> = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let has_classes = values.len() == count.checked_mul(width + 4 + classes)?;
        if magic != &MAGIC || !left.is_empty() || !has_classes || count == 0 {
            return None;
        }
        let (features, rest) = values.split_at(count * width);
        let (boxes, classes) = rest.split_at(4 * count);
        Some(RegionFeatures {
            features: features.to_vec(),
            boxes: boxes.as_chunks::<4>().0.to_vec(),
            classes: classes.to_vec(),
        })
    }
}

fn bytes(regions: &RegionFeatures) -> Vec<u8> {
    let RegionFeatures { features, boxes, classes } = regions;
    let values = features.iter().chain(boxes.iter().flatten()).chain(classes);
    let count = (regions.len() as u32).to_le_bytes();
    [&MAGIC[..], &count].concat().into_iter().chain(values.flat_map(|value| value.to_le_bytes())).collect()
}

impl RegionSource for Cached {
    fn width(&self) -> usize {
        self.source.width()
    }

    fn classes(&self) -> usize {
        self.source.classes()
    }

    fn network_pixels(&self, size: [usize; 2]) -> usize {
        self.source.network_pixels(size)
    }

    fn regions(&self, source: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
        let picture = source.picture()?;
        let boxes = source.boxes(&picture)?;
        let path = self.file(&picture, &boxes);
        if let Some(regions) = self.read(&path) {
            return Ok(regions);
        }
        let regions = self.source.regions(source)?;
        let wrong = |error: std::io::Error| Error::file(&path, error);
        path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(wrong)?;
        file::replace(&path, &bytes(&regions)).map_err(wrong)?;
        Ok(regions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::Bounds;
    use crate::data::vision_language::{Crops, OnePicture};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Debug)]
    struct Counting(Crops, Arc<AtomicUsize>);

    impl RegionSource for Counting {
        fn width(&self) -> usize {
            self.0.width()
        }
        fn classes(&self) -> usize {
            self.0.classes()
        }
        fn regions(&self, picture: &dyn RegionPicture) -> Result<RegionFeatures, Error> {
            self.1.fetch_add(1, Ordering::Relaxed);
            self.0.regions(picture)
        }
    }

    #[test]
    fn what_was_seen_is_not_looked_at_again_and_a_damaged_file_is_made_anew() {
        let (folder, calls) = (tempfile::tempdir().unwrap(), Arc::new(AtomicUsize::new(0)));
        let source: Arc<dyn RegionSource> = Arc::new(Counting(Crops { side: 2, classes: 3 }, calls.clone()));
        let cached = Cached::new(source.clone(), folder.path(), "one");
        let picture = Picture::new([2, 2], (0..12).collect()).unwrap();
        let boxes = [GivenBox { bounds: Bounds::WHOLE, class: Some(1) }];
        let shown = OnePicture { name: "one", picture: &picture, boxes: &boxes };
        let first = cached.regions(&shown).unwrap();
        assert_eq!(cached.regions(&shown).unwrap(), first);
        assert_eq!(calls.load(Ordering::Relaxed), 1);
        // another picture, other boxes, another key
        let other = Picture::new([2, 2], (1..13).collect()).unwrap();
        cached.regions(&OnePicture { picture: &other, ..shown.clone() }).unwrap();
        cached.regions(&OnePicture { boxes: &[], ..shown.clone() }).unwrap();
        Cached::new(source, folder.path(), "two").regions(&shown).unwrap();
        assert_eq!(calls.load(Ordering::Relaxed), 4);
        let path = cached.file(&picture, &boxes);
        let whole = std::fs::read(&path).unwrap();
        for damaged in [&whole[..whole.len() - 1], &whole[..whole.len() - 4], b"", &[0; 40]] {
            std::fs::write(&path, damaged).unwrap();
            assert_eq!(cached.regions(&shown).unwrap(), first);
        }
        assert_eq!((calls.load(Ordering::Relaxed), std::fs::read(&path).unwrap()), (8, whole));
    }
}
