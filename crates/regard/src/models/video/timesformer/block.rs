//! One block of a TimeSformer: attention in one to three steps, each with its own projections, then an MLP.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use crate::attention::{AttentionPlan, SpaceTime, SpaceTimeStep};
use crate::layers::{EncoderBlock, EncoderBlockConfig, LayerNorm, Linear, Mlp, SelfAttention};
use crate::{Error, Pass};

/// `x = x + Fc(Attention(Norm(x)))` for every step, the last one without `Fc`; then `x = x + MLP(Norm(x))`.
///
/// Every `Fc` starts at zero, so that a block starts as its last step alone.
#[derive(Module, Debug)]
pub struct TimesformerBlock {
    pub temporal_norm1: Option<LayerNorm>,
    pub temporal_attn: Option<SelfAttention>,
    pub temporal_fc: Option<Linear>,
    pub local_norm1: Option<LayerNorm>,
    pub local_attn: Option<SelfAttention>,
    pub local_fc: Option<Linear>,
    pub width_norm1: Option<LayerNorm>,
    pub width_attn: Option<SelfAttention>,
    pub width_fc: Option<Linear>,
    /// The last step: space, joint, global or height.
    pub norm1: LayerNorm,
    pub attn: SelfAttention,
    pub norm2: LayerNorm,
    pub mlp: Mlp,
}

/// The layers of one attention step.
pub(super) struct StepLayers<'a> {
    /// The part of parameter names that all of them start with.
    pub prefix: &'static str,
    pub norm: &'a LayerNorm,
    pub attn: &'a SelfAttention,
    /// None in the last step.
    pub fc: Option<&'a Linear>,
}

impl TimesformerBlock {
    pub(super) fn new(scheme: SpaceTime, config: &EncoderBlockConfig, device: &Device) -> Result<Self, Error> {
        let EncoderBlock { norm1, attn, norm2, mlp, .. } = config.init(device)?;
        let EncoderBlockConfig { dim, heads, epsilon, .. } = *config;
        let has = |step: SpaceTimeStep| scheme.steps().contains(&step);
        let norm = |step| has(step).then(|| LayerNorm::new(dim, epsilon, device));
        let attention = |step| has(step).then(|| SelfAttention::new(dim, heads, device));
        let fc = |step| has(step).then(|| Linear::zeros(dim, dim, device));
        Ok(Self {
            temporal_norm1: norm(SpaceTimeStep::Time),
            temporal_attn: attention(SpaceTimeStep::Time),
            temporal_fc: fc(SpaceTimeStep::Time),
            local_norm1: norm(SpaceTimeStep::Local),
            local_attn: attention(SpaceTimeStep::Local),
            local_fc: fc(SpaceTimeStep::Local),
            width_norm1: norm(SpaceTimeStep::Width),
            width_attn: attention(SpaceTimeStep::Width),
            width_fc: fc(SpaceTimeStep::Width),
            norm1,
            attn,
            norm2,
            mlp,
        })
    }

    /// `[B, N, D] -> [B, N, D]`
    ///
    /// # Panics
    /// When the tokens do not fit the plans, or a plan is of a step that the block does not have.
    pub fn forward(&self, mut x: Tensor<3>, plans: &[AttentionPlan], pass: &mut Pass) -> Tensor<3> {
        for plan in plans {
            let StepLayers { prefix, norm, attn, fc } = self.step(plan.step());
            let normed = norm.forward(x.clone());
            let attended = pass.within(format!("{prefix}attn"), |pass| attn.forward_clip(normed, plan, pass));
            let branch = pass.branch(attended);
            let branch = match fc {
                Some(fc) => fc.forward(branch),
                None => branch,
            };
            x = if plan.step().class_takes_part() { x + branch } else { add_to_patches(x, branch) };
        }
        let changed = self.mlp.forward(self.norm2.forward(x.clone()));
        x + pass.branch(changed)
    }

    /// The layers of a step.
    ///
    /// # Panics
    /// When the block was built for a scheme without this step.
    pub(super) fn step(&self, step: SpaceTimeStep) -> StepLayers<'_> {
        let (prefix, norm, attn, fc) = match step {
            SpaceTimeStep::Time => ("temporal_", &self.temporal_norm1, &self.temporal_attn, &self.temporal_fc),
            SpaceTimeStep::Local => ("local_", &self.local_norm1, &self.local_attn, &self.local_fc),
            SpaceTimeStep::Width => ("width_", &self.width_norm1, &self.width_attn, &self.width_fc),
            SpaceTimeStep::Space | SpaceTimeStep::Joint | SpaceTimeStep::Global | SpaceTimeStep::Height => {
                return StepLayers { prefix: "", norm: &self.norm1, attn: &self.attn, fc: None };
            }
        };
        let (Some(norm), Some(attn)) = (norm, attn) else { panic!("timesformer: a block without the step {step:?}") };
        StepLayers { prefix, norm, attn, fc: fc.as_ref() }
    }
}

/// `[B, 1 + N, D]` twice: a sum that leaves the class token as it is.
fn add_to_patches(tokens: Tensor<3>, branch: Tensor<3>) -> Tensor<3> {
    let patches = tokens.dims()[1] - 1;
    let class = tokens.clone().narrow(1, 0, 1);
    Tensor::cat(vec![class, tokens.narrow(1, 1, patches) + branch.narrow(1, 1, patches)], 1)
}
