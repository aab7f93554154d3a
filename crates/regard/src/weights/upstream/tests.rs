use super::*;
use crate::attention::{PairPosition, PairRelation};
use crate::device;
use crate::layers::{SanRelation, SanUnitConfig, Sharing};
use crate::testing::Fixture;
use crate::weights::fill;

fn checkpoint(case: &str) -> Tensors {
    Fixture::load(case).checkpoint(|name| Some(name.to_string()))
}

fn recognised(tensors: &Tensors) -> Upstream {
    recognise(tensors.keys().map(String::as_str))
}

/// The names of a vision transformer.
fn transformer(depth: usize, others: &[&str]) -> Vec<String> {
    let parts = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"];
    let blocks = (0..depth).flat_map(|i| parts.map(|part| format!("blocks.{i}.{part}")));
    let both = blocks.chain(["patch_embed.proj", "norm", "head"].map(String::from));
    let both = both.flat_map(|part| [format!("{part}.weight"), format!("{part}.bias")]);
    let mut names: Vec<String> = both.chain(others.iter().map(ToString::to_string)).collect();
    names.sort();
    names
}

fn names(tensors: &Tensors) -> Vec<String> {
    tensors.keys().cloned().collect()
}

#[test]
fn every_fixture_is_recognised_by_its_names() {
    for (case, upstream) in [
        ("timm_vit", Upstream::Timm),
        ("timm_vit_gap", Upstream::Timm),
        ("timm_deit_distilled", Upstream::Timm),
        ("timm_deit3", Upstream::Timm),
        ("regnety", Upstream::Timm),
        ("hf_vit", Upstream::HuggingFace),
        ("hf_deit", Upstream::HuggingFace),
        ("fb_timesformer_space", Upstream::Facebook),
        ("fb_timesformer_joint", Upstream::Facebook),
        ("fb_timesformer_divided", Upstream::Facebook),
        ("hf_timesformer_space_only", Upstream::HuggingFace),
        ("hf_timesformer_divided_space_time", Upstream::HuggingFace),
        ("torchvision_vit", Upstream::Torchvision),
        ("resnet_basic", Upstream::Torchvision),
        ("resnet_bottleneck", Upstream::Torchvision),
        ("san_net_pairwise", Upstream::San),
        ("san_net_patchwise", Upstream::San),
        ("additive_attention", Upstream::Regard),
    ] {
        assert_eq!(recognised(&checkpoint(case)), upstream, "{case}");
    }
}

#[test]
fn our_names_are_those_of_timm_and_of_torchvision_s_residual_networks() {
    for case in ["timm_vit", "timm_vit_gap", "timm_deit_distilled", "timm_deit3", "regnety", "resnet_basic"] {
        let tensors = checkpoint(case);
        assert_eq!(translate(tensors.clone(), recognised(&tensors)).unwrap(), tensors, "{case}");
    }
}

#[test]
fn vision_transformers_of_all_upstreams_get_the_same_names() {
    let tokens = ["cls_token", "pos_embed"];
    let distilled = ["cls_token", "pos_embed", "dist_token", "head_dist.weight", "head_dist.bias"];
    for (case, others) in [("hf_vit", &tokens[..]), ("torchvision_vit", &tokens), ("hf_deit", &distilled)] {
        let tensors = checkpoint(case);
        let upstream = recognised(&tensors);
        assert_eq!(names(&translate(tensors, upstream).unwrap()), transformer(2, others), "{case}");
    }
}

#[test]
fn query_key_and_value_are_stacked_in_that_order() {
    let theirs = checkpoint("hf_vit");
    let part = |name: &str| floats(&theirs[&format!("vit.encoder.layer.1.attention.attention.{name}.weight")]).to_vec();
    let expected = [part("query"), part("key"), part("value")].concat();
    let ours = translate(theirs.clone(), Upstream::HuggingFace).unwrap();
    assert_eq!(ours["blocks.1.attn.qkv.weight"], TensorData::new(expected, [144, 48]));
}

