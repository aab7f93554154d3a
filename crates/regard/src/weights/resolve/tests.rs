use super::*;
use crate::device::cpu;
use crate::testing::server::{Reply, Server};
use crate::weights::{shapes, write_tensors};
use burn::tensor::{Tensor, TensorData};
use serde_json::json;
use std::fs;
use std::time::Duration;

fn resolved(text: &str) -> Result<ModelSource, Error> {
    resolve(text, &mut |_| {})
}

fn path(folder: &tempfile::TempDir, name: &str) -> String {
    folder.path().join(name).display().to_string()
}

fn error(text: &str) -> String {
    resolved(text).unwrap_err().to_string()
}

/// The folder of a run of a small model with five classes.
fn run(folder: &Path) -> ModelConfig {
    let config = models::preset("vit-nano").unwrap().config.with("classes", json!(5)).unwrap();
    let config = config.with("depth", json!(1)).unwrap();
    fs::create_dir_all(folder).unwrap();
    fs::write(folder.join("model.toml"), config.to_toml()).unwrap();
    let preprocess = Preprocess { mean: [0.25; 3], ..Preprocess::WHOLE };
    fs::write(folder.join("preprocess.toml"), toml::to_string(&preprocess).unwrap()).unwrap();
    fs::write(folder.join("classes.txt"), "ant\nbee\ncat\ndog\neel\n").unwrap();
    write_tensors(&folder.join("best.safetensors"), &tensors(&config.init(&cpu()).unwrap())).unwrap();
    config
}

fn fixture(case: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(case)
}

