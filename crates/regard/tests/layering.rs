//! The folders are the data flow: a stage imports only itself and earlier stages, and models never import
//! each other. This reads the `crate::` paths of every source file.

use std::fs;
use std::path::{Path, PathBuf};

/// Modules of the crate and their place in the flow.
const STAGES: &[(&str, usize)] = &[
    ("pass", 0),
    ("function", 0),
    ("convolution", 0),
    ("convolution3d", 0),
    ("fused", 0),
    ("batch_norm", 0),
    ("device", 0),
    ("error", 0),
    ("cost", 0),
    ("file", 0),
    ("random", 0),
    ("recompute", 0),
    ("download", 0),
    ("nearest", 0),
    ("data", 1),
    ("attention", 2),
    ("boxes", 2),
    ("layers", 3),
    ("models", 4),
    ("weights", 5),
    ("plan", 5),
    ("prepared", 5),
    ("evaluate", 6),
    ("translate", 6),
    ("analyse", 7),
    ("report", 7),
    ("train", 8),
    ("tasks", 9),
];

/// What tests share: for test code alone.
const TESTING: &str = "testing";

fn stage(module: &str) -> Option<usize> {
    STAGES.iter().find(|(name, _)| *name == module).map(|(_, stage)| *stage)
}

/// What is wrong with one file; `path` is relative to `src`, and `test_files` are the starts of paths of test code.
fn violations(path: &str, text: &str, test_files: &[String]) -> Vec<String> {
    let test_file = test_files.iter().any(|start| path.starts_with(start));
    let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    let module = parts[0];
    if module == "lib" || module == TESTING {
        return Vec::new();
    }
    let Some(own) = stage(module) else {
        return vec![format!("{path}: `{module}` has no place in the flow; give it one in tests/layering.rs")];
    };
    let mut found = Vec::new();
    for import in imports(text) {
        let Import { line, ref module, rest: ref path_in_models, in_tests } = import;
        let reason = match stage(module) {
            // what the loop of training does is held to real tasks
            Some(_) if module == "tasks" && parts[0] == "train" && (in_tests || test_file) => None,
            Some(other) if other > own => Some(format!("`{}` imports the later stage `{module}`", parts[0])),
            Some(_) if module == "models" && parts[0] == "models" => another_model(&parts, path_in_models),
            Some(_) => None,
            None if module == TESTING => {
                (!in_tests && !test_file).then(|| "`testing` is imported outside tests".to_string())
            }
            // items at the root, such as `crate::Error`, are re-exports of stage 0
            None if module.starts_with(char::is_uppercase) => None,
            None => Some(format!("`{module}` has no place in the flow; give it one in tests/layering.rs")),
        };
        found.extend(reason.map(|reason| format!("{path}:{line}: {reason}")));
    }
    found
}

/// A model is `models/ROOM/NAME.rs`: what it imports of another one, as a complaint. `mod.rs` joins the models of a room.
fn another_model(own: &[&str], imported: &[String]) -> Option<String> {
    let [_, room, name, ..] = own else { return None };
    let is_module = |name: &&String| name.starts_with(char::is_lowercase);
    let [first, second] = [0, 1].map(|at| imported.get(at).filter(is_module));
    let other = match first? {
        first if first == room => second.filter(|second| second != name)?,
        first if ["config", "limits"].contains(&first.as_str()) => return None,
        first => first,
    };
    (*name != "mod").then(|| format!("model `{name}` imports another, `{other}`"))
}

/// Where the files of `#[cfg(test)] mod name;` are: the starts `folder/name.` and `folder/name/` of their paths.
fn test_files(path: &str, text: &str) -> Vec<String> {
    let folder = match path.strip_suffix("mod.rs").or_else(|| path.strip_suffix("lib.rs")) {
        Some(folder) => folder.to_string(),
        None => format!("{}/", path.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = text.lines().collect();
    lines
        .windows(2)
        .filter(|pair| pair[0].trim() == "#[cfg(test)]")
        .filter_map(|pair| pair[1].trim().split_once("mod ")?.1.strip_suffix(';'))
        .flat_map(|name| [format!("{folder}{name}."), format!("{folder}{name}/")])
        .collect()
}

/// One path that starts at `crate::`.
struct Import {
    line: usize,
    module: String,
    /// The names after the module's, up to the first brace and the name behind it.
    rest: Vec<String>,
    in_tests: bool,
}

fn imports(text: &str) -> Vec<Import> {
    let mut found = Vec::new();
    let (mut in_tests, mut next_is_test) = (false, false);
    for (index, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or("");
        if code.starts_with("#[cfg(test)]") || code.starts_with("#[cfg(any(test") {
            next_is_test = true;
        } else if next_is_test && !code.starts_with("#[") {
            // an item on one line, or a block that ends with a brace in the first column
            in_tests = !code.trim_end().ends_with(';');
            next_is_test = false;
        } else if in_tests && code.starts_with('}') {
            in_tests = false;
        }
        for (at, _) in code.match_indices("crate::") {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_' || letter == '$') {
                continue;
            }
            for (module, rest) in heads(&code[at + "crate::".len()..]) {
                found.push(Import { line: index + 1, module, rest, in_tests });
            }
        }
    }
    found
}

/// The names of a path, first one apart, or of every path in braces: `{a::b, C}` gives `a, [b]` and `C, []`.
fn heads(path: &str) -> Vec<(String, Vec<String>)> {
    let is_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let head = |text: &str| {
        let mut names = Vec::new();
        for part in text.trim_start().split("::") {
            let part = part.trim_start_matches('{');
            let name: String = part.chars().take_while(|letter| is_name(*letter)).collect();
            let ends = name.len() < part.len();
            names.push(name);
            if ends {
                break;
            }
        }
        (names.remove(0), names)
    };
    let Some(list) = path.strip_prefix('{') else { return vec![head(path)] };
    let (mut depth, mut start, mut found) = (0, 0, Vec::new());
    for (at, letter) in list.char_indices().chain([(list.len(), ',')]) {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(head(&list[start..at]));
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(head(&list[start..at]));
                start = at + 1;
            }
            _ => {}
        }
    }
    found.retain(|(first, _)| !first.is_empty());
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

