//! Reads checkpoint files: safetensors, `PyTorch` and `NumPy`, recognised by their content.
//!
//! All floats become f32, and so do int8 weights with scales (`int8.rs`). Other integers, such as the counter
//! `num_batches_tracked`, are skipped.
//! No code of a file is run: `pytorch-reader` parses pickles and knows only tensors. The sizes that a file claims are
//! checked against its length before memory is allocated.

use burn::tensor::{Bytes, TensorData};
use half::{bf16, f16};
use pytorch_reader::{DType, PytorchError, PytorchReader};
use rayon::prelude::*;
use safetensors::tensor::{Metadata, TensorInfo};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use super::older::{in_todays_layout, is_in_out};
use super::{Tensors, int8, npz};
use crate::Error;

/// The tensors of a file, under the file's own names; our own older layouts are today's.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    pub format: WeightsFormat,
    pub tensors: Tensors,
    /// Names of the tensors in memory that contain NaN or infinity.
    pub not_finite: Vec<String>,
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightsFormat {
    Safetensors,
    PyTorch,
    NumPy,
}

/// Keys under which training scripts save the weights, next to optimizer state.
const WRAPPERS: [&str; 4] = ["model", "state_dict", "model_state", "model_state_dict"];

/// Reads every floating-point tensor of a file.
///
/// # Errors
/// When the file cannot be read, has an unknown format or is damaged; the error names the file and the reason.
pub fn read(path: &Path) -> Result<Checkpoint, Error> {
    read_with_storage(path, TensorStorage::InMemory)
}

/// Where the values of large tensors are after reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TensorStorage {
    InMemory,
    /// Still in the file, read on first access; only tensors that need no conversion.
    InFile,
}

pub(super) fn read_with_storage(path: &Path, storage: TensorStorage) -> Result<Checkpoint, Error> {
    let broken = |reason: String| Error::file(path, reason);
    let start = first_bytes(path).map_err(|error| broken(error.to_string()))?;
    let (format, tensors) = match () {
        () if start.is_empty() => return Err(broken("the file is empty".into())),
        () if is_safetensors(&start) => (WeightsFormat::Safetensors, read_safetensors(path, storage)),
        () if start.starts_with(b"PK") && npz::is_npz(path) => (WeightsFormat::NumPy, npz::read(path)),
        () if start.starts_with(b"version https://git-lfs") => {
            return Err(broken("a Git LFS pointer, not the file itself; `git lfs pull` fetches it".into()));
        }
        () if start.starts_with(b"<") => return Err(broken("a web page, not weights".into())),
        () => (WeightsFormat::PyTorch, read_pytorch(path)),
    };
    let FloatTensors { mut tensors, mut not_finite } = tensors.map_err(broken)?;
    tensors.retain(|name, _| !name.ends_with("num_batches_tracked"));
    if tensors.is_empty() {
        return Err(broken("contains no floating-point tensor".into()));
    }
    not_finite.sort();
    Ok(Checkpoint { format, tensors, not_finite })
}

/// Collects tensors while a file is read.
#[derive(Debug, Default)]
pub(super) struct FloatTensors {
    pub(super) tensors: Tensors,
    pub(super) not_finite: Vec<String>,
}

impl FloatTensors {
    pub(super) fn add(&mut self, name: String, (tensor, finite): (TensorData, bool)) {
        if !finite {
            self.not_finite.push(name.clone());
        }
        let tensor = in_todays_layout(&name, tensor);
        self.tensors.insert(name, tensor);
    }
}

fn first_bytes(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut start = Vec::new();
    File::open(path)?.take(64).read_to_end(&mut start)?;
    Ok(start)
}

/// Whether a file starts with an 8-byte length and a JSON object.
fn is_safetensors(start: &[u8]) -> bool {
    let length = start.first_chunk::<8>().map(|bytes| u64::from_le_bytes(*bytes));
    length.is_some_and(|length| length < 100_000_000) && start.get(8) == Some(&b'{')
}

/// Tensors of at least so many bytes stay in the file with [`TensorStorage::InFile`].
const LARGE: usize = 1 << 16;

