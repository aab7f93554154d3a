//! Tables of frames: `stbl` of a whole file, `moof` of a fragment.

use super::boxes::{children, descend, find, flags, timescale};
use super::{MOST_SAMPLES, Mp4Sample, Track};
use crate::data::clip::reader::input::Numbers as _;
use crate::data::clip::reader::printable;

const NONSENSE: &str = "its index makes no sense";

/// The first video track, with the frames that the index of a whole file lists.
pub fn video_track(moov: &[u8]) -> Result<Track, String> {
    let tracks = children(moov).filter(|(kind, _)| kind == b"trak").map(|(_, content)| content);
    let handler = |track: &[u8]| descend(track, &[*b"mdia", *b"hdlr"]).and_then(|content| content.be32(8));
    let is_video = |track: &&[u8]| handler(track) == Some(u32::from_be_bytes(*b"vide"));
    // a cover may be a track of one picture before the video
    let frames = |track: &&[u8]| {
        let sizes = descend(track, &[*b"mdia", *b"minf", *b"stbl", *b"stsz"]);
        sizes.and_then(|content| content.be32(8)).unwrap_or(0)
    };
    let videos: Vec<&[u8]> = tracks.filter(is_video).collect();
    let first = videos.iter().find(|track| frames(track) > 1).or_else(|| videos.first());
    read_track(first.ok_or("without a video track")?)
}

fn read_track(bytes: &[u8]) -> Result<Track, String> {
    read_headers(bytes).ok_or_else(|| NONSENSE.to_string()).and_then(|(mut track, table)| {
        (track.samples, track.end) = samples(table)?;
        Ok(track)
    })
}

fn read_headers(bytes: &[u8]) -> Option<(Track, &[u8])> {
    let head = find(bytes, *b"tkhd")?;
    let is_long = head.u8_at(0)? == 1;
    let (id, matrix) = if is_long { (20, 52) } else { (12, 40) };
    let table = descend(bytes, &[*b"mdia", *b"minf", *b"stbl"])?;
    let description = find(table, *b"stsd")?;
    // the first entry: kind, 78 bytes of a picture's description, boxes
    let (kind, entry) = children(description.get(8..)?).next()?;
    let size = [usize::from(entry.be16(26)?), usize::from(entry.be16(24)?)];
    let header = entry.get(78..).and_then(|boxes| find(boxes, *b"avcC")).unwrap_or_default().to_vec();
    Some((
        Track {
            id: head.be32(id)?,
            timescale: descend(bytes, &[*b"mdia", *b"mdhd"]).and_then(timescale)?,
            codec: printable(&kind),
            header,
            size,
            quarter_turns: quarter_turns(head.get(matrix..)?)?,
            edit: descend(bytes, &[*b"edts", *b"elst"]).and_then(only_edit),
            samples: Vec::new(),
            end: 0,
        },
        table,
    ))
}

/// The matrix of how a track is shown, as turns by 90 degrees.
fn quarter_turns(matrix: &[u8]) -> Option<usize> {
    let number = |place: usize| matrix.be32(4 * place).map(|number| number.cast_signed().signum());
    Some(match [number(0)?, number(1)?, number(3)?, number(4)?] {
        [0, 1, -1, 0] => 1,
        [-1, 0, 0, -1] => 2,
        [0, -1, 1, 0] => 3,
        _ => 0,
    })
}

/// Start and length of an edit list with one edit at full speed, behind an empty one or not.
fn only_edit(list: &[u8]) -> Option<(i64, u64)> {
    let is_long = list.u8_at(0)? == 1;
    let count = list.be32(4)? as usize;
    let entry = |index: usize| {
        Some(if is_long {
            let at = 8 + 20 * index;
            (list.be64(at + 8)?.cast_signed(), list.be64(at)?, list.be32(at + 16)?)
        } else {
            let at = 8 + 12 * index;
            (i64::from(list.be32(at + 4)?.cast_signed()), u64::from(list.be32(at)?), list.be32(at + 8)?)
        })
    };
    let edits: Vec<_> = (0..count.min(3)).map(entry).collect::<Option<_>>()?;
    // an empty edit shows nothing for a while
    let mut edits = edits.into_iter().filter(|(start, ..)| *start >= 0);
    match (edits.next(), edits.next()) {
        (Some((start, length, 0x1_0000)), None) if count <= 2 => Some((start, length)),
        _ => None,
    }
}

