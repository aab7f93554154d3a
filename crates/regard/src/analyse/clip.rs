//! The attention of a model of video in space and time: one clip, all layers, any scheme.
//!
//! A model that keeps frames apart has a map for each frame by itself: those of its class tokens side by side, and of a patch only
//! in its own frame.

use serde::Serialize;

use super::WeightRow;
use super::attention::{Attention, attentions};
use super::check::Check;
use super::maps::{Query, maps};
use super::rollout::{RolloutOptions, rollout};
use crate::data::Clips;
use crate::evaluate::{ClassProbability, top_classes};
use crate::models::VideoModel;
use crate::pass::Axes;
use crate::{Error, Pass};

/// The prediction for a clip and its attention.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClipExplanation {
    /// The best answers, best first.
    pub answers: Vec<ClassProbability>,
    /// Every layer's attention, in the order of layers; none of models without attention.
    pub attentions: Vec<Attention>,
    /// Frames of the clip.
    pub frames: usize,
}

/// Who looks in a clip.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ClipQuery {
    /// The class token, or those of all frames.
    Class,
    /// A point of a frame, as fractions of its height and width.
    At { frame: usize, point: [f64; 2] },
}

/// The attention of one layer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClipMap {
    pub layer: String,
    /// Frames, rows and columns of the map: no more than the clip's, where keys are pooled fewer.
    pub size: [usize; 3],
    /// Frames, rows and columns of the queries.
    pub queries: [usize; 3],
    /// Frame, row and column of the query among the queries; none for class tokens.
    pub query: Option<[usize; 3]>,
    /// `[head][frame, row, column]`
    pub heads: Vec<Vec<f32>>,
}

/// A key that a query looks at.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LookedAt {
    /// Frame, row and column.
    pub place: [usize; 3],
    pub weight: f32,
}

/// Runs a model once on a single clip.
///
/// # Errors
/// When what the model recorded does not fit together, which would be a bug.
///
/// # Panics
/// When the clip does not have the model's frames, size and channels.
pub fn explain_clip(model: &VideoModel, clip: &Clips, top: usize) -> Result<ClipExplanation, Error> {
    let [_, _, frames, rows, columns] = clip.pixels.dims();
    let mut pass = Pass::recording_attention::<String>([]);
    let logits = model.forward(clip, &mut pass);
    let attentions = attentions(pass.into_trace(), Some([rows, columns]))?;
    Ok(ClipExplanation { answers: top_classes(logits, top).remove(0), attentions, frames })
}

impl ClipExplanation {
    /// The attention of a query in every layer that has it.
    #[must_use]
    pub fn maps(&self, query: ClipQuery) -> Vec<ClipMap> {
        self.attentions.iter().filter_map(|attention| clip_map(attention, query, self.frames).ok()).collect()
    }

    /// How much of each patch has reached the class token: frames, rows and columns, and the values of each.
    ///
    /// # Errors
    /// When not every token looks at every token of the layer before.
    pub fn rollout(&self, options: RolloutOptions) -> Result<ClipMap, Error> {
        let samples = self.attentions.first().map_or(1, |attention| attention.samples);
        let mut values = Vec::new();
        for sample in 0..samples {
            values.extend(rollout(&self.attentions, sample, options)?.map());
        }
        let size = self.attentions.first().and_then(|first| clip_size(&first.geometry.queries));
        let [frames, rows, columns] = size.ok_or_else(|| misfit("rollout", &self.attentions[0]))?;
        let size = [frames * samples, rows, columns];
        Ok(ClipMap { layer: "rollout".into(), size, queries: size, query: None, heads: vec![values] })
    }

    /// The law that attention must fulfil: the worst of all layers.
    #[must_use]
    pub fn checks(&self) -> Vec<Check> {
        Check::worst(self.attentions.iter().filter_map(Attention::check)).into_iter().collect()
    }
}

/// The attention of a query of a clip with so many frames in one layer.
///
/// # Errors
/// When the layer is not attention within a clip, or has no such query.
pub fn clip_map(attention: &Attention, query: ClipQuery, frames: usize) -> Result<ClipMap, Error> {
    let geometry = &attention.geometry;
    let sizes = clip_size(&geometry.queries).zip(clip_size(&geometry.keys));
    let (queries, keys) = sizes.ok_or_else(|| misfit("maps of a clip", attention))?;
    // frames that are kept apart are samples
    let apart = attention.samples;
    let whole = |[frames, rows, columns]: [usize; 3]| [frames * apart, rows, columns];
    let mut heads = vec![Vec::new(); attention.heads];
    let place = match query {
        ClipQuery::Class => {
            for sample in 0..apart {
                let found = maps(attention, sample, Query::Token(0))?;
                heads.iter_mut().zip(found.heads).for_each(|(all, head)| all.extend(head));
            }
            None
        }
        ClipQuery::At { frame, point } => {
            let [all_frames, rows, columns] = whole(queries);
            let pixel = |share: f64, size: usize| ((share.clamp(0.0, 1.0) * size as f64) as usize).min(size - 1);
            let frame = (frame.min(frames.saturating_sub(1)) * all_frames / frames.max(1)).min(all_frames - 1);
            let [row, column] = [pixel(point[0], rows), pixel(point[1], columns)];
            let (own, inside) = (frame / queries[0], frame % queries[0]);
            let found = maps(attention, own, Query::Index((inside * rows + row) * columns + column))?;
            let each = keys.iter().product::<usize>();
            for (all, head) in heads.iter_mut().zip(found.heads) {
                all.resize(each * apart, 0.0);
                all[own * each..][..each].copy_from_slice(&head);
            }
            Some([frame, row, column])
        }
    };
    Ok(ClipMap { layer: attention.layer.clone(), size: whole(keys), queries: whole(queries), query: place, heads })
}

