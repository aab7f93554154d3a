//! `regard data browse` for texts about pictures: a sheet of pictures with their regions, and what is said about them.

use image::{DynamicImage, ImageFormat, Rgb, RgbImage, imageops};
use regard::data::vision_language::{GivenBox, PictureUse, VisionLanguageDataset, open_parts};
use regard::data::{Filter, Picture};
use regard::report::{LabelledBox, draw_boxes, font};
use std::io::{Write as _, stderr};

use super::browse::Args;
use super::unusable_texts;
use crate::failure::Failure;
use crate::files;

/// Pixels of the longer side of a picture on the sheet.
const SIDE: usize = 240;
const GAP: u32 = 8;
/// Most boxes of a picture that are named.
const NAMED: usize = 6;
/// Lines of text below a picture.
const LINES: usize = 3;
const PAPER: Rgb<u8> = Rgb([250, 250, 248]);
const INK: Rgb<u8> = Rgb([30, 30, 30]);

pub fn run(args: &Args, format: ImageFormat) -> Result<(), Failure> {
    if args.recipe.is_some() {
        return Err(Failure::input("`--recipe` has augmentation of pictures with classes or boxes", "leave it out"));
    }
    let parts = open_parts(&args.source, PictureUse::Needed).map_err(unusable_texts)?;
    let dataset = &*parts.train;
    if dataset.is_empty() {
        return Err(Failure::input(format!("no texts in `{}`", args.source), "is the path right?"));
    }
    let sheet = sheet(dataset, args)?;
    files::write(&args.output, format, &DynamicImage::ImageRgb8(sheet))?;
    let shown = args.rows * args.columns;
    writeln!(stderr(), "{shown} of {} texts with their pictures: {}", dataset.len(), args.output.display())?;
    Ok(())
}

fn sheet(dataset: &dyn VisionLanguageDataset, args: &Args) -> Result<RgbImage, Failure> {
    let (across, down) = (SIDE as u32 + GAP, SIDE as u32 + LINES as u32 * font::LINE + 2 * GAP);
    let size = [args.columns as u32 * across + GAP, args.rows as u32 * down + GAP];
    let mut sheet = RgbImage::from_pixel(size[0], size[1], PAPER);
    let count = args.rows * args.columns;
    for place in 0..count {
        let index = (place * (dataset.len() / count).max(1) + args.seed as usize) % dataset.len();
        let sample = dataset.sample(index)?;
        let picture = dataset.picture(index, 0)?;
        let boxes = dataset.boxes(index, 0, &picture)?;
        let panel = panel(&picture, &boxes, dataset.box_classes());
        let [rows, columns] = panel.size().map(|side| side as u32);
        let (left, top) = (GAP + (place % args.columns) as u32 * across, GAP + (place / args.columns) as u32 * down);
        if let Some(pixels) = RgbImage::from_raw(columns, rows, panel.pixels().to_vec()) {
            imageops::replace(&mut sheet, &pixels, i64::from(left), i64::from(top));
        }
        let answers: Vec<String> = sample.answers.iter().take(3).map(|(answer, _)| answer.clone()).collect();
        let mut lines = wrapped(&sample.text, SIDE / 8, LINES - usize::from(!answers.is_empty()));
        if !answers.is_empty() {
            lines.push(answers.join(", "));
        }
        for (number, line) in lines.iter().enumerate() {
            let top = top + SIDE as u32 + GAP / 2 + number as u32 * font::LINE;
            font::write(&mut sheet, line, [left, top], left + SIDE as u32, INK);
        }
    }
    Ok(sheet)
}

/// A text in lines of so many letters; what is left over is dropped.
fn wrapped(text: &str, letters: usize, most: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= letters => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.into()),
        }
    }
    lines.truncate(most);
    lines
}

/// A picture with its boxes, as large as the sheet has room for: small ones are enlarged by whole pixels.
fn panel(picture: &Picture, boxes: &[GivenBox], classes: &[String]) -> Picture {
    let [rows, columns] = picture.size();
    let longest = rows.max(columns);
    let scaled = if longest > SIDE {
        picture.resize([rows, columns].map(|side| (side * SIDE / longest).max(1)), Filter::Bilinear)
    } else {
        let times = SIDE / longest;
        picture.resize([rows * times, columns * times], Filter::Bilinear)
    };
    // the names of many small things would hide them
    let is_named = boxes.len() <= NAMED;
    let labelled: Vec<LabelledBox> = boxes
        .iter()
        .map(|given| {
            let name =
                given.class.filter(|_| is_named).and_then(|class| classes.get(class)).cloned().unwrap_or_default();
            LabelledBox { bounds: given.bounds, label: name, colour: given.class.unwrap_or(0) }
        })
        .collect();
    draw_boxes(&scaled, &labelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_into_lines_at_its_spaces() {
        assert_eq!(wrapped("a red tee left of a bag", 10, 3), ["a red tee", "left of a", "bag"]);
        assert_eq!(wrapped("a red tee left of a bag", 10, 1), ["a red tee"]);
    }
}
