//! Mean attention distance and attention entropy by layer and head.

use burn::tensor::Device;
use regard::Pass;
use regard::analyse::{self, Attention, ByHead, Check, HeadMeans, attentions};
use regard::report::Table;
use regard::report::figure::{Line, Lines, Scale, Stroke};
use serde_json::json;

use super::pictures::Pictures;
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::subject::AnalysedModel;

/// The measured quantity.
pub struct Measure {
    pub name: &'static str,
    pub title: &'static str,
    pub unit: &'static str,
    pub text: &'static str,
    pub of: analyse::Measure,
}

pub fn distance(subjects: &[AnalysedModel], pictures: &Pictures, device: &Device) -> Result<Findings, Failure> {
    let measure = Measure {
        name: "distance",
        title: "mean attention distance",
        unit: "pixels",
        text: "The mean distance between a query and what it attends to, weighted by attention; the class token is dropped \
               and rows are normalised again. Heads are sorted.",
        of: analyse::distance,
    };
    run(&measure, subjects, pictures, device)
}

pub fn entropy(subjects: &[AnalysedModel], pictures: &Pictures, device: &Device) -> Result<Findings, Failure> {
    let measure = Measure {
        name: "entropy",
        title: "attention entropy",
        unit: "nats",
        text: "0 when a head attends to a single key, ln(N) when it attends to N keys equally. Heads are sorted.",
        of: |attention, sample, head| Ok(analyse::entropy(attention, sample, head)),
    };
    run(&measure, subjects, pictures, device)
}

fn run(
    measure: &Measure,
    subjects: &[AnalysedModel],
    pictures: &Pictures,
    device: &Device,
) -> Result<Findings, Failure> {
    let (mut parts, mut data, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for (index, subject) in subjects.iter().enumerate() {
        let mut means = HeadMeans::of(measure.of);
        pictures.visit(1, &subject.name, |batch, _| {
            let mut pass = Pass::recording_attention::<String>([]);
            subject.model.forward(subject.batch(batch, device)?, &mut pass);
            let layers = attentions(pass.into_trace(), Some(subject.config.image()))?;
            if layers.is_empty() {
                let message = format!("`{}` has no attention", subject.name);
                return Err(Failure::input(message, "`field` and `cka` work for every model"));
            }
            checks.extend(layers.iter().filter_map(Attention::check));
            Ok(means.add(&layers)?)
        })?;
        let layers = means.layers();
        let part = Part::new(&subject.name, measure.text);
        parts.push(
            part.figure(format!("{}-{index}", measure.name), figure(measure, &subject.name, &layers))
                .table(table(&layers)),
        );
        data.push(json!({ "model": subject.name, "layers": layers }));
    }
    Ok(Findings {
        title: measure.title.into(),
        lead: format!("in {}, by layer and head, over {} pictures", measure.unit, pictures.len()),
        parts,
        checks: Check::worst(checks).into_iter().collect(),
        data: json!({ "analysis": measure.name, "unit": measure.unit, "pictures": pictures.len(), "models": data }),
    })
}

/// A curve over the layers for the mean, the lowest and the highest head, and a faint one for each of a few heads.
pub fn figure(measure: &Measure, model: &str, layers: &[ByHead]) -> Lines {
    // more would have to share colours
    const FEW: usize = 6;
    let sorted = |layer: &ByHead| {
        let mut heads = layer.heads.clone();
        heads.sort_by(f64::total_cmp);
        heads
    };
    let curve = |name: &str, of: &dyn Fn(&ByHead) -> Option<f64>, stroke| Line {
        name: name.into(),
        points: layers.iter().enumerate().map(|(index, layer)| [index as f64, of(layer).unwrap_or(f64::NAN)]).collect(),
        stroke,
    };
    let mut lines = vec![
        curve("mean", &|layer| Some(layer.mean()), Stroke::Strong),
        curve("lowest head", &|layer| sorted(layer).first().copied(), Stroke::Strong),
        curve("highest head", &|layer| sorted(layer).last().copied(), Stroke::Strong),
    ];
    let most = layers.iter().map(|layer| layer.heads.len()).max().unwrap_or(0);
    if most > 3 && most <= FEW {
        lines.extend((1..most - 1).map(|head| curve("", &|layer| sorted(layer).get(head).copied(), Stroke::Faint)));
    }
    Lines {
        title: format!("{}, {model}", measure.title),
        x: "layer".into(),
        y: measure.unit.into(),
        scale: Scale::Linear,
        lines,
    }
}

pub fn table(layers: &[ByHead]) -> Table {
    const FEW: usize = 12;
    let mut table = Table::new().words("layer").numbers("heads").numbers("mean").words("heads, sorted");
    for layer in layers {
        let mut heads = layer.heads.clone();
        heads.sort_by(f64::total_cmp);
        let step = heads.len().div_ceil(FEW);
        let shown: Vec<String> = heads.iter().step_by(step).map(|value| format!("{value:.2}")).collect();
        table.row([layer.layer.clone(), heads.len().to_string(), format!("{:.2}", layer.mean()), shown.join(" ")]);
    }
    table
}
