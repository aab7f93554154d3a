use super::*;
use crate::device::cpu;
use crate::testing::{assert_close, random, shapes, stirred};
use burn::tensor::TensorData;

const CONFIG: BertLayerConfig = BertLayerConfig { dim: 8, heads: 2, inner: 12, dropout: 0.1, epsilon: 1e-12 };

fn layer() -> BertLayer {
    stirred(CONFIG.init(&cpu()))
}

#[test]
fn recording_changes_nothing_and_weights_have_the_name_of_their_projections() {
    let (layer, x) = (layer(), random([2, 5, 8], 1));
    let mut pass = Pass::recording();
    let recorded = layer.forward(x.clone(), None, &mut pass);
    assert_close(&layer.forward(x, None, &mut Pass::silent()), &recorded, 1e-5);
    assert_eq!(pass.into_trace().get::<4>("attention.self.weights").unwrap().dims(), [2, 2, 5, 5]);
}

#[test]
fn padding_changes_nothing() {
    let (layer, x) = (layer(), random([1, 5, 8], 1));
    let padding = Tensor::from_data(TensorData::new(vec![false, false, false, true, true], [1, 5]), &cpu());
    let alone = layer.forward(x.clone().narrow(1, 0, 3), None, &mut Pass::silent());
    let padded = layer.forward(x, Some(&padding), &mut Pass::silent());
    assert_close(&padded.narrow(1, 0, 3), &alone, 1e-5);
}

#[test]
fn names_are_those_of_transformers_and_costs_have_the_same() {
    let encoder = BertEncoder::new(&CONFIG, 2, &cpu());
    let shapes = shapes(&encoder);
    assert_eq!(shapes.len(), 32);
    for name in
        ["layer.1.attention.self.query.weight", "layer.0.attention.output.LayerNorm.bias", "layer.0.output.dense.bias"]
    {
        assert!(shapes.contains_key(name), "{name}: {shapes:?}");
    }
    let mut ledger = Ledger::default();
    assert_eq!(encoder.cost(vec![5, 8], &mut ledger), [5, 8]);
    let own: usize = shapes.values().map(|shape| shape.iter().product::<usize>()).sum();
    assert_eq!(ledger.parameters(), own as u64);
    for name in shapes.keys() {
        let (part, _) = name.rsplit_once('.').unwrap();
        assert!(ledger.lines().iter().any(|line| line.name == part), "{name}");
    }
}

#[test]
fn sizes_that_cannot_work_are_named() {
    let refusal = |config: BertLayerConfig| config.validate().unwrap_err().to_string();
    assert_eq!(refusal(BertLayerConfig { heads: 3, ..CONFIG }), "`heads`: must divide dim 8, got 3");
    assert_eq!(refusal(BertLayerConfig { dropout: 1.0, ..CONFIG }), "`dropout`: must be at least 0 and below 1, got 1");
    assert_eq!(refusal(BertLayerConfig { epsilon: 0.0, ..CONFIG }), "`epsilon`: must be between 0 and 1, got 0");
    assert!(CONFIG.validate().is_ok());
}
