use super::*;
use crate::data::text::Pieces;
use crate::device::cpu;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{Optimiser, Schedule, ScheduleShape, read_history};
use std::fs;
use std::path::PathBuf;

const LINES: &[&str] = &[
    "the cat sleeps on the mat",
    "the dog barks at the moon",
    "a bird sings in the tree",
    "we drink tea in the morning and coffee in the afternoon",
    "he reads a book about the sea",
    "she writes letters to her brother",
    "it rains",
    "children play in the garden after school",
    "the train to the city leaves at noon",
    "I like apples",
];

struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new() -> Self {
        let workspace = tempfile::tempdir().unwrap();
        let data = workspace.path().join("data");
        fs::create_dir(&data).unwrap();
        for name in ["train.txt", "dev.txt", "test.txt"] {
            fs::write(data.join(name), LINES.join("\n")).unwrap();
        }
        Self(workspace)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn recipe(&self, model: &str) -> Recipe {
        let text = "
            task = 'language'
            pieces = 'words'
            epochs = 3
            tokens = 40
            longest = 20
            set = { dim = 32, inner = 64, heads = 2, layers = 1 }
        ";
        let mut recipe = Recipe::from_toml(text).unwrap();
        (recipe.common.model, recipe.common.data) = (model.into(), self.run("data").display().to_string());
        recipe
    }
}

const MODELS: [&str; 2] = ["masked-nano", "causal-nano"];

const FILES: [&str; 6] =
    ["best.safetensors", "last.safetensors", "recipe.toml", "task.json", "model.toml", "tokenizer.json"];

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_like_one_that_was_not() {
    let workspace = Workspace::new();
    for model in MODELS {
        let mut recipe = workspace.recipe(model);
        (recipe.common.ema, recipe.common.accumulate) = (0.5, 2);
        assert_stops_change_nothing::<Language>(workspace.0.path(), &recipe, &FILES, &[&[1], &[2, 4]]);
    }
}

/// A recipe that overfits a few lines.
fn by_heart(workspace: &Workspace, model: &str) -> Recipe {
    let mut recipe = workspace.recipe(model).with("set.dropout", "0.0").unwrap();
    recipe.common.epochs = 150;
    recipe.common.optimiser = Optimiser::Adamw { rate: 3e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.0 };
    recipe.common.schedule = Schedule { shape: ScheduleShape::Constant, warmup: 3.0, ..Schedule::default() };
    recipe.own.tokens = 200;
    recipe
}

#[test]
fn a_masked_model_overfits_a_few_lines_and_fills_their_masks() {
    let workspace = Workspace::new();
    let run = workspace.run("run");
    train_until::<Language>(&run, &by_heart(&workspace, "masked-nano"), None);
    let test = read_history(&run).unwrap().test.unwrap();
    assert!(test.metric("top1") > 0.8, "{test:?}");
    assert!((test.metric("perplexity") - test.metric("loss").exp()).abs() < 1e-9);
    let bundle = LanguageBundle::open(&run, &cpu()).unwrap();
    let fillings = bundle.fill("the dog [MASK] at the moon", 3).unwrap();
    assert_eq!((fillings.len(), fillings[0].len()), (1, 3));
    let best = &fillings[0][0];
    assert_eq!((best.word.as_str(), best.sentence.as_str()), ("barks", "the dog barks at the moon"));
    assert!(best.probability > fillings[0][1].probability && best.probability <= 1.0);
    let two = bundle.fill("the dog [MASK] at the <mask>", 1).unwrap();
    assert_eq!((two[1][0].word.as_str(), two[0][0].sentence.as_str()), ("moon", "the dog barks at the moon"));

    let error_of = |text: &str| bundle.fill(text, 1).unwrap_err().to_string();
    assert!(error_of("the dog barks").contains("no [MASK] in it"));
    assert!(error_of(&"[MASK] ".repeat(2000)).contains("1024"));
    assert!(error_of(&"[MASK] ".repeat(10_000)).len() < 300);
    let rest = Continuation { length: 5, temperature: 0.0, seed: 0 };
    assert!(bundle.write_on("the dog", rest).unwrap_err().to_string().contains("masked"));
}

