//! Encodes boxes relative to reference boxes: shifts of the centre in units of the sides, and logarithms of the sides' ratios.
//! Girshick et al. 2014, "R-CNN", arXiv:1311.2524. As torchvision's `BoxCoder` and detectron2's `Box2BoxTransform`.

use burn::tensor::Tensor;

use super::{Corners, to_tensor};

/// Factors of the differences of x, y, width and height before a model learns them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BoxCoder {
    pub weights: [f32; 4],
}

/// Upper limit of logarithms of sides: no box becomes more than 62.5 times as large.
const LARGEST: f64 = 4.135_166_556_742_356; // ln(1000 / 16)

impl BoxCoder {
    /// For anchors.
    pub const ANCHORS: Self = Self { weights: [1.0; 4] };
    /// For regions in the second stage.
    pub const REGIONS: Self = Self { weights: [10.0, 10.0, 5.0, 5.0] };

    /// The target deltas at `references[i]` for the object `boxes[i]`.
    ///
    /// # Panics
    /// When their numbers differ.
    #[must_use]
    pub fn encode(&self, boxes: &[Corners], references: &[Corners]) -> Vec<[f32; 4]> {
        assert_eq!(boxes.len(), references.len(), "encode: boxes in pairs");
        let [wx, wy, ww, wh] = self.weights;
        let pairs = boxes.iter().zip(references);
        pairs
            .map(|(object, reference)| {
                let ([gx, gy, gw, gh], [x, y, w, h]) = (centred(*object), centred(*reference));
                [wx * (gx - x) / w, wy * (gy - y) / h, ww * (gw / w).ln(), wh * (gh / h).ln()]
            })
            .collect()
    }

    /// Decodes the box of `deltas` at `reference`.
    #[must_use]
    pub fn decode(&self, deltas: [f32; 4], reference: Corners) -> Corners {
        let [x, y, w, h] = centred(reference);
        let [dx, dy, dw, dh] = std::array::from_fn(|side| deltas[side] / self.weights[side]);
        let (cx, cy) = (dx * w + x, dy * h + y);
        let [w, h] = [(dw, w), (dh, h)].map(|(delta, side)| delta.min(LARGEST as f32).exp() * side);
        [cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h]
    }

    /// The same with a gradient: `[N, 4]` at N references.
    ///
    /// # Panics
    /// When the number of references is not the number of rows.
    #[must_use]
    pub fn decode_tensor(&self, deltas: Tensor<2>, references: &[Corners]) -> Tensor<2> {
        let [count, _] = deltas.dims();
        assert_eq!(count, references.len(), "decode: one reference for each row");
        let device = deltas.device();
        let centred: Vec<Corners> = references.iter().map(|reference| centred(*reference)).collect();
        let (centred, weights) = (to_tensor(&centred, &device), to_tensor(&[self.weights], &device));
        let deltas = deltas / weights;
        let half = |tensor: &Tensor<2>, from: usize| tensor.clone().narrow(1, from, 2);
        let centres = half(&deltas, 0) * half(&centred, 2) + half(&centred, 0);
        let sides = half(&deltas, 2).clamp_max(LARGEST).exp() * half(&centred, 2);
        let sides = sides.mul_scalar(0.5);
        Tensor::cat(vec![centres.clone() - sides.clone(), centres + sides], 1)
    }
}

/// Centre and sides.
fn centred([x1, y1, x2, y2]: Corners) -> [f32; 4] {
    let (w, h) = (x2 - x1, y2 - y1);
    [x1 + 0.5 * w, y1 + 0.5 * h, w, h]
}

/// The part of a box inside a picture of `[rows, columns]`.
#[must_use]
pub fn clip([x1, y1, x2, y2]: Corners, [rows, columns]: [usize; 2]) -> Corners {
    let inside = |x: f32, size: usize| x.clamp(0.0, size as f32);
    [inside(x1, columns), inside(y1, rows), inside(x2, columns), inside(y2, rows)]
}

/// Whether both sides have at least this length.
#[must_use]
pub fn has_sides([x1, y1, x2, y2]: Corners, side: f32) -> bool {
    x2 - x1 >= side && y2 - y1 >= side
}
