//! Questions about pictures as a user meets them: `regard train`, `ask`, `eval` and `data check`.

use crate::common::{assert_refused, regard, stdout_of, text};
use image::RgbImage;
use regard::data::world::question;
use regard::data::{Part, world};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// A test question whose picture is in a file.
fn asked(folder: &Path, index: usize) -> (String, world::Question) {
    let question = question(0, Part::Test, index);
    let picture = question.scene.picture();
    let path = folder.join(format!("scene{index}.png"));
    RgbImage::from_raw(64, 64, picture.pixels().to_vec()).unwrap().save(&path).unwrap();
    (path.display().to_string(), question)
}

const RECIPE: &str = "
task = 'vision-language'
model = 'uniter-nano'
data = 'questions'
epochs = 1
texts = 64
test-texts = 48
batch = 16
longest = 24
workers = 1
set = { dim = 32, inner = 32, heads = 2, layers = 2 }
regions = { source = 'boxes', side = 8 }
";

#[test]
fn a_model_is_trained_asked_and_measured_and_what_is_wrong_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(at.join("recipe.toml"), RECIPE).unwrap();
    stdout_of(at, &["train", "recipe.toml", "-o", "run"]);
    let (picture, question) = asked(at, 3);
    let lines = stdout_of(at, &["ask", &picture, &question.text, "-m", "run", "--top", "2"]);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    let args = ["ask", &picture, &question.text, "-m", "run", "--json", "--attention", "page.html"];
    let json: Value = serde_json::from_str(&stdout_of(at, &args)).unwrap();
    let probability: f64 =
        json["answers"].as_array().unwrap().iter().map(|one| one["probability"].as_f64().unwrap()).sum();
    assert!(
        json["tokens"][0] == "[CLS]" && probability <= 1.0 + 1e-6 && !json["regions"][0].as_array().unwrap().is_empty()
    );
    let page = fs::read_to_string(at.join("page.html")).unwrap();
    for expected in ["Words to regions", "Regions to words", "<svg", "encoder.layer.1"] {
        assert!(page.contains(expected), "{expected}");
    }
    let told = stdout_of(at, &["eval", "run"]);
    assert!(told.contains("accuracy") && told.contains("without looking") && told.contains("what colour"), "{told}");

    assert_refused(at, &["ask", &picture, "", "-m", "run"], &["`question`"]);
    assert_refused(at, &["ask", &picture, &"bag ".repeat(10_000), "-m", "run"], &["40000 bytes"]);
    assert_refused(at, &["ask", "none.png", "what ?", "-m", "run"], &["none.png"]);
    assert_refused(at, &["ask", &picture, "what ?", "-m", "nowhere"], &["nowhere"]);
    assert_refused(at, &["ask", &picture, "quelle heure ?", "-m", "run"], &["none of its words", "another language"]);
    assert_refused(at, &["ask", &picture, &"bag ".repeat(100), "-m", "run"], &["102 tokens, the most is 24"]);
    assert_refused(at, &["ask", &picture, "what ?", "-m", "run", "--second", &picture], &["`pictures`", "got 2"]);
    fs::write(at.join("text.png"), "a text").unwrap();
    assert_refused(at, &["ask", "text.png", "what ?", "-m", "run"], &["text.png"]);
    assert_refused(at, &["explain", "text.png", "--question", "what ?", "-m", "run"], &["text.png"]);
    assert_refused(at, &["explain", &picture, "-m", "run"], &["`run` answers questions", "--question"]);
    assert_refused(at, &["explain", &picture, "--question", "", "-m", "run"], &["`question`"]);
    assert_refused(
        at,
        &["explain", &picture, "--question", "what ?", "--class", "3"],
        &["`--class` is for classifiers"],
    );

    // a tokenizer of another run
    let mut tokenizer: Value =
        serde_json::from_str(&fs::read_to_string(at.join("run/tokenizer.json")).unwrap()).unwrap();
    tokenizer["model"]["vocab"]["jabberwock"] = tokenizer["model"]["vocab"].as_object().unwrap().len().into();
    fs::write(at.join("run/tokenizer.json"), tokenizer.to_string()).unwrap();
    assert_refused(at, &["ask", &picture, "what ?", "-m", "run"], &["tokenizer.json", "another tokenizer"]);
}

