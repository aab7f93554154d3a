//! Held to ffmpeg's frames of one clip in many formats, and to broken files.

use super::*;
#[cfg(feature = "h264")]
use crate::data::{Change, Changes, Geometric};
use crate::random::{Purpose, generator};
use crate::testing::Fixture;
use rand::RngExt as _;

const ALL: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/video_decoding")
}

/// Files and what reads them.
fn files(fixture: &Fixture, reader: &str) -> Vec<String> {
    let files = fixture.config["files"].as_object().unwrap();
    let own = files.iter().filter(|(_, file)| file["reader"] == reader);
    own.map(|(name, _)| name.clone()).collect()
}

/// Formats that are decoded without ffmpeg.
fn own_files(fixture: &Fixture) -> Vec<String> {
    let mut files = files(fixture, "image");
    if cfg!(feature = "h264") {
        files.extend(self::files(fixture, "h264"));
    }
    files
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(folder().join(name)).unwrap()
}

/// Mean difference of a picture and one of the frames of ffmpeg.
fn difference(picture: &Picture, frames: &[f32], number: usize) -> f32 {
    let length = picture.pixels().len();
    let frame = &frames[length * number..][..length];
    let sum: f32 = picture.pixels().iter().zip(frame).map(|(own, other)| (f32::from(*own) - other).abs()).sum();
    sum / length as f32
}

#[test]
fn every_frame_of_every_format_is_ffmpegs_in_the_right_order() {
    let fixture = Fixture::load("video_decoding");
    let names = own_files(&fixture);
    assert!(names.len() >= 4, "{names:?}");
    for name in names {
        let video = Video::open(&folder().join(&name)).unwrap();
        let ClipLength { frames, rate } = video.length();
        assert!(frames == 8 && (rate - 12.0).abs() < 0.6, "{name}: {frames} frames, {rate} in a second");
        let tensor = fixture.values(&format!("io/{name}"));
        // of each frame, and of all together
        let (most, mean) = match fixture.config["files"][&name]["reader"].as_str() {
            _ if name == "clip.apng" || name == "clip.gif" => (0.0, 0.0),
            _ if name == "clip.webp" => (1.0, 1.0),
            Some("h264") => (2.0, 2.0),
            _ => (4.0, 2.5),
        };
        let pictures = video.frames(&ALL).unwrap();
        assert_eq!(pictures.len(), 8);
        let mut sum = 0.0;
        for (number, picture) in pictures.iter().enumerate() {
            assert_eq!(picture.size(), [36, 52], "{name}");
            let own = difference(picture, tensor, number);
            sum += own;
            assert!(own <= most, "{name}, frame {number}: {own}");
            for other in ALL.into_iter().filter(|other| *other != number) {
                assert!(own < difference(picture, tensor, other), "{name}: frame {number} looks like {other}");
            }
        }
        assert!(sum / 8.0 <= mean, "{name}: {}", sum / 8.0);
    }
}

#[test]
fn some_frames_are_those_of_all_frames() {
    let fixture = Fixture::load("video_decoding");
    for name in own_files(&fixture) {
        let video = Video::from_bytes(&name, bytes(&name)).unwrap();
        let all = video.frames(&ALL).unwrap();
        for wanted in [&[0][..], &[7], &[3], &[1, 2, 6], &[5, 5, 7, 7], &[6, 2]] {
            let expected: Vec<Picture> = wanted.iter().map(|&number| all[number].clone()).collect();
            assert_eq!(video.frames(wanted).unwrap(), expected, "{name} {wanted:?}");
        }
        assert_eq!(video.frames(&[]).unwrap(), []);
        let error = video.frames(&[0, 8]).unwrap_err().to_string();
        assert_eq!(error, format!("{name}: no frame 8 of 8"));
    }
}

#[test]
fn a_changed_byte_in_the_frames_of_an_apng_is_found_by_its_checksum() {
    let mut damaged = bytes("clip.apng");
    let frame = damaged.windows(4).rposition(|kind| kind == b"fdAT").unwrap();
    damaged[frame + 200] ^= 1;
    let error = Video::from_bytes("damaged.apng", damaged).unwrap_err().to_string();
    assert_eq!(error, "damaged.apng: a wrong checksum in frame 7");
}

#[test]
fn a_folder_of_pictures_is_a_video_in_natural_order() {
    let fixture = Fixture::load("video_decoding");
    let video = Video::open(&folder().join("frames")).unwrap();
    let source = fixture.values("io/source");
    for (number, picture) in video.frames(&ALL).unwrap().iter().enumerate() {
        assert_eq!(difference(picture, source, number), 0.0);
    }
    let empty = tempfile::tempdir().unwrap();
    assert!(Video::open(empty.path()).unwrap_err().to_string().ends_with(": no pictures"));
    std::fs::write(empty.path().join("1.png"), "no picture").unwrap();
    let error = Video::open(empty.path()).unwrap().frames(&[0]).unwrap_err().to_string();
    assert!(error.contains("frame 0, 1.png: not a JPEG"), "{error}");
}

