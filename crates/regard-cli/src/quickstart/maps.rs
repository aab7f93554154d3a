//! Attention maps drawn over pictures.

use burn::tensor::{Device, Tensor};
use image::{ImageFormat, Rgb, RgbImage};
use regard::Pass;
use regard::analyse::{Attention, attentions};
use regard::data::{Batch, Picture, denormalise};
use regard::report::overlay::glow;
use std::io::Cursor;

use super::TrainedModel;

/// Side of a drawn picture.
const SIDE: u32 = 112;
const GAP: u32 = 4;

/// Smallest number of positions of a map that is shown.
const LEAST: usize = 49;

/// A row of pictures for one model.
pub struct MapRow {
    pub png: Vec<u8>,
    pub caption: String,
    pub description: String,
}

/// A few test pictures, one of each of the first classes.
pub fn pictures(trained: &TrainedModel, count: usize) -> Result<Batch, regard::Error> {
    let mut loader = trained.task.measuring(&trained.task.test);
    let dataset = &loader.samples.dataset;
    let first = |class: usize| (0..dataset.len()).find(|&index| dataset.label(index) == class);
    let chosen: Vec<usize> = (0..dataset.classes().len()).filter_map(first).take(count).collect();
    loader.samples.dataset = std::sync::Arc::new(regard::data::dataset::Subset::new(dataset.clone(), chosen));
    loader.order.samples = loader.samples.dataset.len();
    loader.order.batch = loader.samples.dataset.len();
    loader.epoch(0, 0).next().expect("a test has pictures")
}

/// The pictures without a map.
pub fn plain(batch: &Batch, trained: &TrainedModel) -> MapRow {
    let pictures = denormalise(batch, &trained.task.preprocess);
    let panels: Vec<RgbImage> = pictures.iter().map(|picture| panel(picture, None)).collect();
    let names: Vec<&str> =
        batch.targets.iter().map(|target| trained.task.test.classes()[target.class].as_str()).collect();
    MapRow { png: png(&panels), caption: names.join(", "), description: format!("test pictures: {}", names.join(", ")) }
}

/// The attention maps of a model over the pictures.
pub fn row(batch: &Batch, trained: &TrainedModel, device: &Device) -> MapRow {
    let pictures = denormalise(batch, &trained.task.preprocess);
    let [_, channels, rows, columns] = batch.shape;
    let (mut panels, mut where_from) = (Vec::new(), String::new());
    for (index, picture) in pictures.iter().enumerate() {
        let images = batch.tensor(device).narrow(0, index, 1);
        let mut pass = Pass::recording();
        trained.model.forward(images.clone(), &mut pass);
        let layers = attentions(pass.into_trace(), Some([rows, columns])).expect("weights fit their own geometry");
        // the deepest layer that is not too coarse
        let fine = |layer: &&Attention| layer.keys() >= LEAST;
        let (size, values) = if let Some(layer) = layers.iter().rfind(fine).or(layers.last()) {
            where_from = format!("attention received by each position, {}", layer.layer);
            (layer.geometry.keys.sheet(), layer.received(0))
        } else {
            where_from = "no attention: gradient of the predicted class with respect to each pixel".into();
            ([rows, columns], sensitivity(trained, images, channels))
        };
        panels.push(panel(picture, Some((size, &values))));
    }
    let name = &trained.task.recipe.common.model;
    MapRow { png: png(&panels), caption: format!("{name}: {where_from}"), description: format!("where {name} looks") }
}

/// The norm of the gradient of the predicted class at each pixel.
fn sensitivity(trained: &TrainedModel, images: Tensor<4>, channels: usize) -> Vec<f32> {
    let images = Tensor::from_inner(images).require_grad();
    let logits = trained.model.clone().forward(images.clone(), &mut Pass::silent());
    let gradients = logits.max_dim(1).sum().backward();
    let Some(gradient) = images.grad(&gradients) else { return Vec::new() };
    let values: Vec<f32> = gradient.into_data().iter::<f32>().collect();
    let plane = values.len() / channels;
    (0..plane).map(|pixel| (0..channels).map(|c| values[c * plane + pixel].powi(2)).sum::<f32>().sqrt()).collect()
}

/// A picture, enlarged; with a map, dimmed where there is little attention.
fn panel(picture: &Picture, map: Option<([usize; 2], &[f32])>) -> RgbImage {
    let [rows, columns] = picture.size();
    let [least, most] = map.map_or([0.0, 1.0], |(_, values)| usual(values));
    RgbImage::from_fn(SIDE, SIDE, |x, y| {
        let at =
            |size: [usize; 2]| (y as usize * size[0] / SIDE as usize) * size[1] + x as usize * size[1] / SIDE as usize;
        let pixel = &picture.pixels()[3 * at([rows, columns])..][..3];
        match map {
            Some((size, values)) if !values.is_empty() => {
                let heat = glow(((values[at(size)] - least) / (most - least)).clamp(0.0, 1.0));
                Rgb([0, 1, 2].map(|c| (0.35 * f32::from(pixel[c]) + 0.65 * f32::from(heat[c])) as u8))
            }
            _ => Rgb([pixel[0], pixel[1], pixel[2]]),
        }
    })
}

/// The 5th and 95th percentile: a few border positions, which windows skip or count twice, would dominate the colours.
fn usual(values: &[f32]) -> [f32; 2] {
    let mut sorted: Vec<f32> = values.iter().copied().filter(|value| value.is_finite()).collect();
    sorted.sort_by(f32::total_cmp);
    let at = |share: f32| sorted.get(((sorted.len().max(1) - 1) as f32 * share).round() as usize).copied();
    let (least, most) = (at(0.05).unwrap_or(0.0), at(0.95).unwrap_or(1.0));
    [least, if most > least { most } else { least + 1.0 }]
}

/// Panels side by side, as a PNG file.
fn png(panels: &[RgbImage]) -> Vec<u8> {
    let mut sheet = RgbImage::from_pixel(panels.len() as u32 * (SIDE + GAP) - GAP, SIDE, Rgb([250, 250, 248]));
    for (index, panel) in panels.iter().enumerate() {
        image::imageops::replace(&mut sheet, panel, i64::from(index as u32 * (SIDE + GAP)), 0);
    }
    let mut bytes = Cursor::new(Vec::new());
    sheet.write_to(&mut bytes, ImageFormat::Png).expect("memory takes a picture");
    bytes.into_inner()
}
