use super::*;
use crate::testing::Fixture;
use std::io::Write as _;
use std::path::PathBuf;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/pictures")
}

fn open(name: &str) -> Picture {
    Picture::open(&folder().join(name)).unwrap()
}

/// Largest difference of a level.
fn difference(a: &Picture, b: &Picture) -> u8 {
    assert_eq!(a.size(), b.size());
    a.pixels().iter().zip(b.pixels()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn lossless_pictures_of_every_kind_are_those_of_pil() {
    let fixture = Fixture::load("pictures");
    for name in [
        "rgb.png",
        "alpha.png",
        "gray_alpha.png",
        "gray.png",
        "one_bit.png",
        "palette.png",
        "palette_transparent.png",
        "palette.gif",
        "transparent.gif",
        "two_frames.gif",
        "rgb.bmp",
        "palette.bmp",
        "lossless.webp",
        "alpha.webp",
        "turned_6.png",
        "turned_6.webp",
    ] {
        assert_eq!(difference(&open(name), &fixture.picture(name)), 0, "{name}");
    }
    assert!(difference(&open("gray_16.png"), &fixture.picture("gray_16.png")) <= 1);
}

#[test]
fn lossy_pictures_are_those_of_pil_to_a_few_levels() {
    let fixture = Fixture::load("pictures");
    let turned = (2..=8).map(|orientation| format!("turned_{orientation}.jpg"));
    let others = ["rgb.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg", "lossy.webp"].map(String::from);
    for name in turned.chain(others) {
        let difference = difference(&open(&name), &fixture.picture(&name));
        assert!(difference <= 3, "{name} differs by {difference} levels");
    }
}

#[test]
fn resizing_is_that_of_pil_to_the_bit() {
    let fixture = Fixture::load("pictures");
    let picture = open("rgb.png");
    for (filter, word) in [(Filter::Bicubic, "bicubic"), (Filter::Bilinear, "bilinear")] {
        for size in [[7, 9], [16, 24], [40, 31], [5, 60]] {
            let name = format!("{word}_{}x{}", size[0], size[1]);
            assert_eq!(difference(&picture.resize(size, filter), &fixture.picture(&name)), 0, "{name}");
        }
    }
}

#[test]
fn a_part_of_a_resized_picture_is_the_part_of_it() {
    let picture = open("rgb.png");
    for (whole, corner, part) in [
        ([20, 31], [3, 4], [10, 20]),
        ([7, 11], [1, 2], [5, 7]),
        ([16, 24], [2, 3], [4, 5]),
        ([33, 47], [0, 0], [33, 47]),
    ] {
        let all = picture.resize(whole, Filter::Bicubic);
        let rows = all.pixels().chunks(3 * whole[1]).skip(corner[0]).take(part[0]);
        let cut = rows.flat_map(|row| row[3 * corner[1]..3 * (corner[1] + part[1])].to_vec());
        let cut: Vec<u8> = cut.collect();
        let parts = [0, 1].map(|axis| corner[axis]..corner[axis] + part[axis]);
        let direct = resample(picture.pixels(), picture.size(), whole, parts, Filter::Bicubic);
        assert!(direct == cut, "{part:?} of {whole:?}");
    }
}

#[test]
fn sizes_and_middles_are_those_of_torchvision_and_timm() {
    assert_eq!(resized([500, 333], 0.875, [224, 224]), [384, 256]);
    assert_eq!(resized([333, 500], 0.875, [224, 224]), [256, 384]);
    assert_eq!(resized([500, 400], 0.9, [224, 224]), [310, 248]);
    assert_eq!(resized([500, 400], 1.0, [384, 384]), [480, 384]);
    assert_eq!(resized([100, 100], 1.0, [32, 64]), [64, 64]);
    assert_eq!(resized([1, 1], 0.875, [224, 224]), [256, 256]);
    assert_eq!(resized([100, 100], 2.0, [32, 32]), [32, 32], "a crop larger than the picture is the picture");
}

#[test]
fn a_prepared_picture_is_normalised_channel_by_channel() {
    let picture = Picture::new([2, 3], [255, 0, 51].repeat(6)).unwrap();
    let prepared = prepare(&picture, &Preprocess::DEIT, [4, 5]);
    assert_eq!(prepared.len(), 3 * 4 * 5);
    for (channel, level) in [1.0, 0.0, 0.2].into_iter().enumerate() {
        let value = (level - Preprocess::DEIT.mean[channel]) / Preprocess::DEIT.std[channel];
        for x in &prepared[channel * 20..][..20] {
            assert!((x - value).abs() < 1e-6, "channel {channel}: {x}, not {value}");
        }
    }
}

#[test]
fn rows_are_rows() {
    // red above, blue below
    let picture = Picture::new([8, 4], [[255, 0, 0].repeat(16), [0, 0, 255].repeat(16)].concat()).unwrap();
    let whole = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..Preprocess::WHOLE };
    let prepared = prepare(&picture, &whole, [8, 4]);
    assert_eq!(prepared[..16], [1.0; 16]);
    assert_eq!(prepared[16..32], [0.0; 16]);
    assert_eq!(prepared[64 + 16..], [1.0; 16]);
}

#[test]
fn pictures_of_any_shape_are_prepared_without_much_memory() {
    for size in [[1, 1], [1, 60_000], [60_000, 1], [3, 5000]] {
        let picture = Picture::new(size, vec![90; size[0] * size[1] * 3]).unwrap();
        let prepared = prepare(&picture, &Preprocess::VIT, [224, 224]);
        assert_eq!(prepared.len(), 3 * 224 * 224);
        assert!(prepared.iter().all(|x| (x - (90.0 / 255.0 - 0.5) / 0.5).abs() < 0.01), "{size:?}");
    }
}

/// The header of a BMP or PNG with a size that it does not have.
fn claiming(name: &str, width: u32, height: u32) -> Vec<u8> {
    let mut bytes = std::fs::read(folder().join(name)).unwrap();
    if bytes.starts_with(b"BM") {
        bytes[18..22].copy_from_slice(&width.to_le_bytes());
        bytes[22..26].copy_from_slice(&height.to_le_bytes());
    } else {
        bytes[16..20].copy_from_slice(&width.to_be_bytes());
        bytes[20..24].copy_from_slice(&height.to_be_bytes());
        let mut check = 0xffff_ffffu32;
        for byte in &bytes[12..29] {
            check ^= u32::from(*byte);
            for _ in 0..8 {
                check = if check & 1 == 1 { check >> 1 ^ 0xedb8_8320 } else { check >> 1 };
            }
        }
        bytes[29..33].copy_from_slice(&(!check).to_be_bytes());
    }
    bytes
}

#[test]
fn a_picture_of_thirty_thousand_by_thirty_thousand_is_refused_by_its_size() {
    for name in ["rgb.png", "rgb.bmp"] {
        let error = Picture::decode(&claiming(name, 30_000, 30_000)).unwrap_err();
        assert!(error.contains("30000 x 30000 pixels are more than"), "{name}: {error}");
        assert!(Picture::decode(&claiming(name, u32::MAX, u32::MAX)).is_err());
        assert!(Picture::decode(&claiming(name, 8000, 8000)).is_err(), "{name}: the pixels are not there");
    }
}

#[test]
fn a_picture_of_more_pixels_than_wanted_is_refused_before_they_are_decoded() {
    // its pixels are not there: decoding them would be another error
    let error = Picture::decode_at_most(&claiming("rgb.png", 100, 100), 9_999).unwrap_err();
    assert_eq!(error, "100 x 100 pixels are more than 9999");
    let bytes = std::fs::read(folder().join("rgb.png")).unwrap();
    let picture = Picture::decode(&bytes).unwrap();
    let [rows, columns] = picture.size();
    assert_eq!(Picture::decode_at_most(&bytes, (rows * columns) as u64), Ok(picture));
}

#[test]
fn what_is_no_picture_is_named_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, reason) in [
        (b"This is a text".as_slice(), "not a JPEG, PNG, WebP, GIF or BMP picture"),
        (b"", "not a JPEG"),
        (b"\xff\xd8\xff\xe0", "the data ends before the picture does"),
        (b"\x89PNG\r\n\x1a\n", ""),
    ] {
        let path = folder.path().join("photo.jpg");
        std::fs::write(&path, bytes).unwrap();
        let error = Picture::open(&path).unwrap_err().to_string();
        assert!(error.contains("photo.jpg: ") && error.contains(reason), "{error}");
    }
    let error = Picture::open(&folder.path().join("missing.jpg")).unwrap_err().to_string();
    assert!(error.contains("missing.jpg: "), "{error}");
    assert!(Picture::new([2, 2], vec![0; 11]).is_err());
    assert!(Picture::new([0, 2], vec![]).is_err());
}

