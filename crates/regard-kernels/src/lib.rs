//! The loops under Regard: forward and backward on plain `f32` slices, row-major and contiguous.
//!
//! - SIMD is chosen at run time: AVX-512, AVX2 with FMA, or portable code ([`simd::Path`]).
//! - Threads come from rayon. Work is cut by shapes alone and partial sums are added in a fixed order,
//!   so results do not depend on the number of threads.
//! - Nothing of size N x M (attention) or k*k times the input (windows) is ever stored.
//!
//! Wrong lengths are bugs of the caller and panic. This is the only crate with `unsafe`.
#![allow(unsafe_code)]
// only inlined code is compiled with the instruction set of the kernel around it
#![allow(clippy::inline_always)]

pub mod additive;
pub mod attention;
pub mod batch_norm;
pub mod blocks;
pub mod boxes;
pub mod channels;
pub mod convolution;
pub mod convolution3d;
pub mod cross_entropy;
pub mod dropout;
mod elementwise;
pub mod encoder;
pub mod epilogue;
pub mod focal;
pub mod gamma;
mod gathered;
pub mod gelu;
mod heads;
pub mod integer;
pub mod layer_norm;
pub mod linear;
pub mod local;
mod math;
pub mod memory;
pub mod nl_means;
pub mod nms;
pub mod optimise;
pub mod packed_convolution;
pub mod pair_relu;
pub mod pairwise;
mod parallel;
pub mod patchwise;
mod planes;
mod pointwise;
pub mod pool;
pub mod pool3d;
mod product;
pub mod residual;
pub mod roi_align;
pub mod san;
pub mod simd;
mod size;
pub mod softmax;
pub mod strided;
mod team;
mod tile;
pub mod transformer;
mod uninit;
pub mod window;

#[cfg(any(test, feature = "naive"))]
pub mod naive;
