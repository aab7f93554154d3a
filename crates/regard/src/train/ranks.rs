//! Data-parallel training in several processes: each processes a part of every batch, and gradients are summed.

#[cfg(feature = "mpi")]
mod mpi;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;

use crate::Error;

/// The processes of a run.
pub trait Ranks {
    /// Index of this process.
    fn rank(&self) -> usize;

    /// Number of processes.
    fn count(&self) -> usize;

    /// All-reduce: replaces values by their sum over all processes, bit-identical in each.
    ///
    /// # Errors
    /// When another process has ended.
    fn sum(&self, values: &mut [f32]) -> Result<(), Error>;

    /// Broadcast: returns the bytes of rank 0 in every process.
    ///
    /// # Errors
    /// When another process has ended.
    fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error>;
}

/// Training in a single process.
#[derive(Clone, Copy, Debug, Default)]
pub struct SingleProcess;

impl Ranks for SingleProcess {
    fn rank(&self) -> usize {
        0
    }

    fn count(&self) -> usize {
        1
    }

    fn sum(&self, _: &mut [f32]) -> Result<(), Error> {
        Ok(())
    }

    fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        Ok(bytes)
    }
}
