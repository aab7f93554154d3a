use super::*;
use crate::data::Target;
use crate::models::preset;
use crate::models::vit::{Pool, VitConfig};
use crate::testing::{Fixture, values};
use crate::train::{Common, Engine, Groups, Optimiser, Ranks, SingleProcess, StepResult};
use crate::weights::{fill, tensors};
use crate::{device, testing};

fn batch(seed: u64, pictures: usize) -> Batch {
    let images = values(&testing::random([pictures, 3, 32, 32], seed));
    let targets = (0..pictures).map(|picture| Target::pure(picture % 10)).collect();
    Batch { images, shape: [pictures, 3, 32, 32], targets }
}

fn fresh(recipe: &Recipe) -> Model {
    device::cpu().seed(1);
    preset(&recipe.common.model).unwrap().config.init(&device::cpu().autodiff()).unwrap()
}

fn engine_of(recipe: &Recipe, model: Model) -> Engine<ClassLoss> {
    Engine::new(ClassLoss::new(recipe, None, &device::cpu()), (&recipe.common).into(), model).unwrap()
}

fn engine(recipe: &Recipe) -> Engine<ClassLoss> {
    engine_of(recipe, fresh(recipe))
}

/// The default recipe with other common keys.
fn with(change: impl FnOnce(&mut Common)) -> Recipe {
    let mut recipe = Recipe::default();
    change(&mut recipe.common);
    recipe
}

fn step(engine: &mut Engine<ClassLoss>, number: usize, parts: &[Batch]) -> StepResult {
    engine.step(number, 1e-3, parts, false, &SingleProcess).unwrap()
}

#[test]
fn five_steps_of_adamw_are_those_of_pytorch() {
    let fixture = Fixture::load("train_vit_adamw");
    let config = VitConfig {
        image: [fixture.usize("img_size"); 2],
        patch: fixture.usize("patch_size"),
        dim: fixture.usize("embed_dim"),
        mlp_dim: 4 * fixture.usize("embed_dim"),
        depth: fixture.usize("depth"),
        heads: fixture.usize("num_heads"),
        classes: fixture.usize("num_classes"),
        channels: 3,
        pool: Pool::ClassToken,
        epsilon: 1e-6,
    };
    let model = ModelConfig::Vit(config).init(&device::cpu().autodiff()).unwrap();
    let model = fill(model, &fixture.checkpoint(|name| Some(name.to_string()))).unwrap();
    let mut recipe = with(|common| {
        common.clip = 1.0;
        common.optimiser = Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.999], epsilon: 1e-8, decay: 0.05 };
    });
    recipe.own.loss.smoothing = 0.1;
    let mut engine = engine_of(&recipe, model);
    let [images, targets, losses, norms] =
        ["inputs", "targets", "losses", "grad_norms"].map(|name| fixture.values(&format!("io/{name}")));
    for number in 0..5 {
        let images = images.chunks(8 * 3 * 16 * 16).nth(number).unwrap().to_vec();
        let targets = targets[8 * number..8 * number + 8].iter().map(|class| Target::pure(*class as usize)).collect();
        let done = step(&mut engine, number, &[Batch { images, shape: [8, 3, 16, 16], targets }]);
        assert!(
            (done.loss - f64::from(losses[number])).abs() < 1e-4,
            "step {number}: {} {}",
            done.loss,
            losses[number]
        );
        assert!((done.gradient_norm / f64::from(norms[number]) - 1.0).abs() < 1e-3, "step {number}");
    }
    let after = tensors(&engine.model());
    for (name, tensor) in after {
        let expected = fixture.values(&format!("io/after.{name}"));
        let distance = testing::distance(&tensor.iter().collect::<Vec<f32>>(), expected);
        assert!(distance < 1e-4, "{name}: {distance}");
    }
}

#[test]
fn a_batch_in_parts_is_the_batch() {
    for recipe in [Recipe::default(), with(|common| (common.ema, common.clip) = (0.9, 0.1))] {
        let (mut whole, mut parts) = (engine(&recipe), engine(&recipe));
        let all = batch(1, 8);
        let part = |first: usize| Batch {
            images: all.images[first * 3072..(first + 4) * 3072].to_vec(),
            shape: [4, 3, 32, 32],
            targets: all.targets[first..first + 4].to_vec(),
        };
        let left = step(&mut whole, 0, std::slice::from_ref(&all));
        let right = step(&mut parts, 0, &[part(0), part(4)]);
        assert!((left.loss - right.loss).abs() < 1e-5, "{left:?} {right:?}");
        assert!((left.gradient_norm / right.gradient_norm - 1.0).abs() < 1e-4, "{left:?} {right:?}");
    }
}

