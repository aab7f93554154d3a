//! Local self-attention in place of a spatial convolution.
//! Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", arXiv:1906.05909.
//!
//! Query, key and value are full 1x1 projections: the paper's text has one small projection for each
//! head, but only full ones give its parameter counts. The paper does not state the initialisation of embeddings.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Pointwise;
use crate::attention::{Attended, Local, Relative, local};
use crate::cost::{Costed, Ledger, Work, size};
use crate::{Error, Pass};

/// One layer of local attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalAttentionConfig {
    /// Input channels.
    pub channels_in: usize,
    /// Output channels, also of query and key.
    pub channels_out: usize,
    pub heads: usize,
    /// Side of the window.
    pub window: usize,
    /// Whether there are relative position embeddings.
    pub relative: bool,
}

impl LocalAttentionConfig {
    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        positive("channels_in", self.channels_in)?;
        positive("channels_out", self.channels_out)?;
        positive("window", self.window)?;
        check_heads(self.heads, self.channels_out, self.relative)
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<LocalAttention, Error> {
        self.validate()?;
        let projection = || Pointwise::unbiased(self.channels_in, self.channels_out, device);
        let head_width = self.channels_out / self.heads;
        Ok(LocalAttention {
            query: projection(),
            key: projection(),
            value: projection(),
            relative: self.relative.then(|| RelativeEmbedding::new(self.heads, head_width, self.window, device)),
            heads: self.heads,
            window: self.window,
        })
    }
}

/// Projections, window attention and embeddings of its offsets.
#[derive(Module, Debug)]
pub struct LocalAttention {
    pub query: Pointwise,
    pub key: Pointwise,
    pub value: Pointwise,
    pub relative: Option<RelativeEmbedding>,
    heads: usize,
    window: usize,
}

impl LocalAttention {
    /// `[B, in, H, W] -> [B, out, H, W]`, weights `[B, A, k*k, H*W]`.
    ///
    /// # Panics
    /// When the map does not have `channels_in` channels.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        let options = Local {
            heads: self.heads,
            window: self.window,
            relative: self.relative.as_ref().map(RelativeEmbedding::value),
            scale: None,
        };
        let (query, key) = (self.query.forward(map.clone()), self.key.forward(map.clone()));
        local(query, key, self.value.forward(map), &options, pass)
    }
}

impl Costed for LocalAttention {
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        ledger.part("query", &self.query, shape.clone());
        ledger.part("key", &self.key, shape.clone());
        let out = ledger.part("value", &self.value, shape);
        attention_cost(&out, self.heads, self.window * self.window, self.relative.as_ref(), ledger);
        out
    }
}

/// The cost of attention from every pixel of a map to a number of neighbours: scores, softmax, weighted sum.
pub(super) fn attention_cost(
    map: &[usize],
    heads: usize,
    neighbours: usize,
    relative: Option<&RelativeEmbedding>,
    ledger: &mut Ledger,
) {
    let elements = map.iter().product::<usize>();
    let (scores, macs) = (heads * neighbours * map[1] * map[2], (elements * neighbours) as u64);
    ledger.within("scores", |ledger| ledger.line(0, Work::Product { macs }, scores));
    if let Some(embedding) = relative {
        let parameters = size(&embedding.rows) + size(&embedding.columns);
        let work = Work::RelativePosition { elements: macs };
        ledger.within("relative", |ledger| ledger.line(parameters, work, scores));
    }
    ledger.within("softmax", |ledger| ledger.line(0, Work::Softmax { elements: scores as u64 }, scores));
    ledger.within("sum", |ledger| ledger.line(0, Work::Product { macs }, elements));
}

/// Learned embeddings of row and column offsets.
#[derive(Module, Debug)]
pub struct RelativeEmbedding {
    /// `[A, K/2, offsets]`
    pub rows: Param<Tensor<3>>,
    /// `[A, K/2, offsets]`
    pub columns: Param<Tensor<3>>,
}

impl RelativeEmbedding {
    /// Normal with deviation `1/sqrt(K)`, so that `q . r` is initially no larger than the elements of `q`.
    pub(super) fn new(heads: usize, head_width: usize, offsets: usize, device: &Device) -> Self {
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 / (head_width as f64).sqrt() };
        let embedding = || normal.init([heads, head_width / 2, offsets], device);
        Self { rows: embedding(), columns: embedding() }
    }

    pub(super) fn value(&self) -> Relative {
        Relative { rows: self.rows.val(), columns: self.columns.val() }
    }
}

/// An error that names the field, unless the value is within 1 and the limit.
pub(crate) fn positive(field: &'static str, value: usize) -> Result<(), Error> {
    const LARGEST: usize = 1 << 16;
    match value {
        0 => Err(Error::config(field, "must be at least 1, got 0")),
        1..=LARGEST => Ok(()),
        _ => Err(Error::config(field, format!("must be at most {LARGEST}, got {value}"))),
    }
}

