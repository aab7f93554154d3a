//! Signals that stop a run after its step.

use regard::train::Ranks;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::io::{Write as _, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use crate::failure::Failure;

/// SIGINT or SIGTERM: stops a run after its step; a second one ends the process at once.
///
/// Under a launcher a second signal is ignored: it may forward one signal twice, and kills the job itself after a while.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicI32>);

impl Interrupt {
    pub fn listen(ranks: &dyn Ranks) -> Result<Self, Failure> {
        let (alone, first) = (ranks.count() == 1, ranks.rank() == 0);
        let received = Arc::new(AtomicI32::new(0));
        let seen = received.clone();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(|error| {
            Failure::ours(format!("cannot listen to signals: {error}"), "is this platform supported?")
        })?;
        std::thread::spawn(move || {
            for signal in signals.forever() {
                let again = seen.swap(signal, Ordering::SeqCst) != 0;
                if again && alone {
                    std::process::exit(128 + signal);
                }
                // the run prints more when its step is done
                if alone {
                    let _ = writeln!(stderr(), "\nstopping after this step; again to stop at once");
                } else if first && !again {
                    let _ = writeln!(stderr(), "stopping after the next step");
                }
            }
        });
        Ok(Self(received))
    }

    pub fn is_pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst) != 0
    }

    /// The exit status for the signal, as in shells.
    pub fn status(&self) -> u8 {
        match self.0.load(Ordering::SeqCst) {
            0 => 130,
            signal => 128 + signal as u8,
        }
    }
}
