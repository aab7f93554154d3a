//! Three training steps as in facebookresearch/detr: a slower trunk, a frozen stem and first stage, clipping.

use burn::module::{ModuleVisitor, Param};
use burn::tensor::Gradients;
use std::collections::BTreeMap;

use super::*;
use crate::data::Object;
use crate::testing::Tensors;

/// The gradients of trained parameters, by the names of the fixture.
struct Gradient<'a> {
    path: weights::ModulePath,
    gradients: &'a Gradients,
    found: BTreeMap<String, Vec<f32>>,
}

impl ModuleVisitor for Gradient<'_> {
    fn enter_module(&mut self, name: &str, container: &str) {
        self.path.enter(name, container);
    }
    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.leave();
    }
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let name = self.path.name();
        let frozen = ["backbone.0.body.conv1", "backbone.0.body.layer1."];
        if self.path.is_statistic() || frozen.iter().any(|start| name.starts_with(start)) {
            return;
        }
        if let Some(gradient) = param.val().grad(self.gradients) {
            self.found.insert(name, values(&gradient));
        }
    }
}

fn norm<'a>(numbers: impl IntoIterator<Item = &'a f32>) -> f64 {
    numbers.into_iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt()
}

fn their(name: &str) -> String {
    name.replace(".in_proj.", ".in_proj_")
}

#[track_caller]
fn assert_relative(what: &str, found: f64, expected: f32, tolerance: f64) {
    let expected = f64::from(expected);
    assert!((found - expected).abs() <= tolerance * expected.abs(), "{what}: {found} {expected}");
}

#[test]
fn three_steps_are_facebooks() {
    let device = device::cpu().autodiff();
    let (fixture, mut detr, images) = from_fixture_on("fb_detr_train", &device);
    let pictures: Vec<Vec<Object>> = (0..2)
        .map(|picture| {
            let labels = fixture.values(&format!("io/labels.{picture}"));
            let boxes = fixture.values(&format!("io/targets_cxcywh.{picture}"));
            let object = |(class, bounds): (&f32, &[f32])| {
                let [cx, cy, w, h] = [0, 1, 2, 3].map(|side| f64::from(bounds[side]));
                Object { class: *class as usize, bounds: Bounds { cx, cy, w, h }, crowd: false }
            };
            labels.iter().zip(boxes.chunks(4)).map(object).collect()
        })
        .collect();
    let criterion = DetrCriterion::default();
    let counts = DetrCounts::of(&pictures, detr.num_queries());
    let start = weights::tensors(&detr);
    let mut moments: BTreeMap<String, Vec<[f64; 2]>> = BTreeMap::new();
    for step in 0..3 {
        let output = detr.forward(&images, &mut Pass::silent());
        let total = criterion.losses(&output, &pictures, &counts).unwrap().total;
        let loss = total.clone().into_scalar::<f32>();
        assert_relative("loss", f64::from(loss), fixture.values("io/losses")[step], 1e-4);
        let gradients = total.backward();
        let mut visitor =
            Gradient { path: weights::ModulePath::default(), gradients: &gradients, found: BTreeMap::new() };
        detr.visit(&mut visitor);
        let found = visitor.found;
        let length = norm(found.values().flatten());
        assert_relative("length of the gradient", length, fixture.values("io/grad_norms")[step], 1e-4);
        if step == 0 {
            for name in fixture.names("io/first_grad_norm.") {
                let ours = found.iter().find(|(ours, _)| their(ours) == name);
                let (_, gradient) = ours.unwrap_or_else(|| panic!("no gradient of `{name}`"));
                let expected = fixture.values(&format!("io/first_grad_norm.{name}"))[0];
                // gradients that cancel are compared at the scale of the whole
                let slack = 1e-3 * f64::from(expected) + 1e-6 * length;
                assert!((norm(gradient) - f64::from(expected)).abs() <= slack, "{name}: {} {expected}", norm(gradient));
            }
        }
        let scale = (0.1 / (length + 1e-6)).min(1.0);
        let mut tensors: Tensors = weights::tensors(&detr);
        for (name, gradient) in &found {
            let rate = if name.starts_with("backbone.") { 1e-5 } else { 1e-4 };
            let moments = moments.entry(name.clone()).or_insert_with(|| vec![[0.0; 2]; gradient.len()]);
            let old = tensors[name].as_slice::<f32>().unwrap();
            let new: Vec<f32> = old
                .iter()
                .zip(gradient)
                .zip(moments)
                .map(|((value, gradient), [first, second])| {
                    let (value, gradient) = (f64::from(*value), scale * f64::from(*gradient));
                    *first = 0.9 * *first + 0.1 * gradient;
                    *second = 0.999 * *second + 0.001 * gradient * gradient;
                    let [first, second] = [
                        *first / (1.0 - 0.9f64.powi(step as i32 + 1)),
                        *second / (1.0 - 0.999f64.powi(step as i32 + 1)),
                    ];
                    (value * (1.0 - rate * 1e-4) - rate * first / (second.sqrt() + 1e-8)) as f32
                })
                .collect();
            let shape = tensors[name].shape().to_vec();
            tensors.insert(name.clone(), TensorData::new(new, shape));
        }
        detr = weights::fill(detr, &tensors).unwrap();
    }
    let end = weights::tensors(&detr);
    let length = fixture.values("io/grad_norms")[0];
    for name in fixture.names("io/moved.") {
        // the values of the first self-attention are all the same: gradients of its queries and keys are rounding errors
        if fixture.values(&format!("io/first_grad_norm.{name}"))[0] < 1e-6 * length {
            assert_eq!(name, "transformer.decoder.layers.0.self_attn.in_proj_weight");
            continue;
        }
        let ours = end.keys().find(|ours| their(ours) == name).unwrap();
        let [old, new] = [&start, &end].map(|tensors| tensors[ours].as_slice::<f32>().unwrap());
        let moved: Vec<f32> = old.iter().zip(new).map(|(old, new)| new - old).collect();
        assert_relative(name, norm(&moved), fixture.values(&format!("io/moved.{name}"))[0], 1e-2);
    }
}
