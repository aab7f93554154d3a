//! An output `[B, C, pixels]` in tasks of some pixels of some channels of one image: a large map is work for all threads, and a
//! task finds its part of the input in the cache.

use rayon::prelude::*;
use std::ops::Range;

use crate::uninit::UninitWriter;

/// What one task writes.
#[derive(Clone, Debug)]
pub(crate) struct PlaneTile {
    pub image: usize,
    pub channels: Range<usize>,
    pub pixels: Range<usize>,
}

/// The output, and how it is cut: by shapes alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Planes {
    pub batch: usize,
    pub channels: usize,
    pub pixels: usize,
    /// Pixels of a task.
    pub some_pixels: usize,
    /// Channels of a task.
    pub some_channels: usize,
}

/// Tasks that keep a few threads busy to the end.
const ENOUGH: usize = 16;

impl Planes {
    /// Tasks of so many pixels, and of all channels where these are enough tasks; otherwise of a multiple of `aligned`
    /// channels.
    pub fn new([batch, channels, pixels]: [usize; 3], some_pixels: usize, aligned: usize) -> Self {
        let tasks = (batch * pixels.div_ceil(some_pixels)).max(1);
        let parts = if tasks < ENOUGH { (ENOUGH / 2).div_ceil(tasks).max(2) } else { 1 };
        let some_channels = channels.div_ceil(parts).next_multiple_of(aligned).min(channels);
        Self { batch, channels, pixels, some_pixels, some_channels }
    }

    /// Every task gets a writer for its pixels of each of its channels.
    ///
    /// # Panics
    /// When a task does not write them all.
    pub fn write(&self, task: impl Fn(&PlaneTile, &mut [UninitWriter]) + Sync) -> Vec<f32> {
        let Self { batch, channels, pixels, some_pixels, some_channels } = *self;
        let len = batch * channels * pixels;
        let mut out = Vec::with_capacity(len);
        let (parts, blocks) = (channels.div_ceil(some_channels), pixels.div_ceil(some_pixels));
        let mut tasks: Vec<Vec<UninitWriter>> = (0..batch * parts * blocks).map(|_| Vec::new()).collect();
        for (plane, slots) in out.spare_capacity_mut()[..len].chunks_mut(pixels).enumerate() {
            let (image, channel) = (plane / channels, plane % channels);
            for (block, slots) in slots.chunks_mut(some_pixels).enumerate() {
                tasks[(image * parts + channel / some_channels) * blocks + block].push(UninitWriter::new(slots));
            }
        }
        tasks.into_par_iter().enumerate().for_each(|(index, mut rows)| {
            let (part, first) = (index / blocks, index % blocks * some_pixels);
            let channel = part % parts * some_channels;
            let tile = PlaneTile {
                image: part / parts,
                channels: channel..channel + rows.len(),
                pixels: first..pixels.min(first + some_pixels),
            };
            task(&tile, &mut rows);
            assert!(rows.iter().all(UninitWriter::is_full), "a task left elements of its planes");
        });
        // SAFETY: the rows of all tasks are the whole array, and every one is full; a task that panics does not come here
        unsafe { out.set_len(len) };
        out
    }
}

/// Multiples of channels for [`Planes::new`] where channels are rows of a product: so many fill registers on every path.
pub(crate) const ROWS: usize = 18;
/// The same where channels are columns: a panel.
pub(crate) const COLUMNS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::assert_same_on_threads;

    #[test]
    fn every_element_is_written_once_by_the_task_that_has_it() {
        for (shape, some) in [([2, 3, 10], 4), ([1, 70, 10], 10), ([3, 5, 1], 1), ([1, 40, 100], 7)] {
            let planes = Planes::new(shape, some, ROWS);
            let [_, channels, pixels] = shape;
            let out = planes.write(|tile, rows| {
                for (channel, row) in tile.channels.clone().zip(rows) {
                    let first = (tile.image * channels + channel) * pixels;
                    row.extend(tile.pixels.clone().map(|pixel| (first + pixel) as f32));
                }
            });
            assert_eq!(out, (0..shape.iter().product()).map(|at: usize| at as f32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn few_pixels_are_parted_by_channels() {
        assert_eq!(Planes::new([1, 256, 100], 100, COLUMNS).some_channels, 32);
        assert_eq!(Planes::new([1, 256, 100], 100, ROWS).some_channels, 36);
        assert_eq!(Planes::new([1, 256, 4000], 100, ROWS).some_channels, 256);
        assert_eq!(Planes::new([1, 20, 100], 100, COLUMNS).some_channels, 20);
    }

    #[test]
    fn threads_change_nothing() {
        assert_same_on_threads(|| {
            vec![Planes::new([1, 40, 30], 7, ROWS).write(|tile, rows| {
                rows.iter_mut().for_each(|row| row.extend(tile.pixels.clone().map(|pixel| pixel as f32)));
            })]
        });
    }

    #[test]
    #[should_panic(expected = "a task left elements of its planes")]
    fn what_is_left_is_refused() {
        let _ = Planes::new([1, 2, 3], 3, ROWS).write(|_, _| ());
    }

    #[test]
    fn nothing_is_written_without_pixels() {
        assert!(Planes::new([0, 2, 3], 3, ROWS).write(|_, _| ()).is_empty());
    }
}