#[test]
fn what_needs_ffmpeg_is_read_by_it_or_named() {
    let fixture = Fixture::load("video_decoding");
    let codecs = [
        ("xvid.avi", "MPEG-4 part 2"),
        ("vp9.webm", "VP9 in WebM"),
        ("hevc.mp4", "HEVC"),
        ("ten_bit.mp4", if cfg!(feature = "h264") { "H.264 High 10 (10 bits a level)" } else { "H.264" }),
    ];
    assert_eq!(codecs.len(), files(&fixture, "ffmpeg").len());
    for (name, codec) in codecs {
        let path = folder().join(name);
        let error = Video::new(name.into(), ClipSource::File(path.clone()), Some(&path), None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: {codec}")), "{error}");
        assert!(error.ends_with("needs ffmpeg, which is neither on PATH nor named by $FFMPEG"), "{error}");
        let error = Video::from_bytes(name, bytes(name)).unwrap_err().to_string();
        assert!(error.contains("is not decoded here"), "{error}");
        // only where there is one
        let Some(program) = ffmpeg::program() else { continue };
        let video = Video::new(name.into(), ClipSource::File(path.clone()), Some(&path), Some(&program)).unwrap();
        let tensor = fixture.values(&format!("io/{name}"));
        assert_eq!(video.length().frames, 8, "{name}");
        for (number, picture) in video.frames(&ALL).unwrap().iter().enumerate() {
            assert!(difference(picture, tensor, number) <= 2.0, "{name}, frame {number}");
        }
        assert_eq!(video.frames(&[2, 6]).unwrap()[1], video.frames(&[6]).unwrap()[0]);
    }
}

#[test]
fn broken_files_are_named_with_what_is_wrong() {
    let refused = |name: &str| match Video::open(&folder().join(name)).and_then(|video| video.frames(&ALL)) {
        Ok(_) => panic!("{name} was read"),
        Err(error) => error.to_string(),
    };
    for (name, reason) in [("empty.mp4", "empty"), ("text.mp4", "not a video: it begins with `")] {
        let error = refused(name);
        assert!(error.contains(&format!("{name}: {reason}")), "{error}");
    }
    if cfg!(feature = "h264") {
        let error = refused("cut.mp4");
        assert!(error.contains("cut.mp4: ") && error.contains("cut off"), "{error}");
    }
    let absent = Video::open(Path::new("/no/such.mp4")).unwrap_err().to_string();
    assert!(absent.starts_with("/no/such.mp4: "), "{absent}");
    let picture = bytes("frames/frame1.png");
    let error = Video::from_bytes("still.png", picture).unwrap_err().to_string();
    assert_eq!(error, "still.png: a picture, not an animation");
}

#[test]
fn a_file_that_is_cut_anywhere_gives_an_error_or_whole_frames() {
    let fixture = Fixture::load("video_decoding");
    for name in own_files(&fixture) {
        let whole = bytes(&name);
        let tensor = fixture.values(&format!("io/{name}"));
        for length in (0..whole.len()).step_by(whole.len() / 23 + 1) {
            let Ok(video) = Video::from_bytes(&name, whole[..length].to_vec()) else { continue };
            let count = video.length().frames;
            for number in 0..count {
                // a frame may be there before the cut
                if let Ok(frames) = video.frames(&[number]) {
                    let own = difference(&frames[0], tensor, number);
                    assert!(own <= 2.5, "{name} cut at {length} of {}: frame {number} {own}", whole.len());
                }
            }
        }
    }
}

/// Whatever bytes are changed, reading ends soon, with pictures or an error, and without a panic.
#[test]
fn damaged_files_of_every_format_end_in_pictures_or_errors() {
    let fixture = Fixture::load("video_decoding");
    for (place, name) in own_files(&fixture).iter().enumerate() {
        let whole = bytes(name);
        for round in 0..150 {
            let mut random = generator(0, Purpose::Sample, [place as u64, round]);
            let mut damaged = whole.clone();
            for _ in 0..random.random_range(1..6) {
                // headers more often than pixels
                let most = if random.random_range(0..3) == 0 { damaged.len() } else { damaged.len().min(900) };
                let at = random.random_range(0..most);
                // the index of an MP4 file may be at its end
                let at = if random.random_range(0..2) == 0 { at } else { damaged.len() - 1 - at };
                let values = [0, 1, 0x7f, 0x80, 0xff, random.random_range(0..=255)];
                damaged[at] = values[random.random_range(0..values.len())];
            }
            let Ok(video) = Video::from_bytes(name, damaged) else { continue };
            let ClipLength { frames, rate } = video.length();
            assert!(frames > 0 && rate.is_finite() && rate > 0.0, "{name} {round}: {frames} {rate}");
            let _ = video.frames(&[0, frames / 2, frames - 1]);
        }
    }
}

#[test]
fn a_header_that_promises_more_than_the_limits_is_refused_before_memory_is_taken() {
    // a canvas of 65535 x 65535
    let mut gif = bytes("clip.gif");
    gif[6..10].fill(0xff);
    let error = Video::from_bytes("large.gif", gif).unwrap_err().to_string();
    assert!(error.starts_with("large.gif: frames of 65535 x 65535 pixels"), "{error}");
    // four billion frames of one size
    let mut mp4 = bytes("baseline.mp4");
    let table = mp4.windows(4).position(|kind| kind == b"stsz").unwrap();
    mp4[table + 8..table + 16].copy_from_slice(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]);
    let error = Video::from_bytes("long.mp4", mp4).unwrap_err().to_string();
    assert!(error.contains("long.mp4: 4294967295 frames are more than"), "{error}");
}

