//! Addresses of weights: a path, `hf:owner/name[@revision][/file]` or a web address.

use sha2::{Digest, Sha256};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::Error;

/// Where weights are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    Path(PathBuf),
    HuggingFace {
        owner: String,
        name: String,
        /// A branch, a tag or a commit; `main` when none.
        revision: Option<String>,
        /// `model.safetensors` when none, or `pytorch_model.bin` where there is no such file.
        file: Option<String>,
    },
    Web {
        url: String,
        /// The SHA-256, or its beginning.
        hash: Option<String>,
    },
}

/// The file names of weights in a repository.
pub(super) const HUGGING_FACE_FILES: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

impl FromStr for Address {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let wrong = |reason: &str| Error::Fetch { address: text.to_string(), reason: reason.to_string() };
        if let Some(repository) = text.strip_prefix("hf:") {
            let parts: Vec<&str> = repository.split('/').collect();
            let [owner, name, file @ ..] = parts.as_slice() else {
                return Err(wrong("must be `hf:owner/name`, with an owner"));
            };
            let (name, revision) = name.split_once('@').map_or((*name, None), |(name, at)| (name, Some(at)));
            if !file.iter().chain([owner, &name]).chain(&revision).all(|part| is_plain(part)) {
                return Err(wrong(
                    "a repository is `hf:owner/name[@revision]` or `hf:owner/name[@revision]/file`, in letters, digits \
                     and .-_",
                ));
            }
            let file = (!file.is_empty()).then(|| file.join("/"));
            let revision = revision.map(String::from);
            return Ok(Self::HuggingFace { owner: (*owner).into(), name: name.into(), revision, file });
        }
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return Ok(Self::Path(text.into()));
        }
        let (url, fragment) = text.split_once('#').map_or((text, None), |(url, fragment)| (url, Some(fragment)));
        let hash = fragment.map(|fragment| {
            let hash = fragment.strip_prefix("sha256=").filter(|hash| is_hash(hash));
            hash.map(str::to_ascii_lowercase)
                .ok_or_else(|| wrong("`#sha256=` must be followed by 8 to 64 hexadecimal digits"))
        });
        Ok(Self::Web { url: url.to_string(), hash: hash.transpose()? })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::HuggingFace { owner, name, revision, file } => {
                write!(f, "hf:{owner}/{name}")?;
                revision.as_ref().map_or(Ok(()), |revision| write!(f, "@{revision}"))?;
                file.as_ref().map_or(Ok(()), |file| write!(f, "/{file}"))
            }
            Self::Web { url, .. } => url.fmt(f),
        }
    }
}

impl Address {
    /// Its path in the cache: the file of a web address, the folder of a repository.
    pub(super) fn cached_as(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::HuggingFace { owner, name, revision, .. } => {
                // every revision has its own folder
                let revision = revision.as_ref().map_or_else(String::new, |revision| format!("@{revision}"));
                ["hf", owner, &format!("{name}{revision}")].iter().collect()
            }
            Self::Web { url, .. } => {
                let path = url.split_once("://").map_or(url.as_str(), |(_, path)| path);
                let (path, query) = path.split_once('?').map_or((path, None), |(path, query)| (path, Some(query)));
                let mut parts: Vec<String> = path.split('/').map(plain).collect();
                if query.is_some() || parts.join("/") != path {
                    // every address has its own file
                    let hash = format!("{:x}", Sha256::digest(url));
                    parts.insert(1.min(parts.len()), hash[..16].to_string());
                }
                std::iter::once("web".to_string()).chain(parts).collect()
            }
        }
    }
}

/// The SHA-256 given in an address, or its beginning.
pub(super) fn known_hash(address: &Address) -> Option<String> {
    let Address::Web { url, hash } = address else { return None };
    let name = url.rsplit('/').next().unwrap_or_default();
    let of_name = || {
        let stem = name.strip_suffix(".pth").or_else(|| name.strip_suffix(".pt"))?;
        let (_, end) = stem.rsplit_once('-')?;
        // only digits: more likely a date
        let is_date = end.bytes().all(|byte| byte.is_ascii_digit());
        (is_hash(end) && !is_date && end == end.to_ascii_lowercase()).then(|| end.to_string())
    };
    hash.clone().or_else(of_name)
}

fn is_hash(text: &str) -> bool {
    (8..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Whether a part of a path is valid in addresses and on every file system.
fn is_plain(part: &str) -> bool {
    plain(part) == part
}

fn plain(part: &str) -> String {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let plain: String = part.chars().map(|c| if allowed(c) { c } else { '_' }).collect();
    if plain.trim_matches('.').is_empty() { "_".repeat(plain.len().max(1)) } else { plain }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_told_apart_and_shown_as_they_were() {
        for text in [
            "hf:timm/vit.a1_in1k",
            "hf:a/b@v1.0/c.bin",
            "hf:a/b@main",
            "hf:a/b/onnx/model.safetensors",
            "https://x.org/a.pth",
            "weights/a.pth",
        ] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        assert_eq!("hf-folder/a".parse::<Address>().unwrap(), Address::Path("hf-folder/a".into()));
    }

    #[test]
    fn an_address_that_leaves_its_folder_is_refused_or_tamed() {
        for text in [
            "hf:..",
            "hf:a",
            "hf:a/..",
            "hf:a/b/../../c",
            "hf:a/b/c d",
            "hf:a//b",
            "hf:/etc/passwd",
            "hf:a/b@",
            "hf:a/b@..",
            "hf:a@b/c",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
        for text in
            ["https://x.org/../../etc/passwd", "http://..", "https://", "http://a/..\\..\\b", "http://a?../../b"]
        {
            let cached = text.parse::<Address>().unwrap().cached_as();
            assert!(cached.starts_with("web"), "{}", cached.display());
            let plain = cached.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            assert!(plain, "{text} is kept at {}", cached.display());
        }
    }

    #[test]
    fn two_addresses_are_kept_apart() {
        let kept = |text: &str| text.parse::<Address>().unwrap().cached_as();
        assert_eq!(kept("https://x.org/a/b.pth"), PathBuf::from("web/x.org/a/b.pth"));
        assert_ne!(kept("hf:a/b"), kept("hf:a/b@main"));
        assert_ne!(kept("https://x.org/a?v=1"), kept("https://x.org/a?v=2"));
        assert_ne!(kept("https://x.org/a%20b"), kept("https://x.org/a_20b"));
    }

    #[test]
    fn hashes_come_from_the_address() {
        let hash = |text: &str| known_hash(&text.parse().unwrap());
        assert_eq!(hash("https://x.org/deit_tiny_patch16_224-a1311bcf.pth").as_deref(), Some("a1311bcf"));
        assert_eq!(hash("https://x.org/a.bin#sha256=A1311BCF").as_deref(), Some("a1311bcf"));
        assert_eq!(hash("https://x.org/model-20240101.pth"), None);
        assert_eq!(hash("https://x.org/model-baseline.pth"), None);
        assert!("https://x.org/a.bin#sha256=xyz".parse::<Address>().is_err());
    }
}