/// A folder as transformers writes it: the weights of a fixture with its config and a processor.
fn hugging_face_folder(folder: &Path) {
    fs::create_dir_all(folder).unwrap();
    fs::copy(fixture("hf_vit").join("model.safetensors"), folder.join("model.safetensors")).unwrap();
    let labels: serde_json::Map<_, _> = (0..7).map(|i| (i.to_string(), json!(format!("kind {i}")))).collect();
    let config = json!({
        "architectures": ["ViTForImageClassification"], "model_type": "vit", "image_size": 32, "patch_size": 8,
        "num_channels": 3, "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 96,
        "layer_norm_eps": 1e-12, "id2label": labels,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    let processor = json!({ "size": { "height": 32, "width": 32 }, "resample": 3, "image_mean": [0.1, 0.2, 0.3] });
    fs::write(folder.join("preprocessor_config.json"), processor.to_string()).unwrap();
}

fn logits_differ(model: &Model, case: &str) -> f32 {
    let io = read(&fixture(case).join("io.safetensors")).unwrap().tensors;
    let logits = model.forward(Tensor::from_data(io["input"].clone(), &cpu()), &mut crate::Pass::silent()).into_data();
    logits.iter::<f32>().zip(io["logits"].iter::<f32>()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

#[test]
fn a_run_brings_its_model_its_preprocessing_its_labels_and_its_best_weights() {
    let folder = tempfile::tempdir().unwrap();
    let config = run(&folder.path().join("mine"));
    for text in ["mine", "mine/best.safetensors", "mine/model.toml=MINE/best.safetensors"] {
        let text = path(&folder, &text.replace("MINE", &path(&folder, "mine")));
        let source = resolved(&text).unwrap();
        assert_eq!(
            (&source.config, source.preprocess.mean, source.origin),
            (&config, [0.25; 3], WeightsOrigin::Run),
            "{text}"
        );
        assert_eq!(source.labels.as_ref().unwrap()[4], "eel");
        let loaded = source.load(&cpu()).unwrap();
        let there = read(&folder.path().join("mine/best.safetensors")).unwrap().tensors;
        assert_eq!(tensors(&loaded.model), there, "{text}");
    }
    assert_eq!(resolved(&path(&folder, "mine")).unwrap().name, "mine");
    run(&folder.path().join("vit-nano/seed1"));
    assert_eq!(
        resolved(&path(&folder, "vit-nano/seed1")).unwrap().name,
        "vit-nano/seed1",
        "a seed is reported with its model"
    );
}

#[test]
fn weights_of_a_run_under_a_preset_keep_the_runs_preprocessing_and_say_how_many_classes_they_have() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("mine"));
    let text = format!("vit-nano={}", path(&folder, "mine/best.safetensors"));
    let source = resolved(&text).unwrap().with("depth", json!(1)).unwrap();
    assert_eq!((source.preprocess.mean, source.origin), ([0.25; 3], WeightsOrigin::Run));
    let error = source.clone().load(&cpu()).unwrap_err();
    assert!(matches!(error, Error::Weights { classes: Some(5), .. }), "{error:?}");
    assert!(source.with("classes", json!(5)).unwrap().load(&cpu()).is_ok());
}

#[test]
fn a_preset_a_file_and_an_embedded_model_are_told_apart() {
    let preset = resolved("vit-nano").unwrap();
    assert!(preset.is_fresh() && preset.labels.is_none());
    assert_eq!(tensors(&preset.load(&cpu()).unwrap().model), tensors(&preset.load(&cpu()).unwrap().model), "seed 0");
    let embedded = resolved("fashion-vit").unwrap();
    assert_eq!((embedded.origin, embedded.labels.as_ref().unwrap().len()), (WeightsOrigin::Embedded, 10));
    embedded.load(&cpu()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.toml"), preset.config.to_toml()).unwrap();
    let file = resolved(&path(&folder, "mine.toml")).unwrap();
    assert_eq!((file.name.as_str(), &file.config), ("mine", &preset.config));
    assert!(file.is_fresh());
    write_tensors(&folder.path().join("w.bin"), &tensors(&preset.load(&cpu()).unwrap().model)).unwrap();
    let text = format!("{}={}", path(&folder, "mine.toml"), path(&folder, "w.bin"));
    assert_eq!(resolved(&text).unwrap().load(&cpu()).unwrap().origin, WeightsOrigin::Checkpoint);
}

#[test]
fn a_run_that_is_called_like_a_preset_is_the_run_and_another_folder_is_not() {
    let folder = tempfile::tempdir().unwrap();
    run(&folder.path().join("deit-tiny"));
    assert_eq!(resolved(&path(&folder, "deit-tiny")).unwrap().origin, WeightsOrigin::Run);
    // relative names are looked at in the working folder, which tests share: the rule is tried by its first steps
    assert_eq!(without_weights("deit-tiny", &mut |_| {}).unwrap().unwrap().origin, WeightsOrigin::Fresh);
}

#[test]
fn what_names_nothing_is_an_error_with_the_nearest_name_or_what_is_missing() {
    let folder = tempfile::tempdir().unwrap();
    assert!(error("deit-tiney").contains("`deit-tiny`"));
    assert!(error("fashion-vitt").contains("`fashion-vit`"));
    assert!(error("deit-tiney=w.bin").contains("`deit-tiny`"));
    assert!(error(&path(&folder, "")).contains("model.toml"));
    assert!(error("nowhere/mine.toml").contains("nowhere/mine.toml"));
    let missing = resolved("deit-tiny=nowhere.bin").unwrap().load(&cpu()).unwrap_err().to_string();
    assert!(missing.contains("nowhere.bin"), "{missing}");
    let model = models::preset("vit-nano").unwrap().config.init(&cpu()).unwrap();
    write_tensors(&folder.path().join("w.bin"), &tensors(&model)).unwrap();
    let alone = error(&path(&folder, "w.bin"));
    assert!(alone.contains("`vit-nano`") && alone.contains("PRESET="), "{alone}");
}

#[test]
fn a_folder_of_hugging_face_brings_its_epsilon_labels_and_processor_and_gives_its_logits() {
    let folder = tempfile::tempdir().unwrap();
    hugging_face_folder(folder.path());
    for text in [path(&folder, ""), path(&folder, "model.safetensors")] {
        let source = resolved(&text).unwrap();
        assert_eq!(serde_json::to_value(&source.config).unwrap()["epsilon"], 1e-12);
        assert_eq!(source.labels.as_ref().unwrap()[6], "kind 6");
        assert_eq!(source.preprocess.mean, [0.1, 0.2, 0.3]);
        assert_eq!(source.preprocess.resize, crate::data::Resize::Stretch);
        let distance = logits_differ(&source.load(&cpu()).unwrap().model, "hf_vit");
        assert!(distance < 1e-4, "{distance}");
    }
}

#[test]
fn weights_of_hugging_face_under_a_preset_have_hugging_faces_epsilon_unless_one_was_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hf.safetensors");
    fs::copy(fixture("hf_vit").join("model.safetensors"), &file).unwrap();
    let fields = [("image", json!([32, 32])), ("patch", json!(8)), ("dim", json!(48)), ("depth", json!(2))];
    let rest = [("heads", json!(3)), ("mlp_dim", json!(96)), ("classes", json!(7))];
    let text = format!("vit-tiny-patch16-224={}", file.display());
    let source = fields
        .into_iter()
        .chain(rest)
        .fold(resolved(&text).unwrap(), |source, (field, value)| source.with(field, value).unwrap());
    let epsilon = |source: &ModelSource| {
        let config = source.load(&cpu()).unwrap().config;
        serde_json::to_value(&config).unwrap()["epsilon"].as_f64().unwrap()
    };
    assert_eq!(epsilon(&source), 1e-12);
    assert_eq!(epsilon(&source.clone().with("epsilon", json!(1e-5)).unwrap()), 1e-5);
    // beside its config, the config decides
    hugging_face_folder(folder.path());
    let config = fs::read_to_string(folder.path().join("config.json")).unwrap().replace("1e-12", "1e-9");
    fs::write(folder.path().join("config.json"), config).unwrap();
    let text = format!("vit-tiny-patch16-224={}", folder.path().display());
    let source = resolved(&text).unwrap();
    assert_eq!(serde_json::to_value(&source.config).unwrap()["epsilon"], 1e-9);
    assert_eq!(source.preprocess.mean, [0.1, 0.2, 0.3]);
}

#[test]
fn weights_that_are_not_finite_are_refused_when_read_at_once_and_when_streamed() {
    let folder = tempfile::tempdir().unwrap();
    let config = run(folder.path());
    let mut spoiled = tensors(&config.init(&cpu()).unwrap());
    // large enough to stay in its file
    let name = "blocks.0.mlp.fc1.weight";
    let mut values: Vec<f32> = spoiled[name].iter::<f32>().collect();
    values[1234] = f32::NAN;
    let shape = spoiled[name].shape().to_vec();
    spoiled.insert(name.into(), TensorData::new(values, shape));
    write_tensors(&folder.path().join("best.safetensors"), &spoiled).unwrap();
    let source = resolved(&path(&folder, "")).unwrap();
    let error = source.load(&cpu()).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("NaN"), "{error}");
    let lazily = LoadOptions { lazily: true, ..LoadOptions::default() };
    let image = crate::testing::random([1, 3, 32, 32], 1);
    let streamed = crate::StreamedModel::new(source.load_with(&cpu(), &lazily).unwrap().model);
    let error = streamed.and_then(|model| model.forward(image)).unwrap_err().to_string();
    assert!(error.contains(name) && error.contains("NaN"), "{error}");
}

#[test]
fn a_repository_is_fetched_with_its_config_at_its_revision_and_once() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    hugging_face_folder(folder.path());
    let root = folder.path().to_path_buf();
    let server = Server::start(move |asked, _| {
        let file = asked.path.strip_prefix("/owner/name/resolve/v1/").map(|file| root.join(file));
        match file.and_then(|file| fs::read(file).ok()) {
            Some(content) => Reply::content(asked, &content),
            None => Reply::status(404),
        }
    });
    let fetcher = Fetcher { cache: cache.path().into(), endpoint: server.root.clone(), pause: Duration::ZERO };
    let address: Address = "hf:owner/name@v1".parse().unwrap();
    let source = from_address(&fetcher, &address, &mut |_| {}).unwrap();
    assert_eq!((source.name.as_str(), source.labels.as_ref().unwrap().len()), ("owner/name", 7));
    assert!(logits_differ(&source.load(&cpu()).unwrap().model, "hf_vit") < 1e-4);
    let asked = server.asked().len();
    from_address(&fetcher, &address, &mut |_| {}).unwrap();
    assert_eq!(server.asked().len(), asked, "the second time it is in the cache");
    let main = from_address(&fetcher, &"hf:owner/name".parse().unwrap(), &mut |_| {}).unwrap_err().to_string();
    assert!(main.contains("no config.json"), "{main}");
}

#[test]
fn an_export_of_a_changed_preset_is_read_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let config = run(&folder.path().join("mine"));
    let source = resolved(&path(&folder, "mine")).unwrap();
    let loaded = source.load(&cpu()).unwrap();
    for to in [Upstream::Timm, Upstream::HuggingFace] {
        let out = folder.path().join(format!("{to:?}"));
        super::super::export(&loaded.model, &out, &super::super::Export::of(&loaded, to)).unwrap();
        let again = resolved(&out.display().to_string()).unwrap();
        assert_eq!((&again.labels, again.preprocess), (&source.labels, source.preprocess), "{to:?}");
        assert_eq!(again.config, config, "{to:?}");
        assert_eq!(tensors(&again.load(&cpu()).unwrap().model), tensors(&loaded.model), "{to:?}");
    }
    assert!(!shapes(&loaded.model).is_empty());
}
