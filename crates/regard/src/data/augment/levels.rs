//! Photometric changes by tables of levels, as in PIL's `ImageOps`.

use crate::data::Picture;

/// The new level of every old one.
type Table = [u8; 256];

fn replace(picture: &mut Picture, tables: &[Table; 3]) {
    for pixel in picture.pixels.as_chunks_mut::<3>().0 {
        *pixel = [0, 1, 2].map(|channel| tables[channel][usize::from(pixel[channel])]);
    }
}

/// The same in every channel.
fn replace_all(picture: &mut Picture, new: impl Fn(u8) -> u8) {
    picture.pixels.iter_mut().for_each(|level| *level = new(*level));
}

pub(super) fn invert(picture: &mut Picture) {
    replace_all(picture, |level| 255 - level);
}

/// Posterize: keeps the highest bits; zero bits are black, where Pillow 13 has an error.
pub(super) fn posterize(picture: &mut Picture, bits: u32) {
    let mask = 255u8.checked_shl(8 - bits.min(8)).unwrap_or(0);
    replace_all(picture, |level| level & mask);
}

/// Solarize: inverts levels from the threshold on; with 256, none.
pub(super) fn solarize(picture: &mut Picture, threshold: u16) {
    replace_all(picture, |level| if u16::from(level) < threshold { level } else { 255 - level });
}

/// Raises levels below 128.
pub(super) fn solarize_add(picture: &mut Picture, more: u8) {
    replace_all(picture, |level| if level < 128 { level.saturating_add(more) } else { level });
}

/// Autocontrast: stretches each channel from 0 to 255.
pub(super) fn autocontrast(picture: &mut Picture) {
    let tables = histograms(picture).map(|histogram| {
        let least = histogram.iter().position(|&count| count > 0).unwrap_or(0);
        let most = histogram.iter().rposition(|&count| count > 0).unwrap_or(0);
        if most <= least {
            return unchanged();
        }
        let scale = 255.0 / (most - least) as f64;
        let offset = -(least as f64) * scale;
        std::array::from_fn(|level| (level as f64 * scale + offset) as u8)
    });
    replace(picture, &tables);
}

/// Equalize: makes the levels of each channel about equally frequent.
pub(super) fn equalize(picture: &mut Picture) {
    let tables = histograms(picture).map(|histogram| {
        let total: usize = histogram.iter().sum();
        let last = histogram.iter().rev().find(|&&count| count > 0).copied().unwrap_or(0);
        let step = (total - last) / 255;
        if step == 0 {
            return unchanged();
        }
        let mut sum = step / 2;
        histogram.map(|count| {
            let level = (sum / step).min(255) as u8;
            sum += count;
            level
        })
    });
    replace(picture, &tables);
}

fn unchanged() -> Table {
    std::array::from_fn(|level| level as u8)
}

/// Histogram of levels, for each channel.
fn histograms(picture: &Picture) -> [[usize; 256]; 3] {
    let mut histograms = [[0; 256]; 3];
    for pixel in picture.pixels.as_chunks::<3>().0 {
        (0..3).for_each(|channel| histograms[channel][usize::from(pixel[channel])] += 1);
    }
    histograms
}
