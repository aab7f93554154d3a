//! Gradient checkpointing: a block of a model keeps its input alone, and the backward pass computes the rest once more.
//! Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv:1604.06174.
//!
//! Burn's own strategy recomputes single cheap operations and keeps the inputs of products, which are most of what a transformer
//! keeps. Random numbers of a pass follow from its state, so that the second computation draws what the first drew. A block must
//! not change anything in its forward pass, such as running statistics.

use burn::backend::autodiff::NodeId;
use burn::backend::autodiff::checkpoint::{base::Checkpointer, strategy::NoCheckpointing};
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::{BackendTensor, DispatchAutodiffContext, DispatchTensor, DispatchTensorKind, Flex};
use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{self, Tensor};
use std::fmt::{self, Debug};

use crate::Pass;
use crate::fused;
use crate::pass::Randomness;

impl Pass {
    /// Runs a block of a model. A pass that [recomputes](Pass::recomputing) keeps only its input for the backward pass, on the
    /// CPU; on other devices everything is kept.
    pub fn block<M: Module + 'static, const D: usize>(
        &mut self,
        block: &M,
        x: Tensor<D>,
        run: impl Fn(&M, Tensor<D>, &mut Self) -> Tensor<D> + Clone + Send + 'static,
    ) -> Tensor<D> {
        let context = x.clone().into_dispatch().autodiff;
        if !self.recomputes() || context == DispatchAutodiffContext::Disabled || !fused::runs_on(&x) {
            return run(block, x, self);
        }
        let parameters = trained_nodes(block);
        let (random, input, values) = (self.randomness(), x.clone().inner(), block.valid());
        let out = run(&values, input.clone(), self);
        let step = Recomputation { block: values, input, random: random.clone(), parameters, run: run.clone() };
        let node = fused::tracked(x.clone().into_dispatch().kind).node();
        let out = fused::untracked(out.into_dispatch().kind);
        match step.prepare::<NoCheckpointing>([node]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let kind = DispatchTensorKind::Flex(BackendTensor::Autodiff(prep.finish((), out)));
                Tensor::from_dispatch(DispatchTensor {
                    kind: DispatchTensorKind::Autodiff(Box::new(kind)),
                    autodiff: context,
                })
            }
            // nothing before the block is trained, and without a tracked input there is no step to run its backward pass
            OpsKind::UnTracked(_) => {
                self.rewind(random);
                run(block, x, self)
            }
        }
    }
}

/// The nodes of the parameters of a block in the order of a visit; none for those that are not trained.
fn trained_nodes(block: &impl Module) -> Vec<Option<NodeId>> {
    struct Nodes(Vec<Option<NodeId>>);
    impl ModuleVisitor for Nodes {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let value = param.val();
            let is_trained = value.is_require_grad();
            self.0.push(is_trained.then(|| fused::tracked(value.into_dispatch().kind).id()));
        }
    }
    let mut nodes = Nodes(Vec::new());
    block.visit(&mut nodes);
    nodes.0
}

/// The backward pass of a block: its forward pass once more, and then backwards.
struct Recomputation<M, F, const D: usize> {
    /// Values without gradients.
    block: M,
    input: Tensor<D>,
    random: Randomness,
    parameters: Vec<Option<NodeId>>,
    run: F,
}

impl<M: Debug, F, const D: usize> Debug for Recomputation<M, F, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recomputation").field("block", &self.block).finish_non_exhaustive()
    }
}

impl<M, F, const D: usize> Backward<Flex, 1> for Recomputation<M, F, D>
where
    M: Module + 'static,
    F: Fn(&M, Tensor<D>, &mut Pass) -> Tensor<D> + Send + 'static,
{
    type State = ();

    fn backward(self, ops: Ops<(), 1>, grads: &mut Gradients, _: &mut Checkpointer) {
        let grad = DispatchTensorKind::Flex(BackendTensor::Float(grads.consume::<Flex>(&ops.node)));
        let autodiff = DispatchAutodiffContext::Disabled;
        let grad = Tensor::<D>::from_dispatch(DispatchTensor { kind: grad, autodiff });
        let (block, x) = (self.block.train(), Tensor::from_inner(self.input).require_grad());
        let mut pass = Pass::silent();
        pass.rewind(self.random);
        let out = (self.run)(&block, x.clone(), &mut pass);
        let inner = (out * Tensor::from_inner(grad)).sum().backward();
        let mut register = Register { nodes: self.parameters.into_iter(), inner: &inner, grads };
        block.visit(&mut register);
        let [parent] = ops.parents;
        if let (Some(parent), Some(gradient)) = (parent, x.grad(&inner)) {
            register.grads.register::<Flex>(parent.id, fused::untracked(gradient.into_dispatch().kind));
        }
    }
}

