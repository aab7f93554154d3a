//! How the work on one picture runs: on one thread, or on several when there are fewer pictures than threads.

use rayon::prelude::*;
use std::cell::Cell;

use crate::gathered::rows_in_registers;
use crate::team::Leader;

/// On which threads the parts of one picture run.
pub(crate) enum Parallel<'a, 't> {
    Serial,
    Team(&'a mut Leader<'t>),
    /// The threads of the pool, for steps that use the pool themselves: a team would occupy all of them.
    Pool,
}

/// Which threads help with a picture when there are fewer pictures than threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Helpers {
    Team,
    Pool,
}

impl Parallel<'_, '_> {
    /// Rows of a task: all of them, or so few that every thread gets `shares` tasks.
    pub fn rows(&self, rows: usize, shares: usize) -> usize {
        match self {
            Self::Serial => rows.max(1),
            // a multiple of the rows that registers hold, so that no task has a remainder
            Self::Team(_) | Self::Pool => {
                rows.div_ceil(shares * rayon::current_num_threads()).next_multiple_of(rows_in_registers())
            }
        }
    }

    /// Runs tasks here one after the other, or on all threads.
    pub fn each<T: Send>(&mut self, tasks: impl Iterator<Item = T>, run: impl Fn(T) + Send + Sync) {
        match self {
            Self::Serial => tasks.for_each(run),
            Self::Team(leader) => leader.each(tasks, run),
            Self::Pool => tasks.collect::<Vec<_>>().into_par_iter().for_each(run),
        }
    }
}

/// Computes `answer` numbers for each picture; `run` gets at most `together` pictures at once.
pub(crate) fn for_each_picture(
    images: &[f32],
    image: usize,
    answer: usize,
    together: usize,
    alone: Helpers,
    run: impl Fn(&[f32], &mut [f32], &mut Parallel) + Send + Sync,
) -> Vec<f32> {
    let (pictures, threads) = (images.len() / image, rayon::current_num_threads());
    let mut answers = vec![0.0; pictures * answer];
    if pictures < threads {
        let pairs = images.chunks(together * image).zip(answers.chunks_mut(together * answer));
        match alone {
            Helpers::Team => {
                Leader::with_pool(|leader| {
                    pairs.for_each(|(images, answers)| run(images, answers, &mut Parallel::Team(leader)));
                });
            }
            Helpers::Pool => pairs.for_each(|(images, answers)| run(images, answers, &mut Parallel::Pool)),
        }
    } else {
        let group = pictures.div_ceil(threads).min(together);
        let pairs = images.par_chunks(group * image).zip(answers.par_chunks_mut(group * answer));
        pairs.for_each(|(images, answers)| run(images, answers, &mut Parallel::Serial));
    }
    answers
}

thread_local! {
    /// Buffers of earlier pictures, to be used again.
    static BUFFERS: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// A buffer of at least this length with unspecified numbers in it. Returned, it is used again.
pub(crate) fn take_buffer(len: usize) -> Vec<f32> {
    // taken and not borrowed: a thread that waits inside rayon may start another task
    let mut buffers = BUFFERS.take();
    // the smallest that is long enough, or else the longest
    let best = (0..buffers.len()).min_by_key(|&i| {
        let has = buffers[i].len();
        if has >= len { (0, has) } else { (1, usize::MAX - has) }
    });
    let mut array = best.map_or_else(Vec::new, |best| buffers.swap_remove(best));
    BUFFERS.set(buffers);
    if array.len() < len {
        array.resize(len, 0.0);
    }
    array
}

/// Returns a buffer of [`take_buffer`].
pub(crate) fn return_buffer(array: Vec<f32>) {
    let mut buffers = BUFFERS.take();
    buffers.push(array);
    BUFFERS.set(buffers);
}

/// Floats of a cache line, which a vector of AVX-512 fills.
pub(crate) const LINE: usize = 16;

/// Runs with a buffer of this length, with unspecified numbers in it. It begins with a cache line: a vector that lies in
/// two of them takes twice as long.
pub(crate) fn with_scratch<T>(len: usize, run: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut array = take_buffer(len + LINE);
    let start = array.as_ptr().align_offset(LINE * size_of::<f32>());
    // an offset that cannot be had is larger than any array
    let result = run(&mut array[start.min(LINE)..][..len]);
    return_buffer(array);
    result
}
