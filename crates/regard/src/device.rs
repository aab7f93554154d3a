//! Devices by name. Nothing in the library uses a default device: it would become the GPU by itself.

use burn::tensor::Device;

use crate::Error;

/// The CPU, with our own kernels.
#[must_use]
pub fn cpu() -> Device {
    Device::flex()
}

/// Keeps freed memory for later tensors on the CPU, for the whole process: training steps become faster, up to a third.
///
/// For programs to call once at their start.
pub fn keep_memory() {
    regard_kernels::memory::keep_freed();
}

/// Gives freed memory back to the system, after work that took much more than what comes next will.
pub fn release_memory() {
    regard_kernels::memory::release_freed();
}

/// Takes memory for tensors on the CPU in large pages: what runs for long becomes faster, up to a tenth.
///
/// For programs to call after [`keep_memory`], before they start threads.
pub fn large_pages() {
    regard_kernels::memory::use_huge_pages();
}

/// The device that a user names: `cpu`, `wgpu` or `cuda`.
///
/// # Errors
/// When the name is unknown or this build was made without that device.
pub fn by_name(name: &str) -> Result<Device, Error> {
    let unavailable = |reason: &str| Err(Error::Device { name: name.into(), reason: reason.into() });
    match name {
        "cpu" => Ok(cpu()),
        #[cfg(feature = "wgpu")]
        "wgpu" => Ok(Device::wgpu(burn::tensor::DeviceKind::DefaultDevice)),
        #[cfg(feature = "cuda")]
        "cuda" => Ok(Device::cuda(0)),
        #[cfg(not(feature = "wgpu"))]
        "wgpu" => unavailable(&left_out(name)),
        #[cfg(not(feature = "cuda"))]
        "cuda" => unavailable(&left_out(name)),
        _ => unavailable("unknown; known devices are cpu, wgpu, cuda"),
    }
}

#[cfg(not(all(feature = "wgpu", feature = "cuda")))]
fn left_out(name: &str) -> String {
    format!("this binary was built without it; build with `--features {name}`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_device_is_named_in_the_error() {
        let error = by_name("tpu").unwrap_err().to_string();
        assert!(error.contains("`tpu`") && error.contains("cpu, wgpu, cuda"), "{error}");
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn a_device_left_out_of_the_build_says_how_to_get_it() {
        assert!(by_name("cuda").unwrap_err().to_string().contains("--features cuda"));
    }
}