#[cfg(unix)]
#[test]
fn a_device_or_a_pipe_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe.png");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for path in [Path::new("/dev/zero"), &pipe] {
        let error = Picture::open(path).unwrap_err().to_string();
        assert!(error.contains(": not a regular file but a "), "{error}");
    }
}

#[test]
fn a_truncated_picture_is_an_error_or_all_there_and_a_wrong_byte_never_panics() {
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|kind| kind == "json" || kind == "safetensors") {
            continue;
        }
        let name = path.display();
        let bytes = std::fs::read(&path).unwrap();
        let whole = Picture::decode(&bytes).unwrap();
        for length in (0..bytes.len()).step_by(5) {
            // the first frame, or all but a trailer
            if let Ok(picture) = Picture::decode(&bytes[..length]) {
                assert!(picture == whole, "{length} of {} bytes of {name}", bytes.len());
            }
        }
        let mut wrong = bytes.clone();
        for at in (0..bytes.len()).step_by(3) {
            wrong[at] ^= 0xff;
            _ = Picture::decode(&wrong);
            wrong[at] = bytes[at];
        }
    }
}

/// The folder of data that is not part of the project, if it is there.
fn shared() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/data");
    let folder = std::env::var_os("REGARD_SHARED").map_or_else(beside, PathBuf::from);
    folder.join("deit_tiny/photos").is_dir().then_some(folder)
}

