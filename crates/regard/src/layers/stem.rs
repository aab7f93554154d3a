//! The attention stem: attention inside aligned blocks, in place of a network's first convolution.
//! Ramachandran et al. 2019, "Stand-Alone Self-Attention in Vision Models", arXiv:1906.05909, section 3.2.
//!
//! The number of value maps is not published (a public port has 4), nor whether blocks have relative
//! positions. The batch norm and max pool that follow belong to the network.

use burn::module::{Initializer, Module, Param};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use super::Pointwise;
use super::local::{RelativeEmbedding, attention_cost, check_heads, positive};
use crate::attention::{Attended, Stem, can_fuse_stem, fused_stem, mixture_weights, stem};
use crate::cost::{Costed, Ledger, Work, size};
use crate::{Error, Pass};

/// One attention stem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionStemConfig {
    /// Input channels.
    pub channels_in: usize,
    /// Output channels, also of query and key.
    pub channels_out: usize,
    pub heads: usize,
    /// Side of a block.
    pub block: usize,
    /// Number of value maps in the mixture.
    pub maps: usize,
    /// Whether there are relative position embeddings inside a block.
    pub relative: bool,
}

impl AttentionStemConfig {
    /// The paper's stem: 64 channels, 4 heads, blocks of 4 x 4.
    pub const fn paper() -> Self {
        Self { channels_in: 3, channels_out: 64, heads: 4, block: 4, maps: 4, relative: false }
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn validate(&self) -> Result<(), Error> {
        positive("channels_in", self.channels_in)?;
        positive("channels_out", self.channels_out)?;
        positive("block", self.block)?;
        positive("maps", self.maps)?;
        check_heads(self.heads, self.channels_out, self.relative)
    }

    /// # Errors
    /// When a field is out of range; the error names it.
    pub fn init(&self, device: &Device) -> Result<AttentionStem, Error> {
        self.validate()?;
        let head_width = self.channels_out / self.heads;
        let normal = Initializer::Normal { mean: 0.0, std: 1.0 / (head_width as f64).sqrt() };
        let projection = |outputs: usize| Pointwise::unbiased(self.channels_in, outputs, device);
        let offsets = 2 * self.block - 1;
        Ok(AttentionStem {
            query: projection(self.channels_out),
            key: projection(self.channels_out),
            values: projection(self.maps * self.channels_out),
            place_rows: normal.init([head_width, self.block], device),
            place_columns: normal.init([head_width, self.block], device),
            nu: normal.init([self.maps, head_width], device),
            relative: self.relative.then(|| RelativeEmbedding::new(self.heads, head_width, offsets, device)),
            heads: self.heads,
            block: self.block,
        })
    }
}

/// Projections, the mixture of value maps, and attention inside aligned blocks.
#[derive(Module, Debug)]
pub struct AttentionStem {
    pub query: Pointwise,
    pub key: Pointwise,
    /// All value maps at once, `[M*out, in]`, map-major.
    pub values: Pointwise,
    /// `[K, b]`
    pub place_rows: Param<Tensor<2>>,
    /// `[K, b]`
    pub place_columns: Param<Tensor<2>>,
    /// `[M, K]`
    pub nu: Param<Tensor<2>>,
    pub relative: Option<RelativeEmbedding>,
    heads: usize,
    block: usize,
}

impl AttentionStem {
    /// Side of a block.
    pub const fn block(&self) -> usize {
        self.block
    }

