//! Running `regard` as a user does, and what every refusal has.

use std::path::Path;
use std::process::{Command, Output};

pub fn regard(folder: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_regard")).current_dir(folder).args(args).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
pub fn stdout_of(folder: &Path, args: &[&str]) -> String {
    let output = regard(folder, args);
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout)
}

#[track_caller]
pub fn assert_refused(folder: &Path, args: &[&str], culprits: &[&str]) {
    let output = regard(folder, args);
    let stderr = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("error: ") && stderr.contains("\nhint: "), "{stderr}");
    for culprit in culprits {
        assert!(stderr.contains(culprit), "no `{culprit}` in: {stderr}");
    }
}
