//! Finds lines of request heads that end with LF alone.
//!
//! Parsers accept them, but a proxy in front of this server may read such a head differently (request smuggling). The
//! scanner only refuses: if it is wrong about the start of a head, a request is refused, never read differently.

/// The state of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Head,
    Body(u64),
    /// A chunked body: its connection is closed after the answer.
    Unknown,
}

/// Number of bytes kept of a line: the longest name and number that matter.
const KEPT: usize = 64;

/// A line of a head ended with LF alone.
#[derive(Debug, PartialEq)]
pub struct BareLineFeed {
    pub offset: usize,
}

#[derive(Debug)]
pub struct HeadScanner {
    state: State,
    /// The beginning of the current line.
    line: Vec<u8>,
    /// The last byte of the current line.
    last: Option<u8>,
    /// Whether a line of this head was not empty.
    begun: bool,
    content_length: u64,
    chunked: bool,
}

impl Default for HeadScanner {
    fn default() -> Self {
        Self { state: State::Head, line: Vec::new(), last: None, begun: false, content_length: 0, chunked: false }
    }
}

impl HeadScanner {
    /// Scans the next bytes of a connection.
    ///
    /// # Errors
    /// When a line of a head ends with LF alone.
    pub fn feed(&mut self, all: &[u8]) -> Result<(), BareLineFeed> {
        let mut bytes = all;
        while !bytes.is_empty() {
            match self.state {
                State::Unknown => return Ok(()),
                State::Body(left) => {
                    let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[count..];
                    let left = left - count as u64;
                    self.state = if left == 0 { State::Head } else { State::Body(left) };
                }
                State::Head => {
                    let end = bytes.iter().position(|&byte| byte == b'\n');
                    let (text, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
                    let room = KEPT.saturating_sub(self.line.len()).min(text.len());
                    self.line.extend_from_slice(&text[..room]);
                    self.last = text.last().copied().or(self.last);
                    bytes = rest;
                    if end.is_some() {
                        if !self.end_line() {
                            return Err(BareLineFeed { offset: all.len() - bytes.len() });
                        }
                        bytes = &bytes[1..];
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether the line ends with CR.
    fn end_line(&mut self) -> bool {
        let line = std::mem::take(&mut self.line);
        if self.last.take() != Some(b'\r') {
            return false;
        }
        let line = line.trim_ascii();
        if !line.is_empty() {
            self.begun = true;
            self.read_header(line);
        } else if self.begun {
            // empty lines before the first one are no head
            let (length, chunked) = (self.content_length, self.chunked);
            *self = Self::default();
            self.state = if chunked {
                State::Unknown
            } else if length > 0 {
                State::Body(length)
            } else {
                State::Head
            };
        }
        true
    }

    fn read_header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.chunked = true;
        } else if name.eq_ignore_ascii_case(b"content-length") {
            self.content_length = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok()).unwrap_or(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whole, and byte by byte.
    fn scan(text: &str) -> Option<usize> {
        let whole = HeadScanner::default().feed(text.as_bytes()).err().map(|found| found.offset);
        let mut scanner = HeadScanner::default();
        assert_eq!(text.bytes().position(|byte| scanner.feed(&[byte]).is_err()), whole);
        whole
    }

    #[test]
    fn a_line_feed_alone_is_found_in_every_head_and_bodies_may_contain_it() {
        let post = "POST / HTTP/1.1\r\nHost: a\r\ncontent-LENGTH: 4\r\n\r\n\n\n\n\n";
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n0\r\n\r\n";
        for right in [
            get,
            post,
            &format!("\r\n{get}{post}{get}"),
            chunked,
            &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(999)),
        ] {
            assert_eq!(scan(right), None, "{right:?}");
        }
        for wrong in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            &format!("{post}{get}GET / HTTP/1.1\n\n"),
        ] {
            let offset = scan(wrong).unwrap_or_else(|| panic!("{wrong:?}"));
            assert_eq!(&wrong[offset..=offset], "\n");
        }
    }
}
