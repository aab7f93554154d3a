//! `regard analyse`: analyses of models, over pictures or from their weights.

mod cka;
mod clips;
mod field;
mod heads;
mod pictures;
mod queries;
mod weights;

use burn::tensor::Device;
use clap::Subcommand;
use regard::weights::is_video;
use std::io::{Write, stderr};
use std::path::PathBuf;

use crate::failure::Failure;
use crate::findings::Findings;
use crate::model::at_least_one;
use crate::subject::AnalysedModel;
use pictures::Pictures;

/// Measure attention, receptive fields and the similarity of layers
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    analysis: Analysis,
}

#[derive(Debug, Subcommand)]
enum Analysis {
    /// How similar the layers of two models are, or of one: centred kernel alignment (CKA), unbiased, by minibatches of 4 or
    /// more
    Cka(PictureAnalysisArgs),
    /// How far away each head attends: mean attention distance in pixels; of models of video also in frames
    Distance(PictureAnalysisArgs),
    /// How spread out the attention of each head is: entropy in nats
    Entropy(PictureAnalysisArgs),
    /// Which pixels the centre of each layer depends on: effective receptive fields
    Field(PictureAnalysisArgs),
    /// Which boxes each query of a DETR detects: where, and small, wide or tall
    Queries(QueryAnalysisArgs),
    /// How similar the learned position embeddings of a transformer are
    Positions(WeightAnalysisArgs),
    /// The principal components of the filters of the first layer
    Filters(WeightAnalysisArgs),
}

/// Arguments of an analysis over pictures.
#[derive(Debug, clap::Args)]
struct PictureAnalysisArgs {
    #[command(flatten)]
    common: Common,

    /// A folder of pictures, `fashion`, `scenes`, or any dataset of `regard eval`; for models of video clips
    #[arg(long, value_name = "NAME|DIR")]
    data: String,

    /// Number of pictures, spread over the data
    #[arg(long, value_name = "COUNT", default_value_t = 32, value_parser = at_least_one)]
    pictures: usize,

    /// Batch size
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = at_least_one)]
    batch: usize,
}

/// Arguments of the analysis of queries.
#[derive(Debug, clap::Args)]
struct QueryAnalysisArgs {
    #[command(flatten)]
    over: PictureAnalysisArgs,

    /// A query fires when its score is at least this
    #[arg(long, value_name = "SCORE", default_value_t = 0.5, value_parser = crate::detect::score)]
    threshold: f64,
}

/// Arguments of an analysis that needs only weights.
#[derive(Debug, clap::Args)]
struct WeightAnalysisArgs {
    #[command(flatten)]
    common: Common,

    /// Ignored; accepted for consistency with the other analyses
    #[arg(long, value_name = "NAME|DIR", hide = true)]
    data: Option<String>,
}

/// Arguments of every analysis.
#[derive(Debug, clap::Args)]
struct Common {
    /// Models: run folders, PRESET=WEIGHTS, FILE.toml=WEIGHTS, `hf:owner/name[@revision]`, embedded ones such as `fashion-vit`,
    /// or untrained presets
    #[arg(short, long, value_name = "MODEL,..", required = true, value_delimiter = ',')]
    models: Vec<String>,

    /// Folder for the page, the figures (SVG, PNG) and the data
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An analysis of models over pictures.
type Analyse = fn(&[AnalysedModel], &Pictures, &Device) -> Result<Findings, Failure>;

impl Analysis {
    const fn common(&self) -> &Common {
        match self {
            Self::Cka(over) | Self::Distance(over) | Self::Entropy(over) | Self::Field(over) => &over.common,
            Self::Queries(args) => &args.over.common,
            Self::Positions(alone) | Self::Filters(alone) => &alone.common,
        }
    }

    /// The results, and how many pictures could not be read.
    fn run(&self, device: &Device) -> Result<(Findings, usize), Failure> {
        let subjects = || -> Result<Vec<AnalysedModel>, Failure> {
            self.common().models.iter().map(|text| AnalysedModel::of(text, device)).collect()
        };
        let over = |over: &PictureAnalysisArgs, analyse: Analyse| -> Result<(Findings, usize), Failure> {
            let subjects = subjects()?;
            let pictures = Pictures::open(&over.data, over.pictures, over.batch)?;
            Ok((analyse(&subjects, &pictures, device)?, pictures.unreadable))
        };
        match self {
            Self::Cka(args) => over(args, cka::run),
            Self::Distance(args) if args.common.models.iter().all(|model| is_video(model)) => {
                clips::distance(&args.common.models, &args.data, args.pictures, device)
            }
            Self::Distance(args) => over(args, heads::distance),
            Self::Entropy(args) => over(args, heads::entropy),
            Self::Field(args) => over(args, field::run),
            Self::Queries(QueryAnalysisArgs { over, threshold }) => {
                let pictures = Pictures::open(&over.data, over.pictures, over.batch)?;
                Ok((queries::run(&over.common.models, &pictures, *threshold, device)?, pictures.unreadable))
            }
            Self::Positions(args) => args.alone(|| weights::positions(&subjects()?)),
            Self::Filters(args) => args.alone(|| weights::filters(&subjects()?)),
        }
    }
}

impl WeightAnalysisArgs {
    fn alone(&self, analyse: impl FnOnce() -> Result<Findings, Failure>) -> Result<(Findings, usize), Failure> {
        if self.data.is_some() {
            writeln!(stderr(), "note: this analysis needs no pictures: `--data` is ignored")?;
        }
        Ok((analyse()?, 0))
    }
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let common = args.analysis.common();
    if let (Analysis::Cka(_), 3..) = (&args.analysis, common.models.len()) {
        let message = format!("{} models", common.models.len());
        return Err(Failure::input(message, "compare the layers of one model or of two"));
    }
    if let Some(file) = common.output.as_ref().filter(|folder| folder.is_file()) {
        return Err(Failure::input(format!("`{}` is a file", file.display()), "`-o` takes a folder"));
    }
    let (findings, unreadable) = args.analysis.run(device)?;
    output(&findings, common, out)?;
    match unreadable {
        0 => findings.hold(),
        bad => Err(Failure::input(
            format!("{bad} pictures could not be read"),
            "they are listed above; the numbers cover the others",
        )),
    }
}

fn output(findings: &Findings, args: &Common, out: &mut impl Write) -> Result<(), Failure> {
    findings.print(args.json, out)?;
    match &args.output {
        Some(folder) => findings.write(&folder.join("report.html"), folder),
        None => Ok(()),
    }
}
