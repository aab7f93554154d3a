use super::*;
use crate::device;
use crate::weights::toy::{SMALL, Toy, ToySize};
use crate::weights::{LoadOptions, load};

const DISTILLED: ToySize = ToySize { tokens: 2, positions: 18, ..SMALL };

fn options(to: Upstream) -> Export {
    Export {
        to,
        architecture: "deit_tiny_patch16_224".into(),
        image: [32, 32],
        heads: Some(3),
        epsilon: 1e-6,
        preprocess: Preprocess::DEIT,
        labels: None,
        config: None,
        int8: false,
    }
}

fn config(folder: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap()
}

#[test]
fn a_round_trip_is_byte_equal() {
    let folder = tempfile::tempdir().unwrap();
    for (to, shape) in [
        (Upstream::Timm, SMALL),
        (Upstream::HuggingFace, SMALL),
        (Upstream::Timm, DISTILLED),
        (Upstream::HuggingFace, DISTILLED),
    ] {
        let model = Toy::new(shape, &device::cpu());
        let (first, second) = (folder.path().join("first"), folder.path().join("second"));
        export(&model, &first, &options(to)).unwrap();
        let other = Toy::new(shape, &device::cpu());
        let loaded = load(other, &first.join("model.safetensors"), &LoadOptions::default()).unwrap();
        assert_eq!(loaded.upstream, to);
        assert_eq!(tensors(&loaded.model), tensors(&model));
        export(&loaded.model, &second, &options(to)).unwrap();
        for file in ["model.safetensors", "config.json"] {
            assert_eq!(std::fs::read(first.join(file)).unwrap(), std::fs::read(second.join(file)).unwrap(), "{file}");
        }
        let known = ["model.safetensors", "config.json", "preprocessor_config.json"];
        let names = std::fs::read_dir(&first).unwrap().map(|entry| entry.unwrap().file_name());
        assert!(
            names.into_iter().all(|name| known.iter().any(|known| name == *known)),
            "nothing is left beside the files"
        );
    }
}

#[test]
fn the_config_of_hugging_face_is_read_off_the_weights() {
    let folder = tempfile::tempdir().unwrap();
    for (case, shape) in [("hf_vit", SMALL), ("hf_deit", DISTILLED)] {
        export(&Toy::new(shape, &device::cpu()), folder.path(), &options(Upstream::HuggingFace)).unwrap();
        let (written, reference) = (config(folder.path()), crate::testing::Fixture::load(case).config);
        for field in [
            "architectures",
            "model_type",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "intermediate_size",
            "hidden_act",
            "image_size",
            "patch_size",
            "num_channels",
            "qkv_bias",
            "id2label",
            "label2id",
        ] {
            assert_eq!(written[field], reference[field], "{case}: {field}");
        }
    }
}

#[test]
fn the_config_of_timm_says_how_pictures_are_prepared() {
    let folder = tempfile::tempdir().unwrap();
    export(&Toy::new(SMALL, &device::cpu()), folder.path(), &options(Upstream::Timm)).unwrap();
    let config = config(folder.path());
    assert_eq!(config["architecture"], "deit_tiny_patch16_224");
    assert_eq!(config["num_classes"], 7);
    assert_eq!(config["pretrained_cfg"]["input_size"], json!([3, 32, 32]));
    assert_eq!(config["pretrained_cfg"]["mean"], json!([0.485, 0.456, 0.406]));
    assert_eq!(config["pretrained_cfg"]["crop_pct"], 0.875);
}

#[test]
fn an_upstream_that_is_only_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let model = Toy::new(SMALL, &device::cpu());
    let error = export(&model, folder.path(), &options(Upstream::San)).unwrap_err().to_string();
    assert!(error.contains("`to`: must be timm or hugging-face"), "{error}");
    let file = folder.path().join("file");
    std::fs::write(&file, "in the way").unwrap();
    let error = export(&model, &file, &options(Upstream::Timm)).unwrap_err().to_string();
    assert!(error.contains("file: "), "{error}");
    let headless = Export { heads: None, ..options(Upstream::HuggingFace) };
    assert!(export(&model, folder.path(), &headless).unwrap_err().to_string().contains("`heads`"));
}

#[test]
fn one_by_one_convolutions_are_written_as_convolutions() {
    let matrix = || TensorData::new(vec![0f32; 6], [2, 3]);
    for (name, shape) in [
        ("s1.b1.se.fc1.weight", vec![2, 3, 1, 1]),
        ("s1.b1.conv1.conv.weight", vec![2, 3, 1, 1]),
        ("layer1.0.downsample.0.weight", vec![2, 3, 1, 1]),
        ("blocks.0.mlp.fc1.weight", vec![2, 3]),
        ("head.fc.weight", vec![2, 3]),
    ] {
        assert_eq!(timm(&[(name.to_string(), matrix())].into())[name].shape().to_vec(), shape, "{name}");
    }
}
