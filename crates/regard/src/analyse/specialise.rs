//! Where the queries of a DETR specialise: the boxes of each query over many pictures.
//! Carion et al. 2020, "End-to-End Object Detection with Transformers", arXiv:2005.12872, figure 7.
//!
//! The figure as one number: the fraction of the variance of box centres that is between queries. Queries without preferences
//! have 0, queries that each answer for one point 1.

use serde::Serialize;

use super::check::{Check, largest};
use crate::Error;
use crate::data::{Bounds, Detection};

/// Thresholds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct SpecialiseOptions {
    /// A query fires when its score is at least this.
    pub threshold: f64,
    /// A box is small when it covers less than this fraction of the picture.
    pub small: f64,
}

impl Default for SpecialiseOptions {
    fn default() -> Self {
        Self { threshold: 0.5, small: 1.0 / 16.0 }
    }
}

/// The figure's three kinds of boxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum BoxKind {
    Small,
    /// Large, and at least as wide as high, in pixels.
    Wide,
    /// Large, and higher than wide, in pixels.
    Tall,
}

/// The detection of a query in one picture.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct QueryBox {
    pub score: f64,
    /// As fractions of the picture.
    pub bounds: Bounds,
    pub kind: BoxKind,
}

/// One query over all pictures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct QueryProfile {
    pub query: usize,
    /// Number of pictures in which it fired.
    pub fired: usize,
    /// Means over the boxes with which it fired; `None` if it never did.
    pub usual: Option<UsualBox>,
    /// One for each picture, whether it fired or not.
    pub boxes: Vec<QueryBox>,
}

/// The boxes with which a query fires.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct UsualBox {
    /// Means of centre and sides.
    pub mean: Bounds,
    /// Standard deviation of the centre: along x and y.
    pub deviation: [f64; 2],
    /// Shares of small, wide and tall boxes.
    pub kinds: [f64; 3],
}

/// All queries over all pictures.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Specialisation {
    pub options: SpecialiseOptions,
    pub pictures: usize,
    /// The fraction of the variance of firing boxes' centres that is between queries; none when all centres are the same.
    pub between: Option<f64>,
    pub queries: Vec<QueryProfile>,
    pub checks: Vec<Check>,
}

/// Collects the detections of all queries, picture by picture.
#[derive(Clone, Debug)]
pub struct QueryBoxes {
    options: SpecialiseOptions,
    pictures: usize,
    queries: Vec<Vec<QueryBox>>,
}

impl QueryBoxes {
    #[must_use]
    pub const fn new(options: SpecialiseOptions) -> Self {
        Self { options, pictures: 0, queries: Vec::new() }
    }

    /// Adds the detections in a picture of `[rows, columns]`, in the order of the queries.
    ///
    /// # Errors
    /// When the number of queries differs from that of an earlier picture, or a number is not finite.
    pub fn add(&mut self, detections: &[Detection], [rows, columns]: [usize; 2]) -> Result<(), Error> {
        if self.pictures == 0 {
            self.queries = vec![Vec::new(); detections.len()];
        }
        if detections.len() != self.queries.len() {
            let reason = format!("{} queries after a picture with {}", detections.len(), self.queries.len());
            return Err(Error::analysis("queries", reason));
        }
        for (query, Detection { score, bounds, .. }) in detections.iter().enumerate() {
            let Bounds { cx, cy, w, h } = *bounds;
            if ![cx, cy, w, h, *score].iter().all(|number| number.is_finite()) {
                return Err(Error::analysis(
                    "queries",
                    format!("query {query} gives {bounds:?} with a score of {score}"),
                ));
            }
            let kind = if bounds.area() < self.options.small {
                BoxKind::Small
            } else if w * columns as f64 >= h * rows as f64 {
                BoxKind::Wide
            } else {
                BoxKind::Tall
            };
            self.queries[query].push(QueryBox { score: *score, bounds: *bounds, kind });
        }
        self.pictures += 1;
        Ok(())
    }

    /// # Errors
    /// When there was no picture.
    pub fn finish(self) -> Result<Specialisation, Error> {
        let Self { options, pictures, queries } = self;
        if pictures == 0 {
            return Err(Error::analysis("queries", "no picture"));
        }
        let fires = |one: &&QueryBox| one.score >= options.threshold;
        let centres = |boxes: &[QueryBox]| -> Vec<[f64; 2]> {
            boxes.iter().filter(fires).map(|one| [one.bounds.cx, one.bounds.cy]).collect()
        };
        let groups: Vec<Vec<[f64; 2]>> = queries.iter().map(|boxes| centres(boxes)).collect();
        let (between, variance) = between_share(&groups);
        let all = queries.iter().flatten();
        let outside = |value: f64| (-value).max(value - 1.0).max(0.0);
        let outside = all.map(|one| largest(outside(one.bounds.cx), outside(one.bounds.cy))).fold(0.0, largest);
        let mut checks = vec![Check::new("centres are inside the picture", outside, 1e-6)];
        checks.extend(variance);
        let profile = |(query, boxes): (usize, Vec<QueryBox>)| {
            let firing: Vec<QueryBox> = boxes.iter().filter(fires).copied().collect();
            QueryProfile { query, fired: firing.len(), usual: usual(&firing), boxes }
        };
        let queries = queries.into_iter().enumerate().map(profile).collect();
        Ok(Specialisation { options, pictures, between, queries, checks })
    }
}

