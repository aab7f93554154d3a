//! What plans need beside products, on arrays of any shape: copies in another order, element-wise operations with
//! broadcasting, reductions along an axis, and largest values of windows.

use rayon::prelude::*;

use crate::elementwise::{rows_per_task, written};
use crate::size;

/// Elements of a shape.
fn elements(what: &str, shape: &[usize]) -> usize {
    let len = shape.iter().try_fold(1usize, |len, &count| len.checked_mul(count));
    len.unwrap_or_else(|| panic!("{what}: the product of {shape:?} is more than any array holds"))
}

/// Sides of the blocks in which an array is transposed.
const BLOCK: usize = 16;

/// Axes of an output with the distance of neighbours in an input: axes that lie one after the other in all inputs are one.
fn merged<const N: usize>(shape: &[usize], strides: [&[usize]; N]) -> Vec<(usize, [usize; N])> {
    let mut axes: Vec<(usize, [usize; N])> = Vec::new();
    for (axis, &count) in shape.iter().enumerate().filter(|(_, count)| **count != 1) {
        let own = strides.map(|strides| strides[axis]);
        match axes.last_mut() {
            Some((before, steps)) if (0..N).all(|i| steps[i] == own[i] * count) => {
                *before *= count;
                *steps = own;
            }
            _ => axes.push((count, own)),
        }
    }
    if axes.is_empty() {
        axes.push((1, [0; N]));
    }
    axes
}

/// Where the row with this index begins in every input.
fn starts<const N: usize>(axes: &[(usize, [usize; N])], mut row: usize) -> [usize; N] {
    let mut at = [0; N];
    for (count, steps) in axes.iter().rev() {
        (0..N).for_each(|i| at[i] += row % count * steps[i]);
        row /= count;
    }
    at
}

/// Panics when an index of the output has no element of the input.
fn check(what: &str, len: usize, shape: &[usize], strides: &[usize], offset: usize) {
    assert_eq!(shape.len(), strides.len(), "{what}: a stride for each axis");
    let last = shape.iter().zip(strides).map(|(&count, step)| count.saturating_sub(1) * step).sum::<usize>();
    assert!(shape.contains(&0) || offset + last < len, "{what}: reads element {} of {len}", offset + last);
}

/// `out[i, j, ..] = x[offset + i * strides[0] + j * strides[1] + ..]`: permutations, parts, repetitions.
///
/// # Panics
/// When it would read beyond the end.
#[must_use]
pub fn copy(x: &[f32], offset: usize, shape: &[usize], strides: &[usize]) -> Vec<f32> {
    check("copy", x.len(), shape, strides, offset);
    let len = elements("copy", shape);
    if len == 0 {
        return Vec::new();
    }
    let axes = merged(shape, [strides]);
    let (outer, (count, [step])) = (&axes[..axes.len() - 1], axes[axes.len() - 1]);
    // rows of the output next to each other are read side by side where these lie together
    if step != 1
        && let Some(((rows, [1]), outer)) = outer.split_last()
    {
        let piece = rows * count;
        let mut out = vec![0.0; len];
        out.par_chunks_mut(piece).enumerate().for_each(|(index, out)| {
            let from = &x[offset + starts(outer, index)[0]..];
            for first in (0..*rows).step_by(BLOCK) {
                for begin in (0..count).step_by(BLOCK) {
                    for row in first..(first + BLOCK).min(*rows) {
                        let out = &mut out[row * count..][..count];
                        for column in begin..(begin + BLOCK).min(count) {
                            out[column] = from[row + column * step];
                        }
                    }
                }
            }
        });
        return out;
    }
    let task = rows_per_task(count);
    written(len, task * count, |index, out| {
        for row in index * task.. {
            if out.is_full() {
                break;
            }
            let from = &x[offset + starts(outer, row)[0]..];
            match step {
                1 => out.push_slice(&from[..count]),
                _ => out.extend((0..count).map(|i| from[i * step])),
            }
        }
    })
}

/// Arrays one after the other, each `[outer, its own length]`.
///
/// # Panics
/// When a length does not fit.
#[must_use]
pub fn concatenate(parts: &[(&[f32], usize)], outer: usize) -> Vec<f32> {
    for (part, width) in parts {
        assert_eq!(part.len(), size::product("concatenate", &[outer, *width]), "concatenate: length of a part");
    }
    let width = parts.iter().map(|(_, width)| width).sum::<usize>();
    let task = rows_per_task(width);
    written(outer * width, task * width, |index, out| {
        for row in index * task..outer.min((index + 1) * task) {
            parts.iter().for_each(|(part, width)| out.push_slice(&part[row * width..][..*width]));
        }
    })
}

