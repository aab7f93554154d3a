//! Everything else, by an `ffmpeg` process: the program that `$FFMPEG` names, or the one on `PATH`.
//!
//! Headers are often wrong about the number of frames, so that they are counted by decoding them once. ffmpeg turns frames as
//! the file says, and gets only containers that are videos: it would read texts and lists of addresses, too.

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::{MOST_FRAMES, MOST_WORK, Sink, check_size, check_work};
use crate::data::Picture;
use crate::data::clip::ClipLength;

/// A file that ffmpeg reads.
#[derive(Clone, Debug)]
pub struct Ffmpeg {
    program: PathBuf,
    path: PathBuf,
    pub size: [usize; 2],
    pub length: ClipLength,
}

/// The program, if there is one.
pub fn program() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("FFMPEG").filter(|named| !named.is_empty()) {
        return Some(named.into());
    }
    let name = if cfg!(windows) { "ffmpeg.exe" } else { "ffmpeg" };
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

impl Ffmpeg {
    pub fn open(program: &Path, path: &Path) -> Result<Self, String> {
        let mut lines = None;
        // the newer name of an option, then the older one
        let modes = [["-fps_mode", "passthrough"], ["-vsync", "0"]];
        for (index, mode) in modes.iter().enumerate() {
            match run(program, path, &mode.map(OsString::from), &["-f", "framecrc", "-"], count) {
                Err(reason) if index == 0 && reason.contains("fps_mode") => {}
                counted => {
                    lines = Some(counted?);
                    break;
                }
            }
        }
        let Count { size, unit, times, last } = lines.ok_or("ffmpeg knows no mode that passes frames through")?;
        check_size(size)?;
        let (Some(first), Some(end)) = (times.iter().min(), times.iter().max()) else {
            return Err("without a frame".into());
        };
        check_work(times.len(), size, MOST_WORK)?;
        let rate = match times.len() {
            1 => 1.0 / (last as f64 * unit),
            count => (count - 1) as f64 / ((end - first) as f64 * unit),
        };
        let rate = if rate.is_finite() && rate > 0.0 { rate.min(1e6) } else { 30.0 };
        let length = ClipLength { frames: times.len(), rate };
        Ok(Self { program: program.into(), path: path.into(), size, length })
    }

    /// Gives the frames of different increasing numbers.
    pub fn frames(&self, wanted: &[usize], sink: Sink<'_>) -> Result<(), String> {
        let numbers: Vec<String> = wanted.iter().map(|number| format!("eq(n\\,{number})")).collect();
        // what is selected gets new times, so that nothing is filled in between
        let filter = format!("select={},setpts=N/FRAME_RATE/TB", numbers.join("+"));
        let options = ["-vf".into(), filter.into()];
        let count = wanted.len().to_string();
        let output = ["-frames:v", &count, "-f", "rawvideo", "-pix_fmt", "rgb24", "-"];
        let length = 3 * self.size[0] * self.size[1];
        run(&self.program, &self.path, &options, &output, |pipe| {
            for _ in wanted {
                let mut pixels = Vec::with_capacity(length);
                pipe.take(length as u64).read_to_end(&mut pixels).map_err(|error| error.to_string())?;
                sink(Picture::new(self.size, pixels).map_err(|_| "ffmpeg gave less than the frames".to_string())?);
            }
            Ok(())
        })
    }
}

/// What ffmpeg reports about all frames.
#[derive(Debug, Default, PartialEq)]
struct Count {
    size: [usize; 2],
    /// Seconds.
    unit: f64,
    times: Vec<i64>,
    /// How long the last frame is shown.
    last: i64,
}

fn count(pipe: &mut dyn std::io::Read) -> Result<Count, String> {
    let mut count = Count::default();
    let wrong = || "ffmpeg said something that is not known".to_string();
    let pair = |text: &str, between: char| {
        let (one, other) = text.trim().split_once(between)?;
        Some([one.parse::<f64>().ok()?, other.parse::<f64>().ok()?])
    };
    for line in BufReader::new(pipe).lines() {
        let line = line.map_err(|error| error.to_string())?;
        if let Some(size) = line.strip_prefix("#dimensions 0:") {
            let [columns, rows] = pair(size, 'x').ok_or_else(wrong)?;
            count.size = [rows as usize, columns as usize];
        } else if let Some(unit) = line.strip_prefix("#tb 0:") {
            let [seconds, parts] = pair(unit, '/').ok_or_else(wrong)?;
            count.unit = seconds / parts;
        } else if !line.starts_with('#') {
            let mut fields = line.split(',').skip(2).map(|field| field.trim().parse::<i64>());
            // some streams have frames without times
            let (Some(time), Some(Ok(duration))) = (fields.next(), fields.next()) else { return Err(wrong()) };
            let after = count.times.last().map_or(0, |last| last + count.last.max(1));
            count.times.push(time.unwrap_or(after));
            count.last = duration;
            if count.times.len() > MOST_FRAMES {
                return Err(format!("more than {MOST_FRAMES} frames"));
            }
        }
    }
    Ok(count)
}

