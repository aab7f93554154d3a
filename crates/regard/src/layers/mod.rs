//! Layers: parts with parameters that models share.

pub mod bert;
mod convolution;
mod encoder;
mod grid_position;
mod group_norm;
mod joint;
mod linear;
mod local;
mod multi_head;
mod non_local;
mod norm;
pub(crate) mod packed;
mod pointwise;
mod position;
mod pyramid;
mod recurrent;
mod residual;
mod san;
mod start;
mod stem;
mod tokens;
mod transformer;

pub use crate::batch_norm::{BatchNorm, FrozenBatchNorm, Norm, NormKind};
pub use convolution::{ConvNorm, GlobalAverage, biased, block_max, clip_convolution, max_pool, square};
pub use encoder::{
    EncoderBlock, EncoderBlockConfig, LayerScale, Mlp, PatchEmbed, PatchEmbedConfig, SelfAttention, cost_of_patches,
};
pub(crate) use encoder::{MOST_TOKENS, check_depth, check_size, forward_blocks, normal_table, prepend};
pub use grid_position::{Cells, GridPosition, GridPositionKind, sine_of_points};
pub use group_norm::GroupNorm;
pub use linear::Linear;
pub(crate) use local::positive;
pub use local::{LocalAttention, LocalAttentionConfig, RelativeEmbedding};
pub use multi_head::{Cache, Memory, MultiHeadAttention};
pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
pub use norm::LayerNorm;
pub use pointwise::Pointwise;
pub use position::{LearnedPosition, LearnedPositionConfig};
pub use pyramid::{ExtraBlocks, ExtraLevels, Pyramid, PyramidConfig};
pub use recurrent::GatedUnit;
pub use residual::{BottleneckStride, LastStage, Residual, ResidualBlock, ResidualBody, ResidualStem};
pub use san::{PairwiseUnit, PatchwiseUnit, SanRelation, SanUnit, SanUnitConfig, Sharing};
pub use start::Start;
pub use stem::{AttentionStem, AttentionStemConfig};
pub(crate) use tokens::rows_at;
pub use tokens::{Embedding, PositionEncoding, PositionKind};
pub(crate) use transformer::StackConfig;
pub use transformer::{
    NormPlace, TransformerDecoderLayer, TransformerEncoder, TransformerEncoderLayer, TransformerLayerConfig,
};