#[test]
fn the_new_names_of_hugging_face_mean_the_same() {
    let old = checkpoint("hf_deit");
    let new = |name: &String| {
        let name = name.replace("encoder.layer.", "layers.").replace("attention.attention.query", "attention.q_proj");
        let name = name.replace("attention.attention.key", "attention.k_proj");
        let name = name.replace("attention.attention.value", "attention.v_proj");
        let name = name.replace("attention.output.dense", "attention.o_proj");
        name.replace("intermediate.dense", "mlp.fc1").replace("output.dense", "mlp.fc2")
    };
    let renamed: Tensors = old.iter().map(|(name, tensor)| (new(name), tensor.clone())).collect();
    assert_eq!(recognised(&renamed), Upstream::HuggingFaceV5);
    let ours = translate(renamed, Upstream::HuggingFaceV5).unwrap();
    assert_eq!(ours, translate(old, Upstream::HuggingFace).unwrap());
}

#[test]
fn a_network_of_san_fills_our_units() {
    let fixture = Fixture::load("san_net_pairwise");
    let ours = translate(checkpoint("san_net_pairwise"), Upstream::San).unwrap();
    for name in
        ["bn_in.running_var", "stages.2.bn.weight", "stages.0.conv.weight", "stages.2.layer.1.bn2.bias", "fc.bias"]
    {
        assert!(ours.contains_key(name), "{name}: {:?}", names(&ours));
    }
    let unit: Tensors = ours
        .iter()
        .filter_map(|(name, tensor)| Some((name.strip_prefix("stages.1.layer.0.sam.")?.to_string(), tensor.clone())))
        .collect();
    let width = fixture.config["widths"][1].as_u64().unwrap() as usize;
    let relation = SanRelation::Pairwise { relation: PairRelation::Subtraction, position: PairPosition::Relative };
    let config = SanUnitConfig {
        channels_in: width,
        channels_out: width / 4,
        channels_relation: width / 16,
        share: 8,
        window: 5,
        relation,
        sharing: Sharing::AllDifferent,
    };
    fill(config.init(&device::cpu()).unwrap(), &unit).unwrap();
    let patchwise = translate(checkpoint("san_net_patchwise"), Upstream::San).unwrap();
    assert!(names(&patchwise).iter().all(|name| !name.contains("conv_w") && !name.contains("sam.conv")));
}

fn one(name: &str, from: Upstream) -> String {
    let tensors = [(name.to_string(), TensorData::new(vec![0f32], [1]))].into();
    names(&translate(tensors, from).unwrap()).remove(0)
}

#[test]
fn layer_scale_of_deit_iii_and_regnets_of_pycls_and_torchvision_are_known() {
    assert_eq!(one("blocks.7.gamma_2", Upstream::Facebook), "blocks.7.ls2.gamma");
    for (theirs, ours) in [
        ("s2.b1.proj.weight", "s2.b1.downsample.conv.weight"),
        ("s2.b1.bn.running_mean", "s2.b1.downsample.bn.running_mean"),
        ("s4.b11.f.b_bn.bias", "s4.b11.conv2.bn.bias"),
        ("s1.b2.f.se.f_ex.2.bias", "s1.b2.se.fc2.bias"),
        ("head.fc.weight", "head.fc.weight"),
        ("stem.bn.weight", "stem.bn.weight"),
    ] {
        assert_eq!(one(theirs, Upstream::Facebook), ours);
    }
    for (theirs, ours) in [
        ("stem.0.weight", "stem.0.weight"),
        ("trunk_output.block2.block2-0.proj.1.weight", "s2.b1.downsample.bn.weight"),
        ("trunk_output.block4.block4-10.f.se.fc1.bias", "s4.b11.se.fc1.bias"),
        ("trunk_output.block1.block1-1.f.c.0.weight", "s1.b2.conv3.conv.weight"),
        ("fc.weight", "fc.weight"),
    ] {
        assert_eq!(one(theirs, Upstream::Torchvision), ours);
    }
    let value = || TensorData::new(vec![0f32], [1]);
    // a stem and a head by numbers are those of a RegNet only beside its blocks
    let theirs = ["fc.weight", "stem.0.weight", "stem.1.bias", "trunk_output.block1.block1-0.f.a.0.weight"];
    let regnet = theirs.map(|name| (name.to_string(), value()));
    let ours = names(&translate(regnet.into(), Upstream::Torchvision).unwrap());
    assert_eq!(ours, ["head.fc.weight", "s1.b1.conv1.conv.weight", "stem.bn.bias", "stem.conv.weight"]);
}

