//! Atomic checkpoints: after a crash there is the old one or the new one, never a mixture.
//!
//! Tensors are written first, to a file whose name contains a part of their hash. The manifest `last.json` names that file
//! and its full hash, carries a hash of itself as a seal, and is renamed into place last. The manifest before it is kept
//! as `previous.json` with its tensors, so that damage to the newest loses a few steps, not the run.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use crate::Error;
use crate::weights::{Tensors, from_bytes, to_bytes};

const LAST: &str = "last.json";
const PREVIOUS: &str = "previous.json";

/// The progress of a run, without its tensors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunProgress {
    /// Steps done.
    pub step: usize,
    /// The best value of the deciding metric, as the bits of an f64, so that it is read back exactly.
    pub best: Option<u64>,
    pub best_epoch: usize,
    /// Whether the run is finished.
    pub finished: bool,
    /// The sum of the losses of this epoch's steps so far, as the bits of an f64: numbers that are read back from text may be
    /// off by the last bit. None in checkpoints from before it was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch_loss: Option<u64>,
}

impl RunProgress {
    /// Adds the loss of a step, the `index`th of its epoch.
    pub fn add_loss(&mut self, index: usize, loss: f64) {
        let before = if index == 0 { Some(0.0) } else { self.epoch_loss.map(f64::from_bits) };
        self.epoch_loss = before.map(|sum| (sum + loss).to_bits());
    }
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Manifest {
    file: String,
    sha256: String,
    progress: RunProgress,
    /// SHA-256 of the three above.
    seal: String,
}

impl Manifest {
    fn sealed(file: String, sha256: String, progress: RunProgress) -> Self {
        let mut manifest = Self { file, sha256, progress, seal: String::new() };
        manifest.seal = manifest.right_seal();
        manifest
    }

    fn right_seal(&self) -> String {
        let content = serde_json::to_vec(&(&self.file, &self.sha256, &self.progress)).expect("plain data");
        hash(&content)
    }
}

/// The content of a checkpoint.
#[derive(Debug)]
pub struct Restored {
    pub tensors: Tensors,
    pub progress: RunProgress,
    /// Why it is not the newest, if it is not.
    pub note: Option<String>,
}

/// The file system operations that writing needs; tests make them fail.
pub trait Disk {
    /// Writes a new file and syncs it to disk.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The real file system.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)?;
        // the new name is durable once its folder is synced, which not every system supports
        if let Some(folder) = to.parent() {
            let _ = File::open(folder).and_then(|folder| folder.sync_all());
        }
        Ok(())
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Saves a checkpoint into a folder.
///
/// # Errors
/// When it cannot be written, for example on a full disk; the previous checkpoint is still intact.
pub fn save(folder: &Path, tensors: &Tensors, progress: RunProgress, disk: &mut dyn Disk) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|error| Error::file(folder, error))?;
    let bytes = to_bytes(tensors, folder)?;
    let sha256 = hash(&bytes);
    let file = format!("state-{:08}-{}.safetensors", progress.step, &sha256[..8]);
    put(&folder.join(&file), &bytes, disk)?;
    let last = folder.join(LAST);
    // a damaged manifest must not replace an intact previous one
    if let Ok(before) = fs::read(&last)
        && read_manifest(&last).is_ok_and(|manifest| manifest.file != file)
    {
        put(&folder.join(PREVIOUS), &before, disk)?;
    }
    let manifest = Manifest::sealed(file, sha256, progress);
    put(&last, &serde_json::to_vec_pretty(&manifest).expect("plain data"), disk)?;
    clean(folder, disk);
    Ok(())
}

/// Writes to a temporary file, then renames it.
fn put(path: &Path, bytes: &[u8], disk: &mut dyn Disk) -> Result<(), Error> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".partial");
    let beside = PathBuf::from(beside);
    let written = disk.write(&beside, bytes).and_then(|()| disk.rename(&beside, path));
    written.map_err(|error| {
        // free the space for the next try; report the first error
        let _ = disk.remove(&beside);
        Error::file(path, format!("{error}; the previous checkpoint is intact"))
    })
}

/// Removes files that no manifest names. Errors are ignored: leftover files do no harm.
fn clean(folder: &Path, disk: &mut dyn Disk) {
    let manifests = [LAST, PREVIOUS].map(|name| read_manifest(&folder.join(name)));
    let named: Vec<&str> = manifests.iter().flatten().map(|manifest| manifest.file.as_str()).collect();
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let ours = name.starts_with("state-") || name.ends_with(".partial");
        if ours && !named.contains(&name.as_str()) {
            let _ = disk.remove(&entry.path());
        }
    }
}

