//! A font of 3 x 5 dots for labels in bitmaps.

use image::{Rgb, RgbImage};

/// Side of a dot.
const DOT: u32 = 2;

/// Height of a line with its gap.
pub const LINE: u32 = 7 * DOT;

/// Rows from top to bottom, the leftmost dot in the highest bit. Unknown characters are blank.
fn glyph(letter: char) -> [u8; 5] {
    match letter.to_ascii_lowercase() {
        'a' => [0b010, 0b101, 0b111, 0b101, 0b101],
        'b' => [0b110, 0b101, 0b110, 0b101, 0b110],
        'c' => [0b011, 0b100, 0b100, 0b100, 0b011],
        'd' => [0b110, 0b101, 0b101, 0b101, 0b110],
        'e' => [0b111, 0b100, 0b110, 0b100, 0b111],
        'f' => [0b111, 0b100, 0b110, 0b100, 0b100],
        'g' => [0b011, 0b100, 0b101, 0b101, 0b011],
        'h' => [0b101, 0b101, 0b111, 0b101, 0b101],
        'i' => [0b111, 0b010, 0b010, 0b010, 0b111],
        'j' => [0b001, 0b001, 0b001, 0b101, 0b010],
        'k' => [0b101, 0b101, 0b110, 0b101, 0b101],
        'l' => [0b100, 0b100, 0b100, 0b100, 0b111],
        'm' => [0b101, 0b111, 0b111, 0b101, 0b101],
        'n' => [0b110, 0b101, 0b101, 0b101, 0b101],
        'o' => [0b010, 0b101, 0b101, 0b101, 0b010],
        'p' => [0b110, 0b101, 0b110, 0b100, 0b100],
        'q' => [0b010, 0b101, 0b101, 0b111, 0b011],
        'r' => [0b110, 0b101, 0b110, 0b101, 0b101],
        's' => [0b011, 0b100, 0b010, 0b001, 0b110],
        't' => [0b111, 0b010, 0b010, 0b010, 0b010],
        'u' => [0b101, 0b101, 0b101, 0b101, 0b111],
        'v' => [0b101, 0b101, 0b101, 0b101, 0b010],
        'w' => [0b101, 0b101, 0b111, 0b111, 0b101],
        'x' => [0b101, 0b101, 0b010, 0b101, 0b101],
        'y' => [0b101, 0b101, 0b010, 0b010, 0b010],
        'z' => [0b111, 0b001, 0b010, 0b100, 0b111],
        '0' => [0b111, 0b101, 0b101, 0b101, 0b111],
        '1' => [0b010, 0b110, 0b010, 0b010, 0b111],
        '2' => [0b110, 0b001, 0b010, 0b100, 0b111],
        '3' => [0b110, 0b001, 0b010, 0b001, 0b110],
        '4' => [0b101, 0b101, 0b111, 0b001, 0b001],
        '5' => [0b111, 0b100, 0b110, 0b001, 0b110],
        '6' => [0b011, 0b100, 0b111, 0b101, 0b111],
        '7' => [0b111, 0b001, 0b010, 0b010, 0b010],
        '8' => [0b111, 0b101, 0b111, 0b101, 0b111],
        '9' => [0b111, 0b101, 0b111, 0b001, 0b110],
        '%' => [0b101, 0b001, 0b010, 0b100, 0b101],
        '/' => [0b001, 0b001, 0b010, 0b100, 0b100],
        '.' => [0b000, 0b000, 0b000, 0b000, 0b010],
        ',' => [0b000, 0b000, 0b000, 0b010, 0b100],
        '\'' => [0b010, 0b010, 0b000, 0b000, 0b000],
        '+' => [0b000, 0b010, 0b111, 0b010, 0b000],
        '(' => [0b010, 0b100, 0b100, 0b100, 0b010],
        ')' => [0b010, 0b001, 0b001, 0b001, 0b010],
        '-' => [0b000, 0b000, 0b111, 0b000, 0b000],
        '_' => [0b000, 0b000, 0b000, 0b000, 0b111],
        _ => [0; 5],
    }
}

/// Writes a line with its corner at `[left, top]`; dots beyond `right` are cut off.
pub fn write(sheet: &mut RgbImage, text: &str, [left, top]: [u32; 2], right: u32, ink: Rgb<u8>) {
    for (row, column) in dots(text) {
        for (down, along) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let (x, y) = (left + column * DOT + along, top + row * DOT + down);
            if x < right.min(sheet.width()) && y < sheet.height() {
                sheet.put_pixel(x, y, ink);
            }
        }
    }
}

/// The dots of a text as (row, column); a letter with its gap is four columns wide.
pub(super) fn dots(text: &str) -> impl Iterator<Item = (u32, u32)> {
    text.chars().enumerate().flat_map(|(place, letter)| {
        let rows = glyph(letter);
        (0..15u32)
            .filter(move |dot| rows[(dot / 3) as usize] >> (2 - dot % 3) & 1 == 1)
            .map(move |dot| (dot / 3, 4 * place as u32 + dot % 3))
    })
}
