use super::*;
use crate::data::text::{Pieces, TextPart, read};
use crate::device::cpu;
use crate::testing::runs::{assert_stops_change_nothing, assert_two_learn_as_one, train_until};
use crate::train::{Optimiser, Schedule, ScheduleShape, TrainOutcome, read_history};
use crate::weights;
use std::fs;
use std::path::PathBuf;

const SENTENCES: &[(&str, &str)] = &[
    ("I am eating it.", "Io la sto mangiando."),
    ("The animal is tired.", "L'animale è stanco."),
    ("The street is wide.", "La strada è larga."),
    ("She reads a book.", "Lei legge un libro."),
    ("We are going home.", "Stiamo andando a casa."),
    ("It is raining today.", "Oggi piove."),
    ("I like this apple.", "Mi piace questa mela."),
    ("The cat is sleeping.", "Il gatto dorme."),
    ("He wrote a letter.", "Ha scritto una lettera."),
    ("They live in Rome.", "Vivono a Roma."),
    ("My brother is tall.", "Mio fratello è alto."),
    ("Close the window!", "Chiudi la finestra!"),
];

struct Workspace(tempfile::TempDir);

impl Workspace {
    fn new() -> Self {
        let workspace = tempfile::tempdir().unwrap();
        let data = workspace.path().join("data");
        fs::create_dir(&data).unwrap();
        let lines: Vec<String> = SENTENCES.iter().map(|(en, it)| format!("{en}\t{it}")).collect();
        let text = lines.join("\n");
        for name in ["train.tsv", "dev.tsv", "test.tsv"] {
            fs::write(data.join(name), &text).unwrap();
        }
        Self(workspace)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn recipe(&self) -> Recipe {
        let text = "
            task = 'translation'
            model = 'transformer-nano'
            vocabulary = 400
            epochs = 3
            tokens = 60
            longest = 40
            set = { dim = 32, inner = 64, heads = 2, encoder_layers = 1, decoder_layers = 1 }
        ";
        let mut recipe = Recipe::from_toml(text).unwrap();
        recipe.common.data = self.run("data").display().to_string();
        recipe
    }
}

const FILES: [&str; 7] = [
    "best.safetensors",
    "last.safetensors",
    "average.safetensors",
    "recipe.toml",
    "task.json",
    "model.toml",
    "tokenizer.json",
];

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_like_one_that_was_not() {
    let workspace = Workspace::new();
    let small = [("embed", 16), ("hidden", 16), ("align", 16), ("maxout", 8)];
    let small = small.map(|(key, size)| (key.to_string(), toml::Value::from(size))).into();
    let mut rich = workspace.recipe();
    (rich.common.average, rich.common.ema, rich.common.accumulate) = (2, 0.5, 2);
    rich.own.bleu_every = 2;
    let mut recurrent = rich.clone();
    (recurrent.common.model, recurrent.common.set) = ("rnnsearch-nano".into(), small);
    for recipe in [rich, recurrent] {
        assert_stops_change_nothing::<SentenceTranslation>(workspace.0.path(), &recipe, &FILES, &[&[1], &[2, 4]]);
    }
}

#[test]
fn sentences_are_learned_by_heart_and_translated() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe().with("set.dropout", "0.0").unwrap();
    recipe.common.epochs = 40;
    recipe.common.optimiser = Optimiser::Adamw { rate: 5e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.0 };
    recipe.common.schedule = Schedule { shape: ScheduleShape::Constant, warmup: 3.0, ..Schedule::default() };
    (recipe.own.tokens, recipe.own.smoothing, recipe.own.bleu_every) = (200, 0.0, 40);
    assert_eq!(train_until::<SentenceTranslation>(&workspace.run("run"), &recipe, None), TrainOutcome::Finished);
    let history = read_history(&workspace.run("run")).unwrap();
    assert!(history.steps.last().unwrap().loss < 0.1 * history.steps[0].loss);
    assert!(
        history.epochs.last().unwrap().metric("bleu") > 90.0 && history.test.as_ref().unwrap().metric("bleu") > 90.0,
        "{:?}",
        history.epochs.last()
    );
    let bundle = Bundle::open(&workspace.run("run"), &cpu()).unwrap();
    let texts = ["Io la sto mangiando.", "", "Il gatto dorme."];
    let translations = bundle.translate(&texts, &bundle.search(), &cpu(), &mut |_| {}).unwrap();
    assert_eq!(
        translations.iter().map(|all| all[0].text.as_str()).collect::<Vec<_>>(),
        ["I am eating it.", "", "The cat is sleeping."]
    );
    let pairs = read(Path::new(&recipe.common.data), TextPart::Test, &recipe.own.languages()).unwrap();
    assert!(token_loss(&bundle, &pairs, 200).unwrap().loss().exp() < 1.5);
    let attended = bundle.attend(texts[0], &translations[0][0]).unwrap();
    assert_eq!(attended.source.last().unwrap(), "</s>");
    let weights = attended.trace.get::<4>("decoder.layers.0.multihead_attn.weights").unwrap();
    assert_eq!(weights.dims()[2..], [attended.target.len(), attended.source.len()]);
}

