use super::*;
use flate2::{Compression, write::GzEncoder};
use sha2::{Digest, Sha256};
use std::io::{Cursor, Write as _};

use crate::data::Dataset;
use crate::testing::server::{Reply, Server};

const HASTE: Duration = Duration::ZERO;

fn tar_gz(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, content) in files {
        let mut header = tar::Header::new_gnu();
        // as it is, for `append_data` would refuse what must be tried
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        archive.append(&header, content.as_slice()).unwrap();
    }
    archive.into_inner().unwrap().finish().unwrap()
}

fn zip(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut archive = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in files {
        archive.start_file(name.as_str(), zip::write::SimpleFileOptions::default()).unwrap();
        archive.write_all(content).unwrap();
    }
    archive.finish().unwrap().into_inner()
}

/// A picture in each of the five batches, and one in the test.
fn cifar() -> Vec<u8> {
    let batches = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"];
    let file = |(class, name): (usize, &&str)| {
        (format!("cifar-10-batches-bin/{name}.bin"), [vec![class as u8], noise(3072, class as u32)].concat())
    };
    tar_gz(&batches.iter().enumerate().map(file).collect::<Vec<_>>())
}

/// Bytes that cannot be packed, so that there is something to interrupt.
fn noise(count: u32, seed: u32) -> Vec<u8> {
    let mixed = |i: u32| (i + 7919 * seed).wrapping_mul(2_654_435_761);
    (0..count).map(|i| (mixed(i) ^ (mixed(i) >> 13)).wrapping_mul(2_246_822_519).to_be_bytes()[0]).collect()
}

/// A dataset of one file with this content.
fn public(file: &'static str, content: &[u8], counts: [usize; 3]) -> Public {
    let sha256 = format!("{:x}", Sha256::digest(content)).leak();
    let files = vec![Remote { name: file, sha256 }].leak();
    Public { name: "toy", about: "", base: "http://nowhere.invalid", files, counts }
}

fn fetch(public: &Public, folder: &Path, server: &Server) -> Result<PathBuf, Error> {
    let options = Options { from: Some(format!("{}/", server.root)), pause: HASTE };
    public.fetch(folder, &options, &mut |_| {})
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn opened(place: &Path) -> std::sync::Arc<dyn Dataset> {
    dataset::open(place.to_str().unwrap(), Part::All).unwrap()
}

#[test]
fn an_archive_is_fetched_over_a_bad_line_unpacked_opened_and_removed() {
    let folder = tempfile::tempdir().unwrap();
    let content = cifar();
    let toy = public("toy.tar.gz", &content, [10, 5, 1]);
    let server = Server::start(move |asked, count| match count {
        0 => Reply::content(asked, &content).cut(1000),
        _ => Reply::content(asked, &content),
    });
    let (mut downloads, mut unpacked, mut opens) = (0, Vec::new(), 0);
    let options = Options { from: Some(server.root.clone()), pause: HASTE };
    let place = toy.fetch(folder.path(), &options, &mut |step| match step {
        FetchStep::Download { file, .. } => downloads += usize::from(file == "toy.tar.gz"),
        FetchStep::Unpack { files } => unpacked.push(files),
        FetchStep::Open => opens += 1,
    });
    let place = place.unwrap();
    assert_eq!((place.as_path(), opened(&place).len()), (folder.path().join("toy").as_path(), 6));
    assert_eq!(server.starts(), [None, Some(1000)]);
    assert_eq!((downloads > 1, unpacked, opens), (true, vec![1, 2, 3, 4, 5, 6], 1));
    assert_eq!((names(folder.path()), names(&place)), (vec!["toy".into()], vec!["cifar-10-batches-bin".into()]));

    assert_eq!(fetch(&toy, folder.path(), &server).unwrap(), place);
    assert_eq!(server.asked().len(), 2, "the second time it is there");
}

#[test]
fn a_zip_archive_is_unpacked_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &str| (format!("tiny-imagenet-200/{name}"), content.as_bytes().to_vec());
    let content = zip(&[
        file("wnids.txt", "n01\n"),
        file("train/n01/images/n01_0.JPEG", "0"),
        file("val/val_annotations.txt", "val_0.JPEG\tn01\n"),
        file("val/images/val_0.JPEG", "1"),
    ]);
    let toy = public("toy.zip", &content, [1, 1, 1]);
    let server = Server::start(move |asked, _| Reply::content(asked, &content));
    let place = fetch(&toy, folder.path(), &server).unwrap();
    assert_eq!((opened(&place).len(), names(&place)), (2, vec!["tiny-imagenet-200".to_string()]));
}

#[test]
fn a_fetch_that_was_given_up_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let content = cifar();
    let toy = public("toy.tar.gz", &content, [10, 5, 1]);
    let half = content.clone();
    let server = Server::start(move |asked, count| match count {
        0 => Reply::content(asked, &half).cut(1000),
        _ => Reply::status(503),
    });
    let error = fetch(&toy, folder.path(), &server).unwrap_err().to_string();
    assert!(error.contains("toy.tar.gz: the server says status 503; what came is kept"), "{error}");
    assert_eq!(names(folder.path()), ["toy.partial"], "half of it is not called by its name");
    let next = Server::start(move |asked, _| Reply::content(asked, &content));
    fetch(&toy, folder.path(), &next).unwrap();
    assert_eq!(next.starts(), [Some(1000)]);
}

