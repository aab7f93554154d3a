//! Where the bytes of a video are: a file of any size that is read in pieces, or memory.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;

use crate::data::decode::MOST_BYTES;
use crate::file;

/// How often the bytes of an input are read while it is open: an index may name the same ones for every frame.
const MOST_TIMES: u64 = 16;
/// Pixels of all frames that are decoded for one clip that was sent: some twenty seconds of work.
const MOST_WORK_IN_MEMORY: usize = 1 << 31;

/// The bytes of a video that can be opened again and again.
#[derive(Clone, Debug)]
pub enum ClipSource {
    File(PathBuf),
    Memory(Arc<[u8]>),
}

impl ClipSource {
    /// The most pixels to decode, of at most so many: a stranger who sent the bytes gets less than the owner of a file.
    pub fn most_work(&self, most: usize) -> usize {
        match self {
            Self::File(_) => most,
            Self::Memory(_) => most.min(MOST_WORK_IN_MEMORY),
        }
    }

    pub fn open(&self) -> Result<OpenInput, String> {
        match self {
            Self::File(path) => {
                let file = file::open_regular(path).map_err(|error| super::without_name(&error, path))?;
                let length = file.metadata().map_err(|error| error.to_string())?.len();
                Ok(OpenInput { bytes: Bytes::File(file), length, taken: 0 })
            }
            Self::Memory(bytes) => {
                let length = bytes.len() as u64;
                Ok(OpenInput { bytes: Bytes::Memory(bytes.clone()), length, taken: 0 })
            }
        }
    }
}

/// Bytes to read from any place.
#[derive(Debug)]
pub struct OpenInput {
    bytes: Bytes,
    pub length: u64,
    /// Bytes that were read so far.
    taken: u64,
}

#[derive(Debug)]
enum Bytes {
    File(File),
    Memory(Arc<[u8]>),
}

impl OpenInput {
    /// So many bytes from a place on; none are taken when the input has fewer.
    pub fn read(&mut self, from: u64, length: u64) -> Result<Vec<u8>, String> {
        let end = from.checked_add(length).filter(|end| *end <= self.length && length <= MOST_BYTES);
        let end =
            end.ok_or_else(|| format!("the file ends at byte {}, {length} from {from} on are due", self.length))?;
        self.taken += length;
        if self.taken > MOST_TIMES * self.length + (1 << 24) {
            return Err("its index has the same bytes read again and again".into());
        }
        match &mut self.bytes {
            Bytes::Memory(bytes) => Ok(bytes[from as usize..end as usize].to_vec()),
            Bytes::File(file) => {
                let mut bytes = Vec::with_capacity(length as usize);
                file.seek(SeekFrom::Start(from)).map_err(|error| error.to_string())?;
                file.take(length).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
                // somebody may have cut it in the meantime
                if bytes.len() as u64 == length { Ok(bytes) } else { Err("the file became shorter".into()) }
            }
        }
    }

    /// As many of the first bytes as there are.
    pub fn start(&mut self, most: u64) -> Result<Vec<u8>, String> {
        self.read(0, most.min(self.length))
    }

    /// All bytes, for formats that have to be read from the first on.
    pub fn all(&mut self) -> Result<Vec<u8>, String> {
        if self.length > MOST_BYTES {
            return Err(format!("larger than {MOST_BYTES} bytes"));
        }
        self.read(0, self.length)
    }
}

/// Numbers in slices; none where the slice ends.
pub trait Numbers {
    fn u8_at(&self, place: usize) -> Option<u8>;
    fn be16(&self, place: usize) -> Option<u16>;
    fn be32(&self, place: usize) -> Option<u32>;
    fn be64(&self, place: usize) -> Option<u64>;
    fn le16(&self, place: usize) -> Option<u16>;
    fn le24(&self, place: usize) -> Option<u32>;
    fn le32(&self, place: usize) -> Option<u32>;
}

impl Numbers for [u8] {
    fn u8_at(&self, place: usize) -> Option<u8> {
        self.get(place).copied()
    }

    fn be16(&self, place: usize) -> Option<u16> {
        Some(u16::from_be_bytes(*self.get(place..)?.first_chunk()?))
    }

    fn be32(&self, place: usize) -> Option<u32> {
        Some(u32::from_be_bytes(*self.get(place..)?.first_chunk()?))
    }

    fn be64(&self, place: usize) -> Option<u64> {
        Some(u64::from_be_bytes(*self.get(place..)?.first_chunk()?))
    }

    fn le16(&self, place: usize) -> Option<u16> {
        Some(u16::from_le_bytes(*self.get(place..)?.first_chunk()?))
    }

    fn le24(&self, place: usize) -> Option<u32> {
        let [low, middle, high] = *self.get(place..)?.first_chunk()?;
        Some(u32::from_le_bytes([low, middle, high, 0]))
    }

    fn le32(&self, place: usize) -> Option<u32> {
        Some(u32::from_le_bytes(*self.get(place..)?.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_and_memory_give_the_same_pieces_and_refuse_what_is_beyond_their_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("clip.mp4");
        std::fs::write(&path, [1, 2, 3, 4, 5]).unwrap();
        for input in [ClipSource::File(path), ClipSource::Memory(Arc::new([1, 2, 3, 4, 5]))] {
            let mut open = input.open().unwrap();
            assert_eq!((open.length, open.read(1, 3).unwrap()), (5, vec![2, 3, 4]));
            assert_eq!((open.start(2).unwrap(), open.start(9).unwrap().len()), (vec![1, 2], 5));
            for (from, length) in [(3, 3), (6, 0), (u64::MAX, 1), (0, u64::MAX)] {
                assert!(open.read(from, length).unwrap_err().starts_with("the file ends at byte 5"));
            }
        }
    }
}
