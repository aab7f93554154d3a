//! `NumPy`'s `.npz`: a zip archive of arrays, each a line of text and its elements.
//! The format is that of `numpy.lib.format`, versions 1 to 3.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;
use zip::ZipArchive;

use super::files::{FloatKind, FloatTensors, check_claimed_size};

/// Whether an archive holds arrays (and not a pickle).
pub(super) fn is_npz(path: &Path) -> bool {
    let archive = File::open(path).ok().and_then(|file| ZipArchive::new(BufReader::new(file)).ok());
    archive.is_some_and(|archive| archive.file_names().flatten().any(|name| is_array(&name)))
}

fn is_array(name: &str) -> bool {
    name.strip_suffix(".npy").is_some_and(|name| !name.is_empty())
}

/// Every floating-point array, by its name in the archive.
pub(super) fn read(path: &Path) -> Result<FloatTensors, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(|error| error.to_string())?;
    if let Some(name) = repeated_name(path, archive.central_directory_start())? {
        return Err(format!("two arrays are named `{name}`"));
    }
    let names: Vec<String> = archive.file_names().flatten().filter(|name| is_array(name)).map(String::from).collect();
    let mut claimed = Some(0u64);
    let mut floats = FloatTensors::default();
    for entry in names {
        let name = entry.trim_end_matches(".npy");
        let of_array = |reason: String| format!("array `{name}`: {reason}");
        let mut data = archive.by_name(&entry).map_err(|error| of_array(error.to_string()))?;
        let Header { kind, shape } = header(&mut data).map_err(of_array)?;
        let Some(kind) = kind else { continue };
        let length = shape.iter().try_fold(kind.size() as u64, |length, &side| length.checked_mul(side as u64));
        claimed = claimed.zip(length).and_then(|(sum, length)| sum.checked_add(length));
        check_claimed_size(path, claimed)?;
        let length = length.unwrap_or(u64::MAX);
        let mut bytes = Vec::new();
        data.by_ref().take(length).read_to_end(&mut bytes).map_err(|error| of_array(error.to_string()))?;
        if bytes.len() as u64 != length {
            return Err(of_array(format!("only {} of {length} bytes", bytes.len())));
        }
        // the reader checks the CRC when it reaches the end
        match data.read(&mut [0]) {
            Ok(0) => {}
            Ok(_) => return Err(of_array(format!("more than {length} bytes"))),
            Err(error) => return Err(of_array(error.to_string())),
        }
        floats.add(name.to_string(), kind.tensor(&bytes, shape));
    }
    Ok(floats)
}

/// The first repeated name in the archive's directory: `ZipArchive` keeps only the last.
fn repeated_name(path: &Path, directory: u64) -> Result<Option<String>, String> {
    const SIGNATURE: [u8; 4] = *b"PK\x01\x02";
    let text = |error: std::io::Error| error.to_string();
    let mut file = BufReader::new(File::open(path).map_err(text)?);
    file.seek(SeekFrom::Start(directory)).map_err(text)?;
    let (mut seen, mut entry) = (BTreeSet::new(), [0; 46]);
    while file.read_exact(&mut entry).is_ok() && entry.starts_with(&SIGNATURE) {
        let length = |at: usize| u16::from_le_bytes([entry[at], entry[at + 1]]);
        let mut name = vec![0; usize::from(length(28))];
        file.read_exact(&mut name).map_err(text)?;
        let name = String::from_utf8_lossy(&name).into_owned();
        if seen.contains(&name) {
            return Ok(Some(name.trim_end_matches(".npy").to_string()));
        }
        seen.insert(name);
        file.seek_relative(i64::from(length(30)) + i64::from(length(32))).map_err(text)?;
    }
    Ok(None)
}

struct Header {
    /// None for integers.
    kind: Option<FloatKind>,
    shape: Vec<usize>,
}

/// The text before the elements, such as `{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }`.
fn header(data: &mut impl Read) -> Result<Header, String> {
    let cut = |error: std::io::Error| format!("its header is cut short: {error}");
    let mut start = [0; 8];
    data.read_exact(&mut start).map_err(cut)?;
    let [magic @ .., major, _] = start;
    if magic != *b"\x93NUMPY" || !(1..=3).contains(&major) {
        return Err("not a NumPy array".into());
    }
    let mut length = [0; 4];
    data.read_exact(&mut length[..if major == 1 { 2 } else { 4 }]).map_err(cut)?;
    let length = u32::from_le_bytes(length);
    if length > 1 << 16 {
        return Err(format!("a header of {length} bytes"));
    }
    let mut text = vec![0; length as usize];
    data.read_exact(&mut text).map_err(cut)?;
    let text = String::from_utf8_lossy(&text);

    let unclear = || format!("its header says `{}`", text.trim());
    if field(&text, "fortran_order").ok_or_else(unclear)?.starts_with("True") {
        return Err("columns before rows (Fortran order) is not supported".into());
    }
    let kind = field(&text, "descr").and_then(quoted).ok_or_else(unclear)?;
    let kind = match kind {
        "<f8" => Some(FloatKind::F64),
        "<f4" => Some(FloatKind::F32),
        "<f2" => Some(FloatKind::F16),
        // NumPy has no bfloat16: JAX writes two untyped bytes
        "|V2" | "<V2" => Some(FloatKind::BF16),
        integer if matches!(integer.as_bytes(), [b'<' | b'|', b'i' | b'u' | b'b', ..]) => None,
        other => return Err(format!("elements of type `{other}` are not supported")),
    };
    let shape = field(&text, "shape").and_then(|rest| rest.strip_prefix('('));
    let shape = shape.and_then(|rest| rest.split(')').next()).ok_or_else(unclear)?;
    let sides = shape.split(',').map(str::trim).filter(|side| !side.is_empty());
    let shape: Vec<usize> = sides.map(|side| side.parse().map_err(|_| unclear())).collect::<Result<_, _>>()?;
    Ok(Header { kind, shape })
}

/// What follows `'name':` in a Python dictionary.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("'{name}'"))?;
    rest.trim_start().strip_prefix(':').map(str::trim_start)
}

fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix('\'')?.split_once('\'').map(|(inside, _)| inside)
}
