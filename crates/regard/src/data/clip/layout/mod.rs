//! How files of clips are laid out: one file a layout, recognised by what is there.

mod folder;
mod hmdb51;
mod places;
mod ssv2;
mod table;
mod ucf101;

use std::path::{Path, PathBuf};

use super::reader::Video;
use crate::Error;
use crate::data::Part;
use crate::data::dataset::{entries, is_hidden};
use crate::data::detection::Issue;

/// A clip that a layout has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClipEntry {
    pub path: PathBuf,
    pub class: String,
    /// Clips with the same one are of one recording, and stay in one part; others have a name of their own.
    pub group: String,
}

/// The clips of one part.
#[derive(Clone, Debug, Default)]
pub struct ListedPart {
    /// None when nothing says which part it is.
    pub part: Option<Part>,
    /// The file or folder, for people.
    pub place: String,
    pub entries: Vec<ClipEntry>,
}

/// What was read of a dataset.
#[derive(Clone, Debug, Default)]
pub struct Contents {
    /// In the order of their labels; none when they are known by the clips alone.
    pub classes: Option<Vec<String>>,
    pub sections: Vec<ListedPart>,
    pub issues: Vec<Issue>,
}

/// What was read of a dataset.
#[derive(Debug)]
pub struct ClipLayout {
    pub name: &'static str,
    /// The files by which it is recognised.
    pub files: &'static str,
    pub is_here: fn(&Path) -> bool,
    /// Whether a dataset of pictures could look like it.
    pub is_ambiguous: bool,
    pub read: fn(&Path) -> Result<Contents, Error>,
}

/// Those with files of known names come first: folders of classes are often beside them.
pub const LAYOUTS: [ClipLayout; 5] = [
    ClipLayout {
        name: "UCF101",
        files: "classInd.txt, trainlist01.txt and testlist01.txt, perhaps in ucfTrainTestlist/",
        is_here: ucf101::is_here,
        is_ambiguous: false,
        read: ucf101::read,
    },
    ClipLayout {
        name: "HMDB51",
        files: "*_test_split1.txt, perhaps in testTrainMulti_7030_splits/",
        is_here: hmdb51::is_here,
        is_ambiguous: false,
        read: hmdb51::read,
    },
    ClipLayout {
        name: "Something-Something v2",
        files: "labels.json and train.json, perhaps in labels/",
        is_here: ssv2::is_here,
        is_ambiguous: false,
        read: ssv2::read,
    },
    ClipLayout {
        name: "list of clips",
        files: "train.csv and val.csv, clips.csv, or the path of such a file, with lines of `path label` (PySlowFast), `path,label[,part]`, \
                `folder;class;label`, or Kinetics' `label,youtube_id,time_start,time_end,split`",
        is_here: table::is_here,
        is_ambiguous: false,
        read: table::read,
    },
    ClipLayout {
        name: "folder of classes",
        files: "a folder for each class with videos or folders of frames, perhaps below train/, val/ and test/",
        is_here: folder::is_here,
        is_ambiguous: true,
        read: folder::read,
    },
];

/// Endings of videos that are nothing else.
const VIDEOS: [&str; 16] =
    ["mp4", "m4v", "mov", "avi", "webm", "mkv", "mpg", "mpeg", "wmv", "flv", "ts", "ogv", "3gp", "mts", "m2ts", "qt"];
/// Endings of pictures that may be animated.
const ANIMATIONS: [&str; 3] = ["gif", "apng", "webp"];
/// Endings of single frames.
const FRAMES: [&str; 4] = ["jpg", "jpeg", "png", "bmp"];

fn ends_with(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    ending.is_some_and(|ending| endings.contains(&ending.as_str())) && !is_hidden(path)
}

/// Whether a file's name ends as those of videos or animations do.
fn is_clip_file(path: &Path) -> bool {
    ends_with(path, &VIDEOS) || ends_with(path, &ANIMATIONS)
}

/// Whether a folder has frames and no clips.
fn is_frame_folder(path: &Path) -> bool {
    let inside = if path.is_dir() { entries(path).unwrap_or_default() } else { Vec::new() };
    inside.iter().any(|path| ends_with(path, &FRAMES)) && !inside.iter().any(|path| is_clip_file(path))
}

/// Whether something is surely a clip and no picture: a video, or an animation of several frames. A folder of pictures may
/// be either.
pub fn is_surely_a_clip(path: &Path) -> bool {
    ends_with(path, &VIDEOS)
        || (ends_with(path, &ANIMATIONS) && Video::open(path).is_ok_and(|video| video.length().frames > 1))
}

/// The recording of a file as UCF101 names them, `v_Rowing_g08_c01`: clips of one group are from one recording.
fn recording(path: &Path) -> Option<String> {
    let stem = path.file_stem()?.to_str()?;
    let (rest, clip) = stem.rsplit_once("_c")?;
    let (_, group) = rest.rsplit_once("_g")?;
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    (is_number(clip) && is_number(group)).then(|| rest.to_string())
}

impl ClipEntry {
    /// With the group that the file's name says, or one of its own.
    fn new(root: &Path, path: PathBuf, class: String) -> Self {
        let below = path.strip_prefix(root).unwrap_or(&path);
        let below: Vec<_> = below.iter().map(|name| name.to_string_lossy()).collect();
        let group = recording(&path).map_or_else(|| below.join("/"), |recording| format!("{class}/{recording}"));
        Self { path, class, group }
    }
}