#[test]
fn photos_are_prepared_for_deit() {
    let Some(folder) = shared() else {
        writeln!(std::io::stderr(), "SKIPPED: no photos; REGARD_SHARED names the folder that holds deit_tiny/photos")
            .unwrap();
        return;
    };
    let mut photos: Vec<PathBuf> =
        std::fs::read_dir(folder.join("deit_tiny/photos")).unwrap().map(|entry| entry.unwrap().path()).collect();
    photos.sort();
    assert_eq!(photos.len(), 100);
    for photo in &photos[..5] {
        let picture = Picture::open(photo).unwrap();
        let prepared = prepare(&picture, &Preprocess::DEIT, [224, 224]);
        assert_eq!(prepared.len(), 3 * 224 * 224);
        let mean = prepared.iter().sum::<f32>() / prepared.len() as f32;
        assert!(mean.abs() < 2.0 && prepared.iter().all(|x| (-2.2..2.7).contains(x)), "{}", photo.display());
    }
}

#[test]
fn a_stretched_picture_keeps_all_of_itself_and_loses_its_shape() {
    // left half black, right half white, three times as wide as high
    let pixels = (0..10 * 30).flat_map(|at| [if at % 30 < 15 { 0 } else { 255 }; 3]).collect();
    let picture = Picture::new([10, 30], pixels).unwrap();
    let plain = Preprocess { mean: [0.0; 3], std: [1.0; 3], ..Preprocess::WHOLE };
    let stretched = prepare(&picture, &Preprocess { resize: Resize::Stretch, ..plain }, [8, 8]);
    assert!(stretched[..8].iter().take(3).all(|level| *level < 0.01), "{stretched:?}");
    assert!(stretched[..8].iter().skip(5).all(|level| *level > 0.99), "{stretched:?}");
    let all = picture.resize([16, 16], Filter::Bicubic);
    let cropped = prepare(&picture, &Preprocess { resize: Resize::Stretch, crop: 0.5, ..plain }, [8, 8]);
    assert_eq!(cropped, prepare(&all, &Preprocess { crop: 0.5, ..plain }, [8, 8]), "stretched first, cropped then");
}
