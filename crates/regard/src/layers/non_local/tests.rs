use super::*;
use crate::batch_norm::RunningStat;
use crate::device;
use crate::testing::{
    Fixture, assert_close, assert_gradients_are_differences, distance, noise, random, random_on, values,
};

fn affinities() -> [Affinity; 4] {
    [Affinity::Gaussian, Affinity::EmbeddedGaussian, Affinity::DotProduct, Affinity::Concatenation]
}

/// A block with all parameters random, so that no zero hides a part.
fn noisy(config: &NonLocalConfig, device: &Device) -> NonLocal {
    let mut block = config.init(device).unwrap();
    let (outer, inner) = (config.channels, config.inner());
    let linear = |from, to, seed| Linear {
        weight: Param::from_tensor(random_on([to, from], seed, device)),
        bias: Some(Param::from_tensor(random_on([to], seed + 1, device))),
    };
    block.theta = block.theta.map(|_| linear(outer, inner, 1));
    block.phi = block.phi.map(|_| linear(outer, inner, 3));
    block.g = linear(outer, inner, 5);
    block.output = linear(inner, outer, 7);
    block.concatenation = block.concatenation.map(|_| Param::from_tensor(random_on([2 * inner], 9, device)));
    block.norm.gamma = Param::from_tensor(random_on([outer], 11, device));
    block.norm.beta = Param::from_tensor(random_on([outer], 12, device));
    block.norm.running_mean = RunningStat::new(random_on([outer], 13, device));
    block.norm.running_var = RunningStat::new(random_on::<1>([outer], 14, device).mul_scalar(0.5).add_scalar(1.0));
    block.norm.training = Param::from_bool(false);
    block
}

fn from_fixture(fixture: &Fixture) -> (NonLocalConfig, NonLocal) {
    let affinity = match fixture.text("f") {
        "gaussian" => Affinity::Gaussian,
        "embedded_gaussian" => Affinity::EmbeddedGaussian,
        "dot_product" => Affinity::DotProduct,
        "concatenation" => Affinity::Concatenation,
        other => panic!("unknown affinity {other}"),
    };
    assert_eq!((fixture.text("pool"), fixture.text("scale")), ("after the 1x1 convolution", "none"));
    let sub_sample = fixture.config["sub_sample"].as_bool().unwrap();
    let config = NonLocalConfig {
        affinity,
        sub_sample,
        ..NonLocalConfig::new(fixture.usize("channels"), fixture.usize("dims"))
    };
    let convolution = |name: &str| {
        let dims = config.dims + 2;
        let matrix = match dims {
            4 => fixture.tensor::<4>(&format!("model/{name}.weight")).flatten::<2>(1, 3),
            5 => fixture.tensor::<5>(&format!("model/{name}.weight")).flatten::<2>(1, 4),
            _ => panic!("rank {dims}"),
        };
        let bias = fixture.tensor::<1>(&format!("model/{name}.bias"));
        Linear { weight: Param::from_tensor(matrix), bias: Some(Param::from_tensor(bias)) }
    };
    let pooled = |name: &str| convolution(&if sub_sample { format!("{name}.0") } else { name.into() });
    let mut block = config.init(&device::cpu()).unwrap();
    block.theta = block.theta.map(|_| convolution("theta"));
    block.phi = block.phi.map(|_| pooled("phi"));
    block.g = pooled("g");
    block.output = convolution("W.0");
    block.concatenation = block
        .concatenation
        .map(|_| Param::from_tensor(fixture.tensor::<4>("model/concat_project.0.weight").flatten::<1>(0, 3)));
    block.norm.gamma = Param::from_tensor(fixture.tensor("model/W.1.weight"));
    block.norm.beta = Param::from_tensor(fixture.tensor("model/W.1.bias"));
    block.norm.running_mean = RunningStat::new(fixture.tensor("model/W.1.running_mean"));
    block.norm.running_var = RunningStat::new(fixture.tensor("model/W.1.running_var"));
    (config, block)
}

#[test]
fn it_equals_the_reference() {
    for affinity in ["gaussian", "embedded_gaussian", "dot_product", "concatenation"] {
        let fixture = Fixture::load(&format!("nonlocal_{affinity}_2d"));
        let out = from_fixture(&fixture).1.forward(fixture.tensor::<4>("io/input"), &mut Pass::silent()).out;
        assert_close(&out, &fixture.tensor("io/output"), 1e-5);
        let fixture = Fixture::load(&format!("nonlocal_{affinity}_3d"));
        let out = from_fixture(&fixture).1.forward(fixture.tensor::<5>("io/input"), &mut Pass::silent()).out;
        assert_close(&out, &fixture.tensor("io/output"), 1e-5);
    }
}

