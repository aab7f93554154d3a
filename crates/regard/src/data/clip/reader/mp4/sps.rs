//! The header of an H.264 stream: its profile, size and colours. ITU-T H.264, 7.3.2.1.1 and annex E.

/// A sequence parameter set, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sps {
    pub profile: u8,
    /// 0 gray, 1 half the rows and columns, 2 half the columns, 3 all.
    pub chroma: u32,
    pub bits: u32,
    pub is_interlaced: bool,
    /// Rows and columns before cropping.
    pub size: [usize; 2],
    /// Levels from 0 to 255 instead of 16 to 235.
    pub is_full_range: bool,
    /// The matrix of ITU-R BT.709 instead of BT.601.
    pub is_bt709: bool,
}

impl Sps {
    /// From a NAL unit with its first byte; none when it makes no sense.
    pub fn parse(unit: &[u8]) -> Option<Self> {
        let mut bits = Bits::new(unit.get(1..)?);
        let profile = bits.bits(8)? as u8;
        bits.bits(16)?;
        bits.golomb()?;
        let (mut chroma, mut depth) = (1, 8);
        if matches!(profile, 100 | 110 | 122 | 244 | 44 | 83 | 86 | 118 | 128 | 138 | 139 | 134 | 135) {
            chroma = bits.golomb()?;
            if chroma == 3 {
                bits.bits(1)?;
            }
            depth = 8 + bits.golomb()?.max(bits.golomb()?);
            bits.bits(1)?;
            if bits.bits(1)? == 1 {
                for list in 0..if chroma == 3 { 12 } else { 8 } {
                    if bits.bits(1)? == 1 {
                        bits.skip_scaling_list(if list < 6 { 16 } else { 64 })?;
                    }
                }
            }
        }
        bits.golomb()?;
        match bits.golomb()? {
            0 => _ = bits.golomb()?,
            1 => {
                bits.bits(1)?;
                bits.golomb()?;
                bits.golomb()?;
                for _ in 0..bits.golomb()?.min(255) {
                    bits.golomb()?;
                }
            }
            _ => {}
        }
        bits.golomb()?;
        bits.bits(1)?;
        let columns = bits.golomb()?.checked_add(1)?.checked_mul(16)?;
        let rows = bits.golomb()?.checked_add(1)?.checked_mul(16)?;
        let is_interlaced = bits.bits(1)? == 0;
        if is_interlaced {
            bits.bits(1)?;
        }
        bits.bits(1)?;
        if bits.bits(1)? == 1 {
            for _ in 0..4 {
                bits.golomb()?;
            }
        }
        let (is_full_range, is_bt709) = bits.colours().unwrap_or_default();
        let rows = if is_interlaced { rows.checked_mul(2)? } else { rows };
        let size = [rows as usize, columns as usize];
        Some(Self { profile, chroma, bits: depth, is_interlaced, size, is_full_range, is_bt709 })
    }

    /// Why openh264 cannot decode it.
    pub fn unsupported(&self) -> Option<String> {
        let profile = match self.profile {
            66 => "Baseline",
            77 => "Main",
            88 => "Extended",
            100 => "High",
            110 => "High 10",
            122 => "High 4:2:2",
            244 => "High 4:4:4",
            _ => "profile",
        };
        let fault = if self.bits > 8 {
            format!("{} bits a level", self.bits)
        } else if self.chroma != 1 {
            format!("chroma {}", ["4:0:0", "4:2:0", "4:2:2", "4:4:4"].get(self.chroma as usize).unwrap_or(&"unknown"))
        } else if self.is_interlaced {
            "interlaced".into()
        } else {
            return None;
        };
        Some(format!("H.264 {profile} ({fault})"))
    }
}

/// Bits of a NAL unit, without the bytes that keep start codes out of it.
struct Bits {
    bytes: Vec<u8>,
    at: usize,
}

impl Bits {
    fn new(unit: &[u8]) -> Self {
        let mut bytes: Vec<u8> = Vec::with_capacity(unit.len());
        let mut zeros = 0;
        for &byte in unit {
            if byte == 3 && zeros >= 2 {
                zeros = 0;
                continue;
            }
            zeros = if byte == 0 { zeros + 1 } else { 0 };
            bytes.push(byte);
        }
        Self { bytes, at: 0 }
    }

    fn bits(&mut self, count: usize) -> Option<u32> {
        (0..count).try_fold(0u32, |value, _| {
            let byte = self.bytes.get(self.at / 8)?;
            let bit = byte >> (7 - self.at % 8) & 1;
            self.at += 1;
            Some(value << 1 | u32::from(bit))
        })
    }

    /// An Exp-Golomb code without a sign.
    fn golomb(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while self.bits(1)? == 0 {
            zeros += 1;
            if zeros > 31 {
                return None;
            }
        }
        Some((1u32 << zeros) - 1 + self.bits(zeros)?)
    }

    fn signed_golomb(&mut self) -> Option<i32> {
        let code = self.golomb()?.cast_signed();
        Some(if code % 2 == 0 { -(code / 2) } else { code / 2 + 1 })
    }

    fn skip_scaling_list(&mut self, length: usize) -> Option<()> {
        let (mut last, mut next) = (8i32, 8i32);
        for _ in 0..length {
            if next != 0 {
                next = last.wrapping_add(self.signed_golomb()?) & 0xff;
            }
            last = if next == 0 { last } else { next };
        }
        Some(())
    }

    /// Range and matrix of the usability information, if there is any.
    fn colours(&mut self) -> Option<(bool, bool)> {
        if self.bits(1)? == 0 {
            return None;
        }
        if self.bits(1)? == 1 && self.bits(8)? == 255 {
            self.bits(32)?;
        }
        if self.bits(1)? == 1 {
            self.bits(1)?;
        }
        if self.bits(1)? == 0 {
            return None;
        }
        self.bits(3)?;
        let is_full_range = self.bits(1)? == 1;
        let matrix = if self.bits(1)? == 1 { self.bits(24)? & 0xff } else { 2 };
        Some((is_full_range, matrix == 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_read_as_the_standard_writes_them() {
        // 1, 010, 011, 00100, 00101 are 0 to 4; signed 0, 1, -1, 2, -2
        let bytes = [0b1010_0110, 0b0100_0010, 0b1000_0000];
        let mut bits = Bits { bytes: bytes.to_vec(), at: 0 };
        assert_eq!((0..5).map(|_| bits.golomb().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
        bits.at = 0;
        assert_eq!((0..5).map(|_| bits.signed_golomb().unwrap()).collect::<Vec<_>>(), [0, 1, -1, 2, -2]);
        assert_eq!(Bits::new(&[0, 0, 3, 1, 0, 0, 3]).bytes, [0, 0, 1, 0, 0]);
        assert_eq!(Bits { bytes: vec![0; 3], at: 0 }.golomb(), None);
    }

    #[test]
    fn any_bytes_end() {
        for seed in 0..2000 {
            let noise = crate::testing::noise_picture([3, 5], seed);
            let mut unit = [&[0x67, [66, 100, 110, 244][seed as usize % 4]], noise.pixels()].concat();
            unit.truncate(4 + seed as usize % 40);
            let _ = Sps::parse(&unit);
        }
    }
}