#[test]
fn a_causal_model_overfits_a_few_lines_and_continues_them() {
    let workspace = Workspace::new();
    let run = workspace.run("run");
    train_until::<Language>(&run, &by_heart(&workspace, "causal-nano"), None);
    let bundle = LanguageBundle::open(&run, &cpu()).unwrap();
    let rest = Continuation { length: 30, temperature: 0.0, seed: 0 };
    assert_eq!(bundle.write_on("the dog", rest).unwrap(), "the dog barks at the moon");
    assert_eq!(bundle.write_on("the dog", Continuation { length: 1, ..rest }).unwrap(), "the dog barks");
    // draws depend on the seed alone
    let drawn = |seed| bundle.write_on("", Continuation { temperature: 1.0, seed, ..rest }).unwrap();
    assert_eq!(drawn(1), drawn(1));
    assert!((2..20).any(|seed| drawn(seed) != drawn(1)));

    assert!(bundle.fill("the [MASK]", 1).unwrap_err().to_string().contains("causal"));
    let hot = Continuation { temperature: f64::NAN, ..rest };
    assert!(bundle.write_on("the", hot).unwrap_err().to_string().contains("`temperature`"));
}

#[test]
fn two_processes_with_different_numbers_of_tokens_learn_what_one_learns() {
    for model in MODELS {
        let workspace = Workspace::new();
        let mut recipe = workspace.recipe(model).with("set.dropout", "0.0").unwrap();
        recipe.common.epochs = 2;
        let task = Language::of(&recipe, None).unwrap();
        let counts = |rank| -> Vec<usize> {
            let steps = task.steps(0, 0, Share { rank, ranks: 2 });
            steps.map(|step| step.unwrap().iter().map(|batch| batch.targets.len()).sum()).collect()
        };
        assert_ne!(counts(0), counts(1));
        assert_two_learn_as_one::<Language>(workspace.0.path(), &recipe);
    }
}

#[test]
fn a_file_alone_gives_a_tenth_of_its_lines_to_validation_and_has_no_test() {
    let workspace = Workspace::new();
    let file = workspace.run("numbers.txt");
    let lines: Vec<String> = (0..200).map(|number| format!("number {number}")).collect();
    fs::write(&file, lines.join("\n")).unwrap();
    let mut recipe = workspace.recipe("causal-nano");
    recipe.common.data = file.display().to_string();
    let task = Language::of(&recipe, None).unwrap();
    let (train, validation) = (&task.train.lines, &task.validation.lines);
    assert!(train.len() + validation.len() == 200 && (10..=35).contains(&validation.len()), "{}", validation.len());
    assert!(validation.iter().all(|line| !train.contains(line)) && task.test.is_none());
    recipe.common.seed = 7;
    assert_eq!(Language::of(&recipe, None).unwrap().validation.lines, *validation);
}

#[test]
fn long_lines_are_cut_and_no_token_is_lost() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe("masked-nano");
    recipe.own.longest = 4;
    let task = Language::of(&recipe, None).unwrap();
    assert!(task.train.tokens.len() > LINES.len() && task.train.tokens.iter().all(|sample| sample.len() <= 4));
    let whole: Vec<u32> = LINES.iter().flat_map(|line| task.tokenizer.encode(line).unwrap()).collect();
    assert_eq!(task.train.tokens.concat(), whole);
}

#[test]
fn what_does_not_fit_is_an_error() {
    let workspace = Workspace::new();
    let refused = |change: fn(&mut Recipe)| {
        let mut recipe = workspace.recipe("masked-nano");
        change(&mut recipe);
        Language::of(&recipe, None).unwrap_err().to_string()
    };
    let learned = refused(|recipe| {
        let places = toml::toml! { learned = { places = 10 } };
        recipe.common.set.insert("position".into(), toml::Value::Table(places));
    });
    assert!(learned.contains("`longest`"), "{learned}");
    assert!(refused(|recipe| recipe.common.data += "/none").contains("no such file or folder"));
    train_until::<Language>(&workspace.run("run"), &workspace.recipe("masked-nano"), None);
    let path = workspace.run("run").join("tokenizer.json");
    let other = Tokenizer::train(Pieces::Words, 301, ["only these words"].into_iter()).unwrap();
    fs::write(&path, other.to_json()).unwrap();
    assert!(LanguageBundle::open(&workspace.run("run"), &cpu()).unwrap_err().to_string().contains("another tokenizer"));
    fs::write(&path, "{").unwrap();
    assert!(LanguageBundle::open(&workspace.run("run"), &cpu()).unwrap_err().to_string().contains("no tokenizer"));
}