impl ClipMap {
    /// The mean over heads.
    #[must_use]
    pub fn mean(&self) -> Vec<f32> {
        let mut mean = vec![0.0; self.size.iter().product()];
        for head in &self.heads {
            mean.iter_mut().zip(head).for_each(|(mean, value)| *mean += value / self.heads.len() as f32);
        }
        mean
    }

    /// The positions with the most weight on average over heads, in descending order: the arrows of the non-local networks' figures.
    #[must_use]
    pub fn strongest(&self, count: usize) -> Vec<LookedAt> {
        let [_, rows, columns] = self.size;
        let place = |at: usize| [at / (rows * columns), at / columns % rows, at % columns];
        let mut found: Vec<LookedAt> =
            self.mean().into_iter().enumerate().map(|(at, weight)| LookedAt { place: place(at), weight }).collect();
        found.retain(|key| key.weight > 0.0);
        found.sort_by(|a, b| b.weight.total_cmp(&a.weight));
        found.truncate(count);
        found
    }
}

/// The mean distance in the picture between a patch and what it looks at in any frame, in pixels of a frame.
///
/// # Errors
/// When it is not attention within a clip.
pub fn clip_distance_in_space(attention: &Attention, sample: usize, head: usize) -> Result<f64, Error> {
    const NAME: &str = "attention distance in space";
    let image = attention.image.ok_or_else(|| Error::analysis(NAME, "the size of a frame is not known"))?;
    mean_distance(NAME, attention, [sample, head], |[_, row, column], queries| {
        let stride = [image[0] as f64 / queries[1] as f64, image[1] as f64 / queries[2] as f64];
        (row * stride[0]).hypot(column * stride[1])
    })
}

/// The mean number of frames between a patch and what it looks at, in frames of the layer.
///
/// # Errors
/// When it is not attention within a clip.
pub fn clip_distance_in_time(attention: &Attention, sample: usize, head: usize) -> Result<f64, Error> {
    mean_distance("attention distance in time", attention, [sample, head], |[frames, ..], _| frames.abs())
}

/// A mean over queries of a distance, weighted by attention without class tokens.
fn mean_distance(
    name: &'static str,
    attention: &Attention,
    [sample, head]: [usize; 2],
    of: impl Fn([f64; 3], [usize; 3]) -> f64,
) -> Result<f64, Error> {
    let [queries, keys] = [&attention.geometry.queries, &attention.geometry.keys].map(clip_size);
    let (queries, keys) = queries.zip(keys).ok_or_else(|| misfit(name, attention))?;
    let place = |at: usize, [_, rows, columns]: [usize; 3]| [at / (rows * columns), at / columns % rows, at % columns];
    // keys may be fewer than queries: their centres, in units of queries
    let centre = |at: usize| {
        let place = place(at, keys);
        [0, 1, 2].map(|axis| (place[axis] as f64 + 0.5) * queries[axis] as f64 / keys[axis] as f64 - 0.5)
    };
    let [query_prefix, key_prefix] = [attention.geometry.queries.prefix(), attention.geometry.keys.prefix()];
    let patches = queries.iter().product::<usize>();
    let mut sum = 0.0;
    for patch in 0..patches {
        let own = place(patch, queries);
        let (mut weighted, mut all) = (0.0, 0.0);
        attention.each_key(WeightRow { sample, head, query: query_prefix + patch }, |key, weight| {
            let Some(key) = key.checked_sub(key_prefix) else { return };
            let weight = f64::from(weight.abs());
            if weight > 0.0 {
                let centre = centre(key);
                weighted += weight * of([0, 1, 2].map(|axis| centre[axis] - own[axis] as f64), queries);
                all += weight;
            }
        });
        // a patch that looks at nothing but the class token has no distance
        if all > 0.0 {
            sum += weighted / all;
        }
    }
    Ok(sum / patches as f64)
}

/// Frames, rows and columns of a layout; none of what is not within a clip.
const fn clip_size(axes: &Axes) -> Option<[usize; 3]> {
    match axes {
        Axes::Clip { frames, size: [rows, columns], .. } => Some([*frames, *rows, *columns]),
        _ => None,
    }
}

