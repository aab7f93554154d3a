//! `regard data browse`: a sheet of pictures as a model sees them.

use image::{DynamicImage, Rgb, RgbImage, imageops};
use regard::data::{
    Augment, Batch, Crop, Dataset, LabelledImages, Loader, Mix, Order, Part, Picture, Preparation, Preprocess, Target,
    clip, dataset, denormalise, detection, vision_language,
};
use regard::report::font;
use regard::tasks::classify::Recipe;
use std::io::{Write as _, stderr};
use std::path::PathBuf;
use std::sync::Arc;

use super::{browse_boxes, browse_clips, browse_vision_language};
use crate::failure::Failure;
use crate::model::at_least_one;
use crate::{files, recipes};

/// Draw pictures or clips of a dataset as a model sees them, after augmentation
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The name of a dataset, or its path
    pub(super) source: String,

    /// Image file to write
    #[arg(short, long, value_name = "PAGE")]
    pub(super) output: PathBuf,

    /// Use the augmentation of this recipe, a file or a built-in one; by default random resized crops and flips
    #[arg(long, value_name = "RECIPE")]
    pub(super) recipe: Option<String>,

    /// Read pictures in folders of folders as clips, a folder each; videos are recognised without it
    #[arg(long)]
    pub(super) clips: bool,

    /// Number of rows; mixup and cutmix mix pictures within a row
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    pub(super) rows: usize,

    /// Pictures per row; of clips, frames where no recipe says how many
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    pub(super) columns: usize,

    /// Random seed
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    pub(super) seed: u64,
}

/// How pictures are prepared: by a recipe, or with defaults.
fn preparation(recipe: Option<&Recipe>, dataset: &dyn Dataset, seed: u64) -> Result<Preparation, Failure> {
    let preparation = if let Some(recipe) = recipe {
        let (model, _) = recipe.model(dataset.classes().len())?;
        Preparation {
            image: model.image(),
            channels: 3,
            preprocess: Preprocess::WHOLE,
            augment: Some(recipe.own.augment.clone()),
            mix: recipe.own.mix,
            seed,
        }
    } else {
        // the size of the pictures, up to a limit
        let [rows, columns] = dataset.picture(0)?.size();
        let augment = Augment {
            crop: Crop::RandomResized { area: [0.08, 1.0], aspect: [0.75, 4.0 / 3.0] },
            flip: 0.5,
            ..Augment::default()
        };
        Preparation {
            image: [rows.min(columns).min(224); 2],
            channels: 3,
            preprocess: Preprocess::WHOLE,
            augment: Some(augment),
            mix: Mix::default(),
            seed,
        }
    };
    let hint = "it is a field of the recipe";
    preparation.validate().map_err(|error| Failure::input(error, hint))?;
    let most = preparation.image.into_iter().max().unwrap_or(0);
    if most > LARGEST {
        return Err(Failure::input(format!("`image` must be at most {LARGEST} pixels per side, got {most}"), hint));
    }
    Ok(preparation)
}

/// Largest side of an image, in pixels.
const LARGEST: usize = 1024;
/// Largest number of pictures in a sheet.
const MOST: usize = 1024;

pub fn run(args: &Args) -> Result<(), Failure> {
    let format = files::check_output(&args.output)?;
    if args.rows.saturating_mul(args.columns) > MOST {
        return Err(Failure::input(
            format!("at most {MOST} pictures fit, got {} x {}", args.rows, args.columns),
            "use smaller `--rows` and `--columns`",
        ));
    }
    if !args.clips && detection::is_detection(&args.source) {
        return browse_boxes::run(args, format);
    }
    if args.clips || clip::is_clips(&args.source) {
        return browse_clips::run(args, format);
    }
    if vision_language::is_vision_language(&args.source) {
        return browse_vision_language::run(args, format);
    }
    let recipe = args.recipe.as_deref().map(recipes::read_classify).transpose()?;
    let dataset = dataset::open(&args.source, Part::Train)
        .map_err(|error| Failure::input(error, "the name of a dataset, or a folder with a folder for each class"))?;
    if dataset.is_empty() {
        return Err(Failure::input(format!("no pictures in `{}`", args.source), "is the path right?"));
    }
    let preparation = preparation(recipe.as_ref(), dataset.as_ref(), args.seed)?;
    let [rows, columns] = preparation.image;
    let sheet = sheet(&dataset, preparation, [args.rows, args.columns])?;
    files::write(&args.output, format, &DynamicImage::ImageRgb8(sheet))?;
    writeln!(
        stderr(),
        "{} of {} pictures as images of {rows} x {columns}: {}",
        args.rows * args.columns.min(dataset.len()),
        dataset.len(),
        args.output.display()
    )?;
    Ok(())
}

/// Rows of pictures from the loader, one batch per row; after the last batch of an epoch the next one begins.
fn sheet(
    dataset: &Arc<dyn Dataset>,
    preparation: Preparation,
    [rows, columns]: [usize; 2],
) -> Result<RgbImage, Failure> {
    let columns = columns.min(dataset.len());
    let seed = Some(preparation.seed);
    let order = Order { samples: dataset.len(), batch: columns, repeats: 1, seed, rank: 0, ranks: 1 };
    let preprocess = preparation.preprocess;
    let loader = Loader { samples: LabelledImages { dataset: Arc::clone(dataset), preparation }, order, workers: 0 };
    let batches: Vec<Batch> = (0..).flat_map(|epoch| loader.epoch(epoch, 0)).take(rows).collect::<Result<_, _>>()?;
    let lines: Vec<_> = batches
        .iter()
        .map(|batch| {
            let labels = batch.targets.iter().map(|target| label(*target, dataset.classes()));
            denormalise(batch, &preprocess).into_iter().zip(labels).collect()
        })
        .collect();
    Ok(draw(&lines))
}

