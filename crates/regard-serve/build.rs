//! Embeds the files of `web/` as a table of names and bytes.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    // read at run time: two clones may share a target folder
    let here = env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let web = Path::new(&here).join("../../web");
    println!("cargo::rerun-if-changed={}", web.display());
    let mut files = Vec::new();
    collect(&web, &mut files);
    files.sort();
    let mut table = String::from("const FILES: &[(&str, &[u8])] = &[\n");
    for path in files {
        let inside = path.strip_prefix(&web).expect("it was found there");
        let name: Vec<_> = inside.iter().map(|part| part.to_str().expect("names of the page are UTF-8")).collect();
        writeln!(table, "    ({:?}, include_bytes!({:?})),", name.join("/"), path.display().to_string())
            .expect("a string takes everything");
    }
    table += "];\n";
    let to = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it")).join("page.rs");
    fs::write(to, table).expect("the folder of the build can be written");
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("web/ is there").flatten() {
        let path = entry.path();
        // hidden files belong to editors
        if entry.file_name().to_string_lossy().starts_with('.') {
            continue;
        }
        if path.is_dir() { collect(&path, files) } else { files.push(path) }
    }
}
