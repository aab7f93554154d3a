//! Memory of new arrays: it is written before it can be read.
//!
//! Clearing a large array first costs a trip through memory. What a task writes from its first element to its last goes
//! through [`UninitWriter`], which counts; what is written in another order, or added to, begins with zeros.

use rayon::prelude::*;
use std::mem::MaybeUninit;

use crate::product;
use crate::simd::Vector;

/// The part of a new array that one task writes, from its first element to its last. It can be written only.
pub(crate) struct UninitWriter<'a> {
    /// The first `len` of them are floats.
    slots: &'a mut [MaybeUninit<f32>],
    len: usize,
}

/// Floats, to be overwritten by floats.
///
/// # Safety
/// Nothing but floats may be written.
pub(crate) unsafe fn as_uninit(floats: &mut [f32]) -> &mut [MaybeUninit<f32>] {
    let floats: *mut [f32] = floats;
    // SAFETY: the same memory with the same layout, borrowed for as long; it stays floats by contract
    unsafe { &mut *(floats as *mut [MaybeUninit<f32>]) }
}

impl<'a> UninitWriter<'a> {
    pub fn new(slots: &'a mut [MaybeUninit<f32>]) -> Self {
        Self { slots, len: 0 }
    }

    /// An array that has floats already, to be overwritten.
    pub fn overwrite(floats: &'a mut [f32]) -> Self {
        // SAFETY: `UninitWriter` writes floats only, and does not give the slots away
        Self { slots: unsafe { as_uninit(floats) }, len: 0 }
    }

    /// Whether every element was written.
    pub fn is_full(&self) -> bool {
        self.len == self.slots.len()
    }

    /// Elements that are written.
    pub fn len(&self) -> usize {
        self.len
    }

    /// What is written so far.
    pub fn written(&mut self) -> &mut [f32] {
        // SAFETY: these are floats, by what `len` counts
        unsafe { self.slots[..self.len].assume_init_mut() }
    }

    /// Elements that are not written yet.
    pub fn room(&self) -> usize {
        self.slots.len() - self.len
    }

    /// What is left, for a loop over vectors; [`LocalWriter::finish`] counts what it wrote.
    #[inline(always)]
    pub fn local(&mut self) -> LocalWriter<'_> {
        LocalWriter { slots: &mut self.slots[self.len..], written: 0, total: &mut self.len }
    }

    pub fn push_slice(&mut self, values: &[f32]) {
        self.slots[self.len..][..values.len()].write_copy_of_slice(values);
        self.len += values.len();
    }

    pub fn push_zeros(&mut self, count: usize) {
        self.slots[self.len..][..count].fill(MaybeUninit::new(0.0));
        self.len += count;
    }

    /// Writes as many values as there are, and as there is room for.
    #[inline(always)]
    pub fn extend(&mut self, values: impl Iterator<Item = f32>) {
        let mut count = 0;
        for (slot, value) in self.slots[self.len..].iter_mut().zip(values) {
            slot.write(value);
            count += 1;
        }
        self.len += count;
    }

    /// Writes the columns of `[rows, columns]`, whose rows are a stride apart, one after the other; zeros follow each of
    /// them up to a length of `width`.
    pub fn push_transposed(&mut self, [rows, columns]: [usize; 2], from: (&[f32], usize), width: usize) {
        assert!(rows <= width, "columns of {rows} in {width}");
        let slots = &mut self.slots[self.len..][..columns * width];
        if rows < width {
            slots.fill(MaybeUninit::new(0.0));
        }
        product::transpose_uninit([rows, columns], from, (slots, width));
        self.len += columns * width;
    }

    /// Writes parts of the given lengths, one after the other, in any order; each from its first element to its last.
    ///
    /// # Panics
    /// When one of them is not written to its end.
    pub fn push_parts<const N: usize>(&mut self, lengths: [usize; N], write: impl FnOnce(&mut [UninitWriter; N])) {
        let mut rest = &mut self.slots[self.len..];
        let mut parts =
            lengths.map(|len| UninitWriter::new(rest.split_off_mut(..len).expect("an array is as long as its parts")));
        write(&mut parts);
        assert!(parts.iter().all(UninitWriter::is_full), "a part was left");
        self.len += lengths.iter().sum::<usize>();
    }

    /// Writes all that is left in pieces, on all threads; each from its first element to its last.
    ///
    /// # Panics
    /// When one of them is not written to its end.
    pub fn fill_pieces(&mut self, piece: usize, write: impl Fn(usize, &mut UninitWriter) + Sync) {
        let pieces = self.slots[self.len..].par_chunks_mut(piece.max(1)).enumerate();
        pieces.for_each(|(index, slots)| {
            let mut piece = UninitWriter::new(slots);
            write(index, &mut piece);
            assert!(piece.is_full(), "a task left {} elements of its piece", piece.room());
        });
        self.len = self.slots.len();
    }

    /// Writes `len` elements by other means.
    ///
    /// # Safety
    /// `write` must write a float into every element, and nothing else.
    pub unsafe fn fill(&mut self, len: usize, write: impl FnOnce(&mut [MaybeUninit<f32>])) {
        write(&mut self.slots[self.len..][..len]);
        self.len += len;
    }
}