#[test]
fn a_stage_imports_only_earlier_stages() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let files = sources(&root);
    assert!(files.len() > 10, "only {} files under {}", files.len(), root.display());
    let read = |file: PathBuf| {
        let path = file.strip_prefix(&root).unwrap().to_string_lossy().replace('\\', "/");
        (path, fs::read_to_string(file).unwrap())
    };
    let files: Vec<(String, String)> = files.into_iter().map(read).collect();
    let tests: Vec<String> = files.iter().flat_map(|(path, text)| test_files(path, text)).collect();
    let found: Vec<String> = files.iter().flat_map(|(path, text)| violations(path, text, &tests)).collect();
    let checked: usize = files.iter().map(|(_, text)| imports(text).len()).sum();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
    assert!(checked > 20, "only {checked} paths were seen: is the reader broken?");
}

#[test]
fn the_check_sees_what_it_should() {
    let wrong = [
        ("attention/local.rs", "use crate::Pass;\nuse crate::layers::Linear;\n", "attention/local.rs:2"),
        ("data/mod.rs", "fn f() {\n    crate::train::run();\n}\n", "data/mod.rs:2"),
        ("pass.rs", "use crate::{Error, attention::Attended};\n", "pass.rs:1"),
        ("models/classify/vit.rs", "use crate::models::detect::detr::Detr;\n", "models/classify/vit.rs:1"),
        ("models/classify/vit.rs", "use crate::models::detr::Detr;\n", "models/classify/vit.rs:1"),
        ("models/classify/vit.rs", "use crate::models::classify::{deit, vit};\n", "models/classify/vit.rs:1"),
        ("layers/mlp.rs", "use crate::testing::noise;\n", "layers/mlp.rs:1"),
        ("layers/mlp.rs", "#[cfg(test)]\nmod tests {\n}\nuse crate::testing::noise;\n", "layers/mlp.rs:4"),
        ("layers/mlp.rs", "#[cfg(test)]\nmod tests {\n    use crate::models::vit;\n}\n", "layers/mlp.rs:3"),
        ("layers/mlp.rs", "use crate::helpers::noise;\n", "layers/mlp.rs:1"),
        ("helpers.rs", "", "helpers.rs"),
    ];
    for (path, text, place) in wrong {
        let found = violations(path, text, &[]);
        assert!(found.len() == 1 && found[0].starts_with(place), "{path}: {found:?}");
    }
    let right = [
        ("lib.rs", "pub use crate::report::Table;\n"),
        (
            "models/classify/vit.rs",
            "use crate::layers::{Mlp, Norm};\nuse crate::models::classify::vit::parts;\nuse crate::{Error, Pass};\n",
        ),
        ("models/classify/mod.rs", "use crate::models::classify::vit::Vit;\n"),
        ("models/text/translator.rs", "use crate::models::config;\nuse crate::models::{Preset, config};\n"),
        (
            "attention/local.rs",
            "// crate::layers is later\n#[cfg(test)]\nmod tests {\n    use crate::testing::noise;\n}\n",
        ),
        ("attention/local.rs", "use burn_crate::layers;\nuse crate::attention::{check, window::{Border, unfold}};\n"),
    ];
    for (path, text) in right {
        assert_eq!(violations(path, text, &[]), Vec::<String>::new());
    }
    let declared = test_files("attention/mod.rs", "mod local;\n#[cfg(test)]\nmod naive;\n");
    assert!(violations("attention/naive.rs", "use crate::testing::noise;\n", &declared).is_empty());
    assert!(!violations("attention/local.rs", "use crate::testing::noise;\n", &declared).is_empty());
    assert_eq!(test_files("train/engine.rs", "#[cfg(test)]\nmod laws;\n")[0], "train/engine/laws.");
}

/// Cargo no longer finds test files by itself: each is the root of a binary, or a module of one.
#[test]
fn no_test_file_is_forgotten() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is beside others");
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    for name in ["regard", "regard-cli", "regard-serve"] {
        let manifest = text(&crates.join(name).join("Cargo.toml"));
        let folder = crates.join(name).join("tests");
        let files: Vec<PathBuf> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        let stem = |path: &Path| path.file_stem().unwrap().to_string_lossy().into_owned();
        let is_root = |path: &Path| manifest.contains(&format!("[[test]]\nname = \"{}\"\n", stem(path)));
        let sources = || files.iter().filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
        let roots: String = sources().filter(|path| is_root(path)).map(|path| text(path)).collect();
        assert!(!roots.is_empty(), "{name} has no test binary");
        for path in sources().filter(|path| !is_root(path)) {
            let listed = roots.lines().any(|line| line == format!("mod {};", stem(path)));
            assert!(listed, "{}: no test binary has `mod {};`", path.display(), stem(path));
        }
    }
}
