//! What tests share: parity fixtures, seeded tensors and pictures, comparisons, finite differences.

mod clips;
pub mod ranks;
pub mod runs;
pub mod server;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Device, Gradients, Tensor, TensorData};
pub use clips::{write_clip, write_picture};
pub use regard_kernels::naive::noise;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::data::{Dataset, Picture};
use crate::random::{Purpose, generator};
/// Tests of models fill checkpoints in, though weights are a later stage.
pub use crate::weights::{self, Tensors, fill, shapes};
use crate::{Error, device};

/// One folder of `fixtures/`.
pub struct Fixture {
    case: String,
    pub config: serde_json::Value,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Fixture {
    pub fn load(case: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures").join(case);
        let config = serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
        let mut tensors = BTreeMap::new();
        for file in ["model", "io"] {
            let Ok(bytes) = std::fs::read(folder.join(format!("{file}.safetensors"))) else { continue };
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let values: Vec<f32> = match view.dtype() {
                    Dtype::F32 => {
                        view.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
                    }
                    Dtype::I64 => {
                        let number = |bytes: &[u8]| i64::from_le_bytes(bytes.try_into().unwrap()) as f32;
                        view.data().chunks_exact(8).map(number).collect()
                    }
                    Dtype::I8 => view.data().iter().map(|&b| f32::from(b.cast_signed())).collect(),
                    Dtype::U8 | Dtype::BOOL => view.data().iter().map(|&b| f32::from(b)).collect(),
                    _ => continue,
                };
                tensors.insert(format!("{file}/{name}"), (view.shape().to_vec(), values));
            }
        }
        Self { case: case.into(), config, tensors }
    }

    /// A tensor of `model.safetensors` or `io.safetensors`, such as `io/input`, reshaped to rank `D`.
    pub fn tensor<const D: usize>(&self, name: &str) -> Tensor<D> {
        self.tensor_on(name, &device::cpu())
    }

    pub fn tensor_on<const D: usize>(&self, name: &str, device: &Device) -> Tensor<D> {
        let (shape, values) =
            self.tensors.get(name).unwrap_or_else(|| panic!("{}: no `{name}` in the fixture", self.case));
        assert_eq!(shape.len(), D, "{}: `{name}` has shape {shape:?}", self.case);
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device)
    }

    /// The values of a tensor of any rank.
    pub fn values(&self, name: &str) -> &[f32] {
        &self.tensors.get(name).unwrap_or_else(|| panic!("{}: no `{name}` in the fixture", self.case)).1
    }

    /// The boxes of a tensor `[N, 4]`.
    pub fn boxes(&self, name: &str) -> Vec<[f32; 4]> {
        self.values(name).as_chunks().0.to_vec()
    }

    /// The whole numbers of a tensor of any rank.
    pub fn indices(&self, name: &str) -> Vec<usize> {
        self.values(name).iter().map(|value| *value as usize).collect()
    }

    /// Every tensor of the checkpoint, for `weights::fill`, under names that `rename` gives; none leaves it out.
    pub fn checkpoint(&self, rename: impl Fn(&str) -> Option<String>) -> Tensors {
        let model = self.tensors.iter().filter_map(|(name, tensor)| Some((name.strip_prefix("model/")?, tensor)));
        // a counter that no model of ours has
        let model = model.filter(|(name, _)| !name.ends_with("num_batches_tracked"));
        model
            .filter_map(|(name, (shape, values))| Some((rename(name)?, TensorData::new(values.clone(), shape.clone()))))
            .collect()
    }

    /// The checkpoint of an encoder by Hugging Face, in the names of timm.
    pub fn hugging_face(&self) -> Tensors {
        const WORDS: &[(&str, &str)] = &[
            ("embeddings.cls_token", "cls_token"),
            ("embeddings.distillation_token", "dist_token"),
            ("embeddings.position_embeddings", "pos_embed"),
            ("embeddings.patch_embeddings.projection", "patch_embed.proj"),
            ("encoder.layer", "blocks"),
            ("attention.attention", "attn"),
            ("attention.output.dense", "attn.proj"),
            ("intermediate.dense", "mlp.fc1"),
            ("output.dense", "mlp.fc2"),
            ("layernorm_before", "norm1"),
            ("layernorm_after", "norm2"),
            ("layernorm", "norm"),
            ("distillation_classifier", "head_dist"),
            ("cls_classifier", "head"),
            ("classifier", "head"),
        ];
        let mut tensors = self.checkpoint(|name| {
            let name = name.trim_start_matches("vit.").trim_start_matches("deit.");
            Some(WORDS.iter().fold(name.to_string(), |name, (from, to)| name.replace(from, to)))
        });
        let queries: Vec<String> = tensors.keys().filter(|name| name.contains(".query.")).cloned().collect();
        for query in queries {
            let parts = ["query", "key", "value"].map(|part| tensors.remove(&query.replace("query", part)).unwrap());
            let mut shape = parts[0].shape().to_vec();
            shape[0] *= 3;
            let values = parts.iter().flat_map(|part| part.try_to_vec::<f32>().unwrap()).collect();
            tensors.insert(query.replace("query", "qkv"), TensorData::new(values, shape));
        }
        tensors
    }

    /// The names that start so, without the start.
    pub fn names<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        self.tensors.keys().filter_map(move |name| name.strip_prefix(start))
    }

    /// `[H, W, 3]` in 8 bits of `io.safetensors`.
    pub fn picture(&self, name: &str) -> Picture {
        let tensor = self.tensor::<3>(&format!("io/{name}"));
        let [rows, columns, _] = tensor.dims();
        Picture::new([rows, columns], values(&tensor).into_iter().map(|level| level as u8).collect()).unwrap()
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    pub fn usize(&self, field: &str) -> usize {
        usize::try_from(self.config[field].as_u64().unwrap_or_else(|| panic!("{}: no number `{field}`", self.case)))
            .unwrap()
    }

    pub fn text(&self, field: &str) -> &str {
        self.config[field].as_str().unwrap_or_else(|| panic!("{}: no text `{field}`", self.case))
    }
}

