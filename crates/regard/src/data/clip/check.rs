//! What is wrong with clips, before training. Every frame is decoded.

use serde::Serialize;
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;

use super::{ClipDataset, ClipLength, ClipParts};
use crate::data::Part;
use crate::data::check::{ClassCount, MOST_IMBALANCE, Occurrence, for_each_sample, reason_without};
use crate::data::detection::{Histogram, Issue};

/// What was found in the parts of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClipReport {
    pub train: ClipPartReport,
    pub validation: ClipPartReport,
    pub test: ClipPartReport,
    /// Clips of each class that can be read.
    pub classes: Vec<ClassCount>,
    /// Classes that are missing in a part that has clips.
    pub lacking: Vec<ClassCount>,
    /// Training clips of the largest class to those of the smallest; none when a class has none.
    pub imbalance: Option<f64>,
    /// What is wrong with lists and folders.
    pub issues: Vec<Issue>,
    /// Clips that cannot be opened.
    pub unreadable: Vec<BadClip>,
    /// Clips with a frame that does not decode.
    pub undecodable: Vec<BadClip>,
    /// Clips with fewer frames than a model sees; their last one is repeated.
    pub short: Vec<BadClip>,
    /// The same frames in more than one part.
    pub leaks: Vec<Vec<Occurrence>>,
    /// Other clips with the same frames.
    pub copies: Vec<Vec<Occurrence>>,
    /// Frames of a clip.
    pub frames: Histogram,
    /// Seconds of a clip.
    pub seconds: Histogram,
    /// Frames in a second: the least and the most.
    pub rates: Option<[f64; 2]>,
    /// Rows and columns: the smallest and the largest frame.
    pub sizes: Option<[[usize; 2]; 2]>,
}

/// A part in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ClipPartReport {
    /// Clips that can be read.
    pub clips: usize,
    pub frames: usize,
    /// Frames of the shortest and of the longest clip.
    pub shortest: usize,
    pub longest: usize,
}

/// A clip that cannot be used as it is, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BadClip {
    pub name: String,
    pub part: Part,
    pub class: String,
    pub reason: String,
}

impl ClipReport {
    pub const fn parts(&self) -> [(Part, &ClipPartReport); 3] {
        [(Part::Train, &self.train), (Part::Validation, &self.validation), (Part::Test, &self.test)]
    }

    pub fn is_imbalanced(&self) -> bool {
        self.imbalance.is_some_and(|imbalance| imbalance > MOST_IMBALANCE)
    }

    /// How many things are wrong.
    pub fn problems(&self) -> usize {
        self.lacking.len()
            + self.issues.len()
            + self.unreadable.len()
            + self.undecodable.len()
            + self.short.len()
            + self.leaks.len()
            + self.copies.len()
            + usize::from(self.is_imbalanced())
    }
}

/// A clip and the result of decoding it.
struct Seen {
    part: Part,
    name: String,
    class: usize,
    content: Result<Content, Fault>,
}

struct Content {
    length: ClipLength,
    size: [usize; 2],
    /// Of the pixels of all frames.
    hash: [u8; 32],
}

enum Fault {
    Unreadable(String),
    Undecodable(String),
}

/// Decodes every clip; one should have at least `least` frames. `tick` is called after each.
pub fn check(parts: &ClipParts, least: usize, tick: impl Fn() + Sync) -> ClipReport {
    let look = |part, own: &(dyn ClipDataset + 'static), index| {
        let seen = Seen { part, name: own.name(index), class: own.class(index), content: content(own, index) };
        tick();
        seen
    };
    let seen = for_each_sample([&parts.train, &parts.validation, &parts.test], ClipDataset::len, look);

    let names = parts.train.classes();
    let (leaks, copies) = copies(&seen, names);
    let mut report = ClipReport {
        train: ClipPartReport::default(),
        validation: ClipPartReport::default(),
        test: ClipPartReport::default(),
        classes: ClassCount::none_of(names),
        lacking: Vec::new(),
        imbalance: None,
        issues: parts.issues.clone(),
        unreadable: Vec::new(),
        undecodable: Vec::new(),
        short: Vec::new(),
        leaks,
        copies,
        frames: Histogram::new(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0]),
        seconds: Histogram::new(&[0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]),
        rates: None,
        sizes: None,
    };
    seen.iter().for_each(|seen| report.add(seen, &names[seen.class], least));
    let has = report.parts().map(|(_, part)| part.clips > 0);
    let lacks = |count: &&ClassCount| {
        [count.train, count.validation, count.test].iter().zip(has).any(|(count, has)| has && *count == 0)
    };
    report.lacking = report.classes.iter().filter(lacks).cloned().collect();
    report.imbalance = ClassCount::imbalance(&report.classes);
    report
}

