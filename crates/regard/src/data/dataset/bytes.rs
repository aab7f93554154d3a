//! Binary files, plain or compressed by gzip, with sizes that are not trusted.

use flate2::read::MultiGzDecoder;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use crate::Error;
use crate::file::open_regular;

/// Maximum size of a file in bytes, before and after decompression.
pub const MOST: u64 = 1 << 30;

/// The content of a file, decompressed if necessary.
pub fn reader(path: &Path) -> Result<Box<dyn Read>, Error> {
    let wrong = |error| Error::file(path, error);
    let mut file = open_regular(path)?;
    let mut start = Vec::new();
    (&mut file).take(2).read_to_end(&mut start).map_err(wrong)?;
    file.seek(SeekFrom::Start(0)).map_err(wrong)?;
    // the content decides, not the name
    let packed = start == [0x1f, 0x8b];
    Ok(if packed { Box::new(MultiGzDecoder::new(BufReader::new(file))) } else { Box::new(BufReader::new(file)) })
}

/// Exactly this many bytes, the first of which are read already; memory grows with the actual content, not with the claimed
/// size.
pub fn exactly(reader: &mut dyn Read, count: u64, path: &Path) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    // one byte more, to see whether the file ends
    reader.take(count + 1).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    match bytes.len() as u64 {
        found if found < count => Err(Error::file(path, format!("it ends after {found} bytes of {count}"))),
        found if found > count => Err(Error::file(path, format!("it goes on after {count} bytes"))),
        _ => Ok(bytes),
    }
}

/// The whole content, within a limit.
pub fn whole(path: &Path, most: u64) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    reader(path)?.take(most + 1).read_to_end(&mut bytes).map_err(|error| Error::file(path, error))?;
    if bytes.len() as u64 > most {
        return Err(Error::file(path, format!("larger than {most} bytes")));
    }
    Ok(bytes)
}

/// A text, within a limit.
pub fn text(path: &Path) -> Result<String, Error> {
    String::from_utf8(whole(path, 1 << 28)?).map_err(|_| Error::file(path, "not a text in UTF-8"))
}
