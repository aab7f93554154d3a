//! The figures of an explanation.

use regard::analyse::{AttentionMaps, Cam, Rollout};
use regard::data::Picture;
use regard::report::figure::{Panel, Sheet};
use regard::report::overlay::{fitted, heat, overlay};

/// Side of a small picture and of a large one.
const SMALL: usize = 112;
const LARGE: usize = 224;

/// Maximum number of heads or groups shown per layer.
const MOST: usize = 9;

/// Values over one picture.
pub struct Panels {
    small: Picture,
    large: Picture,
}

impl Panels {
    pub fn new(picture: &Picture) -> Self {
        Self { small: fitted(picture, SMALL), large: fitted(picture, LARGE) }
    }

    /// The picture itself.
    pub fn alone(&self, model: &str) -> Sheet {
        let panel = Panel { name: "as the model sees it".into(), picture: self.large.clone(), frame: None };
        Sheet { title: model.into(), columns: 1, side: LARGE as f64, panels: vec![panel] }
    }

    pub fn rollouts(&self, rollouts: &[(&str, Rollout)], class: &str) -> Sheet {
        let panel = |(name, rollout): &(&str, Rollout)| Panel {
            name: if *name == "class" { class.into() } else { (*name).into() },
            picture: overlay(&self.large, rollout.grid, &rollout.map()),
            frame: None,
        };
        let panels = rollouts.iter().map(panel).collect();
        Sheet { title: "rollout".into(), columns: rollouts.len(), side: LARGE as f64, panels }
    }

    pub fn cam(&self, cam: &Cam, class: &str) -> Sheet {
        let picture = overlay(&self.large, cam.size, &cam.values);
        let panel = Panel { name: class.into(), picture, frame: None };
        Sheet { title: "grad-cam".into(), columns: 1, side: LARGE as f64, panels: vec![panel] }
    }

    /// A row for each layer, a column for each head; several layers in a row when they have few heads.
    pub fn maps(&self, title: &str, layers: &[AttentionMaps]) -> Sheet {
        let columns = layers.iter().map(|maps| maps.heads.len().min(MOST)).max().unwrap_or(0);
        let in_a_row = (MOST / columns.max(1)).max(1);
        let mut panels = Vec::new();
        for maps in layers {
            let frame = maps.query.map(|query| framed(query, maps.queries));
            let unit = if maps.kernels.is_some() { "group" } else { "head" };
            for (head, values) in maps.heads.iter().take(MOST).enumerate() {
                let picture = overlay(&self.small, maps.size, &within_window(maps, values));
                panels.push(Panel { name: format!("{} {unit} {head}", short(&maps.layer)), picture, frame });
            }
            // layers with fewer heads leave the rest of the row empty
            let rest = columns - maps.heads.len().min(MOST);
            let blank = || Panel { name: String::new(), picture: blank(), frame: None };
            panels.extend(std::iter::repeat_with(blank).take(rest));
        }
        Sheet { title: format!("attention of the {title}"), columns: columns * in_a_row, side: SMALL as f64, panels }
    }
}

/// The values of a map, with gaps outside the window: zeros there would look like weights.
fn within_window(maps: &AttentionMaps, values: &[f32]) -> Vec<f32> {
    let (Some(kernels), Some([row, column])) = (&maps.kernels, maps.query) else { return values.to_vec() };
    let columns = maps.size[1];
    // offsets are -(k-1)/2 ..= k/2
    let near = |own: usize, other: usize| other + (kernels.side - 1) / 2 >= own && other <= own + kernels.side / 2;
    let seen = |at: usize| near(row, at / columns) && near(column, at % columns);
    values.iter().enumerate().map(|(at, value)| if seen(at) { *value } else { f32::NAN }).collect()
}

/// Top, left, bottom and right of a cell as fractions.
fn framed([row, column]: [usize; 2], [rows, columns]: [usize; 2]) -> [f64; 4] {
    let share = |at: usize, of: usize| at as f64 / of as f64;
    [share(row, rows), share(column, columns), share(row + 1, rows), share(column + 1, columns)]
}

fn blank() -> Picture {
    Picture::new([1, 1], vec![255; 3]).expect("one white pixel")
}

/// A layer's name without the parts that all layers share.
fn short(layer: &str) -> String {
    let parts = ["blocks.", ".attn", "stages.", ".sam", "groups.", ".spatial"];
    parts.iter().fold(layer.replace(".layer.", "."), |name, part| name.replace(part, ""))
}

/// The kernels of the query, a row for each layer.
pub fn kernels(layers: &[AttentionMaps]) -> Sheet {
    let mut panels = Vec::new();
    for maps in layers {
        let Some(kernels) = &maps.kernels else { continue };
        for group in 0..MOST {
            panels.push(match kernels.values.get(group) {
                Some(values) => {
                    let least = values.iter().copied().fold(f32::INFINITY, f32::min);
                    let most = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                    let name = format!("{} {group}: {least:.2} to {most:.2}", short(&maps.layer));
                    Panel { name, picture: heat([kernels.side; 2], values), frame: None }
                }
                None => Panel { name: String::new(), picture: blank(), frame: None },
            });
        }
    }
    Sheet { title: "adaptive kernels".into(), columns: MOST, side: SMALL as f64, panels }
}
