//! Analyses of models.
//!
//! One image: [`explain()`] runs a model once and keeps its [`Attention`], which [`maps()`], [`rollout()`]
//! and [`lens()`] read; [`explain_class`] and [`cam()`] differentiate a class, [`box_cam()`] the score of a box;
//! [`cross_attention`] and [`point_attention`] are for DETR. Words and regions: [`word_region_attention`], [`word_region_plan`],
//! [`word_region_relevance`]; words and clips: [`word_video_attention`]. One clip: [`explain_clip`]. Many pictures: [`HeadMeans`] of
//! [`distance()`] and [`entropy()`],
//! [`Fields`], [`Cka`], [`QueryBoxes`]. No picture: [`positions()`], [`filters()`], [`papers`].
//! Results are plain data, each with a [`Check`] of a law that it must fulfil.

pub mod activations;
mod attention;
mod box_cam;
mod cam;
mod cells;
mod check;
pub mod cka;
mod clip;
mod distance;
mod eigen;
mod entropy;
mod explain;
mod field;
mod filters;
mod gradients;
mod heads;
mod lens;
mod maps;
pub mod papers;
mod positions;
mod queries;
mod relevance;
mod rollout;
mod specialise;
mod words_regions;

pub use attention::{Attention, WeightRow, attentions};
pub use box_cam::{BoxCam, box_cam};
pub use cam::{Cam, cam};
pub use cells::share_inside;
pub use check::Check;
pub use cka::{Cka, Gram, Similarity};
pub use clip::{
    ClipExplanation, ClipMap, ClipQuery, LookedAt, clip_distance_in_space, clip_distance_in_time, clip_map,
    explain_clip,
};
pub use distance::distance;
pub use entropy::entropy;
pub use explain::{Explanation, explain, explain_class};
pub use field::{Field, Fields};
pub use filters::{Filters, filters};
pub use gradients::ClassGradients;
pub use heads::{ByHead, HeadMeans, Measure};
pub use lens::{Lens, LensLayer, lens};
pub use maps::{AttentionMaps, Kernels, Query, maps};
pub use positions::{PositionSimilarity, positions};
pub use queries::{CrossAttention, PictureMap, PicturePoint, cross_attention, point_attention};
pub use relevance::{WordRegionRelevance, word_region_relevance};
pub use rollout::{Fusion, Rollout, RolloutOptions, class_rollout, rollout};
pub use specialise::{BoxKind, QueryBox, QueryBoxes, QueryProfile, Specialisation, SpecialiseOptions, UsualBox};
pub use words_regions::{
    Across, ExplainedWords, WordRegionAttention, WordRegionPlan, WordShare, explained_words, shares_of_regions,
    word_region_attention, word_region_plan, word_video_attention,
};
