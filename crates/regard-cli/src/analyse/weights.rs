//! Analyses that need only weights: position embeddings and first filters.

use regard::analyse::{Filters, PositionSimilarity, filters as filters_of, positions as positions_of};
use regard::data::Picture;
use regard::report::Table;
use regard::report::figure::{Panel, Sheet};
use regard::report::overlay::heat;
use serde_json::json;

use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::subject::AnalysedModel;

/// Number of components, as in the paper.
const COMPONENTS: usize = 28;

pub fn positions(subjects: &[AnalysedModel]) -> Result<Findings, Failure> {
    let (mut parts, mut data, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for (index, subject) in subjects.iter().enumerate() {
        let found = positions_of(&subject.model)?;
        checks.push(found.check());
        let text =
            "Each small map belongs to one patch: the cosine similarity of its embedding with those of all patches.";
        let part = Part::new(&subject.name, text).figure(format!("positions-{index}"), grid(subject, &found));
        parts.push(part.table(by_distance(&found)));
        data.push(json!({ "model": subject.name, "similarity": found }));
    }
    Ok(Findings {
        title: "position embeddings".into(),
        lead: "cosine similarity of the learned embeddings of patches".into(),
        parts,
        checks,
        data: json!({ "analysis": "positions", "models": data }),
    })
}

/// The map of every patch, at the position of the patch, in one picture.
fn grid(subject: &AnalysedModel, found: &PositionSimilarity) -> Sheet {
    let [rows, columns] = found.grid;
    let (high, wide) = (rows * (rows + 1) - 1, columns * (columns + 1) - 1);
    let all: Vec<f32> = found.values.concat();
    // one scale for all maps, gaps between them
    let mut values = vec![f32::NAN; high * wide];
    for patch in 0..rows * columns {
        for other in 0..rows * columns {
            let row = patch / columns * (rows + 1) + other / columns;
            let column = patch % columns * (columns + 1) + other % columns;
            values[row * wide + column] = all[patch * rows * columns + other];
        }
    }
    let panel = Panel { name: String::new(), picture: heat([high, wide], &values), frame: None };
    Sheet { title: format!("positions, {}", subject.name), columns: 1, side: 720.0, panels: vec![panel] }
}

/// The mean similarity of patches by their distance in rows and columns.
fn by_distance(found: &PositionSimilarity) -> Table {
    let [rows, columns] = found.grid;
    let mean = |down: usize, along: usize| {
        let (mut sum, mut count) = (0.0, 0);
        for row in 0..rows - down {
            for column in 0..columns - along {
                let (from, to) = (row * columns + column, (row + down) * columns + column + along);
                sum += f64::from(found.values[from][to]);
                count += 1;
            }
        }
        format!("{:.3}", sum / f64::from(count))
    };
    let mut table = Table::new().numbers("patches apart").numbers("in a row").numbers("in a column").numbers("both");
    for apart in (0..rows.min(columns)).take_while(|apart| *apart < 8) {
        table.row([apart.to_string(), mean(0, apart), mean(apart, 0), mean(apart, apart)]);
    }
    table
}

pub fn filters(subjects: &[AnalysedModel]) -> Result<Findings, Failure> {
    let (mut parts, mut data, mut checks) = (Vec::new(), Vec::new(), Vec::new());
    for (index, subject) in subjects.iter().enumerate() {
        let found = filters_of(&subject.model, COMPONENTS)?;
        checks.push(found.check.clone());
        let panel = |component: &Vec<f32>| drawn(&found, component);
        let name = |(at, picture): (usize, Picture)| Panel {
            name: format!("{at}: {:.1} %", 100.0 * found.explained[at]),
            picture,
            frame: None,
        };
        let panels = found.components.iter().map(panel).enumerate().map(name).collect();
        let sheet = Sheet { title: format!("filters, {}", subject.name), columns: 7, side: 96.0, panels };
        let mut table = Table::new().numbers("component").numbers("of the variance, %").numbers("so far, %");
        let mut sum = 0.0;
        for (at, share) in found.explained.iter().enumerate() {
            sum += share;
            table.row([at.to_string(), format!("{:.2}", 100.0 * share), format!("{:.2}", 100.0 * sum)]);
        }
        let text = "The principal components of the filters of the first layer, each scaled from its lowest to its highest value, with the share of the variance that it explains.";
        parts.push(Part::new(&subject.name, text).figure(format!("filters-{index}"), sheet).table(table));
        data.push(json!({ "model": subject.name, "filters": found }));
    }
    Ok(Findings {
        title: "first filters".into(),
        lead: "principal components of the filters of the first layer".into(),
        parts,
        checks,
        data: json!({ "analysis": "filters", "models": data }),
    })
}

/// A component as a picture, in colours when it has three channels.
fn drawn(filters: &Filters, component: &[f32]) -> Picture {
    let (least, most) = component
        .iter()
        .fold((f32::INFINITY, f32::NEG_INFINITY), |(least, most), value| (least.min(*value), most.max(*value)));
    let level = |value: f32| ((value - least) / (most - least).max(f32::MIN_POSITIVE) * 255.0).round() as u8;
    let plane = filters.size[0] * filters.size[1];
    let channel = |channel: usize| if filters.channels == 3 { channel } else { 0 };
    let pixels = (0..3 * plane).map(|at| level(component[channel(at % 3) * plane + at / 3])).collect();
    Picture::new(filters.size, pixels).expect("three values for each pixel")
}
