//! The report of the quickstart.

use burn::tensor::Device;
use regard::report::figure::{Line, Lines, Scale, Stroke};
use regard::report::page::PageImage;
use regard::report::{Page, PageSection};
use std::path::Path;

use super::{TrainedModel, maps, put, table};
use crate::failure::Failure;

/// Pictures in a row of maps.
const SHOWN: usize = 8;

pub fn write(path: &Path, trained: &[TrainedModel], device: &Device) -> Result<(), Failure> {
    let first = &trained[0];
    let batch = maps::pictures(first, SHOWN)?;
    let picture = |row: maps::MapRow| PageImage { png: row.png, description: row.description, caption: row.caption };
    let mut pictures = vec![picture(maps::plain(&batch, first))];
    pictures.extend(trained.iter().map(|one| picture(maps::row(&batch, one, device))));
    let line = |one: &TrainedModel, points: Vec<[f64; 2]>| Line {
        name: one.name().to_string(),
        points,
        stroke: Stroke::Strong,
    };
    let loss = Lines {
        title: "training loss".into(),
        x: "step".into(),
        y: "loss".into(),
        scale: Scale::Linear,
        lines: trained.iter().map(|one| line(one, smoothed(one))).collect(),
    };
    let page = Page::new("regard quickstart")
        .lead(format!(
            "five models of about the same size, trained on up to {} pictures of {}, tested on {}",
            first.task.train.len(),
            first.task.recipe.common.data,
            first.task.test.len()
        ))
        .section(PageSection::new("how good").table(table(trained)?))
        .section(PageSection::new("how they learned").figure(&loss))
        .section(PageSection::new("where they look").pictures(pictures))
        .section(
            PageSection::new("more").facts(
                trained
                    .iter()
                    .map(|one| (one.name().to_string(), one.folder.join("REPORT.html").display().to_string()))
                    .collect(),
            ),
        );
    put(path, &page.html())
}

/// The mean loss over every ten steps, because single steps are noisy.
fn smoothed(trained: &TrainedModel) -> Vec<[f64; 2]> {
    let mean = |steps: &[regard::evaluate::StepRecord]| {
        let loss = steps.iter().map(|step| step.loss).sum::<f64>() / steps.len() as f64;
        Some([steps.last()?.step as f64, loss])
    };
    trained.history.steps.chunks(10).filter_map(mean).collect()
}