#[test]
fn a_file_put_there_by_hand_is_taken_if_it_is_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let toy = public("toy.tar.gz", &cifar(), [10, 5, 1]);
    let server = Server::start(|_, _| Reply::status(404));
    let error = fetch(&toy, folder.path(), &server).unwrap_err().to_string();
    let file = folder.path().join("toy.partial/toy.tar.gz");
    assert!(error.contains("no such file on the server") && error.ends_with(&file.display().to_string()), "{error}");
    std::fs::write(&file, "something else").unwrap();
    assert!(fetch(&toy, folder.path(), &server).unwrap_err().to_string().contains("its SHA-256 is"));
    std::fs::write(&file, cifar()).unwrap();
    assert!(fetch(&toy, folder.path(), &server).is_ok());
    assert_eq!(server.asked().len(), 1);
}

#[test]
fn content_that_is_not_what_was_promised_is_refused() {
    let content = cifar();
    let served = content.clone();
    let server = Server::start(move |asked, _| Reply::content(asked, &served));
    let refusal = |toy: Public| {
        let folder = tempfile::tempdir().unwrap();
        let error = fetch(&toy, folder.path(), &server).unwrap_err().to_string();
        assert!(!folder.path().join("toy").exists());
        error
    };
    let error = refusal(public("toy.tar.gz", b"other", [10, 5, 1]));
    assert!(error.contains("its SHA-256 is"), "{error}");
    let error = refusal(public("toy.tar.gz", &content, [10, 6, 1]));
    assert!(error.contains("it has 5 training and 1 test pictures of 10 classes; toy has 6 and 1 of 10"), "{error}");
}

#[test]
fn another_folder_of_that_name_is_not_touched() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("toy")).unwrap();
    let server = Server::start(|_, _| Reply::status(404));
    let error = fetch(&public("toy.zip", b"", [1, 1, 1]), folder.path(), &server).unwrap_err().to_string();
    assert!(error.contains("toy: not a dataset; found nothing"), "{error}");
    assert!(server.asked().is_empty());
}

#[test]
fn an_archive_cannot_leave_its_folder() {
    let root = tempfile::tempdir().unwrap();
    let (folder, beside) = (root.path().join("a/b"), root.path().join("evil.txt"));
    std::fs::create_dir_all(&folder).unwrap();
    let absolute = beside.to_str().unwrap().to_string();
    for name in ["../../evil.txt", "x/../../../evil.txt", "..", &absolute] {
        let files = [(name.to_string(), b"evil".to_vec())];
        for (file, content) in [("a.tar.gz", tar_gz(&files)), ("a.zip", zip(&files))] {
            let archive = folder.join(file);
            std::fs::write(&archive, content).unwrap();
            let error = unpack::unpack(&archive, &folder, &mut |_| {}).unwrap_err().to_string();
            assert!(error.contains(file) && error.contains("is outside the folder"), "{name}: {error}");
            assert!(!beside.exists() && names(root.path()) == ["a"]);
        }
    }
}

#[test]
fn links_and_broken_archives_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |file: &str, content: &[u8], reason: &str| {
        let archive = folder.path().join(file);
        std::fs::write(&archive, content).unwrap();
        let error = unpack::unpack(&archive, folder.path(), &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains(file) && error.contains(reason), "{error}");
    };
    let mut links = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    let mut header = tar::Header::new_gnu();
    header.set_size(0);
    header.set_entry_type(tar::EntryType::Symlink);
    links.append_link(&mut header, "link", "/etc").unwrap();
    refused("a.tar.gz", &links.into_inner().unwrap().finish().unwrap(), "`link` is neither a file nor a folder");
    let mut links = zip::ZipWriter::new(Cursor::new(Vec::new()));
    links.add_symlink("link", "/etc", zip::write::SimpleFileOptions::default()).unwrap();
    refused("a.zip", &links.finish().unwrap().into_inner(), "`link` is neither a file nor a folder");
    let whole = cifar();
    refused("b.tar.gz", &whole[..whole.len() / 2], "");
    refused("b.tar.gz", b"nothing", "");
    refused("b.zip", b"nothing", "");
    assert!(!folder.path().join("link").is_symlink());
}

#[test]
fn the_public_datasets_have_different_names_and_whole_hashes() {
    for (index, public) in PUBLIC.iter().enumerate() {
        assert!(PUBLIC[..index].iter().all(|other| other.name != public.name));
        for Remote { sha256, .. } in public.files {
            assert!(sha256.len() == 64 && sha256.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')));
        }
    }
    let error = super::public("imagenet").unwrap_err().to_string();
    assert!(error.contains("known: mnist, fashion-mnist, cifar-10, cifar-100, tiny-imagenet"), "{error}");
}
