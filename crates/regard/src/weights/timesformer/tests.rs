use super::*;
use crate::Pass;
use crate::attention::SpaceTime;
use crate::data::Clips;
use crate::device::cpu;
use crate::layers::Start;
use crate::models::vit::{Pool, VitConfig};
use crate::testing::{Fixture, assert_close, random};
use crate::weights::{fill, read, tensors, timesformer_config, write_tensors};
use std::path::Path;

/// Sums are ordered differently in PyTorch.
const TOLERANCE: f32 = 1e-4;

const SCHEMES: [SpaceTime; 5] =
    [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];

fn checkpoint(case: &str) -> Checkpoint {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(case);
    read(&folder.join("model.safetensors")).unwrap()
}

/// The divided model of a fixture of facebookresearch.
fn config(fixture: &Fixture) -> TimesformerConfig {
    TimesformerConfig {
        scheme: SpaceTime::Divided,
        frames: fixture.usize("frames"),
        image: serde_json::from_value(fixture.config["image"].clone()).unwrap(),
        patch: fixture.usize("patch"),
        channels: 3,
        classes: fixture.usize("classes"),
        dim: fixture.usize("dim"),
        depth: fixture.usize("depth"),
        heads: fixture.usize("heads"),
        mlp_dim: fixture.usize("hidden"),
        epsilon: 1e-6,
        start: Start::Paper,
    }
}

fn logits(model: &Timesformer, pixels: Tensor<5>) -> Tensor<2> {
    model.forward(&Clips { pixels }, &mut Pass::silent())
}

#[test]
fn a_timesformer_of_facebook_loads_by_its_own_names() {
    let fixture = Fixture::load("fb_timesformer_divided");
    let loaded = load_timesformer(&config(&fixture), checkpoint("fb_timesformer_divided"), &cpu()).unwrap();
    assert_eq!((loaded.upstream, loaded.resampled), (Upstream::Facebook, None));
    assert_close(&logits(&loaded.model, fixture.tensor("io/input")), &fixture.tensor("io/logits"), TOLERANCE);
}

#[test]
fn a_timesformer_of_hugging_face_loads_by_its_own_names() {
    for case in ["hf_timesformer_divided_space_time", "hf_timesformer_joint_space_time"] {
        let fixture = Fixture::load(case);
        let config = timesformer_config(&fixture.config).unwrap();
        let loaded = load_timesformer(&config, checkpoint(case), &cpu()).unwrap();
        assert_eq!(loaded.upstream, Upstream::HuggingFace);
        // transformers puts frames before channels
        let pixels = fixture.tensor::<5>("io/input").swap_dims(1, 2);
        assert_close(&logits(&loaded.model, pixels), &fixture.tensor("io/logits"), TOLERANCE);
    }
}

#[test]
fn attention_in_space_alone_of_hugging_face_is_our_timesformer_of_one_frame() {
    let case = "hf_timesformer_space_only";
    let fixture = Fixture::load(case);
    let config = TimesformerConfig { frames: 1, ..timesformer_config(&fixture.config).unwrap() };
    let loaded = load_timesformer(&config, checkpoint(case), &cpu()).unwrap();
    let [batch, frames, channels, rows, columns] = fixture.tensor::<5>("io/input").dims();
    let pixels = fixture.tensor::<5>("io/input").reshape([batch * frames, channels, 1, rows, columns]);
    assert_close(&logits(&loaded.model, pixels), &fixture.tensor("io/logits"), TOLERANCE);
}

#[test]
fn a_timesformer_for_other_frames_and_another_image_has_the_nearest_positions_and_times() {
    let case = "fb_timesformer_resized";
    let fixture = Fixture::load(case);
    let run_at = &fixture.config["run_at"];
    let wanted = TimesformerConfig {
        frames: run_at["frames"].as_u64().unwrap() as usize,
        image: serde_json::from_value(run_at["image"].clone()).unwrap(),
        ..config(&fixture)
    };
    let loaded = load_timesformer(&wanted, checkpoint(case), &cpu()).unwrap();
    assert_eq!(loaded.resampled, Some([[3, 3], [4, 5]]));
    assert_close(&logits(&loaded.model, fixture.tensor("io/input")), &fixture.tensor("io/logits"), TOLERANCE);
    // the grid of this one is not a square
    let other = TimesformerConfig { image: [32, 32], ..wanted };
    let error = load_timesformer(&other, checkpoint("fb_timesformer_divided"), &cpu()).unwrap_err().to_string();
    assert!(error.contains("the checkpoint has 12 positions, which are no square"), "{error}");
}

#[test]
fn a_timesformer_starts_from_a_vit_as_that_of_facebook_does() {
    let case = "timesformer_from_vit";
    let fixture = Fixture::load(case);
    let start = start_timesformer(&config(&fixture), checkpoint(case), &cpu()).unwrap();
    assert_eq!(
        (start.upstream, &start.new_head[..]),
        (Upstream::Timm, &["head.bias".into(), "head.weight".into()][..])
    );
    let ours = tensors(&start.model);
    let mut compared = 0;
    for name in fixture.names("io/after.model.").filter(|name| !name.starts_with("head.")) {
        let expected = fixture.values(&format!("io/after.model.{name}"));
        assert_eq!(ours[name].as_slice::<f32>().unwrap(), expected, "{name}");
        compared += 1;
    }
    assert_eq!(compared + 2, ours.len());
    let mut with_head = ours;
    for (name, tensor) in [
        ("head.weight", fixture.tensor::<2>("io/after.model.head.weight").into_data()),
        ("head.bias", fixture.tensor::<1>("io/after.model.head.bias").into_data()),
    ] {
        with_head.insert(name.into(), tensor);
    }
    let model = fill(start.model, &with_head).unwrap();
    assert_close(&logits(&model, fixture.tensor("io/input")), &fixture.tensor("io/logits"), TOLERANCE);
}

