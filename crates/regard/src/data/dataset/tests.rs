use super::*;
use image::{Rgb, RgbImage};

/// A small picture of one gray level; folders are made.
pub fn paint(path: &Path, level: u8) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(2, 2, Rgb([level; 3])).save_with_format(path, image::ImageFormat::Png).unwrap();
}

/// `path label` of every picture, below a root.
pub fn names(root: &Path, dataset: &dyn Dataset) -> Vec<String> {
    let below = |name: String| Path::new(&name).strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/");
    (0..dataset.len()).map(|index| format!("{} {}", below(dataset.name(index)), dataset.label(index))).collect()
}

#[test]
fn an_unpacked_archive_is_found_in_its_folder() {
    let root = tempfile::tempdir().unwrap();
    let inner = root.path().join("tiny-imagenet-200");
    paint(&inner.join("train/n01/images/n01_0.JPEG"), 0);
    paint(&inner.join("val/images/val_0.JPEG"), 1);
    std::fs::write(inner.join("wnids.txt"), "n01\n").unwrap();
    std::fs::write(inner.join("val/val_annotations.txt"), "val_0.JPEG\tn01\n").unwrap();
    for place in [root.path(), &inner] {
        let source = place.to_str().unwrap();
        assert_eq!(layout(source).unwrap(), "Tiny ImageNet");
        assert_eq!(open(source, Part::All).unwrap().len(), 2);
    }
}

#[test]
fn a_table_wins_over_the_folders_beside_it() {
    let root = tempfile::tempdir().unwrap();
    paint(&root.path().join("a/1.png"), 0);
    let source = root.path().to_str().unwrap();
    assert_eq!(layout(source).unwrap(), "folder of classes");
    std::fs::write(root.path().join("labels.csv"), "a/1.png,other\n").unwrap();
    assert_eq!(layout(source).unwrap(), "CSV manifest");
    assert_eq!(open(source, Part::All).unwrap().classes(), ["other"]);
}

#[test]
fn an_unknown_layout_lists_what_is_known_and_what_was_found() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().to_str().unwrap();
    let error = || open(source, Part::All).unwrap_err().to_string();
    assert!(error().starts_with(&format!("{source}: not a dataset; found nothing; known are")), "{}", error());
    for layout in BY_FILE_NAMES.iter().chain([&FOLDER, &EMBEDDED]) {
        assert!(error().contains(&format!("\n  {}: {}", layout.name, layout.files)));
    }
    (0..5).for_each(|level| paint(&root.path().join(format!("{level}.png")), level));
    std::fs::write(root.path().join("data_batch_1"), "").unwrap();
    std::fs::create_dir(root.path().join("empty")).unwrap();
    let found = "found 1 folders without pictures (empty), 5 pictures without classes (0.png, 1.png, 2.png, ..), \
                 1 other files (data_batch_1); known";
    assert!(error().contains(found), "{}", error());
    let file = root.path().join("0.png");
    assert!(open(file.to_str().unwrap(), Part::All).unwrap_err().to_string().contains("found a file"));
}

#[test]
fn a_missing_path_is_named() {
    let error = open("no/such/folder", Part::All).unwrap_err().to_string();
    assert!(error.starts_with("no/such/folder: ") && error.contains("`fashion`"), "{error}");
}
