//! Work on one picture: on the thread that has it, or shared out when there are fewer pictures than threads.

use rayon::prelude::*;
use std::cell::Cell;

use crate::gathered::rows_in_registers;
use crate::team::Leader;

/// Whether the parts of one picture run on several threads.
pub(crate) enum Within<'a, 't> {
    OneThread,
    Threads(&'a mut Leader<'t>),
    /// Those of the pool, for steps that ask it for threads themselves: a team would keep all of them.
    Pool,
}

/// Who works on a picture when there are fewer of them than threads.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Alone {
    Team,
    Pool,
}

impl Within<'_, '_> {
    /// Rows of a task: all of them, or as many shares as asked for each thread.
    pub fn rows(&self, rows: usize, shares: usize) -> usize {
        match self {
            Self::OneThread => rows.max(1),
            // whole registers of rows, so that no share has an odd rest
            Self::Threads(_) | Self::Pool => {
                rows.div_ceil(shares * rayon::current_num_threads()).next_multiple_of(rows_in_registers())
            }
        }
    }

    /// Runs tasks here one after the other, or on all threads.
    pub fn each<T: Send>(&mut self, tasks: impl Iterator<Item = T>, run: impl Fn(T) + Send + Sync) {
        match self {
            Self::OneThread => tasks.for_each(run),
            Self::Threads(leader) => leader.each(tasks, run),
            Self::Pool => tasks.collect::<Vec<_>>().into_par_iter().for_each(run),
        }
    }
}

/// Answers `answer` numbers for each of the pictures, so many of which are taken together at most.
pub(crate) fn answered(
    images: &[f32],
    image: usize,
    answer: usize,
    together: usize,
    alone: Alone,
    run: impl Fn(&[f32], &mut [f32], &mut Within) + Send + Sync,
) -> Vec<f32> {
    let (pictures, threads) = (images.len() / image, rayon::current_num_threads());
    let mut answers = vec![0.0; pictures * answer];
    if pictures < threads {
        let pairs = images.chunks(together * image).zip(answers.chunks_mut(together * answer));
        match alone {
            Alone::Team => {
                Leader::with_pool(|leader| {
                    pairs.for_each(|(images, answers)| run(images, answers, &mut Within::Threads(leader)));
                });
            }
            Alone::Pool => pairs.for_each(|(images, answers)| run(images, answers, &mut Within::Pool)),
        }
    } else {
        let group = pictures.div_ceil(threads).min(together);
        let pairs = images.par_chunks(group * image).zip(answers.par_chunks_mut(group * answer));
        pairs.for_each(|(images, answers)| run(images, answers, &mut Within::OneThread));
    }
    answers
}

thread_local! {
    /// What is left of the last picture's arrays, for the next one.
    static SPARE: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// An array of at least this length, whatever is in it. Given back, it serves again.
pub(crate) fn spare(len: usize) -> Vec<f32> {
    // taken and not borrowed: a thread that waits inside may begin another task
    let mut spares = SPARE.take();
    // the smallest that is long enough, or else the longest
    let best = (0..spares.len()).min_by_key(|&i| {
        let has = spares[i].len();
        if has >= len { (0, has) } else { (1, usize::MAX - has) }
    });
    let mut array = best.map_or_else(Vec::new, |best| spares.swap_remove(best));
    SPARE.set(spares);
    if array.len() < len {
        array.resize(len, 0.0);
    }
    array
}

/// The way back of [`spare`].
pub(crate) fn give_back(array: Vec<f32>) {
    let mut spares = SPARE.take();
    spares.push(array);
    SPARE.set(spares);
}

/// Runs with an array of this length, whatever is in it.
pub(crate) fn with_scratch<T>(len: usize, run: impl FnOnce(&mut [f32]) -> T) -> T {
    let mut array = spare(len);
    let result = run(&mut array[..len]);
    give_back(array);
    result
}
