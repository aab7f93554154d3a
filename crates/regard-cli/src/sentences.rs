//! Sentences that a user gave: typed, in files, or on the standard input.

use std::io::{Read as _, Write as _, stderr, stdin};
use std::path::Path;

use crate::failure::Failure;

/// Maximum size of a file of sentences, in bytes.
const MOST_BYTES: u64 = 1 << 28;

/// All texts: a file gives its lines; without arguments, the lines of standard input.
pub fn read(texts: &[String]) -> Result<Vec<String>, Failure> {
    if texts.is_empty() {
        let mut bytes = Vec::new();
        stdin().read_to_end(&mut bytes)?;
        return lines(&bytes, "");
    }
    let mut all = Vec::new();
    for text in texts {
        if Path::new(text).is_file() {
            writeln!(stderr(), "note: `{text}` is a file; each of its lines is a sentence")?;
            let bytes = regard::file::read_bounded(Path::new(text), MOST_BYTES)?;
            all.extend(lines(&bytes, &format!("`{text}`: "))?);
        } else {
            all.push(text.clone());
        }
    }
    Ok(all)
}

/// `place` starts the error message.
fn lines(bytes: &[u8], place: &str) -> Result<Vec<String>, Failure> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].split(|byte| *byte == b'\n').count();
        Failure::input(format!("{place}line {line} is not UTF-8"), "`iconv -t UTF-8` converts text")
    })?;
    Ok(text.lines().map(String::from).collect())
}
