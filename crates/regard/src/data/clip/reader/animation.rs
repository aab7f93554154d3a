//! Animated pictures: GIF, APNG and WebP, decoded and composited by the `image` crate.
//!
//! How many frames there are is counted from the file's blocks, so that nothing has to be decoded for it. A GIF that wants its
//! frames shorter than 20 milliseconds gets 100 for each, as in browsers and in ffmpeg.

use image::codecs::gif::GifDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::webp::WebPDecoder;
use image::{AnimationDecoder, Frames, ImageDecoder as _, Limits};
use std::io::Cursor;

use super::input::{ClipSource, Numbers as _};
use super::{MOST_ANIMATED, Sink, check_size, check_work};
use crate::data::Picture;
use crate::data::clip::ClipLength;
use crate::data::decode::{MOST_BYTES, png_without_side_data, webp_ends};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnimationFormat {
    Gif,
    Apng,
    WebP,
}

/// The blocks of an animation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Animation {
    pub format: AnimationFormat,
    pub size: [usize; 2],
    pub length: ClipLength,
}

impl AnimationFormat {
    pub fn guess(start: &[u8]) -> Option<Self> {
        match start {
            [b'G', b'I', b'F', b'8', ..] => Some(Self::Gif),
            [0x89, b'P', b'N', b'G', ..] => Some(Self::Apng),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(Self::WebP),
            _ => None,
        }
    }
}

/// The length of frames in milliseconds, and how many there are.
#[derive(Default)]
struct Delays {
    frames: usize,
    milliseconds: f64,
}

impl Delays {
    fn add(&mut self, milliseconds: f64) {
        self.frames += 1;
        self.milliseconds += milliseconds;
    }
}

impl Animation {
    pub fn open(format: AnimationFormat, input: &ClipSource) -> Result<Self, String> {
        let bytes = input.open()?.all()?;
        let cut = || "cut off: it ends within a block".to_string();
        let (size, delays) = match format {
            AnimationFormat::Gif => gif(&bytes).ok_or_else(cut)?,
            AnimationFormat::Apng => apng(&bytes).ok_or_else(cut)??,
            AnimationFormat::WebP if !webp_ends(&bytes) => return Err(cut()),
            AnimationFormat::WebP => webp(&bytes)?,
        };
        check_size(size)?;
        if delays.frames == 0 {
            return Err("without a frame".into());
        }
        check_work(delays.frames, size, input.most_work(MOST_ANIMATED))?;
        let seconds = delays.milliseconds / 1000.0;
        let rate = if seconds > 0.0 { delays.frames as f64 / seconds } else { 10.0 };
        Ok(Self { format, size, length: ClipLength { frames: delays.frames, rate } })
    }

    /// Gives the frames of different increasing numbers.
    pub fn frames(&self, input: &ClipSource, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
        let bytes = input.open()?.all()?;
        let mut frames = decoded(self.format, &bytes).map_err(|error| error.to_string())?;
        let mut found = 0;
        for number in 0..=wanted.last().copied().unwrap_or(0) {
            let frame = frames.next().ok_or_else(|| format!("the data ends before frame {number}"))?;
            let frame = frame.map_err(|error| format!("frame {number}: {error}"))?;
            if wanted.get(found) == Some(&number) {
                found += 1;
                let rgba = frame.into_buffer();
                let size = [rgba.height() as usize, rgba.width() as usize];
                // alpha is dropped, as for pictures
                let pixels = rgba.as_raw().as_chunks::<4>().0.iter().flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]);
                sink(Picture::new(size, pixels.collect()).map_err(|error| error.to_string())?);
            }
        }
        Ok(())
    }
}

fn decoded(format: AnimationFormat, bytes: &[u8]) -> image::ImageResult<Frames<'_>> {
    let limits = || {
        let mut limits = Limits::default();
        limits.max_alloc = Some(MOST_BYTES);
        limits
    };
    Ok(match format {
        AnimationFormat::Gif => {
            let mut decoder = GifDecoder::new(Cursor::new(bytes))?;
            decoder.set_limits(limits())?;
            decoder.into_frames()
        }
        AnimationFormat::Apng => {
            let bytes = Cursor::new(png_without_side_data(bytes).into_owned());
            PngDecoder::with_limits(bytes, limits())?.apng()?.into_frames()
        }
        AnimationFormat::WebP => {
            let mut decoder = WebPDecoder::new(Cursor::new(bytes))?;
            decoder.set_limits(limits())?;
            decoder.into_frames()
        }
    })
}

