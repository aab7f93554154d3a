//! Questions about and captions of the embedded scenes.

use std::sync::Arc;

use super::{GivenBox, TextKind, TextSample, VisionLanguageDataset};
use crate::Error;
use crate::data::world::{ANSWERS, KINDS, SCENE_SIDE, Scene, TEMPLATES, caption, question, scene, vocabulary};
use crate::data::{Bounds, Part, Picture};

pub const NAMES: [&str; 2] = [WorldQuestions::NAME, WorldCaptions::NAME];

/// One of train, validation or test by the name of the dataset.
pub fn open(name: &str, part: Part) -> Result<Arc<dyn VisionLanguageDataset>, Error> {
    if !matches!(part, Part::Train | Part::Validation | Part::Test) {
        return Err(Error::config("part", format!("`{name}` has train, validation and test, got {part}")));
    }
    let shared = Shared::new(name, part);
    Ok(if name == WorldQuestions::NAME { Arc::new(WorldQuestions(shared)) } else { Arc::new(WorldCaptions(shared)) })
}

#[derive(Clone, Debug)]
struct Shared {
    name: &'static str,
    part: Part,
    kinds: Vec<String>,
    answers: Vec<String>,
    templates: Vec<String>,
}

impl Shared {
    fn new(name: &str, part: Part) -> Self {
        let name = NAMES.into_iter().find(|known| *known == name).unwrap_or(NAMES[0]);
        Self {
            name,
            part,
            kinds: KINDS.map(|(name, _)| name.to_string()).to_vec(),
            answers: ANSWERS.map(String::from).to_vec(),
            templates: TEMPLATES.map(String::from).to_vec(),
        }
    }

    fn title(&self, index: usize) -> String {
        format!("{} {} #{index}", self.name, self.part)
    }

    /// The boxes of a scene as somebody would draw them.
    fn boxes(scene: &Scene) -> Vec<GivenBox> {
        let given = |(corners, kind)| {
            let bounds = Bounds::from_pixel_corners(corners, [SCENE_SIDE; 2]);
            GivenBox { bounds, class: Some(kind) }
        };
        scene.drawn_boxes().into_iter().map(given).collect()
    }
}

/// Questions about scenes: 19,200 for training, 960 for validation, 3,840 for the test, so that every answer of every template is
/// exactly as frequent as the others.
#[derive(Clone, Debug)]
pub struct WorldQuestions(Shared);

impl WorldQuestions {
    pub const NAME: &'static str = "questions";
}

impl VisionLanguageDataset for WorldQuestions {
    fn len(&self) -> usize {
        match self.0.part {
            Part::Validation => 960,
            Part::Test => 3840,
            _ => 19_200,
        }
    }

    fn kind(&self) -> TextKind {
        TextKind::Questions
    }

    fn sample(&self, index: usize) -> Result<TextSample, Error> {
        let question = question(0, self.0.part, index);
        Ok(TextSample {
            text: question.text,
            answers: vec![(ANSWERS[question.answer].into(), 1.0)],
            group: Some(question.template),
            answer_type: None,
        })
    }

    fn picture_id(&self, index: usize, _: usize) -> u64 {
        index as u64
    }

    fn picture(&self, index: usize, _: usize) -> Result<Picture, Error> {
        Ok(question(0, self.0.part, index).scene.picture())
    }

    fn boxes(&self, index: usize, _: usize, _: &Picture) -> Result<Vec<GivenBox>, Error> {
        Ok(Shared::boxes(&question(0, self.0.part, index).scene))
    }

    fn box_classes(&self) -> &[String] {
        &self.0.kinds
    }

    fn picture_name(&self, index: usize, _: usize) -> String {
        self.0.title(index)
    }

    fn name(&self, index: usize) -> String {
        self.0.title(index)
    }

    fn groups(&self) -> &[String] {
        &self.0.templates
    }

    fn answers(&self) -> Option<&[String]> {
        Some(&self.0.answers)
    }

    fn vocabulary(&self) -> Option<String> {
        Some(vocabulary())
    }
}

/// Captions of the scenes of the dataset `scenes`: 20,000, 1,000 and 2,000.
#[derive(Clone, Debug)]
pub struct WorldCaptions(Shared);

impl WorldCaptions {
    pub const NAME: &'static str = "captions";

    fn scene(&self, index: usize) -> Scene {
        scene(0, self.0.part, index)
    }
}

impl VisionLanguageDataset for WorldCaptions {
    fn len(&self) -> usize {
        match self.0.part {
            Part::Validation => 1000,
            Part::Test => 2000,
            _ => 20_000,
        }
    }

    fn kind(&self) -> TextKind {
        TextKind::Captions
    }

    fn sample(&self, index: usize) -> Result<TextSample, Error> {
        let text = caption(0, self.0.part, index, &self.scene(index)).text();
        Ok(TextSample { text, ..TextSample::default() })
    }

    fn hard_negative(&self, index: usize, draw_id: [u64; 2]) -> Option<String> {
        Some(caption(0, self.0.part, index, &self.scene(index)).hard_negative(draw_id).text())
    }

    fn picture_id(&self, index: usize, _: usize) -> u64 {
        index as u64
    }

    fn picture(&self, index: usize, _: usize) -> Result<Picture, Error> {
        Ok(self.scene(index).picture())
    }

    fn boxes(&self, index: usize, _: usize, _: &Picture) -> Result<Vec<GivenBox>, Error> {
        Ok(Shared::boxes(&self.scene(index)))
    }

    fn box_classes(&self) -> &[String] {
        &self.0.kinds
    }

    fn picture_name(&self, index: usize, _: usize) -> String {
        self.0.title(index)
    }

    fn name(&self, index: usize) -> String {
        self.0.title(index)
    }

    fn vocabulary(&self) -> Option<String> {
        Some(vocabulary())
    }
}
