//! What needs more than one module: files of others, layers of the source, devices.

mod deit;
mod detransliterator;
#[cfg(feature = "wgpu")]
mod gpu;
mod layering;
mod minilm;
mod parity;