/// The place of the first box of a kind and its content.
#[cfg(feature = "h264")]
fn content(bytes: &[u8], kind: [u8; 4]) -> usize {
    bytes.windows(4).position(|other| other == kind).unwrap() + 4
}

#[cfg(feature = "h264")]
#[test]
fn a_turned_phone_is_turned_back() {
    let upright = Video::from_bytes("upright.mp4", bytes("baseline.mp4")).unwrap().frames(&[0]).unwrap().remove(0);
    for (matrix, quarters) in [([0i32, 1, -1, 0], 1), ([-1, 0, 0, -1], 2), ([0, -1, 1, 0], 3)] {
        let mut file = bytes("baseline.mp4");
        let at = content(&file, *b"tkhd") + 40;
        for (place, number) in [0, 1, 3, 4].into_iter().zip(matrix) {
            file[at + 4 * place..][..4].copy_from_slice(&(number << 16).to_be_bytes());
        }
        let frame = Video::from_bytes("turned.mp4", file).unwrap().frames(&[0]).unwrap().remove(0);
        let turn = Change::Geometric(Geometric::QuarterTurns(quarters));
        let turn = Changes { changes: vec![turn], ..Changes::new(upright.size()) };
        assert_eq!(frame, turn.picture(&upright));
        let [rows, columns] = upright.size();
        assert_eq!(frame.size(), if quarters == 2 { [rows, columns] } else { [columns, rows] });
        // the upper left corner goes clockwise
        let corner = match quarters {
            1 => 3 * (rows - 1),
            2 => 3 * (rows * columns - 1),
            _ => 3 * rows * (columns - 1),
        };
        assert_eq!(frame.pixels()[corner..][..3], upright.pixels()[..3]);
    }
}

#[cfg(feature = "h264")]
#[test]
fn frames_of_different_lengths_have_the_rate_of_the_whole() {
    // one run of eight equal lengths becomes four times as long
    let mut file = bytes("baseline.mp4");
    let at = content(&file, *b"stts") + 12;
    let delta = u32::from_be_bytes(*file[at..].first_chunk().unwrap());
    file[at..at + 4].copy_from_slice(&(4 * delta).to_be_bytes());
    let rate = Video::from_bytes("slow.mp4", file).unwrap().length().rate;
    assert!((rate - 3.0).abs() < 0.01, "{rate}");
}

#[test]
fn bytes_that_were_sent_may_need_less_work_than_a_file() {
    let frame = [&[0x2c, 0, 0, 0, 0, 1, 0, 1, 0, 0][..], &[2, 2, 0x4c, 1, 0]].concat();
    let mut gif = b"GIF89a".to_vec();
    gif.extend([5000_u16.to_le_bytes(), 5000_u16.to_le_bytes()].concat());
    gif.extend([0x80, 0, 0, 0, 0, 0, 255, 255, 255]);
    gif.extend(frame.repeat(100));
    gif.push(0x3b);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gif");
    std::fs::write(&path, &gif).unwrap();
    assert_eq!(Video::open(&path).unwrap().length().frames, 100);
    let error = Video::from_bytes("large.gif", gif).unwrap_err().to_string();
    assert!(error.contains("100 frames of 5000 x 5000 pixels"), "{error}");
}
