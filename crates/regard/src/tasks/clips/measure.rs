//! A model on every clip of a part, and what a report shows of it.

use burn::tensor::{Device, Tensor};

use super::ClipSamples;
use crate::data::Loader;
use crate::evaluate::{ClassificationMetrics, Confusion};
use crate::function::softmax;
use crate::models::VideoModel;
use crate::report::{Figure as _, Findings, Table, classes};
use crate::train::EvalReport;
use crate::{Error, Pass};

/// Pairs of classes that are shown as taken for each other.
const PAIRS: usize = 10;

/// Evaluates a model on the clips of a loader.
///
/// # Errors
/// When a clip cannot be read.
pub fn evaluate(
    model: &VideoModel,
    loader: &Loader<ClipSamples>,
    device: &Device,
    watch: &mut dyn FnMut(usize),
) -> Result<ClassificationMetrics, Error> {
    evaluate_classes(model, loader, |class| class, device, watch)
}

/// [`evaluate`] with the model's class for each class of the data.
pub(super) fn evaluate_classes(
    model: &VideoModel,
    loader: &Loader<ClipSamples>,
    in_model: impl Fn(usize) -> usize,
    device: &Device,
    watch: &mut dyn FnMut(usize),
) -> Result<ClassificationMetrics, Error> {
    let mut evaluation = ClassificationMetrics::default();
    for batch in loader.epoch(0, 0) {
        let batch = batch?;
        let logits = model.forward(&batch.clips(device), &mut Pass::silent());
        let labels: Vec<usize> = batch.targets.iter().map(|target| in_model(target.class)).collect();
        evaluation.add(mean_of_views(logits, batch.views), &labels);
        watch(evaluation.accuracy.pictures);
    }
    Ok(evaluation)
}

/// `[B * views, classes] -> [B, classes]`: logarithms of the probabilities, averaged over the views of each clip. They are
/// logits of the mean probabilities.
#[must_use]
pub fn mean_of_views(logits: Tensor<2>, views: usize) -> Tensor<2> {
    let [rows, classes] = logits.dims();
    if views == 1 {
        return logits;
    }
    let shares = softmax(logits).reshape([rows / views, views, classes]);
    shares.mean_dim(1).squeeze_dim::<2>(1).clamp_min(f32::MIN_POSITIVE).log()
}

/// Two classes and how often clips of one are taken for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassPair {
    pub classes: [usize; 2],
    /// Clips of both classes.
    pub clips: u64,
    /// Clips of one that are taken for the other, for both.
    pub exchanged: u64,
}

/// The pairs of classes that are taken for each other, most often first.
#[must_use]
pub fn exchanged_pairs(confusion: &Confusion) -> Vec<ClassPair> {
    let classes = confusion.counts.len();
    let pair = |(one, other): (usize, usize)| ClassPair {
        classes: [one, other],
        clips: confusion.pictures(one) + confusion.pictures(other),
        exchanged: confusion.counts[one][other] + confusion.counts[other][one],
    };
    let all = (0..classes).flat_map(|one| (one + 1..classes).map(move |other| (one, other)));
    let mut pairs: Vec<ClassPair> = all.map(pair).filter(|pair| pair.exchanged > 0).collect();
    pairs.sort_by_key(|pair| std::cmp::Reverse(pair.exchanged));
    pairs
}

fn pair_table(confusion: &Confusion, names: &[String]) -> Table {
    let mut table = Table::new().words("classes").numbers("clips").numbers("taken for each other %");
    for ClassPair { classes: [one, other], clips, exchanged } in exchanged_pairs(confusion).into_iter().take(PAIRS) {
        table.row([
            format!("{} / {}", names[one], names[other]),
            clips.to_string(),
            format!("{:.1}", 100.0 * exchanged as f64 / clips as f64),
        ]);
    }
    table
}

