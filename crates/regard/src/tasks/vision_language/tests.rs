use super::*;
use crate::data::Picture;
use crate::data::vision_language::{GivenBox, OnePicture};
use crate::data::world::question;
use crate::device::cpu;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{Optimiser, Schedule, Shape, read_history};
use crate::weights;
use std::fs;

/// A small model of garments.
fn recipe(model: &str, data: &str) -> Recipe {
    let text = format!(
        "task = 'vision-language'\nmodel = '{model}'\ndata = '{data}'\nepochs = 2\ntexts = 32\ntest-texts = 24\nbatch = 16
        longest = 24\nworkers = 1\nmeasured-words = 8\nretrieval = 4\nregions = {{ source = 'boxes', side = 4 }}"
    );
    let mut recipe = Recipe::from_toml(&text).unwrap();
    let small = [("dim", 16), ("inner", 32), ("heads", 2), ("layers", 2)];
    for (field, value) in small {
        recipe.common.set.insert(field.into(), toml::Value::Integer(value));
    }
    recipe
}

const FILES: [&str; 7] =
    ["best.safetensors", "last.safetensors", "recipe.toml", "task.json", "model.toml", "tokenizer.json", "blind.json"];

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_as_one_that_was_not() {
    let place = tempfile::tempdir().unwrap();
    let mut questions = recipe("uniter-nano", "questions");
    (questions.common.ema, questions.common.accumulate) = (0.5, 2);
    assert_stops_change_nothing::<VisionLanguage>(&place.path().join("q"), &questions, &FILES, &[&[1], &[2, 3]]);
    let mut captions = recipe("uniter-nano", "captions");
    captions.own.goals = [
        (Goal::Words, 1.0),
        (Goal::RegionKl, 1.0),
        (Goal::RegionFeatures, 1.0),
        (Goal::Matching, 1.0),
        (Goal::Alignment, 0.5),
    ]
    .into();
    assert_stops_change_nothing::<VisionLanguage>(&place.path().join("c"), &captions, &FILES, &[&[1, 3]]);
}

#[test]
fn two_processes_learn_what_one_learns() {
    for data in ["questions", "captions"] {
        let place = tempfile::tempdir().unwrap();
        let mut recipe = recipe("uniter-nano", data).with("set.dropout", "0.0").unwrap();
        recipe.common.epochs = 1;
        assert_two_learn_as_one::<VisionLanguage>(place.path(), &recipe);
    }
}

#[test]
fn a_model_learns_questions_by_heart_answers_them_and_is_measured() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    let mut recipe = recipe("uniter-nano", "questions").with("set.dropout", "0.0").unwrap();
    (recipe.common.epochs, recipe.own.texts) = (90, 16);
    recipe.common.set.insert("dim".into(), toml::Value::Integer(48));
    recipe.common.optimiser = Optimiser::Adamw { rate: 3e-3, betas: [0.9, 0.98], epsilon: 1e-8, decay: 0.0 };
    recipe.common.schedule = Schedule { shape: Shape::Cosine, warmup: 4.0, ..Schedule::default() };
    train_until::<VisionLanguage>(&run, &recipe, None);
    let history = read_history(&run).unwrap();
    let last = history.steps.last().unwrap().loss;
    assert!(last < 0.2, "{last}");
    let test = history.test.unwrap();
    assert!(test.metric("blind") <= 1.0 && (test.metric("score") - test.metric("accuracy")).abs() < 1e-12);
    // asked one by one, with the regions it was trained on
    fs::copy(run.join("last.safetensors"), run.join("best.safetensors")).unwrap();
    let bundle = VisionLanguageBundle::open(&run, &cpu()).unwrap();
    let mut right = 0;
    for index in 0..16 {
        let asked = question(0, Part::Train, index);
        let picture = asked.scene.picture();
        let boxes: Vec<GivenBox> = asked
            .scene
            .drawn_boxes()
            .into_iter()
            .map(|(corners, kind)| GivenBox {
                bounds: crate::data::Bounds::from_pixel_corners(corners, [64; 2]),
                class: Some(kind),
            })
            .collect();
        let shown = OnePicture { name: "scene", picture: &picture, boxes: &boxes };
        let answered = bundle.ask(&[shown], &asked.text, 2).unwrap();
        assert!(answered.answers.len() == 2 && answered.answers[0].probability >= answered.answers[1].probability);
        assert_eq!((answered.tokens[0].as_str(), answered.regions[0].len()), ("[CLS]", boxes.len()));
        right += usize::from(answered.answers[0].answer == crate::data::world::ANSWERS[asked.answer]);
    }
    assert!(right >= 15, "{right} of 16");
    let picture = Picture::new([8, 8], vec![9; 192]).unwrap();
    let shown = || OnePicture { name: "grey", picture: &picture, boxes: &[] };
    let told = |question: &str| bundle.ask(&[shown()], question, 1).unwrap_err().to_string();
    assert!(told("  ").contains("is empty"));
    assert!(told(&"bag ".repeat(100)).contains("102 tokens, the most is 24"));
    assert!(told(&"bag ".repeat(10_000)).contains("40000 bytes, the most is 4096"));
    let outside = [GivenBox { bounds: crate::data::Bounds::from_corners([2.0, 2.0, 3.0, 3.0]), class: None }];
    let shown = OnePicture { boxes: &outside, ..shown() };
    assert!(bundle.ask(&[shown], "what is left ?", 1).unwrap_err().to_string().contains("a region without area"));
}

