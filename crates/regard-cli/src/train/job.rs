//! `regard train` as one process of an MPI job: no process waits for one that failed.

use regard::train::{Mpi, Ranks as _};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::failure::Failure;

/// Longer than a launcher takes to end a job.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs this process's part. A process that fails prints the error with its rank and ends the whole job.
pub fn run(ranks: Mpi, part: impl FnOnce(&Mpi) -> Result<(), Failure>) -> Result<(), Failure> {
    // a panic must not unwind past this: MPI would wait for the others, and they for us
    match Failure::of_panics(AssertUnwindSafe(|| part(&ranks))) {
        Err(failure @ (Failure::Input { .. } | Failure::Ours { .. } | Failure::Found { .. })) => {
            // an error that all ranks have is printed once, by rank 0, which then ends the job
            if ranks.rank() > 0 {
                std::thread::sleep(PATIENCE);
            }
            let failure = failure.of_rank(ranks.rank());
            failure.tell(false);
            ranks.abort(failure.status())
        }
        // printed before waiting for the others, because the launcher may end us while we wait
        Err(failure @ Failure::Stopped { .. }) => {
            failure.tell(false);
            drop(ranks);
            std::process::exit(failure.status().into())
        }
        done => done,
    }
}
