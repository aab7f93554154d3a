//! `regard data convert`: converts detection datasets.

use clap::ValueEnum;
use regard::data::detection::{AnnotationFormat, convert, open_parts};
use std::io::Write;
use std::path::PathBuf;

use super::check::progress;
use super::unusable_boxes;
use crate::failure::Failure;

/// Convert a detection dataset to another format, with all parts, and report what is lost
#[derive(Debug, clap::Args)]
pub struct Args {
    /// COCO, VOC, YOLO, a CSV table, or `scenes`
    source: String,

    /// The format to write
    #[arg(long)]
    to: To,

    /// A new folder
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum To {
    Coco,
    Voc,
    Yolo,
    Csv,
}

impl From<To> for AnnotationFormat {
    fn from(to: To) -> Self {
        match to {
            To::Coco => Self::Coco,
            To::Voc => Self::Voc,
            To::Yolo => Self::Yolo,
            To::Csv => Self::Csv,
        }
    }
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let parts = open_parts(&args.source).map_err(unusable_boxes)?;
    let bar = progress(parts.train.len() + parts.validation.len() + parts.test.len());
    let written = convert(&parts, args.to.into(), &args.output, || bar.inc(1));
    bar.finish_and_clear();
    let written = written.map_err(|error| Failure::input(error, "the folder is made by this command"))?;
    writeln!(out, "{} pictures with {} boxes: {}", written.pictures, written.boxes, args.output.display())?;
    for issue in &parts.issues {
        writeln!(out, "left out: {issue}")?;
    }
    for lost in &written.lost {
        writeln!(out, "not held: {lost}")?;
    }
    Ok(())
}
