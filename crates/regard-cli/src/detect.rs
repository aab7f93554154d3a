//! `regard detect`: finds objects in pictures.

use burn::tensor::Device;
use indicatif::ProgressBar;
use regard::data::{Detection, Filter, Picture};
use regard::report::{LabelledBox, draw_boxes};
use regard::tasks::detect::Tiles;
use regard::weights::{EMBEDDED_DETECTORS, LoadedDetector, resolve_detector};
use regard::{Pass, file};
use serde::Serialize;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{Write, stderr};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::model::{at_least_one, class_names, download_bar, no_model, note_untrained};
use crate::models::print_json;
use crate::predict::{PictureArgs, Source};

/// Find objects in pictures: boxes with classes and scores
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    pictures: PictureArgs,

    /// The detector: a run folder, PRESET=WEIGHTS, FILE.toml=WEIGHTS, or an embedded one
    #[arg(short, long, value_name = "MODEL")]
    model: Option<String>,

    /// Show boxes of this score or more
    #[arg(long, value_name = "SCORE", default_value_t = 0.5, value_parser = score)]
    threshold: f64,

    /// Write every picture with its boxes, and `detections.json` in COCO's format, into this folder
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Also write a YOLO text file for each picture into the folder
    #[arg(long, requires = "output")]
    yolo: bool,

    /// Pictures at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = at_least_one)]
    batch: usize,

    /// Cut pictures into tiles of this side that overlap by a quarter: for small objects on large pictures
    #[arg(long, value_name = "PIXELS", value_parser = at_least_one, conflicts_with = "batch")]
    tile: Option<usize>,

    /// File of class names, one per line; by default the model's own
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Print JSON: detections in COCO's format, with the path of the picture
    #[arg(long)]
    json: bool,
}

/// A score from 0 to 1.
pub fn score(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(score) if (0.0..=1.0).contains(&score) => Ok(score),
        _ => Err("must be from 0 to 1".into()),
    }
}

/// A detection in COCO's result format, with readable additions.
#[derive(Clone, Debug, Serialize)]
struct Found {
    picture: String,
    /// From 1 on, in the order of the pictures.
    image_id: usize,
    category_id: usize,
    category: String,
    /// Left, top, width and height in pixels.
    bbox: [f64; 4],
    score: f64,
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let pictures = args.pictures.sources()?;
    let detector = load(args, device)?;
    let names = class_names(args.labels.as_ref(), detector.labels.as_ref(), detector.config.classes())?;
    let drawings = args.output.as_ref().map(|folder| Drawings::new(folder, args.yolo)).transpose()?;
    let bar = if pictures.len() > 1 { ProgressBar::new(pictures.len() as u64) } else { ProgressBar::hidden() };
    let (mut all, mut bad) = (Vec::new(), 0);
    for (batch, sources) in pictures.chunks(args.batch).enumerate() {
        let mut opened = Vec::new();
        for (place, source) in sources.iter().enumerate() {
            match source.read() {
                Ok(picture) => opened.push((batch * args.batch + place, source, picture)),
                // one bad file does not stop the others
                Err(error) => {
                    bad += 1;
                    bar.suspend(|| writeln!(stderr(), "error: {error}"))?;
                }
            }
        }
        let detections = detect(args, &detector, &opened, device)?;
        for ((index, source, picture), detections) in opened.iter().zip(detections) {
            let shown: Vec<Detection> = detections.into_iter().filter(|one| one.score >= args.threshold).collect();
            let found = described(*index, source, picture, &shown, &names);
            if let Some(drawings) = &drawings {
                drawings.write(source, picture, &shown, &names)?;
            }
            if !args.json {
                bar.suspend(|| text(&source.name(), &found, out))?;
            }
            all.extend(found);
        }
        bar.inc(sources.len() as u64);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&all, out)?;
    }
    if let Some(Drawings { folder, .. }) = &drawings {
        let json = serde_json::to_vec_pretty(&all).expect("plain data");
        written(&folder.join("detections.json"), &json)?;
        writeln!(stderr(), "{} boxes on {} pictures: {}", all.len(), pictures.len() - bad, folder.display())?;
    }
    match bad {
        0 => Ok(()),
        bad => Err(Failure::input(
            format!("{bad} of {} pictures could not be read", pictures.len()),
            "each is named above",
        )),
    }
}

fn load(args: &Args, device: &Device) -> Result<LoadedDetector, Failure> {
    let name = match (&args.model, EMBEDDED_DETECTORS.first()) {
        (Some(name), _) => name.clone(),
        (None, Some(usual)) => {
            let note = "which knows eight kinds of garments; `--model` names another";
            writeln!(stderr(), "note: no model was named: the embedded `{}` answers, {note}", usual.name)?;
            usual.name.into()
        }
        (None, None) => return Err(no_model()),
    };
    load_detector(&name, device)
}

/// A detector by its name; prints a note if its weights are untrained.
pub fn load_detector(name: &str, device: &Device) -> Result<LoadedDetector, Failure> {
    let source = resolve_detector(name, &mut download_bar())?;
    if source.is_fresh() {
        note_untrained(name)?;
    }
    Ok(source.load(device)?)
}

