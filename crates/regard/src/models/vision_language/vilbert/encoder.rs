//! The layers of both streams, in the order in which they run.

use burn::module::Module;
use burn::tensor::{Bool, Tensor};

use super::co_attention::CoAttentionLayer;
use crate::Pass;
use crate::layers::bert::BertLayer;
use crate::pass::Axes;

/// The layers of both streams, and those in which they look at each other.
#[derive(Module, Debug)]
pub struct VilbertEncoder {
    pub layer: Vec<BertLayer>,
    pub v_layer: Vec<BertLayer>,
    pub c_layer: Vec<CoAttentionLayer>,
    /// Before which layers of regions and words each of them is.
    #[module(skip)]
    pub(super) places: Vec<(usize, usize)>,
}

impl VilbertEncoder {
    /// `[B, N, D]` and `[B, 1 + R, D']`; `padding` is that of words and of regions.
    pub(super) fn forward(
        &self,
        [mut text, mut image]: [Tensor<3>; 2],
        padding: &[Option<Tensor<2, Bool>>; 2],
        pass: &mut Pass,
    ) -> [Tensor<3>; 2] {
        let axes = [Axes::Words(text.dims()[1]), Axes::Slots(image.dims()[1])];
        let (mut text_layers, mut region_layers) = (self.layer.iter().enumerate(), self.v_layer.iter().enumerate());
        let mut before = (0, 0);
        // the last step has no co-attention
        let steps = self.places.iter().zip(self.c_layer.iter().enumerate()).map(|(place, layer)| (*place, Some(layer)));
        for (place, co_attention) in steps.chain([((self.v_layer.len(), self.layer.len()), None)]) {
            for (i, layer) in text_layers.by_ref().take(place.1 - before.1) {
                text = run_layer(&format!("layer.{i}"), layer, text, &axes[0], padding[0].as_ref(), pass);
            }
            for (i, layer) in region_layers.by_ref().take(place.0 - before.0) {
                image = run_layer(&format!("v_layer.{i}"), layer, image, &axes[1], padding[1].as_ref(), pass);
            }
            if let Some((k, layer)) = co_attention {
                let run = |pass: &mut Pass| layer.forward([text, image], padding, &axes, pass);
                [text, image] = pass.within(format!("c_layer.{k}"), run);
            }
            before = place;
        }
        [text, image]
    }
}

fn run_layer(
    name: &str,
    layer: &BertLayer,
    x: Tensor<3>,
    axes: &Axes,
    padding: Option<&Tensor<2, Bool>>,
    pass: &mut Pass,
) -> Tensor<3> {
    let x = pass.with_tokens(axes.clone(), |pass| pass.within(name, |pass| layer.forward(x, padding, pass)));
    pass.watch(name, x)
}
