//! Threads that stay together for one picture.
//!
//! Inference on one picture runs some hundred parallel steps of less than a millisecond each. Between them the pool's
//! threads would park and the system would have to wake them, which takes long on a virtual or busy machine. The threads
//! of a team spin instead, from the first step to the last.
//!
//! The protocol is checked by `loom` (`loom_tests`): `RUSTFLAGS="--cfg loom" cargo test -p regard-kernels --release team_loom`.

#[cfg(loom)]
use loom::cell::UnsafeCell;
#[cfg(loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::Mutex;
#[cfg(not(loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

#[cfg(not(loom))]
use cell::UnsafeCell;

/// The standard cell with the interface of `loom`'s.
#[cfg(not(loom))]
mod cell {
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }
        #[inline(always)]
        pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
            read(self.0.get())
        }
        #[inline(always)]
        pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
            write(self.0.get())
        }
    }
}

/// What the leader and its helpers share.
struct Team {
    /// Written by the leader while the step is closed and nobody is inside, read by helpers that are inside.
    job: UnsafeCell<Job>,
    /// The number of the step, odd while it is open, times [`STEP`], plus the number of helpers inside. One atomic for
    /// both: a helper that enters learns in the same instant whether the step is open, and a leader that closes it
    /// learns who is inside.
    state: AtomicU64,
    /// The next task of the step.
    next: AtomicUsize,
    finished: AtomicBool,
}

/// One step in [`Team::state`].
const STEP: u64 = 1 << 32;

#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    count: usize,
}

// SAFETY: the job is the only part that is not `Sync`. The leader alone writes it, while no helper is inside (`each`), and
// helpers read it only inside an open step (`help`); what it points to is `Sync`
unsafe impl Sync for Team {}
// SAFETY: as above: the pointer is followed only while the leader keeps what it points to
unsafe impl Send for Team {}

/// Gives a team its tasks. There is one per team, it cannot be cloned, and running a step borrows it
/// mutably: a task cannot start another step of its own team.
pub(crate) struct Leader<'a> {
    team: &'a Team,
}

impl Leader<'_> {
    /// Leads the threads of the pool through `work`. Threads that are busy elsewhere come later, or never: the leader does
    /// what is left.
    pub fn with_pool<T>(work: impl FnOnce(&mut Leader) -> T) -> T {
        let team = Team::new();
        rayon::in_place_scope(|scope| {
            for _ in 1..rayon::current_num_threads() {
                scope.spawn(|_| team.help());
            }
            let _finish = OnDrop(|| team.finish());
            work(&mut Leader { team: &team })
        })
    }

    /// Runs every task on whoever is free, and returns when all are done.
    pub fn each<T: Send>(&mut self, tasks: impl Iterator<Item = T>, run: impl Fn(T) + Sync) {
        let tasks: Vec<Mutex<Option<T>>> = tasks.map(|task| Mutex::new(Some(task))).collect();
        let run = |index: usize| {
            let task = tasks[index].lock().ok().and_then(|mut task| task.take());
            task.into_iter().for_each(&run);
        };
        let run: &(dyn Fn(usize) + Sync) = &run;
        // SAFETY: only the lifetime changes; `close` is dropped before `run` and `tasks`, also in a panic, and then nobody
        // looks at the job any more
        let run = unsafe { std::mem::transmute::<&(dyn Fn(usize) + Sync), *const (dyn Fn(usize) + Sync)>(run) };
        let job = Job { run, count: tasks.len() };
        let team = self.team;
        // SAFETY: no step is open, since there is one leader and it is borrowed mutably while one is; the last step was
        // closed and everybody has left it, so nobody reads
        team.job.with_mut(|place| unsafe { *place = job });
        team.next.store(0, Ordering::Relaxed);
        let _close = OnDrop(|| team.close());
        team.state.fetch_add(STEP, Ordering::Release);
        team.take_tasks(job);
    }
}

impl Team {
    fn new() -> Self {
        let none: *const (dyn Fn(usize) + Sync) = &|_| ();
        Self {
            job: UnsafeCell::new(Job { run: none, count: 0 }),
            state: AtomicU64::new(0),
            next: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
        }
    }

    /// Closes the open step and waits until every helper has left it.
    fn close(&self) {
        self.state.fetch_add(STEP, Ordering::AcqRel);
        spin_until(|| self.state.load(Ordering::Acquire).is_multiple_of(STEP));
    }

