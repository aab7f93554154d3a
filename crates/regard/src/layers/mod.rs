//! Parts with parameters that models share.

mod convolution;
mod linear;
mod local;
mod non_local;
mod norm;
mod pointwise;
mod position;
mod residual;
mod san;
mod stem;

pub use convolution::{ConvNorm, GlobalAverage, square};
pub use linear::Linear;
pub use local::{LocalAttention, LocalAttentionConfig, RelativeEmbedding};
pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
pub use norm::LayerNorm;
pub use pointwise::Pointwise;
pub use position::{LearnedPosition, LearnedPositionConfig};
pub use residual::{Residual, ResidualBlock, ResidualBody, ResidualStem};
pub use san::{PairwiseUnit, PatchwiseUnit, SanRelation, SanUnit, SanUnitConfig, Sharing};
pub use stem::{AttentionStem, AttentionStemConfig};