/// Reads tensor by tensor on all threads, so that the file is never in memory as a whole.
fn read_safetensors(path: &Path, storage: TensorStorage) -> Result<FloatTensors, String> {
    let (header, begin) = safetensors_header(path)?;
    let mut floats = Vec::new();
    for (name, info) in header.tensors() {
        if info.dtype == Dtype::I8 {
            // needs its scales, which are another tensor
            return safetensors_of(&std::fs::read(path).map_err(|error| error.to_string())?);
        }
        if let Some(kind) = float_of(&name, info.dtype)? {
            floats.push((name, kind, info));
        }
    }
    let read = |(file, bytes): &mut (Option<File>, Vec<u8>), (name, kind, info): (String, FloatKind, &TensorInfo)| {
        let (start, end) = info.data_offsets;
        let as_it_is = kind == FloatKind::F32 && cfg!(target_endian = "little") && !is_in_out(&name, &info.shape);
        if storage == TensorStorage::InFile && as_it_is && end - start >= LARGE {
            let bytes = Bytes::from_file(path, (end - start) as u64, begin + start as u64);
            let tensor = TensorData::from_bytes(bytes, info.shape.clone(), burn::tensor::DType::F32);
            return Ok((name, (tensor, true)));
        }
        let mut read = || -> std::io::Result<()> {
            let file = if let Some(file) = file { file } else { file.insert(File::open(path)?) };
            file.seek(SeekFrom::Start(begin + start as u64))?;
            bytes.resize(end - start, 0);
            file.read_exact(bytes)
        };
        read().map_err(|error| format!("`{name}`: {error}"))?;
        Ok((name, kind.tensor(bytes, info.shape.clone())))
    };
    let read: Result<Vec<_>, String> = floats.into_par_iter().map_init(|| (None, Vec::new()), read).collect();
    let mut floats = FloatTensors::default();
    read?.into_iter().for_each(|(name, tensor)| floats.add(name, tensor));
    Ok(floats)
}

/// The header, and the offset of the data. The file must be as long as the header says.
fn safetensors_header(path: &Path) -> Result<(Metadata, u64), String> {
    let read = || -> std::io::Result<(Vec<u8>, u64)> {
        let mut file = File::open(path)?;
        let len = file.metadata()?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size)?;
        let mut header = Vec::new();
        file.take(u64::from_le_bytes(size)).read_to_end(&mut header)?;
        Ok((header, len))
    };
    let (header, len) = read().map_err(|error| error.to_string())?;
    let begin = 8 + header.len() as u64;
    let whole = |reason: &dyn std::fmt::Display| format!("not a complete safetensors file: {reason}");
    if let Some(name) = repeated_name(&header).map_err(|error| whole(&error))? {
        return Err(format!("two tensors are named `{name}`"));
    }
    let header: Metadata = serde_json::from_slice(&header).map_err(|error| whole(&error))?;
    let expected = begin.saturating_add(header.data_len() as u64);
    if expected != len {
        return Err(whole(&format!("it has {len} bytes, its header says {expected}")));
    }
    Ok((header, begin))
}

/// The first repeated name in a JSON object: of two tensors with the same name, parsers keep only the last.
fn repeated_name(header: &[u8]) -> Result<Option<String>, serde_json::Error> {
    struct Names(Option<String>);
    impl<'de> serde::Deserialize<'de> for Names {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_map(Visitor)
        }
    }
    struct Visitor;
    impl<'de> serde::de::Visitor<'de> for Visitor {
        type Value = Names;
        fn expecting(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
            f.write_str("an object of tensors")
        }
        fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Names, A::Error> {
            let (mut seen, mut repeated) = (BTreeSet::new(), None);
            while let Some((name, serde::de::IgnoredAny)) = map.next_entry::<String, _>()? {
                if repeated.is_none() && seen.contains(&name) {
                    repeated = Some(name);
                } else {
                    seen.insert(name);
                }
            }
            Ok(Names(repeated))
        }
    }
    serde_json::from_slice::<Names>(header).map(|Names(repeated)| repeated)
}

/// The tensors of a safetensors file in memory; errors name `path`.
pub(crate) fn from_bytes(bytes: &[u8], path: &Path) -> Result<Tensors, Error> {
    safetensors_of(bytes).map(|floats| floats.tensors).map_err(|reason| Error::file(path, reason))
}

fn safetensors_of(bytes: &[u8]) -> Result<FloatTensors, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| format!("not a complete safetensors file: {error}"))?;
    let (mut floats, mut bytes) = (FloatTensors::default(), Vec::new());
    for (name, view) in file.iter() {
        if view.dtype() == Dtype::I8 {
            bytes.push((name.to_string(), view));
        } else if let Some(kind) = float_of(name, view.dtype())? {
            floats.add(name.to_string(), kind.tensor(view.data(), view.shape().to_vec()));
        }
    }
    int8::restore(&mut floats.tensors, bytes)?;
    Ok(floats)
}