/// An array that is written here and now, from its first element to its last.
///
/// # Panics
/// When it is not.
pub(crate) fn new_array(len: usize, write: impl FnOnce(&mut UninitWriter)) -> Vec<f32> {
    let mut array = Vec::with_capacity(len);
    let mut writer = UninitWriter::new(&mut array.spare_capacity_mut()[..len]);
    write(&mut writer);
    assert!(writer.is_full(), "{} elements of an array were left", writer.room());
    // SAFETY: every element was written
    unsafe { array.set_len(len) };
    array
}

/// The rest of an [`UninitWriter`] as a local variable: its position stays in a register.
pub(crate) struct LocalWriter<'a> {
    slots: &'a mut [MaybeUninit<f32>],
    /// Not more than there are slots.
    written: usize,
    total: &'a mut usize,
}

impl LocalWriter<'_> {
    /// Where the next elements go, of which there must be as many.
    #[inline(always)]
    fn next(&mut self, count: usize) -> *mut f32 {
        // never below zero: what was written was there
        assert!(self.slots.len().wrapping_sub(self.written) >= count, "an array is full");
        // SAFETY: not more was written than there are slots
        let to = unsafe { self.slots.as_mut_ptr().add(self.written) };
        self.written += count;
        to.cast()
    }

    /// Writes all lanes.
    #[inline(always)]
    pub fn push_vector<V: Vector>(&mut self, value: V) {
        // SAFETY: there is room for a vector
        unsafe { value.store(self.next(V::LANES)) };
    }

    /// Writes the first `count` lanes, or all of them if there are fewer.
    #[inline(always)]
    pub fn push<V: Vector>(&mut self, value: V, count: usize) {
        if count >= V::LANES {
            self.push_vector(value);
        } else {
            // SAFETY: there is room for `count` floats
            unsafe { value.store_first(self.next(count), count) };
        }
    }

    pub fn finish(self) {
        *self.total += self.written;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::noise;

    #[test]
    fn an_array_is_full_when_every_element_was_written() {
        let mut memory = [MaybeUninit::uninit(); 7];
        let mut writer = UninitWriter::new(&mut memory);
        writer.push_slice(&[1.0, 2.0]);
        writer.push_zeros(1);
        writer.extend([3.0].into_iter());
        assert!(!writer.is_full() && writer.room() == 3);
        writer.extend(std::iter::repeat(4.0));
        assert!(writer.is_full());
        // SAFETY: it is full
        assert_eq!(unsafe { memory.assume_init_ref() }, [1.0, 2.0, 0.0, 3.0, 4.0, 4.0, 4.0]);
    }

    #[test]
    fn transposed_columns_are_followed_by_zeros() {
        let (x, mut out) = (noise(3 * 10, 1), vec![f32::NAN; 9 * 5]);
        let mut writer = UninitWriter::overwrite(&mut out);
        writer.push_transposed([3, 9], (&x, 10), 5);
        assert!(writer.is_full());
        for (j, column) in out.chunks_exact(5).enumerate() {
            assert_eq!(column, [x[j], x[10 + j], x[20 + j], 0.0, 0.0]);
        }
    }

    #[test]
    fn parts_and_pieces_follow_what_was_written() {
        let array = new_array(9, |writer| {
            writer.push_slice(&[1.0]);
            writer.push_parts([2, 1, 2], |[first, second, third]| {
                third.push_slice(&[4.0, 5.0]);
                first.push_slice(&[2.0, 3.0]);
                second.push_zeros(1);
                assert_eq!(first.written(), [2.0, 3.0]);
            });
            assert_eq!(writer.written(), [1.0, 2.0, 3.0, 0.0, 4.0, 5.0]);
            writer.fill_pieces(2, |index, piece| piece.extend(std::iter::repeat(10.0 + index as f32)));
        });
        assert_eq!(array, [1.0, 2.0, 3.0, 0.0, 4.0, 5.0, 10.0, 10.0, 11.0]);
    }

    #[test]
    #[should_panic(expected = "a part was left")]
    fn a_part_that_is_left_is_refused() {
        new_array(3, |writer| writer.push_parts([1, 2], |[first, _]| first.push_zeros(1)));
    }

    #[test]
    #[should_panic(expected = "2 elements of an array were left")]
    fn an_array_that_is_left_is_refused() {
        new_array(3, |writer| writer.push_zeros(1));
    }

    #[test]
    #[should_panic(expected = "range end index 3 out of range for slice of length 2")]
    fn more_than_there_is_room_for_is_refused() {
        UninitWriter::overwrite(&mut [0.0; 2]).push_slice(&[0.0; 3]);
    }
}
