//! The attention of a DETR: cross-attention of a query in the decoder, self-attention of a point in the encoder.
//! Carion et al. 2020, "End-to-End Object Detection with Transformers", arXiv:2005.12872, figures 3 and 6.
//!
//! Only the requested layer is recorded: all layers of a large picture would take gigabytes.

use serde::Serialize;

use super::attention::{Attention, attentions};
use super::cells::{VisibleCells, check_finite, share_inside};
use super::check::{Check, rows_sum_to_one};
use super::maps::{Query, maps};
use crate::data::{Bounds, Detection, Images};
use crate::models::detect::detr::{Detr, DetrOutput};
use crate::pass::{Axes, WEIGHTS};
use crate::{Error, Pass};

/// Attention weights over a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PictureMap {
    /// The path of the layer, such as `transformer.decoder.layers.5.multihead_attn`.
    pub layer: String,
    /// Rows and columns of cells; cells of padding are left out.
    pub size: [usize; 2],
    /// Height and width of a cell as fractions of the picture; the last cells may reach beyond it.
    pub cell: [f64; 2],
    /// Row and column of the query's cell; `None` for an object query.
    pub query: Option<[usize; 2]>,
    /// `[head][row, column]`
    pub heads: Vec<Vec<f32>>,
    pub check: Check,
}

impl PictureMap {
    fn new(attention: &Attention, cells: &VisibleCells, query: Query) -> Result<Self, Error> {
        let whole = maps(attention, 0, query)?;
        let heads: Vec<Vec<f32>> = whole.heads.iter().map(|head| cells.crop(head)).collect();
        heads.iter().try_for_each(|head| check_finite("attention", head))?;
        let deviation = rows_sum_to_one(heads.iter().map(Vec::as_slice));
        Ok(Self {
            layer: whole.layer,
            size: cells.size,
            cell: cells.cell,
            query: None,
            heads,
            check: Check::new("weights over the picture without its padding sum to one", deviation, 1e-4),
        })
    }

    /// The mean over heads.
    #[must_use]
    pub fn mean(&self) -> Vec<f32> {
        let mut mean = vec![0.0; self.size[0] * self.size[1]];
        for head in &self.heads {
            mean.iter_mut().zip(head).for_each(|(mean, value)| *mean += value / self.heads.len() as f32);
        }
        mean
    }

    /// The fraction of the mean weights in cells whose centres are inside a box.
    #[must_use]
    pub fn share_inside(&self, bounds: &Bounds) -> Option<f64> {
        share_inside(self.size, self.cell, &self.mean(), bounds)
    }
}

/// The cross-attention of one decoder layer for the first picture of a batch, and what every query found in it.
#[derive(Clone, Debug)]
pub struct CrossAttention {
    /// The best class of every query, whatever its score, in the order of the queries.
    pub detections: Vec<Detection>,
    attention: Attention,
    cells: VisibleCells,
}

impl CrossAttention {
    /// The queries whose score is at least `threshold`, best first.
    #[must_use]
    pub fn detected(&self, threshold: f64) -> Vec<usize> {
        let score = |query: &usize| self.detections[*query].score;
        let mut found: Vec<usize> = (0..self.detections.len()).filter(|query| score(query) >= threshold).collect();
        found.sort_by(|a, b| score(b).total_cmp(&score(a)));
        found
    }

    /// The attention of a query.
    ///
    /// # Errors
    /// When there is no such query, or weights are not finite.
    pub fn map(&self, query: usize) -> Result<PictureMap, Error> {
        PictureMap::new(&self.attention, &self.cells, Query::Index(query))
    }
}

/// Runs a DETR on a batch and keeps the cross-attention of a decoder layer, by default the last.
///
/// # Errors
/// When there is no such layer.
pub fn cross_attention(model: &Detr, images: &Images, layer: Option<usize>) -> Result<CrossAttention, Error> {
    let layer = layer_number("decoder", model.transformer.decoder.layers.len(), layer)?;
    let (output, attention) = recorded(model, images, format!("transformer.decoder.layers.{layer}.multihead_attn"))?;
    let cells = cells_of(&attention, images)?;
    let detections = output.detections().into_iter().next().unwrap_or_default();
    Ok(CrossAttention { detections, attention, cells })
}

/// A point of a picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PicturePoint {
    /// From the left and from the top, in pixels.
    pub x: f64,
    pub y: f64,
    /// Rows and columns of the picture in whose pixels it is; the model may see it at another size.
    pub size: [usize; 2],
}

/// The attention of the cell at a point of the first picture in an encoder layer, by default the last.
///
/// # Errors
/// When there is no such layer, or the point is not inside the picture.
pub fn point_attention(
    model: &Detr,
    images: &Images,
    point: PicturePoint,
    layer: Option<usize>,
) -> Result<PictureMap, Error> {
    let PicturePoint { x, y, size: [rows, columns] } = point;
    let [down, along] = [y / rows as f64, x / columns as f64];
    if ![down, along].iter().all(|share| (0.0..1.0).contains(share)) {
        let reason = format!("{x},{y} is outside the picture of {columns} x {rows} pixels");
        return Err(Error::analysis("point", reason));
    }
    let layer = layer_number("encoder", model.transformer.encoder.layers.len(), layer)?;
    let (_, attention) = recorded(model, images, format!("transformer.encoder.layers.{layer}.self_attn"))?;
    let cells = cells_of(&attention, images)?;
    let cell = cells.at([down, along]);
    let map = PictureMap::new(&attention, &cells, Query::Index(cells.index(cell)))?;
    Ok(PictureMap { query: Some(cell), ..map })
}

