//! `regard data fetch`: downloads a public dataset from its official address.

use indicatif::{ProgressBar, ProgressStyle};
use regard::data::fetch::{FetchStep, Options, PUBLIC, public};
use std::io::{Write, stderr};
use std::path::PathBuf;

use super::unusable;
use crate::failure::Failure;

/// Download, verify and unpack a public dataset; an interrupted download is resumed
#[derive(Debug, clap::Args)]
pub struct Args {
    /// mnist, fashion-mnist, cifar-10, cifar-100 or tiny-imagenet; without a name, list them
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Parent folder: the dataset goes to DIR/NAME
    #[arg(short, long, value_name = "DIR", default_value = "data")]
    output: PathBuf,

    /// Base URL of the files, instead of the official one
    #[arg(long, value_name = "URL")]
    from: Option<String>,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let Some(name) = &args.name else {
        for public in PUBLIC {
            writeln!(out, "{:<15}{}", public.name, public.about)?;
        }
        return Ok(());
    };
    let options = Options { from: args.from.clone(), ..Options::default() };
    let bar = ProgressBar::no_length();
    let style = |template| ProgressStyle::with_template(template).expect("the template is fixed");
    let (download, work) =
        (style("{msg} {bytes} of {total_bytes} {wide_bar} {bytes_per_sec} {eta}"), style("{msg} {pos}"));
    let place = public(name).and_then(|public| {
        public.fetch(&args.output, &options, &mut |step| match step {
            FetchStep::Download { file, progress } => {
                if bar.message() != file {
                    bar.set_style(download.clone());
                    bar.set_message(file.to_string());
                }
                bar.set_length(progress.total.unwrap_or(progress.done));
                bar.set_position(progress.done);
            }
            FetchStep::Unpack { files } => {
                if files == 1 {
                    bar.set_style(work.clone());
                    bar.set_message("unpacking, files:");
                }
                bar.set_position(files as u64);
            }
            FetchStep::Open => {
                bar.set_style(style("{msg}"));
                bar.set_message("opening");
            }
        })
    });
    bar.finish_and_clear();
    let place = place.map_err(unusable)?;
    writeln!(out, "{}", place.display())?;
    writeln!(stderr(), "next: regard data check {}", place.display())?;
    Ok(())
}
