//! Fuzzing: damaged files and requests are read or refused, without a panic and within memory limits.
//!
//! Case `n` of a reader is the same everywhere: a seed of `fixtures/pictures` or `tests/seeds`, damaged as `n` says. A
//! short form runs with the other tests; `REGARD_FUZZ=1000000` runs as many over the three readers together, and
//! `REGARD_FUZZ_CASE=n` one case alone. A case that once failed is kept as a file among the seeds.

use peak_alloc::PeakAlloc;
use rayon::prelude::*;
use regard::data::Picture;
use regard::weights;
use regard_serve::tensors::InferRequest;
use std::ffi::OsStr;
use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[global_allocator]
static MEMORY: PeakAlloc = PeakAlloc;

/// Memory limit of all cases in megabytes: a few of the largest pictures, with their decoders'
/// buffers.
const MOST_MEMORY: f32 = 100.0;

/// Pixels of a picture, as a server would allow them.
const PIXELS: u64 = 1 << 20;

const SHORT: u64 = 6000;

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Files of a folder, sorted by name.
fn seeds(folders: &[&str]) -> Vec<Vec<u8>> {
    let files = folders.iter().flat_map(|folder| fs::read_dir(here(folder)).unwrap());
    let mut paths: Vec<PathBuf> = files.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| !path.ends_with("config.json") && !path.ends_with("io.safetensors"));
    paths.sort_by_key(|path| path.file_name().map(OsStr::to_owned));
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// `SplitMix64`: the same numbers for the same case.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// What numbers in files are when somebody means harm.
const NUMBERS: [u64; 8] = [0, 1, 0x7f, 0xff, 0x7fff_ffff, 0xffff_ffff, 0x7fff_ffff_ffff_ffff, u64::MAX];

/// Pieces that readers look for.
const WORDS: [&[u8]; 14] = [
    b"[",
    b"]",
    b"{",
    b"}",
    b"\"",
    b"\\u0000",
    b"-1",
    b"1e999",
    b"null",
    b"18446744073709551615",
    b"PK\x03\x04",
    b"IDAT",
    b"\xff\xd9",
    b"data_offsets",
];

fn damaged(seeds: &[Vec<u8>], case: u64) -> Vec<u8> {
    let mut draw = Draw(case);
    let mut bytes = seeds[draw.below(seeds.len())].clone();
    for _ in 0..=draw.below(4) {
        let at = draw.below(bytes.len());
        let until = (at + 1 + draw.below(16)).min(bytes.len());
        match draw.below(9) {
            _ if bytes.is_empty() => bytes.push(draw.next() as u8),
            0 => bytes[at] ^= 1 << draw.below(8),
            1 => bytes[at] = draw.next() as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..until)),
            4 => {
                let piece = bytes[at..until].to_vec();
                bytes.splice(at..at, piece);
            }
            5 => {
                let number = NUMBERS[draw.below(NUMBERS.len())];
                let (little, width) = (draw.below(2) == 0, 1 << draw.below(4));
                let number = if little { number.to_le_bytes() } else { number.swap_bytes().to_le_bytes() };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&number[..end - at]);
            }
            6 => {
                let word = WORDS[draw.below(WORDS.len())];
                bytes.splice(at..at, word.iter().copied());
            }
            7 => {
                let other = &seeds[draw.below(seeds.len())];
                let from = draw.below(other.len());
                bytes.splice(at.., other[from..].iter().copied());
            }
            _ => {
                let random: Vec<u8> = (0..draw.below(16)).map(|_| draw.next() as u8).collect();
                bytes.splice(at..until, random);
            }
        }
    }
    if draw.below(2) == 0 {
        fix_checksums(&mut bytes);
    }
    bytes
}

/// Writes the right sums into a PNG, so that damage reaches what is behind them.
fn fix_checksums(bytes: &mut [u8]) {
    if !bytes.starts_with(b"\x89PNG") {
        return;
    }
    let mut at = 8;
    while let Some(length) = bytes.get(at..at + 4) {
        let length = u32::from_be_bytes(length.try_into().unwrap()) as usize;
        let (start, end) = (at + 4, at.saturating_add(8).saturating_add(length));
        if bytes.len() < end.saturating_add(4) {
            return;
        }
        let mut sum = 0xffff_ffffu32;
        for byte in &bytes[start..end] {
            sum ^= u32::from(*byte);
            for _ in 0..8 {
                sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            }
        }
        bytes[end..end + 4].copy_from_slice(&(!sum).to_be_bytes());
        at = end + 4;
    }
}

/// Runs the cases of a reader.
fn fuzz(folders: &[&str], read: impl Fn(&[u8]) + Sync + std::panic::RefUnwindSafe) {
    let seeds = seeds(folders);
    seeds.iter().for_each(|seed| read(seed));
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<u64>().unwrap());
    let cases = match number("REGARD_FUZZ_CASE") {
        Some(case) => case..case + 1,
        None => 0..number("REGARD_FUZZ").unwrap_or(SHORT).div_ceil(3),
    };
    let failed = cases.into_par_iter().find_any(|case| {
        let bytes = damaged(&seeds, *case);
        let read = &read;
        catch_unwind(move || read(&bytes)).is_err()
    });
    assert_eq!(failed, None, "a case of {folders:?} panics; `REGARD_FUZZ_CASE` runs it alone");
    let peak = MEMORY.peak_usage_as_mb();
    assert!(peak < MOST_MEMORY, "{peak} MB");
}

#[test]
fn damaged_pictures_are_read_or_refused() {
    fuzz(&["../regard/fixtures/pictures", "tests/seeds/pictures"], |bytes| {
        if let Ok(picture) = Picture::decode_at_most(bytes, PIXELS) {
            let [rows, columns] = picture.size();
            assert!(rows * columns <= PIXELS as usize && picture.pixels().len() == 3 * rows * columns);
        }
    });
}

#[test]
fn damaged_requests_are_read_or_refused() {
    fuzz(&["tests/seeds/json"], |bytes| {
        // where the JSON of the binary form ends
        let end = bytes.windows(2).rposition(|pair| pair == b"]}").map(|at| at + 2);
        for json in [None, end] {
            if let Ok(mut request) = InferRequest::read(bytes, json) {
                let finite = |input: &regard_serve::tensors::Input| input.data.numbers.iter().all(|x| x.is_finite());
                assert!(request.inputs.iter().all(finite));
                _ = request.only("input", "FP32");
                _ = request.encode("model", &[]);
            }
        }
    });
}

#[test]
fn damaged_weights_are_read_or_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_path_buf();
    fuzz(&["tests/seeds/weights"], move |bytes| {
        // each thread has its own file
        let file = path.join(format!("{:?}", std::thread::current().id()));
        fs::write(&file, bytes).unwrap();
        if let Ok(checkpoint) = weights::read(&file) {
            for tensor in checkpoint.tensors.values() {
                let count: usize = tensor.shape().to_vec().iter().product();
                assert_eq!(tensor.iter::<f32>().count(), count);
            }
        }
    });
}
