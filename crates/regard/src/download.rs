//! Files from the network.
//!
//! A download goes to `FILE.partial`, continues where it was interrupted, and becomes the file only when it is whole and
//! its SHA-256 is right, as far as one is known.

use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ureq::Agent;

/// How far a download is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    pub done: u64,
    /// None when the server does not say.
    pub total: Option<u64>,
}

/// Interruptions in a row, without a byte between them, after which a download is given up.
const PATIENCE: usize = 3;

/// Why there is no file.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server has none.
    Missing,
    /// Worth another try.
    Interrupted(String),
    Final(String),
}

/// The file at an address, as a file here; whole, and with this SHA-256 or beginning of one, or not at all.
///
/// `pause` is how long to wait before an interrupted download continues.
pub(crate) fn download(
    url: &str,
    to: &Path,
    mut hash: Option<String>,
    pause: Duration,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), Failure> {
    let local = |error: std::io::Error| Failure::Final(format!("{}: {error}", to.display()));
    std::fs::create_dir_all(to.parent().unwrap_or(to)).map_err(local)?;
    let (partial, tag) = (beside(to, ".partial"), beside(to, ".etag"));
    let mut file =
        OpenOptions::new().create(true).truncate(false).read(true).write(true).open(&partial).map_err(local)?;
    // another process may be fetching the same file: then wait for it
    file.lock().map_err(local)?;
    if to.is_file() {
        return Ok(());
    }
    let mut failures = 0;
    loop {
        let before = file.metadata().map_err(local)?.len();
        match transfer(url, &mut file, &tag, &mut hash, progress) {
            Ok(()) => break,
            Err(Failure::Interrupted(reason)) => {
                let after = file.metadata().map_err(local)?.len();
                failures = if after > before { 0 } else { failures + 1 };
                if failures == PATIENCE {
                    return Err(Failure::Interrupted(reason));
                }
                std::thread::sleep(pause);
            }
            Err(failure) => {
                if file.metadata().is_ok_and(|data| data.len() == 0) {
                    _ = std::fs::remove_file(&partial);
                }
                return Err(failure);
            }
        }
    }
    if let Some(expected) = hash {
        let found = sha256(&mut file).map_err(local)?;
        if !found.starts_with(&expected) {
            _ = std::fs::remove_file(&partial);
            return Err(Failure::Final(format!("its SHA-256 is {found}, and should be {expected}")));
        }
    }
    file.sync_all().and_then(|()| std::fs::rename(&partial, to)).map_err(local)?;
    _ = std::fs::remove_file(&tag);
    Ok(())
}

/// One request, from where the file ends.
fn transfer(
    url: &str,
    file: &mut File,
    tag: &Path,
    hash: &mut Option<String>,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), Failure> {
    let local = |error: std::io::Error| Failure::Final(error.to_string());
    let have = file.seek(SeekFrom::End(0)).map_err(local)?;
    let known_tag = std::fs::read_to_string(tag).ok().filter(|tag| have > 0 && !tag.is_empty());
    let (response, linked) = request(url, have, known_tag.as_deref())?;
    if hash.is_none() {
        *hash = linked;
    }
    let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let length = header("content-length").and_then(|length| length.parse::<u64>().ok());
    let range = header("content-range").map(String::from);
    let new_tag = header("etag").filter(|tag| !tag.starts_with("W/")).unwrap_or_default().to_string();
    let start = match response.status().as_u16() {
        200 => 0,
        206 if range.as_deref().is_some_and(|range| range.starts_with(&format!("bytes {have}-"))) => have,
        416 if range.as_deref() == Some(&format!("bytes */{have}")) => return Ok(()),
        206 | 416 => {
            file.set_len(0).map_err(local)?;
            return Err(Failure::Interrupted("the server answered with another part of the file".into()));
        }
        404 | 410 => return Err(Failure::Missing),
        status @ (401 | 403) => return Err(Failure::Final(format!("the server refuses it (status {status})"))),
        status @ (408 | 429 | 500..) => {
            return Err(Failure::Interrupted(format!("the server says status {status}")));
        }
        status => return Err(Failure::Final(format!("the server says status {status}"))),
    };
    file.set_len(start).and_then(|()| file.seek(SeekFrom::Start(start))).map_err(local)?;
    std::fs::write(tag, new_tag).map_err(local)?;

    let total = length.map(|length| start + length);
    let mut done = start;
    let mut body = response.into_body().into_reader();
    let mut buffer = vec![0; 1 << 16];
    progress(Progress { done, total });
    loop {
        let count = body.read(&mut buffer).map_err(|error| Failure::Interrupted(error.to_string()))?;
        if count == 0 {
            break;
        }
        file.write_all(&buffer[..count]).map_err(local)?;
        done += count as u64;
        progress(Progress { done, total });
    }
    match total {
        Some(total) if total != done => {
            Err(Failure::Interrupted(format!("the connection ended after {done} of {total} bytes")))
        }
        _ => Ok(()),
    }
}