#[test]
fn a_fresh_block_is_the_identity() {
    for affinity in affinities() {
        let config = NonLocalConfig { affinity, sub_sample: true, ..NonLocalConfig::new(6, 2) };
        for device in [device::cpu(), device::cpu().autodiff()] {
            let features = random_on([2, 6, 4, 5], 1, &device);
            let out = config.init(&device).unwrap().forward(features.clone(), &mut Pass::silent()).out;
            assert_close(&out, &features, 0.0);
        }
    }
}

/// `[positions][channels]` of one sample through a linear map.
fn map(tokens: &[Vec<f32>], linear: &Linear) -> Vec<Vec<f32>> {
    let (weight, bias) = (values(&linear.weight.val()), values(&linear.bias.as_ref().unwrap().val()));
    let unit = |token: &[f32], o: usize| -> f32 {
        bias[o] + token.iter().zip(&weight[o * token.len()..]).map(|(x, w)| x * w).sum::<f32>()
    };
    tokens.iter().map(|token| (0..bias.len()).map(|o| unit(token, o)).collect()).collect()
}

/// Max pooling 1×2×2 of `[t][h][w]` tokens.
fn pool_by_two(tokens: &[Vec<f32>], [frames, height, width]: [usize; 3]) -> Vec<Vec<f32>> {
    let mut pooled = Vec::new();
    let (side, bottom) = (width.min(2), height.min(2));
    for t in 0..frames {
        for h in 0..height / bottom {
            for w in 0..width / side {
                let mut most = vec![f32::MIN; tokens[0].len()];
                for (down, right) in (0..bottom).flat_map(|down| (0..side).map(move |right| (down, right))) {
                    let token = &tokens[(t * height + h * bottom + down) * width + w * side + right];
                    most.iter_mut().zip(token).for_each(|(most, x)| *most = most.max(*x));
                }
                pooled.push(most);
            }
        }
    }
    pooled
}

/// The embedded-Gaussian block over one clip, by its definition.
fn naive(block: &NonLocal, clip: &[f32], places: [usize; 3]) -> Vec<f32> {
    let (channels, positions) = (block.config.channels, places.iter().product::<usize>());
    let tokens: Vec<Vec<f32>> =
        (0..positions).map(|p| (0..channels).map(|c| clip[c * positions + p]).collect()).collect();
    let keys = |linear: &Linear| match block.config.pool_order {
        PoolOrder::BeforeConv => map(&pool_by_two(&tokens, places), linear),
        PoolOrder::AfterConv => pool_by_two(&map(&tokens, linear), places),
    };
    let theta = map(&tokens, block.theta.as_ref().unwrap());
    let (phi, g) = (keys(block.phi.as_ref().unwrap()), keys(&block.g));
    let scale = if block.config.scale { (theta[0].len() as f32).powf(-0.5) } else { 1.0 };
    let norm = &block.norm;
    let (gamma, beta) = (values(&norm.gamma.val()), values(&norm.beta.val()));
    let (mean, variance) = (values(&norm.running_mean.value()), values(&norm.running_var.value()));
    let mut out = clip.to_vec();
    for (p, query) in theta.iter().enumerate() {
        let row: Vec<f32> =
            phi.iter().map(|k| (scale * query.iter().zip(k).map(|(q, k)| q * k).sum::<f32>()).exp()).collect();
        let total: f32 = row.iter().sum();
        let y = (0..g[0].len()).map(|c| row.iter().zip(&g).map(|(w, g)| w / total * g[c]).sum()).collect();
        for (c, z) in map(&[y], &block.output)[0].iter().enumerate() {
            out[c * positions + p] += gamma[c] * (z - mean[c]) / (variance[c] + 1e-5).sqrt() + beta[c];
        }
    }
    out
}