/// The newest intact checkpoint of a folder; none if there never was one.
///
/// # Errors
/// When all checkpoints are damaged; the error names each.
pub fn restore(folder: &Path) -> Result<Option<Restored>, Error> {
    let (last, previous) = (folder.join(LAST), folder.join(PREVIOUS));
    if !last.exists() && !previous.exists() {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let is_state = |name: &str| name.starts_with("state-") && name.ends_with(".safetensors");
        let states = entries.filter(|entry| is_state(&entry.file_name().to_string_lossy())).count();
        // one file may be from a first checkpoint that was interrupted before its manifest; several had manifests
        if states > 1 {
            return Err(Error::file(&last, "it is missing, and without it the newest checkpoint is unknown"));
        }
        return Ok(None);
    }
    let newest = match read(folder, &last) {
        Ok((tensors, progress)) => return Ok(Some(Restored { tensors, progress, note: None })),
        Err(error) => error,
    };
    if !previous.exists() {
        return Err(newest);
    }
    match read(folder, &previous) {
        Ok((tensors, progress)) => {
            let note = Some(format!("{newest}; resuming from the previous checkpoint, step {}", progress.step));
            Ok(Some(Restored { tensors, progress, note }))
        }
        Err(older) => Err(Error::file(folder, format!("both checkpoints are damaged: {newest}; {older}"))),
    }
}

/// The progress of a run, without reading its tensors.
///
/// # Errors
/// When there is no intact manifest.
pub fn progress(folder: &Path) -> Result<RunProgress, Error> {
    read_manifest(&folder.join(LAST)).map(|manifest| manifest.progress)
}

fn read(folder: &Path, manifest: &Path) -> Result<(Tensors, RunProgress), Error> {
    let Manifest { file, sha256, progress, .. } = read_manifest(manifest)?;
    let path = folder.join(file);
    let bytes = fs::read(&path).map_err(|error| Error::file(&path, error))?;
    if hash(&bytes) != sha256 {
        return Err(Error::file(&path, "damaged: its SHA-256 does not match the manifest"));
    }
    Ok((from_bytes(&bytes, &path)?, progress))
}

fn read_manifest(path: &Path) -> Result<Manifest, Error> {
    let bytes = fs::read(path).map_err(|error| Error::file(path, error))?;
    let manifest: Manifest =
        serde_json::from_slice(&bytes).map_err(|error| Error::file(path, format!("damaged: {error}")))?;
    // only a file name: a manifest must not point to files elsewhere
    let plain = Path::new(&manifest.file).file_name().is_some_and(|name| name == manifest.file.as_str());
    if manifest.seal != manifest.right_seal() || !plain {
        return Err(Error::file(path, "damaged: its seal does not match"));
    }
    Ok(manifest)
}