/// None for integers, which are skipped.
fn float_of(name: &str, dtype: Dtype) -> Result<Option<FloatKind>, String> {
    Ok(Some(match dtype {
        Dtype::F64 => FloatKind::F64,
        Dtype::F32 => FloatKind::F32,
        Dtype::F16 => FloatKind::F16,
        Dtype::BF16 => FloatKind::BF16,
        Dtype::BOOL
        | Dtype::U8
        | Dtype::I8
        | Dtype::U16
        | Dtype::I16
        | Dtype::U32
        | Dtype::I32
        | Dtype::U64
        | Dtype::I64 => return Ok(None),
        other => return Err(format!("`{name}` has elements of type {other:?}, which is not supported")),
    }))
}

fn read_pytorch(path: &Path) -> Result<FloatTensors, String> {
    let reader = open_pytorch(path).map_err(|error| match error {
        PytorchError::InvalidFormat(reason) if reason.starts_with("not a PyTorch checkpoint") => {
            "neither safetensors nor a PyTorch nor a NumPy file".to_string()
        }
        error => error.to_string(),
    })?;
    let floats =
        reader.into_tensors().into_values().filter_map(|tensor| Some((FloatKind::of(tensor.dtype())?, tensor)));
    let floats: Vec<_> = floats.collect();
    let claimed = floats.iter().try_fold(0u64, |sum, (_, tensor)| sum.checked_add(tensor.byte_len() as u64));
    check_claimed_size(path, claimed)?;
    let mut read = FloatTensors::default();
    for (kind, tensor) in floats {
        let bytes = tensor.read().map_err(|error| error.to_string())?;
        read.add(tensor.name.clone(), kind.tensor(&bytes, tensor.shape().to_vec()));
    }
    Ok(read)
}

/// The dictionary with the weights: the outermost, or one inside it that a training script wrote.
fn open_pytorch(path: &Path) -> Result<PytorchReader, PytorchError> {
    let whole = PytorchReader::new(path)?;
    for wrapper in WRAPPERS {
        // such a key may also hold something else, such as the model's name
        if let Ok(reader) = PytorchReader::with_top_level_key(path, wrapper)
            && !reader.is_empty()
        {
            return Ok(reader);
        }
    }
    Ok(whole)
}

/// Refuses a file that claims far more bytes than it has: weights hardly compress.
pub(super) fn check_claimed_size(path: &Path, claimed: Option<u64>) -> Result<(), String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    let most = length.saturating_mul(8).saturating_add(1 << 24);
    match claimed {
        Some(claimed) if claimed <= most => Ok(()),
        Some(claimed) => Err(format!("a file of {length} bytes claims {claimed} bytes of tensors")),
        None => Err(format!("a file of {length} bytes claims more tensors than memory can address")),
    }
}

/// The floating-point types that are converted to f32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FloatKind {
    F64,
    F32,
    F16,
    BF16,
}

impl FloatKind {
    fn of(kind: DType) -> Option<Self> {
        match kind {
            DType::F64 => Some(Self::F64),
            DType::F32 => Some(Self::F32),
            DType::F16 => Some(Self::F16),
            DType::BF16 => Some(Self::BF16),
            DType::I64
            | DType::I32
            | DType::I16
            | DType::I8
            | DType::U64
            | DType::U32
            | DType::U16
            | DType::U8
            | DType::Bool => None,
        }
    }

    pub(super) const fn size(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }

    /// Little-endian bytes as an f32 tensor, and whether all of them are finite.
    pub(super) fn tensor(self, bytes: &[u8], shape: Vec<usize>) -> (TensorData, bool) {
        let (values, finite) = match self {
            Self::F64 => numbers(bytes, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::F32 => numbers(bytes, f32::from_le_bytes),
            Self::F16 => numbers(bytes, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::BF16 => numbers(bytes, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        };
        (TensorData::new(values, shape), finite)
    }
}

/// Converts and checks for NaN and infinity in one pass: a second one would read all memory of a large model again.
fn numbers<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f32) -> (Vec<f32>, bool) {
    let mut carries = 0;
    let number = |bytes: &[u8; N]| {
        let number = number(*bytes);
        carries |= exponent_carry(number);
        number
    };
    (bytes.as_chunks::<N>().0.iter().map(number).collect(), carries >> 31 == 0)
}

/// Whether no value is NaN or infinite.
pub(super) fn all_finite(values: &[f32]) -> bool {
    values.iter().fold(0, |carries, value| carries | exponent_carry(*value)) >> 31 == 0
}

/// The top bit is set for NaN and infinity, whose exponent bits are all ones. Three operations, so that it vectorises.
const fn exponent_carry(value: f32) -> u32 {
    (value.to_bits() & 0x7f80_0000).wrapping_add(0x0080_0000)
}

#[cfg(test)]
mod tests;
