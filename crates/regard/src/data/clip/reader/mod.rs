//! Videos from files: one struct whatever the format.
//!
//! | format | reader |
//! |---|---|
//! | GIF, APNG, animated WebP | the `image` crate |
//! | MJPEG in AVI, MOV or MP4 | our own walk, JPEG by the `image` crate |
//! | H.264 in MP4 or MOV: 8 bits, 4:2:0, progressive | our own walk, openh264 (feature `h264`) |
//! | a folder of pictures | in the natural order of their names |
//! | everything else that is a video | an `ffmpeg` process, or an error that names the codec |
//!
//! A file's name says nothing: its first bytes decide. The number of frames is exact. Only wanted frames are kept; MP4 and
//! AVI files are read in pieces, so that their length does not matter. What cannot be read is an error with the file's
//! name; a broken file may claim anything, and is held to limits of pixels, of frames, and of both together.

mod animation;
mod avi;
mod ffmpeg;
mod input;
mod mjpeg;
mod mp4;
pub(super) mod natural;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use super::ClipLength;
use crate::Error;
use crate::data::Picture;
use crate::data::dataset::{entries, is_picture};
use animation::{Animation, AnimationFormat};
use avi::{Avi, AviFault};
use ffmpeg::Ffmpeg;
use input::ClipSource;
use mp4::Mp4;

/// Takes frames as they are decoded.
type Sink<'a> = &'a mut dyn FnMut(Picture);

/// Pixels of a frame, as many as 8K has.
const MOST_PIXELS: usize = 1 << 25;
/// Pixels of all frames that have to be decoded for one clip: some minutes of work.
const MOST_WORK: usize = 1 << 37;
/// The same of an animation, which has no frames to begin with but the first.
const MOST_ANIMATED: usize = 1 << 34;
/// Frames of a video.
const MOST_FRAMES: usize = 1 << 21;
/// Frames in a second of a folder of pictures, which says nothing of time.
const FOLDER_RATE: f64 = 30.0;

/// A video whose header was read.
#[derive(Clone, Debug)]
pub struct Video {
    name: String,
    input: ClipSource,
    kind: VideoKind,
}

#[derive(Clone, Debug)]
enum VideoKind {
    Animation(Animation),
    Avi(Avi),
    Mp4(Mp4),
    Ffmpeg(Ffmpeg),
    Pictures(Vec<PathBuf>),
}

