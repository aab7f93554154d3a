//! How similar the layers of two models are.

use burn::tensor::Device;
use regard::analyse::{Check, Cka, Gram, cka};
use regard::data::Picture;
use regard::report::Table;
use regard::report::figure::{ColourScale, HeatMap};
use serde_json::json;
use std::io::{Write as _, stderr};

use super::pictures::Pictures;
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::subject::AnalysedModel;

/// All pairs of models: one model with itself; two models with themselves and each other.
pub fn run(subjects: &[AnalysedModel], pictures: &Pictures, device: &Device) -> Result<Findings, Failure> {
    let pairs: Vec<[usize; 2]> = match subjects.len() {
        1 => vec![[0, 0]],
        _ => vec![[0, 1], [0, 0], [1, 1]],
    };
    let mut sums = vec![Cka::default(); pairs.len()];
    let (mut checks, mut left_out) = (Vec::new(), 0);
    // a last batch that is too small is skipped; if all are too small, that is an error
    let usable = |batch: &[Picture], batches: usize| batch.len() >= cka::FEWEST || batches == 0;
    let mut batches = 0;
    pictures.visit(1, "comparing layers", |batch, _| {
        if !usable(batch, batches) {
            left_out += batch.len();
            return Ok(());
        }
        batches += 1;
        let grams = subjects.iter().map(|subject| see(subject, batch, device)).collect::<Result<Vec<_>, Failure>>()?;
        for (sum, [rows, columns]) in sums.iter_mut().zip(&pairs) {
            sum.add(&grams[*rows].0, &grams[*columns].0)?;
        }
        checks.extend(grams.into_iter().map(|(_, check)| check));
        Ok(())
    })?;
    if left_out > 0 {
        writeln!(stderr(), "note: skipped the last {left_out} pictures, too few for a batch")?;
    }
    let (mut parts, mut data) = (Vec::new(), Vec::new());
    for (sum, [rows, columns]) in sums.iter().zip(&pairs) {
        let (rows, columns) = (&subjects[*rows].name, &subjects[*columns].name);
        let similarity = sum.similarity()?;
        let title = if std::ptr::eq(rows, columns) { rows.clone() } else { format!("{rows} and {columns}") };
        let mut table =
            Table::new().words(rows).words(format!("most similar in {columns}")).numbers("CKA").numbers("mean CKA");
        for (layer, values) in similarity.rows.iter().zip(&similarity.values) {
            // a layer is most similar to itself, which is excluded
            let others = || {
                values
                    .iter()
                    .zip(&similarity.columns)
                    .filter(|(_, column)| !std::ptr::eq(rows, columns) || *column != layer)
            };
            let Some((value, column)) = others().max_by(|a, b| a.0.total_cmp(b.0)) else { continue };
            let mean = values.iter().sum::<f64>() / values.len() as f64;
            table.row([layer.clone(), column.clone(), format!("{value:.3}"), format!("{mean:.3}")]);
        }
        let figure = HeatMap {
            title: format!("CKA, {title}"),
            row_label: rows.clone(),
            column_label: columns.clone(),
            rows: similarity.rows.clone(),
            columns: similarity.columns.clone(),
            values: similarity.values.clone(),
            decimals: 2,
            shades: ColourScale::Even,
        };
        let name = format!("cka-{}", parts.len());
        parts.push(
            Part::new(
                title,
                "1 if two layers represent the pictures in the same way, 0 if they have nothing in common.",
            )
            .figure(name, figure)
            .table(table),
        );
        data.push(json!({ "row_model": rows, "column_model": columns, "similarity": similarity }));
    }
    let names: Vec<&str> = subjects.iter().map(|subject| subject.name.as_str()).collect();
    Ok(Findings {
        title: format!("similarity of layers: {}", names.join(", ")),
        lead: format!("linear CKA by minibatches, unbiased, over {} pictures", pictures.len() - left_out),
        parts,
        checks: Check::worst(checks).into_iter().collect(),
        data: json!({ "analysis": "cka", "pictures": pictures.len() - left_out, "pairs": data }),
    })
}

fn see(subject: &AnalysedModel, batch: &[Picture], device: &Device) -> Result<(Vec<Gram>, Check), Failure> {
    Ok(cka::see(&subject.model, subject.batch(batch, device)?)?)
}
