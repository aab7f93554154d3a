//! H.264 by openh264: 8 bits, 4:2:0, progressive.
//!
//! Decoding begins at the last key frame before a wanted one, and ends when the last wanted frame is there. The decoder
//! gives frames in the order in which they are shown, so that the first one is the key frame and the others are counted.

use openh264::OpenH264API;
use openh264::decoder::{DecodedYUV, Decoder, DecoderConfig, Flush};
use openh264::formats::YUVSource as _;

use super::Mp4;
use super::sps::Sps;
use super::yuv::{self, Planes};
use crate::data::Picture;
use crate::data::clip::reader::input::{ClipSource, Numbers as _, OpenInput};
use crate::data::clip::reader::{MOST_WORK, Sink, check_size, check_work};

/// A NAL unit of an instantaneous refresh, before which nothing is needed.
const IDR: u8 = 5;
const SPS: u8 = 7;
const PPS: u8 = 8;
/// Key frames that are looked at before everything is decoded from the first frame on.
const MOST_KEYS: usize = 64;
const START: [u8; 4] = [0, 0, 0, 1];

/// What `avcC` says: how units are stored, and the parameter sets.
struct AvcHeader {
    /// Bytes of a unit's length.
    length_bytes: usize,
    /// With start codes.
    parameters: Vec<u8>,
    sps: Option<Sps>,
}

impl AvcHeader {
    fn parse(content: &[u8]) -> Option<Self> {
        let length_bytes = usize::from(content.u8_at(4)? & 3) + 1;
        let (mut parameters, mut sps, mut at) = (Vec::new(), None, 6);
        let mut take = |at: &mut usize| {
            let length = usize::from(content.be16(*at)?);
            let unit = content.get(*at + 2..*at + 2 + length)?;
            parameters.extend(START);
            parameters.extend_from_slice(unit);
            *at += 2 + length;
            Some(unit)
        };
        for _ in 0..content.u8_at(5)? & 0x1f {
            let unit = take(&mut at)?;
            sps = sps.or_else(|| Sps::parse(unit));
        }
        let pictures = content.u8_at(at)?;
        at += 1;
        for _ in 0..pictures {
            take(&mut at)?;
        }
        Some(Self { length_bytes, parameters, sps })
    }

    /// A coded frame with start codes, and the kinds of its units.
    fn frame(&self, sample: &[u8]) -> Result<(Vec<u8>, Vec<u8>), String> {
        let (mut frame, mut kinds, mut at) = (Vec::with_capacity(sample.len() + 64), Vec::new(), 0);
        while at < sample.len() {
            let length = sample.get(at..at + self.length_bytes).ok_or("a unit is cut off")?;
            let length = length.iter().fold(0usize, |length, byte| length << 8 | usize::from(*byte));
            at += self.length_bytes;
            let unit = sample.get(at..at.saturating_add(length)).ok_or("a unit is cut off")?;
            at += length;
            if let Some(first) = unit.first() {
                kinds.push(first & 0x1f);
                frame.extend(START);
                frame.extend_from_slice(unit);
            }
        }
        Ok((frame, kinds))
    }
}

/// Whether this file's stream is one that is decoded here; otherwise what it is.
pub fn check(mp4: &Mp4) -> Result<Sps, String> {
    let header = AvcHeader::parse(&mp4.header).ok_or("H.264 without its header")?;
    let sps = header.sps.ok_or("H.264 without a sequence parameter set")?;
    sps.unsupported().map_or(Ok(sps), Err)
}

/// Gives the frames of different increasing numbers among those that are shown.
pub fn frames(mp4: &Mp4, input: &ClipSource, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
    let sps = check(mp4)?;
    check_size(sps.size)?;
    let header = AvcHeader::parse(&mp4.header).ok_or("H.264 without its header")?;
    let mut by_time: Vec<usize> = (0..mp4.samples.len()).collect();
    by_time.sort_by_key(|&sample| mp4.samples[sample].time);
    let mut ranks = vec![0; by_time.len()];
    by_time.iter().enumerate().for_each(|(rank, &sample)| ranks[sample] = rank);

    let mut open = input.open()?;
    let mut run: Option<Run> = None;
    let mut work = 0;
    for &number in wanted {
        let sample = mp4.shown[number];
        let key = key_before(mp4, &header, &mut open, &ranks, sample)?;
        // starting at a later key frame skips frames that are not wanted
        if run.as_ref().is_none_or(|run| key > run.next || ranks[sample] < run.rank) {
            run = Some(Run::new(key, ranks[key])?);
        }
        let run = run.as_mut().ok_or("no run")?;
        let fed = run.next;
        check_work(work + sample.saturating_sub(fed), sps.size, input.most_work(MOST_WORK))?;
        let picture = run
            .picture(mp4, &header, &mut open, ranks[sample], &sps)
            .and_then(|picture| picture.ok_or_else(|| "does not come out of the decoder".to_string()))
            .map_err(|reason| format!("frame {number}: {reason}"))?;
        work += run.next - fed;
        sink(picture);
    }
    Ok(())
}