impl ClipReport {
    fn add(&mut self, seen: &Seen, class: &str, least: usize) {
        let bad = |reason: String| BadClip { name: seen.name.clone(), part: seen.part, class: class.into(), reason };
        let content = match &seen.content {
            Ok(content) => content,
            Err(Fault::Unreadable(reason)) => return self.unreadable.push(bad(reason.clone())),
            Err(Fault::Undecodable(reason)) => return self.undecodable.push(bad(reason.clone())),
        };
        let ClipLength { frames, rate } = content.length;
        self.classes[seen.class].add(seen.part);
        let part = match seen.part {
            Part::Validation => &mut self.validation,
            Part::Test => &mut self.test,
            _ => &mut self.train,
        };
        part.shortest = if part.clips == 0 { frames } else { part.shortest.min(frames) };
        part.longest = part.longest.max(frames);
        part.clips += 1;
        part.frames += frames;
        if frames < least {
            self.short.push(bad(format!("{frames} frames")));
        }
        self.frames.count(frames as f64);
        self.seconds.count(frames as f64 / rate);
        let [slow, fast] = self.rates.unwrap_or([rate; 2]);
        self.rates = Some([slow.min(rate), fast.max(rate)]);
        let [smallest, largest] = self.sizes.unwrap_or([content.size; 2]);
        let pixels = |size: &[usize; 2]| size[0] * size[1];
        self.sizes = Some([
            std::cmp::min_by_key(smallest, content.size, pixels),
            std::cmp::max_by_key(largest, content.size, pixels),
        ]);
    }
}

fn content(dataset: &dyn ClipDataset, index: usize) -> Result<Content, Fault> {
    let name = dataset.name(index);
    let short = |error: crate::Error| reason_without(&name, &error);
    let length = dataset.length(index).map_err(|error| Fault::Unreadable(short(error)))?;
    let (mut hash, mut first, mut other) = (Sha256::new(), None, None);
    let mut number = 0;
    let decoded = dataset.for_each_frame(index, &mut |frame| {
        let size = frame.size();
        size.iter().for_each(|&side| hash.update((side as u64).to_le_bytes()));
        hash.update(frame.pixels());
        if *first.get_or_insert(size) != size && other.is_none() {
            other = Some((number, size));
        }
        number += 1;
    });
    decoded.map_err(|error| Fault::Undecodable(short(error)))?;
    let size = first.unwrap_or_default();
    if let Some((number, [rows, columns])) = other {
        let reason = format!("frame {number} has {columns} x {rows} pixels, the first one {} x {}", size[1], size[0]);
        return Err(Fault::Undecodable(reason));
    }
    Ok(Content { length, size, hash: hash.finalize().into() })
}

/// Clips with the same frames: those in more than one part, and the others.
fn copies(seen: &[Seen], classes: &[String]) -> (Vec<Vec<Occurrence>>, Vec<Vec<Occurrence>>) {
    let mut by_content: HashMap<[u8; 32], Vec<&Seen>> = HashMap::new();
    for found in seen {
        if let Ok(content) = &found.content {
            by_content.entry(content.hash).or_default().push(found);
        }
    }
    let of = |seen: &&Seen| Occurrence { name: seen.name.clone(), class: classes[seen.class].clone(), part: seen.part };
    let groups = by_content.into_values().filter(|group| group.len() > 1);
    let mut groups: Vec<Vec<Occurrence>> = groups.map(|group| group.iter().map(of).collect()).collect();
    groups.sort_by(|a, b| a[0].name.cmp(&b[0].name));
    groups.into_iter().partition(|group| group.iter().any(|other| other.part != group[0].part))
}