/// A picture of noise, the same for the same seed.
pub fn noise_picture(size: [usize; 2], seed: u64) -> Picture {
    let mut pixels = vec![0; 3 * size[0] * size[1]];
    rand::Rng::fill_bytes(&mut generator(seed, Purpose::Augment, [0, 0]), &mut pixels);
    Picture::new(size, pixels).unwrap()
}

/// A dataset of noise in memory; picture i is of class i modulo the number of classes.
#[derive(Debug)]
pub struct Toy {
    pictures: usize,
    classes: Vec<String>,
    size: [usize; 2],
}

impl Toy {
    pub fn new(pictures: usize, classes: usize, size: [usize; 2]) -> Self {
        Self { pictures, classes: (0..classes).map(|class| format!("class {class}")).collect(), size }
    }
}

impl Dataset for Toy {
    fn len(&self) -> usize {
        self.pictures
    }

    fn classes(&self) -> &[String] {
        &self.classes
    }

    fn label(&self, index: usize) -> usize {
        index % self.classes.len()
    }

    fn picture(&self, index: usize) -> Result<Picture, Error> {
        Ok(noise_picture(self.size, index as u64))
    }

    fn name(&self, index: usize) -> String {
        format!("picture {index}")
    }
}

/// A seeded random tensor on the CPU.
pub fn random<const D: usize>(shape: [usize; D], seed: u64) -> Tensor<D> {
    random_on(shape, seed, &device::cpu())
}

pub fn random_on<const D: usize>(shape: [usize; D], seed: u64, device: &Device) -> Tensor<D> {
    Tensor::from_data(TensorData::new(noise(shape.iter().product(), seed), shape.to_vec()), device)
}

pub fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().into_data().convert::<f32>().try_to_vec().unwrap()
}

/// Largest absolute difference; infinite when exactly one side is not finite.
pub fn distance(actual: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(actual.len(), expected.len(), "numbers of elements differ");
    actual
        .iter()
        .zip(expected)
        .map(|(a, e)| if a == e || (a.is_nan() && e.is_nan()) { 0.0 } else { (a - e).abs() })
        .map(|d| if d.is_nan() { f32::INFINITY } else { d })
        .fold(0.0, f32::max)
}

/// Asserts that two tensors agree element by element.
#[track_caller]
pub fn assert_close<const D: usize>(actual: &Tensor<D>, expected: &Tensor<D>, tolerance: f32) {
    assert_eq!(actual.dims(), expected.dims(), "shapes differ");
    let distance = distance(&values(actual), &values(expected));
    assert!(distance <= tolerance, "largest difference {distance:e} is over {tolerance:e}");
}

/// Asserts that two gradients agree relative to the largest element.
#[track_caller]
pub fn assert_gradient_close<const D: usize>(name: &str, actual: &Tensor<D>, expected: &Tensor<D>) {
    assert_eq!(actual.dims(), expected.dims(), "{name}: shapes differ");
    let expected = values(expected);
    let largest = expected.iter().fold(1e-3f32, |a, e| a.max(e.abs()));
    let distance = distance(&values(actual), &expected) / largest;
    assert!(distance <= 1e-3, "{name}: gradient is off by {distance:e} of its largest element");
}

/// Asserts that what two paths gave, by name, agrees to 1e-3 of the largest element of each.
///
/// A shift before a norm has almost no gradient: sums that cancel are held to the scale of what cancels.
#[track_caller]
pub fn assert_paths_agree(what: &str, fused: &[(&str, Vec<f32>)], plain: &[(&str, Vec<f32>)]) {
    assert_eq!(fused.len(), plain.len(), "{what}: the paths gave different things");
    let scale = plain.iter().flat_map(|(_, values)| values).fold(0f32, |a, x| a.max(x.abs()));
    for ((name, fused), (_, plain)) in fused.iter().zip(plain) {
        let largest = plain.iter().fold(scale / 100.0, |a, x| a.max(x.abs()));
        let error = distance(fused, plain) / largest;
        assert!(error < 1e-3, "{what}: `{name}` is off by {error:e}");
    }
}

