//! Models of sentences as a user meets them: `regard train`, `translate`, `fill`, `eval` and `data check`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const RECIPE: &str = "
task = 'translation'
model = 'transformer-nano'
data = 'data'
vocabulary = 400
epochs = 150
tokens = 200
smoothing = 0.0
average = 2
bleu-every = 50
set = { dim = 32, inner = 64, heads = 2, encoder_layers = 1, decoder_layers = 1, dropout = 0.0 }
optimiser = { rule = 'adamw', rate = 5e-3, betas = [0.9, 0.98] }
schedule = { shape = 'constant', warmup = 3.0 }
";

const SENTENCES: &[(&str, &str)] = &[
    ("I am eating it.", "Io la sto mangiando."),
    ("The animal is tired.", "L'animale è stanco."),
    ("The street is wide.", "La strada è larga."),
    ("She reads a book.", "Lei legge un libro."),
    ("We are going home.", "Stiamo andando a casa."),
    ("It is raining today.", "Oggi piove."),
    ("I like this apple.", "Mi piace questa mela."),
    ("The cat is sleeping.", "Il gatto dorme."),
];

fn place() -> tempfile::TempDir {
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("data")).unwrap();
    let lines: Vec<String> = SENTENCES.iter().map(|(en, it)| format!("{en}\t{it}")).collect();
    let text = lines.join("\n");
    for part in ["train", "dev", "test"] {
        fs::write(place.path().join(format!("data/{part}.tsv")), &text).unwrap();
    }
    fs::write(place.path().join("recipe.toml"), RECIPE).unwrap();
    place
}

