//! Joins the pictures and boxes of several files to parts with one list of classes.

use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::fmt::{self, Display};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::picture::{self, fitting_picture};
use super::{Annotation, DetectionDataset};
use crate::Error;
use crate::data::Picture;
use crate::data::dataset::split::{PartPlan, path_end};
use crate::data::dataset::{Origins, Part};

/// An error or warning about a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Issue {
    pub severity: Severity,
    pub file: String,
    /// What it is about, such as `annotation 17` or `line 3`.
    pub place: String,
    pub reason: String,
}

/// The severity of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Severity {
    /// Data with an error is refused for training.
    Error,
    /// Something was skipped or guessed.
    Warning,
}

impl Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.file, self.place, self.reason)
    }
}

impl Issue {
    pub fn error(file: &Path, place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(Severity::Error, file, place.into(), reason.into())
    }

    pub fn warning(file: &Path, place: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::new(Severity::Warning, file, place.into(), reason.into())
    }

    /// # Errors
    /// The first issue that is an error, and the number of others.
    pub(in crate::data) fn refuse_errors<'a>(issues: impl IntoIterator<Item = &'a Self>) -> Result<(), Error> {
        let mut errors = issues.into_iter().filter(|issue| issue.severity == Severity::Error);
        let Some(Self { file, place, reason, .. }) = errors.next() else { return Ok(()) };
        let more = match errors.count() {
            0 => String::new(),
            count => format!(" (and {count} more; `regard data check` lists them)"),
        };
        Err(Error::File { path: file.clone(), reason: format!("{place}: {reason}{more}") })
    }

    fn new(severity: Severity, file: &Path, place: String, reason: String) -> Self {
        // names come from files and may be of any length
        let short = |text: String| if text.len() > 300 { text.chars().take(300).collect() } else { text };
        Self { severity, file: file.display().to_string(), place: short(place), reason: short(reason) }
    }
}

/// A picture that a file lists.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPicture {
    pub path: PathBuf,
    pub id: u64,
    /// Rows and columns as the file has them.
    pub size: Option<[usize; 2]>,
    /// Classes are indices into those of the part. Boxes are in pixels, or fractions of the picture if `relative`.
    pub annotations: Vec<Annotation>,
    pub relative: bool,
}

/// The pictures that a file lists for one part.
#[derive(Clone, Debug, Default)]
pub struct ListedPart {
    /// `None` if the part is unknown.
    pub part: Option<Part>,
    /// The file or folder, for messages.
    pub place: String,
    pub classes: Vec<String>,
    pub entries: Vec<ListedPicture>,
    pub issues: Vec<Issue>,
}

impl ListedPart {
    /// Whether a box can be used: one that is not finite is an error, one without area is skipped with a warning.
    pub fn check_bounds(&mut self, file: &Path, place: impl Fn() -> String, field: &str, bounds: [f64; 4]) -> bool {
        if !bounds.iter().all(|side| side.is_finite()) {
            self.issues.push(Issue::error(file, place(), format!("`{field}`: not four finite numbers: {bounds:?}")));
            return false;
        }
        if bounds[2] <= 0.0 || bounds[3] <= 0.0 {
            let reason = format!("`{field}`: a box without area is left out: {bounds:?}");
            self.issues.push(Issue::warning(file, place(), reason));
            return false;
        }
        true
    }

    /// Reports a missing picture.
    pub fn check_present(&mut self, file: &Path, place: impl Fn() -> String, field: &str, name: &str, path: &Path) {
        if !path.is_file() {
            let reason = format!("`{field}`: no picture `{name}`, looked for {}", path.display());
            self.issues.push(Issue::error(file, place(), reason));
        }
    }
}

/// The part according to the name of a file or folder.
pub fn part_of_name(name: &str) -> Option<Part> {
    let name = name.to_lowercase();
    let words = name.split(|letter: char| !letter.is_alphabetic());
    let mut parts = words.filter_map(|word| match word {
        "train" | "training" | "trainval" => Some(Part::Train),
        "val" | "valid" | "validation" | "dev" | "minival" => Some(Part::Validation),
        "test" | "testing" => Some(Part::Test),
        _ => None,
    });
    parts.next()
}

/// All pictures of a source.
#[derive(Debug)]
pub struct Listing {
    entries: Arc<Entries>,
    parts: Vec<Part>,
    pub origins: Origins,
    pub issues: Vec<Issue>,
}

#[derive(Debug)]
struct Entries {
    classes: Vec<String>,
    entries: Vec<ListedPicture>,
}

impl Listing {
    pub fn new(mut sections: Vec<ListedPart>) -> Self {
        let order = [Some(Part::Train), Some(Part::Validation), Some(Part::Test), None];
        sections.sort_by_key(|section| order.iter().position(|part| *part == section.part));
        let plan = PartPlan::new(sections.iter().map(|section| (section.part, section.place.as_str())));
        let classes = join_classes(&mut sections);
        let (mut entries, mut parts, mut issues) = (Vec::new(), Vec::new(), Vec::new());
        for section in sections {
            parts.resize(parts.len() + section.entries.len(), plan.part_of(section.part));
            entries.extend(section.entries);
            issues.extend(section.issues);
        }
        plan.draw(&mut parts, |index| path_end(&entries[index].path));
        let origins = plan.origins;
        Self { entries: Arc::new(Entries { classes, entries }), parts, origins, issues }
    }