/// A ViT for 32 x 32 pixels in a file, and a TimeSformer of its size.
fn vit_and_timesformer() -> (tempfile::TempDir, VitConfig, TimesformerConfig) {
    let vit = VitConfig { dim: 32, depth: 2, heads: 4, mlp_dim: 48, patch: 8, ..VitConfig::nano() };
    let config = TimesformerConfig { dim: 32, depth: 2, heads: 4, mlp_dim: 48, ..TimesformerConfig::nano() };
    assert_eq!((vit.pool, vit.image, vit.classes), (Pool::ClassToken, config.image, config.classes));
    (tempfile::tempdir().unwrap(), vit, config)
}

#[test]
fn a_timesformer_that_starts_from_a_vit_gives_the_logits_of_the_vit_for_a_clip_in_which_nothing_moves() {
    let (folder, vit, config) = vit_and_timesformer();
    let (vit, path) = (vit.init(&cpu()).unwrap(), folder.path().join("vit.safetensors"));
    write_tensors(&path, &tensors(&vit)).unwrap();
    let picture = random([2, 3, 32, 32], 1);
    let expected = vit.forward(picture.clone(), &mut Pass::silent());
    let still = |frames: usize| picture.clone().unsqueeze_dim::<5>(2).repeat_dim(2, frames);
    for (scheme, frames) in [(SpaceTime::Space, 4), (SpaceTime::Divided, 4), (SpaceTime::Joint, 1)] {
        let start =
            start_timesformer(&TimesformerConfig { scheme, frames, ..config.clone() }, read(&path).unwrap(), &cpu())
                .unwrap();
        assert!(start.new_head.is_empty());
        assert_close(&logits(&start.model, still(frames)), &expected, TOLERANCE);
    }
}

#[test]
fn a_timesformer_starts_from_vits_of_all_upstreams_in_every_scheme() {
    let size = |fixture: &Fixture, fields: [&str; 6]| {
        let [image, patch, dim, depth, heads, mlp_dim] = fields;
        let number = |field: &str| if field.is_empty() { 4 * fixture.usize(dim) } else { fixture.usize(field) };
        TimesformerConfig {
            scheme: SpaceTime::Axial,
            frames: 2,
            image: [2 * number(image), number(image)],
            patch: number(patch),
            channels: 3,
            classes: 5,
            dim: number(dim),
            depth: number(depth),
            heads: number(heads),
            mlp_dim: number(mlp_dim),
            epsilon: 1e-6,
            start: Start::Paper,
        }
    };
    for (case, upstream, fields) in [
        ("timm_vit", Upstream::Timm, ["img_size", "patch_size", "embed_dim", "depth", "num_heads", ""]),
        (
            "hf_vit",
            Upstream::HuggingFace,
            [
                "image_size",
                "patch_size",
                "hidden_size",
                "num_hidden_layers",
                "num_attention_heads",
                "intermediate_size",
            ],
        ),
        ("torchvision_vit", Upstream::Torchvision, ["image_size", "patch_size", "dim", "depth", "heads", "mlp_dim"]),
    ] {
        let config = size(&Fixture::load(case), fields);
        for scheme in SCHEMES {
            let start =
                start_timesformer(&TimesformerConfig { scheme, ..config.clone() }, checkpoint(case), &cpu()).unwrap();
            assert_eq!(start.upstream, upstream);
            let ours = tensors(&start.model);
            let is_copy =
                |name: &&String| !name.contains("_fc.") && EARLIER_STEPS.iter().any(|step| name.contains(step));
            for name in ours.keys().filter(is_copy) {
                let last_step = EARLIER_STEPS.iter().fold(name.clone(), |name, step| name.replace(step, ""));
                assert_eq!(ours[name], ours[&last_step], "{name}");
            }
            let patches = config.grid().height * config.grid().width;
            assert_eq!(start.resampled, Some([[1, patches / 2], [1, patches]]), "{case}");
        }
    }
}

#[test]
fn what_a_file_lacks_or_has_too_much_for_a_timesformer_is_named() {
    let fixture = Fixture::load("timesformer_from_vit");
    let config = TimesformerConfig { classes: 9, ..config(&fixture) };
    let Error::Weights { problems, .. } =
        load_timesformer(&config, checkpoint("timesformer_from_vit"), &cpu()).unwrap_err()
    else {
        panic!("no list of tensors")
    };
    assert!(problems.iter().any(|problem| problem.contains("missing `time_embed` [1, 4, 32]")), "{problems:?}");
    assert!(problems.iter().any(|problem| problem.contains("missing `blocks.0.temporal_fc.weight`")), "{problems:?}");
    let joint = TimesformerConfig { scheme: SpaceTime::Joint, image: [24, 32], classes: 6, ..config };
    let error = start_timesformer(&joint, checkpoint("fb_timesformer_divided"), &cpu()).unwrap_err();
    let Error::Weights { problems, .. } = error else { panic!("{error}") };
    assert!(
        problems.iter().any(|problem| problem.contains("unexpected `blocks.0.temporal_fc.weight`")),
        "{problems:?}"
    );
}
