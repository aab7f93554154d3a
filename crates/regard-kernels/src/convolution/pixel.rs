//! Windows of one pixel: a matrix on the channels. It is on the left as it lies, pixels are the columns, so that maps keep their
//! layout.

use super::Convolution;
use crate::elementwise::share;
use crate::epilogue::Epilogue;
use crate::gathered::{Gathered, Init, Offsets, Panels, multiply, rows_together};
use crate::parallel::{Parallel, return_buffer, take_buffer, with_scratch};
use crate::planes::{Planes, ROWS};

/// Numbers that are packed at a time, about: they stay in the second cache.
const PACKED: usize = 131_072;
/// Pixels that are packed at a time, at least and at most.
const PIXELS: [usize; 2] = [64, 512];

pub(super) fn infer(case: &Convolution, batch: usize, x: &[f32], matrix: &[f32], after: Epilogue) -> Vec<f32> {
    let Convolution { inputs, outputs, image: [height, width], stride, .. } = *case;
    let pixels = case.output_size().iter().product::<usize>();
    // whole panels
    let some = share(pixels, (PACKED / inputs).clamp(PIXELS[0], PIXELS[1])).next_multiple_of(32);
    let (rows, inner) = (Offsets::strided(outputs, inputs), Offsets::strided(inputs, 1));
    Planes::new([batch, outputs, pixels], some, ROWS).write(|tile, out| {
        let x = &x[tile.image * inputs * height * width..][..inputs * height * width];
        let count = tile.pixels.len();
        let pack = |from, columns| Panels::packed_affine_relu(from, inputs, columns, None, &mut Parallel::Serial);
        let panels = if stride == 1 {
            pack((x, pixels), tile.pixels.clone())
        } else {
            let mut sampled = take_buffer(inputs * count);
            sample(case, x, tile.pixels.start, count, &mut sampled);
            let panels = pack((&sampled, count), 0..count);
            return_buffer(sampled);
            panels
        };
        let together = rows_together(out.len());
        with_scratch(together * count, |sums| {
            for (block, out) in out.chunks_mut(together).enumerate() {
                let first = tile.channels.start + block * together;
                let left = Gathered { data: matrix, rows: &rows, range: (first, first + out.len()), inner: &inner };
                multiply(left, &panels, Init::Zero, (&mut *sums, count));
                for ((channel, out), sums) in (first..).zip(out).zip(sums.chunks_exact(count)) {
                    let at = (tile.image * outputs + channel) * pixels + tile.pixels.start;
                    after.finish(sums, channel, at, out);
                }
            }
        });
        panels.return_buffer();
    })
}

/// `count` pixels of every channel from the output's `first` on, a stride apart.
fn sample(case: &Convolution, x: &[f32], first: usize, count: usize, out: &mut [f32]) {
    let Convolution { image: [height, width], stride, .. } = *case;
    let [_, columns] = case.output_size();
    for (x, out) in x.chunks_exact(height * width).zip(out.chunks_exact_mut(count)) {
        let (mut done, mut at) = (0, first);
        while done < count {
            let (row, column) = (at / columns, at % columns);
            let run = (columns - column).min(count - done);
            let from = x[row * stride * width + column * stride..].iter().step_by(stride);
            out[done..done + run].iter_mut().zip(from).for_each(|(out, x)| *out = *x);
            done += run;
            at += run;
        }
    }
}
