//! How many threads there are changes no bit of what is learned.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Distribution, Gradients, Tensor, TensorData};
use regard::models::preset;
use regard::{Pass, device, function};

/// The bits of every gradient, in the order of the parameters.
struct Bits<'a> {
    gradients: &'a Gradients,
    found: Vec<u32>,
}

impl ModuleVisitor for Bits<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if let Some(gradient) = param.val().grad(self.gradients) {
            let values = gradient.into_data().try_to_vec::<f32>().unwrap();
            self.found.extend(values.iter().map(|value| value.to_bits()));
        }
    }
}

fn assert_same_step(name: &str) {
    let device = device::cpu().autodiff();
    let config = preset(name).unwrap().config.with("image", serde_json::json!([28, 28])).unwrap();
    let model = config.init(&device).unwrap();
    let images = Tensor::<4>::random([16, 3, 28, 28], Distribution::Normal(0.0, 1.0), &device).into_data();
    // parameters come to be at their first use
    drop(model.forward(Tensor::from_data(images.clone(), &device), &mut Pass::silent()));
    let step = |threads: usize| {
        // running statistics move with every step: each starts from the same model
        let (model, images) = (model.clone(), Tensor::<4>::from_data(images.clone(), &device));
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let logits = model.forward(images, &mut Pass::silent());
            let classes = TensorData::new((0..16).map(|i| i % 10).collect::<Vec<i64>>(), [16, 1]);
            let loss = function::log_softmax(logits).gather(1, Tensor::from_data(classes, &device)).mean().neg();
            let gradients = loss.backward();
            let mut bits = Bits { gradients: &gradients, found: Vec::new() };
            model.visit(&mut bits);
            bits.found
        })
    };
    let [one, two] = [step(1), step(2)];
    assert!(one.len() > 10_000, "{name}: only {} gradients", one.len());
    assert!(one == two, "{name}: one thread and two differ");
}

#[test]
fn a_step_of_vit_is_the_same_on_one_thread_and_two() {
    assert_same_step("vit-nano");
}

#[test]
fn a_step_of_san_is_the_same_on_one_thread_and_two() {
    assert_same_step("san-nano-pairwise");
    assert_same_step("san-nano-patchwise");
}

#[test]
fn a_step_of_sasa_is_the_same_on_one_thread_and_two() {
    assert_same_step("sasa-nano");
}

#[test]
fn a_step_of_resnet_is_the_same_on_one_thread_and_two() {
    assert_same_step("resnet-nano");
}
