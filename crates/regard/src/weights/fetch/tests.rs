use super::*;
use sha2::{Digest, Sha256};
use std::net::TcpListener;
use std::path::Path;

use crate::download::beside;
use crate::testing::server::{Reply, Server, ServerRequest};

fn fetcher(server: &Server, cache: &Path) -> Fetcher {
    Fetcher { cache: cache.into(), endpoint: server.root.clone(), pause: Duration::ZERO }
}

fn content() -> Vec<u8> {
    (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

fn hash() -> String {
    format!("{:x}", Sha256::digest(content()))
}

fn quiet() -> impl FnMut(Progress) {
    |_| {}
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_file_is_fetched_once_with_progress_and_nothing_left_beside_it() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    let address: Address = format!("{}/a/b.bin", server.root).parse().unwrap();
    let mut seen = Vec::new();
    let file = fetcher(&server, cache.path()).fetch(&address, &mut |progress| seen.push(progress)).unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), content());
    assert_eq!(seen.first(), Some(&Progress { done: 0, total: Some(300_000) }));
    assert_eq!(seen.last(), Some(&Progress { done: 300_000, total: Some(300_000) }));
    assert!(seen.is_sorted_by_key(|progress| progress.done));
    assert_eq!(files(file.parent().unwrap()), ["b.bin"]);

    assert_eq!(fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap(), file);
    assert_eq!(server.asked().len(), 1, "the second time it is in the cache");
}

#[test]
fn a_dropped_connection_is_continued_where_it_ended() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, count| match count {
        0 => Reply::content(asked, &content()).cut(100_000),
        _ => Reply::content(asked, &content()),
    });
    let address = format!("{}/b.bin#sha256={}", server.root, hash()).parse().unwrap();
    let file = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    assert_eq!(server.starts(), [None, Some(100_000)]);
    assert_eq!(server.asked()[1].if_range.as_deref(), Some("\"one\""), "only if the file is still the same");
}

#[test]
fn a_download_given_up_is_continued_by_the_next_process() {
    let cache = tempfile::tempdir().unwrap();
    let address = |server: &Server| Address::HuggingFace {
        revision: None,
        owner: "o".into(),
        name: "n".into(),
        file: Some(format!("{}.bin", server.root.len())),
    };
    let server = Server::start(|asked, count| match count {
        0 => Reply::content(asked, &content()).cut(50_000),
        _ => Reply::status(503),
    });
    let error = fetcher(&server, cache.path()).fetch(&address(&server), &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("status 503") && error.contains("put the file of"), "{error}");
    let next = Server::start(|asked, _| Reply::content(asked, &content()));
    let file = fetcher(&next, cache.path()).fetch(&address(&server), &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    assert_eq!(next.starts(), [Some(50_000)]);
}

#[test]
fn a_server_that_sends_everything_again_starts_the_file_again() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, count| {
        let whole = Reply::content(&ServerRequest { range: None, ..asked.clone() }, &content());
        if count == 0 { whole.cut(70_000) } else { whole }
    });
    let address = format!("{}/b.bin", server.root).parse().unwrap();
    let file = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn a_partial_file_longer_than_the_file_is_thrown_away() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    let address: Address = format!("{}/b.bin", server.root).parse().unwrap();
    let file = cache.path().join(address.cached_as());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(beside(&file, ".partial"), vec![7; 400_000]).unwrap();
    fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
    // and one that is whole needs no more bytes
    let address: Address = format!("{}/c.bin", server.root).parse().unwrap();
    let file = cache.path().join(address.cached_as());
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(beside(&file, ".partial"), content()).unwrap();
    fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn content_with_another_hash_is_refused_and_not_kept() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|asked, _| Reply::content(asked, &content()));
    for name in ["b-deadbeef.pth".to_string(), format!("b.bin#sha256={}", "0".repeat(64))] {
        let address: Address = format!("{}/{name}", server.root).parse().unwrap();
        let error = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
        assert!(error.contains(&format!("its SHA-256 is {}", hash())), "{error}");
        assert!(!cache.path().join(address.cached_as()).exists());
    }
    let right = format!("{}/b-{}.pth", server.root, &hash()[..8]).parse().unwrap();
    assert!(fetcher(&server, cache.path()).fetch(&right, &mut quiet()).is_ok());
}

