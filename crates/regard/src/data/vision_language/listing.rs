//! Texts and pictures that files list, joined to parts. No picture is in two of them.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{GivenBox, PictureUse, TextKind, TextSample, VisionLanguageDataset};
use crate::Error;
use crate::data::Picture;
use crate::data::dataset::split::{PartPlan, path_end};
use crate::data::dataset::{Origins, Part};
use crate::data::detection::Issue;

/// A picture that a file names.
#[derive(Clone, Debug)]
pub struct PictureEntry {
    pub path: PathBuf,
    /// Pictures of one series are in the same part.
    pub series: String,
    pub boxes: Option<Arc<dyn PictureBoxes>>,
}

/// Boxes that a format has for a picture.
pub trait PictureBoxes: std::fmt::Debug + Send + Sync {
    /// The reason why they do not fit.
    fn boxes(&self, picture: &Picture) -> Result<Vec<GivenBox>, String>;
}

impl PictureEntry {
    pub fn new(path: PathBuf) -> Self {
        Self { series: path_end(&path), path, boxes: None }
    }
}

/// A text that a file has.
#[derive(Clone, Debug)]
pub struct TextEntry {
    /// Numbers of the section's pictures.
    pub pictures: Vec<usize>,
    /// Where it is, such as `line 3`.
    pub place: String,
    pub sample: TextSample,
}

/// What is listed for one part.
#[derive(Clone, Debug)]
pub struct ListedPart {
    /// None when nothing says which part it is.
    pub part: Option<Part>,
    /// The file, for people.
    pub file: PathBuf,
    pub kind: TextKind,
    pub pictures: Vec<PictureEntry>,
    pub texts: Vec<TextEntry>,
    pub groups: Vec<String>,
    pub answer_types: Vec<String>,
    /// Of boxes.
    pub classes: Vec<String>,
    pub issues: Vec<Issue>,
    /// Pictures that are not there.
    pub missing: Vec<Issue>,
}