#[test]
fn an_engine_that_was_saved_and_restored_continues_byte_for_byte() {
    for model in ["vit-nano", "resnet-nano", "san-nano-pairwise"] {
        let mut recipe = with(|common| (common.ema, common.clip) = (0.9, 1.0));
        recipe.common.model = model.into();
        recipe.own.stochastic_depth = 0.2;
        let mut straight = engine(&recipe);
        step(&mut straight, 0, &[batch(1, 4)]);
        let mut resumed = engine(&recipe);
        resumed.restore(&straight.tensors()).unwrap();
        for number in 1..3 {
            let part = [batch(1 + number as u64, 4)];
            assert_eq!(step(&mut straight, number, &part), step(&mut resumed, number, &part), "{model}");
        }
        assert_eq!(straight.tensors(), resumed.tensors(), "{model}");
        assert_eq!(tensors(&straight.model()), tensors(&resumed.model()), "{model}");
    }
}

#[test]
fn frozen_parts_stay_and_the_rest_learns() {
    let groups = Groups { freeze: vec!["blocks".into(), "patch_embed".into()], ..Groups::default() };
    let recipe = with(|common| common.groups = groups);
    let mut engine = engine(&recipe);
    let before = engine.tensors();
    step(&mut engine, 0, &[batch(1, 4)]);
    for (name, tensor) in engine.tensors().iter().filter(|(name, _)| name.starts_with("model.")) {
        let frozen = name.starts_with("model.blocks") || name.starts_with("model.patch_embed");
        assert_eq!(*tensor == before[name], frozen, "{name}");
    }
}

#[test]
fn the_moving_average_follows_slowly_and_is_evaluated() {
    let recipe = with(|common| common.ema = 0.9);
    let mut engine = engine(&recipe);
    let before = tensors(&engine.model())["head.weight"].iter().collect::<Vec<f32>>();
    step(&mut engine, 0, &[batch(1, 4)]);
    let after = engine.tensors()["model.head.weight"].iter().collect::<Vec<f32>>();
    let tested = tensors(&engine.model())["head.weight"].iter().collect::<Vec<f32>>();
    for ((before, after), tested) in before.iter().zip(&after).zip(&tested) {
        assert!((tested - (0.9 * before + 0.1 * after)).abs() < 1e-6);
    }
}

#[test]
fn a_loss_that_is_not_finite_is_an_error_with_the_learning_rate_and_changes_nothing() {
    let mut engine = engine(&Recipe::default());
    let before = engine.tensors();
    let mut bad = batch(1, 4);
    bad.images[0] = f32::INFINITY;
    let error = engine.step(7, 0.25, &[bad], false, &SingleProcess).unwrap_err().to_string();
    assert!(error.contains("step 7") && error.contains("2.5"), "{error}");
    assert_eq!(engine.tensors(), before);
}

#[test]
fn a_model_overfits_a_few_pictures() {
    for optimiser in [
        Optimiser::Adamw { rate: 1e-3, betas: [0.9, 0.999], epsilon: 1e-8, decay: 0.05 },
        Optimiser::Lamb { rate: 1e-2, betas: [0.9, 0.999], epsilon: 1e-6, decay: 0.05 },
        Optimiser::Sgd { rate: 1e-2, momentum: 0.9, nesterov: true, decay: 1e-4 },
    ] {
        let mut engine = engine(&with(|common| (common.model, common.optimiser) = ("resnet-nano".into(), optimiser)));
        let pictures = [batch(1, 6)];
        let first = engine.step(0, optimiser.rate(), &pictures, false, &SingleProcess).unwrap().loss;
        let mut last = first;
        for number in 1..8 {
            last = engine.step(number, optimiser.rate(), &pictures, false, &SingleProcess).unwrap().loss;
        }
        assert!(last < 0.5 * first, "{optimiser:?}: {first} {last}");
    }
}

/// One of two processes; the other has a batch of `others` pictures with the same sums.
#[derive(Debug)]
struct OfTwo {
    others: usize,
}

impl Ranks for OfTwo {
    fn rank(&self) -> usize {
        0
    }
    fn count(&self) -> usize {
        2
    }
    fn sum(&self, values: &mut [f32]) -> Result<(), Error> {
        if values.len() == 2 {
            values[1] += self.others as f32;
        }
        Ok(())
    }
    fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        Ok(bytes)
    }
}

#[test]
fn a_loss_is_divided_by_the_counts_of_all_processes_not_by_a_multiple_of_its_own() {
    let part = [batch(1, 4)];
    let alone = step(&mut engine(&Recipe::default()), 0, &part);
    let shared = engine(&Recipe::default()).step(0, 1e-3, &part, false, &OfTwo { others: 8 }).unwrap();
    assert_eq!((alone.count, shared.count), (4.0, 12.0));
    assert!((shared.loss - alone.loss / 3.0).abs() < 1e-6, "{shared:?} {alone:?}");
}