#[test]
fn it_equals_its_definition() {
    for pool_order in [PoolOrder::AfterConv, PoolOrder::BeforeConv] {
        for (places, scale) in [([2, 3, 4], false), ([1, 5, 2], true), ([3, 1, 4], true), ([2, 2, 1], false)] {
            let config = NonLocalConfig { sub_sample: true, pool_order, scale, ..NonLocalConfig::new(4, 3) };
            let block = noisy(&config, &device::cpu());
            let [frames, height, width] = places;
            let clip = random([1, 4, frames, height, width], 30);
            let out = block.forward(clip.clone(), &mut Pass::silent()).out;
            let expected = naive(&block, &values(&clip), places);
            assert!(distance(&values(&out), &expected) < 1e-5, "{pool_order:?} {places:?}");
        }
    }
}

#[test]
fn a_line_an_image_and_a_clip_of_the_same_positions_agree() {
    let line = random([2, 4, 6], 1);
    let out = |dims| noisy(&NonLocalConfig::new(4, dims), &device::cpu());
    let flat = out(1).forward(line.clone(), &mut Pass::silent()).out;
    let image = out(2).forward(line.clone().reshape([2, 4, 2, 3]), &mut Pass::silent()).out;
    let clip = out(3).forward(line.reshape([2, 4, 3, 1, 2]), &mut Pass::silent()).out;
    assert_close(&image.reshape([2, 4, 6]), &flat, 1e-6);
    assert_close(&clip.reshape([2, 4, 6]), &flat, 1e-6);
}

#[test]
fn sub_sampling_halves_the_keys_along_space_alone() {
    let keys = |dims, features: Tensor<5>| {
        let block = noisy(&NonLocalConfig { sub_sample: true, ..NonLocalConfig::new(4, dims) }, &device::cpu());
        let [batch, channels, frames, height, width] = features.dims();
        let mut pass = Pass::recording();
        let weights = match dims {
            1 => block.forward(features.reshape([batch, channels, width]), &mut pass).weights,
            2 => block.forward(features.reshape([batch, channels, height, width]), &mut pass).weights,
            _ => block.forward(features.reshape([batch, channels, frames, height, width]), &mut pass).weights,
        };
        weights.unwrap().dims()
    };
    assert_eq!(keys(1, random([2, 4, 1, 1, 7], 1)), [2, 7, 3]);
    assert_eq!(keys(2, random([2, 4, 1, 5, 6], 1)), [2, 30, 6]);
    assert_eq!(keys(3, random([2, 4, 3, 4, 6], 1)), [2, 72, 18]);
}

#[test]
fn rows_of_softmax_weights_sum_to_one_and_are_recorded_once() {
    let block = noisy(&NonLocalConfig { sub_sample: true, ..NonLocalConfig::new(4, 2) }, &device::cpu());
    let mut pass = Pass::recording();
    let recorded = block.forward(random([2, 4, 4, 4], 2), &mut pass);
    let trace = pass.into_trace();
    assert_eq!(trace.names().collect::<Vec<_>>(), ["weights"]);
    let sums = trace.get::<3>("weights").unwrap().sum_dim(2);
    assert_close(&sums.clone(), &sums.ones_like(), 1e-5);
    let silent = block.forward(random([2, 4, 4, 4], 2), &mut Pass::silent());
    assert_close(&silent.out, &recorded.out, 1e-5);
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    for affinity in affinities() {
        let config = NonLocalConfig { affinity, sub_sample: true, ..NonLocalConfig::new(4, 2) };
        let block = noisy(&config, &device::cpu());
        let images = random([2, 4, 3, 4], 3);
        let both = block.forward(images.clone(), &mut Pass::silent()).out;
        for b in 0..2 {
            let one = block.forward(images.clone().slice_dim(0, b..=b), &mut Pass::silent()).out;
            assert_close(&both.clone().slice_dim(0, b..=b), &one, 1e-5);
        }
    }
}

/// The block over an image, from its flat parameters.
fn block_of(config: &NonLocalConfig, t: &[Tensor<1>]) -> NonLocal {
    let mut block = noisy(config, &t[0].device());
    let inner = config.inner();
    // a tensor made by reshape is inside the graph; Param::from_tensor would make a leaf of it
    let parameter = |tensor: &Tensor<1>| Param::initialized(burn::module::ParamId::new(), tensor.clone());
    let linear = |at: usize, from: usize, to: usize| Linear {
        weight: Param::initialized(burn::module::ParamId::new(), t[at].clone().reshape([to, from])),
        bias: Some(parameter(&t[at + 1])),
    };
    block.g = linear(1, config.channels, inner);
    block.output = linear(3, inner, config.channels);
    block.norm.gamma = parameter(&t[5]);
    block.norm.beta = parameter(&t[6]);
    if config.affinity != Affinity::Gaussian {
        block.theta = Some(linear(7, config.channels, inner));
        block.phi = Some(linear(9, config.channels, inner));
    }
    if config.affinity == Affinity::Concatenation {
        block.concatenation = Some(parameter(&t[11]));
    }
    block
}

