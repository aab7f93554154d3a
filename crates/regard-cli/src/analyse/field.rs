//! Effective receptive fields: which pixels the centre of each layer depends on.

use burn::tensor::Device;
use regard::analyse::{Field, Fields};
use regard::report::Table;
use regard::report::figure::{Line, Lines, Panel, Scale, Sheet, Stroke};
use regard::report::overlay::heat;
use serde_json::json;

use super::pictures::Pictures;
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::subject::AnalysedModel;

pub fn run(subjects: &[AnalysedModel], pictures: &Pictures, device: &Device) -> Result<Findings, Failure> {
    let (mut parts, mut data, mut checks, mut curves) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (index, subject) in subjects.iter().enumerate() {
        let [rows, columns] = subject.config.image();
        let mut fields = Fields::of(&subject.model, [subject.config.channels(), rows, columns], device);
        let layers = fields.layers().len();
        pictures.visit(layers, &subject.name, |batch, bar| {
            let images = subject.batch(batch, device)?;
            fields.begin(&images);
            for layer in 0..layers {
                fields.add_to(layer, images.clone())?;
                bar.inc(batch.len() as u64);
            }
            Ok(())
        })?;
        checks.push(fields.check(subject.batch(pictures.first(), device)?)?);
        let fields = fields.fields();
        let panel =
            |field: &Field| Panel { name: field.layer.clone(), picture: heat(field.size, &field.values), frame: None };
        let sheet = Sheet {
            title: format!("receptive fields, {}", subject.name),
            columns: 6,
            side: 128.0,
            panels: fields.iter().map(panel).collect(),
        };
        let mut table = Table::new().words("layer").numbers("radius, pixels").numbers("pixels with half of it, %");
        for field in &fields {
            table.row([field.layer.clone(), format!("{:.1}", field.radius), format!("{:.2}", 100.0 * field.half)]);
        }
        let depth = |at: usize| at as f64 / (fields.len().max(2) - 1) as f64;
        let side = subject.config.image()[0] as f64;
        curves.push(Line {
            name: subject.name.clone(),
            points: fields.iter().enumerate().map(|(at, field)| [depth(at), field.radius / side]).collect(),
            stroke: Stroke::Strong,
        });
        let text = "The magnitude of the gradient of each layer's centre with respect to every pixel; brightness is its square root.";
        parts.push(Part::new(&subject.name, text).figure(format!("field-{index}"), sheet).table(table));
        data.push(json!({ "model": subject.name, "layers": fields }));
    }
    let figure = Lines {
        title: "radius of receptive fields".into(),
        x: "depth, fraction of the blocks".into(),
        y: "radius, fraction of the image height".into(),
        scale: Scale::Linear,
        lines: curves,
    };
    let text = "The root mean square distance from the centre, weighted by the gradient's magnitude; 0.41 is the whole image equally.";
    parts.insert(0, Part::new("by depth", text).figure("radius", figure));
    Ok(Findings {
        title: "effective receptive fields".into(),
        lead: format!(
            "the gradient of the centre of each layer with respect to the image, over {} pictures",
            pictures.len()
        ),
        parts,
        checks,
        data: json!({ "analysis": "field", "pictures": pictures.len(), "models": data }),
    })
}