/// Of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
}

impl Binary {
    /// Its name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Subtract => "subtract",
            Self::Multiply => "multiply",
            Self::Divide => "divide",
        }
    }

    /// Element by element; a stride of zero repeats an axis.
    ///
    /// # Panics
    /// When it would read beyond an end.
    #[must_use]
    pub fn apply(self, a: (&[f32], &[usize]), b: (&[f32], &[usize]), shape: &[usize]) -> Vec<f32> {
        match self {
            Self::Add => zipped(a, b, shape, |a, b| a + b),
            Self::Subtract => zipped(a, b, shape, |a, b| a - b),
            Self::Multiply => zipped(a, b, shape, |a, b| a * b),
            Self::Divide => zipped(a, b, shape, |a, b| a / b),
        }
    }
}

fn zipped(
    a: (&[f32], &[usize]),
    b: (&[f32], &[usize]),
    shape: &[usize],
    run: impl Fn(f32, f32) -> f32 + Sync,
) -> Vec<f32> {
    check("binary", a.0.len(), shape, a.1, 0);
    check("binary", b.0.len(), shape, b.1, 0);
    let len = elements("binary", shape);
    if len == 0 {
        return Vec::new();
    }
    let axes = merged(shape, [a.1, b.1]);
    let (outer, (count, steps)) = (&axes[..axes.len() - 1], axes[axes.len() - 1]);
    let task = rows_per_task(count);
    // a single row is cut into pieces: its inputs lie in a row or are one number
    let (rows, piece) = if outer.is_empty() { (1, rows_per_task(1).min(count)) } else { (task, task * count) };
    written(len, piece, |index, out| {
        let mut row = |row: usize, first: usize, count: usize| {
            let [at, of] = starts(outer, row);
            let (a, b) = (&a.0[at + first * steps[0]..], &b.0[of + first * steps[1]..]);
            match steps {
                [1, 1] => out.extend(a[..count].iter().zip(&b[..count]).map(|(&a, &b)| run(a, b))),
                [1, 0] => out.extend(a[..count].iter().map(|&a| run(a, b[0]))),
                [0, 1] => out.extend(b[..count].iter().map(|&b| run(a[0], b))),
                [x, y] => out.extend((0..count).map(|i| run(a[i * x], b[i * y]))),
            }
        };
        if outer.is_empty() {
            row(0, index * piece, piece.min(count - index * piece));
        } else {
            (index * rows..(len / count).min((index + 1) * rows)).for_each(|index| row(index, 0, count));
        }
    })
}

/// Of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unary {
    Relu,
    Sigmoid,
    Tanh,
    AddScalar(f32),
    MultiplyScalar(f32),
}

impl Unary {
    /// Its name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Relu => "relu",
            Self::Sigmoid => "sigmoid",
            Self::Tanh => "tanh",
            Self::AddScalar(_) => "add-scalar",
            Self::MultiplyScalar(_) => "multiply-scalar",
        }
    }

    /// Element by element.
    #[must_use]
    pub fn apply(self, x: &[f32]) -> Vec<f32> {
        match self {
            Self::Relu => mapped(x, |x| x.max(0.0)),
            Self::Sigmoid => mapped(x, |x| 1.0 / (1.0 + (-x).exp())),
            Self::Tanh => mapped(x, f32::tanh),
            Self::AddScalar(by) => mapped(x, |x| x + by),
            Self::MultiplyScalar(by) => mapped(x, |x| x * by),
        }
    }
}

fn mapped(x: &[f32], run: impl Fn(f32) -> f32 + Sync) -> Vec<f32> {
    let task = rows_per_task(1);
    written(x.len(), task, |index, out| out.extend(x[index * task..].iter().map(|&x| run(x))))
}

/// Of an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Mean,
    Max,
}