    /// # Errors
    /// The first error, and the number of errors.
    pub fn refuse_errors(&self) -> Result<(), Error> {
        Issue::refuse_errors(&self.issues)
    }

    /// The pictures of a part, in their order.
    pub fn only(&self, part: Part) -> Arc<dyn DetectionDataset> {
        let wanted = self.parts.iter().enumerate().filter(|(_, own)| part.contains(**own));
        let indices: Vec<usize> = wanted.map(|(index, _)| index).collect();
        let ids: HashSet<u64> = indices.iter().map(|&index| self.entries.entries[index].id).collect();
        Arc::new(Listed { own_ids: ids.len() == indices.len(), of: self.entries.clone(), indices })
    }
}

/// One list of classes by name, in the order of first occurrence.
fn join_classes(sections: &mut [ListedPart]) -> Vec<String> {
    let (mut classes, mut by_name): (Vec<String>, HashMap<String, usize>) = (Vec::new(), HashMap::new());
    for section in sections {
        let own = std::mem::take(&mut section.classes);
        let joined = own.into_iter().map(|name| {
            *by_name.entry(name).or_insert_with_key(|name| {
                classes.push(name.clone());
                classes.len() - 1
            })
        });
        let joined: Vec<usize> = joined.collect();
        let annotations = section.entries.iter_mut().flat_map(|entry| &mut entry.annotations);
        annotations.for_each(|annotation| annotation.class = joined[annotation.class]);
    }
    classes
}

/// A part of the listed pictures.
#[derive(Debug)]
struct Listed {
    of: Arc<Entries>,
    indices: Vec<usize>,
    /// Whether each id of a file occurs once: files of several parts may use the same ones.
    own_ids: bool,
}

impl Listed {
    fn entry(&self, index: usize) -> &ListedPicture {
        &self.of.entries[self.indices[index]]
    }
}

impl DetectionDataset for Listed {
    fn len(&self) -> usize {
        self.indices.len()
    }

    fn classes(&self) -> &[String] {
        &self.of.classes
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        let entry = self.entry(index);
        fitting_picture(&entry.path, entry.size)
    }

    fn annotations(&self, index: usize) -> Result<Vec<Annotation>, Error> {
        let entry = self.entry(index);
        if !entry.relative || entry.annotations.is_empty() {
            return Ok(entry.annotations.clone());
        }
        Ok(in_pixels(&entry.annotations, picture::orientation(&entry.path)?.upright()))
    }

    fn sample(&self, index: usize) -> Result<(Picture, Vec<Annotation>), Error> {
        let (entry, picture) = (self.entry(index), self.picture(index)?);
        let annotations =
            if entry.relative { in_pixels(&entry.annotations, picture.size()) } else { entry.annotations.clone() };
        Ok((picture, annotations))
    }

    fn image_id(&self, index: usize) -> u64 {
        if self.own_ids { self.entry(index).id } else { index as u64 + 1 }
    }

    fn name(&self, index: usize) -> String {
        self.entry(index).path.display().to_string()
    }

    fn declared_size(&self, index: usize) -> Option<[usize; 2]> {
        self.entry(index).size
    }

    fn path(&self, index: usize) -> Option<&Path> {
        Some(&self.entry(index).path)
    }
}

/// Converts relative boxes to pixels.
fn in_pixels(annotations: &[Annotation], [rows, columns]: [usize; 2]) -> Vec<Annotation> {
    let (rows, columns) = (rows as f64, columns as f64);
    let scaled = |annotation: &Annotation| {
        let [x, y, w, h] = annotation.bounds;
        let bounds = [x * columns, y * rows, w * columns, h * rows];
        Annotation { bounds, area: bounds[2] * bounds[3], ..*annotation }
    };
    annotations.iter().map(scaled).collect()
}

/// Candidate folders of pictures, the most recently used first.
pub struct Folders {
    folders: Vec<PathBuf>,
    last: usize,
}

impl Folders {
    pub fn new(folders: Vec<PathBuf>) -> Self {
        let mut known = Vec::new();
        folders.into_iter().filter(|folder| folder.is_dir()).for_each(|folder| {
            if !known.contains(&folder) {
                known.push(folder);
            }
        });
        Self { folders: known, last: 0 }
    }

    /// Finds a file by a name that may contain folders of another machine; if there is none, returns where it should be.
    pub fn find(&mut self, name: &str) -> PathBuf {
        let name = name.replace('\\', "/");
        let path = Path::new(&name);
        let file = path.file_name().map_or(path, Path::new);
        let tries = |folder: &PathBuf| [folder.join(path), folder.join(file)].into_iter().find(|path| path.is_file());
        if let Some(found) = self.folders.get(self.last).and_then(tries) {
            return found;
        }
        for (index, folder) in self.folders.iter().enumerate() {
            if let Some(found) = tries(folder) {
                self.last = index;
                return found;
            }
        }
        self.folders.get(self.last).map_or_else(|| path.into(), |folder| folder.join(path))
    }
}
