//! MP4 and MOV files, also fragmented: where the video's frames are, when they are shown, and how they are turned.
//!
//! Only the index is read (`moov` and, of a fragmented file, `moof`), whose every number may be hostile: counts are held to
//! limits before anything is stored, and places to the file's length. ISO/IEC 14496-12. An edit list with one edit is
//! followed, as ffmpeg does: frames before its start and after its end are not shown.

mod boxes;
#[cfg(feature = "h264")]
mod h264;
#[cfg(feature = "h264")]
mod sps;
mod table;
#[cfg(feature = "h264")]
mod yuv;

use super::input::{ClipSource, Numbers as _, OpenInput};
use super::{Sink, check_size, codec_name, mjpeg};
use crate::data::clip::ClipLength;
use crate::data::{Change, Changes, Geometric, Picture};
use boxes::find;

/// Frames that a file may have: a day at 24 in a second.
const MOST_SAMPLES: usize = 1 << 21;
/// Bytes of an index.
const MOST_INDEX: u64 = 1 << 27;
/// Boxes that a walk visits, so that it ends.
const MOST_BOXES: usize = 1 << 18;

/// The video track of a file.
#[derive(Clone, Debug)]
pub struct Mp4 {
    pub codec: String,
    pub length: ClipLength,
    /// Clockwise turns by 90 degrees.
    quarter_turns: usize,
    /// The codec's own header, such as the content of `avcC`.
    #[cfg_attr(not(feature = "h264"), expect(dead_code, reason = "its decoder is left out"))]
    header: Vec<u8>,
    /// In the order in which they are decoded.
    samples: Vec<Mp4Sample>,
    /// The samples that are shown, in their order.
    shown: Vec<usize>,
}

/// A coded frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Mp4Sample {
    at: u64,
    length: u32,
    /// When it is shown, in units of the track.
    time: i64,
    /// Whether decoding can begin here.
    is_key: bool,
}

/// The fields of a track.
#[derive(Clone, Debug, Default)]
struct Track {
    id: u32,
    /// Units in a second.
    timescale: u32,
    codec: String,
    header: Vec<u8>,
    size: [usize; 2],
    quarter_turns: usize,
    /// Start in units of the track, length in those of the movie.
    edit: Option<(i64, u64)>,
    samples: Vec<Mp4Sample>,
    /// When the last frame ends, on the clock of decoding.
    end: i64,
}

impl Mp4 {
    /// Whether a file begins as these do.
    pub fn is_here(start: &[u8]) -> bool {
        matches!(start.get(4..8), Some(b"ftyp" | b"moov" | b"mdat" | b"wide" | b"free" | b"skip" | b"pnot"))
    }

    pub fn open(input: &ClipSource) -> Result<Self, String> {
        let mut open = input.open()?;
        let (mut moov, mut moofs, mut at, mut boxes, mut taken) = (None, Vec::new(), 0, 0, 0);
        while at + 8 <= open.length {
            boxes += 1;
            let (kind, head, length) = top_box(&mut open, at)?;
            let length = length.unwrap_or(open.length - at);
            if length < head || boxes > MOST_BOXES {
                return Err("its boxes make no sense".into());
            }
            if matches!(&kind, b"moov" | b"moof") {
                taken += length;
                if at.saturating_add(length) > open.length {
                    return Err("cut off within its index".into());
                }
                if taken > MOST_INDEX {
                    return Err(format!("an index of more than {MOST_INDEX} bytes"));
                }
                let content = open.read(at + head, length - head)?;
                if &kind == b"moov" { moov = Some(content) } else { moofs.push((at, content)) }
            }
            at = at.saturating_add(length);
        }
        let moov = moov.ok_or("without an index (`moov`): cut off, or not a video")?;
        let mut track = table::video_track(&moov)?;
        for (at, moof) in &moofs {
            table::add_fragment(&mut track, &moov, moof, *at)?;
        }
        if track.samples.is_empty() {
            return Err("without a frame".into());
        }
        check_size(track.size)?;
        let movie_scale = find(&moov, *b"mvhd").and_then(boxes::timescale).unwrap_or(track.timescale);
        Ok(track.finished(movie_scale))
    }
}

impl Track {
    /// The frames that are shown, and how many there are in a second.
    fn finished(self, movie_scale: u32) -> Mp4 {
        let mut shown: Vec<usize> = (0..self.samples.len()).collect();
        let time = |index: &usize| self.samples[*index].time;
        shown.sort_by_key(time);
        let first = shown.first().map_or(0, time);
        if let Some((start, length)) = self.edit {
            // rounded in favour of the last frame
            let scaled = u128::from(length) * u128::from(self.timescale) / u128::from(movie_scale.max(1));
            let end = start.saturating_add(i64::try_from(scaled).unwrap_or(i64::MAX)).saturating_add(1);
            let is_shown = |index: &usize| time(index) >= start && (length == 0 || time(index) < end);
            // an edit that leaves nothing is a broken one
            if shown.iter().any(is_shown) {
                shown.retain(is_shown);
            }
        }
        let last = shown.last().map_or(first, time);
        let span = (last - shown.first().map_or(0, time)) as f64 / f64::from(self.timescale.max(1));
        let whole = self.end as f64 / f64::from(self.timescale.max(1));
        let rate = match shown.len() {
            1 => 1.0 / whole,
            count => (count - 1) as f64 / span,
        };
        let rate = if rate.is_finite() && rate > 0.0 { rate.min(1e6) } else { 30.0 };
        Mp4 {
            codec: self.codec,
            length: ClipLength { frames: shown.len(), rate },
            quarter_turns: self.quarter_turns,
            header: self.header,
            samples: self.samples,
            shown,
        }
    }
}

/// The kind of a box in a file, and how long its head and all of it are; none when it goes to the end of the file.
fn top_box(open: &mut OpenInput, at: u64) -> Result<([u8; 4], u64, Option<u64>), String> {
    let head = open.read(at, 16.min(open.length - at))?;
    let kind = *head.get(4..).and_then(<[u8]>::first_chunk).ok_or("its boxes make no sense")?;
    Ok(match head.be32(0) {
        Some(0) => (kind, 8, None),
        Some(1) => (kind, 16, head.be64(8)),
        length => (kind, 8, length.map(u64::from)),
    })
}

impl Mp4 {
    /// What cannot be decoded here; none when it can.
    pub fn unsupported(&self) -> Option<String> {
        match self.codec.as_str() {
            "jpeg" | "mjpa" | "mjpg" => None,
            #[cfg(feature = "h264")]
            "avc1" | "avc3" => h264::check(self).err(),
            codec => Some(codec_name(codec)),
        }
    }

    /// Gives the frames of different increasing numbers.
    pub fn frames(&self, input: &ClipSource, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
        let sink = &mut |frame| sink(turned(frame, self.quarter_turns));
        #[cfg(feature = "h264")]
        if self.codec.starts_with("avc") {
            return h264::frames(self, input, wanted, sink);
        }
        let mut open = input.open()?;
        let mut frame = |number: usize| {
            let sample = self.samples[self.shown[number]];
            mjpeg::decode(&open.read(sample.at, u64::from(sample.length))?)
        };
        for &number in wanted {
            sink(frame(number).map_err(|reason| format!("frame {number}: {reason}"))?);
        }
        Ok(())
    }
}

fn turned(frame: Picture, quarters: usize) -> Picture {
    if quarters == 0 {
        return frame;
    }
    let change = Change::Geometric(Geometric::QuarterTurns(quarters));
    Changes { changes: vec![change], ..Changes::new(frame.size()) }.picture(&frame)
}
