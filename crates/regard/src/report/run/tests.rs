use super::*;
use crate::device;
use burn::tensor::{Tensor, TensorData};

fn report() -> RunReport {
    let step = |step: usize| StepRecord {
        step,
        epoch: step.div_ceil(10),
        loss: 2.0 / step as f64,
        rate: 1e-3,
        gradient_norm: 1.0,
        pictures_per_second: 90.0 + step as f64,
    };
    let epoch = |epoch: usize, top1: f64| EpochRecord {
        epoch,
        step: 10 * epoch,
        train_loss: 1.0,
        test_loss: 1.2,
        top1,
        top5: 0.95,
        bleu: None,
        seconds: 45.0,
    };
    let mut evaluation = Evaluation::default();
    let logits = TensorData::new(vec![2f32, 0., 0., 2., 3., 1.], [3, 2]);
    evaluation.add(Tensor::from_data(logits, &device::cpu()), &[0, 1, 1]);
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
        },
        classes: vec!["circle".into(), "square".into()],
        evaluation: Some(evaluation),
        pictures: vec![Picture { png: vec![0; 3], description: "attention".into(), caption: String::new() }],
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
        "75.00 %, epoch 2",
        "2 min 15 s",
        "106.0 pictures/s",
        "square",
        "mostly taken for",
        "data:image/png;base64,",
    ] {
        assert!(html.contains(said), "no `{said}`");
    }
    assert_eq!(html.matches("<svg").count(), 7);
    assert!(!html.contains("no data"));
}

#[test]
fn every_figure_is_a_file_too() {
    let names: Vec<&str> = report().figures().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["loss.svg", "accuracy.svg", "rate.svg", "confusion.svg", "calibration.svg"]);
    let figures = RunReport { evaluation: None, ..report() }.figures();
    assert!(figures.len() == 3 && figures.iter().all(|(_, svg)| svg.starts_with("<svg") && svg.ends_with("</svg>\n")));
}

#[test]
fn a_run_that_has_just_begun_has_a_report_that_says_so() {
    let html = RunReport { title: "new".into(), ..RunReport::default() }.html();
    assert!(html.contains("nothing was trained so far") && html.contains("no data"));
    let mut begun = report();
    begun.history.epochs.clear();
    begun.history.steps[3].loss = f64::NAN;
    assert!(begun.html().contains("30 steps, no test so far"));
}