/// The answer behind all redirections, and the hash that one of them may name.
fn request(
    url: &str,
    have: u64,
    tag: Option<&str>,
) -> Result<(ureq::http::Response<ureq::Body>, Option<String>), Failure> {
    let agent: Agent = Agent::config_builder()
        .http_status_as_error(false)
        .max_redirects(0)
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_recv_response(Some(Duration::from_mins(1)))
        .timeout_per_read(Some(Duration::from_mins(1)))
        .user_agent(concat!("regard/", env!("CARGO_PKG_VERSION")))
        .build()
        .into();
    let mut url = url.to_string();
    let mut hash = None;
    for _ in 0..10 {
        let mut request = agent.get(&url);
        if have > 0 {
            request = request.header("range", format!("bytes={have}-"));
        }
        if let Some(tag) = tag {
            request = request.header("if-range", tag);
        }
        let response = request.call().map_err(|error| match error {
            ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
                Failure::Final(error.to_string())
            }
            error => Failure::Interrupted(format!("cannot be reached: {error}")),
        })?;
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let linked = header("x-linked-etag").map(|tag| tag.trim_start_matches("W/").trim_matches('"'));
        let is_hash = |tag: &&str| tag.len() == 64 && tag.bytes().all(|byte| byte.is_ascii_hexdigit());
        hash = hash.or_else(|| linked.filter(is_hash).map(str::to_ascii_lowercase));
        match (response.status().as_u16(), header("location")) {
            (301 | 302 | 303 | 307 | 308, Some(location)) => url = redirected(&url, location)?,
            _ => return Ok((response, hash)),
        }
    }
    Err(Failure::Final("more than 10 redirections".into()))
}

/// Where a redirection leads: elsewhere, or to another path of the same server; never from https to http.
fn redirected(url: &str, location: &str) -> Result<String, Failure> {
    if let Some(path) = location.strip_prefix('/')
        && !path.starts_with('/')
    {
        let host_from = url.find("://").map_or(0, |at| at + 3);
        let host_to = url[host_from..].find('/').map_or(url.len(), |at| host_from + at);
        return Ok(format!("{}/{path}", &url[..host_to]));
    }
    let safe = location.starts_with("https://") || (location.starts_with("http://") && url.starts_with("http://"));
    if safe { Ok(location.to_string()) } else { Err(Failure::Final(format!("a redirection to {location}"))) }
}

/// The SHA-256 of a file, in hexadecimal digits.
pub(crate) fn sha256(file: &mut File) -> std::io::Result<String> {
    file.seek(SeekFrom::Start(0))?;
    let mut hash = Sha256::new();
    std::io::copy(file, &mut hash)?;
    Ok(format!("{:x}", hash.finalize()))
}

pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirection_never_loses_its_encryption() {
        assert!(redirected("https://a/b", "http://c/d").is_err());
        assert!(redirected("https://a/b", "//c/d").is_err());
        assert_eq!(redirected("https://a/b", "https://c/d").ok().as_deref(), Some("https://c/d"));
        assert_eq!(redirected("https://a/b?c=d/e", "/f").ok().as_deref(), Some("https://a/f"));
    }
}
