//! How row-wise kernels are cut into tasks: by shapes alone, so that thread counts change nothing.

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// What a piece of an array holds when its task begins.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    /// The task itself clears it, just before and in its own cache: clearing a whole array first takes one thread and a
    /// trip through memory.
    Zeros,
    /// Whatever was in the memory, for tasks that write all of it.
    Anything,
}

impl Begin {
    fn of(self, piece: &mut [MaybeUninit<f32>]) -> &mut [f32] {
        match self {
            Self::Zeros => piece.fill(MaybeUninit::new(0.0)),
            // what is not written shows in every test
            Self::Anything if cfg!(debug_assertions) => piece.fill(MaybeUninit::new(f32::NAN)),
            Self::Anything => leave(piece),
        }
        // SAFETY: every element was just written
        unsafe { piece.assume_init_mut() }
    }
}

/// Writes numbers of which nothing is known: those that are there.
fn leave(piece: &mut [MaybeUninit<f32>]) {
    // SAFETY: no instruction. To the compiler it may have written all of the piece, and any bits are a float
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) piece.as_mut_ptr(), options(nostack, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    piece.fill(MaybeUninit::new(0.0));
}

fn made_with<T: Send>(
    len: usize,
    piece: usize,
    begin: Begin,
    fill: impl Fn(usize, &mut [f32]) -> T + Sync,
) -> (Vec<f32>, Vec<T>) {
    let mut out = Vec::with_capacity(len);
    let pieces = out.spare_capacity_mut()[..len].par_chunks_mut(piece.max(1)).enumerate();
    let given = pieces.map(|(index, piece)| fill(index, begin.of(piece))).collect();
    // SAFETY: the pieces were the whole array, and a task that panics does not come here
    unsafe { out.set_len(len) };
    (out, given)
}

/// An array of zeros that tasks add to piece by piece.
pub(crate) fn filled(len: usize, piece: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    made_with(len, piece, Begin::Zeros, fill).0
}

/// An array that tasks write piece by piece, every element of it.
pub(crate) fn written(len: usize, piece: usize, write: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    made_with(len, piece, Begin::Anything, write).0
}

/// The same, and what tasks give beside it.
pub(crate) fn written_with<T: Send>(
    len: usize,
    piece: usize,
    write: impl Fn(usize, &mut [f32]) -> T + Sync,
) -> (Vec<f32>, Vec<T>) {
    made_with(len, piece, Begin::Anything, write)
}

/// Two arrays, of so many pieces of the given lengths each, the last ones shorter; tasks write a piece of both.
pub(crate) fn written_pair(
    [len, other]: [usize; 2],
    [piece, other_piece]: [usize; 2],
    write: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
) -> [Vec<f32>; 2] {
    assert_eq!(len.div_ceil(piece), other.div_ceil(other_piece), "arrays of as many pieces");
    let mut arrays = [Vec::with_capacity(len), Vec::with_capacity(other)];
    let [first, second] = &mut arrays;
    let first = first.spare_capacity_mut()[..len].par_chunks_mut(piece);
    first
        .zip(second.spare_capacity_mut()[..other].par_chunks_mut(other_piece))
        .enumerate()
        .for_each(|(index, (first, second))| write(index, Begin::Anything.of(first), Begin::Anything.of(second)));
    for (array, len) in arrays.iter_mut().zip([len, other]) {
        // SAFETY: the pieces were the whole array, and a task that panics does not come here
        unsafe { array.set_len(len) };
    }
    arrays
}

/// Piece number `index` of an array; the last one may be shorter.
pub(crate) fn piece(x: &[f32], index: usize, len: usize) -> &[f32] {
    &x[index * len..x.len().min((index + 1) * len)]
}

/// Arrays of one length, one after the other.
pub(crate) fn joined(parts: &[Vec<f32>]) -> Vec<f32> {
    let len = parts.first().map_or(0, Vec::len);
    let task = rows_per_task(len);
    written(parts.len() * len, task * len, |index, out| {
        for (out, part) in out.chunks_exact_mut(len).zip(&parts[index * task..]) {
            out.copy_from_slice(part);
        }
    })
}

/// Rows of one task: about 16 Ki elements, enough to pay for a task, few enough to share out.
pub(crate) fn rows_per_task(width: usize) -> usize {
    (16_384 / width.max(1)).max(1)
}

/// How many of `count` things a task takes, at most about `most`: tasks of equal size, and an even number of them, so
/// that two threads are done at once. By shapes alone: sums in other parts have other bits.
pub(crate) fn share(count: usize, most: usize) -> usize {
    let tasks = count.div_ceil(most.max(1)).next_multiple_of(2);
    count.div_ceil(tasks.max(1)).max(1)
}

/// Adds partial sums in the order of their tasks.
pub(crate) fn add_all(into: &mut [f32], partials: impl IntoIterator<Item = Vec<f32>>) {
    let partials: Vec<Vec<f32>> = partials.into_iter().collect();
    let task = rows_per_task(1);
    into.par_chunks_mut(task).enumerate().for_each(|(index, into)| {
        for partial in &partials {
            for (sum, part) in into.iter_mut().zip(piece(partial, index, task)) {
                *sum += part;
            }
        }
    });
}
