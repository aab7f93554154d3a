//! SAN packed for inference: norms as affine functions; phi, psi and beta as one projection.

use regard_kernels::san::{Affine, Block, Conv1x1, Operator, San, Stage};
use regard_kernels::window::Window;

use super as model;
use crate::attention::PatchRelation;
use crate::batch_norm::BatchNorm;
use crate::device;
use crate::fused::FloatSlice;
use crate::layers::packed::{linear, numbers};
use crate::layers::{Pointwise, SanUnit};

/// None on other devices, for windows without a kernel and for norms of several kinds in one gamma.
pub(super) fn kernel(san: &model::San) -> Option<San> {
    let weight = san.conv_in.weight.val();
    if weight.device() != device::cpu() {
        return None;
    }
    let stages = san.stages.iter().map(stage).collect::<Option<Vec<_>>>()?;
    let [weight_out, bias] = linear(san.fc.as_ref()?)?.map(|numbers| numbers.to_vec());
    let answer = Conv1x1 { weight: weight_out, bias };
    Some(San::new(weight.dims()[1], folded(&san.conv_in, &san.bn_in), stages, answer))
}

fn stage(stage: &model::SanStage) -> Option<Stage> {
    let blocks = stage.layer.iter().map(block).collect::<Option<Vec<_>>>()?;
    let window = stage.layer.iter().map(|block| block.sam.window()).max()?;
    Some(Stage { transition: map(&stage.conv), blocks, norm: line(&stage.bn), window })
}

fn block(block: &model::SanBlock) -> Option<Block> {
    let (phi, psi, beta, gamma, window) = match &block.sam {
        SanUnit::Pairwise(unit) => (&unit.phi, &unit.psi, &unit.beta, &unit.gamma, unit.options.window),
        SanUnit::Patchwise(unit) => (&unit.phi, &unit.psi, &unit.beta, &unit.gamma, unit.options.window),
    };
    if window > Window::LARGEST || gamma.norm1.epsilon != gamma.norm2.epsilon {
        return None;
    }
    // phi, psi, beta in order; a shared convolution is the one before it, or else beta
    let mut features = Conv1x1 { weight: Vec::new(), bias: Vec::new() };
    let mut add = |convolution: &Pointwise| {
        let (first, Conv1x1 { weight, bias }) = (features.bias.len(), map(convolution));
        let count = convolution.weight.lazy_shape()[0];
        features.weight.extend(weight);
        features.bias.extend(if bias.is_empty() { vec![0.0; count] } else { bias });
        first..first + count
    };
    let phi = phi.as_ref().map(&mut add);
    let psi = psi.as_ref().map(&mut add);
    let beta = add(beta);
    let own = phi.is_some();
    let phi = phi.unwrap_or_else(|| beta.clone());
    let psi = psi.unwrap_or_else(|| phi.clone());
    let (phi, operator) = match &block.sam {
        SanUnit::Pairwise(unit) => {
            let case = unit.options.kernel(1, [phi.len(), beta.len()], [1, 1], gamma);
            let moments = [gamma.norm1.moments(), gamma.norm2.moments()];
            let gamma = FloatSlice::of(gamma.flat()).to_vec();
            (phi, Operator::Pairwise { case, position: unit.place.as_ref().map(map), gamma, moments })
        }
        SanUnit::Patchwise(unit) => {
            let beside = own || unit.options.relation != PatchRelation::Concatenation;
            let relate = unit.options.kernel(1, psi.len(), beside, [1, 1], gamma);
            let first = FloatSlice::of(gamma.flat_first()).to_vec();
            let (moments, norm) = (gamma.norm1.moments(), line(&gamma.norm2));
            let second = Conv1x1 { weight: numbers(&gamma.linear2).to_vec(), bias: numbers(&gamma.bias2).to_vec() };
            (if beside { phi } else { 0..0 }, Operator::Patchwise { relate, first, moments, norm, second })
        }
    };
    let (norm1, norm2, back) = (line(&block.bn1), line(&block.bn2), map(&block.conv));
    Some(Block { norm1, features, phi, psi, beta, operator, norm2, expand: back })
}

fn map(convolution: &Pointwise) -> Conv1x1 {
    let bias = convolution.bias.as_ref().map_or_else(Vec::new, |bias| numbers(bias).to_vec());
    Conv1x1 { weight: numbers(&convolution.weight).to_vec(), bias }
}

/// A norm with its running statistics.
fn line(norm: &BatchNorm) -> Affine {
    let moments = norm.moments();
    let (gamma, beta) = (numbers(&norm.gamma), numbers(&norm.beta));
    let of = |i: usize| {
        let scale = f64::from(gamma[i]) / (f64::from(moments.variance[i]) + norm.epsilon).sqrt();
        [scale as f32, (f64::from(beta[i]) - f64::from(moments.mean[i]) * scale) as f32]
    };
    let (scale, shift) = (0..gamma.len()).map(of).map(|[scale, shift]| (scale, shift)).unzip();
    Affine { scale, shift }
}

/// A convolution without bias, with its norm.
fn folded(convolution: &Pointwise, norm: &BatchNorm) -> Conv1x1 {
    let (Conv1x1 { mut weight, bias }, Affine { scale, mut shift }) = (map(convolution), line(norm));
    let inputs = weight.len() / scale.len();
    weight.chunks_exact_mut(inputs).zip(&scale).for_each(|(row, scale)| row.iter_mut().for_each(|x| *x *= scale));
    shift.iter_mut().zip(bias.iter().zip(&scale)).for_each(|(shift, (bias, scale))| *shift += bias * scale);
    Conv1x1 { weight, bias: shift }
}