impl Video {
    /// Reads the header of a file, or the names in a folder of pictures.
    ///
    /// # Errors
    /// When it is no video that is known, or its header is broken; the error names the file, and the codec.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let name = path.display().to_string();
        if path.is_dir() {
            return Ok(Self { name, input: ClipSource::File(path.into()), kind: VideoKind::Pictures(pictures(path)?) });
        }
        Self::new(name, ClipSource::File(path.into()), Some(path), ffmpeg::program().as_deref())
    }

    /// Reads the header of a file's bytes. Codecs that need an `ffmpeg` process are refused: that reads files.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn from_bytes(name: &str, bytes: Vec<u8>) -> Result<Self, Error> {
        Self::new(name.into(), ClipSource::Memory(bytes.into()), None, None)
    }

    fn new(name: String, input: ClipSource, path: Option<&Path>, program: Option<&Path>) -> Result<Self, Error> {
        let kind = recognise(&input, path, program);
        let kind = kind.map_err(|reason| Error::File { path: name.clone(), reason })?;
        Ok(Self { name, input, kind })
    }

    /// The number of frames, and how many there are in a second.
    #[must_use]
    pub fn length(&self) -> ClipLength {
        match &self.kind {
            VideoKind::Animation(animation) => animation.length,
            VideoKind::Avi(avi) => avi.length,
            VideoKind::Mp4(mp4) => mp4.length,
            VideoKind::Ffmpeg(video) => video.length,
            VideoKind::Pictures(pictures) => ClipLength { frames: pictures.len(), rate: FOLDER_RATE },
        }
    }

    /// Whether its header is known only after everything was decoded.
    #[must_use]
    pub const fn is_costly_to_open(&self) -> bool {
        matches!(self.kind, VideoKind::Ffmpeg(_))
    }

    /// The frames of these numbers, in this order.
    ///
    /// # Errors
    /// When there is no such frame, or one cannot be decoded; the error names the file and the frame.
    pub fn frames(&self, wanted: &[usize]) -> Result<Vec<Picture>, Error> {
        let wrong = |reason: String| Error::File { path: self.name.clone(), reason };
        let count = self.length().frames;
        if let Some(frame) = wanted.iter().find(|frame| **frame >= count) {
            return Err(wrong(format!("no frame {frame} of {count}")));
        }
        let mut numbers = wanted.to_vec();
        numbers.sort_unstable();
        numbers.dedup();
        let mut frames = Vec::with_capacity(numbers.len());
        self.different_frames(&numbers, &mut |frame| frames.push(frame)).map_err(wrong)?;
        let of = |number: &usize| numbers.binary_search(number).map(|place| frames[place].clone());
        Ok(wanted.iter().flat_map(of).collect())
    }

    /// Gives every frame, one after the other, so that no more than one is in memory.
    ///
    /// # Errors
    /// When one cannot be decoded; the error names the file and the frame.
    pub fn for_each_frame(&self, each: &mut dyn FnMut(Picture)) -> Result<(), Error> {
        let numbers: Vec<usize> = (0..self.length().frames).collect();
        self.different_frames(&numbers, each).map_err(|reason| Error::File { path: self.name.clone(), reason })
    }

    /// Frames of different increasing numbers.
    fn different_frames(&self, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
        if wanted.is_empty() {
            return Ok(());
        }
        match &self.kind {
            VideoKind::Animation(animation) => animation.frames(&self.input, wanted, sink),
            VideoKind::Avi(avi) => avi.frames(&self.input, wanted, sink),
            VideoKind::Mp4(mp4) => mp4.frames(&self.input, wanted, sink),
            VideoKind::Ffmpeg(video) => video.frames(wanted, sink),
            VideoKind::Pictures(pictures) => {
                for &number in wanted {
                    let path = &pictures[number];
                    let picture = Picture::open(path).map_err(|error| {
                        let file = path.file_name().unwrap_or_default().to_string_lossy();
                        format!("frame {number}, {file}: {}", without_name(&error, path))
                    });
                    sink(picture?);
                }
                Ok(())
            }
        }
    }
}

fn recognise(input: &ClipSource, path: Option<&Path>, program: Option<&Path>) -> Result<VideoKind, String> {
    let start = input.open()?.start(4096)?;
    if start.is_empty() {
        return Err("empty".into());
    }
    if let Some(format) = AnimationFormat::guess(&start) {
        return Animation::open(format, input).map(VideoKind::Animation);
    }
    let foreign = if start.starts_with(b"RIFF") && start.get(8..11) == Some(b"AVI") {
        match Avi::open(input) {
            Ok(avi) => return Ok(VideoKind::Avi(avi)),
            Err(AviFault::Broken(reason)) => return Err(reason),
            Err(AviFault::Codec(codec)) => codec_name(&codec),
        }
    } else if Mp4::is_here(&start) {
        let mp4 = Mp4::open(input)?;
        match mp4.unsupported() {
            None => return Ok(VideoKind::Mp4(mp4)),
            Some(codec) => codec,
        }
    } else {
        container(&start).ok_or_else(|| not_a_video(&start))?
    };
    match (path, program) {
        (Some(path), Some(program)) => {
            Ffmpeg::open(program, path).map(VideoKind::Ffmpeg).map_err(|reason| format!("{foreign}: {reason}"))
        }
        (Some(_), None) => Err(format!("{foreign} needs ffmpeg, which is neither on PATH nor named by $FFMPEG")),
        (None, _) => Err(format!("{foreign} is not decoded here; convert it to MP4 with H.264, or GIF")),
    }
}