#[test]
fn every_family_learns_every_goal_that_it_has_a_head_for() {
    let all = [
        ("visual-bert-nano", &[Goal::Words, Goal::Matching][..]),
        ("vilbert-nano", &[Goal::Words, Goal::RegionKl, Goal::Matching]),
        ("lxmert-nano", &[Goal::Words, Goal::RegionFeatures, Goal::RegionClasses, Goal::Matching]),
        ("uniter-nano", &[Goal::Words, Goal::RegionClasses, Goal::Alignment, Goal::Matching]),
    ];
    for (model, goals) in all {
        for goal in goals {
            let mut recipe = recipe(model, "captions");
            recipe.common.set.clear();
            recipe.own.goals = [(*goal, 1.0)].into();
            let task = VisionLanguage::of(&recipe, &BTreeMap::new(), &cpu()).unwrap();
            let (objective, model) = task.begin(false, &cpu()).unwrap();
            let step = task.steps(0, 0, Share::WHOLE).next().unwrap().unwrap();
            let counts: Vec<f64> =
                train::Objective::counts(&objective, &step[0]).iter().map(|count| *count as f64).collect();
            let losses = train::Objective::losses(&objective, &model, &step[0], &counts, 0).unwrap();
            assert!(losses.sum.into_scalar::<f32>().is_finite(), "{goal:?}");
        }
    }
}

#[test]
fn what_does_not_fit_is_told() {
    let refused = |change: fn(&mut Recipe)| {
        let mut recipe = recipe("uniter-nano", "questions");
        change(&mut recipe);
        VisionLanguage::of(&recipe, &BTreeMap::new(), &cpu()).unwrap_err().to_string()
    };
    assert!(refused(|recipe| recipe.common.data = "questionz".into()).contains("a dataset is a path"));
    let no_classes = refused(|recipe| {
        recipe.own.regions = RegionRecipe::Grid { grid: 2, side: 8 };
        recipe.own.goals = [(Goal::RegionKl, 1.0)].into();
    });
    assert!(no_classes.contains("`goals.region-kl`"), "{no_classes}");
    let captions = refused(|recipe| {
        recipe.common.data = "captions".into();
        recipe.own.goals = [(Goal::Answer, 1.0)].into();
    });
    assert!(captions.contains("captions have no answers"), "{captions}");
}

#[test]
fn measuring_a_run_on_its_data_gives_what_the_run_gave() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    let recipe = recipe("visual-bert-nano", "questions");
    train_until::<VisionLanguage>(&run, &recipe, None);
    let request = EvalRequest { folder: &run, data: "questions", part: Part::Validation };
    let report = VisionLanguage::evaluate(&recipe, &request, &cpu(), &mut |_, _| ()).unwrap();
    let accuracy = report.json["metrics"]["accuracy"].as_f64().unwrap();
    assert!(
        (0.0..=1.0).contains(&accuracy) && report.lines.iter().any(|(name, _)| name == "what colour"),
        "{:?}",
        report.lines
    );
    assert!(report.lines.iter().any(|(name, _)| name == "without looking"));
}

#[test]
fn a_pre_trained_run_is_the_start_of_one_that_answers() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("captions");
    train_until::<VisionLanguage>(&run, &recipe("uniter-nano", "captions"), None);
    let mut answering = recipe("uniter-nano", "questions");
    answering.common.weights = Some(run.display().to_string());
    let task = VisionLanguage::of(&answering, &BTreeMap::new(), &cpu()).unwrap();
    let (_, model) = task.begin(true, &cpu()).unwrap();
    let (own, given) = (weights::tensors(&model), weights::read(&run.join("best.safetensors")).unwrap().tensors);
    let name = "uniter.encoder.layer.0.attention.self.query.weight";
    let values = |all: &weights::Tensors| all[name].iter::<f32>().collect::<Vec<f32>>();
    assert_eq!(values(&own), values(&given));
    assert!(own.keys().any(|name| name.starts_with("vqa_output")));
    answering.common.set.insert("dim".into(), toml::Value::Integer(32));
    let task = VisionLanguage::of(&answering, &BTreeMap::new(), &cpu()).unwrap();
    assert!(task.begin(true, &cpu()).is_err());
}