impl ListedPart {
    pub fn new(part: Option<Part>, file: &Path, kind: TextKind) -> Self {
        Self {
            part,
            file: file.into(),
            kind,
            pictures: Vec::new(),
            texts: Vec::new(),
            groups: Vec::new(),
            answer_types: Vec::new(),
            classes: Vec::new(),
            issues: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Says that a picture is not where it should be.
    pub fn check_present(&mut self, place: impl Fn() -> String, field: &str, name: &str, path: &Path) {
        if !path.is_file() {
            let reason = format!("`{field}`: no picture `{name}`, looked for {}", path.display());
            self.missing.push(Issue::error(&self.file, place(), reason));
        }
    }

    /// Whether a text says something; one that does not is left out with a warning.
    pub fn check_text(&mut self, place: &str, field: &str, text: &str) -> bool {
        let is_empty = text.trim().is_empty();
        if is_empty {
            self.issues.push(Issue::warning(&self.file, place, format!("`{field}`: an empty text is left out")));
        }
        !is_empty
    }

    pub fn error(&mut self, place: impl Into<String>, reason: impl Into<String>) {
        self.issues.push(Issue::error(&self.file, place, reason));
    }
}

/// Numbers of names, in the order in which they come.
#[derive(Debug, Default)]
pub struct Names {
    pub names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Names {
    pub fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        self.names.push(name.into());
        self.numbers.insert(name.into(), self.names.len() - 1);
        self.names.len() - 1
    }
}

/// All sections of a source.
#[derive(Debug)]
pub struct Listing {
    entries: Arc<Entries>,
    /// Of each text.
    parts: Vec<Part>,
    pub origins: Origins,
    pub issues: Vec<Issue>,
    pub missing: Vec<Issue>,
}

#[derive(Debug)]
struct Entries {
    kind: TextKind,
    /// Pictures of a text.
    each: usize,
    pictures: Vec<PictureEntry>,
    texts: Vec<(Arc<PathBuf>, TextEntry)>,
    groups: Vec<String>,
    answer_types: Vec<String>,
    classes: Vec<String>,
}

impl Listing {
    /// # Errors
    /// When there is no text, or texts of different kinds.
    pub fn new(mut sections: Vec<ListedPart>) -> Result<Self, Error> {
        let order = [Some(Part::Train), Some(Part::Validation), Some(Part::Test), None];
        sections.sort_by_key(|section| order.iter().position(|part| *part == section.part));
        let places: Vec<String> = sections.iter().map(|section| section.file.display().to_string()).collect();
        let own = sections.iter().map(|section| section.part).zip(places.iter().map(String::as_str));
        let plan = PartPlan::new(own);
        let file = sections.first().map_or_else(PathBuf::new, |section| section.file.clone());
        let kind = sections.first().map_or(TextKind::Captions, |section| section.kind);
        if let Some(other) = sections.iter().find(|section| section.kind != kind) {
            return Err(Error::file(&other.file, format!("other texts than those of {}", file.display())));
        }
        let mut entries = Entries {
            kind,
            each: 1,
            pictures: Vec::new(),
            texts: Vec::new(),
            groups: Vec::new(),
            answer_types: Vec::new(),
            classes: Vec::new(),
        };
        let (mut parts, mut issues, mut missing) = (Vec::new(), Vec::new(), Vec::new());
        let [mut groups, mut answer_types, mut classes] = [Names::default(), Names::default(), Names::default()];
        let mut of_picture = Vec::new();
        for section in sections {
            let part = plan.part_of(section.part);
            let numbers = |names: &mut Names, own: &[String]| -> Vec<usize> {
                own.iter().map(|name| names.number(name)).collect()
            };
            let own_groups = numbers(&mut groups, &section.groups);
            let own_types = numbers(&mut answer_types, &section.answer_types);
            // formats with classes have the same ones everywhere
            numbers(&mut classes, &section.classes);
            let (first, file) = (entries.pictures.len(), Arc::new(section.file));
            of_picture.resize(first + section.pictures.len(), part);
            entries.pictures.extend(section.pictures);
            issues.extend(section.issues);
            missing.extend(section.missing);
            for mut text in section.texts {
                text.pictures.iter_mut().for_each(|picture| *picture += first);
                text.sample.group = text.sample.group.map(|group| own_groups[group]);
                text.sample.answer_type = text.sample.answer_type.map(|kind| own_types[kind]);
                entries.each = text.pictures.len();
                entries.texts.push((file.clone(), text));
            }
        }
        if entries.texts.is_empty() {
            return Err(Error::file(&file, "no text about a picture"));
        }
        draw_series(&plan, &entries.pictures, &mut of_picture);
        parts.extend(entries.texts.iter().map(|(_, text)| of_picture[text.pictures[0]]));
        (entries.groups, entries.answer_types, entries.classes) = (groups.names, answer_types.names, classes.names);
        Ok(Self { entries: Arc::new(entries), parts, origins: plan.origins, issues, missing })
    }

    /// # Errors
    /// The first issue with which nothing can be trained, and how many there are.
    pub fn refuse_errors(&self, pictures: PictureUse) -> Result<(), Error> {
        let missing = self.missing.iter().filter(|_| pictures == PictureUse::Needed);
        Issue::refuse_errors(self.issues.iter().chain(missing))
    }

    /// The texts of a part, in their order.
    pub fn only(&self, part: Part) -> Arc<dyn VisionLanguageDataset> {
        let wanted = self.parts.iter().enumerate().filter(|(_, own)| part.contains(**own));
        let indices = wanted.map(|(index, _)| index).collect();
        Arc::new(Listed { of: self.entries.clone(), indices })
    }
}

/// Draws the parts that are missing by series, so that all pictures of one are together.
fn draw_series(plan: &PartPlan, pictures: &[PictureEntry], of_picture: &mut [Part]) {
    let is_train = |part: &Part| *part == Part::Train;
    let learned = pictures.iter().zip(of_picture.iter()).filter(|(_, part)| is_train(part));
    let series: BTreeSet<&str> = learned.map(|(picture, _)| picture.series.as_str()).collect();
    let series: Vec<&str> = series.into_iter().collect();
    let mut parts = vec![Part::Train; series.len()];
    plan.draw(&mut parts, |index| series[index].to_string());
    for (picture, part) in pictures.iter().zip(of_picture).filter(|(_, part)| is_train(part)) {
        if let Ok(own) = series.binary_search(&picture.series.as_str()) {
            *part = parts[own];
        }
    }
}

/// Some of the texts that files list.
#[derive(Debug)]
struct Listed {
    of: Arc<Entries>,
    indices: Vec<usize>,
}

impl Listed {
    fn text(&self, index: usize) -> &TextEntry {
        &self.of.texts[self.indices[index]].1
    }

    fn entry(&self, index: usize, which: usize) -> &PictureEntry {
        &self.of.pictures[self.text(index).pictures[which]]
    }
}

impl VisionLanguageDataset for Listed {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn kind(&self) -> TextKind {
        self.of.kind
    }

    fn sample(&self, index: usize) -> Result<TextSample, Error> {
        Ok(self.text(index).sample.clone())
    }

    fn pictures(&self) -> usize {
        self.of.each
    }

    fn picture_id(&self, index: usize, which: usize) -> u64 {
        self.text(index).pictures[which] as u64
    }

    fn picture(&self, index: usize, which: usize) -> Result<Picture, Error> {
        Picture::open(&self.entry(index, which).path)
    }

    fn picture_name(&self, index: usize, which: usize) -> String {
        self.entry(index, which).path.display().to_string()
    }

    fn picture_path(&self, index: usize, which: usize) -> Option<&Path> {
        Some(&self.entry(index, which).path)
    }

    fn boxes(&self, index: usize, which: usize, picture: &Picture) -> Result<Vec<GivenBox>, Error> {
        let entry = self.entry(index, which);
        let Some(boxes) = &entry.boxes else { return Ok(Vec::new()) };
        boxes.boxes(picture).map_err(|reason| Error::file(&entry.path, reason))
    }

    fn box_classes(&self) -> &[String] {
        &self.of.classes
    }

    fn name(&self, index: usize) -> String {
        let (file, text) = &self.of.texts[self.indices[index]];
        format!("{}: {}", file.display(), text.place)
    }

    fn groups(&self) -> &[String] {
        &self.of.groups
    }

    fn answer_types(&self) -> &[String] {
        &self.of.answer_types
    }
}