/// Runs ffmpeg on a file and reads what it writes.
fn run<T>(
    program: &Path,
    path: &Path,
    options: &[OsString],
    output: &[&str],
    read: impl FnOnce(&mut dyn std::io::Read) -> Result<T, String>,
) -> Result<T, String> {
    // a path is a path, whatever it begins with
    let mut file = OsString::from("file:");
    file.push(path);
    let mut child: Child = Command::new(program)
        .args(["-nostdin", "-v", "error", "-protocol_whitelist", "file,pipe", "-i"])
        .arg(file)
        .args(["-map", "0:v:0"])
        .args(options)
        .args(output)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{}` does not start: {error}", program.display()))?;
    let (Some(mut out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("ffmpeg has no output".into());
    };
    // both pipes are read at once: a full one would stop it
    let errors = std::thread::spawn(move || {
        let mut start = Vec::new();
        let mut err = err;
        let _ = err.by_ref().take(1 << 16).read_to_end(&mut start);
        let _ = std::io::copy(&mut err, &mut std::io::sink());
        String::from_utf8_lossy(&start).into_owned()
    });
    let result = read(&mut out);
    // with everything read, or nothing more wanted, it may end
    drop(out);
    if result.is_err() {
        let _ = child.kill();
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let errors = errors.join().unwrap_or_default();
    let said =
        errors.lines().find(|line| !line.trim().is_empty()).map(|line| line.chars().take(200).collect::<String>());
    match (result, said) {
        (Ok(result), _) if status.success() => Ok(result),
        (Ok(_), said) => Err(format!("ffmpeg failed: {}", said.unwrap_or_else(|| status.to_string()))),
        (Err(reason), None) => Err(reason),
        (Err(reason), Some(said)) => Err(format!("{reason}: {said}")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A program in the place of ffmpeg.
    fn stand_in(folder: &Path, script: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let program = folder.join("ffmpeg");
        std::fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        program
    }

    const COUNTED: &str = "case \"$*\" in *framecrc*) printf '#tb 0: 1/12\\n#dimensions 0: 2x1\\n0, 0, 0, 1, 3, 0x0\\n0, 1, 1, 1, 3, 0x0\\n0, 3, 3, 1, 3, 0x0\\n';; *) printf abcdefABCDEF;; esac";

    #[test]
    fn frames_are_counted_and_read_from_what_it_writes() {
        let folder = tempfile::tempdir().unwrap();
        let program = stand_in(folder.path(), COUNTED);
        let video = Ffmpeg::open(&program, Path::new("-x.webm")).unwrap();
        assert_eq!((video.size, video.length.frames), ([1, 2], 3));
        assert!((video.length.rate - 8.0).abs() < 1e-9, "two frames in three twelfths of a second");
        let mut frames = Vec::new();
        video.frames(&[0, 2], &mut |frame| frames.push(frame)).unwrap();
        assert_eq!(frames[1].pixels(), b"ABCDEF");
        assert_eq!(video.frames(&[0, 1, 2], &mut |_| {}).unwrap_err(), "ffmpeg gave less than the frames");
    }

    #[test]
    fn its_own_words_are_in_the_error_and_older_options_are_tried() {
        let folder = tempfile::tempdir().unwrap();
        let fails = stand_in(folder.path(), "echo 'Invalid data found' >&2; exit 1");
        let error = Ffmpeg::open(&fails, Path::new("x.webm")).unwrap_err();
        assert_eq!(error, "ffmpeg failed: Invalid data found");
        let old = "case \"$*\" in *fps_mode*) echo \"Unrecognized option 'fps_mode'.\" >&2; exit 1;; esac\n";
        let old = stand_in(folder.path(), &format!("{old}{COUNTED}"));
        assert_eq!(Ffmpeg::open(&old, Path::new("x.webm")).unwrap().length.frames, 3);
        let error = Ffmpeg::open(Path::new("/no/ffmpeg"), Path::new("x.webm")).unwrap_err();
        assert!(error.starts_with("`/no/ffmpeg` does not start"), "{error}");
    }
}