/// Rows, columns and delays; none when the data ends within a block.
fn gif(bytes: &[u8]) -> Option<([usize; 2], Delays)> {
    let size = [usize::from(bytes.le16(8)?), usize::from(bytes.le16(6)?)];
    let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3usize << ((flags & 7) + 1) };
    let mut at = 13 + table(bytes.u8_at(10)?);
    let (mut delays, mut delay) = (Delays::default(), 0u16);
    // blocks of a length and as many bytes, until one is empty
    let skip_blocks = |mut at: usize| {
        while let length @ 1.. = bytes.u8_at(at)? {
            at += 1 + usize::from(length);
        }
        Some(at + 1)
    };
    // many files leave out the last byte
    while let Some(kind) = bytes.u8_at(at) {
        match kind {
            0x21 => {
                if bytes.u8_at(at + 1)? == 0xf9 {
                    delay = bytes.le16(at + 4)?;
                }
                at = skip_blocks(at + 2)?;
            }
            0x2c => {
                at = skip_blocks(at + 11 + table(bytes.u8_at(at + 9)?))?;
                delays.add(if delay < 2 { 100.0 } else { 10.0 * f64::from(delay) });
                delay = 0;
            }
            // the end, or something that a decoder does not read either
            _ => break,
        }
    }
    Some((size, delays))
}

/// As above; and an error when it is a picture alone.
fn apng(bytes: &[u8]) -> Option<Result<([usize; 2], Delays), String>> {
    let size = [bytes.be32(20)? as usize, bytes.be32(16)? as usize];
    let (mut delays, mut is_animated, mut at) = (Delays::default(), false, 8);
    loop {
        let (length, kind) = (bytes.be32(at)? as usize, bytes.get(at + 4..at + 8)?);
        let chunk = bytes.get(at + 4..at + 8 + length)?;
        if matches!(kind, b"IHDR" | b"acTL" | b"fcTL" | b"IDAT" | b"fdAT") {
            // a decoder lets frames with wrong ones pass
            let mut checksum = flate2::Crc::new();
            checksum.update(chunk);
            if bytes.be32(at + 8 + length)? != checksum.sum() {
                let frame = delays.frames.saturating_sub(1);
                return Some(Err(format!("a wrong checksum in frame {frame}")));
            }
        }
        match kind {
            b"acTL" => is_animated = true,
            b"fcTL" => {
                let (numerator, denominator) = (bytes.be16(at + 28)?, bytes.be16(at + 30)?);
                let denominator = if denominator == 0 { 100.0 } else { f64::from(denominator) };
                delays.add(1000.0 * f64::from(numerator) / denominator);
            }
            b"IEND" => break,
            _ => {}
        }
        at += 12 + length;
    }
    Some(if is_animated { Ok((size, delays)) } else { Err("a picture, not an animation".into()) })
}

fn webp(bytes: &[u8]) -> Result<([usize; 2], Delays), String> {
    let wrong = || "its blocks make no sense".to_string();
    let is_animated = bytes.get(12..16) == Some(b"VP8X") && bytes.u8_at(20).is_some_and(|flags| flags & 2 != 0);
    if !is_animated {
        return Err("a picture, not an animation".into());
    }
    let side = |place: usize| bytes.le24(place).map(|side| side as usize + 1).ok_or_else(wrong);
    let size = [side(27)?, side(24)?];
    let (mut delays, mut at) = (Delays::default(), 12);
    while let (Some(kind), Some(length)) = (bytes.get(at..at + 4), bytes.le32(at + 4)) {
        if kind == b"ANMF" {
            let number = |place: usize| bytes.le24(at + 8 + place).ok_or_else(wrong);
            let [x, y, columns, rows] = [2 * number(0)?, 2 * number(3)?, 1 + number(6)?, 1 + number(9)?];
            if (x + columns) as usize > size[1] || (y + rows) as usize > size[0] {
                return Err(format!("frame {} is larger than the animation", delays.frames));
            }
            delays.add(f64::from(number(12)?));
        }
        at += 8 + length as usize + length as usize % 2;
    }
    Ok((size, delays))
}
