use super::*;
use crate::data::Picture;
use crate::data::vision_language::{GivenBox, OnePicture};
use crate::device::cpu;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{Optimiser, Schedule, ScheduleShape, read_history};
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

const COLOURS: [(&str, [u8; 3]); 4] =
    [("red", [220, 40, 40]), ("green", [40, 200, 60]), ("blue", [50, 70, 230]), ("white", [230; 3])];

fn plain(colour: usize, shade: u8) -> Picture {
    Picture::new([8, 8], COLOURS[colour].1.map(|level| level - shade).repeat(64)).unwrap()
}

/// Pictures of one colour each, and a question about each, in a table.
fn colours(folder: &Path) -> String {
    let mut rows = vec!["image,question,answer,part".to_string()];
    for index in 0..208 {
        let part = ["train", "validation", "test"][usize::from(index >= 160) + usize::from(index >= 176)];
        let pixels = plain(index % 4, (index / 8) as u8).pixels().to_vec();
        image::RgbImage::from_raw(8, 8, pixels).unwrap().save(folder.join(format!("{index}.png"))).unwrap();
        rows.push(format!("{index}.png,what colour is it?,{},{part}", COLOURS[index % 4].0));
    }
    let table = folder.join("colours.csv");
    fs::write(&table, rows.join("\n")).unwrap();
    table.display().to_string()
}

#[test]
fn a_model_that_looks_answers_what_cannot_be_known_without_looking_and_is_asked_and_measured() {
    let place = tempfile::tempdir().unwrap();
    let run = place.path().join("run");
    let mut recipe = recipe("uniter-nano", &colours(place.path())).with("set.dropout", "0.0").unwrap();
    (recipe.common.epochs, recipe.own.texts, recipe.own.test_texts) = (16, 0, 0);
    recipe.common.optimiser = Optimiser::Adamw { rate: 3e-3, betas: [0.9, 0.98], epsilon: 1e-8, decay: 0.0 };
    recipe.common.schedule = Schedule { shape: ScheduleShape::Cosine, warmup: 1.0, ..Schedule::default() };
    train_until::<VisionLanguage>(&run, &recipe, None);
    let test = read_history(&run).unwrap().test.unwrap();
    assert!(test.metric("accuracy") > 0.95 && (test.metric("blind") - 0.25).abs() < 1e-9, "{test:?}");
    assert_eq!(test.metric("score").to_bits(), test.metric("accuracy").to_bits());
    // measured again, and on data without parts
    let request = EvalRequest { folder: &run, data: &recipe.common.data, part: Part::Test };
    let report = VisionLanguage::evaluate(&recipe, &request, &cpu(), &mut |_, _| ()).unwrap();
    assert_eq!(report.json["metrics"]["accuracy"].as_f64().unwrap(), test.metric("accuracy"));
    assert!(
        report.lines.iter().any(|(name, value)| name == "without looking" && value == "25.00 %"),
        "{:?}",
        report.lines
    );

    let bundle = VisionLanguageBundle::open(&run, &cpu()).unwrap();
    for (colour, (name, _)) in COLOURS.iter().enumerate() {
        let picture = plain(colour, 3);
        let shown = OnePicture { name: "plain", picture: &picture, boxes: &[] };
        let answered = bundle.ask(&[shown], "What colour is it?", 2).unwrap();
        assert!(answered.answers.len() == 2 && answered.answers[0].probability >= answered.answers[1].probability);
        assert_eq!((answered.answers[0].answer.as_str(), answered.tokens[0].as_str()), (*name, "[CLS]"));
    }
    let picture = plain(0, 0);
    let shown = || OnePicture { name: "plain", picture: &picture, boxes: &[] };
    let told = |question: &str| bundle.ask(&[shown()], question, 1).unwrap_err().to_string();
    assert!(told("  ").contains("is empty"));
    assert!(told(&"colour ".repeat(100)).contains("tokens, the most is 24"));
    assert!(told(&"bag ".repeat(10_000)).contains("40000 bytes, the most is 4096"));
    let outside = [GivenBox { bounds: crate::data::Bounds::from_corners([2.0, 2.0, 3.0, 3.0]), class: None }];
    let outside = OnePicture { boxes: &outside, ..shown() };
    assert!(bundle.ask(&[outside], "what is it?", 1).unwrap_err().to_string().contains("a region without area"));
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