#[test]
fn a_run_that_was_tampered_with_is_told() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe();
    recipe.common.epochs = 1;
    train_until::<SentenceTranslation>(&workspace.run("run"), &recipe, None);
    let error_with = |name: &str, bytes: &[u8]| {
        let path = workspace.run("run").join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = Bundle::open(&workspace.run("run"), &cpu()).unwrap_err().to_string();
        fs::write(&path, whole).unwrap();
        error
    };
    let weights = fs::read(workspace.run("run").join("best.safetensors")).unwrap();
    assert!(error_with("best.safetensors", &weights[..weights.len() / 2]).contains("best.safetensors"));
    let other = Tokenizer::train(Pieces::Words, 300, ["only these words"].into_iter()).unwrap();
    assert!(error_with("tokenizer.json", other.to_json().as_bytes()).contains("another tokenizer"));
    assert!(error_with("tokenizer.json", b"{").contains("tokenizer.json: no tokenizer"));
    assert!(error_with("model.toml", b"model = 'vit'").contains("model.toml"));
    let bundle = Bundle::open(&workspace.run("run"), &cpu()).unwrap();
    let long = "parola ".repeat(100_000);
    let error = bundle.translate(&[long], &bundle.search(), &cpu(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("more tokens than 1024") && error.len() < 300, "{error}");
}

#[test]
fn two_processes_with_different_numbers_of_tokens_learn_what_one_learns() {
    let workspace = Workspace::new();
    let mut recipe = workspace.recipe().with("set.dropout", "0.0").unwrap();
    recipe.common.epochs = 2;
    let task = SentenceTranslation::of(&recipe, None).unwrap();
    // both runs start with weights of a file: random ones come from a generator that the two threads would share
    let (_, fresh) = task.begin(false, &cpu()).unwrap();
    let begin = workspace.run("begin.safetensors");
    fs::write(&begin, weights::to_bytes(&weights::tensors(&fresh), &begin).unwrap()).unwrap();
    recipe.common.weights = Some(begin.display().to_string());
    let tokens = |rank| -> Vec<usize> {
        let steps = task.steps(0, 0, Share { rank, ranks: 2 });
        steps.map(|step| step.unwrap().iter().map(TextBatch::tokens).sum()).collect()
    };
    assert_ne!(tokens(0), tokens(1));
    assert_two_learn_as_one::<SentenceTranslation>(workspace.0.path(), &recipe);
}

#[test]
fn data_without_a_validation_part_gives_a_tenth_of_the_training_pairs_to_it() {
    let workspace = Workspace::new();
    fs::remove_file(workspace.run("data").join("dev.tsv")).unwrap();
    let lines: Vec<String> = (0..200).map(|number| format!("number {number}\tnumero {number}")).collect();
    fs::write(workspace.run("data").join("train.tsv"), lines.join("\n")).unwrap();
    let Pairs { train, validation, test, .. } = Pairs::of(&workspace.recipe()).unwrap();
    assert!(train.len() + validation.len() == 200 && (10..=35).contains(&validation.len()), "{}", validation.len());
    assert!(validation.iter().all(|pair| !train.contains(pair)) && test.is_some());
    let mut other = workspace.recipe();
    other.common.seed = 7;
    assert_eq!(Pairs::of(&other).unwrap().validation, validation);
}
