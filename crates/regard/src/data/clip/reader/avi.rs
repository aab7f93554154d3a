//! AVI files with MJPEG: a walk over the chunks of `movi`, each of which is a JPEG picture.
//!
//! Headers are not asked how many frames there are, since many say what is not true. A chunk without bytes shows the frame
//! before it again. Files above a gigabyte go on in further `RIFF` chunks.

use super::input::{ClipSource, Numbers as _, OpenInput};
use super::{Sink, check_size, mjpeg};
use crate::data::clip::ClipLength;

/// Chunks that a walk visits, so that it ends.
const MOST_CHUNKS: usize = 1 << 21;
/// Lists in lists.
const MOST_DEPTH: usize = 4;

/// Where the frames of an AVI file are.
#[derive(Clone, Debug)]
pub struct Avi {
    pub size: [usize; 2],
    pub length: ClipLength,
    /// Place and length of each frame.
    frames: Vec<(u64, u32)>,
}

/// Why a file has no frames for us.
pub enum AviFault {
    /// It has a codec of this name, which something else may read.
    Codec(String),
    Broken(String),
}

impl From<String> for AviFault {
    fn from(reason: String) -> Self {
        Self::Broken(reason)
    }
}

/// What is found on the way.
#[derive(Default)]
struct Walk {
    streams: usize,
    video: Option<VideoStream>,
    frames: Vec<(u64, u32)>,
    chunks: usize,
}

struct VideoStream {
    number: usize,
    /// Of the stream's header and of the pictures.
    codecs: [String; 2],
    size: [usize; 2],
    rate: f64,
}

impl Avi {
    pub fn open(input: &ClipSource) -> Result<Self, AviFault> {
        let mut open = input.open()?;
        let mut walk = Walk::default();
        let mut at = 0;
        // a file may have several of these
        while at + 12 <= open.length {
            let head = open.read(at, 12)?;
            let (Some(b"RIFF"), Some(length)) = (head.get(..4), head.le32(4)) else { break };
            let end = at + 8 + u64::from(length);
            // a stream that was never finished may have no length
            walk.list(&mut open, [at + 12, if length == 0 { u64::MAX } else { end }], 0)?;
            at = end + u64::from(length % 2);
        }
        let video = walk.video.ok_or_else(|| "without a video stream".to_string())?;
        if !video.codecs.iter().any(|codec| matches!(codec.to_lowercase().as_str(), "mjpg" | "jpeg" | "avrn")) {
            let [stream, picture] = video.codecs;
            return Err(AviFault::Codec(if picture.trim().is_empty() { stream } else { picture }));
        }
        check_size(video.size)?;
        // empty chunks before the first frame show nothing
        let first = walk.frames.iter().position(|(_, length)| *length > 0).unwrap_or(walk.frames.len());
        let mut frames = walk.frames.split_off(first);
        for index in 1..frames.len() {
            if frames[index].1 == 0 {
                frames[index] = frames[index - 1];
            }
        }
        if frames.is_empty() {
            return Err(AviFault::Broken("without a frame".into()));
        }
        Ok(Self { size: video.size, length: ClipLength { frames: frames.len(), rate: video.rate }, frames })
    }

    /// Gives the frames of different increasing numbers.
    pub fn frames(&self, input: &ClipSource, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
        let mut open = input.open()?;
        let mut frame = |number: usize| {
            let (at, length) = self.frames[number];
            let bytes = open.read(at, u64::from(length))?;
            let picture = mjpeg::decode(&bytes)?;
            if picture.size() != self.size {
                let [rows, columns] = picture.size();
                return Err(format!("{columns} x {rows} pixels, the file says {} x {}", self.size[1], self.size[0]));
            }
            Ok(picture)
        };
        for &number in wanted {
            sink(frame(number).map_err(|reason| format!("frame {number}: {reason}"))?);
        }
        Ok(())
    }
}

impl Walk {
    /// The chunks of a list between two places.
    fn list(&mut self, open: &mut OpenInput, [mut at, end]: [u64; 2], depth: usize) -> Result<(), String> {
        let end = if end == u64::MAX { open.length } else { end };
        while at + 8 <= end {
            self.chunks += 1;
            if self.chunks > MOST_CHUNKS {
                return Err(format!("more than {MOST_CHUNKS} chunks"));
            }
            let cut = || format!("cut off after frame {}", self.frames.len());
            let head = open.read(at, 8).map_err(|_| cut())?;
            let (kind, length) = (&head[..4], head.le32(4).unwrap_or(0));
            let (body, next) = (at + 8, at + 8 + u64::from(length) + u64::from(length % 2));
            if body + u64::from(length) > open.length {
                return Err(cut());
            }
            match kind {
                b"LIST" if length >= 4 && depth < MOST_DEPTH => {
                    let name = open.read(body, 4)?;
                    if &name == b"strl" {
                        self.stream(&open.read(body + 4, u64::from(length.min(1 << 16)) - 4)?);
                    } else {
                        self.list(open, [body + 4, body + u64::from(length)], depth + 1)?;
                    }
                }
                [tens, ones, b'd', b'c' | b'b'] => {
                    let number = std::str::from_utf8(&[*tens, *ones]).ok().and_then(|digits| digits.parse().ok());
                    if number.is_some() && number == self.video.as_ref().map(|video| video.number) {
                        self.frames.push((body, length));
                    }
                }
                _ => {}
            }
            at = next;
        }
        Ok(())
    }

    /// The headers of a stream: `strh` and `strf`.
    fn stream(&mut self, bytes: &[u8]) {
        let number = self.streams;
        self.streams += 1;
        let chunk = |name: &[u8]| {
            let mut at = 0;
            while let (Some(kind), Some(length)) = (bytes.get(at..at + 4), bytes.le32(at + 4)) {
                let length = length as usize;
                if kind == name {
                    return bytes.get(at + 8..at + 8 + length);
                }
                at += 8 + length + length % 2;
            }
            None
        };
        let (Some(header), Some(format)) = (chunk(b"strh"), chunk(b"strf")) else { return };
        if header.get(..4) != Some(b"vids") || self.video.is_some() {
            return;
        }
        let name = |bytes: Option<&[u8]>| super::printable(bytes.unwrap_or_default());
        let [scale, rate] = [20, 24].map(|place| f64::from(header.le32(place).unwrap_or(0)));
        let side = |place: usize| (format.le32(place).unwrap_or(0).cast_signed().unsigned_abs()) as usize;
        let rate = rate / scale;
        self.video = Some(VideoStream {
            number,
            codecs: [name(header.get(4..8)), name(format.get(16..20))],
            size: [side(8), side(4)],
            rate: if rate.is_finite() && rate > 0.0 { rate } else { 30.0 },
        });
    }
}
