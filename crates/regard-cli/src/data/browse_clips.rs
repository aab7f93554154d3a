//! `regard data browse` for clips: film strips of what a model sees, with the numbers of the frames.

use image::{DynamicImage, ImageFormat, Rgb, RgbImage, imageops};
use regard::data::clip::{ClipDataset, ClipLength, FrameSampling, open};
use regard::data::{Augment, Crop, Part, Picture, Preprocess};
use regard::random::{Purpose, generator};
use regard::report::font;
use serde::Deserialize;
use std::io::{Write as _, stderr};

use super::browse::Args;
use super::unusable_clips;
use crate::failure::Failure;
use crate::files;

/// Pixels of the longer side of a frame on the sheet.
const SIDE: usize = 112;
const GAP: u32 = 8;
const PAPER: Rgb<u8> = Rgb([250, 250, 248]);
const INK: Rgb<u8> = Rgb([30, 30, 30]);

/// The part of a recipe that is looked at.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Recipe {
    augment: Option<Augment>,
    frames: Option<usize>,
    sampling: Option<FrameSampling>,
    set: Settings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Settings {
    image: Option<[usize; 2]>,
    frames: Option<usize>,
}

/// How the strips are made.
struct Strips {
    frames: usize,
    sampling: FrameSampling,
    image: [usize; 2],
    augment: Augment,
    seed: u64,
}

/// A clip as a model sees it.
struct Strip {
    name: String,
    class: String,
    length: ClipLength,
    indices: Vec<usize>,
    frames: Vec<Picture>,
}

pub fn run(args: &Args, format: ImageFormat) -> Result<(), Failure> {
    let dataset = open(&args.source, Part::Train).map_err(unusable_clips)?;
    if dataset.is_empty() {
        return Err(Failure::input(format!("no clips in `{}`", args.source), "is the path right?"));
    }
    let strips = Strips::of(args, &*dataset)?;
    let rows = (0..args.rows).map(|place| strips.strip(&*dataset, place, args.rows)).collect::<Result<Vec<_>, _>>()?;
    files::write(&args.output, format, &DynamicImage::ImageRgb8(draw(&rows)))?;
    let mut err = stderr();
    for Strip { name, class, length, indices, .. } in &rows {
        let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
        let seconds = length.frames as f64 / length.rate;
        writeln!(err, "{name} ({class}): frames {} of {}, {seconds:.2} s", indices.join(" "), length.frames)?;
    }
    let [high, wide] = strips.image;
    let (shown, all) = (rows.len(), dataset.len());
    writeln!(err, "{shown} of {all} clips, {} frames of {high} x {wide}: {}", strips.frames, args.output.display())?;
    Ok(())
}

impl Strips {
    /// As the recipe says; by default frames of the clips' own size, taken evenly, as many as there are columns.
    fn of(args: &Args, dataset: &dyn ClipDataset) -> Result<Self, Failure> {
        const HINT: &str = "a recipe of clips, with `frames`, `sampling` and a section `augment`";
        let recipe: Recipe = match &args.recipe {
            None => Recipe::default(),
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| Failure::input(format!("cannot read `{path}`: {error}"), HINT))?;
                toml::from_str(&text).map_err(|error| Failure::input(format!("`{path}`: {error}"), HINT))?
            }
        };
        let [rows, columns] = dataset.frames(0, &[0])?.first().map_or([1, 1], Picture::size);
        let strips = Self {
            frames: recipe.frames.or(recipe.set.frames).unwrap_or(args.columns),
            sampling: recipe.sampling.unwrap_or_default(),
            image: recipe.set.image.unwrap_or([rows.min(columns).min(224); 2]),
            augment: recipe.augment.unwrap_or_else(|| Augment { crop: Crop::Middle, ..Augment::default() }),
            seed: args.seed,
        };
        strips.augment.validate().map_err(|error| Failure::input(error, "the field is one of the recipe"))?;
        for (field, value, most) in
            [("frames", strips.frames, 256), ("image", strips.image[0], 1024), ("image", strips.image[1], 1024)]
        {
            if !(1..=most).contains(&value) {
                return Err(Failure::input(format!("`{field}` must be from 1 to {most}, got {value}"), HINT));
            }
        }
        Ok(strips)
    }

    /// One of so many clips, spread over the dataset; all of its frames are changed alike.
    fn strip(&self, dataset: &dyn ClipDataset, place: usize, rows: usize) -> Result<Strip, Failure> {
        // one more each time, since classes may alternate
        let index = (place * (dataset.len() / rows).max(1) + place) % dataset.len();
        let mut random = generator(self.seed, Purpose::Augment, [0, place as u64]);
        let length = dataset.length(index)?;
        let indices = self.sampling.train(length, self.frames, &mut random);
        let frames = dataset.frames(index, &indices)?;
        let size = frames.first().map_or([1, 1], Picture::size);
        if let Some(other) = frames.iter().find(|frame| frame.size() != size) {
            let reason = format!("{}: frames of different sizes: {:?} and {size:?}", dataset.name(index), other.size());
            return Err(Failure::input(reason, "`regard data check` lists such clips"));
        }
        let changes = self.augment.draw(size, &Preprocess::WHOLE, self.image, &mut random);
        Ok(Strip {
            name: dataset.name(index),
            class: dataset.classes()[dataset.class(index)].clone(),
            length,
            indices,
            frames: frames.iter().map(|frame| changes.picture(frame)).collect(),
        })
    }
}

