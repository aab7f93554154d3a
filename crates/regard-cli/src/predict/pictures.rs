//! The pictures of a command: files, folders, patterns, and standard input.

use regard::data::{Picture, dataset};
use std::io::{BufRead as _, Read as _, stdin};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// Largest picture from standard input, in bytes.
const MOST: u64 = 1 << 30;

#[derive(Debug, clap::Args)]
pub struct PictureArgs {
    /// Pictures (JPEG, PNG, WebP, GIF, BMP), folders (searched recursively), patterns such as `shots/*.jpg`, or `-` for a
    /// picture from standard input
    #[arg(value_name = "PICTURE", required_unless_present = "from_stdin")]
    pictures: Vec<PathBuf>,

    /// Read paths from standard input, one per line: `find . -name '*.jpg' | regard predict --from-stdin`
    #[arg(long)]
    from_stdin: bool,
}

/// The source of a picture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    File(PathBuf),
    Stdin,
}

impl Source {
    /// Its name in the output.
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
    /// The first path, if it is an argument.
    pub fn first(&self) -> Option<&Path> {
        self.pictures.first().map(PathBuf::as_path)
    }

    /// Every path as it was given.
    pub fn paths(&self) -> Result<Vec<PathBuf>, Failure> {
        let mut paths = self.pictures.clone();
        if self.from_stdin {
            paths.extend(lines()?.into_iter().map(PathBuf::from));
        }
        Ok(paths)
    }

    /// Every picture in the order of the arguments; those of a folder are sorted by name.
    pub fn sources(&self) -> Result<Vec<Source>, Failure> {
        let mut sources = Vec::new();
        for path in &self.pictures {
            if path.as_os_str() == "-" {
                if self.from_stdin || sources.contains(&Source::Stdin) {
                    let hint = "`-` is one picture; `--from-stdin` reads paths instead";
                    return Err(Failure::input("standard input can be read only once", hint));
                }
                sources.push(Source::Stdin);
            } else {
                sources.extend(found(path)?.into_iter().map(Source::File));
            }
        }
        if self.from_stdin {
            for line in lines()? {
                sources.extend(found(Path::new(&line))?.into_iter().map(Source::File));
            }
        }
        if sources.is_empty() {
            return Err(Failure::input("no pictures", "give files, a folder or a pattern"));
        }
        Ok(sources)
    }
}

/// The lines of standard input that are not empty.
fn lines() -> Result<Vec<String>, Failure> {
    let mut lines = Vec::new();
    for line in stdin().lock().lines() {
        let line = line
            .map_err(|error| Failure::input(format!("standard input: {error}"), "paths must be UTF-8, one per line"))?;
        if !line.trim().is_empty() {
            lines.push(line.trim_end_matches('\r').to_string());
        }
    }
    Ok(lines)
}

/// The pictures in a folder, those that match a pattern, or the file itself.
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
    // shells expand patterns, unless they are quoted or match nothing
    if path.exists() || !text.contains(['*', '?', '[']) {
        return Ok(vec![path.to_path_buf()]);
    }
    let wrong = |reason: &dyn std::fmt::Display| {
        Failure::input(format!("`{text}`: {reason}"), "`*` stands for any name, `?` for a letter, `**` for any folders")
    };
    let files: Vec<PathBuf> =
        glob::glob(&text).map_err(|error| wrong(&error))?.flatten().filter(|path| path.is_file()).collect();
    if files.is_empty() { Err(wrong(&"no file matches")) } else { Ok(files) }
}

/// Links to folders are not followed, because they may form cycles.
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
