//! Reading and writing weights: tensors by name, from and to files.
//!
//! [`resolve`](fn@resolve) turns the name of a model, as users write it, into a model with its preprocessing and labels. It uses
//! [`fetch`](fn@fetch) (address to file), [`read`] (file to tensors), [`translate`] (other libraries' names to ours) and
//! [`load`](fn@load) (tensors into a model). [`export`](fn@export) is the reverse.

mod address;
mod bert;
mod detector;
mod embedded;
mod export;
mod export_detector;
mod fetch;
mod files;
mod hugging_face;
mod hugging_face_detr;
mod hugging_face_timesformer;
mod i3d;
mod int8;
mod jax;
mod load;
mod lookalike;
mod names;
mod npz;
mod older;
mod rename;
mod resolve;
mod timesformer;
mod timm;
#[cfg(test)]
mod toy;
mod upstream;
mod video;
mod vision_language;

pub use crate::download::Progress;
pub use address::Address;
pub use bert::{LoadedBert, SentenceVectors, bert_config, bert_names, is_bert_folder, load_bert, load_bert_folder};
pub use detector::{
    DetectorSource, EMBEDDED_DETECTORS, EmbeddedDetector, LoadedDetector, begin_detector, fill_trunk, is_detector,
    resolve_detector,
};
pub use embedded::{EMBEDDED, Embedded};
pub(crate) use export::to_bytes;
pub use export::{Export, export, write_half, write_tensors};
pub use export_detector::{detector_upstreams, export_detector};
pub use fetch::{Fetcher, fetch};
pub(crate) use files::from_bytes;
pub use files::{Checkpoint, WeightsFormat, read};
pub use hugging_face_detr::detr_config;
pub use hugging_face_timesformer::timesformer_config;
pub use i3d::start_i3d;
pub(crate) use load::is_head;
pub use load::{LoadOptions, Loaded, fit, load};
pub(crate) use names::ModulePath;
pub(crate) use names::read_lazy_tensors;
pub use names::{Tensors, fill, shapes, tensors};
#[cfg(test)]
pub(crate) use older::as_before;
pub use resolve::{LoadedModel, ModelSource, WeightsOrigin, resolve};
pub use timesformer::{load_timesformer, start_timesformer};
pub use timm::timm_name;
use upstream::to_transformers_names;
pub use upstream::{Upstream, recognise, to_detector_names, translate};
pub use video::{EMBEDDED_VIDEOS, EmbeddedVideo, LoadedVideo, VideoSource, begin_video, is_video, resolve_video};
pub use vision_language::{
    load_vision_language, lxmert_config, lxmert_names, to_vision_language_names, uniter_names, vilbert_names,
    visual_bert_config, visual_bert_names,
};
