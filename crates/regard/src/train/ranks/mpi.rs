//! Processes that `mpirun` started, on one machine or several.
//!
//! If a process dies, the job ends: on an error, MPI ends every process. So nothing here returns an error, and a process that
//! fails must call [`abort`](Mpi::abort).

use mpi::Threading;
use mpi::collective::{Root as _, SystemOperation};
use mpi::environment::Universe;
use mpi::topology::{Communicator as _, SimpleCommunicator};

use super::Ranks;
use crate::Error;

/// Bytes per message: MPI counts in 32 bits, and small messages keep its buffers small.
const BUCKET: usize = 4 << 20;

/// Environment variables set by launchers: Open MPI, others with `PMIx`, MPICH and Slurm.
const LAUNCHED: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"];

/// All processes of an MPI job. Dropping it waits for the others to do the same.
pub struct Mpi {
    world: SimpleCommunicator,
    _universe: Universe,
}

impl Mpi {
    /// Joins the job; none if there is no launcher. To be called once, on the main thread.
    #[must_use]
    pub fn start() -> Option<Self> {
        LAUNCHED.into_iter().find(|name| std::env::var_os(name).is_some())?;
        // other threads exist, but only this one uses MPI
        let (universe, _) = mpi::initialize_with_threading(Threading::Funneled)?;
        let world = universe.world();
        (world.size() > 1).then_some(Self { world, _universe: universe })
    }

    /// Ends every process of the job.
    pub fn abort(&self, status: u8) -> ! {
        self.world.abort(status.into())
    }
}

impl std::fmt::Debug for Mpi {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mpi").field("rank", &self.rank()).field("count", &self.count()).finish()
    }
}

impl Ranks for Mpi {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn count(&self) -> usize {
        self.world.size() as usize
    }

    fn sum(&self, values: &mut [f32]) -> Result<(), Error> {
        let first = self.world.process_at_rank(0);
        let mut own = Vec::new();
        for bucket in values.chunks_mut(BUCKET / size_of::<f32>()) {
            // reduce to rank 0 and broadcast, so that every process has the same bits
            if self.rank() == 0 {
                own.clear();
                own.extend_from_slice(bucket);
                first.reduce_into_root(&own[..], bucket, SystemOperation::sum());
            } else {
                first.reduce_into(bucket, SystemOperation::sum());
            }
            first.broadcast_into(bucket);
        }
        Ok(())
    }

    fn share(&self, mut bytes: Vec<u8>) -> Result<Vec<u8>, Error> {
        let first = self.world.process_at_rank(0);
        let mut length = [bytes.len() as u64];
        first.broadcast_into(&mut length[..]);
        bytes.resize(length[0] as usize, 0);
        for bucket in bytes.chunks_mut(BUCKET) {
            first.broadcast_into(bucket);
        }
        Ok(bytes)
    }
}