/// Hugging Face as it answers: a redirection that names the hash, then the content from elsewhere.
fn hugging_face(hash: String) -> Server {
    Server::start(move |asked, _| match asked.path.as_str() {
        "/owner/name/resolve/main/model.safetensors" => Reply::status(302)
            .with("Location", "/elsewhere?signed=1".into())
            .with("X-Linked-Etag", format!("\"{hash}\"")),
        "/elsewhere?signed=1" => Reply::content(asked, &content()),
        "/old/name/resolve/main/pytorch_model.bin" => Reply::content(asked, b"old weights"),
        _ => Reply::status(404),
    })
}

#[test]
fn a_repository_gives_its_safetensors_checked_by_the_hash_of_its_redirection() {
    let cache = tempfile::tempdir().unwrap();
    let address = "hf:owner/name".parse().unwrap();
    let server = hugging_face("0".repeat(64));
    let error = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("hf:owner/name: its SHA-256 is"), "{error}");
    let server = hugging_face(hash());
    let file = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap();
    assert_eq!(file, cache.path().join("hf/owner/name/model.safetensors"));
    assert_eq!(std::fs::read(file).unwrap(), content());
}

#[test]
fn a_repository_without_safetensors_gives_what_it_has_or_says_what_was_tried() {
    let cache = tempfile::tempdir().unwrap();
    let server = hugging_face(hash());
    let file = fetcher(&server, cache.path()).fetch(&"hf:old/name".parse().unwrap(), &mut quiet()).unwrap();
    assert_eq!(std::fs::read(file).unwrap(), b"old weights");
    let error = fetcher(&server, cache.path()).fetch(&"hf:no/thing".parse().unwrap(), &mut quiet()).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("model.safetensors nor at") && error.contains("pytorch_model.bin"), "{error}");
    assert!(files(&cache.path().join("hf/no/thing")).iter().all(|name| !name.ends_with(".partial")));
}

#[test]
fn without_a_network_the_error_says_which_file_to_put_where_and_putting_it_there_works() {
    let cache = tempfile::tempdir().unwrap();
    // a port that nobody listens on any more
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let endpoint = format!("http://127.0.0.1:{port}");
    let fetcher = Fetcher { cache: cache.path().into(), endpoint: endpoint.clone(), pause: Duration::ZERO };
    let address = "hf:owner/name".parse().unwrap();
    let error = fetcher.fetch(&address, &mut quiet()).unwrap_err().to_string();
    let place = cache.path().join("hf/owner/name/model.safetensors");
    let hint = format!(
        "without a network, put the file of {endpoint}/owner/name/resolve/main/model.safetensors at {}",
        place.display()
    );
    assert!(error.contains(&hint), "{error}");
    std::fs::write(&place, b"by hand").unwrap();
    assert_eq!(fetcher.fetch(&address, &mut quiet()).unwrap(), place);
}

#[test]
fn redirections_end() {
    let cache = tempfile::tempdir().unwrap();
    let server = Server::start(|_, _| Reply::status(302).with("Location", "/again".into()));
    let address = format!("{}/a", server.root).parse().unwrap();
    let error = fetcher(&server, cache.path()).fetch(&address, &mut quiet()).unwrap_err().to_string();
    assert!(error.contains("more than 10 redirections"), "{error}");
}

#[test]
fn a_path_is_itself() {
    assert_eq!(fetch("weights/model.pth", &mut quiet()).unwrap(), PathBuf::from("weights/model.pth"));
}