/// Hands the gradients of a recomputed block to the parameters of the block itself.
struct Register<'a> {
    nodes: std::vec::IntoIter<Option<NodeId>>,
    inner: &'a tensor::Gradients,
    grads: &'a mut Gradients,
}

impl ModuleVisitor for Register<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let node = self.nodes.next().flatten();
        if let (Some(node), Some(gradient)) = (node, param.val().grad(self.inner)) {
            self.grads.register::<Flex>(node, fused::untracked(gradient.into_dispatch().kind));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StochasticDepth;
    use crate::device::cpu;
    use crate::testing::{assert_close, gradients, random_on};
    use burn::module::Initializer;

    #[derive(Module, Debug)]
    struct Block {
        weight: Param<Tensor<2>>,
        bias: Param<Tensor<1>>,
    }

    impl Block {
        /// `[B, N, D] -> [B, N, D]`, two branches.
        fn forward(&self, x: Tensor<3>, pass: &mut Pass) -> Tensor<3> {
            let branch = x.clone().matmul(self.weight.val().unsqueeze::<3>()).tanh();
            let x = x + pass.branch(branch);
            let branch = x.clone() * self.bias.val().unsqueeze::<3>();
            x + pass.branch(branch)
        }
    }

    fn blocks(count: usize) -> Vec<Block> {
        let device = cpu().autodiff();
        device.seed(1);
        let normal = Initializer::Normal { mean: 0.0, std: 0.5 };
        let block = |_| {
            let block = Block { weight: normal.init([8, 8], &device), bias: normal.init([8], &device) };
            // parameters are initialised on first use
            let _ = (block.weight.val(), block.bias.val());
            block
        };
        (0..count).map(block).collect()
    }

    /// The output of three blocks, the gradient of their input, and those of all parameters.
    fn through(blocks: &Vec<Block>, mut pass: Pass, tracked: bool) -> (Tensor<3>, Option<Tensor<3>>, Vec<Vec<f32>>) {
        let device = cpu().autodiff();
        let input = random_on::<3>([4, 5, 8], 2, &device);
        let input = if tracked { input.require_grad() } else { input };
        let mut x = input.clone();
        pass.begin_blocks(blocks.len());
        for block in blocks {
            pass.next_block();
            x = pass.block(block, x, Block::forward);
        }
        let found = (x.clone() * random_on([4, 5, 8], 3, &device)).sum().backward();
        (x.inner(), input.grad(&found), gradients(blocks, &found).into_values().collect())
    }

    #[test]
    fn recomputed_blocks_have_the_output_and_the_gradients_of_kept_ones_also_with_random_branches() {
        let blocks = blocks(3);
        let depth = StochasticDepth { rate: 0.5, uniform: true, seed: 1, step: 4 };
        let passes: [fn(StochasticDepth) -> Pass; 2] = [|_| Pass::silent(), Pass::with_stochastic_depth];
        for pass in passes {
            for tracked in [true, false] {
                let (out, grad, kept) = through(&blocks, pass(depth), tracked);
                let (out2, grad2, recomputed) = through(&blocks, pass(depth).recomputing(), tracked);
                assert_close(&out2, &out, 1e-5);
                assert_eq!((grad.is_some(), kept.len()), (tracked, recomputed.len()));
                if let (Some(grad), Some(grad2)) = (grad, grad2) {
                    assert_close(&grad2, &grad, 1e-5);
                }
                for (kept, recomputed) in kept.iter().zip(&recomputed) {
                    let most = kept.iter().zip(recomputed).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                    assert!(most < 1e-4, "{most}");
                }
            }
        }
    }
}
