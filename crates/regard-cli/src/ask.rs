//! `regard ask`: what is the answer to a question about a picture?

mod page;

use burn::tensor::Device;
use regard::Pass;
use regard::data::Picture;
use regard::data::vision_language::OnePicture;
use regard::report::draw_boxes;
use regard::tasks::vision_language::{Answered, RegionCache, SaidAnswer};
use serde::Serialize;
use std::io::{Write, stderr};
use std::path::PathBuf;

use crate::answerer::{self, labelled, note_unknown};
use crate::detect::enlarged;
use crate::failure::Failure;
use crate::model::at_least_one;
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
    answers: &'a [SaidAnswer],
    tokens: &'a [String],
    /// Left, top, right and bottom as shares of the picture.
    regions: Vec<Vec<[f32; 4]>>,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(path) = &args.attention {
        crate::files::check_folder(path)?;
    }
    let name = answerer::name_or_usual(args.model.as_deref())?;
    let bundle = answerer::load(&name, args.detector.as_deref(), RegionCache::OnDisk, device)?;
    answerer::note_detector(&bundle, args.detector.as_deref())?;
    let paths: Vec<&PathBuf> = std::iter::once(&args.picture).chain(&args.second).collect();
    let pictures = paths.iter().map(|path| Picture::open(path)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let shown: Vec<OnePicture> =
        pictures.iter().zip(&names).map(|(picture, name)| OnePicture { name, picture, boxes: &[] }).collect();
    let hint = "a question is a sentence such as `what colour is the bag ?`";
    let mut pass = if args.attention.is_some() { Pass::recording() } else { Pass::silent() };
    let (answered, _) =
        bundle.ask_with(&shown, &args.question, args.top, &mut pass).map_err(|error| Failure::input(error, hint))?;
    note_unknown(&answered)?;
    if let Some(path) = &args.attention {
        let drawn = draw_boxes(&enlarged(&pictures[0]), &labelled(&answered));
        page::write(path, &args.question, &answered, &pass.into_trace(), &drawn)?;
        writeln!(stderr(), "wrote {}", path.display())?;
    }
    if args.json {
        let regions = answered.regions.clone();
        let Answered { answers, tokens, .. } = &answered;
        let picture = names[0].clone();
        return print_json(&Json { picture, question: &args.question, answers, tokens, regions }, out);
    }
    for SaidAnswer { answer, probability } in &answered.answers {
        writeln!(out, "{:>6.2} %  {answer}", 100.0 * probability)?;
    }
    Ok(())
}