fn regard(folder: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_regard"));
    command.current_dir(folder).args(args).env("RAYON_NUM_THREADS", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[track_caller]
fn stdout_of(folder: &Path, args: &[&str], input: &[u8]) -> String {
    let output = regard(folder, args, input);
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
fn refused(folder: &Path, args: &[&str], input: &[u8]) -> String {
    let output = regard(folder, args, input);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(output.stdout.is_empty());
    assert!(stderr.contains("error: ") && stderr.contains("\nhint: ") && stderr.len() < 1000, "{stderr}");
    stderr
}

#[test]
fn sentences_are_trained_on_translated_measured_and_shown() {
    let place = place();
    let at = place.path();
    let stdout = stdout_of(at, &["train", "recipe.toml", "-o", "run"], b"");
    assert!(stdout.contains("loss of a token") && stdout.contains("BLEU, greedy"), "{stdout}");
    for name in
        ["recipe.toml", "model.toml", "tokenizer.json", "best.safetensors", "REPORT.html", "loss.svg", "run.json"]
    {
        assert!(at.join("run").join(name).is_file(), "{name}");
    }

    let translate =
        |more: &[&str], input: &[u8]| stdout_of(at, &[&["translate", "--model", "run"], more].concat(), input);
    assert_eq!(translate(&["Io la sto mangiando."], b""), "I am eating it.\n");
    assert_eq!(
        translate(&["--beam", "1", "Oggi piove.", "Il gatto dorme."], b""),
        "It is raining today.\nThe cat is sleeping.\n"
    );
    // lines of the standard input: an empty one, control characters, characters that were never seen
    let lines = translate(&[], "Il\u{7} gatto\t dorme.\n\n \u{1b}\n日本語\n".as_bytes());
    let lines: Vec<&str> = lines.split('\n').collect();
    assert_eq!((lines.len(), lines[0], lines[1], lines[2]), (5, "The cat is sleeping.", "", ""));

    let best = translate(&["--n-best", "3", "Oggi piove."], b"");
    let scores: Vec<f64> = best.lines().map(|line| line.split_once('\t').unwrap().0.parse().unwrap()).collect();
    assert!(scores.len() == 3 && scores.windows(2).all(|pair| pair[0] >= pair[1]), "{best}");
    let json: serde_json::Value = serde_json::from_str(&translate(&["--json", "Oggi piove."], b"")).unwrap();
    assert_eq!(json[0]["translations"][0]["text"], "It is raining today.");

    for name in ["page.html", "data.json", "alignment.svg"] {
        translate(&["--attention", name, "L'animale è stanco."], b"");
    }
    let page = fs::read_to_string(at.join("page.html")).unwrap();
    assert!(page.contains("L'animale è stanco.") && page.contains("multihead_attn"));
    let data: serde_json::Value = serde_json::from_slice(&fs::read(at.join("data.json")).unwrap()).unwrap();
    let row = data["layers"][2]["heads"][0][0].as_array().unwrap();
    assert_eq!(row.len(), data["source"].as_array().unwrap().len());
    assert!((row.iter().map(|weight| weight.as_f64().unwrap()).sum::<f64>() - 1.0).abs() < 1e-4);
    assert!(fs::read_to_string(at.join("alignment.svg")).unwrap().starts_with("<svg"));

    // a file is its lines, and an old spelling is reported
    fs::write(at.join("sentences.txt"), "Oggi piove.\nIl gatto dorme.\n").unwrap();
    let output = regard(at, &["translate", "--run", "run", "sentences.txt", "Oggi piove."], b"");
    assert_eq!(text(&output.stdout), "It is raining today.\nThe cat is sleeping.\nIt is raining today.\n");
    let notes = text(&output.stderr);
    assert!(notes.contains("`--model run`") && notes.contains("`sentences.txt` is a file"), "{notes}");

    let stdout = stdout_of(at, &["eval", "--run", "run", "--data", "data"], b"");
    assert_eq!(stdout_of(at, &["eval", "run"], b"").lines().next(), stdout.lines().next(), "its own data");
    assert!(stdout.contains("BLEU        100.00") && stdout.contains("chrF        100.00"), "{stdout}");
    let json = stdout_of(at, &["eval", "--run", "run", "--data", "data", "--json"], b"");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(json["perplexity"].as_f64().unwrap() < 1.5 && json["sentences"] == 8);
}

#[test]
fn what_cannot_be_translated_is_told() {
    let place = place();
    let at = place.path();
    stdout_of(at, &["train", "recipe.toml", "-o", "run", "--epochs", "3"], b"");
    let long = "parola ".repeat(100_000) + "\n";
    let error = refused(at, &["translate", "--run", "run"], long.as_bytes());
    assert!(error.contains("more tokens than 1024"), "{error}");
    assert!(refused(at, &["translate", "--run", "run"], b"ciao\n\xff\n").contains("line 2 is not UTF-8"));
    assert!(refused(at, &["translate", "--run", "nowhere", "ciao"], b"").contains("nowhere"));
    assert!(refused(at, &["translate", "-m", "fashion-vit", "ciao"], b"").contains("`fashion-vit` is no translator"));
    assert!(refused(at, &["eval", "run", "--robustness"], b"").contains("`--robustness` is about pictures"));
    assert!(refused(at, &["eval", "run", "--part", "all"], b"").contains("`part`"));
    fs::write(at.join("bytes.txt"), b"ciao\n\xff\n").unwrap();
    assert!(refused(at, &["translate", "bytes.txt"], b"").contains("`bytes.txt`: line 2 is not UTF-8"));
    assert!(refused(at, &["translate", "--run", "run", "--beam", "0", "ciao"], b"").contains("beam"));
    assert!(refused(at, &["translate", "--run", "run", "--n-best", "9", "ciao"], b"").contains("9 best"));
    assert!(refused(at, &["translate", "--run", "run", "--attention", "a.png", "ciao"], b"").contains("a.png"));
    assert!(
        refused(at, &["translate", "--run", "run", "--attention", "a.html", "uno", "due"], b"").contains("2 sentences")
    );
    let damage = |name: &str, bytes: &[u8]| {
        let path = at.join("run").join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = refused(at, &["translate", "--run", "run", "ciao"], b"");
        fs::write(&path, whole).unwrap();
        error
    };
    let weights = fs::read(at.join("run/best.safetensors")).unwrap();
    assert!(damage("best.safetensors", &weights[..weights.len() / 3]).contains("best.safetensors"));
    let tokenizer = fs::read_to_string(at.join("run/tokenizer.json")).unwrap();
    assert!(damage("tokenizer.json", &tokenizer.as_bytes()[..100]).contains("tokenizer.json"));
    // one token more than the model knows
    let other = tokenizer.replacen("\"<0xFF>\":", "\"<0xFF>\":9999,\"<more>\":", 1);
    assert!(damage("tokenizer.json", other.as_bytes()).contains("another tokenizer"));
}

#[test]
fn an_interrupted_run_of_another_recipe_and_broken_data_are_told() {
    let place = place();
    let at = place.path();
    stdout_of(at, &["train", "recipe.toml", "-o", "run", "--epochs", "3"], b"");
    assert!(refused(at, &["train", "recipe.toml", "-o", "run", "--epochs", "4"], b"").contains("`epochs`"));
    // a run that is finished does nothing more
    stdout_of(at, &["train", "--resume", "run"], b"");
    assert!(refused(at, &["train", "recipe.toml", "--set", "vocabulry=500"], b"").contains("`vocabulary`"));
    assert!(refused(at, &["train", "recipe.toml", "--model", "vit-nano"], b"").contains("vit-nano"));
    assert!(refused(at, &["train", "recipe.toml", "--data", "none"], b"").contains("none"));

    let output = regard(at, &["data", "check", "data"], b"");
    let stdout = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "the parts are the same: {stdout}");
    assert!(stdout.contains("test sentences that were trained on (leaks): 16"), "{stdout}");
    fs::write(at.join("sound.tsv"), "One.\tUno.\nTwo.\tDue.\n").unwrap();
    let stdout = stdout_of(at, &["data", "check", "sound.tsv"], b"");
    assert!(stdout.contains("problems    none"), "{stdout}");
}

#[test]
fn language_models_are_trained_asked_and_measured() {
    let place = tempfile::tempdir().unwrap();
    let at = place.path();
    fs::create_dir(at.join("data")).unwrap();
    let lines: Vec<&str> = SENTENCES.iter().map(|(en, _)| *en).collect();
    for part in ["train", "validation", "test"] {
        fs::write(at.join(format!("data/{part}.txt")), lines.join("\n")).unwrap();
    }
    let recipe = "task = 'language'\ndata = 'data'\npieces = 'words'\nepochs = 150\ntokens = 200
        set = { dim = 32, inner = 64, heads = 2, layers = 1, dropout = 0.0 }
        optimiser = { rule = 'adamw', rate = 3e-3 }\nschedule = { shape = 'constant', warmup = 3.0 }";
    fs::write(at.join("recipe.toml"), recipe).unwrap();
    for model in ["masked-nano", "causal-nano"] {
        let stdout = stdout_of(at, &["train", "recipe.toml", "-o", model, "--model", model], b"");
        assert!(stdout.contains("perplexity") && stdout.contains("token accuracy"), "{stdout}");
        let stdout = stdout_of(at, &["eval", model], b"");
        assert!(stdout.contains("loss of a token") && stdout.contains("lines"), "{stdout}");
        let json = stdout_of(at, &["eval", model, "--data", "data/train.txt", "--part", "train", "--json"], b"");
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert!(json["perplexity"].as_f64().unwrap() < 3.0, "{json}");
        let report = fs::read_to_string(at.join(model).join("REPORT.html")).unwrap();
        assert!(report.contains("She reads"), "answers of the model are in its report");
    }
    let stdout = stdout_of(at, &["fill", "-m", "masked-nano", "The cat is [MASK].", "--top", "2"], b"");
    assert!(stdout.lines().count() == 2 && stdout.contains("The cat is sleeping."), "{stdout}");
    let json = stdout_of(at, &["fill", "-m", "masked-nano", "--json"], b"The cat is [MASK].\n");
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json[0]["fillings"][0][0]["word"], "sleeping");
    assert_eq!(stdout_of(at, &["fill", "-m", "causal-nano", "She reads"], b""), "She reads a book.\n");

    assert!(refused(at, &["fill", "-m", "masked-nano", "She reads"], b"").contains("no [MASK] in it"));
    assert!(refused(at, &["fill", "-m", "data", "She reads"], b"").contains("model.toml"));
    let hot = ["fill", "-m", "causal-nano", "She", "--temperature", "nan"];
    assert!(refused(at, &hot, b"").contains("`temperature`"));
    assert!(refused(at, &["predict", "-m", "masked-nano", "x.png"], b"").contains("language model"));
}