fn detect(
    args: &Args,
    detector: &LoadedDetector,
    opened: &[(usize, &Source, Picture)],
    device: &Device,
) -> Result<Vec<Vec<Detection>>, Failure> {
    let LoadedDetector { model, preprocess, .. } = detector;
    if let Some(side) = args.tile {
        let tiles = Tiles::of_side(side);
        let found = opened.iter().map(|(_, _, picture)| tiles.detect(model, picture, preprocess, device));
        return Ok(found.collect::<Result<_, _>>()?);
    }
    if opened.is_empty() {
        return Ok(Vec::new());
    }
    let prepared: Vec<_> = opened.iter().map(|(_, _, picture)| preprocess.prepare(picture)).collect();
    Ok(model.detect(&preprocess.batch(&prepared)?.to_device(device), &mut Pass::silent()))
}

fn described(index: usize, source: &Source, picture: &Picture, shown: &[Detection], names: &[String]) -> Vec<Found> {
    let rounded = |x: f64| (x * 100.0).round() / 100.0;
    let found = shown.iter().map(|one| Found {
        picture: source.name(),
        image_id: index + 1,
        category_id: one.class + 1,
        category: names[one.class].clone(),
        bbox: one.bounds.coco(picture.size()).map(rounded),
        score: one.score,
    });
    found.collect()
}

fn text(picture: &str, found: &[Found], out: &mut impl Write) -> Result<(), Failure> {
    writeln!(out, "{picture}")?;
    if found.is_empty() {
        writeln!(out, "  nothing")?;
    }
    let wide = found.iter().map(|one| one.category.chars().count()).max().unwrap_or(0);
    for Found { category, bbox: [x, y, w, h], score, .. } in found {
        writeln!(out, "  {score:.2}  {category:wide$}  x {x:.0}  y {y:.0}  {w:.0} x {h:.0}")?;
    }
    Ok(())
}

/// The output folder of pictures with boxes.
struct Drawings {
    folder: PathBuf,
    yolo: bool,
    /// Names in use: pictures in different folders may have the same name.
    taken: RefCell<BTreeSet<String>>,
}

impl Drawings {
    fn new(folder: &Path, yolo: bool) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder).map_err(|error| {
            Failure::input(format!("cannot make `{}`: {error}", folder.display()), "is the folder writable?")
        })?;
        Ok(Self { folder: folder.to_path_buf(), yolo, taken: RefCell::default() })
    }

    fn write(&self, source: &Source, picture: &Picture, shown: &[Detection], names: &[String]) -> Result<(), Failure> {
        let stem = self.stem(source);
        let boxes: Vec<LabelledBox> = shown
            .iter()
            .map(|one| LabelledBox {
                bounds: one.bounds,
                label: format!("{} {:.2}", names[one.class], one.score),
                colour: one.class,
            })
            .collect();
        let drawn = draw_boxes(&enlarged(picture), &boxes);
        let [rows, columns] = drawn.size().map(|side| side as u32);
        let image =
            image::RgbImage::from_raw(columns, rows, drawn.pixels().to_vec()).expect("as many pixels as it has");
        let mut bytes = std::io::Cursor::new(Vec::new());
        image
            .write_to(&mut bytes, image::ImageFormat::Png)
            .map_err(|error| Failure::ours(error, "the picture with its boxes could not be made"))?;
        written(&self.folder.join(format!("{stem}.png")), bytes.get_ref())?;
        if self.yolo {
            let mut lines = String::new();
            for Detection { class, score, bounds } in shown {
                let regard::data::Bounds { cx, cy, w, h } = bounds;
                writeln!(lines, "{class} {cx:.6} {cy:.6} {w:.6} {h:.6} {score:.4}").expect("a text grows");
            }
            written(&self.folder.join(format!("{stem}.txt")), lines.as_bytes())?;
        }
        Ok(())
    }

    /// The name of the picture without extension, with a number if it is in use.
    fn stem(&self, source: &Source) -> String {
        let name = match source {
            Source::File(path) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            Source::Stdin => "stdin".into(),
        };
        let mut taken = self.taken.borrow_mut();
        let mut candidates = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
        let free = candidates.find(|candidate| !taken.contains(candidate)).expect("numbers do not end");
        taken.insert(free.clone());
        free
    }
}

/// Enlarges a small picture by a whole factor, so that labels are small in comparison.
pub fn enlarged(picture: &Picture) -> Picture {
    const LEAST_SIDE: usize = 384;
    let [rows, columns] = picture.size();
    match LEAST_SIDE / rows.max(columns) {
        0 | 1 => picture.clone(),
        factor => picture.resize([rows * factor, columns * factor], Filter::Bilinear),
    }
}

fn written(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    file::replace(path, bytes).map_err(|error| {
        Failure::ours(format!("cannot write `{}`: {error}", path.display()), "is the folder writable, the disk full?")
    })
}