/// A container that ffmpeg reads, with its codec where that is easily told.
fn container(start: &[u8]) -> Option<String> {
    let has = |text: &[u8]| start.windows(text.len()).any(|part| part == text);
    Some(match start {
        [0x1a, 0x45, 0xdf, 0xa3, ..] => {
            let known: [(&[u8], _); 7] = [
                (b"V_VP9", "VP9 in WebM"),
                (b"V_VP8", "VP8 in WebM"),
                (b"V_AV1", "AV1 in Matroska"),
                (b"V_MPEG4/ISO/AVC", "H.264 in Matroska"),
                (b"V_MPEGH/ISO/HEVC", "HEVC in Matroska"),
                (b"V_MPEG4/ISO/ASP", "MPEG-4 part 2 in Matroska"),
                (b"V_MPEG2", "MPEG-2 in Matroska"),
            ];
            known.iter().find(|(codec, _)| has(codec)).map_or("a Matroska file", |(_, name)| name).into()
        }
        [0, 0, 1, 0xba | 0xb3, ..] => "an MPEG-1 or MPEG-2 file".into(),
        [b'F', b'L', b'V', 1, ..] => "a Flash video".into(),
        [0x30, 0x26, 0xb2, 0x75, 0x8e, 0x66, ..] => "a Windows Media file".into(),
        [b'O', b'g', b'g', b'S', ..] => "an Ogg file".into(),
        [0x47, ..] if start.get(188) == Some(&0x47) && start.get(376) == Some(&0x47) => {
            "an MPEG transport stream".into()
        }
        _ => return None,
    })
}

/// The usual name of a codec with this four-letter code.
fn codec_name(code: &str) -> String {
    let name = match code.to_lowercase().trim() {
        "avc1" | "avc3" | "h264" | "x264" => "H.264",
        "hvc1" | "hev1" | "hevc" | "h265" => "HEVC",
        "vp08" | "vp80" => "VP8",
        "vp09" | "vp90" => "VP9",
        "av01" => "AV1",
        "mp4v" | "xvid" | "divx" | "dx50" | "fmp4" | "mp4s" | "3iv2" => "MPEG-4 part 2",
        "div3" | "mp43" | "mp42" => "Microsoft's MPEG-4",
        "mpg2" | "mpg1" | "mpeg" => "MPEG-1 or MPEG-2",
        "apcn" | "apch" | "apcs" | "apco" | "ap4h" => "ProRes",
        "s263" | "h263" => "H.263",
        "" => return "a codec without a name".into(),
        _ => return format!("the codec `{code}`"),
    };
    format!("{name} (`{code}`)")
}

fn not_a_video(start: &[u8]) -> String {
    if start.starts_with(&[0xff, 0xd8]) {
        return "a JPEG picture, not a video".into();
    }
    format!("not a video: it begins with `{}`", printable(&start[..start.len().min(12)]))
}

/// Bytes as a text that can be shown.
fn printable(bytes: &[u8]) -> String {
    bytes.iter().map(|&byte| if byte.is_ascii_graphic() || byte == b' ' { char::from(byte) } else { '.' }).collect()
}

/// The text of an error that begins with the name of a file, without it.
fn without_name(error: &Error, path: &Path) -> String {
    let text = error.to_string();
    text.strip_prefix(&format!("{}: ", path.display())).unwrap_or(&text).to_string()
}

fn check_size([rows, columns]: [usize; 2]) -> Result<(), String> {
    match rows.checked_mul(columns) {
        Some(1..=MOST_PIXELS) => Ok(()),
        _ => Err(format!("frames of {columns} x {rows} pixels; at most {MOST_PIXELS} pixels, and at least one")),
    }
}

fn check_work(frames: usize, [rows, columns]: [usize; 2], most: usize) -> Result<(), String> {
    match frames.checked_mul(rows.saturating_mul(columns)) {
        Some(pixels) if pixels <= most => Ok(()),
        _ => Err(format!("{frames} frames of {columns} x {rows} pixels are too many to decode for a clip")),
    }
}

/// The pictures in a folder, in the natural order of their names.
fn pictures(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let mut found: Vec<PathBuf> = entries(folder)?.into_iter().filter(|path| is_picture(path)).collect();
    found.sort_by(|one, other| {
        let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        natural::compare(&name(one), &name(other))
    });
    if found.is_empty() { Err(Error::file(folder, "no pictures")) } else { Ok(found) }
}