/// The confusion and the calibration of a test, class by class, and the pairs that are taken for each other.
#[must_use]
pub fn findings(
    ClassificationMetrics { confusion, calibration, .. }: &ClassificationMetrics,
    names: &[String],
) -> Findings {
    Findings {
        facts: vec![("calibration error".into(), format!("{:.2} %", 100.0 * calibration.error()))],
        figures: vec![
            ("confusion.svg", classes::confusion(confusion, names).drawing()),
            ("calibration.svg", classes::calibration(calibration).drawing()),
        ],
        tables: vec![classes::table(confusion, names), pair_table(confusion, names)],
    }
}

/// What `regard eval` prints: accuracies, the classes one by one, and the pairs that are taken for each other.
pub(super) fn report(evaluation: &ClassificationMetrics, names: &[String], measured_on: &str) -> EvalReport {
    let ClassificationMetrics { accuracy, confusion, .. } = evaluation;
    let findings = findings(evaluation, names);
    let percent = |share: f64| format!("{:.2} %", 100.0 * share);
    let mut lines = vec![
        ("measured on".to_string(), format!("{} clips, {measured_on}", accuracy.pictures)),
        ("top-1 accuracy".into(), percent(accuracy.top1())),
        ("top-5 accuracy".into(), percent(accuracy.top5())),
        ("loss".into(), format!("{:.4}", accuracy.loss())),
    ];
    lines.extend(findings.facts);
    let mut by_class = serde_json::Map::new();
    for (class, name) in names.iter().enumerate().filter(|(class, _)| confusion.pictures(*class) > 0) {
        let taken_for = confusion.taken_for(class).map(|(other, count)| (names[other].as_str(), count));
        let mistake = taken_for.map_or(String::new(), |(other, count)| format!(", mostly taken for {other} ({count})"));
        let (clips, right) = (confusion.pictures(class), confusion.accuracy(class));
        lines.push((name.clone(), format!("{} of {clips} clips{mistake}", percent(right))));
        let taken_for = taken_for.map(|(other, count)| serde_json::json!({ "class": other, "clips": count }));
        let one = serde_json::json!({ "clips": clips, "accuracy": right, "mostly_taken_for": taken_for });
        by_class.insert(name.clone(), one);
    }
    let pairs = exchanged_pairs(confusion);
    for ClassPair { classes: [one, other], clips, exchanged } in pairs.iter().take(PAIRS) {
        let share = *exchanged as f64 / *clips as f64;
        lines.push((format!("{} / {}", names[*one], names[*other]), format!("{} exchanged", percent(share))));
    }
    let pair = |pair: &ClassPair| {
        let [one, other] = pair.classes.map(|class| &names[class]);
        serde_json::json!({ "classes": [one, other], "clips": pair.clips, "exchanged": pair.exchanged })
    };
    let json = serde_json::json!({
        "clips": accuracy.pictures,
        "top1": accuracy.top1(),
        "top5": accuracy.top5(),
        "loss": accuracy.loss(),
        "classes": by_class,
        "exchanged": pairs.iter().map(pair).collect::<Vec<_>>(),
        "confusion": confusion,
    });
    EvalReport { lines, json, figures: findings.figures }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, random};

    #[test]
    fn the_views_of_a_clip_count_by_their_probabilities() {
        let logits = random::<2>([6, 4], 1) * 3.0;
        let expected = softmax(logits.clone()).reshape([2, 3, 4]).mean_dim(1).squeeze_dim::<2>(1);
        assert_close(&softmax(mean_of_views(logits.clone(), 3)), &expected, 1e-6);
        assert_close(&mean_of_views(logits.clone(), 1), &logits, 0.0);
    }

    #[test]
    fn a_pair_counts_both_directions_and_the_most_exchanged_comes_first() {
        let counts = vec![vec![5, 3, 0], vec![2, 8, 1], vec![0, 0, 4]];
        let pairs = exchanged_pairs(&Confusion { counts });
        let told: Vec<_> = pairs.iter().map(|pair| (pair.classes, pair.clips, pair.exchanged)).collect();
        assert_eq!(told, [([0, 1], 19, 5), ([1, 2], 15, 1)]);
    }
}
