//! Clips that a layout has, joined to parts with one list of classes.

use sha2::{Digest as _, Sha256};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use super::layout::{ClipEntry, Contents, ListedPart};
use super::reader::Video;
use super::{ClipDataset, ClipLength};
use crate::Error;
use crate::data::dataset::split::{fifth, tenth};
use crate::data::dataset::{Origin, Origins};
use crate::data::detection::Issue;
use crate::data::{Part, Picture};

/// All clips of a source.
#[derive(Debug)]
pub struct Listing {
    clips: Arc<Clips>,
    parts: Vec<Part>,
    pub origins: Origins,
    pub issues: Vec<Issue>,
}

#[derive(Debug)]
struct Clips {
    classes: Vec<String>,
    clips: Vec<ListedClip>,
}

#[derive(Debug)]
struct ListedClip {
    path: PathBuf,
    class: usize,
    length: OnceLock<ClipLength>,
    /// Kept where opening it means to decode all of it.
    video: OnceLock<Video>,
}

impl Listing {
    /// The clips of a source; `file` is what issues name.
    pub fn new(contents: Contents, file: &Path) -> Self {
        let Contents { classes, mut sections, mut issues } = contents;
        let order = [Some(Part::Train), Some(Part::Validation), Some(Part::Test), None];
        sections.sort_by_key(|section| order.iter().position(|part| *part == section.part));
        let (origins, part_of) = parts(&sections);
        let classes = classes.unwrap_or_else(|| class_names(&sections));
        let by_name: HashMap<&str, usize> =
            classes.iter().enumerate().map(|(class, name)| (name.as_str(), class)).collect();
        let (mut clips, mut own_parts, mut groups) = (Vec::new(), Vec::new(), Vec::new());
        for section in sections {
            let part = part_of(section.part);
            for ClipEntry { path, class: name, group } in section.entries {
                let Some(&class) = by_name.get(name.as_str()) else {
                    let reason = format!("`{name}` is not in the list of classes");
                    issues.push(Issue::error(file, path.display().to_string(), reason));
                    continue;
                };
                clips.push(ListedClip { path, class, length: OnceLock::new(), video: OnceLock::new() });
                own_parts.push(part);
                groups.push(group);
            }
        }
        let class = |index: usize| clips[index].class;
        if origins.test == Origin::Fifth {
            draw(&mut own_parts, Part::Test, fifth, class, &groups);
        }
        if origins.validation == Origin::TenthOfTrain {
            draw(&mut own_parts, Part::Validation, tenth, class, &groups);
        }
        Self { clips: Arc::new(Clips { classes, clips }), parts: own_parts, origins, issues }
    }

    /// # Errors
    /// The first issue with which nothing can be trained, and how many there are.
    pub fn refuse_errors(&self) -> Result<(), Error> {
        Issue::refuse_errors(&self.issues)
    }

    /// The clips of a part, in their order.
    pub fn only(&self, part: Part) -> Arc<dyn ClipDataset> {
        let wanted = self.parts.iter().enumerate().filter(|(_, own)| part.contains(**own));
        Arc::new(ListedClips { of: self.clips.clone(), indices: wanted.map(|(index, _)| index).collect() })
    }
}

/// Where validation and test come from, and which part a section is.
fn parts(sections: &[ListedPart]) -> (Origins, impl Fn(Option<Part>) -> Part + use<>) {
    let place = |part| {
        let section = sections.iter().find(|section| section.part == Some(part));
        section.map(|section| Origin::Own(section.place.clone()))
    };
    let [train, validation, test] = [Part::Train, Part::Validation, Part::Test].map(place);
    // with one part alone, or none, everything is drawn
    let is_whole = [&train, &validation, &test].iter().filter(|part| part.is_some()).count() <= 1;
    let has_test = test.is_some();
    let origins = match (validation, test) {
        _ if is_whole => Origins { validation: Origin::TenthOfTrain, test: Origin::Fifth },
        (Some(validation), Some(test)) => Origins { validation, test },
        (Some(only), None) | (None, Some(only)) => Origins { validation: Origin::TenthOfTrain, test: only },
        (None, None) => Origins { validation: Origin::TenthOfTrain, test: Origin::Fifth },
    };
    let part_of = move |part: Option<Part>| match part {
        _ if is_whole => Part::Train,
        Some(Part::Validation) if !has_test => Part::Test,
        part => part.unwrap_or(Part::Train),
    };
    (origins, part_of)
}