#[test]
fn gradients_of_every_parameter_are_finite_differences() {
    for affinity in affinities() {
        let config = NonLocalConfig { affinity, ..NonLocalConfig::new(4, 2) };
        let lengths = [
            ("features", 4 * 6),
            ("g.weight", 8),
            ("g.bias", 2),
            ("output.weight", 8),
            ("output.bias", 4),
            ("norm.gamma", 4),
            ("norm.beta", 4),
            ("theta.weight", 8),
            ("theta.bias", 2),
            ("phi.weight", 8),
            ("phi.bias", 2),
            ("concatenation", 4),
        ];
        let count = match affinity {
            Affinity::Gaussian => 7,
            Affinity::Concatenation => 12,
            _ => 11,
        };
        let mut named: Vec<(&str, Vec<f32>)> =
            lengths[..count].iter().zip(50..).map(|((name, len), seed)| (*name, noise(*len, seed))).collect();
        if affinity == Affinity::Concatenation {
            // large biases of one sign keep the ReLU away from its corner: near it finite differences fail
            named[8].1 = vec![4.0, 4.0];
            named[11].1 = vec![0.9, 0.8, 0.7, 0.6];
        }
        assert_gradients_are_differences(&named, |t| {
            let features = t[0].clone().reshape([1, 4, 2, 3]);
            block_of(&config, t).forward(features, &mut Pass::silent()).out
        });
    }
}

#[test]
fn gradients_pass_through_sub_sampling() {
    for pool_order in [PoolOrder::AfterConv, PoolOrder::BeforeConv] {
        let config = NonLocalConfig { sub_sample: true, pool_order, ..NonLocalConfig::new(2, 2) };
        // steps of 0.3 between any two positions: no difference reaches over the corner of a maximum
        let features: Vec<f32> = (0..16).map(|i| ((i * 7) % 16) as f32 * 0.3 - 2.4).collect();
        assert_gradients_are_differences(&[("features", features)], |t| {
            let mut block = noisy(&config, &t[0].device());
            let weight = |a: f32, b: f32| {
                let weight = Tensor::<2>::from_data([[a, b]], &t[0].device());
                Param::from_tensor(weight)
            };
            // one channel decides phi and g, so that their maxima keep those steps
            block.phi.as_mut().unwrap().weight = weight(0.4, 0.0);
            block.g.weight = weight(0.0, -0.5);
            block.forward(t[0].clone().reshape([1, 2, 2, 4]), &mut Pass::silent()).out
        });
    }
}

#[test]
fn a_gradient_reaches_every_parameter_in_training() {
    let device = device::cpu().autodiff();
    device.seed(1); // with other seeds a ReLU may be dead for every picture
    let mut block = noisy(&NonLocalConfig::new(4, 2), &device);
    block.norm.training = Param::from_bool(true);
    let out = block.forward(random_on([2, 4, 3, 3], 1, &device), &mut Pass::silent()).out;
    let grads = (out.clone() * out).sum().backward();
    assert!(block.theta.unwrap().weight.val().grad(&grads).is_some());
    assert!(block.phi.unwrap().weight.val().grad(&grads).is_some());
    assert!(block.g.weight.val().grad(&grads).is_some());
    assert!(block.output.weight.val().grad(&grads).is_some());
    assert!(block.norm.gamma.val().grad(&grads).is_some());
}

#[test]
fn numbers_that_are_not_finite_neither_hang_nor_crash() {
    for affinity in affinities() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let config = NonLocalConfig { affinity, sub_sample: true, ..NonLocalConfig::new(4, 2) };
            let features = random([1, 4, 3, 4], 1).mul_scalar(bad);
            let out = noisy(&config, &device::cpu()).forward(features, &mut Pass::silent()).out;
            assert_eq!(out.dims(), [1, 4, 3, 4]);
        }
    }
}

