//! Parts with parameters that models share.

mod local;
mod non_local;
mod pointwise;
mod position;
mod san;
mod stem;

pub use local::{LocalAttention, LocalAttentionConfig, RelativeEmbedding};
pub use non_local::{NonLocal, NonLocalConfig, PoolOrder};
pub use pointwise::Pointwise;
pub use position::{LearnedPosition, LearnedPositionConfig};
pub use san::{PairwiseUnit, PatchwiseUnit, SanRelation, SanUnit, SanUnitConfig, Sharing};
pub use stem::{AttentionStem, AttentionStemConfig};
