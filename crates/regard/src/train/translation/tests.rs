use super::*;
use crate::data::text::Pieces;
use crate::device::cpu;
use crate::train::{Optimiser, Schedule, Shape, Written as _, read_history};
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

struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("data");
        fs::create_dir(&data).unwrap();
        let lines: Vec<String> = SENTENCES.iter().map(|(en, it)| format!("{en}\t{it}")).collect();
        let text = lines.join("\n");
        for name in ["train.tsv", "dev.tsv", "test.tsv"] {
            fs::write(data.join(name), &text).unwrap();
        }
        Self(place)
    }

    fn run(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn recipe(&self) -> TextRecipe {
        let text = "
            task = 'translation'
            model = 'transformer-nano'
            vocabulary = 400
            epochs = 3
            tokens = 60
            longest = 40
            set = { dim = 32, inner = 64, heads = 2, encoder_layers = 1, decoder_layers = 1 }
        ";
        TextRecipe { data: self.run("data").display().to_string(), ..TextRecipe::from_toml(text).unwrap() }
    }
}

fn train_until(folder: &Path, recipe: &TextRecipe, stop: Option<usize>) -> Outcome {
    let mut watch = |event: Event| match event {
        Event::Step(record) => Some(record.step) != stop,
        _ => true,
    };
    train_text(folder, recipe, &cpu(), &mut watch).unwrap()
}

/// Everything that a run leaves, but for its times.
fn remains(folder: &Path) -> (Vec<Vec<u8>>, weights::Tensors, Vec<f64>) {
    let files =
        ["best.safetensors", "last.safetensors", "average.safetensors", "recipe.toml", "model.toml", "tokenizer.json"];
    let files = files.map(|name| fs::read(folder.join(name)).unwrap()).to_vec();
    let tensors = checkpoint::restore(&folder.join("checkpoint")).unwrap().unwrap().tensors;
    let losses = read_history(folder).unwrap().steps.iter().map(|step| step.loss).collect();
    (files, tensors, losses)
}

#[test]
fn a_run_that_was_stopped_anywhere_ends_byte_for_byte_as_one_that_was_not() {
    let place = Place::new();
    let small = [("embed", 16), ("hidden", 16), ("align", 16), ("maxout", 8)];
    let small = small.map(|(key, size)| (key.to_string(), toml::Value::from(size))).into();
    let rich = TextRecipe { average: 2, bleu_every: 2, ema: 0.5, accumulate: 2, ..place.recipe() };
    for recipe in [rich.clone(), TextRecipe { model: "rnnsearch-nano".into(), set: small, ..rich }] {
        let straight = place.run(&format!("straight-{}", recipe.model));
        assert_eq!(train_until(&straight, &recipe, None), Outcome::Finished);
        for stops in [vec![1], vec![2, 4]] {
            let resumed = place.run(&format!("resumed-{}-{stops:?}", recipe.model));
            for &stop in &stops {
                assert_eq!(train_until(&resumed, &recipe, Some(stop)), Outcome::Stopped { step: stop });
            }
            assert_eq!(train_until(&resumed, &recipe, None), Outcome::Finished);
            assert!(remains(&resumed) == remains(&straight), "{} {stops:?}", recipe.model);
        }
    }
}

#[test]
fn sentences_are_learned_by_heart_and_translated() {
    let place = Place::new();
    let recipe = TextRecipe {
        epochs: 40,
        tokens: 200,
        smoothing: 0.0,
        optimiser: Optimiser::Adamw { rate: 5e-3, betas: [0.9, 0.98], epsilon: 1e-9, decay: 0.0 },
        schedule: Schedule { shape: Shape::Constant, warmup: 3.0, ..Schedule::default() },
        bleu_every: 40,
        ..place.recipe()
    }
    .with("set.dropout", "0.0")
    .unwrap();
    assert_eq!(train_until(&place.run("run"), &recipe, None), Outcome::Finished);
    let history = read_history(&place.run("run")).unwrap();
    assert!(history.steps.last().unwrap().loss < 0.1 * history.steps[0].loss);
    assert!(history.epochs.last().unwrap().bleu.unwrap() > 90.0, "{:?}", history.epochs.last());
    let bundle = Bundle::open(&place.run("run"), &cpu()).unwrap();
    let texts = ["Io la sto mangiando.", "", "Il gatto dorme."];
    let told = bundle.translate(&texts, &bundle.search(), &cpu(), &mut |_| {}).unwrap();
    assert_eq!(
        told.iter().map(|all| all[0].text.as_str()).collect::<Vec<_>>(),
        ["I am eating it.", "", "The cat is sleeping."]
    );
    let pairs = read(Path::new(&recipe.data), TextPart::Test, &recipe.languages()).unwrap();
    assert!(foresee(&bundle, &pairs, 200).unwrap().loss.exp() < 1.5);
    let attended = bundle.attend(texts[0], &told[0][0]).unwrap();
    assert_eq!(attended.source.last().unwrap(), "</s>");
    let weights = attended.trace.get::<4>("decoder.layers.0.multihead_attn.weights").unwrap();
    assert_eq!(weights.dims()[2..], [attended.target.len(), attended.source.len()]);
}

#[test]
fn a_batch_wants_the_next_token_at_every_place() {
    let examples =
        [Example { source: vec![7, 3], target: vec![8, 9] }, Example { source: vec![5, 3], target: vec![6] }];
    let batch = TextBatch::new(&examples.iter().collect::<Vec<_>>(), 2, 3);
    assert_eq!((batch.target.sentence(0), batch.target.sentence(1)), (&[2, 8, 9][..], &[2, 6][..]));
    assert_eq!(batch.wanted, [Some(8), Some(9), Some(3), Some(6), Some(3), None]);
    assert_eq!(batch.tokens(), 5);
}

#[test]
fn a_run_that_was_tampered_with_is_told() {
    let place = Place::new();
    let recipe = TextRecipe { epochs: 1, ..place.recipe() };
    train_until(&place.run("run"), &recipe, None);
    let told = |name: &str, bytes: &[u8]| {
        let path = place.run("run").join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = Bundle::open(&place.run("run"), &cpu()).unwrap_err().to_string();
        fs::write(&path, whole).unwrap();
        error
    };
    let weights = fs::read(place.run("run").join("best.safetensors")).unwrap();
    assert!(told("best.safetensors", &weights[..weights.len() / 2]).contains("best.safetensors"));
    let other = Tokenizer::train(Pieces::Words, 300, ["only these words"].into_iter()).unwrap();
    assert!(told("tokenizer.json", other.to_json().as_bytes()).contains("another tokenizer"));
    assert!(told("tokenizer.json", b"{").contains("tokenizer.json: no tokenizer"));
    assert!(told("model.toml", b"model = 'vit'").contains("model.toml"));
    let bundle = Bundle::open(&place.run("run"), &cpu()).unwrap();
    let long = "parola ".repeat(100_000);
    let error = bundle.translate(&[long], &bundle.search(), &cpu(), &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("the most is 1024") && error.len() < 300, "{error}");
}