#[test]
fn what_does_not_add_up_is_listed() {
    let mut tensors = checkpoint("hf_vit");
    tensors.remove("vit.encoder.layer.0.attention.attention.key.weight");
    let wide = TensorData::new(vec![0f32; 49], [49]);
    tensors.insert("vit.encoder.layer.1.attention.attention.value.bias".into(), wide);
    tensors.insert("cls_classifier.bias".into(), TensorData::new(vec![0f32; 7], [7]));
    let error = translate(tensors, Upstream::HuggingFace).unwrap_err().to_string();
    for part in [
        "`blocks.0.attn.qkv.weight`: one of query, key and value is missing",
        "`blocks.1.attn.qkv.bias`: query, key and value are [48], [48], [49]",
        "are both `head.bias`",
    ] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn hugging_face_s_names_and_back_change_nothing() {
    for case in ["hf_vit", "hf_deit"] {
        let theirs = checkpoint(case);
        let ours = translate(theirs.clone(), Upstream::HuggingFace).unwrap();
        assert_eq!(hugging_face(&ours).unwrap(), theirs, "{case}");
    }
}

#[test]
fn what_hugging_face_has_no_name_for_is_listed() {
    let error = hugging_face(&checkpoint("timm_deit3")).unwrap_err().to_string();
    assert!(error.contains("`blocks.0.ls1.gamma` [48] has no Hugging Face name"), "{error}");
}

/// Values of `[.., rows, columns]` with its last two axes exchanged.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
}

/// A checkpoint of ours as google-research/vision_transformer would have saved it, with three heads.
fn jax_of(ours: &Tensors) -> Tensors {
    const HEADS: usize = 3;
    let mut theirs = Tensors::new();
    for (name, tensor) in ours {
        let (values, shape) = (floats(tensor), tensor.shape().to_vec());
        let name = name.replace("blocks.", "Transformer/encoderblock_").replace("norm1.weight", "LayerNorm_0.scale");
        let name = name.replace("norm2.weight", "LayerNorm_2.scale").replace("norm1", "LayerNorm_0");
        let name = name.replace("norm2", "LayerNorm_2").replace("mlp.fc1", "MlpBlock_3.Dense_0");
        let name = name.replace("mlp.fc2", "MlpBlock_3.Dense_1").replace("patch_embed.proj", "embedding");
        let name = name.replace("attn.", "MultiHeadDotProductAttention_1.").replace("1.proj", "1.out");
        let name = match name.as_str() {
            "norm.weight" => "Transformer/encoder_norm/scale".into(),
            "norm.bias" => "Transformer/encoder_norm/bias".into(),
            "cls_token" => "cls".into(),
            "pos_embed" => "Transformer/posembed_input/pos_embedding".into(),
            _ => name.replace("weight", "kernel").replace('.', "/"),
        };
        let mut put = |name: String, values: Vec<f32>, shape: Vec<usize>| {
            theirs.insert(name, TensorData::new(values, shape));
        };
        if name.contains("/qkv/") {
            let rows = values.len() / 3;
            for (part, values) in ["query", "key", "value"].iter().zip(values.chunks(rows)) {
                let name = name.replace("qkv", part);
                match shape[..] {
                    [outputs, inputs] => {
                        let shape = vec![inputs, HEADS, outputs / 3 / HEADS];
                        put(name, transposed(values, outputs / 3, inputs), shape);
                    }
                    _ => put(name, values.to_vec(), vec![HEADS, rows / HEADS]),
                }
            }
            continue;
        }
        match shape[..] {
            [width, channels, rows, columns] => {
                let mut moved = Vec::new();
                for place in 0..rows * columns {
                    for channel in 0..channels {
                        for out in 0..width {
                            moved.push(values[(out * channels + channel) * rows * columns + place]);
                        }
                    }
                }
                put(name, moved, vec![rows, columns, channels, width]);
            }
            [outputs, inputs] if name.contains("/out/") => {
                put(name, transposed(values, outputs, inputs), vec![HEADS, inputs / HEADS, outputs]);
            }
            [outputs, inputs] => put(name, transposed(values, outputs, inputs), vec![inputs, outputs]),
            _ => put(name, values.to_vec(), shape),
        }
    }
    theirs
}