/// The frames of a table in the order of decoding, and when the last one ends.
fn samples(table: &[u8]) -> Result<(Vec<Mp4Sample>, i64), String> {
    let sizes = find(table, *b"stsz").ok_or(NONSENSE)?;
    let (same, count) = (sizes.be32(4).ok_or(NONSENSE)?, sizes.be32(8).ok_or(NONSENSE)? as usize);
    if count > MOST_SAMPLES {
        return Err(format!("{count} frames are more than {MOST_SAMPLES}"));
    }
    let length = |index: usize| if same > 0 { Some(same) } else { sizes.be32(12 + 4 * index) };
    let mut samples = Vec::new();
    let (offsets, wide) = match (find(table, *b"stco"), find(table, *b"co64")) {
        (Some(table), _) => (table, false),
        (None, Some(table)) => (table, true),
        _ if count == 0 => return Ok((samples, 0)),
        _ => return Err(NONSENSE.into()),
    };
    let offset = |chunk: usize| {
        if wide { offsets.be64(8 + 8 * chunk) } else { offsets.be32(8 + 4 * chunk).map(u64::from) }
    };
    // chunks of frames, each run of which has frames as many
    let chunks = offsets.be32(4).ok_or(NONSENSE)? as usize;
    let runs = find(table, *b"stsc").ok_or(NONSENSE)?;
    let run_count = runs.be32(4).ok_or(NONSENSE)? as usize;
    'runs: for run in 0..run_count {
        let field = |run: usize, place: usize| runs.be32(8 + 12 * run + place).map(|number| number as usize);
        let (Some(first @ 1..), Some(in_chunk)) = (field(run, 0), field(run, 4)) else { return Err(NONSENSE.into()) };
        let next = if run + 1 < run_count { field(run + 1, 0).ok_or(NONSENSE)? } else { chunks + 1 };
        if next > chunks + 1 {
            return Err(NONSENSE.into());
        }
        for chunk in first..next {
            let mut at = offset(chunk - 1).ok_or(NONSENSE)?;
            for _ in 0..in_chunk {
                if samples.len() == count {
                    break 'runs;
                }
                let length = length(samples.len()).ok_or(NONSENSE)?;
                samples.push(Mp4Sample { at, length, time: 0, is_key: false });
                at = at.saturating_add(u64::from(length));
            }
        }
    }
    if samples.len() < count {
        return Err(format!("its index has places for {} of {count} frames", samples.len()));
    }
    let end = add_times(table, &mut samples).ok_or(NONSENSE)?;
    mark_keys(table, &mut samples).ok_or(NONSENSE)?;
    Ok((samples, end))
}

/// When frames are shown: their lengths in the order of decoding, and how much later than decoded each is shown.
fn add_times(table: &[u8], samples: &mut [Mp4Sample]) -> Option<i64> {
    let lengths = Runs { table: find(table, *b"stts")?, run: 0, left: 0 };
    let mut time = 0i64;
    for (sample, length) in samples.iter_mut().zip(lengths) {
        sample.time = time;
        time = time.saturating_add(i64::from(length?));
    }
    if let Some(delays) = find(table, *b"ctts").filter(|delays| delays.be32(4) != Some(0)) {
        for (sample, delay) in samples.iter_mut().zip(Runs { table: delays, run: 0, left: 0 }) {
            sample.time = sample.time.saturating_add(i64::from(delay?.cast_signed()));
        }
    }
    Some(time)
}

/// Runs of so many equal numbers, one number at a time; the last one goes on.
struct Runs<'a> {
    table: &'a [u8],
    run: usize,
    left: u32,
}

impl Iterator for Runs<'_> {
    /// None when the table ends before a number.
    type Item = Option<u32>;

    fn next(&mut self) -> Option<Self::Item> {
        let count = self.table.be32(4).unwrap_or(0) as usize;
        while self.left == 0 && self.run < count {
            let Some(run) = self.table.be32(8 + 8 * self.run) else { return Some(None) };
            (self.left, self.run) = (run, self.run + 1);
        }
        self.left = self.left.saturating_sub(1);
        Some(self.run.checked_sub(1).and_then(|run| self.table.be32(12 + 8 * run)))
    }
}

