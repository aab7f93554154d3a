//! Weights in and out: tensors by name, whatever file they come from.
//!
//! [`resolve`](fn@resolve) gives a model with its preprocessing and labels for the one text by which users name it. Below it:
//! [`fetch`](fn@fetch) gives a file for an address, [`read`] the tensors of a file, [`translate`] our names for them,
//! [`load`](fn@load) puts them into a model; [`export`](fn@export) is the way back.

mod address;
mod embedded;
mod export;
mod fetch;
mod files;
mod hugging_face;
mod int8;
mod jax;
mod load;
mod lookalike;
mod names;
mod npz;
mod rename;
mod resolve;
mod timm;
#[cfg(test)]
mod toy;
mod upstream;

pub use crate::download::Progress;
pub use address::Address;
pub use embedded::{EMBEDDED, Embedded};
pub(crate) use export::to_bytes;
pub use export::{Export, export, write_half, write_tensors};
pub use fetch::{Fetcher, fetch};
pub(crate) use files::from_bytes;
pub use files::{Checkpoint, Format, read};
pub(crate) use load::is_head;
pub use load::{LoadOptions, Loaded, fit, load};
pub(crate) use names::Path;
pub(crate) use names::read_rest;
pub use names::{Tensors, fill, shapes, tensors};
pub use resolve::{LoadedModel, ModelSource, Origin, resolve};
pub use timm::timm_name;
pub use upstream::{Upstream, recognise, translate};
