//! Lossless compression of gray pictures of 28 x 28 pixels, a tenth smaller than PNG.
//!
//! A pixel is predicted from its neighbours (the median edge detector of JPEG-LS), and the residual goes to one of many
//! streams, chosen by the smoothness of the neighbourhood and by the prediction: each stream has its own statistics, which
//! deflate exploits. A stream is its compressed length in four bytes, little-endian, and its zlib data.

use flate2::read::ZlibDecoder;
use std::io::{self, Read};

pub const SIDE: usize = 28;

pub const STREAMS: usize = EVENNESS * GUESSES;

/// Contexts: black, or by the magnitude of the differences of neighbours.
const EVENNESS: usize = 12;
const GUESSES: usize = 16;

/// Pictures with a black pixel left and right of every row, and a black row above.
#[derive(Clone, Debug)]
pub struct BorderedPixels {
    pixels: [[u8; SIDE + 2]; SIDE + 1],
}

impl BorderedPixels {
    pub const BLACK: Self = Self { pixels: [[0; SIDE + 2]; SIDE + 1] };

    pub const fn set(&mut self, row: usize, column: usize, level: u8) {
        self.pixels[row + 1][column + 1] = level;
    }

    /// The prediction of a pixel from those above and to the left, and the stream of its residual.
    pub fn guess(&self, row: usize, column: usize) -> (u8, usize) {
        let (above, own) = (&self.pixels[row], &self.pixels[row + 1]);
        let (left, corner, up, right) = (own[column], above[column], above[column + 1], above[column + 2]);
        let (low, high) = if left < up { (left, up) } else { (up, left) };
        let guess = if corner >= high {
            low
        } else if corner <= low {
            high
        } else {
            // between the two, and so is this
            low + (high - corner)
        };
        let difference = |a: u8, b: u8| u32::from(a.abs_diff(b));
        let unevenness = difference(left, corner) + difference(up, corner) + difference(up, right);
        let evenness =
            if high == 0 && corner == 0 && right == 0 { 0 } else { 33 - unevenness.leading_zeros() as usize };
        (guess, evenness * GUESSES + usize::from(guess) * GUESSES / 256)
    }
}

/// Unpacks `count` pictures, `[N, H, W]`.
///
/// # Errors
/// When the bytes do not hold `count` pictures.
pub fn unpack(mut bytes: &[u8], pictures: usize) -> io::Result<Vec<u8>> {
    let short = || io::Error::from(io::ErrorKind::UnexpectedEof);
    let mut streams = Vec::with_capacity(STREAMS);
    for _ in 0..STREAMS {
        let (length, rest) = bytes.split_first_chunk().ok_or_else(short)?;
        let (stream, rest) = rest.split_at_checked(u32::from_le_bytes(*length) as usize).ok_or_else(short)?;
        let mut content = Vec::new();
        ZlibDecoder::new(stream).take((pictures * SIDE * SIDE) as u64).read_to_end(&mut content)?;
        streams.push(content.into_iter());
        bytes = rest;
    }
    let mut pixels = Vec::with_capacity(pictures * SIDE * SIDE);
    let mut canvas = BorderedPixels::BLACK;
    for _ in 0..pictures {
        for row in 0..SIDE {
            for column in 0..SIDE {
                let (guess, stream) = canvas.guess(row, column);
                let level = guess.wrapping_add(streams[stream].next().ok_or_else(short)?);
                canvas.set(row, column, level);
                pixels.push(level);
            }
        }
    }
    Ok(pixels)
}
