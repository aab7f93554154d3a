//! `regard data browse` for detection datasets: a sheet of pictures with boxes.

use image::{DynamicImage, ImageFormat, Rgb, RgbImage, imageops};
use regard::data::detection::{DetectionDataset, DetectionSample, open};
use regard::data::{DetectionAugment, Part, Picture};
use regard::random::{Purpose, generator};
use regard::report::{LabelledBox, draw_boxes};
use serde::Deserialize;
use std::io::{Write as _, stderr};

use super::browse::Args;
use super::unusable_boxes;
use crate::failure::Failure;
use crate::files;

/// Pixels of the longer side of a picture on the sheet.
const SIDE: usize = 320;
const GAP: u32 = 8;
const PAPER: Rgb<u8> = Rgb([250, 250, 248]);

/// The keys of a recipe that are used here.
#[derive(Deserialize)]
struct Recipe {
    #[serde(default)]
    augment: DetectionAugment,
}

pub fn run(args: &Args, format: ImageFormat) -> Result<(), Failure> {
    let dataset = open(&args.source, Part::Train).map_err(unusable_boxes)?;
    if dataset.is_empty() {
        return Err(Failure::input(format!("no pictures in `{}`", args.source), "is the path right?"));
    }
    let augment = augment(args.recipe.as_deref(), &*dataset)?;
    let sheet = sheet(&*dataset, &augment, args)?;
    files::write(&args.output, format, &DynamicImage::ImageRgb8(sheet))?;
    writeln!(
        stderr(),
        "{} of {} pictures with boxes: {}",
        args.rows * args.columns,
        dataset.len(),
        args.output.display()
    )?;
    Ok(())
}

/// The recipe's augmentation, or DETR's scaled to the first picture.
fn augment(recipe: Option<&str>, dataset: &dyn DetectionDataset) -> Result<DetectionAugment, Failure> {
    let augment = if let Some(path) = recipe {
        let hint = "a recipe of the task `detect`, with a section `augment`";
        let text = std::fs::read_to_string(path)
            .map_err(|error| Failure::input(format!("cannot read `{path}`: {error}"), hint))?;
        let recipe: Recipe =
            toml::from_str(&text).map_err(|error| Failure::input(format!("`{path}`: {error}"), hint))?;
        recipe.augment
    } else {
        let [rows, columns] = dataset.picture(0)?.size();
        DetectionAugment::scaled(rows.min(columns).clamp(16, 800))
    };
    augment.validate().map_err(|error| Failure::input(error, "the field is one of the recipe"))?;
    Ok(augment)
}

/// Each picture's changes depend on its position; a dataset that ends starts again, with other changes.
fn sheet(dataset: &dyn DetectionDataset, augment: &DetectionAugment, args: &Args) -> Result<RgbImage, Failure> {
    let step = SIDE as u32 + GAP;
    let mut sheet = RgbImage::from_pixel(args.columns as u32 * step + GAP, args.rows as u32 * step + GAP, PAPER);
    for place in 0..args.rows * args.columns {
        let index = place * (dataset.len() / (args.rows * args.columns)).max(1) % dataset.len();
        let mut random = generator(args.seed, Purpose::Augment, [0, place as u64]);
        let panel = panel(&DetectionSample::augmented(dataset, index, augment, &mut random)?, dataset.classes());
        let [rows, columns] = panel.size().map(|side| side as u32);
        if let Some(pixels) = RgbImage::from_raw(columns, rows, panel.pixels().to_vec()) {
            let (left, top) = (place % args.columns, place / args.columns);
            let at = |place: usize| i64::from(GAP + place as u32 * step);
            imageops::replace(&mut sheet, &pixels, at(left), at(top));
        }
    }
    Ok(sheet)
}

/// A picture with its boxes, scaled to its space on the sheet; small pictures by whole factors.
fn panel(sample: &DetectionSample, classes: &[String]) -> Picture {
    let [rows, columns] = sample.picture.size();
    let longest = rows.max(columns);
    let picture = if longest > SIDE {
        let size = [rows, columns].map(|side| (side * SIDE / longest).max(1));
        sample.picture.resize(size, regard::data::Filter::Bilinear)
    } else {
        let times = SIDE / longest;
        let pixels = (0..rows * times).flat_map(|row| {
            let line = &sample.picture.pixels()[3 * columns * (row / times)..][..3 * columns];
            (0..columns * times).flat_map(move |column| line[3 * (column / times)..][..3].iter().copied())
        });
        Picture::new([rows * times, columns * times], pixels.collect()).expect("whole pixels")
    };
    let boxes: Vec<LabelledBox> = sample
        .objects
        .iter()
        .map(|object| {
            let name = classes.get(object.class).map_or("?", String::as_str);
            let label = if object.crowd { format!("{name} (crowd)") } else { name.to_string() };
            LabelledBox { bounds: object.bounds, label, colour: object.class }
        })
        .collect();
    draw_boxes(&picture, &boxes)
}
