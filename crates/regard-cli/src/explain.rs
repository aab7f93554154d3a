//! `regard explain`: the attention of a model on a picture or a clip, and the evidence for its prediction, its boxes or its answer.

mod clip;
mod detector;
mod panels;
mod question;

use burn::tensor::Device;
use regard::analyse::{
    Attention, AttentionMaps, Cam, Check, Explanation, Fusion, Query, Rollout, RolloutOptions, cam, explain,
    explain_class,
};
use regard::data::Picture;
use regard::report::Table;
use regard::report::figure::{Line, Lines, Scale, Stroke};
use regard::weights::{is_detector, is_video};
use serde::Serialize;
use serde_json::json;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::answerer::is_answerer;
use crate::failure::Failure;
use crate::files::check_folder;
use crate::findings::{Findings, Part};
use crate::model::{ModelArgs, no_model};
use crate::subject::AnalysedModel;
use panels::Panels;

/// Show the attention of a model on a picture or a clip, layer by layer, and the evidence for its prediction
#[derive(Debug, clap::Args)]
pub struct Args {
    /// JPEG, PNG, WebP, GIF or BMP; for a model of video a video file or a folder of frames
    #[arg(value_name = "PICTURE")]
    picture: PathBuf,

    #[command(flatten)]
    model: ModelArgs,

    /// The page to write; its figures (SVG, PNG) and data go into a folder of the same name
    #[arg(short, long, value_name = "PAGE.html")]
    output: Option<PathBuf>,

    /// The class to explain, by name or number; by default the predicted class
    #[arg(long, value_name = "NAME")]
    class: Option<String>,

    /// The point whose attention is shown, as fractions of the height and width of what the model sees
    #[arg(long, value_name = "ROW,COLUMN", default_value = "0.5,0.5", value_parser = parse_point)]
    at: [f64; 2],

    /// Models of video: the frame of the point at `--at`, of those that the model sees, from 0
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    frame: usize,

    /// Fraction of each layer's smallest weights that rollout sets to zero
    #[arg(long, value_name = "SHARE", default_value_t = 0.0)]
    discard: f64,

    /// Detectors: explain boxes of this score or more
    #[arg(long, value_name = "SCORE", default_value_t = 0.5, value_parser = crate::detect::score)]
    threshold: f64,

    /// How many classes or answers to print, or boxes to explain
    #[arg(long, value_name = "COUNT", default_value_t = 5, value_parser = crate::model::at_least_one)]
    top: usize,

    /// File of class names, one per line; by default the model's own, or ImageNet's for 1000 classes
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,

    /// Models of vision and language: the question about the picture, such as "what colour is the bag ?"
    #[arg(long, value_name = "TEXT")]
    question: Option<String>,

    /// With `--question`: the second picture, for models of statements about two
    #[arg(long, value_name = "FILE", requires = "question")]
    second: Option<PathBuf>,

    /// With `--question`: find regions with this detector, where the model was trained on boxes of its data
    #[arg(long, value_name = "MODEL", requires = "question")]
    detector: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn parse_point(text: &str) -> Result<[f64; 2], String> {
    let numbers: Vec<f64> = text.split(',').filter_map(|part| part.trim().parse().ok()).collect();
    match numbers[..] {
        [row, column] if (0.0..=1.0).contains(&row) && (0.0..=1.0).contains(&column) => Ok([row, column]),
        _ => Err("two numbers from 0 to 1, such as 0.25,0.5".into()),
    }
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(text) = &args.question {
        return question::run(args, text, device, out);
    }
    let name = args.model.name(None)?.ok_or_else(no_model)?;
    if is_answerer(&name) {
        let message = format!("`{name}` answers questions, and there is none");
        return Err(Failure::input(message, "`--question \"what colour is the bag ?\"` asks one"));
    }
    if is_detector(&name) {
        return detector::run(args, &name, device, out);
    }
    if is_video(&name) {
        return clip::run(args, &name, device, out);
    }
    if let Some(page) = &args.output {
        check_page(page)?;
    }
    let picture = Picture::open(&args.picture)?;
    let subject = AnalysedModel::load(&args.model.changes.source(&name)?, device)?;
    let names = subject.class_names(args.labels.as_ref())?;
    let chosen = args.class.as_ref().map(|name| class_of(name, &names)).transpose()?;
    let found = ExplainOutput::of(args, &subject, &picture, chosen, device)?;
    let findings = found.findings(args, &subject, &names, &picture)?;
    if !args.json {
        writeln!(out, "{} under {}", args.picture.display(), subject.name)?;
    }
    findings.print(args.json, out)?;
    if let Some(page) = &args.output {
        findings.write(page, &page.with_extension(""))?;
    }
    findings.hold()
}

/// Checks that a page can be written there.
fn check_page(path: &Path) -> Result<(), Failure> {
    if !path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("html")) {
        return Err(Failure::input(format!("unknown page format: `{}`", path.display()), "end the name with .html"));
    }
    check_folder(path)
}