/// The last frame before one, or itself, from which decoding can begin.
fn key_before(
    mp4: &Mp4,
    header: &AvcHeader,
    open: &mut OpenInput,
    ranks: &[usize],
    sample: usize,
) -> Result<usize, String> {
    let keys = (0..=sample).rev().filter(|&key| mp4.samples[key].is_key && ranks[key] <= ranks[sample]);
    for key in keys.take(MOST_KEYS) {
        let (_, kinds) = header.frame(&read(mp4, open, key)?)?;
        // others are marked, too, which need frames before them
        if kinds.contains(&IDR) {
            return Ok(key);
        }
    }
    Ok(0)
}

fn read(mp4: &Mp4, open: &mut OpenInput, sample: usize) -> Result<Vec<u8>, String> {
    let sample = mp4.samples[sample];
    open.read(sample.at, u64::from(sample.length)).map_err(|reason| format!("cut off: {reason}"))
}

/// A decoder on its way through a file.
struct Run {
    decoder: Decoder,
    /// The next sample to be decoded.
    next: usize,
    /// Which frame comes out next, in the order in which all are shown.
    rank: usize,
    /// What came out at the end, in reverse.
    rest: Option<Vec<Picture>>,
}

impl Run {
    fn new(next: usize, rank: usize) -> Result<Self, String> {
        let config = DecoderConfig::new().flush_after_decode(Flush::NoFlush);
        let decoder = Decoder::with_api_config(OpenH264API::from_source(), config).map_err(reason)?;
        Ok(Self { decoder, next, rank, rest: None })
    }

    /// Decodes on to a frame; none when it does not come out.
    fn picture(
        &mut self,
        mp4: &Mp4,
        header: &AvcHeader,
        open: &mut OpenInput,
        wanted: usize,
        sps: &Sps,
    ) -> Result<Option<Picture>, String> {
        while self.rest.is_none() && self.next < mp4.samples.len() {
            let sample = self.next;
            let (mut frame, kinds) = header.frame(&read(mp4, open, sample)?)?;
            self.next += 1;
            if kinds.contains(&IDR) && !(kinds.contains(&SPS) && kinds.contains(&PPS)) {
                frame.splice(0..0, header.parameters.iter().copied());
            }
            let decoded = self.decoder.decode(&frame).map_err(reason)?;
            if let Some(decoded) = decoded {
                self.rank += 1;
                if self.rank == wanted + 1 {
                    return converted(&decoded, sps).map(Some);
                }
            }
        }
        if self.rest.is_none() {
            let rest = self.decoder.flush_remaining().map_err(reason)?;
            let mut rest = rest.iter().map(|decoded| converted(decoded, sps)).collect::<Result<Vec<_>, _>>()?;
            rest.reverse();
            self.rest = Some(rest);
        }
        while let Some(picture) = self.rest.as_mut().and_then(Vec::pop) {
            self.rank += 1;
            if self.rank == wanted + 1 {
                return Ok(Some(picture));
            }
        }
        Ok(None)
    }
}

fn converted(decoded: &DecodedYUV<'_>, sps: &Sps) -> Result<Picture, String> {
    let (columns, rows) = decoded.dimensions();
    check_size([rows, columns])?;
    let (y, u, v) = decoded.strides();
    let levels = [decoded.y(), decoded.u(), decoded.v()];
    let planes = Planes { size: [rows, columns], levels, strides: [y, u, v] };
    yuv::picture(&planes, sps).ok_or_else(|| "its planes are too short".to_string())
}

fn reason(error: openh264::Error) -> String {
    // its text has the number of a state, and is of no use otherwise
    let text = error.to_string();
    let state = text.split("State:").nth(1).and_then(|rest| rest.split('.').next()).unwrap_or("unknown");
    format!("does not decode (openh264's state {state})")
}
