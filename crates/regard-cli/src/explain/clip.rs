//! `regard explain` for models of video: where the class token or one patch looks in space and time.
//!
//! Film strips have a row for each layer and head and a column for each frame; the same maps are written as animations (GIF).

mod animation;

use burn::tensor::Device;
use regard::analyse::{
    Check, ClipExplanation, ClipMap, ClipQuery, Fusion, RolloutOptions, clip_distance_in_space, clip_distance_in_time,
    explain_clip,
};
use regard::data::Picture;
use regard::report::figure::{Panel, Sheet};
use regard::report::overlay::{fitted, overlay_between, range};
use regard::report::{Arrow, ArrowStrip, FramePoint, Table};
use serde_json::json;
use std::io::Write;

use super::{Args, check_page, class_of};
use crate::clip_files::read_views;
use crate::failure::Failure;
use crate::findings::{Findings, Part};
use crate::model::class_names;
use crate::video::{preparation, seen_frames, tensor, video_source};

/// Side of a panel.
const SIDE: usize = 96;

/// Most rows of a strip: layers and heads.
const MOST_ROWS: usize = 48;

/// Keys that arrows point at, as in the figures of non-local networks.
const STRONGEST: usize = 20;

/// All results.
struct Explained {
    explanation: ClipExplanation,
    /// The frames as the model sees them.
    frames: Vec<Picture>,
    /// Which frames of the file these are.
    indices: Vec<usize>,
    class_token: Vec<ClipMap>,
    point: Vec<ClipMap>,
    rollout: Option<ClipMap>,
    checks: Vec<Check>,
}

pub fn run(args: &Args, name: &str, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    if let Some(page) = &args.output {
        check_page(page)?;
    }
    let video = video_source(name, &args.model.changes)?.load(device)?;
    let names = class_names(args.labels.as_ref(), video.labels.as_ref(), video.config.classes())?;
    if let Some(class) = &args.class {
        class_of(class, &names)?;
        let message = "`--class` explains a class by gradients, which models of video do not have yet";
        return Err(Failure::input(message, "leave it out: rollout and attention are those of the answer"));
    }
    if args.frame >= video.config.frames() {
        let message = format!("`--frame {}` of a model of {} frames", args.frame, video.config.frames());
        return Err(Failure::input(message, "frames are counted from 0"));
    }
    let preparation = preparation(&video);
    let views = read_views(&args.picture, &preparation)?;
    let explanation = explain_clip(&video.model, &tensor(&views, &preparation, device), args.top)?;
    let options = RolloutOptions { fusion: Fusion::Mean, discard: args.discard };
    let found = Explained {
        class_token: explanation.maps(ClipQuery::Class),
        point: explanation.maps(ClipQuery::At { frame: args.frame, point: args.at }),
        rollout: explanation.rollout(options).ok(),
        checks: explanation.checks(),
        frames: seen_frames(&views, &preparation),
        indices: views.indices[0].clone(),
        explanation,
    };
    let findings = found.findings(args, &video.name, &names)?;
    if !args.json {
        writeln!(out, "{} under {}", args.picture.display(), video.name)?;
        let shown: Vec<String> = found.indices.iter().map(ToString::to_string).collect();
        writeln!(out, "frames {}\n", shown.join(" "))?;
    }
    findings.print(args.json, out)?;
    if let Some(page) = &args.output {
        let folder = page.with_extension("");
        findings.write(page, &folder)?;
        for (name, maps) in found.animations(args) {
            animation::write(&folder.join(name), &maps)?;
        }
    }
    findings.hold()
}