pub(super) fn check_heads(heads: usize, channels: usize, relative: bool) -> Result<(), Error> {
    positive("heads", heads)?;
    if !channels.is_multiple_of(heads) {
        return Err(Error::config("heads", format!("must divide channels_out {channels}, got {heads}")));
    }
    let width = channels / heads;
    if relative && !width.is_multiple_of(2) {
        let reason = format!("the width of a head must be even for row and column embeddings, got {width}");
        return Err(Error::config("relative", reason));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{Fixture, assert_close, assert_gradient_close, random};
    use burn::tensor::Gradients;

    fn config() -> LocalAttentionConfig {
        LocalAttentionConfig { channels_in: 6, channels_out: 8, heads: 2, window: 3, relative: true }
    }

    fn matrix(fixture: &Fixture, name: &str, device: &Device) -> Tensor<2> {
        fixture.tensor_on::<4>(name, device).flatten(1, 3)
    }

    fn assert_parity(case: &str) {
        let fixture = Fixture::load(case);
        let device = device::cpu().autodiff();
        let relative = fixture.has("model/rel_row");
        let config = LocalAttentionConfig {
            channels_in: fixture.usize("cin"),
            channels_out: fixture.usize("cout"),
            heads: fixture.usize("heads"),
            window: fixture.usize("k"),
            relative,
        };
        let mut layer = config.init(&device).unwrap();
        for (name, projection) in [("query", &mut layer.query), ("key", &mut layer.key), ("value", &mut layer.value)] {
            projection.weight = Param::from_tensor(matrix(&fixture, &format!("model/{name}.weight"), &device));
        }
        if let Some(relative) = &mut layer.relative {
            relative.rows = Param::from_tensor(fixture.tensor_on("model/rel_row", &device));
            relative.columns = Param::from_tensor(fixture.tensor_on("model/rel_col", &device));
        }

        let input = fixture.tensor_on::<4>("io/input", &device).require_grad();
        for mut pass in [Pass::silent(), Pass::recording()] {
            let attended = layer.forward(input.clone(), &mut pass);
            assert_close(&attended.out, &fixture.tensor("io/output"), 1e-5);
            if let Some(weights) = attended.weights {
                assert_close(&weights, &fixture.tensor("io/weights"), 1e-5);
            }
            let grads = (attended.out * fixture.tensor_on("io/output_grad", &device)).sum().backward();
            assert_gradient_close("input", &input.grad(&grads).unwrap(), &fixture.tensor("io/input_grad"));
            for (name, projection) in [("query", &layer.query), ("key", &layer.key), ("value", &layer.value)] {
                let expected = matrix(&fixture, &format!("io/grad.{name}.weight"), &device::cpu());
                assert_gradient_close(name, &grad(&projection.weight, &grads), &expected);
            }
            if let Some(relative) = &layer.relative {
                assert_gradient_close("rows", &grad(&relative.rows, &grads), &fixture.tensor("io/grad.rel_row"));
                assert_gradient_close("columns", &grad(&relative.columns, &grads), &fixture.tensor("io/grad.rel_col"));
            }
        }
    }

    fn grad<const D: usize>(parameter: &Param<Tensor<D>>, grads: &Gradients) -> Tensor<D> {
        parameter.val().grad(grads).unwrap()
    }

    #[test]
    fn a_window_of_three_equals_its_reference() {
        assert_parity("sasa_k3");
    }

    #[test]
    fn an_even_window_equals_its_reference() {
        assert_parity("sasa_k4_even");
    }

    #[test]
    fn a_window_of_seven_equals_its_reference() {
        assert_parity("sasa_k7");
    }

    #[test]
    fn attention_without_position_equals_its_reference() {
        assert_parity("sasa_no_position");
    }

    #[test]
    fn a_layer_has_the_parameters_of_the_paper() {
        let layer = config().init(&device::cpu()).unwrap();
        assert_eq!(layer.num_params(), 3 * 6 * 8 + 8 * 3, "three projections, half a head for each offset and axis");
        let attended = layer.forward(random([2, 6, 4, 5], 1), &mut Pass::recording());
        assert_eq!((attended.out.dims(), attended.weights.unwrap().dims()), ([2, 8, 4, 5], [2, 2, 9, 20]));
    }

    #[test]
    fn what_cannot_work_is_named() {
        let refusal = |config: LocalAttentionConfig| config.init(&device::cpu()).unwrap_err().to_string();
        assert_eq!(
            refusal(LocalAttentionConfig { heads: 3, ..config() }),
            "`heads`: must divide channels_out 8, got 3"
        );
        assert_eq!(refusal(LocalAttentionConfig { heads: 0, ..config() }), "`heads`: must be at least 1, got 0");
        assert_eq!(refusal(LocalAttentionConfig { window: 0, ..config() }), "`window`: must be at least 1, got 0");
        assert_eq!(
            refusal(LocalAttentionConfig { heads: 8, ..config() }),
            "`relative`: the width of a head must be even for row and column embeddings, got 1"
        );
    }

    #[test]
    fn a_config_reads_back_and_refuses_unknown_fields() {
        let json = serde_json::to_string(&config()).unwrap();
        assert_eq!(serde_json::from_str::<LocalAttentionConfig>(&json).unwrap(), config());
        assert!(serde_json::from_str::<LocalAttentionConfig>(&json.replace("heads", "head")).is_err());
    }
}
