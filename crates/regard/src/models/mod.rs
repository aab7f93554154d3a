//! The models: one paper, one file, grouped by what they are for.

pub mod classify;
mod config;
pub mod detect;
mod limits;
pub mod text;
pub mod video;

pub use classify::{
    AnyPreset, Backbone, FamilyConfig, FeatureMap, Heads, ImageTransformer, Inspect, Model, ModelConfig, Preset,
    StagedBackbone, Trunk, TrunkConfig, TrunkStage, deit, deit3, non_local_resnet, preset, presets, regnet, resnet,
    san, sasa, vit,
};
pub use text::{TextPreset, language_model, rnn_search, transformer, translator};
pub use video::{AnyClipPreset, ClipPreset, VideoConfig, VideoModel, i3d, resnet3d, timesformer};