#[test]
fn an_answer_is_explained_by_layer_and_head_on_a_page_and_as_data() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let (picture, question) = asked(at, 8);
    let args = ["explain", &picture, "--question", &question.text, "-o", "page.html", "--json"];
    let json: Value = serde_json::from_str(&stdout_of(at, &args)).unwrap();
    assert_eq!(json["answers"][0]["answer"], world::ANSWERS[question.answer]);
    let (words, regions) = (json["tokens"].as_array().unwrap().len(), json["regions"][0].as_array().unwrap().len());
    assert_eq!(
        (json["layers"].as_array().unwrap().len(), json["layers"][0]["heads"].as_array().unwrap().len()),
        (8, 4)
    );
    assert_eq!(json["plan"]["shares"].as_array().unwrap().len(), words);
    assert_eq!((json["explained"].as_array().unwrap().len(), &json["plan"]["trained"]), (regions, &Value::Bool(false)));
    assert_eq!(json["relevance"]["regions"].as_array().unwrap().len(), regions);
    assert!(json["checks"].as_array().unwrap().len() >= 3);
    let page = fs::read_to_string(at.join("page.html")).unwrap();
    for expected in ["which words each region explains", "transport plan", "words look at regions", "what mattered for"]
    {
        assert!(page.contains(expected), "{expected}");
    }
    for file in
        ["picture.svg", "transport-plan.png", "words-to-regions-heads.svg", "regions-to-words-3.svg", "data.json"]
    {
        assert!(at.join("page").join(file).is_file(), "{file}");
    }
    let lines = stdout_of(at, &["explain", &picture, "--question", &question.text]);
    assert!(lines.contains(world::ANSWERS[question.answer]) && lines.contains("ok: "), "{lines}");
}

#[test]
fn data_check_says_what_a_model_could_answer_without_looking() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    let mut rows = vec!["image,question,answer,part".to_string()];
    for index in 0..12 {
        RgbImage::from_pixel(8, 8, image::Rgb([20 * index, 0, 0])).save(at.join(format!("{index}.png"))).unwrap();
        let part = if index < 8 { "train" } else { "test" };
        rows.push(format!("{index}.png,is it red?,yes,{part}"));
        rows.push(format!("{index}.png,how red?,{},{part}", index % 4));
    }
    fs::write(at.join("data.csv"), rows.join("\n")).unwrap();
    let sound = stdout_of(at, &["data", "check", "data.csv"]);
    assert!(sound.contains("blind") && sound.contains("table of texts, questions"), "{sound}");
    fs::remove_file(at.join("3.png")).unwrap();
    let output = regard(at, &["data", "check", "data.csv"]);
    let told = text(&output.stdout);
    assert!(
        output.status.code() == Some(1) && told.contains("missing pictures: 1") && told.contains("3.png"),
        "{told}"
    );
    stdout_of(at, &["data", "browse", "questions", "-o", "sheet.png", "--rows", "2", "--columns", "3"]);
    assert!(image::open(at.join("sheet.png")).unwrap().width() > 700);
}

#[test]
fn the_embedded_model_answers_on_a_fresh_machine() {
    let folder = tempfile::tempdir().unwrap();
    // one of each kind, with different answers
    let right = (0..8).filter(|kind| {
        let (picture, question) = asked(folder.path(), 9 * kind);
        let json = stdout_of(folder.path(), &["ask", &picture, &question.text, "--json"]);
        let json: Value = serde_json::from_str(&json).unwrap();
        json["answers"][0]["answer"] == world::ANSWERS[question.answer]
    });
    // blind answers would be right for two or three
    assert!(right.count() >= 6);
}
