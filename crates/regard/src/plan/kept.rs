//! Plans of one model for several sizes of pictures.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Plan;
use crate::models::Model;

/// How many plans are kept: each has its own packed weights.
const KEPT: usize = 2;

/// A picture `[C, H, W]` and its plan; none where there is no plan.
type Entry = ([usize; 3], Option<Arc<Plan>>);

/// Plans by the picture `[C, H, W]`, made when they are needed first; the latest few are kept.
#[derive(Debug, Default)]
pub(crate) struct Plans {
    /// The latest comes last.
    kept: Mutex<Vec<Entry>>,
}

impl Plans {
    /// The plan for a picture; none if the forward pass has an operation that no plan computes.
    pub(crate) fn get(&self, model: &Model, picture: [usize; 3]) -> Option<Arc<Plan>> {
        let known = self.find(picture);
        // without the lock: a thread that waits for others while it makes a plan may start another task, which asks too
        let entry = known.unwrap_or_else(|| (picture, Plan::of(model, picture).ok().map(Arc::new)));
        let plan = entry.1.clone();
        let mut kept = self.lock();
        kept.retain(|(shape, _)| *shape != picture);
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push(entry);
        plan
    }

    fn find(&self, picture: [usize; 3]) -> Option<Entry> {
        self.lock().iter().find(|(shape, _)| *shape == picture).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        // entries are replaced as a whole, so a panic cannot leave one half-written
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