    /// `[B, in, H, W] -> [B, out, H, W]`, weights `[B*blocks, A, b*b, b*b]`.
    ///
    /// # Panics
    /// When the map is not a multiple of the block or does not have `channels_in` channels.
    pub fn forward(&self, map: Tensor<4>, pass: &mut Pass) -> Attended<4> {
        let [batch, _, height, width] = map.dims();
        let mixture = mixture_weights(self.place_rows.val(), self.place_columns.val(), self.nu.val());
        let options = Stem {
            heads: self.heads,
            block: self.block,
            relative: self.relative.as_ref().map(RelativeEmbedding::value),
            scale: None,
        };
        if can_fuse_stem(&map, &options, pass) {
            let weights = [&self.query, &self.key, &self.values].map(|projection| projection.weight.val());
            return Attended { out: fused_stem(map, weights, mixture, &options), weights: None };
        }
        let (query, key) = (self.query.forward(map.clone()), self.key.forward(map.clone()));
        let (maps, channels) = (self.nu.dims()[0], query.dims()[1]);
        let values = self.values.forward(map).reshape([batch, maps, channels, height, width]);
        stem(query, key, values, mixture, &options, pass)
    }
}

impl Costed for AttentionStem {
    /// Without the mixture weights: they do not depend on the input and could be precomputed.
    fn cost(&self, shape: Vec<usize>, ledger: &mut Ledger) -> Vec<usize> {
        let out = ledger.part("query", &self.query, shape.clone());
        ledger.part("key", &self.key, shape.clone());
        let values = ledger.part("values", &self.values, shape);
        for (name, table) in
            [("place_rows", &self.place_rows), ("place_columns", &self.place_columns), ("nu", &self.nu)]
        {
            ledger.within(name, |ledger| ledger.line(size(table), Work::Table, 0));
        }
        let mixing = Work::Product { macs: values.iter().product::<usize>() as u64 };
        ledger.within("mixing", |ledger| ledger.line(0, mixing, out.iter().product()));
        attention_cost(&out, self.heads, self.block * self.block, self.relative.as_ref(), ledger);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device;
    use crate::testing::{assert_close, assert_paths_agree, random, random_on, values};

    fn config() -> AttentionStemConfig {
        AttentionStemConfig { relative: true, ..AttentionStemConfig::paper() }
    }

    #[test]
    fn its_value_is_the_mixture_of_matrices_applied_to_the_pixel() {
        let config =
            AttentionStemConfig { channels_out: 4, heads: 1, block: 2, maps: 3, ..AttentionStemConfig::paper() };
        let mut layer = config.init(&device::cpu()).unwrap();
        // with queries of zero a block averages its values
        layer.query.weight = layer.query.weight.map(|weight| weight.zeros_like());
        let image = random([1, 3, 2, 2], 1);
        let out = layer.forward(image.clone(), &mut Pass::silent()).out;
        let mixture = mixture_weights(layer.place_rows.val(), layer.place_columns.val(), layer.nu.val());
        let mut mean = Tensor::<2>::zeros([4, 1], &device::cpu());
        for place in 0..4 {
            let pixel = image.clone().reshape([3, 4]).narrow(1, place, 1);
            let weight = (0..3)
                .map(|m| {
                    let share = mixture.clone().reshape([3, 4]).slice([m..m + 1, place..place + 1]);
                    layer.values.weight.val().narrow(0, m * 4, 4) * share
                })
                .reduce(|left, right| left + right)
                .unwrap();
            mean = mean + weight.matmul(pixel).div_scalar(4.0);
        }
        assert_close(&out, &mean.reshape([1, 4, 1, 1]).expand([1, 4, 2, 2]), 1e-5);
    }

    #[test]
    fn the_stem_of_the_paper_gives_sixty_four_channels() {
        let layer = config().init(&device::cpu()).unwrap();
        let attended = layer.forward(random([2, 3, 8, 12], 1), &mut Pass::recording());
        assert_eq!(attended.out.dims(), [2, 64, 8, 12]);
        assert_eq!(attended.weights.unwrap().dims(), [2 * 2 * 3, 4, 16, 16]);
        let projections = (2 + 4) * 3 * 64;
        assert_eq!(layer.num_params(), projections + 2 * 16 * 4 + 4 * 16 + 64 * 7);
    }

    #[test]
    fn a_gradient_reaches_every_parameter() {
        let device = device::cpu().autodiff();
        device.seed(1); // with other seeds a ReLU may be dead for every picture
        let layer = config().init(&device).unwrap();
        let grads =
            layer.forward(random_on([1, 3, 4, 8], 1, &device), &mut Pass::silent()).out.powi_scalar(2).sum().backward();
        let relative = layer.relative.as_ref().unwrap();
        for parameter in [
            &layer.query.weight,
            &layer.key.weight,
            &layer.values.weight,
            &layer.place_rows,
            &layer.place_columns,
            &layer.nu,
        ] {
            assert!(parameter.val().grad(&grads).unwrap().abs().max().into_scalar::<f32>() > 0.0);
        }
        for parameter in [&relative.rows, &relative.columns] {
            assert!(parameter.val().grad(&grads).unwrap().abs().max().into_scalar::<f32>() > 0.0);
        }
    }

    #[test]
    fn recorded_equals_unrecorded_and_so_do_gradients() {
        let device = device::cpu().autodiff();
        for (relative, [batch, height, width]) in [(true, [2, 4, 6]), (false, [1, 2, 4]), (true, [3, 8, 8])] {
            let config = AttentionStemConfig { channels_out: 8, heads: 2, block: 2, maps: 3, relative, ..config() };
            let layer = config.init(&device).unwrap();
            let run = |mut pass: Pass| {
                let image = random_on([batch, 3, height, width], 1, &device).require_grad();
                let out = layer.forward(image.clone(), &mut pass).out;
                let grads = (out.clone() * random_on(out.dims(), 2, &device)).sum().backward();
                let of = |weight: &Tensor<2>| values(&weight.grad(&grads).unwrap());
                let mut all = vec![("out", values(&out)), ("image", values(&image.grad(&grads).unwrap()))];
                for (name, parameter) in [
                    ("query", &layer.query.weight),
                    ("key", &layer.key.weight),
                    ("values", &layer.values.weight),
                    ("place_rows", &layer.place_rows),
                    ("place_columns", &layer.place_columns),
                    ("nu", &layer.nu),
                ] {
                    all.push((name, of(&parameter.val())));
                }
                for embedding in layer.relative.iter().flat_map(|relative| [&relative.rows, &relative.columns]) {
                    all.push(("relative", values(&embedding.val().grad(&grads).unwrap())));
                }
                all
            };
            assert_paths_agree("stem", &run(Pass::silent()), &run(Pass::recording()));
        }
    }

    #[test]
    #[should_panic(expected = "stem: blocks of 4 x 4 do not fill height 6")]
    fn an_image_that_blocks_do_not_fill_is_refused() {
        config().init(&device::cpu()).unwrap().forward(random([1, 3, 6, 8], 1), &mut Pass::silent());
    }

    #[test]
    fn what_cannot_work_is_named() {
        let refusal = |config: AttentionStemConfig| config.init(&device::cpu()).unwrap_err().to_string();
        assert_eq!(
            refusal(AttentionStemConfig { heads: 5, ..config() }),
            "`heads`: must divide channels_out 64, got 5"
        );
        assert_eq!(refusal(AttentionStemConfig { block: 0, ..config() }), "`block`: must be at least 1, got 0");
        assert_eq!(refusal(AttentionStemConfig { maps: 0, ..config() }), "`maps`: must be at least 1, got 0");
    }
}
