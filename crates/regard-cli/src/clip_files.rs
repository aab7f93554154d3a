//! Clips from files, for the model of video of a command.

use regard::data::clip::{Video, is_surely_a_clip};
use regard::tasks::clips::{ClipPreparation, PreparedViews};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The views of a video file or a folder of frames.
pub fn read_views(path: &Path, preparation: &ClipPreparation) -> Result<PreparedViews, regard::Error> {
    let video = Video::open(path)?;
    preparation.views(video.length(), |wanted| video.frames(wanted))
}

/// Endings of files that may be clips.
const ENDINGS: [&str; 10] = ["mp4", "mov", "m4v", "avi", "gif", "webm", "mkv", "apng", "mpg", "webp"];

/// The clips of a command: files, folders of frames, and all clips in other folders.
pub fn clips_in(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut found = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            return Err(Failure::input("a clip from standard input", "give a file or a folder of frames"));
        }
        if path.is_dir() {
            below(path, &mut found);
        } else {
            found.push(path.clone());
        }
    }
    if found.is_empty() {
        return Err(Failure::input("no clips", "give video files, folders of frames, or folders of these"));
    }
    Ok(found)
}

/// A folder of pictures is one clip; links to folders are not followed, because they may form cycles.
fn below(folder: &Path, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort();
    let is_video = |path: &Path| {
        let ending = path.extension().unwrap_or_default().to_string_lossy().to_lowercase();
        ENDINGS.contains(&ending.as_str())
    };
    let is_frame = |path: &PathBuf| regard::data::dataset::is_picture(path) && !is_video(path);
    if entries.iter().any(|path| path.is_file() && is_frame(path)) {
        found.push(folder.to_path_buf());
        return;
    }
    for path in entries {
        let is_hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
        if path.is_dir() {
            if !is_hidden && !path.is_symlink() {
                below(&path, found);
            }
        } else if is_video(&path) {
            found.push(path);
        }
    }
}

/// Whether a file is a clip rather than a picture: by the ending of a video, or by content of more than one frame.
pub fn is_clip(path: &Path) -> bool {
    path.is_file() && (is_surely_a_clip(path) || Video::open(path).is_ok_and(|video| video.length().frames > 1))
}
