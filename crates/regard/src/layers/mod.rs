//! Parts with parameters that models share.

mod non_local;
mod position;

pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
pub use position::{LearnedPosition, LearnedPositionConfig};
mod local;
mod pointwise;
mod san;
mod stem;

pub use local::{LocalAttention, LocalAttentionConfig, RelativeEmbedding};
pub use pointwise::Pointwise;
pub use san::{PairwiseUnit, PatchwiseUnit, SanRelation, SanUnit, SanUnitConfig, Sharing};
pub use stem::{AttentionStem, AttentionStemConfig};
