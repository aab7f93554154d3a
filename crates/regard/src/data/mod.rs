//! From bytes to tensors.

mod augment;
mod batch;
mod channels;
pub mod check;
pub mod dataset;
mod decode;
pub mod fetch;
pub mod labels;
mod limits;
mod loader;
mod mix;
mod order;
mod picture;
mod preprocess;
mod resample;
mod sheet;
pub mod text;

pub use augment::{Augment, Crop, RandAugment};
pub use batch::{Batch, Target};
pub use channels::to_channels;
pub use dataset::{Dataset, Part};
pub use decode::decode_image;
pub use loader::{Loader, Preparation};
pub use mix::Mix;
pub use order::Order;
pub use picture::{MOST_PIXELS, Picture, prepare};
pub use preprocess::{Filter, Preprocess, Resize};
pub use sheet::shown;
pub use text::Tokens;
