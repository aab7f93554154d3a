//! Datasets: from bytes to tensors.

mod augment;
mod batch;
mod channels;
pub mod check;
pub mod clip;
mod clips;
pub mod dataset;
mod dataset_parts;
mod decode;
mod denormalise;
pub mod detection;
mod detection_preprocess;
pub mod fetch;
mod images;
mod labelled_images;
pub mod labels;
mod limits;
mod loader;
mod mix;
mod object;
mod order;
mod picture;
mod preprocess;
mod resample;
mod resize_inside;
pub mod text;
pub mod vision_language;
pub mod world;

pub use augment::{
    Augment, Change, Changes, Crop, DetectionAugment, Erasure, Geometric, Photometric, RandAugment, ShortSide, mosaic,
};
pub use batch::{Batch, Target};
pub use channels::to_channels;
pub use clips::Clips;
pub use dataset::{Dataset, Part};
pub use dataset_parts::DatasetParts;
pub use decode::decode_image;
pub use denormalise::denormalise;
pub use detection_preprocess::{DetectionPreprocess, DetectionResize};
pub(crate) use images::nearest_indices;
pub use images::{ImageBatch, Images, NormalisedPicture};
pub use labelled_images::{LabelledImages, Preparation};
pub use loader::{BatchId, Loader, Mixing, SampleId, Samples};
pub use mix::Mix;
pub use object::{Bounds, Detection, Object};
pub use order::Order;
pub use picture::{MOST_PIXELS, Picture, prepare};
pub use preprocess::{Filter, Preprocess, Resize};
pub use resize_inside::ResizeInside;
pub use text::{Tokens, Words};
