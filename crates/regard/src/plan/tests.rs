use super::*;
use crate::cost::{Convention, Ledger};
use crate::data::{Clips, Images};
use crate::device;
use crate::models::detect::detr::DetrConfig;
use crate::models::detect::retinanet;
use crate::models::{ModelConfig, preset, video};
use crate::testing::{random, stirred, values};
use serde_json::json;

/// A preset with small fields, its norms with moments of their own.
pub(super) fn small(name: &str, fields: &[(&str, serde_json::Value)]) -> ModelConfig {
    let config = preset(name).unwrap().config;
    let config = fields.iter().fold(config, |config, (field, value)| config.with(field, value.clone()).unwrap());
    config.with("classes", json!(7)).unwrap()
}

/// One configuration of every family of classifiers, and the picture for it.
pub(super) fn families() -> Vec<(ModelConfig, [usize; 3])> {
    let vit = [
        ("image", json!([32, 48])),
        ("patch", json!(16)),
        ("dim", json!(48)),
        ("depth", json!(2)),
        ("heads", json!(3)),
        ("mlp_dim", json!(100)),
    ];
    let patches = [3, 32, 48];
    vec![
        (small("vit-tiny-patch16-224", &vit), patches),
        (small("deit-tiny-distilled", &vit), patches),
        (small("deit3-small", &vit), patches),
        (small("resnet-nano", &[]), [3, 32, 40]),
        (small("resnet-26-5x5", &[("width", json!(0.25))]), [3, 64, 48]),
        (
            small(
                "regnety-8gf",
                &[("depth", json!(6)), ("initial_width", json!(16)), ("slope", json!(12.0)), ("group_width", json!(8))],
            ),
            [3, 64, 48],
        ),
        (small("non-local-resnet-nano", &[]), [3, 32, 32]),
        (small("sasa-nano", &[]), [3, 32, 32]),
        (small("san-nano-pairwise", &[]), [3, 32, 32]),
        (small("san-nano-patchwise", &[]), [3, 32, 32]),
    ]
}

/// A model with noise on its weights; patchwise SAN without, which multiplies them so often that they leave f32.
pub(super) fn drawn(config: &ModelConfig) -> Model {
    let model = config.init(&device::cpu()).unwrap();
    let patchwise = format!("{config:?}").contains("Patchwise");
    if patchwise { model } else { stirred(model) }
}

#[test]
fn a_plan_gives_what_the_forward_pass_gives_for_every_family_of_classifiers() {
    device::cpu().seed(1);
    for (config, [channels, rows, columns]) in families() {
        let model = drawn(&config);
        let plan = Plan::of(&model, [channels, rows, columns]).unwrap();
        let images = random([3, channels, rows, columns], 1);
        let expected = values(&model.forward(images.clone(), &mut Pass::silent()));
        let found = plan.run_batch(&values(&images));
        assert_same(&found, &expected, &format!("{config:?}"));
    }
}

/// SAN's fused operators have no count yet; the attention stem multiplies by mixed maps, which no paper counts.
#[test]
fn the_ledger_counts_what_the_captured_graph_multiplies() {
    let uncounted = |config: &ModelConfig| matches!(config, ModelConfig::San(_) | ModelConfig::Sasa(_));
    let mut configs = families();
    configs.retain(|(config, _)| !uncounted(config));
    configs.push((small("sasa-nano", &[("stem", json!("convolution"))]), [3, 32, 32]));
    for (config, picture) in configs {
        let model = config.init(&device::cpu()).unwrap();
        let plan = Plan::of(&model, picture).unwrap();
        let ledger = Ledger::of(&model, picture).total(Convention::MultiplyAdds);
        assert_eq!(plan.multiply_adds(), ledger, "{config:?}");
    }
}

#[test]
fn one_thread_and_two_give_the_same_bytes_alone_and_among_others() {
    device::cpu().seed(1);
    for (config, [channels, rows, columns]) in families() {
        let model = drawn(&config);
        let plan = Plan::of(&model, [channels, rows, columns]).unwrap();
        let images = values(&random([3, channels, rows, columns], 1));
        let on = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| plan.run_batch(&images))
        };
        let alone: Vec<f32> =
            images.chunks_exact(images.len() / 3).flat_map(|image| plan.run(image).remove(0)).collect();
        assert_eq!(on(1), alone, "{config:?}");
        assert_eq!(on(2), alone, "{config:?}");
        assert_eq!(on(4), alone, "{config:?}");
    }
}

/// To a part in ten thousand of the largest.
#[track_caller]
pub(super) fn assert_same(found: &[f32], expected: &[f32], what: &str) {
    let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(largest > 0.0, "{what}: nothing but zeros");
    let error = found.iter().zip(expected).fold(0.0f32, |error, (a, b)| error.max((a - b).abs()));
    assert!(error <= 1e-4 * largest, "{what}: {error} of {largest}");
}

/// Holds a plan of any module to its forward pass.
fn hold<M: Module, const D: usize>(
    model: &M,
    shape: [usize; D],
    what: &str,
    forward: impl Fn(&M, Tensor<D>) -> Vec<Tensor<1>>,
) {
    let plan = Plan::capture(model, shape, |model, input| {
        forward(model, input).into_iter().map(Tensor::into_dispatch).collect()
    });
    let input = random(shape, 1);
    let expected = forward(model, input.clone());
    let found = plan.unwrap().run(&values(&input));
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_same(found, &values(&expected), &format!("output {index} of {what}"));
    }
}

#[test]
fn models_of_video_have_plans() {
    device::cpu().seed(1);
    for preset in video::presets().iter().filter(|preset| preset.paper == "ours") {
        let model = stirred(preset.config.init(&device::cpu()).unwrap());
        let [rows, columns] = preset.config.image();
        let shape = [1, preset.config.channels(), preset.config.frames(), rows, columns];
        hold(&model, shape, preset.name, |model, pixels| {
            vec![model.forward(&Clips { pixels }, &mut Pass::silent()).flatten(0, 1)]
        });
    }
}

#[test]
fn detectors_have_plans_up_to_their_boxes() {
    device::cpu().seed(1);
    for preset in retinanet::PRESETS.iter().filter(|preset| preset.name.contains("nano")) {
        let model = stirred((preset.config)().init(&device::cpu()).unwrap());
        hold(&model, [1, 3, 64, 96], preset.name, |model, images| {
            let output = model.forward(images, &mut Pass::silent());
            [output.logits, output.deltas].map(|output| output.flatten(0, 2)).to_vec()
        });
    }
    let model = stirred(DetrConfig::nano().init(&device::cpu()).unwrap());
    hold(&model, [1, 3, 64, 96], "detr-nano", |model, pixels| {
        let output = model.forward(&Images { pixels, padding: None, sizes: vec![[64, 96]] }, &mut Pass::silent());
        output.logits.into_iter().chain(output.boxes).map(|output| output.flatten(0, 2)).collect()
    });
}

#[test]
fn an_operation_without_a_fixed_result_is_named() {
    let model = preset("vit-nano").unwrap().config.init(&device::cpu()).unwrap();
    let random = |_: &_, input: Tensor<1>| {
        let noise = Tensor::<1>::random(input.dims(), burn::tensor::Distribution::Default, &input.device());
        vec![(input + noise).into_dispatch()]
    };
    let error = Plan::capture(&model, [3], random).unwrap_err().to_string();
    assert_eq!(error, "no plan: burn.Random: is another one each time");
}