fn mark_keys(table: &[u8], samples: &mut [Mp4Sample]) -> Option<()> {
    let Some(keys) = find(table, *b"stss") else {
        samples.iter_mut().for_each(|sample| sample.is_key = true);
        return Some(());
    };
    for key in 0..(keys.be32(4)? as usize).min(samples.len()) {
        let number = keys.be32(8 + 4 * key)? as usize;
        samples.get_mut(number.checked_sub(1)?)?.is_key = true;
    }
    Some(())
}

/// Adds the frames of a fragment that begins at a place of the file.
pub fn add_fragment(track: &mut Track, moov: &[u8], moof: &[u8], start: u64) -> Result<(), String> {
    for (_, part) in children(moof).filter(|(kind, _)| kind == b"traf") {
        let head = find(part, *b"tfhd").ok_or(NONSENSE)?;
        if head.be32(4) == Some(track.id) {
            add_run(track, moov, part, head, start)?;
        }
    }
    Ok(())
}

fn add_run(track: &mut Track, moov: &[u8], part: &[u8], head: &[u8], start: u64) -> Result<(), String> {
    let head_flags = flags(head).ok_or(NONSENSE)?;
    let defaults = find(moov, *b"mvex").into_iter().flat_map(children);
    let defaults = defaults.filter(|(kind, _)| kind == b"trex").map(|(_, content)| content);
    let defaults = defaults.into_iter().find(|content| content.be32(4) == Some(track.id));
    let default = |place: usize| defaults.and_then(|content| content.be32(place)).unwrap_or(0);
    // optional fields follow each other
    let mut at = 8;
    let mut optional = |flag: u32, length: usize| {
        let place = (head_flags & flag != 0).then_some(at);
        at += if place.is_some() { length } else { 0 };
        place
    };
    let [base, _, duration, size, sample_flags] =
        [(0x1, 8), (0x2, 4), (0x8, 4), (0x10, 4), (0x20, 4)].map(|(flag, length)| optional(flag, length));
    let base = base.map_or(Some(start), |place| head.be64(place)).ok_or(NONSENSE)?;
    let number = |place: Option<usize>, other: usize| {
        place.map_or(Some(default(other)), |place| head.be32(place)).ok_or(NONSENSE)
    };
    let (duration, size, sample_flags) = (number(duration, 12)?, number(size, 16)?, number(sample_flags, 20)?);
    let decoded = find(part, *b"tfdt").and_then(|content| match content.u8_at(0)? {
        1 => content.be64(4).map(u64::cast_signed),
        _ => content.be32(4).map(i64::from),
    });
    let mut time = decoded.unwrap_or(track.end);
    let mut at = base;
    for (_, run) in children(part).filter(|(kind, _)| kind == b"trun") {
        let run_flags = flags(run).ok_or(NONSENSE)?;
        let count = run.be32(4).ok_or(NONSENSE)? as usize;
        if track.samples.len().saturating_add(count) > MOST_SAMPLES {
            return Err(format!("more than {MOST_SAMPLES} frames"));
        }
        let mut place = 8;
        let mut next = |flag: u32| {
            let number = (run_flags & flag != 0).then(|| run.be32(place).ok_or(NONSENSE));
            place += if number.is_some() { 4 } else { 0 };
            number.transpose()
        };
        if let Some(offset) = next(0x1)? {
            at = base.saturating_add_signed(i64::from(offset.cast_signed()));
        }
        let first_flags = next(0x4)?;
        for index in 0..count {
            let duration = next(0x100)?.unwrap_or(duration);
            let length = next(0x200)?.unwrap_or(size);
            let own = next(0x400)?.or(first_flags.filter(|_| index == 0)).unwrap_or(sample_flags);
            let delay = next(0x800)?.unwrap_or(0).cast_signed();
            // bit 16: not one to begin with
            let is_key = own & 0x1_0000 == 0;
            track.samples.push(Mp4Sample { at, length, time: time.saturating_add(i64::from(delay)), is_key });
            at = at.saturating_add(u64::from(length));
            time = time.saturating_add(i64::from(duration));
        }
    }
    track.end = time;
    Ok(())
}