/// Strips below each other, each above its class and the numbers of its frames.
fn draw(strips: &[Strip]) -> RgbImage {
    let [high, wide] = strips.iter().flat_map(|strip| &strip.frames).map(Picture::size).next().unwrap_or([1, 1]);
    // enlarged by a whole factor, or made smaller
    let longest = high.max(wide);
    let scaled = |side: usize| {
        if longest > SIDE { (side * SIDE / longest).max(1) } else { side * (SIDE / longest) }
    };
    let [high, wide] = [high, wide].map(|side| scaled(side) as u32);
    let columns = strips.iter().map(|strip| strip.frames.len()).max().unwrap_or(0) as u32;
    let (across, down) = (wide + 2, high + 2 * font::LINE + 2 * GAP);
    let width = (columns * across + 2 * GAP).max(4 * SIDE as u32);
    let mut sheet = RgbImage::from_pixel(width, strips.len() as u32 * down + GAP, PAPER);
    for (row, strip) in strips.iter().enumerate() {
        let top = GAP + row as u32 * down;
        for (column, frame) in strip.frames.iter().enumerate() {
            let left = GAP + column as u32 * across;
            let [rows, columns] = frame.size().map(|side| side as u32);
            if let Some(pixels) = RgbImage::from_raw(columns, rows, frame.pixels().to_vec()) {
                let filter =
                    if longest > SIDE { imageops::FilterType::Triangle } else { imageops::FilterType::Nearest };
                let panel = imageops::resize(&pixels, wide, high, filter);
                imageops::replace(&mut sheet, &panel, i64::from(left), i64::from(top));
            }
            let number = strip.indices[column].to_string();
            font::write(&mut sheet, &number, [left, top + high + GAP / 2], left + wide, INK);
        }
        // of a path the end tells more
        let name: Vec<char> = strip.name.chars().collect();
        let name: String = name[name.len().saturating_sub(40)..].iter().collect();
        let label = format!("{}, {name}", strip.class);
        font::write(&mut sheet, &label, [GAP, top + high + GAP / 2 + font::LINE], width - GAP, INK);
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_are_below_each_other_with_frames_in_their_order() {
        let strip = |level: u8| Strip {
            name: "clip".into(),
            class: "wave".into(),
            length: ClipLength { frames: 4, rate: 8.0 },
            indices: vec![0, 3],
            frames: [level, level + 100].map(|level| Picture::new([8, 10], vec![level; 240]).unwrap()).to_vec(),
        };
        let sheet = draw(&[strip(10), strip(60)]);
        // enlarged eleven times
        assert_eq!(sheet.height(), 2 * (88 + 28 + 16) + 8);
        for (row, level) in [(0, 10), (1, 60)] {
            let top = 8 + row * 132;
            assert_eq!(sheet.get_pixel(9, top).0, [level; 3]);
            assert_eq!(sheet.get_pixel(8 + 112 + 1, top + 87).0, [level + 100; 3]);
        }
    }
}