fn class_of(text: &str, names: &[String]) -> Result<usize, Failure> {
    let number = text.parse().ok().filter(|class| *class < names.len());
    number.or_else(|| names.iter().position(|name| name.eq_ignore_ascii_case(text))).ok_or_else(|| {
        let near: Vec<&str> = names
            .iter()
            .filter(|name| name.to_lowercase().contains(&text.to_lowercase()))
            .take(5)
            .map(String::as_str)
            .collect();
        let hint = if near.is_empty() {
            format!("a name, or a number below {}", names.len())
        } else {
            format!("similar names: {}", near.join("; "))
        };
        Failure::input(format!("unknown class `{text}`"), hint)
    })
}

/// All results.
struct ExplainOutput {
    explanation: Explanation,
    class: usize,
    /// Attention of the class token.
    token: Vec<AttentionMaps>,
    /// Attention of the query at `--at`.
    query: Vec<AttentionMaps>,
    rollouts: Vec<(&'static str, Rollout)>,
    cam: Option<Cam>,
    checks: Vec<Check>,
}

impl ExplainOutput {
    fn of(
        args: &Args,
        subject: &AnalysedModel,
        picture: &Picture,
        chosen: Option<usize>,
        device: &Device,
    ) -> Result<Self, Failure> {
        let model = &subject.model;
        let image = subject.batch(std::slice::from_ref(picture), device)?;
        let explanation = explain(model, image.clone(), args.top)?;
        let class = chosen.unwrap_or(explanation.answers[0].class);
        let (mut checks, mut rollouts, mut of_class) = (explanation.checks(), Vec::new(), None);
        let (token, query) = (explanation.maps(Query::Token(0)), explanation.maps(Query::At(args.at)));
        checks.extend(Check::worst(token.iter().chain(&query).filter_map(AttentionMaps::check)));
        if model.as_transformer().is_some() {
            let options = |fusion| RolloutOptions { fusion, discard: args.discard };
            for (name, fusion) in [("mean", Fusion::Mean), ("max", Fusion::Max), ("min", Fusion::Min)] {
                rollouts.push((name, explanation.rollout(options(fusion))?));
            }
            let (rollout, check) = explain_class(model, image, class, options(Fusion::Mean))?;
            rollouts.push(("class", rollout));
            checks.extend(Check::worst(rollouts.iter().map(|(_, rollout)| rollout.check())));
            checks.push(check);
        } else {
            let found = cam(model, image, class)?;
            checks.push(found.check.clone());
            of_class = Some(found);
        }
        Ok(Self { explanation, class, token, query, rollouts, cam: of_class, checks })
    }

    fn findings(
        &self,
        args: &Args,
        subject: &AnalysedModel,
        names: &[String],
        picture: &Picture,
    ) -> Result<Findings, Failure> {
        let seen = subject.seen(picture)?;
        let panels = Panels::new(&seen);
        let class = &names[self.class];
        let mut parts =
            vec![Part::new("answers", "").figure("picture", panels.alone(&subject.name)).table(self.answers(names))];
        if !self.rollouts.is_empty() {
            let text = format!(
                "How much of each patch has reached the class token after all layers, with heads fused by mean, maximum and \
                 minimum; the last one multiplies weights by the gradient of the class {class}."
            );
            parts.push(Part::new("rollout", text).figure("rollout", panels.rollouts(&self.rollouts, class)));
        }
        if let Some(cam) = &self.cam {
            let text = format!("Which pixels of the map after {} support the class {class} (Grad-CAM).", cam.layer);
            parts.push(Part::new("evidence for the class", text).figure("grad-cam", panels.cam(cam, class)));
        }
        parts.extend(self.lens(names));
        if !self.token.is_empty() {
            let text = "By layer and head. Each map is scaled from its lowest to its highest value.";
            parts.push(
                Part::new("where the class token looks", text)
                    .figure("class-token", panels.maps("class token", &self.token)),
            );
        }
        if !self.query.is_empty() {
            let text = "The query is framed. Vector attention has a map for each group of channels with the same weights; the \
                        first ones are shown.";
            let name = format!("query at {:.2} of the height and {:.2} of the width", args.at[0], args.at[1]);
            parts.push(
                Part::new("where one query looks", text)
                    .figure("place", panels.maps(&name, &self.query))
                    .table(spread(&self.query)),
            );
        }
        if self.query.iter().any(|maps| maps.kernels.is_some()) {
            let text = "The weights that the query gives to its window, from the lowest (dark) to the highest, for each group of \
                        channels; the lowest and the highest are below each.";
            parts.push(Part::new("adaptive kernels", text).figure("kernels", panels::kernels(&self.query)));
        }
        Ok(Findings {
            title: format!("{} under {}", args.picture.file_name().unwrap_or_default().display(), subject.name),
            lead: format!("its answers, where it looks, and the evidence for {class}"),
            parts,
            checks: self.checks.clone(),
            data: self.data(args, subject, names),
        })
    }