fn layer_number(stack: &'static str, count: usize, layer: Option<usize>) -> Result<usize, Error> {
    match layer {
        Some(layer) if layer >= count => {
            Err(Error::analysis("layer", format!("the {stack} has layers 0 to {}, got {layer}", count - 1)))
        }
        Some(layer) => Ok(layer),
        None => Ok(count - 1),
    }
}

/// Runs a model and keeps the attention of one layer.
fn recorded(model: &Detr, images: &Images, layer: String) -> Result<(DetrOutput, Attention), Error> {
    let mut pass = Pass::recording_only([format!("{layer}.{WEIGHTS}")]);
    let output = model.forward(images, &mut pass);
    let attention = attentions(pass.into_trace(), None)?.pop();
    let attention = attention.ok_or_else(|| Error::analysis("attention", format!("`{layer}` recorded no weights")))?;
    Ok((output, attention))
}

fn cells_of(attention: &Attention, images: &Images) -> Result<VisibleCells, Error> {
    match &attention.geometry.keys {
        Axes::Grid { prefix: 0, size } => Ok(VisibleCells::of(images, *size)),
        keys => {
            Err(Error::analysis("attention", format!("`{}` does not attend to a picture: {keys:?}", attention.layer)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{ImageBatch, NormalisedPicture};
    use crate::device;
    use crate::models::detect::detr::{DetrConfig, QueryKind};
    use crate::testing::{distance, noise, stirred};

    fn model(queries: QueryKind) -> Detr {
        let config = DetrConfig { queries, ..DetrConfig::nano() };
        stirred(config.init(&device::cpu()).unwrap())
    }

    fn picture([rows, columns]: [usize; 2]) -> NormalisedPicture {
        NormalisedPicture { values: noise(3 * rows * columns, 7), size: [rows, columns] }
    }

    fn images(pictures: &[NormalisedPicture]) -> Images {
        ImageBatch::collate(pictures).unwrap().to_device(&device::cpu())
    }

    #[test]
    fn weights_of_every_query_layer_and_point_sum_to_one_over_the_unpadded_picture() {
        for kind in [QueryKind::Learned, QueryKind::ReferencePoints] {
            let model = model(kind);
            // the second picture pads the first one at the right and at the bottom
            let images = images(&[picture([40, 64]), picture([64, 96])]);
            for layer in [None, Some(0), Some(1)] {
                let found = cross_attention(&model, &images, layer).unwrap();
                assert_eq!(found.detections.len(), 16);
                for query in 0..16 {
                    let map = found.map(query).unwrap();
                    assert!(map.check.holds(), "{kind:?} {layer:?} {query}: {}", map.check);
                    assert_eq!((map.heads.len(), map.heads[0].len()), (4, map.size[0] * map.size[1]));
                    let inside = map.share_inside(&Bounds { w: 2.0, h: 2.0, ..Bounds::WHOLE }).unwrap();
                    assert!((inside - 1.0).abs() < 1e-6);
                }
                let point = PicturePoint { x: 63.0, y: 39.0, size: [40, 64] };
                let map = point_attention(&model, &images, point, layer).unwrap();
                assert!(map.check.holds(), "{}", map.check);
                assert_eq!(map.query, Some([map.size[0] - 1, map.size[1] - 1]));
            }
        }
    }

    #[test]
    fn padding_changes_no_map() {
        let model = model(QueryKind::ReferencePoints);
        let (alone, padded) = (images(&[picture([64, 64])]), images(&[picture([64, 64]), picture([64, 128])]));
        let map = |images: &Images| cross_attention(&model, images, None).unwrap().map(3).unwrap();
        let (alone, padded) = (map(&alone), map(&padded));
        assert_eq!((alone.size, alone.cell), (padded.size, padded.cell));
        // convolutions at the border see zeros of the padding instead of their own
        assert!(distance(&alone.mean(), &padded.mean()) < 0.2);
    }

    #[test]
    fn queries_are_sorted_by_score_and_the_threshold_leaves_some_out() {
        let found = cross_attention(&model(QueryKind::Learned), &images(&[picture([64, 64])]), None).unwrap();
        let all = found.detected(0.0);
        assert_eq!(all.len(), 16);
        assert!(all.windows(2).all(|two| found.detections[two[0]].score >= found.detections[two[1]].score));
        let best = found.detections[all[0]].score;
        assert_eq!(found.detected(best)[0], all[0]);
        assert!(found.detected(1.1).is_empty());
    }

    #[test]
    fn points_beside_the_picture_and_layers_that_do_not_exist_are_named() {
        let (model, images) = (model(QueryKind::Learned), images(&[picture([64, 64])]));
        let at = |x: f64, y: f64| PicturePoint { x, y, size: [100, 200] };
        for (x, y) in [(200.0, 5.0), (5.0, 100.0), (-1.0, 5.0), (f64::NAN, 5.0)] {
            let error = point_attention(&model, &images, at(x, y), None).unwrap_err().to_string();
            assert!(error.contains("outside the picture of 200 x 100 pixels"), "{error}");
        }
        let error = cross_attention(&model, &images, Some(3)).unwrap_err().to_string();
        assert!(error.contains("the decoder has layers 0 to 2, got 3"), "{error}");
        let error = point_attention(&model, &images, at(5.0, 5.0), Some(9)).unwrap_err().to_string();
        assert!(error.contains("the encoder has layers 0 to 2, got 9"), "{error}");
        let error = cross_attention(&model, &images, None).unwrap().map(16).unwrap_err().to_string();
        assert!(error.contains("no number 16"), "{error}");
    }
}
