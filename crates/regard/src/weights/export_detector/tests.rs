use super::*;
use crate::device::cpu;
use crate::models::detect::{preset as detector, usual_preprocess};
use crate::testing::Fixture;
use crate::weights::{detr_config, recognise, resolve_detector};

/// A preset with a small trunk and small heads.
fn small(name: &str) -> DetectorConfig {
    let config = detector(name).unwrap().config;
    let network = json!({ "layers": [1, 1, 1, 1], "widths": [2, 3, 4, 5], "stem_width": 4 });
    let trunk = json!({ "network": network });
    let changes = match &config {
        DetectorConfig::Detr(_) => {
            vec![("backbone", trunk), ("dim", json!(16)), ("heads", json!(2)), ("inner", json!(8))]
        }
        DetectorConfig::FasterRcnn(config) if config.backbone.pyramid.is_none() => {
            vec![("backbone", json!({ "trunk": trunk }))]
        }
        DetectorConfig::Retinanet(_) | DetectorConfig::FasterRcnn(_) => {
            vec![("backbone", json!({ "trunk": trunk, "pyramid": { "width": 32 } }))]
        }
    };
    changes.into_iter().fold(config, |config, (field, value)| config.with(field, value).unwrap())
}

fn loaded(config: DetectorConfig) -> LoadedDetector {
    cpu().seed(7);
    let model = config.init(&cpu()).unwrap();
    tensors(&model);
    let labels = (0..config.classes()).map(|class| format!("thing {class}")).collect();
    LoadedDetector { name: "small".into(), model, preprocess: usual_preprocess(&config), config, labels: Some(labels) }
}

#[test]
fn an_export_is_recognised_and_read_again_as_the_same_detector() {
    let folder = tempfile::tempdir().unwrap();
    for (config, to) in [
        (small("detr-r50"), Upstream::Facebook),
        (small("detr-r50-dc5"), Upstream::Facebook),
        (small("detr-r50"), Upstream::HuggingFace),
        (detector("retinanet-nano").unwrap().config, Upstream::Torchvision),
        (small("retinanet-resnet50-fpn"), Upstream::Torchvision),
        (small("retinanet-resnet50-fpn-v2"), Upstream::Torchvision),
        (detector("faster-rcnn-nano").unwrap().config, Upstream::Torchvision),
        (small("faster-rcnn-resnet50-fpn"), Upstream::Torchvision),
        (small("faster-rcnn-detectron2-r50-fpn"), Upstream::Detectron2),
        (small("faster-rcnn-detectron2-r50-dc5"), Upstream::Detectron2),
        (detector("detr-nano").unwrap().config, Upstream::Regard),
        (detector("retinanet-nano-attention").unwrap().config, Upstream::Regard),
    ] {
        let there = folder.path().join(format!("{}-{}", config.family(), name(to)));
        let exported = loaded(config);
        export_detector(&exported, &there, to, &cpu()).unwrap();
        let written = read(&there.join("model.safetensors")).unwrap();
        if to != Upstream::Regard {
            assert_eq!(recognise(written.tensors.keys().map(String::as_str)), to);
        }
        let again = resolve_detector(&there.display().to_string(), &mut |_| {}).unwrap();
        assert_eq!((&again.config, &again.preprocess), (&exported.config, &exported.preprocess));
        assert_eq!(again.labels, exported.labels);
        assert_eq!(tensors(&again.load(&cpu()).unwrap().model), tensors(&exported.model), "{}", there.display());
        if to == Upstream::HuggingFace {
            let json: Value = serde_json::from_slice(&std::fs::read(there.join("config.json")).unwrap()).unwrap();
            let DetectorConfig::Detr(config) = &exported.config else { panic!("a DETR") };
            assert_eq!(detr_config(&json).unwrap(), *config);
        }
    }
}

#[test]
fn tensors_have_the_axes_of_the_upstreams_own_files() {
    let ranks = |tensors: &Tensors| -> BTreeMap<String, usize> {
        tensors.iter().map(|(name, tensor)| (name.clone(), tensor.shape().to_vec().len())).collect()
    };
    for (case, config, to) in [
        ("fb_detr", small("detr-r50"), Upstream::Facebook),
        ("hf_detr", small("detr-r50"), Upstream::HuggingFace),
        ("torchvision_retinanet", small("retinanet-resnet50-fpn"), Upstream::Torchvision),
        ("torchvision_faster_rcnn", small("faster-rcnn-resnet50-fpn"), Upstream::Torchvision),
    ] {
        let theirs = ranks(&Fixture::load(case).checkpoint(|name| Some(name.to_string())));
        let ours = ranks(&upstream_tensors(&loaded(config), to).unwrap());
        let both: Vec<&String> = ours.keys().filter(|name| theirs.contains_key(*name)).collect();
        assert!(2 * both.len() > theirs.len(), "{case}: {} of {} names", both.len(), theirs.len());
        for name in both {
            assert_eq!(ours[name], theirs[name], "{case}: {name}");
        }
    }
}

#[test]
fn what_an_upstream_does_not_have_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    for (name, to, reason) in [
        ("detr-nano", Upstream::Facebook, "reference points"),
        ("detr-nano", Upstream::Torchvision, "only facebook and hugging-face"),
        ("retinanet-nano", Upstream::Detectron2, "only torchvision"),
        ("retinanet-nano-attention", Upstream::Torchvision, "attention"),
        ("faster-rcnn-nano", Upstream::Detectron2, "only torchvision"),
        ("faster-rcnn-nano", Upstream::Timm, "only torchvision"),
    ] {
        let there = folder.path().join("out");
        let detector = loaded(detector(name).unwrap().config);
        let error = export_detector(&detector, &there, to, &cpu()).unwrap_err().to_string();
        assert!(error.contains(reason), "{name}: {error}");
        assert!(!there.exists());
    }
}

#[test]
fn a_file_that_differs_from_what_was_written_is_no_export() {
    let folder = tempfile::tempdir().unwrap();
    let detector = loaded(detector("retinanet-nano").unwrap().config);
    export_detector(&detector, folder.path(), Upstream::Torchvision, &cpu()).unwrap();
    let mut written = upstream_tensors(&detector, Upstream::Torchvision).unwrap();
    let first = written.values_mut().next().unwrap();
    let shape = first.shape().to_vec();
    *first = TensorData::new(vec![7f32; shape.iter().product()], shape);
    let error = read_back(&detector, &folder.path().join("model.safetensors"), &written, &cpu()).unwrap_err();
    assert!(error.to_string().contains("differs from what was written"), "{error}");
}