impl Reduction {
    /// Its name in a table.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
        }
    }

    /// `[outer, count, inner] -> [outer, inner]`
    ///
    /// # Panics
    /// When the sizes are not those of the array, or there is nothing to reduce.
    #[must_use]
    pub fn apply(self, x: &[f32], [outer, count, inner]: [usize; 3]) -> Vec<f32> {
        assert_eq!(x.len(), size::product("reduction", &[outer, count, inner]), "reduction: length of the input");
        assert!(count > 0, "reduction: of nothing");
        let mut out = vec![0.0; outer * inner];
        out.par_chunks_mut(inner.max(1)).zip(x.par_chunks(count * inner.max(1))).for_each(|(out, x)| {
            let (first, rest) = x.split_at(inner);
            out.copy_from_slice(first);
            for row in rest.chunks_exact(inner) {
                let pairs = out.iter_mut().zip(row);
                match self {
                    Self::Sum | Self::Mean => pairs.for_each(|(sum, x)| *sum += x),
                    Self::Max => pairs.for_each(|(most, x)| *most = most.max(*x)),
                }
            }
            if self == Self::Mean {
                out.iter_mut().for_each(|sum| *sum /= count as f32);
            }
        });
        out
    }
}

/// Windows over rows and columns; what is beyond the border takes no part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaxWindows {
    /// Rows and columns of the input.
    pub image: [usize; 2],
    /// Numbers of a pixel: one, or the channels where these come last.
    pub inner: usize,
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    pub padding: [usize; 2],
}

impl MaxWindows {
    /// Rows and columns of the output.
    #[must_use]
    pub fn output_size(&self) -> [usize; 2] {
        [0, 1].map(|i| (self.image[i] + 2 * self.padding[i] - self.kernel[i]) / self.stride[i] + 1)
    }