/// Copies of a block that share its weights: drawing a large model's weights takes longer than running it.
pub fn copies<M: Module>(block: &M, count: usize) -> Vec<M> {
    crate::weights::tensors(block); // a copy of what is not drawn yet would be drawn again
    vec![block.clone(); count]
}

/// A module with noise on all parameters: those that start at zero or one would hide what is forgotten.
pub fn stirred<M: Module>(module: M) -> M {
    struct Mapper(u64);
    impl ModuleMapper for Mapper {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            self.0 += 1;
            param.map(|value| {
                let noise = random_on(value.dims(), self.0, &value.device());
                value + noise.mul_scalar(0.2)
            })
        }
    }
    module.map(&mut Mapper(0))
}

/// The parameters of a module that no gradient reaches, or one of zeros or not finite, by name; running statistics do not count.
pub fn without_gradient(module: &impl Module, gradients: &Gradients) -> Vec<String> {
    struct Visitor<'a> {
        path: Vec<String>,
        gradients: &'a Gradients,
        found: Vec<String>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.path.push(name.to_string());
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.pop();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let sum = param.val().grad(self.gradients).map_or(0.0, |grad| grad.abs().sum().into_scalar::<f32>());
            let reached = sum > 0.0 && sum.is_finite();
            if param.is_require_grad() && !reached {
                self.found.push(self.path.join("."));
            }
        }
    }
    let mut visitor = Visitor { path: Vec::new(), gradients, found: Vec::new() };
    module.visit(&mut visitor);
    visitor.found
}

/// The gradient of every parameter that one reaches, by the name that it has in a checkpoint.
pub fn gradients(module: &impl Module, gradients: &Gradients) -> BTreeMap<String, Vec<f32>> {
    struct Visitor<'a> {
        path: weights::ModulePath,
        gradients: &'a Gradients,
        found: BTreeMap<String, Vec<f32>>,
    }
    impl ModuleVisitor for Visitor<'_> {
        fn enter_module(&mut self, name: &str, container: &str) {
            self.path.enter(name, container);
        }
        fn exit_module(&mut self, _: &str, _: &str) {
            self.path.leave();
        }
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if let Some(gradient) = param.val().grad(self.gradients) {
                self.found.insert(self.path.name(), values(&gradient));
            }
        }
    }
    let mut visitor = Visitor { path: weights::ModulePath::default(), gradients, found: BTreeMap::new() };
    module.visit(&mut visitor);
    visitor.found
}

/// Compares the gradient of every input with finite differences of the operator itself.
///
/// `operator` gets the inputs flattened and gives any tensor; the loss is a fixed random projection of it.
/// Fourth-order differences, so that f32 forward passes are enough for smooth operators.
#[track_caller]
pub fn assert_gradients_are_differences<const D: usize>(
    inputs: &[(&str, Vec<f32>)],
    operator: impl Fn(&[Tensor<1>]) -> Tensor<D>,
) {
    const STEP: f32 = 2e-2;
    let device = device::cpu();
    let tensor = |values: &[f32], device: &Device| Tensor::<1>::from_data(TensorData::from(values), device);
    let loss = |inputs: &[Vec<f32>]| -> f64 {
        let tensors: Vec<_> = inputs.iter().map(|v| tensor(v, &device)).collect();
        let out = values(&operator(&tensors));
        out.iter().zip(noise(out.len(), 77)).map(|(o, p)| f64::from(*o) * f64::from(p)).sum()
    };

    let training = device.clone().autodiff();
    let tracked: Vec<_> = inputs.iter().map(|(_, v)| tensor(v, &training).require_grad()).collect();
    let out = operator(&tracked);
    let projection =
        Tensor::<D>::from_data(TensorData::new(noise(out.shape().num_elements(), 77), out.dims().to_vec()), &training);
    let grads = (out * projection).sum().backward();

    let point: Vec<Vec<f32>> = inputs.iter().map(|(_, v)| v.clone()).collect();
    for (which, (name, start)) in inputs.iter().enumerate() {
        let grad = tracked[which].grad(&grads).unwrap_or_else(|| panic!("no gradient reaches `{name}`"));
        let grad = values(&grad);
        let largest = grad.iter().fold(0.1f32, |a, g| a.max(g.abs()));
        let stride = (start.len() / 16).max(1);
        for index in (0..start.len()).step_by(stride) {
            let at = |step: f32| {
                let mut moved = point.clone();
                moved[which][index] += step;
                loss(&moved)
            };
            let near = at(STEP) - at(-STEP);
            let far = at(2.0 * STEP) - at(-2.0 * STEP);
            let slope = (8.0 * near - far) / (12.0 * f64::from(STEP));
            let error = (slope - f64::from(grad[index])).abs() / f64::from(largest);
            assert!(error < 5e-3, "`{name}`[{index}]: gradient {}, finite difference {slope}", grad[index]);
        }
    }
}