impl Explained {
    fn findings(&self, args: &Args, model: &str, names: &[String]) -> Result<Findings, Failure> {
        let mut parts = vec![
            Part::new("answers", "The frames that the model sees, by their numbers in the clip.")
                .figure("frames", self.strip("frames", &[]))
                .table(self.answers(names)),
        ];
        if let Some(rollout) = &self.rollout {
            let text = "How much of each patch of each frame has reached the class token after all layers (heads fused by mean).";
            parts.push(
                Part::new("rollout", text).figure("rollout", self.strip("rollout", std::slice::from_ref(rollout))),
            );
        }
        if !self.class_token.is_empty() {
            let text = "A row for each layer and head, a column for each frame; each row is scaled from its lowest to its highest value.";
            let strip = self.strip("attention of the class token", &self.class_token);
            parts.push(Part::new("where the class token looks", text).figure("class-token", strip));
        }
        if !self.point.is_empty() {
            let [row, column] = args.at;
            let title = format!(
                "where the patch at {row:.2} of the height and {column:.2} of the width of frame {} looks",
                args.frame
            );
            let text = "The query is framed. Arrows and table have the strongest patches of all frames in the last layer that looks beyond a frame.";
            let mut part = Part::new(title.clone(), text).figure("patch", self.strip(&title, &self.point));
            if let Some(map) = self.looks_beyond_its_frame() {
                part = part.figure("arrows", self.arrows(map)).table(strongest(map));
            }
            parts.push(part);
        }
        if !self.explanation.attentions.is_empty() {
            let text = "Means over queries, weighted by attention; class tokens are dropped.";
            parts.push(Part::new("attention distance", text).table(self.distances()?));
        }
        Ok(Findings {
            title: format!("{} under {model}", args.picture.file_name().unwrap_or_default().display()),
            lead: "its answers, and where it looks in space and time".into(),
            parts,
            checks: self.checks.clone(),
            data: json!({
                "clip": args.picture.display().to_string(),
                "model": model,
                "frames": self.indices,
                "answers": self.explanation.answers.iter().map(|answer| json!({
                    "class": answer.class, "name": names[answer.class], "probability": answer.probability,
                })).collect::<Vec<_>>(),
                "rollout": self.rollout,
                "at": { "frame": args.frame, "point": args.at },
                "class_token": self.class_token,
                "patch": self.point,
                "strongest": self.point.iter().map(|map| json!({
                    "layer": map.layer, "keys": map.strongest(STRONGEST),
                })).collect::<Vec<_>>(),
            }),
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

    /// A row for each head of each map, a column for each frame; without maps the frames alone.
    fn strip(&self, title: &str, maps: &[ClipMap]) -> Sheet {
        let columns = self.frames.len();
        let mut panels = Vec::new();
        if maps.is_empty() {
            let panel = |(frame, index): (&Picture, &usize)| Panel {
                name: format!("frame {index}"),
                picture: fitted(frame, SIDE),
                frame: None,
            };
            panels.extend(self.frames.iter().zip(&self.indices).map(panel));
        }
        for (map, head) in rows(maps) {
            for (frame, picture) in shown(&self.frames, map, &map.heads[head]).into_iter().enumerate() {
                let name = if frame == 0 { format!("{} {head}", short(&map.layer)) } else { String::new() };
                panels.push(Panel { name, picture, frame: framed(map, frame, columns) });
            }
        }
        Sheet { title: title.into(), columns, side: SIDE as f64, panels }
    }

    /// The last layer in which the query looks at other frames.
    fn looks_beyond_its_frame(&self) -> Option<&ClipMap> {
        let beyond = |map: &&ClipMap| {
            let own = map.query.map(|query| query[0] * map.size[0] / map.queries[0]);
            map.strongest(STRONGEST).iter().any(|key| Some(key.place[0]) != own)
        };
        self.point.iter().rev().find(beyond)
    }

    /// The frames, and arrows from the query to its strongest keys.
    fn arrows(&self, map: &ClipMap) -> ArrowStrip {
        let shown = self.frames.len();
        // a layer may have fewer frames than the model sees: the first of those that it joined stands for all
        let point = |[frame, row, column]: [usize; 3], [frames, rows, columns]: [usize; 3]| FramePoint {
            frame: frame * shown / frames,
            at: [(row as f64 + 0.5) / rows as f64, (column as f64 + 0.5) / columns as f64],
        };
        let frames = self.frames.iter().zip(&self.indices);
        ArrowStrip {
            title: format!("the {STRONGEST} strongest in {}", map.layer),
            side: SIDE as f64,
            frames: frames.map(|(frame, index)| (format!("frame {index}"), fitted(frame, SIDE))).collect(),
            from: map.query.map_or(FramePoint::default(), |query| point(query, map.queries)),
            to: map
                .strongest(STRONGEST)
                .iter()
                .map(|key| Arrow { to: point(key.place, map.size), weight: key.weight })
                .collect(),
        }
    }

    fn distances(&self) -> Result<Table, Failure> {
        let mut table = Table::new().words("layer").numbers("in space, pixels").numbers("in time, frames");
        for attention in &self.explanation.attentions {
            let mut sums = [0.0; 2];
            for head in 0..attention.heads {
                for sample in 0..attention.samples {
                    sums[0] += clip_distance_in_space(attention, sample, head)?;
                    sums[1] += clip_distance_in_time(attention, sample, head)?;
                }
            }
            let [space, time] = sums.map(|sum| sum / (attention.heads * attention.samples) as f64);
            table.row([attention.layer.clone(), format!("{space:.2}"), format!("{time:.2}")]);
        }
        Ok(table)
    }

    /// What is written as animations: the mean over heads of the last layer that has each map.
    fn animations(&self, args: &Args) -> Vec<(&'static str, Vec<Picture>)> {
        let large: Vec<Picture> = self.frames.iter().map(|frame| fitted(frame, 2 * SIDE)).collect();
        let mut found = Vec::new();
        if let Some(rollout) = &self.rollout {
            found.push(("rollout.gif", shown(&large, rollout, &rollout.heads[0])));
        }
        if let Some(map) = self.class_token.last() {
            found.push(("class-token.gif", shown(&large, map, &map.mean())));
        }
        if let Some(map) = self.point.last() {
            let mut pictures = shown(&large, map, &map.mean());
            // the frame of the query is held
            pictures.insert(args.frame, pictures[args.frame].clone());
            found.push(("patch.gif", pictures));
        }
        found
    }
}

/// The strongest keys of the query as a table.
fn strongest(map: &ClipMap) -> Table {
    let mut table = Table::new().words("layer").numbers("frame").numbers("row").numbers("column").numbers("weight, %");
    for key in map.strongest(STRONGEST) {
        let [frame, row, column] = key.place.map(|at| at.to_string());
        table.row([map.layer.clone(), frame, row, column, format!("{:.2}", 100.0 * key.weight)]);
    }
    table
}

/// Maps with the number of a head, no more rows than can be looked at.
fn rows(maps: &[ClipMap]) -> Vec<(&ClipMap, usize)> {
    let all = maps.iter().flat_map(|map| (0..map.heads.len()).map(move |head| (map, head)));
    let mut rows: Vec<(&ClipMap, usize)> = all.collect();
    // the last layers decide
    rows.drain(..rows.len().saturating_sub(MOST_ROWS));
    rows
}

/// The frames with the part of a map that belongs to each; the whole map has one scale.
fn shown(frames: &[Picture], map: &ClipMap, values: &[f32]) -> Vec<Picture> {
    let ([count, rows, columns], scale) = (map.size, range(values));
    let frame = |(index, picture): (usize, &Picture)| {
        let at = index * count / frames.len();
        overlay_between(picture, [rows, columns], &values[at * rows * columns..][..rows * columns], scale)
    };
    frames.iter().enumerate().map(frame).collect()
}

/// The patch that looks, in its frame.
fn framed(map: &ClipMap, frame: usize, frames: usize) -> Option<[f64; 4]> {
    let [own, row, column] = map.query?;
    let [count, rows, columns] = map.queries;
    let share = |at: usize, of: usize| at as f64 / of as f64;
    (frame * count / frames == own)
        .then(|| [share(row, rows), share(column, columns), share(row + 1, rows), share(column + 1, columns)])
}

/// A layer's name without the parts that all layers share.
fn short(layer: &str) -> String {
    layer.replace("blocks.", "").replace("pathway0_", "").replace(".attn", "")
}
