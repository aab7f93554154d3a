//! Weights from the network: `hf:owner/name[@revision][/file]` and web addresses, kept in a cache folder.
//!
//! The SHA-256 comes from `#sha256=...` in the address, from Hugging Face's headers, or from a name such as
//! `deit_tiny_patch16_224-a1311bcf.pth`, whose last part is the beginning of the hash.

use std::path::PathBuf;
use std::time::Duration;

use super::address::{Address, HUGGING_FACE_FILES, known_hash};
use crate::Error;
use crate::download::{Failure, Progress, download};

/// Downloads files into a cache.
#[derive(Clone, Debug)]
pub struct Fetcher {
    /// The cache folder.
    pub cache: PathBuf,
    /// Hugging Face, or a mirror of it.
    pub endpoint: String,
    /// How long to wait before an interrupted download continues.
    pub pause: Duration,
}

/// The local file for an address, downloaded unless it is in the cache; a path is returned unchanged.
///
/// The cache is `$REGARD_CACHE` or the platform's folder for caches, Hugging Face is `$HF_ENDPOINT`.
///
/// # Errors
/// When there is no such file, the network cannot be reached or the checksum does not match.
pub fn fetch(address: &str, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
    match address.parse()? {
        Address::Path(path) => Ok(path),
        address => Fetcher::from_environment()?.fetch(&address, progress),
    }
}

impl Fetcher {
    /// # Errors
    /// When there is no cache folder.
    pub fn from_environment() -> Result<Self, Error> {
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let cache = match set("REGARD_CACHE") {
            Some(folder) => PathBuf::from(folder),
            None => cache_folder().ok_or_else(|| Error::Fetch {
                address: "cache".into(),
                reason: "no home folder; set REGARD_CACHE to a folder for downloads".into(),
            })?,
        };
        let endpoint = set("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        Ok(Self { cache, endpoint, pause: Duration::from_secs(1) })
    }

    /// The file at an address; see [`fetch`](fn@fetch).
    ///
    /// # Errors
    /// When there is no such file, the network cannot be reached or the checksum does not match.
    pub fn fetch(&self, address: &Address, progress: &mut dyn FnMut(Progress)) -> Result<PathBuf, Error> {
        let places: Vec<(String, PathBuf)> = match address {
            Address::Path(path) => return Ok(path.clone()),
            Address::Web { url, .. } => vec![(url.clone(), self.cache.join(address.cached_as()))],
            Address::HuggingFace { file, .. } => {
                let files: Vec<&str> = file.as_ref().map_or(HUGGING_FACE_FILES.to_vec(), |file| vec![file]);
                files.into_iter().filter_map(|file| self.in_repository(address, file)).collect()
            }
        };
        if let Some((_, file)) = places.iter().find(|(_, file)| file.is_file()) {
            return Ok(file.clone());
        }
        let mut missing = Vec::new();
        for (url, file) in &places {
            match download(url, file, known_hash(address), self.pause, progress) {
                Ok(()) => return Ok(file.clone()),
                Err(Failure::Missing) => missing.push(url.as_str()),
                Err(Failure::Interrupted(reason) | Failure::Final(reason)) => {
                    let hint = format!("without a network, put the file of {url} at {}", file.display());
                    return Err(Error::Fetch { address: address.to_string(), reason: format!("{reason}; {hint}") });
                }
            }
        }
        Err(Error::Fetch { address: address.to_string(), reason: format!("nothing at {}", missing.join(" nor at ")) })
    }

    /// Whether the weights at an address are in the cache already.
    pub(super) fn has(&self, address: &Address) -> bool {
        match address {
            Address::Path(path) => path.is_file(),
            Address::Web { .. } => self.cache.join(address.cached_as()).is_file(),
            Address::HuggingFace { file, .. } => {
                let files: Vec<&str> = file.as_ref().map_or(HUGGING_FACE_FILES.to_vec(), |file| vec![file]);
                files.iter().filter_map(|file| self.in_repository(address, file)).any(|(_, file)| file.is_file())
            }
        }
    }

    /// Another file of the repository, such as `config.json`; none where the repository has no such file.
    ///
    /// # Errors
    /// When the network cannot be reached.
    pub(super) fn fetch_beside(&self, address: &Address, file: &str) -> Result<Option<PathBuf>, Error> {
        let Some((url, path)) = self.in_repository(address, file) else { return Ok(None) };
        if path.is_file() {
            return Ok(Some(path));
        }
        match download(&url, &path, None, self.pause, &mut |_| {}) {
            Ok(()) => Ok(Some(path)),
            Err(Failure::Missing) => Ok(None),
            Err(Failure::Interrupted(reason) | Failure::Final(reason)) => {
                let hint = format!("without a network, put the file of {url} at {}", path.display());
                Err(Error::Fetch { address: address.to_string(), reason: format!("{reason}; {hint}") })
            }
        }
    }

    /// The address of a file in a repository, and its path in the cache.
    fn in_repository(&self, address: &Address, file: &str) -> Option<(String, PathBuf)> {
        let Address::HuggingFace { owner, name, revision, .. } = address else { return None };
        let (endpoint, revision) = (self.endpoint.trim_end_matches('/'), revision.as_deref().unwrap_or("main"));
        let url = format!("{endpoint}/{owner}/{name}/resolve/{revision}/{file}");
        Some((url, self.cache.join(address.cached_as()).join(file)))
    }
}

/// The platform's cache folder.
fn cache_folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = std::env::home_dir().filter(|home| !home.as_os_str().is_empty());
    let caches = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Caches"))
    } else if cfg!(windows) {
        set("LOCALAPPDATA").or(home)
    } else {
        set("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")))
    };
    caches.map(|caches| caches.join("regard"))
}

#[cfg(test)]
mod tests;