fn misfit(what: &'static str, attention: &Attention) -> Error {
    let (queries, keys) = (&attention.geometry.queries, &attention.geometry.keys);
    Error::analysis(what, format!("`{}` is not attention within a clip: {queries:?} look at {keys:?}", attention.layer))
}

#[cfg(test)]
mod tests {
    use super::super::Measure;
    use super::*;
    use crate::attention::SpaceTime;
    use crate::device::cpu;
    use crate::models::VideoConfig;
    use crate::models::timesformer::TimesformerConfig;
    use crate::pass::Geometry;
    use crate::testing::{random, stirred};
    use burn::tensor::TensorData;

    const SCHEMES: [SpaceTime; 5] =
        [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];

    fn explained(scheme: SpaceTime) -> ClipExplanation {
        let config = TimesformerConfig { scheme, depth: 2, frames: 4, image: [16, 24], ..TimesformerConfig::nano() };
        let model = stirred(VideoConfig::Timesformer(config).init(&cpu()).unwrap());
        explain_clip(&model, &Clips { pixels: random([1, 3, 4, 16, 24], 1) }, 3).unwrap()
    }

    #[test]
    fn every_scheme_has_maps_of_the_whole_clip_in_every_layer() {
        for scheme in SCHEMES {
            let found = explained(scheme);
            assert!(found.checks().iter().all(Check::holds), "{scheme:?}");
            let layers = 2 * scheme.steps().len();
            for query in [ClipQuery::Class, ClipQuery::At { frame: 2, point: [0.9, 0.4] }] {
                let maps = found.maps(query);
                assert_eq!(maps.len(), layers, "{scheme:?}");
                for map in &maps {
                    assert_eq!((map.size, map.heads.len()), ([4, 2, 3], 3), "{scheme:?} {}", map.layer);
                    assert!(map.heads.iter().all(|head| head.len() == 24));
                    let expected = matches!(query, ClipQuery::At { .. }).then_some([2, 1, 1]);
                    assert_eq!(map.query, expected);
                }
            }
            let rollout = found.rollout(RolloutOptions::default()).unwrap();
            assert_eq!((rollout.size, rollout.heads[0].len()), ([4, 2, 3], 24), "{scheme:?}");
        }
    }

    #[test]
    fn time_attention_stays_at_its_place_and_space_attention_in_its_frame() {
        let found = explained(SpaceTime::Divided);
        let maps = found.maps(ClipQuery::At { frame: 1, point: [0.1, 0.9] });
        let seen = |map: &ClipMap| -> Vec<[usize; 3]> {
            map.strongest(24).iter().filter(|key| key.weight > 0.0).map(|key| key.place).collect()
        };
        let (time, space) = (seen(&maps[0]), seen(&maps[1]));
        assert!(maps[0].layer.contains("temporal") && time.len() == 4 && space.len() == 6);
        assert!(time.iter().all(|place| place[1..] == [0, 2]) && space.iter().all(|place| place[0] == 1));
        let apart = explained(SpaceTime::Space);
        let map = &apart.maps(ClipQuery::At { frame: 3, point: [0.0, 0.0] })[0];
        assert!(seen(map).iter().all(|place| place[0] == 3));
    }

    #[test]
    fn a_divided_model_has_no_distance_in_space_by_its_time_attention_and_none_in_time_by_the_other() {
        let found = explained(SpaceTime::Divided);
        let of = |measure: Measure, layer: usize| measure(&found.attentions[layer], 0, 0).unwrap();
        assert_eq!((of(clip_distance_in_space, 0), of(clip_distance_in_time, 1)), (0.0, 0.0));
        assert!(of(clip_distance_in_space, 1) > 1.0 && of(clip_distance_in_time, 0) > 0.3);
    }

    #[test]
    fn distances_are_those_of_a_layer_that_looks_at_the_next_frame_or_at_the_last_column() {
        let axes = Axes::Clip { prefix: 1, frames: 2, size: [1, 2] };
        let attention = |targets: [usize; 5]| {
            let mut weights = vec![0.0f32; 25];
            targets.iter().enumerate().for_each(|(query, key)| weights[5 * query + key] = 1.0);
            let geometry = Geometry::everywhere(axes.clone(), axes.clone());
            Attention::new("layer.weights", geometry, &TensorData::new(weights, [1, 1, 5, 5]), Some([8, 16])).unwrap()
        };
        // the same place of the other frame
        let other = attention([0, 3, 4, 1, 2]);
        assert_eq!(clip_distance_in_time(&other, 0, 0).unwrap(), 1.0);
        assert_eq!(clip_distance_in_space(&other, 0, 0).unwrap(), 0.0);
        // the right column of the own frame
        let right = attention([0, 2, 2, 4, 4]);
        assert_eq!(clip_distance_in_time(&right, 0, 0).unwrap(), 0.0);
        assert_eq!(clip_distance_in_space(&right, 0, 0).unwrap(), 4.0);
    }
}
