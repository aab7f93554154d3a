use super::*;
use crate::data::Picture;
use crate::testing::Fixture;
use flate2::{Compression, write::ZlibEncoder};
use std::io::Write as _;
use std::path::{Path, PathBuf};

fn fixture_file(name: &str) -> Vec<u8> {
    let folder: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/exif");
    std::fs::read(folder.join(name)).unwrap()
}

/// Largest difference of a level.
fn difference(a: &Picture, b: &Picture) -> u8 {
    assert_eq!(a.size(), b.size());
    a.pixels().iter().zip(b.pixels()).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

fn rgb(image: DynamicImage) -> Picture {
    let image = image.into_rgb8();
    Picture::new([image.height() as usize, image.width() as usize], image.into_raw()).unwrap()
}

#[test]
fn every_orientation_of_every_format_is_what_pil_makes_of_it() {
    let fixture = Fixture::load("exif");
    let files: Vec<&str> = fixture.names("io/").collect();
    assert_eq!(files.len(), 8 * 4 + 2 + 2);
    for name in files {
        let (bytes, expected) = (fixture_file(name), fixture.picture(name));
        let is = |ending: &str| Path::new(name).extension().is_some_and(|own| own == ending);
        let most = if is("jpg") { 3 } else { 0 };
        assert!(difference(&rgb(decode_image(&bytes).unwrap()), &expected) <= most, "{name} by a tool");
        if !is("tif") {
            assert!(difference(&Picture::decode(&bytes).unwrap(), &expected) <= most, "{name}");
        }
    }
}

#[test]
fn the_eight_orientations_are_eight_pictures() {
    let all: Vec<Picture> =
        (1..=8).map(|number| Picture::decode(&fixture_file(&format!("{number}.png"))).unwrap()).collect();
    for (index, picture) in all.iter().enumerate() {
        assert!(all[..index].iter().all(|other| other != picture), "{}", index + 1);
        assert_eq!(picture.size(), if index < 4 { [6, 10] } else { [10, 6] });
    }
}

/// A PNG with another chunk before its pixels.
fn with_chunk(kind: [u8; 4], content: &[u8]) -> Vec<u8> {
    let bytes = fixture_file("6.png");
    let mut body = kind.to_vec();
    body.extend_from_slice(content);
    let mut crc = flate2::Crc::new();
    crc.update(&body);
    let length = (content.len() as u32).to_be_bytes();
    let header = PNG_SIGNATURE + 25;
    [&bytes[..header], &length, &body, &crc.sum().to_be_bytes(), &bytes[header..]].concat()
}

/// Megabytes of zeros in some kilobytes.
fn bomb(megabytes: usize) -> Vec<u8> {
    let mut packer = ZlibEncoder::new(Vec::new(), Compression::best());
    packer.write_all(&vec![0; megabytes << 20]).unwrap();
    packer.finish().unwrap()
}

#[test]
fn side_data_of_a_png_is_left_out_and_never_inflated() {
    let plain = Picture::decode(&fixture_file("6.png")).unwrap();
    let packed = bomb(64);
    let text = |name: &[u8]| [name, &packed].concat();
    for (kind, content) in [
        (*b"iCCP", text(b"profile\0\0")),
        (*b"zTXt", text(b"Comment\0\0")),
        (*b"iTXt", text(b"Comment\0\x01\0\0\0")),
        (*b"tEXt", b"Comment\0text".to_vec()),
    ] {
        let bytes = with_chunk(kind, &content);
        let kept = png_without_side_data(&bytes);
        assert_eq!(*kept, *fixture_file("6.png"), "nothing of {} is left", String::from_utf8_lossy(&kind));
        assert_eq!(Picture::decode(&bytes).unwrap(), plain);
    }
    // a chunk of another kind stays, and so does what is broken
    let other = with_chunk(*b"gAMA", &45455u32.to_be_bytes());
    assert!(matches!(png_without_side_data(&other), Cow::Borrowed(_)));
    let profile = with_chunk(*b"iCCP", &packed);
    for cut in 0..profile.len().min(600) {
        _ = Picture::decode(&profile[..cut]);
    }
    assert!(Picture::decode(&profile[..profile.len() - 20]).is_err());
}

#[test]
fn late_orientation_is_found_where_it_is() {
    let late = fixture_file("late.png");
    let moved = png_without_side_data(&late);
    assert_eq!(moved.len(), late.len());
    let place = |bytes: &[u8], kind: &[u8]| bytes.windows(4).position(|window| window == kind).unwrap();
    assert!(place(&late, b"eXIf") > place(&late, b"IDAT") && place(&moved, b"eXIf") < place(&moved, b"IDAT"));
}
