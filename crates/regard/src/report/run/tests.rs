use super::*;
use crate::device;
use crate::evaluate::{Better, ClassificationMetrics, Values};
use crate::report::classes;
use burn::tensor::{Tensor, TensorData};

const METRICS: &[Metric] = &[
    Metric::new("top1", "top-1 accuracy", Better::Higher, Unit::Percent),
    Metric::new("loss", "loss", Better::Lower, Unit::Number),
    Metric::new("bleu", "BLEU", Better::Higher, Unit::Number),
];

fn values(top1: f64) -> Values {
    [("top1", top1), ("loss", 1.2), ("bleu", 30.0)].map(|(name, value)| (name.to_string(), value)).into()
}

fn report() -> RunReport {
    let step = |step: usize| StepRecord {
        step,
        epoch: step.div_ceil(10),
        loss: 2.0 / step as f64,
        parts: [("box".to_string(), 0.5), ("class".to_string(), 1.5)].into(),
        rate: 1e-3,
        gradient_norm: 1.0,
        items_per_second: 90.0 + step as f64,
    };
    let epoch = |epoch: usize, top1: f64| EpochRecord {
        epoch,
        step: 10 * epoch,
        train_loss: 1.0,
        seconds: 45.0,
        metrics: values(top1),
    };
    let mut evaluation = ClassificationMetrics::default();
    let logits = TensorData::new(vec![2f32, 0., 0., 2., 3., 1.], [3, 2]);
    evaluation.add(Tensor::from_data(logits, &device::cpu()), &[0, 1, 1]);
    let names = ["circle".to_string(), "square".to_string()];
    RunReport {
        title: "vit-nano on <shapes>".into(),
        command: "regard train recipe.toml".into(),
        seed: 7,
        commit: Some("abc1234".into()),
        recipe: "epochs = 3".into(),
        facts: vec![("model".into(), "vit-nano".into())],
        history: History {
            steps: (1..=30).map(step).collect(),
            epochs: vec![epoch(1, 0.5), epoch(2, 0.75), epoch(3, 0.75)],
            test: Some(TestRecord { epoch: 2, metrics: values(0.7) }),
        },
        task: TaskInfo {
            task: "classify".into(),
            primary: "top1".into(),
            items: "pictures".into(),
            metrics: METRICS.into(),
        },
        findings: Findings {
            facts: vec![("calibration error".into(), "3 %".into())],
            figures: vec![("confusion.svg", classes::confusion(&evaluation.confusion, &names).drawing())],
            tables: vec![classes::table(&evaluation.confusion, &names)],
        },
    }
}

#[test]
fn a_report_tells_what_was_run_and_what_came_out() {
    let html = report().html();
    for said in [
        "vit-nano on &lt;shapes&gt;",
        "regard train recipe.toml",
        "<dd>7</dd>",
        "abc1234",
        "epochs = 3",
        "top-1 accuracy 70.00 % on the test part, with the weights of epoch 2",
        "75.00 %, epoch 2",
        "loss.box",
        "validation BLEU",
        "2 min 15 s",
        "106.0 pictures/s",
        "square",
        "mostly taken for",
    ] {
        assert!(html.contains(said), "no `{said}`");
    }
    assert_eq!(html.matches("<svg").count(), 7);
    assert!(!html.contains("no data"));
}

#[test]
fn every_figure_is_a_file_too() {
    let figures = report().figures();
    let names: Vec<&str> = figures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["loss.svg", "rate.svg", "accuracy.svg", "bleu.svg", "confusion.svg"]);
    assert!(figures.iter().all(|(_, svg)| svg.starts_with("<svg") && svg.ends_with("</svg>\n")));
}

#[test]
fn a_run_that_has_just_begun_has_a_report_that_says_so() {
    let new = RunReport { history: History::default(), findings: Findings::default(), ..report() };
    let html = new.html();
    assert!(html.contains("nothing was trained so far") && html.contains("no data"));
    let mut begun = report();
    begun.history.epochs.clear();
    begun.history.test = None;
    begun.history.steps[3].loss = f64::NAN;
    assert!(begun.html().contains("30 steps, not measured so far"));
}