fn hash(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::tensor::TensorData;

    fn tensors(value: f32) -> Tensors {
        [("model.a", 7), ("first.a", 5)]
            .map(|(name, count)| (name.to_string(), TensorData::new(vec![value; count], [count])))
            .into()
    }

    fn at(step: usize) -> RunProgress {
        RunProgress { step, best: Some(0.1f64.to_bits()), ..RunProgress::default() }
    }

    fn save_really(folder: &Path, step: usize) {
        save(folder, &tensors(step as f32), at(step), &mut RealDisk).unwrap();
    }

    /// Without waiting for the disk, which takes long and changes nothing that a test can see.
    fn save_quickly(folder: &Path, step: usize) {
        let mut disk = Failing { left: usize::MAX, crashed: false, dies: false };
        save(folder, &tensors(step as f32), at(step), &mut disk).unwrap();
    }

    /// Whether a folder holds exactly the checkpoint of a step.
    fn holds(folder: &Path, step: usize) -> bool {
        let restored = restore(folder).unwrap().unwrap();
        assert_eq!(restored.tensors, tensors(restored.progress.step as f32), "tensors and progress belong together");
        restored.progress == at(step)
    }

    /// A disk that breaks after so many bytes, and stays broken: what a crash or a full disk leaves.
    struct Failing {
        left: usize,
        crashed: bool,
        /// Whether the machine is gone, so that nothing is tidied up either.
        dies: bool,
    }

    impl Failing {
        fn gate(&mut self, cost: usize) -> io::Result<()> {
            if self.crashed || self.left < cost {
                self.crashed = true;
                return Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device"));
            }
            self.left -= cost;
            Ok(())
        }
    }

    impl Disk for Failing {
        fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            let room = if self.crashed { 0 } else { self.left.min(bytes.len()) };
            if !self.crashed {
                fs::write(path, &bytes[..room])?;
            }
            self.gate(bytes.len())
        }
        fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
            self.gate(1)?;
            fs::rename(from, to)
        }
        fn remove(&mut self, path: &Path) -> io::Result<()> {
            if self.dies {
                self.gate(1)?;
            }
            fs::remove_file(path)
        }
    }

    #[test]
    fn a_writer_that_fails_at_any_byte_leaves_the_old_checkpoint_or_the_new_one() {
        for dies in [true, false] {
            let (mut old, mut new) = (0, 0);
            for left in 0.. {
                let folder = tempfile::tempdir().unwrap();
                save_quickly(folder.path(), 1);
                save_quickly(folder.path(), 2);
                let mut disk = Failing { left, crashed: false, dies };
                let saved = save(folder.path(), &tensors(3.0), at(3), &mut disk);
                let is_new = holds(folder.path(), 3);
                assert!(is_new || holds(folder.path(), 2), "{left} bytes");
                if saved.is_ok() {
                    assert!(is_new, "what was reported as saved is there");
                }
                // whatever was left behind does not stop the next try
                save_quickly(folder.path(), 4);
                assert!(holds(folder.path(), 4));
                *(if is_new { &mut new } else { &mut old }) += 1;
                if !disk.crashed {
                    break;
                }
            }
            assert!(old > 500 && new >= 1, "{old} old, {new} new");
        }
    }

    #[test]
    fn a_full_disk_is_an_error_that_says_so_and_that_nothing_was_lost() {
        let folder = tempfile::tempdir().unwrap();
        save_really(folder.path(), 1);
        let mut disk = Failing { left: 100, crashed: false, dies: false };
        let error = save(folder.path(), &tensors(2.0), at(2), &mut disk).unwrap_err().to_string();
        assert!(error.contains("no space left") && error.contains("the previous checkpoint is intact"), "{error}");
        assert!(
            !fs::read_dir(folder.path())
                .unwrap()
                .any(|entry| { entry.unwrap().file_name().to_string_lossy().ends_with(".partial") })
        );
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let folder = tempfile::tempdir().unwrap();
        save_really(folder.path(), 1);
        let files: Vec<PathBuf> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
        assert_eq!(files.len(), 2);
        for path in files {
            let whole = fs::read(&path).unwrap();
            for bit in 0..8 * whole.len() {
                let mut flipped = whole.clone();
                flipped[bit / 8] ^= 1 << (bit % 8);
                fs::write(&path, &flipped).unwrap();
                match restore(folder.path()) {
                    Err(_) => {}
                    // white space of the manifest may change without harm
                    Ok(Some(restored)) => assert!(restored.tensors == tensors(1.0) && restored.progress == at(1)),
                    Ok(None) => panic!("{} bit {bit}: the checkpoint is gone", path.display()),
                }
            }
            fs::write(&path, &whole).unwrap();
        }
    }

    #[test]
    fn damage_to_the_newest_falls_back_to_the_one_before_and_says_so() {
        let folder = tempfile::tempdir().unwrap();
        (1..=3).for_each(|step| save_really(folder.path(), step));
        let newest = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let newest = newest.into_iter().find(|path| path.display().to_string().contains("state-00000003")).unwrap();
        let mut bytes = fs::read(&newest).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(&newest, bytes).unwrap();
        let restored = restore(folder.path()).unwrap().unwrap();
        assert_eq!(restored.progress.step, 2);
        assert!(restored.note.unwrap().contains("state-00000003"));
        assert_eq!(restored.tensors, tensors(2.0));
    }

    #[test]
    fn two_checkpoints_are_kept_and_a_step_may_be_saved_again() {
        let folder = tempfile::tempdir().unwrap();
        assert!(restore(folder.path()).unwrap().is_none());
        (1..=5).for_each(|step| save_really(folder.path(), step));
        save_really(folder.path(), 5);
        assert!(holds(folder.path(), 5));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_manifest_cannot_name_a_file_elsewhere() {
        let folder = tempfile::tempdir().unwrap();
        let manifest = Manifest::sealed("../secret".into(), "0".into(), at(1));
        fs::write(folder.path().join(LAST), serde_json::to_vec(&manifest).unwrap()).unwrap();
        assert!(restore(folder.path()).unwrap_err().to_string().contains("damaged"));
    }
}