    /// `[.., H, W, inner] -> [.., H', W', inner]`
    ///
    /// # Panics
    /// When images do not divide the length, or a window is beyond the border.
    #[must_use]
    pub fn apply(&self, x: &[f32]) -> Vec<f32> {
        let Self { image: [height, width], inner, kernel, stride, padding } = *self;
        let fits = (0..2).all(|i| padding[i] < kernel[i] && self.image[i] + 2 * padding[i] >= kernel[i]);
        assert!(fits && stride.iter().all(|step| *step > 0), "max pool: windows do not fit in {self:?}");
        let [rows, columns] = self.output_size();
        let plane = size::product("max pool", &[height, width, inner]);
        assert!(plane > 0 && x.len().is_multiple_of(plane), "max pool: images of another size");
        let mut out = vec![f32::NEG_INFINITY; x.len() / plane * rows * columns * inner];
        let line = columns * inner;
        out.par_chunks_mut(line).enumerate().for_each(|(index, out)| {
            let (x, row) = (&x[index / rows * plane..][..plane], index % rows);
            let around = |at: usize, i: usize, side: usize| {
                (at * stride[i]).saturating_sub(padding[i])..(at * stride[i] + kernel[i] - padding[i]).min(side)
            };
            for y in around(row, 0, height) {
                for (column, out) in out.chunks_exact_mut(inner).enumerate() {
                    for column in around(column, 1, width) {
                        let pixel = &x[(y * width + column) * inner..][..inner];
                        out.iter_mut().zip(pixel).for_each(|(most, x)| *most = most.max(*x));
                    }
                }
            }
        });
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::naive::noise;

    /// Every index of a shape.
    fn indices(shape: &[usize]) -> Vec<Vec<usize>> {
        shape.iter().fold(vec![Vec::new()], |all, &count| {
            all.into_iter().flat_map(|index| (0..count).map(move |i| [index.clone(), vec![i]].concat())).collect()
        })
    }

    fn at(index: &[usize], strides: &[usize]) -> usize {
        index.iter().zip(strides).map(|(i, step)| i * step).sum()
    }

    #[test]
    fn a_copy_in_any_order_is_what_its_indices_say() {
        let x = noise(6 * 35 * 50, 1);
        let cases: [(&[usize], &[usize]); 6] = [
            (&[6, 35, 50], &[1750, 50, 1]),
            (&[6, 50, 35], &[1750, 1, 50]),
            (&[50, 35, 6], &[1, 50, 1750]),
            (&[35, 1, 6, 50], &[50, 9, 1750, 1]),
            (&[3, 7, 2, 4], &[1750, 0, 50, 2]),
            (&[1, 1], &[5, 7]),
        ];
        for (shape, strides) in cases {
            let wanted: Vec<f32> = indices(shape).iter().map(|index| x[2 + at(index, strides) - 2]).collect();
            assert_eq!(copy(&x, 0, shape, strides), wanted, "{shape:?} {strides:?}");
        }
        assert_eq!(copy(&x, 7, &[3], &[2]), [x[7], x[9], x[11]]);
        assert!(copy(&x, 0, &[0, 3], &[1, 1]).is_empty());
    }

    #[test]
    fn two_values_are_combined_with_any_axes_repeated() {
        let (a, b) = (noise(40_000, 1), noise(40_000, 2));
        let cases: [(&[usize], &[usize], &[usize]); 5] = [
            (&[200, 200], &[200, 1], &[200, 1]),
            (&[5, 4, 3], &[12, 3, 1], &[0, 1, 0]),
            (&[5, 4, 3], &[0, 0, 1], &[12, 3, 1]),
            (&[5, 1], &[0, 0], &[0, 0]),
            (&[33_000], &[1], &[0]),
        ];
        for (shape, of_a, of_b) in cases {
            let out = Binary::Subtract.apply((&a, of_a), (&b, of_b), shape);
            let wanted: Vec<f32> = indices(shape).iter().map(|i| a[at(i, of_a)] - b[at(i, of_b)]).collect();
            assert_eq!(out, wanted, "{shape:?}");
        }
        assert_eq!(Binary::Add.apply((&[1.0], &[1]), (&[2.0], &[1]), &[1]), [3.0]);
        assert_eq!(Binary::Multiply.apply((&[3.0], &[1]), (&[2.0], &[1]), &[1]), [6.0]);
        assert_eq!(Binary::Divide.apply((&[3.0], &[1]), (&[2.0], &[1]), &[1]), [1.5]);
    }

    #[test]
    fn functions_of_one_value_are_their_formulas() {
        let x = noise(20_000, 1);
        let same = |unary: Unary, wanted: fn(f32) -> f32| {
            assert_eq!(unary.apply(&x), x.iter().map(|&x| wanted(x)).collect::<Vec<_>>(), "{unary:?}");
        };
        same(Unary::Relu, |x| if x > 0.0 { x } else { 0.0 });
        same(Unary::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        same(Unary::Tanh, f32::tanh);
        same(Unary::AddScalar(2.0), |x| x + 2.0);
        same(Unary::MultiplyScalar(-3.0), |x| x * -3.0);
    }

    #[test]
    fn an_axis_is_reduced_in_its_order() {
        let x = [1.0, 2.0, 3.0, 4.0, 5.0, 9.0];
        assert_eq!(Reduction::Sum.apply(&x, [1, 2, 3]), [5.0, 7.0, 12.0]);
        assert_eq!(Reduction::Mean.apply(&x, [2, 3, 1]), [2.0, 6.0]);
        assert_eq!(Reduction::Max.apply(&x, [1, 3, 2]), [5.0, 9.0]);
    }

    #[test]
    fn parts_lie_one_after_the_other() {
        let joined = concatenate(&[(&[1.0, 2.0], 1), (&[3.0, 4.0, 5.0, 6.0], 2)], 2);
        assert_eq!(joined, [1.0, 3.0, 4.0, 2.0, 5.0, 6.0]);
    }

    #[test]
    fn the_largest_of_every_window_with_channels_first_and_last() {
        let (channels, image) = (3, [7, 5]);
        let x = noise(channels * 35, 1);
        let last = copy(&x, 0, &[7, 5, 3], &[5, 1, 35]);
        for (kernel, stride, padding) in [([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 2], [0, 1]), ([2, 2], [2, 2], [0, 0])]
        {
            let windows = MaxWindows { image, inner: 1, kernel, stride, padding };
            let [rows, columns] = windows.output_size();
            let wanted: Vec<f32> = indices(&[channels, rows, columns])
                .iter()
                .map(|i| {
                    let inside = |at: usize, axis: usize, tap: usize| {
                        (at * stride[axis] + tap).checked_sub(padding[axis]).filter(|at| *at < image[axis])
                    };
                    let taps = indices(&kernel);
                    let values = taps
                        .iter()
                        .filter_map(|tap| Some(x[i[0] * 35 + inside(i[1], 0, tap[0])? * 5 + inside(i[2], 1, tap[1])?]));
                    values.fold(f32::NEG_INFINITY, f32::max)
                })
                .collect();
            assert_eq!(windows.apply(&x), wanted);
            let by_pixel = MaxWindows { inner: channels, ..windows }.apply(&last);
            let pixels = rows * columns;
            assert_eq!(copy(&by_pixel, 0, &[channels, pixels], &[1, channels]), wanted);
        }
    }
}