/// Means over boxes; `None` if there are none.
fn usual(boxes: &[QueryBox]) -> Option<UsualBox> {
    let count = boxes.len() as f64;
    let mean = |of: &dyn Fn(&QueryBox) -> f64| boxes.iter().map(of).sum::<f64>() / count;
    let (cx, cy) = (mean(&|one| one.bounds.cx), mean(&|one| one.bounds.cy));
    let deviation = [mean(&|one| (one.bounds.cx - cx).powi(2)), mean(&|one| (one.bounds.cy - cy).powi(2))];
    let share = |kind: BoxKind| boxes.iter().filter(|one| one.kind == kind).count() as f64 / count;
    (!boxes.is_empty()).then(|| UsualBox {
        mean: Bounds { cx, cy, w: mean(&|one| one.bounds.w), h: mean(&|one| one.bounds.h) },
        deviation: deviation.map(f64::sqrt),
        kinds: [BoxKind::Small, BoxKind::Wide, BoxKind::Tall].map(share),
    })
}

/// The fraction of the variance that is between groups, with the law of total variance.
fn between_share(groups: &[Vec<[f64; 2]>]) -> (Option<f64>, Option<Check>) {
    let mean = |points: &mut dyn Iterator<Item = [f64; 2]>| {
        let (mut sum, mut count) = ([0.0; 2], 0.0);
        for point in points {
            sum = [sum[0] + point[0], sum[1] + point[1]];
            count += 1.0;
        }
        sum.map(|sum| sum / f64::max(count, 1.0))
    };
    let square = |a: [f64; 2], b: [f64; 2]| (a[0] - b[0]).powi(2) + (a[1] - b[1]).powi(2);
    let centre = mean(&mut groups.iter().flatten().copied());
    let total: f64 = groups.iter().flatten().map(|point| square(*point, centre)).sum();
    let (mut between, mut within) = (0.0, 0.0);
    for group in groups {
        let own = mean(&mut group.iter().copied());
        between += group.len() as f64 * square(own, centre);
        within += group.iter().map(|point| square(*point, own)).sum::<f64>();
    }
    if total <= f64::EPSILON {
        return (None, None);
    }
    let law = "variance between and within queries adds up";
    (Some(between / total), Some(Check::new(law, (between + within - total).abs() / total, 1e-9)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(score: f64, cx: f64, cy: f64, side: f64) -> Detection {
        Detection { class: 0, score, bounds: Bounds { cx, cy, w: side, h: side } }
    }

    fn collected(pictures: &[Vec<Detection>], size: [usize; 2]) -> Specialisation {
        let mut boxes = QueryBoxes::new(SpecialiseOptions::default());
        pictures.iter().for_each(|detections| boxes.add(detections, size).unwrap());
        boxes.finish().unwrap()
    }

    #[test]
    fn queries_that_each_answer_for_one_point_have_all_variance_between_them() {
        let picture = vec![said(0.9, 0.2, 0.2, 0.1), said(0.9, 0.8, 0.8, 0.5), said(0.1, 0.5, 0.5, 0.1)];
        let found = collected(&[picture.clone(), picture], [64, 64]);
        assert!((found.between.unwrap() - 1.0).abs() < 1e-12);
        assert!(found.checks.len() == 2 && found.checks.iter().all(Check::holds), "{:?}", found.checks);
        assert_eq!(found.queries.iter().map(|query| query.fired).collect::<Vec<_>>(), [2, 2, 0]);
        assert!(found.queries[2].usual.is_none() && found.queries[2].boxes.len() == 2);
        let usual = found.queries[1].usual.unwrap();
        assert!((usual.mean.cx - 0.8).abs() < 1e-12 && usual.deviation[0] < 1e-9);
        assert_eq!((found.queries[0].usual.unwrap().kinds, usual.kinds), ([1.0, 0.0, 0.0], [0.0, 1.0, 0.0]));
    }

    #[test]
    fn queries_without_preferences_have_no_variance_between_them() {
        let (left, right) = (said(0.9, 0.2, 0.5, 0.1), said(0.9, 0.8, 0.5, 0.1));
        let found = collected(&[vec![left, right], vec![right, left]], [64, 64]);
        assert!(found.between.unwrap().abs() < 1e-12);
        assert!(found.checks.iter().all(Check::holds));
    }

    #[test]
    fn wide_and_tall_are_measured_in_pixels() {
        let square_share = vec![said(0.9, 0.5, 0.5, 0.5)];
        let kind = |size| collected(std::slice::from_ref(&square_share), size).queries[0].boxes[0].kind;
        assert_eq!((kind([50, 100]), kind([100, 50])), (BoxKind::Wide, BoxKind::Tall));
    }

    #[test]
    fn what_cannot_be_is_an_error_and_no_nan() {
        assert!(QueryBoxes::new(SpecialiseOptions::default()).finish().is_err());
        let mut boxes = QueryBoxes::new(SpecialiseOptions::default());
        boxes.add(&[said(0.1, 0.5, 0.5, 0.1)], [8, 8]).unwrap();
        assert!(boxes.add(&[], [8, 8]).unwrap_err().to_string().contains("0 queries after a picture with 1"));
        assert!(boxes.add(&[said(0.1, f64::NAN, 0.5, 0.1)], [8, 8]).unwrap_err().to_string().contains("query 0"));
        let found = boxes.finish().unwrap();
        assert_eq!((found.between, found.queries[0].fired), (None, 0));
        assert!(collected(&[vec![said(0.9, 1.5, 0.5, 0.1)]], [8, 8]).checks.iter().any(|check| !check.holds()));
    }
}