#[test]
fn a_config_that_cannot_work_names_its_field() {
    let works = NonLocalConfig::new(4, 2);
    let broken = [
        (NonLocalConfig { channels: 0, ..works.clone() }, "`channels`: must be at least 1, got 0"),
        (NonLocalConfig { channels: 1, ..works.clone() }, "`inner_channels`: must be at least 1, got 0 of channels 1"),
        (NonLocalConfig { inner_channels: Some(0), ..works.clone() }, "`inner_channels`"),
        (NonLocalConfig { dims: 4, ..works.clone() }, "`dims`: must be 1, 2 or 3, got 4"),
        (NonLocalConfig { affinity: Affinity::Concatenation, scale: true, ..works.clone() }, "`scale`"),
        (NonLocalConfig { pool_order: PoolOrder::BeforeConv, ..works.clone() }, "`pool_order`"),
    ];
    for (config, expected) in broken {
        let error = config.init(&device::cpu()).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }
    assert!(works.init(&device::cpu()).is_ok());
}

#[test]
fn a_config_reads_the_words_of_the_paper_and_no_others() {
    let config: NonLocalConfig = serde_json::from_str(
        r#"{"channels": 8, "dims": 3, "affinity": "dot-product", "pool_order": "before-conv", "sub_sample": true}"#,
    )
    .unwrap();
    assert_eq!((config.affinity, config.pool_order), (Affinity::DotProduct, PoolOrder::BeforeConv));
    let error = serde_json::from_str::<NonLocalConfig>(r#"{"channels": 8, "dims": 3, "heads": 2}"#).unwrap_err();
    assert!(error.to_string().contains("`heads`"), "{error}");
}

#[test]
#[should_panic(expected = "non-local block: features have channels 5, config has channels 4")]
fn features_of_other_channels_are_refused_by_name() {
    noisy(&NonLocalConfig::new(4, 2), &device::cpu()).forward(random([1, 5, 2, 2], 1), &mut Pass::silent());
}

#[test]
#[should_panic(expected = "non-local block: features have rank 5, dims 2 needs 4")]
fn features_of_another_rank_are_refused_by_name() {
    noisy(&NonLocalConfig::new(4, 2), &device::cpu()).forward(random([1, 4, 2, 2, 2], 1), &mut Pass::silent());
}

fn block_cost(config: &NonLocalConfig, places: &[usize]) -> Ledger {
    let mut ledger = Ledger::default();
    let shape = [&[config.channels], places].concat();
    assert_eq!(config.init(&device::cpu()).unwrap().cost(shape.clone(), &mut ledger), shape);
    ledger
}

#[test]
fn five_blocks_in_a_video_network_cost_what_the_released_code_costs() {
    // 8 frames of 224 x 224 are 4 in res3 and res4
    let five = |sub_sample, pool_order| {
        let config = |channels| NonLocalConfig { sub_sample, pool_order, ..NonLocalConfig::new(channels, 3) };
        let (res3, res4) = (block_cost(&config(512), &[4, 28, 28]), block_cost(&config(1024), &[4, 14, 14]));
        let sum = |count: fn(&Ledger) -> u64| (2 * count(&res3) + 3 * count(&res4)) as f64;
        let macs = sum(|ledger| ledger.total(crate::cost::Convention::MultiplyAdds)) / 1e9;
        (sum(Ledger::parameters) / 1e6, (macs * 100.0).round() / 100.0)
    };
    let (parameters, macs) = five(true, PoolOrder::BeforeConv);
    assert!((parameters - (31.69 - 24.33)).abs() < 0.01, "{parameters}");
    assert_eq!(macs, 8.13);
    assert_eq!(five(false, PoolOrder::AfterConv).1, 20.18);
}

#[test]
fn costs_have_the_keys_of_the_pass() {
    for affinity in affinities() {
        for places in [[5, 6], [1, 4], [3, 3]] {
            let config = NonLocalConfig { affinity, sub_sample: true, ..NonLocalConfig::new(4, 2) };
            let features = random([1, 4, places[0], places[1]], 1);
            let weights = noisy(&config, &device::cpu()).forward(features, &mut Pass::recording()).weights.unwrap();
            let ledger = block_cost(&config, &places);
            let sum = ledger.lines().iter().find(|line| line.name == "sum").unwrap();
            let pairs = weights.dims().iter().product::<usize>() as u64;
            assert_eq!(sum.work, Work::Product { macs: pairs * 2 }, "{affinity:?} {places:?}");
            let parameters = config.init(&device::cpu()).unwrap().num_params() as u64 - 2 * 4;
            assert_eq!(ledger.parameters(), parameters, "{affinity:?}: all but the running statistics");
        }
    }
}