/// The names of all classes: by number when all are numbers, in the order of the alphabet otherwise.
fn class_names(sections: &[ListedPart]) -> Vec<String> {
    let entries = sections.iter().flat_map(|section| &section.entries);
    let names: BTreeSet<&String> = entries.map(|entry| &entry.class).collect();
    let mut names: Vec<String> = names.into_iter().cloned().collect();
    if names.iter().all(|name| name.parse::<u32>().is_ok()) {
        names.sort_by_key(|name| name.parse::<u32>().unwrap_or(0));
    }
    names
}

/// Moves groups of training clips of every class to another part, by a hash of their names, until it has enough; as
/// `dataset::split::draw` where every clip is a group of its own. A class keeps at least one group.
fn draw(parts: &mut [Part], to: Part, count: fn(usize) -> usize, class: impl Fn(usize) -> usize, groups: &[String]) {
    type Groups<'a> = BTreeMap<&'a str, Vec<usize>>;
    let mut classes: BTreeMap<usize, Groups<'_>> = BTreeMap::new();
    for index in (0..parts.len()).filter(|&index| parts[index] == Part::Train) {
        classes.entry(class(index)).or_default().entry(groups[index].as_str()).or_default().push(index);
    }
    for groups in classes.into_values() {
        let wanted = count(groups.values().map(Vec::len).sum());
        let mut groups: Vec<([u8; 32], Vec<usize>)> =
            groups.into_iter().map(|(name, clips)| (Sha256::digest(name).into(), clips)).collect();
        groups.sort_unstable();
        groups.pop_if(|_| wanted > 0);
        let mut taken = 0;
        for (_, clips) in groups {
            if taken >= wanted {
                break;
            }
            taken += clips.len();
            clips.into_iter().for_each(|index| parts[index] = to);
        }
    }
}

/// Some of the clips that a layout has.
#[derive(Debug)]
struct ListedClips {
    of: Arc<Clips>,
    indices: Vec<usize>,
}

impl ListedClips {
    fn clip(&self, index: usize) -> &ListedClip {
        &self.of.clips[self.indices[index]]
    }
}

impl ListedClip {
    fn video(&self) -> Result<Video, Error> {
        if let Some(video) = self.video.get() {
            return Ok(video.clone());
        }
        let video = Video::open(&self.path)?;
        if video.is_costly_to_open() {
            return Ok(self.video.get_or_init(|| video).clone());
        }
        Ok(video)
    }
}

impl ClipDataset for ListedClips {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn classes(&self) -> &[String] {
        &self.of.classes
    }

    fn class(&self, index: usize) -> usize {
        self.clip(index).class
    }

    fn name(&self, index: usize) -> String {
        self.clip(index).path.display().to_string()
    }

    fn length(&self, index: usize) -> Result<ClipLength, Error> {
        let clip = self.clip(index);
        if let Some(length) = clip.length.get() {
            return Ok(*length);
        }
        let length = clip.video()?.length();
        Ok(*clip.length.get_or_init(|| length))
    }

    fn frames(&self, index: usize, wanted: &[usize]) -> Result<Vec<Picture>, Error> {
        self.clip(index).video()?.frames(wanted)
    }

    fn for_each_frame(&self, index: usize, each: &mut dyn FnMut(Picture)) -> Result<(), Error> {
        self.clip(index).video()?.for_each_frame(each)
    }

    fn path(&self, index: usize) -> Option<&Path> {
        Some(&self.clip(index).path)
    }
}
