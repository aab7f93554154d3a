//! Luma and chroma to RGB, with the chroma of four pixels for each of them, as ffmpeg converts by default.

use super::sps::Sps;
use crate::data::Picture;

/// The three planes of a frame, chroma with half the rows and columns.
pub struct Planes<'a> {
    pub size: [usize; 2],
    pub levels: [&'a [u8]; 3],
    /// Bytes from one row to the next.
    pub strides: [usize; 3],
}

/// Parts of 65536.
struct Matrix {
    offset: i32,
    luma: i32,
    red: i32,
    green: [i32; 2],
    blue: i32,
}

impl Matrix {
    fn of(sps: &Sps) -> Self {
        let [red, blue] = if sps.is_bt709 { [0.2126, 0.0722] } else { [0.299, 0.114] };
        let green = 1.0 - red - blue;
        let (offset, luma, chroma) = if sps.is_full_range { (0, 1.0, 1.0) } else { (16, 255.0 / 219.0, 255.0 / 224.0) };
        let part = |share: f64| (share * 65536.0).round() as i32;
        let [to_red, to_blue] = [red, blue].map(|share: f64| 2.0 * (1.0 - share));
        Self {
            offset,
            luma: part(luma),
            red: part(chroma * to_red),
            green: [part(chroma * to_blue * blue / green), part(chroma * to_red * red / green)],
            blue: part(chroma * to_blue),
        }
    }

    fn pixel(&self, y: u8, u: u8, v: u8) -> [u8; 3] {
        let y = (i32::from(y) - self.offset) * self.luma + 32768;
        let (u, v) = (i32::from(u) - 128, i32::from(v) - 128);
        let level = |sum: i32| (sum >> 16).clamp(0, 255) as u8;
        [level(y + self.red * v), level(y - self.green[0] * u - self.green[1] * v), level(y + self.blue * u)]
    }
}

/// The frame as a picture; none when a plane is too short.
pub fn picture(frame: &Planes<'_>, sps: &Sps) -> Option<Picture> {
    let (matrix, [rows, columns]) = (Matrix::of(sps), frame.size);
    let mut pixels = Vec::with_capacity(3 * rows * columns);
    for row in 0..rows {
        let line = |plane: usize, row: usize, length: usize| {
            frame.levels[plane].get(frame.strides[plane] * row..)?.get(..length)
        };
        let half = columns.div_ceil(2);
        let (y, u, v) = (line(0, row, columns)?, line(1, row / 2, half)?, line(2, row / 2, half)?);
        let chroma = u.iter().zip(v);
        for (pair, (u, v)) in y.chunks(2).zip(chroma) {
            pair.iter().for_each(|y| pixels.extend(matrix.pixel(*y, *u, *v)));
        }
    }
    Picture::new(frame.size, pixels).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grays_are_grays_and_primaries_are_those_of_the_standard() {
        let sps = |is_full_range, is_bt709| Sps {
            profile: 100,
            chroma: 1,
            bits: 8,
            is_interlaced: false,
            size: [16; 2],
            is_full_range,
            is_bt709,
        };
        let limited = Matrix::of(&sps(false, false));
        assert_eq!([16, 126, 235].map(|y| limited.pixel(y, 128, 128)), [[0; 3], [128; 3], [255; 3]]);
        let full = Matrix::of(&sps(true, true));
        assert_eq!([0, 77, 255].map(|y| full.pixel(y, 128, 128)), [[0; 3], [77; 3], [255; 3]]);
        // red in BT.601 and in BT.709, within a level
        for (matrix, [y, u, v]) in [(limited, [81, 90, 240]), (Matrix::of(&sps(false, true)), [63, 102, 240])] {
            let [red, green, blue] = matrix.pixel(y, u, v);
            assert!(red >= 254 && green <= 1 && blue <= 1, "{red} {green} {blue}");
        }
    }
}
