//! How row-wise kernels are cut into tasks: by shapes alone, so that thread counts change nothing.

use rayon::prelude::*;
use std::mem::MaybeUninit;

use crate::uninit::UninitWriter;

/// An array that tasks write piece by piece, each from the first element of its piece to the last.
///
/// # Panics
/// When a task does not.
pub(crate) fn written(len: usize, piece: usize, write: impl Fn(usize, &mut UninitWriter) + Sync) -> Vec<f32> {
    written_with(len, piece, write).0
}

/// The same, and what the tasks return.
pub(crate) fn written_with<T: Send>(
    len: usize,
    piece: usize,
    write: impl Fn(usize, &mut UninitWriter) -> T + Sync,
) -> (Vec<f32>, Vec<T>) {
    let mut out = Vec::with_capacity(len);
    let pieces = out.spare_capacity_mut()[..len].par_chunks_mut(piece.max(1)).enumerate();
    let results = pieces.map(|(index, slots)| {
        let mut writer = UninitWriter::new(slots);
        let result = write(index, &mut writer);
        assert!(writer.is_full(), "a task left {} elements of its piece", writer.room());
        result
    });
    let results = results.collect();
    // SAFETY: the pieces are the whole array, and every one is full; a task that panics does not come here
    unsafe { out.set_len(len) };
    (out, results)
}

/// Two arrays, of so many pieces of the given lengths each, the last ones shorter; a task writes a piece of both.
///
/// # Panics
/// When a task does not.
pub(crate) fn written_pair(
    [len, other]: [usize; 2],
    [piece, other_piece]: [usize; 2],
    write: impl Fn(usize, &mut UninitWriter, &mut UninitWriter) + Sync,
) -> [Vec<f32>; 2] {
    assert_eq!(len.div_ceil(piece), other.div_ceil(other_piece), "arrays of as many pieces");
    let mut arrays = [Vec::with_capacity(len), Vec::with_capacity(other)];
    let [first, second] = &mut arrays;
    let first = first.spare_capacity_mut()[..len].par_chunks_mut(piece);
    first.zip(second.spare_capacity_mut()[..other].par_chunks_mut(other_piece)).enumerate().for_each(
        |(index, (first, second))| {
            let (mut first, mut second) = (UninitWriter::new(first), UninitWriter::new(second));
            write(index, &mut first, &mut second);
            assert!(first.is_full() && second.is_full(), "a task left elements of its pieces");
        },
    );
    for (array, len) in arrays.iter_mut().zip([len, other]) {
        // SAFETY: the pieces are the whole array, and every one is full; a task that panics does not come here
        unsafe { array.set_len(len) };
    }
    arrays
}

/// An array of zeros that tasks overwrite or add to piece by piece.
///
/// A task clears its own piece, just before and in its own cache: clearing the whole array first takes one thread and a
/// trip through memory.
pub(crate) fn zeroed(len: usize, piece: usize, fill: impl Fn(usize, &mut [f32]) + Sync) -> Vec<f32> {
    let mut out = Vec::with_capacity(len);
    let pieces = out.spare_capacity_mut()[..len].par_chunks_mut(piece.max(1)).enumerate();
    pieces.for_each(|(index, piece)| fill(index, cleared(piece)));
    // SAFETY: the pieces are the whole array, and each of them was cleared
    unsafe { out.set_len(len) };
    out
}

fn cleared(piece: &mut [MaybeUninit<f32>]) -> &mut [f32] {
    piece.fill(MaybeUninit::new(0.0));
    // SAFETY: every element was just written
    unsafe { piece.assume_init_mut() }
}

/// Piece number `index` of an array; the last one may be shorter.
pub(crate) fn piece(x: &[f32], index: usize, len: usize) -> &[f32] {
    &x[index * len..x.len().min((index + 1) * len)]
}

/// Arrays of one length, one after the other.
pub(crate) fn concat(parts: &[Vec<f32>]) -> Vec<f32> {
    let len = parts.first().map_or(0, Vec::len);
    let task = rows_per_task(len);
    written(parts.len() * len, task * len, |index, out| {
        parts[index * task..].iter().take(task).for_each(|part| out.push_slice(part));
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

/// Into how many parts the channels of an image or a clip are cut, so that few large ones are work for all threads; groups of
/// small ones are not parted.
pub(crate) fn channel_parts(batch: usize, group: usize, channels: usize) -> usize {
    /// Channels of a part, at least: columns of a panel.
    const WIDE: usize = 32;
    let fits = |parts: &usize| group == 1 && batch * parts < 8 && channels.is_multiple_of(parts * WIDE);
    [4, 2].into_iter().find(fits).unwrap_or(1)
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
