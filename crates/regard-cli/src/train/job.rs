//! `regard train` as one process of an MPI job: no process waits for one that failed.

use regard::train::{Mpi, Ranks as _};
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use crate::failure::Failure;

/// Longer than the launcher takes to end a job.
const PATIENCE: Duration = Duration::from_secs(3);

/// Runs the part of this process. One that fails says so with its rank and ends the whole job.
pub fn run(ranks: Mpi, part: impl FnOnce(&Mpi) -> Result<(), Failure>) -> Result<(), Failure> {
    // a panic that went on from here would wait for the others while they wait for us
    match Failure::of_panics(AssertUnwindSafe(|| part(&ranks))) {
        Err(failure @ (Failure::Input { .. } | Failure::Ours { .. } | Failure::Found { .. })) => {
            // what all of them found is told once: the first ends the others here
            if ranks.rank() > 0 {
                std::thread::sleep(PATIENCE);
            }
            let failure = failure.of_rank(ranks.rank());
            failure.tell(false);
            ranks.abort(failure.status())
        }
        // told before we wait for the others: a launcher that was stopped too may end us while we do
        Err(failure @ Failure::Stopped { .. }) => {
            failure.tell(false);
            drop(ranks);
            std::process::exit(failure.status().into())
        }
        done => done,
    }
}
