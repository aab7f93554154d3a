//! `regard ask`: what is the answer to a question about a picture?

mod page;

use burn::tensor::Device;
use regard::Pass;
use regard::data::vision_language::OnePicture;
use regard::data::{Bounds, Picture};
use regard::report::{LabelledBox, draw_boxes};
use regard::tasks::vision_language::{
    DetectedLimits, EMBEDDED_ANSWERERS, RegionRecipe, ScoredAnswer, VisionLanguageBundle, VqaOutput,
};
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::detect::enlarged;
use crate::failure::Failure;
use crate::model::{at_least_one, no_model};
use crate::models::print_json;

/// Answer a question about a picture
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The picture
    #[arg(value_name = "PICTURE")]
    picture: PathBuf,

    /// The question, such as "what colour is the bag ?"
    #[arg(value_name = "QUESTION")]
    question: String,

    /// The second picture, for models of statements about two
    #[arg(long, value_name = "FILE")]
    second: Option<PathBuf>,

    /// The model: the folder of a run of vision and language, or one that comes along
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,

    /// Find regions with this detector, where the model was trained on boxes of its data; by default `scenes-retinanet`
    #[arg(long, value_name = "MODEL")]
    detector: Option<String>,

    /// Answers to print, the likeliest first
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = at_least_one)]
    top: usize,

    /// Write a page that shows which regions the words of the question look at
    #[arg(long, value_name = "FILE.html")]
    attention: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Json<'a> {
    picture: String,
    question: &'a str,
    answers: &'a [ScoredAnswer],
    tokens: &'a [String],
    /// Left, top, right and bottom as shares of the picture.
    regions: Vec<Vec<[f32; 4]>>,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.attention {
        crate::files::check_folder(path)?;
    }
    let bundle = load(args, device)?;
    let paths: Vec<&PathBuf> = std::iter::once(&args.picture).chain(&args.second).collect();
    let pictures = paths.iter().map(|path| Picture::open(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let shown: Vec<OnePicture> =
        pictures.iter().zip(&names).map(|(picture, name)| OnePicture { name, picture, boxes: &[] }).collect();
    let hint = "a question is a sentence such as `what colour is the bag ?`";
    let mut pass = if args.attention.is_some() { Pass::recording() } else { Pass::silent() };
    let (answered, _) =
        bundle.ask_with(&shown, &args.question, args.top, &mut pass).map_err(|error| Failure::input(error, hint))?;
    if let Some(path) = &args.attention {
        let drawn = draw_boxes(&enlarged(&pictures[0]), &labelled(&answered));
        page::write(path, &args.question, &answered, &pass.into_trace(), &drawn)?;
        writeln!(stderr(), "wrote {}", path.display())?;
    }
    if args.json {
        let regions = answered.regions.iter().map(|own| own.boxes.clone()).collect();
        let VqaOutput { answers, tokens, .. } = &answered;
        let picture = names[0].clone();
        return print_json(&Json { picture, question: &args.question, answers, tokens, regions }, out);
    }
    for ScoredAnswer { answer, probability } in &answered.answers {
        writeln!(out, "{:>6.2} %  {answer}", 100.0 * probability)?;
    }
    Ok(())
}

/// The regions with their numbers, from 1 on.
fn labelled(answered: &VqaOutput) -> Vec<LabelledBox> {
    let boxes = answered.regions.first().map_or(&[][..], |own| own.boxes.as_slice());
    let one = |(number, corners): (usize, &[f32; 4])| LabelledBox {
        bounds: Bounds::from_corners(corners.map(f64::from)),
        label: (number + 1).to_string(),
        colour: number,
    };
    boxes.iter().enumerate().map(one).collect()
}

fn load(args: &Args, device: &Device) -> Result<VisionLanguageBundle, Failure> {
    let name = match (&args.model, EMBEDDED_ANSWERERS.first()) {
        (Some(name), _) => name.clone(),
        (None, Some(usual)) => {
            let note = "which knows coloured garments; `--model` names another";
            writeln!(stderr(), "note: no model was named: the embedded `{}` answers, {note}", usual.name)?;
            usual.name.into()
        }
        (None, None) => return Err(no_model()),
    };
    let hint =
        "`--model` takes the folder that `regard train` of vision and language wrote, such as that of `questions`";
    let opened = match EMBEDDED_ANSWERERS.iter().find(|one| one.name == name) {
        Some(embedded) => embedded.load(device),
        None => VisionLanguageBundle::open(Path::new(&name), device),
    };
    let bundle = opened.map_err(|error| Failure::input(error, hint))?;
    // a picture of somebody has no boxes of a dataset
    let regions = match (&bundle.recipe().own.regions, &args.detector) {
        (RegionRecipe::Boxes { side, detector: None, limits }, detector) => {
            let detector = detector.clone().unwrap_or_else(|| "scenes-retinanet".into());
            writeln!(stderr(), "note: regions are found by `{detector}`; `--detector` names another")?;
            let limits = if args.detector.is_some() { *limits } else { DetectedLimits { score: 0.3, ..*limits } };
            Some(RegionRecipe::Boxes { side: *side, detector: Some(detector), limits })
        }
        (RegionRecipe::Boxes { side, limits, .. }, Some(detector)) => {
            Some(RegionRecipe::Boxes { side: *side, detector: Some(detector.clone()), limits: *limits })
        }
        (_, Some(detector)) => {
            let message = format!("`--detector {detector}`: the model has regions of another source");
            return Err(Failure::input(message, "leave it out"));
        }
        _ => None,
    };
    match regions {
        Some(regions) if !bundle.recipe().own.blind => bundle
            .with_regions(&regions)
            .map_err(|error| Failure::input(error, "`--detector` takes a detector by any of its names")),
        _ => Ok(bundle),
    }
}
