//! A balanced subset of Fashion-MNIST, embedded: 1,200 training and 200 test pictures of every class.
//! Xiao et al. 2017, arXiv:1708.07747; MIT licence, `assets/fashion/LICENSE`.
//!
//! `examples/embed_fashion.rs` makes the files; they are unpacked once, on first use.

use std::sync::{Arc, LazyLock};

use super::memory::{PackedFile, PackedPictures, PixelOrder};
use super::packed::{SIDE, unpack};
use super::{Opened, Part};

pub const NAME: &str = "fashion";

const CLASSES: [&str; 10] =
    ["t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"];

/// Pictures of a class.
const TRAIN: usize = 1200;
const TEST: usize = 200;

static TRAIN_BLOCK: LazyLock<Arc<PackedFile>> =
    LazyLock::new(|| block("fashion train", include_bytes!("../../../assets/fashion/train.bin"), TRAIN));
static TEST_BLOCK: LazyLock<Arc<PackedFile>> =
    LazyLock::new(|| block("fashion test", include_bytes!("../../../assets/fashion/test.bin"), TEST));

pub fn class_names() -> Vec<String> {
    CLASSES.map(String::from).to_vec()
}

pub fn open(part: Part) -> Opened {
    let train = part.needs_train().then(|| TRAIN_BLOCK.clone());
    let count = train.as_ref().map_or(0, |block| block.labels.len());
    let blocks = train.into_iter().chain(part.has_test().then(|| TEST_BLOCK.clone())).collect();
    Opened::packed(
        PackedPictures::new(class_names(), [SIDE, SIDE], PixelOrder::Gray, blocks).expect("the files are ours"),
        count,
    )
}

/// `[28, 28]`: the levels of one picture of a class, of the 1,200 for training or the 200 for the test.
///
/// # Panics
/// When there is no such class or picture.
pub fn garment(test: bool, class: usize, index: usize) -> &'static [u8] {
    assert!(class < CLASSES.len() && index < if test { TEST } else { TRAIN }, "garment {index} of class {class}");
    let block: &'static PackedFile = if test { &TEST_BLOCK } else { &TRAIN_BLOCK };
    &block.pixels[(index * CLASSES.len() + class) * SIDE * SIDE..][..SIDE * SIDE]
}

/// Interleaves classes: the first picture of each class, then the second of each, and so on.
fn block(name: &str, packed: &[u8], of_class: usize) -> Arc<PackedFile> {
    let pixels = unpack(packed, of_class * CLASSES.len()).expect("the files are ours");
    let labels = (0..of_class * CLASSES.len()).map(|index| (index % CLASSES.len()) as u8).collect();
    Arc::new(PackedFile { file: name.into(), labels, pixels })
}

#[cfg(test)]
mod tests {
    use super::super::{Dataset, bytes};
    use super::*;
    use std::collections::HashSet;
    use std::path::Path;

    #[test]
    fn every_class_has_1080_and_120_and_200_pictures_and_none_is_in_two_parts() {
        let open = |part| open(part).only(part);
        let (train, test) = (open(Part::Train), open(Part::Test));
        let (validation, both) = (open(Part::Validation), open(Part::TrainAndValidation));
        assert_eq!(train.classes()[9], "ankle boot");
        for (part, expected) in [(&train, 1080), (&validation, 120), (&both, TRAIN), (&test, TEST)] {
            let mut counts = [0; 10];
            (0..part.len()).for_each(|index| counts[part.label(index)] += 1);
            assert_eq!(counts, [expected; 10]);
        }
        let pictures = |block: &'static PackedFile| block.pixels.chunks_exact(SIDE * SIDE).collect::<HashSet<_>>();
        assert!(pictures(&TRAIN_BLOCK).is_disjoint(&pictures(&TEST_BLOCK)));
        let names = |part: &dyn Dataset| (0..part.len()).map(|index| part.name(index)).collect::<HashSet<_>>();
        assert!(names(&*train).is_disjoint(&names(&*validation)));
        // drawn by their indices: always the same
        let first: Vec<String> = (0..3).map(|index| validation.name(index)).collect();
        assert_eq!(first, ["fashion train #39", "fashion train #49", "fashion train #51"]);
        let all = open(Part::All);
        assert_eq!(all.len(), 14_000);
        assert_eq!(all.picture(12_003).unwrap(), test.picture(3).unwrap());
        assert_eq!((all.name(12_003).as_str(), all.label(12_003)), ("fashion test #3", 3));
    }

    #[test]
    fn the_pictures_are_the_first_of_each_class_of_the_original() {
        let folder = Path::new("/usr/share/datasets/fashion-mnist");
        if !folder.is_dir() {
            return;
        }
        for (part, block) in [("train", &TRAIN_BLOCK), ("t10k", &TEST_BLOCK)] {
            let content = |what: &str| bytes::whole(&folder.join(format!("{part}-{what}-ubyte.gz")), 1 << 26).unwrap();
            let (pictures, labels) = (content("images-idx3"), content("labels-idx1"));
            let mut taken = [0; 10];
            for (picture, &label) in pictures[16..].chunks_exact(SIDE * SIDE).zip(&labels[8..]) {
                let own = taken[usize::from(label)] * 10 + usize::from(label);
                if let Some(ours) = block.pixels.chunks_exact(SIDE * SIDE).nth(own) {
                    assert!(ours == picture, "{part} #{own}");
                    taken[usize::from(label)] += 1;
                }
            }
            assert_eq!(taken, [block.labels.len() / 10; 10]);
        }
    }
}
