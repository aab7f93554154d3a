//! Several processes that train one model: each makes a part of every batch, and they add their gradients.

#[cfg(feature = "mpi")]
mod mpi;

#[cfg(feature = "mpi")]
pub use mpi::Mpi;

use crate::Error;

/// The processes of a run.
pub trait Ranks {
    /// Which one this is.
    fn rank(&self) -> usize;

    /// How many there are.
    fn count(&self) -> usize;

    /// The sum over all processes, in each of them; the same bits in each.
    ///
    /// # Errors
    /// When another process is gone.
    fn sum(&self, values: &mut [f32]) -> Result<(), Error>;

    /// The bytes of the first process, in each of them.
    ///
    /// # Errors
    /// When another process is gone.
    fn share(&self, bytes: Vec<u8>) -> Result<Vec<u8>, Error>;
}

/// One process alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Ranks for Alone {
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
