//! Which pictures: files, folders, patterns, and the standard input.

use regard::data::{Picture, dataset};
use std::io::{BufRead as _, Read as _, stdin};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The most bytes of a picture from the standard input.
const MOST: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
pub struct PictureArgs {
    /// Pictures (JPEG, PNG, WebP, GIF, BMP), folders of them with all folders inside, patterns such as `shots/*.jpg`, or `-`
    /// for a picture from the standard input
    #[arg(value_name = "PICTURE", required_unless_present = "from_stdin")]
    pictures: Vec<PathBuf>,

    /// Read paths from the standard input, one a line: `find . -name '*.jpg' | regard predict --from-stdin`
    #[arg(long)]
    from_stdin: bool,
}

/// Where a picture is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
}

impl Source {
    /// What answers call it.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Stdin => "-".into(),
        }
    }

    pub fn read(&self) -> Result<Picture, regard::Error> {
        let broken = |reason: String| regard::Error::File { path: "-".into(), reason };
        match self {
            Self::File(path) => Picture::open(path),
            Self::Stdin => {
                let mut bytes = Vec::new();
                stdin().take(MOST).read_to_end(&mut bytes).map_err(|error| broken(error.to_string()))?;
                Picture::decode(&bytes).map_err(broken)
            }
        }
    }
}

impl PictureArgs {
    /// Every picture in the order in which it was typed, those of a folder by name.
    pub fn sources(&self) -> Result<Vec<Source>, Failure> {
        let mut sources = Vec::new();
        for path in &self.pictures {
            if path.as_os_str() == "-" {
                if self.from_stdin || sources.contains(&Source::Stdin) {
                    let hint = "`-` is one picture; `--from-stdin` reads paths instead";
                    return Err(Failure::input("the standard input can be read once", hint));
                }
                sources.push(Source::Stdin);
            } else {
                sources.extend(found(path)?.into_iter().map(Source::File));
            }
        }
        if self.from_stdin {
            for line in stdin().lock().lines() {
                let line = line.map_err(|error| {
                    Failure::input(format!("standard input: {error}"), "paths are UTF-8, one a line")
                })?;
                if !line.trim().is_empty() {
                    sources.extend(found(Path::new(line.trim_end_matches('\r')))?.into_iter().map(Source::File));
                }
            }
        }
        if sources.is_empty() {
            return Err(Failure::input("no pictures", "name files, a folder or a pattern"));
        }
        Ok(sources)
    }
}

/// The pictures of a folder, those that a pattern means, or the file itself.
fn found(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() {
        let mut found = Vec::new();
        below(path, &mut found);
        found.sort();
        return if found.is_empty() {
            let endings = "pictures end with .jpg, .jpeg, .png, .webp, .gif or .bmp";
            Err(Failure::input(format!("no pictures in `{}`", path.display()), endings))
        } else {
            Ok(found)
        };
    }
    let text = path.to_string_lossy();
    // a shell expands patterns itself, unless they are quoted or match nothing
    if path.exists() || !text.contains(['*', '?', '[']) {
        return Ok(vec![path.to_path_buf()]);
    }
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::input(format!("`{text}`: {reason}"), "`*` stands for any name, `?` for a letter, `**` for any folders")
    };
    let files: Vec<PathBuf> =
        glob::glob(&text).map_err(|error| wrong(&error))?.flatten().filter(|path| path.is_file()).collect();
    if files.is_empty() { Err(wrong(&"no file is called so")) } else { Ok(files) }
}

/// Links to folders are not followed: they may lead back.
fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() {
            if !hidden && !path.is_symlink() {
                below(&path, found);
            }
        } else if dataset::is_picture(&path) {
            found.push(path);
        }
    }
}
