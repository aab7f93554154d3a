//! Models of vision and language by name, shared by `ask`, `explain` and `serve`.

use burn::tensor::Device;
use regard::data::Bounds;
use regard::report::LabelledBox;
use regard::tasks::vision_language::{
    Answered, DetectedLimits, EMBEDDED_ANSWERERS, RegionCache, RegionRecipe, VisionLanguageBundle,
};
use regard::train::{read_recipe_text, task_of};
use std::io::{Write as _, stderr};
use std::path::Path;

use crate::failure::Failure;
use crate::model::no_model;

/// The detector for pictures of which nobody knows the boxes.
const DETECTOR: &str = "scenes-retinanet";

/// The lowest score of a box that it finds.
const SCORE: f64 = 0.3;

/// Whether a name is that of a model of vision and language: an embedded one, or the folder of such a run.
pub fn is_answerer(name: &str) -> bool {
    let folder = Path::new(name);
    if folder.join("model.toml").is_file() {
        let task = read_recipe_text(folder).and_then(|text| task_of(&text));
        return matches!(task, Ok(Some(task)) if task == "vision-language" || task == "vqa");
    }
    is_embedded(name)
}

pub fn is_embedded(name: &str) -> bool {
    EMBEDDED_ANSWERERS.iter().any(|one| one.name == name)
}

/// The named model, or the one that comes along.
pub fn name_or_usual(name: Option<&str>) -> Result<String, Failure> {
    match (name, EMBEDDED_ANSWERERS.first()) {
        (Some(name), _) => Ok(name.into()),
        (None, Some(usual)) => {
            let note = "which knows coloured garments; `--model` names another";
            writeln!(stderr(), "note: no model was named: the embedded `{}` answers, {note}", usual.name)?;
            Ok(usual.name.into())
        }
        (None, None) => Err(no_model()),
    }
}

/// A model for pictures of somebody, which have no boxes of a dataset: they are found by a detector where the model was trained on
/// boxes.
pub fn load(
    name: &str,
    detector: Option<&str>,
    cache: RegionCache,
    device: &Device,
) -> Result<VisionLanguageBundle, Failure> {
    let hint =
        "`--model` takes the folder that `regard train` of vision and language wrote, such as that of `questions`";
    let folder = Path::new(name);
    let opened = match EMBEDDED_ANSWERERS.iter().find(|one| one.name == name) {
        Some(embedded) if !folder.join("model.toml").is_file() => embedded.load(device),
        _ => VisionLanguageBundle::open(folder, device),
    };
    let bundle = opened.map_err(|error| Failure::input(error, hint))?;
    let regions = match (&bundle.recipe().own.regions, detector) {
        (RegionRecipe::Boxes { side, detector: None, limits }, None) => {
            let limits = DetectedLimits { score: SCORE, ..*limits };
            RegionRecipe::Boxes { side: *side, detector: Some(DETECTOR.into()), limits }
        }
        (RegionRecipe::Boxes { side, limits, .. }, Some(detector)) => {
            RegionRecipe::Boxes { side: *side, detector: Some(detector.into()), limits: *limits }
        }
        (_, Some(detector)) => {
            let message = format!("`--detector {detector}`: the model has regions of another source");
            return Err(Failure::input(message, "leave it out"));
        }
        (other, None) => other.clone(),
    };
    bundle
        .with_regions(&regions, cache)
        .map_err(|error| Failure::input(error, "`--detector` takes a detector by any of its names"))
}

/// Notes which detector finds regions if nobody chose it.
pub fn note_detector(bundle: &VisionLanguageBundle, detector: Option<&str>) -> Result<(), Failure> {
    if detector.is_none() && matches!(bundle.recipe().own.regions, RegionRecipe::Boxes { detector: None, .. }) {
        writeln!(stderr(), "note: regions are found by `{DETECTOR}`; `--detector` names another")?;
    }
    Ok(())
}

/// Notes words of a question that the model does not know.
pub fn note_unknown(answered: &Answered) -> Result<(), Failure> {
    if !answered.unknown.is_empty() {
        writeln!(stderr(), "note: the model does not know `{}`", answered.unknown.join("`, `"))?;
    }
    Ok(())
}

/// The regions of the first picture with their numbers, from 1 on.
pub fn labelled(answered: &Answered) -> Vec<LabelledBox> {
    let boxes = answered.regions.first().map_or(&[][..], Vec::as_slice);
    let one = |(number, corners): (usize, &[f32; 4])| LabelledBox {
        bounds: Bounds::from_corners(corners.map(f64::from)),
        label: (number + 1).to_string(),
        colour: number,
    };
    boxes.iter().enumerate().map(one).collect()
}