    fn answers(&self, names: &[String]) -> Table {
        let mut table = Table::new().numbers("%").numbers("class").words("name");
        for answer in &self.explanation.answers {
            table.row([
                format!("{:.2}", 100.0 * answer.probability),
                answer.class.to_string(),
                names[answer.class].clone(),
            ]);
        }
        table
    }

    /// The prediction of each layer.
    fn lens(&self, names: &[String]) -> Option<Part> {
        let lens = self.explanation.lens.as_ref()?;
        let last = &names[self.explanation.answers[0].class];
        let mut table = Table::new().words("layer").numbers("% of the class").words("best").numbers("%");
        let mut points = Vec::new();
        for (index, layer) in lens.layers.iter().enumerate() {
            let best = layer.answers[0];
            let percent = |share: f32| format!("{:.2}", 100.0 * share);
            table.row([
                layer.layer.clone(),
                percent(layer.of_final),
                names[best.class].clone(),
                percent(best.probability),
            ]);
            points.push([index as f64, 100.0 * f64::from(layer.of_final)]);
        }
        let figure = Lines {
            title: "logit lens".into(),
            x: "block".into(),
            y: "probability, %".into(),
            scale: Scale::Linear,
            lines: vec![Line { name: last.clone(), points, stroke: Stroke::Strong }],
        };
        let text = "The prediction of each layer, as if it were the last: its class token, or the mean of its tokens, through the final norm and head.";
        Some(Part::new("logit lens", text).figure("lens", figure).table(table))
    }

    fn data(&self, args: &Args, subject: &AnalysedModel, names: &[String]) -> serde_json::Value {
        #[derive(Serialize)]
        struct NamedPrediction<'a> {
            class: usize,
            name: &'a str,
            probability: f32,
        }
        let named = |answer: &regard::evaluate::ClassProbability| NamedPrediction {
            class: answer.class,
            name: &names[answer.class],
            probability: answer.probability,
        };
        let rollouts: serde_json::Map<_, _> = self
            .rollouts
            .iter()
            .map(|(name, rollout)| ((*name).to_string(), json!({ "size": rollout.grid, "values": rollout.map() })))
            .collect();
        json!({
            "picture": args.picture.display().to_string(),
            "model": subject.name,
            "answers": self.explanation.answers.iter().map(named).collect::<Vec<_>>(),
            "class": { "class": self.class, "name": names[self.class] },
            "lens": self.explanation.lens,
            "rollout": rollouts,
            "grad_cam": self.cam,
            "at": args.at,
            "layers": self.explanation.attentions.iter().map(layer_data).collect::<Vec<_>>(),
            "class_token": self.token,
            "place": self.query,
        })
    }
}

/// The data of a layer's attention.
fn layer_data(attention: &Attention) -> serde_json::Value {
    let Attention { layer, geometry, samples, heads, image, .. } = attention;
    json!({
        "layer": layer,
        "reach": geometry.reach,
        "pictures": samples,
        "heads": heads,
        "prefix": geometry.queries.prefix(),
        "queries": geometry.queries.sheet(),
        "keys": geometry.keys.sheet(),
        "image": image,
        "sums_to_one": geometry.sums_to_one,
    })
}

/// The weight of the query on itself in each layer, and its highest weight.
fn spread(query: &[AttentionMaps]) -> Table {
    let mut table = Table::new().words("layer").numbers("heads").numbers("to itself, %").numbers("highest, %");
    for maps in query {
        let mean = maps.mean();
        let own = maps.query.filter(|_| maps.size[0] * maps.size[1] == mean.len());
        let own = own.and_then(|[row, column]| mean.get(row * maps.size[1] + column));
        let most = mean.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let percent = |share: f32| format!("{:.2}", 100.0 * share);
        table.row([
            maps.layer.clone(),
            maps.heads.len().to_string(),
            own.map_or_else(String::new, |own| percent(*own)),
            percent(most),
        ]);
    }
    table
}
