//! VQA v2 (and v1): a file of questions and one of annotations for each part, as visualqa.org has them. The test part has no
//! annotations: its questions are left out.

use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::collections::HashMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use super::answers::vqa_scores;
use super::listing::{ListedPart, Names, PictureEntry, TextEntry};
use super::{TextKind, TextSample, normalised};
use crate::data::Part;
use crate::data::dataset::entries;
use crate::data::detection::{Folders, part_of_name};
use crate::{Error, file};

/// The annotations of the training part have 400 megabytes.
const MOST_BYTES: u64 = 1 << 30;
/// How many bytes of a file are read to recognise it.
const GLANCE: u64 = 1 << 14;

/// Reads the start of a `.json` file.
pub(super) fn glance(path: &Path, bytes: u64) -> Option<String> {
    let is_json = path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("json"));
    let opened = if is_json { file::open_regular(path).ok()? } else { return None };
    let mut start = Vec::new();
    opened.take(bytes).read_to_end(&mut start).ok()?;
    Some(String::from_utf8_lossy(&start).into_owned())
}

/// Reads a large JSON file.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path, most: u64) -> Result<T, Error> {
    let bytes = file::read_bounded(path, most)?;
    serde_json::from_slice(&bytes).map_err(|error| Error::file(path, error))
}

/// The files of a folder, of its folder of annotations, or the file itself.
pub(super) fn candidates(path: &Path) -> Vec<PathBuf> {
    if !path.is_dir() {
        return vec![path.into()];
    }
    let folders = [path.to_path_buf(), path.join("annotations"), path.join("questions")];
    folders.iter().filter(|folder| folder.is_dir()).flat_map(|folder| entries(folder).unwrap_or_default()).collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Questions,
    Annotations,
}

fn kind_of(path: &Path) -> Option<Kind> {
    let text = glance(path, GLANCE)?;
    let has = |key: &str| text.contains(&format!("\"{key}\""));
    match (has("question_id"), has("question"), has("answers") || has("multiple_choice_answer")) {
        (true, _, true) => Some(Kind::Annotations),
        (true, true, false) => Some(Kind::Questions),
        _ => None,
    }
}

fn part_of(path: &Path) -> Option<Part> {
    part_of_name(&path.file_stem().unwrap_or_default().to_string_lossy())
}

fn files(path: &Path, kind: Kind) -> Vec<PathBuf> {
    candidates(path).into_iter().filter(|file| kind_of(file) == Some(kind)).collect()
}

pub fn is_here(path: &Path) -> bool {
    path.is_dir() && !files(path, Kind::Questions).is_empty() && !files(path, Kind::Annotations).is_empty()
}

#[derive(Deserialize)]
struct QuestionFile {
    questions: Vec<Question>,
    #[serde(default)]
    data_subtype: String,
}

#[derive(Deserialize)]
struct Question {
    image_id: u64,
    #[serde(rename = "question")]
    text: String,
    #[serde(rename = "question_id")]
    id: u64,
}

#[derive(Deserialize)]
struct AnnotationFile {
    annotations: Vec<Annotation>,
}

#[derive(Deserialize)]
struct Annotation {
    question_id: u64,
    #[serde(default)]
    question_type: Option<String>,
    #[serde(default)]
    answer_type: Option<String>,
    #[serde(default)]
    multiple_choice_answer: Option<String>,
    #[serde(default)]
    answers: Vec<Answer>,
}

#[derive(Deserialize)]
struct Answer {
    answer: String,
}

pub fn read(path: &Path) -> Result<Vec<ListedPart>, Error> {
    let annotations = files(path, Kind::Annotations);
    let mut sections = Vec::new();
    for questions in files(path, Kind::Questions) {
        let part = part_of(&questions);
        let alone = annotations.len() == 1;
        // a part without annotations has nothing to learn or to measure
        if let Some(answers) = annotations.iter().find(|file| part_of(file) == part || alone && part.is_none()) {
            sections.push(section(path, part, &questions, answers)?);
        }
    }
    Ok(sections)
}

fn section(root: &Path, part: Option<Part>, questions: &Path, answers: &Path) -> Result<ListedPart, Error> {
    let QuestionFile { questions: rows, data_subtype } = read_json(questions, MOST_BYTES)?;
    let annotations: AnnotationFile = read_json(answers, MOST_BYTES)?;
    let mut by_id: HashMap<u64, Annotation> =
        annotations.annotations.into_iter().map(|annotation| (annotation.question_id, annotation)).collect();
    let mut section = ListedPart::new(part, questions, TextKind::Questions);
    let (mut groups, mut types) = (Names::default(), Names::default());
    let mut pictures = CocoPictures::new(root, &data_subtype);
    for Question { image_id, text, id } in rows {
        let place = format!("question {id}");
        let Some(annotation) = by_id.remove(&id) else {
            section.error(place, format!("`question_id`: no annotation in {}", answers.display()));
            continue;
        };
        if !section.check_text(&place, "question", &text) {
            continue;
        }
        let mut scores = vqa_scores(annotation.answers.iter().map(|one| one.answer.as_str()));
        if scores.is_empty() {
            scores.extend(annotation.multiple_choice_answer.as_ref().map(|answer| (normalised(answer), 1.0)));
        }
        if scores.is_empty() {
            section.error(place, "`answers`: no answer");
            continue;
        }
        let picture = pictures.find(&mut section, image_id, &place);
        let sample = TextSample {
            text,
            answers: scores,
            group: annotation.question_type.map(|name| groups.number(&name)),
            answer_type: annotation.answer_type.map(|name| types.number(&name)),
        };
        section.texts.push(TextEntry { pictures: vec![picture], place, sample });
    }
    (section.groups, section.answer_types) = (groups.names, types.names);
    Ok(section)
}

/// Pictures by COCO's numbers.
struct CocoPictures {
    subset: String,
    folders: Folders,
    numbers: HashMap<u64, usize>,
}

impl CocoPictures {
    fn new(root: &Path, subset: &str) -> Self {
        let mut folders = Vec::new();
        for base in [root.to_path_buf(), root.join("images"), root.parent().unwrap_or(root).join("images")] {
            folders.push(base.join(subset));
            folders.push(base.clone());
        }
        Self { subset: subset.into(), folders: Folders::new(folders), numbers: HashMap::new() }
    }

    /// The number in the section of a picture, which is added when it is new.
    fn find(&mut self, section: &mut ListedPart, image: u64, place: &str) -> usize {
        if let Some(number) = self.numbers.get(&image) {
            return *number;
        }
        let names = [format!("COCO_{}_{image:012}", self.subset), format!("{image:012}"), image.to_string()];
        let endings = ["jpg", "png"];
        let names = names.iter().flat_map(|name| endings.map(|ending| format!("{name}.{ending}")));
        let found: Vec<PathBuf> = names.map(|name| self.folders.find(&name)).collect();
        let path = found.iter().find(|path| path.is_file()).unwrap_or(&found[0]).clone();
        section.check_present(|| place.into(), "image_id", &image.to_string(), &path);
        section.pictures.push(PictureEntry::new(path));
        self.numbers.insert(image, section.pictures.len() - 1);
        section.pictures.len() - 1
    }
}
