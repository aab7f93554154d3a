//! Threads that stay together for one picture.
//!
//! A picture goes through some hundred steps of less than a millisecond. Between them a pool's threads would go to sleep
//! and be woken by the system, which takes long on a machine that is virtual or busy. The threads of a team wait awake,
//! from the first step to the last.

use std::cell::UnsafeCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::yield_now;

/// Looks for work before a thread lets others run in between: some tens of microseconds.
const PATIENCE: usize = 2000;

/// The thread that leads, and others of the pool that have come to help.
pub(crate) struct Team {
    /// Written while the step is closed and nobody is inside.
    job: UnsafeCell<Job>,
    /// Odd while there is something to do; another number for every step.
    step: AtomicUsize,
    /// Helpers that may be looking at the job.
    inside: AtomicUsize,
    /// The next task of the step.
    next: AtomicUsize,
    finished: AtomicBool,
}

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    count: usize,
}

// SAFETY: the job is written by the leader alone and read by helpers only between its writes, see `each` and `help`
unsafe impl Sync for Team {}

impl Team {
    /// Leads a team through `work`. Those who are busy elsewhere come later, or never: the leader does what is left.
    pub fn gather<T>(work: impl FnOnce(&Self) -> T) -> T {
        let none: *const (dyn Fn(usize) + Sync) = &|_| ();
        let team = Self {
            job: UnsafeCell::new(Job { run: none, count: 0 }),
            step: AtomicUsize::new(0),
            inside: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
        };
        rayon::in_place_scope(|scope| {
            for _ in 1..rayon::current_num_threads() {
                scope.spawn(|_| team.help());
            }
            let _end = After(|| team.finished.store(true, Ordering::Release));
            work(&team)
        })
    }

    /// Runs every task on whoever is free, and comes back when all are done.
    pub fn each<T: Send>(&self, tasks: impl Iterator<Item = T>, run: impl Fn(T) + Sync) {
        let tasks: Vec<Mutex<Option<T>>> = tasks.map(|task| Mutex::new(Some(task))).collect();
        let run = |index: usize| {
            let task = tasks[index].lock().ok().and_then(|mut task| task.take());
            task.into_iter().for_each(&run);
        };
        let run: &(dyn Fn(usize) + Sync) = &run;
        // SAFETY: only the lifetime changes; when `_closed` is dropped, nobody looks at the job any more
        let run = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(run) };
        let job = Job { run, count: tasks.len() };
        // SAFETY: the last step was closed and everybody has left it
        unsafe { *self.job.get() = job };
        self.next.store(0, Ordering::Relaxed);
        self.step.fetch_add(1, Ordering::SeqCst);
        let _closed = After(|| {
            self.step.fetch_add(1, Ordering::SeqCst);
            wait_until(|| self.inside.load(Ordering::SeqCst) == 0);
        });
        self.take_tasks(job);
    }

    fn take_tasks(&self, job: Job) {
        loop {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            if index >= job.count {
                return;
            }
            // SAFETY: the leader keeps what the job borrows until the step is closed and nobody is inside
            unsafe { (*job.run)(index) };
        }
    }

    fn help(&self) {
        let mut seen = 0;
        loop {
            let mut step = seen;
            wait_until(|| {
                step = self.step.load(Ordering::SeqCst);
                (step != seen && step % 2 == 1) || self.finished.load(Ordering::Acquire)
            });
            if step == seen || step.is_multiple_of(2) {
                return;
            }
            seen = step;
            self.inside.fetch_add(1, Ordering::SeqCst);
            let _left = After(|| _ = self.inside.fetch_sub(1, Ordering::SeqCst));
            // who came too late must not look; the leader waits for all others
            if self.step.load(Ordering::SeqCst) == step {
                // SAFETY: the step is open, so the leader does not write
                let job = unsafe { *self.job.get() };
                self.take_tasks(job);
            }
        }
    }
}

/// Waits awake.
fn wait_until(mut done: impl FnMut() -> bool) {
    let mut looks = 0;
    while !done() {
        looks += 1;
        if looks < PATIENCE { std::hint::spin_loop() } else { yield_now() }
    }
}

/// Does something at its end, come what may.
struct After<F: FnMut()>(F);

impl<F: FnMut()> Drop for After<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn on_threads<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> T {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    }

    #[test]
    fn every_task_of_every_step_is_done_once_and_before_the_next_step() {
        for threads in [1, 2, 5] {
            on_threads(threads, || {
                let mut numbers = vec![0_usize; 37];
                Team::gather(|team| {
                    for step in 0..2000 {
                        team.each(numbers.iter_mut(), |number| {
                            assert_eq!(*number, step);
                            *number += 1;
                        });
                    }
                });
                assert!(numbers.iter().all(|&number| number == 2000), "{threads} threads");
            });
        }
    }

    #[test]
    fn a_task_that_panics_is_heard_on_any_thread() {
        for threads in [1, 3] {
            on_threads(threads, || {
                for broken in 0..8 {
                    let run = || {
                        Team::gather(|team| {
                            team.each(0..8, |task| assert_ne!(task, broken));
                        });
                    };
                    assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "task {broken} on {threads} threads");
                }
            });
        }
    }

    #[test]
    fn a_team_works_inside_a_team_and_outside_a_pool() {
        let sum = AtomicUsize::new(0);
        Team::gather(|team| {
            team.each(1..=4, |outer| {
                Team::gather(|team| team.each(1..=4, |inner| _ = sum.fetch_add(outer * inner, Ordering::Relaxed)));
            });
        });
        assert_eq!(sum.into_inner(), 100);
    }
}