/// The class of a picture, or the two that were mixed.
fn label(target: Target, classes: &[String]) -> [String; 2] {
    let name = |class: usize| classes.get(class).map_or("?", String::as_str);
    let Target { class, other, share } = target;
    if class == other || share >= 1.0 {
        return [name(class).into(), String::new()];
    }
    [(share, class), (1.0 - share, other)].map(|(share, class)| format!("{:.0}% {}", 100.0 * share, name(class)))
}

/// Pictures in rows, each above its label.
fn draw(lines: &[Vec<(Picture, [String; 2])>]) -> RgbImage {
    /// A picture is at least as wide as some letters.
    const WIDE: usize = 112;
    const GAP: u32 = 8;
    const PAPER: Rgb<u8> = Rgb([250, 250, 248]);
    const INK: Rgb<u8> = Rgb([30, 30, 30]);
    let [high, wide] = lines.first().and_then(|line| line.first()).map_or([1, 1], |(picture, _)| picture.size());
    // enlarged by a whole factor
    let times = WIDE.div_ceil(wide).clamp(1, 16);
    let [high, wide] = [high, wide].map(|side| (side * times) as u32);
    let (across, down) = (wide + GAP, high + 2 * font::LINE + 2 * GAP);
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0) as u32;
    let mut sheet = RgbImage::from_pixel(columns * across + GAP, lines.len() as u32 * down + GAP, PAPER);
    for (row, line) in lines.iter().enumerate() {
        for (column, (picture, label)) in line.iter().enumerate() {
            let (left, top) = (GAP + column as u32 * across, GAP + row as u32 * down);
            let [rows, columns] = picture.size().map(|side| side as u32);
            if let Some(pixels) = RgbImage::from_raw(columns, rows, picture.pixels().to_vec()) {
                let panel = imageops::resize(&pixels, wide, high, imageops::FilterType::Nearest);
                imageops::replace(&mut sheet, &panel, i64::from(left), i64::from(top));
            }
            for (line, text) in label.iter().enumerate() {
                let top = top + high + GAP / 2 + line as u32 * font::LINE;
                font::write(&mut sheet, text, [left, top], left + wide, INK);
            }
        }
    }
    sheet
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pictures of one colour each.
    #[derive(Debug)]
    struct Colours(Vec<String>);

    impl Dataset for Colours {
        fn len(&self) -> usize {
            5
        }

        fn classes(&self) -> &[String] {
            &self.0
        }

        fn label(&self, index: usize) -> usize {
            index % 2
        }

        fn picture(&self, index: usize) -> Result<Picture, regard::Error> {
            Picture::new([10, 12], [50 * index as u8; 360].to_vec())
        }

        fn name(&self, index: usize) -> String {
            format!("colour {index}")
        }
    }

    fn colours() -> Arc<dyn Dataset> {
        Arc::new(Colours(vec!["even".into(), "odd".into()]))
    }

    #[test]
    fn a_sheet_shows_the_levels_of_the_pictures_and_more_rows_than_an_epoch_has() {
        let preparation = preparation(None, colours().as_ref(), 0).unwrap();
        assert_eq!(preparation.image, [10, 10]);
        let sheet = sheet(&colours(), preparation, [4, 9]).unwrap();
        // five pictures are all there are for a row of nine
        assert_eq!(sheet.width(), 5 * 128 + 8);
        for row in 0..4 {
            let mut levels: Vec<u8> =
                (0..5).map(|column| sheet.get_pixel(128 * column + 60, 164 * row + 60).0[0]).collect();
            levels.sort_unstable();
            assert_eq!(levels, [0, 50, 100, 150, 200]);
        }
    }

    #[test]
    fn a_mixed_picture_has_both_labels_with_their_shares() {
        let classes = ["cat".to_string(), "dog".to_string()];
        assert_eq!(label(Target::pure(1), &classes), ["dog", ""]);
        assert_eq!(label(Target { class: 0, other: 1, share: 0.63 }, &classes), ["63% cat", "37% dog"]);
        assert_eq!(label(Target { class: 0, other: 0, share: 0.63 }, &classes), ["cat", ""]);
    }

    #[test]
    fn a_recipe_is_followed_and_its_faults_are_named() {
        let followed = |text: &str| {
            let recipe = Recipe::from_toml(text)?;
            preparation(Some(&recipe), colours().as_ref(), 0)
        };
        let text = "model = 'vit-nano'\nset = { image = [8, 12] }\n[augment]\nflip = 1.0\n[mix]\nmixup = 0.8\n";
        let right = followed(text).unwrap();
        assert_eq!((right.image, right.augment.unwrap().flip, right.mix.mixup), ([8, 12], 1.0, 0.8));
        for (text, word) in [
            ("[augment]\nflipp = 1.0", "flipp"),
            ("[augment]\nflip = 2.0", "flip"),
            ("model = 'resnet-nano'\nset = { image = [32, 5000] }", "5000"),
        ] {
            let failure = followed(text).unwrap_err();
            assert!(failure.status() == 2 && failure.to_string().contains(word), "{failure}");
        }
    }
}