#[test]
fn a_vision_transformer_of_jax_gets_our_names_and_layouts() {
    let ours = checkpoint("timm_vit");
    let theirs = jax_of(&ours);
    let query = "Transformer/encoderblock_2/MultiHeadDotProductAttention_1/query/kernel";
    assert_eq!(theirs[query].shape().to_vec(), [48, 3, 16]);
    assert_eq!(recognised(&theirs), Upstream::Jax);
    assert_eq!(translate(theirs.clone(), Upstream::Jax).unwrap(), ours);
    let big_vision = |name: &String| {
        let name = name.replace("Attention_1", "Attention_0").replace("LayerNorm_2", "LayerNorm_1");
        format!("params/{}", name.replace("MlpBlock_3", "MlpBlock_0").replace("Transformer/posembed_input/", ""))
    };
    let theirs: Tensors = theirs.iter().map(|(name, tensor)| (big_vision(name), tensor.clone())).collect();
    assert_eq!(recognised(&theirs), Upstream::Jax);
    assert_eq!(translate(theirs, Upstream::Jax).unwrap(), ours);
}

#[test]
fn an_array_that_is_no_kernel_is_named() {
    let wrong = [("embedding/kernel".to_string(), TensorData::new(vec![0f32; 4], [2, 2]))].into();
    let error = translate(wrong, Upstream::Jax).unwrap_err().to_string();
    assert!(error.contains("`embedding/kernel` is [2, 2]"), "{error}");
}

#[test]
fn a_detr_goes_to_its_upstreams_and_back_unchanged() {
    for (case, upstream) in [("fb_detr", Upstream::Facebook), ("hf_detr", Upstream::HuggingFace)] {
        let theirs = Fixture::load(case).checkpoint(|name| Some(name.to_string()));
        assert_eq!(recognise(theirs.keys().map(String::as_str)), upstream, "{case}");
        let ours = translate(theirs.clone(), upstream).unwrap();
        assert!(ours.contains_key("transformer.decoder.layers.0.multihead_attn.in_proj.weight"), "{case}");
        assert!(ours.contains_key("backbone.0.body.layer1.0.bn1.running_mean"), "{case}");
        for to in [Upstream::Facebook, Upstream::HuggingFace] {
            let written = to_detector_names(&ours, to).unwrap();
            assert_eq!(recognise(written.keys().map(String::as_str)), to, "{case}");
            assert_eq!(translate(written, to).unwrap(), ours, "{case} to {to:?}");
        }
        // the trunk of Hugging Face's own checkpoints has the names of timm, that of the fixture those of transformers
        let is_trunk = |name: &&String| name.contains("backbone.conv_encoder");
        let written = to_detector_names(&ours, upstream).unwrap();
        let names = |tensors: &Tensors| tensors.keys().filter(|name| !is_trunk(name)).cloned().collect::<Vec<_>>();
        assert_eq!(names(&written), names(&theirs), "{case}");
    }
    let points = [("reference.points".to_string(), TensorData::new(vec![0f32; 4], [2, 2]))].into();
    for to in [Upstream::Facebook, Upstream::HuggingFace] {
        let Error::Weights { problems, .. } = to_detector_names(&points, to).unwrap_err() else { panic!("{to:?}") };
        assert!(problems[0].contains("`reference.points` [2, 2] has no "), "{problems:?}");
    }
    assert!(to_detector_names(&points, Upstream::Jax).is_err());
}