    /// Sends the helpers home.
    fn finish(&self) {
        self.finished.store(true, Ordering::Release);
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

    /// Takes tasks of every step, until the team is finished.
    fn help(&self) {
        let mut seen = 0;
        loop {
            let mut open = false;
            spin_until(|| {
                open = is_new(self.state.load(Ordering::Relaxed), seen);
                open || self.finished.load(Ordering::Acquire)
            });
            if !open {
                return;
            }
            self.enter(&mut seen);
        }
    }

    /// Takes tasks of the open step, if there is one after the step that was `seen` last.
    fn enter(&self, seen: &mut u64) {
        let state = self.state.fetch_add(1, Ordering::AcqRel);
        let _leave = OnDrop(|| _ = self.state.fetch_sub(1, Ordering::Release));
        // the step may have been closed meanwhile: the leader does not wait for a helper that comes too late
        if is_new(state, *seen) {
            *seen = state / STEP;
            // SAFETY: the step was open when this helper came in, so the leader does not write before it has left
            let job = self.job.with(|job| unsafe { *job });
            self.take_tasks(job);
        }
    }
}

/// Whether a step is open that is not the one `seen` last.
fn is_new(state: u64, seen: u64) -> bool {
    state / STEP != seen && (state / STEP) % 2 == 1
}

/// How often a thread looks before it lets others run in between: some tens of microseconds.
#[cfg(not(loom))]
const SPINS: usize = 2000;

/// Waits without parking the thread.
#[cfg(not(loom))]
fn spin_until(mut done: impl FnMut() -> bool) {
    let mut looks = 0;
    while !done() {
        looks += 1;
        if looks < SPINS { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(loom)]
fn spin_until(mut done: impl FnMut() -> bool) {
    while !done() {
        loom::thread::yield_now();
    }
}

/// Does something when it goes out of scope, also in a panic.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

#[cfg(all(test, not(loom)))]
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
                Leader::with_pool(|leader| {
                    for step in 0..500 {
                        leader.each(numbers.iter_mut(), |number| {
                            assert_eq!(*number, step);
                            *number += 1;
                        });
                    }
                });
                assert!(numbers.iter().all(|&number| number == 500), "{threads} threads");
            });
        }
    }

    #[test]
    fn a_task_that_panics_is_heard_on_any_thread() {
        for threads in [1, 3] {
            on_threads(threads, || {
                for broken in 0..8 {
                    let run = || {
                        Leader::with_pool(|leader| {
                            leader.each(0..8, |task| assert_ne!(task, broken));
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
        Leader::with_pool(|leader| {
            leader.each(1..=4, |outer| {
                Leader::with_pool(|leader| {
                    leader.each(1..=4, |inner| _ = sum.fetch_add(outer * inner, Ordering::Relaxed));
                });
            });
        });
        assert_eq!(sum.into_inner(), 100);
    }
}

/// Every order in which threads can run, within loom's bounds.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// One leader and some helpers go through steps; every task writes a cell of its own, which the leader reads
    /// afterwards: loom reports a race if a helper is still inside, and a task that is lost or done twice is seen.
    fn steps(helpers: usize, steps: usize, tasks: usize, help: fn(&Team)) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(move || {
            let team = Arc::new(Team::new());
            let threads: Vec<_> = (0..helpers)
                .map(|_| {
                    let team = Arc::clone(&team);
                    thread::spawn(move || help(&team))
                })
                .collect();
            let cells: Vec<UnsafeCell<usize>> = (0..tasks).map(|_| UnsafeCell::new(0)).collect();
            let mut leader = Leader { team: &team };
            for step in 0..steps {
                leader.each(cells.iter().map(Shared), |Shared(cell)| {
                    // SAFETY: a task has its cell for itself, which loom checks
                    cell.with_mut(|number| unsafe { *number += 1 });
                });
                for cell in &cells {
                    // SAFETY: the step is over, which loom checks
                    assert_eq!(cell.with(|number| unsafe { *number }), step + 1);
                }
            }
            team.finish();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }

    /// Helpers that look twice and do not wait: loom has no fairness, so of two threads that spin none might ever let the
    /// leader run.
    fn look_twice(team: &Team) {
        let mut seen = 0;
        team.enter(&mut seen);
        team.enter(&mut seen);
    }

    struct Shared<'a>(&'a UnsafeCell<usize>);
    // SAFETY: what the test is about: loom reports a race if two threads have the cell at once
    unsafe impl Send for Shared<'_> {}

    #[test]
    fn team_loom_one_helper_and_two_steps() {
        steps(1, 2, 2, Team::help);
    }

    #[test]
    fn team_loom_two_helpers_and_two_steps() {
        steps(2, 2, 2, look_twice);
    }
}
