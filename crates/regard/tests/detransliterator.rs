//! A Transformer that others trained with fairseq, from its own files: the package `detransliterator` 0.0.2 (MIT) writes
//! Latin letters in N'Ko. It is too large for this repository: the test fetches it where the registry is reachable, keeps it
//! in the cache, and says when it could not.

use regard::data::Tokens;
use regard::device;
use regard::layers::{NormPlace, PositionKind};
use regard::models::transformer::{TransformerConfig, Tying};
use regard::models::translator::Translator;
use regard::translate::{Search, translate};
use regard::weights::{self, LoadOptions, Upstream};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::path::Path;

const WHEEL: &str = "https://files.pythonhosted.org/packages/7c/32/0bf1b166a3fd87f720541856a23d327b494ab68c7f8ebef4fae411cce553/detransliterator-0.0.2-py3-none-any.whl";
const ASSETS: &str = "detransliterator/assets";
const MODEL: &str = "latin2nqo_001.35";
/// Ids of fairseq's special tokens.
const END: u32 = 2;
const UNKNOWN: u32 = 3;
const LINES: usize = 120;

fn unpacked(wheel: &Path, name: &str) -> Vec<u8> {
    let mut archive = zip::ZipArchive::new(File::open(wheel).unwrap()).unwrap();
    let mut bytes = Vec::new();
    archive.by_name(&format!("{ASSETS}/{name}")).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn text(wheel: &Path, name: &str) -> String {
    String::from_utf8(unpacked(wheel, name)).unwrap()
}

/// A token a line, after the four special ones.
fn dictionary(text: &str) -> Vec<String> {
    let special = ["<s>", "<pad>", "</s>", "<unk>"].map(String::from);
    special.into_iter().chain(text.lines().map(|line| line.rsplit_once(' ').unwrap().0.to_string())).collect()
}

/// Pairs of pieces in the order in which they are joined, as subword-nmt writes them.
fn merges(text: &str) -> HashMap<(String, String), usize> {
    let pairs = text.lines().filter(|line| !line.starts_with('#')).enumerate();
    pairs
        .map(|(rank, line)| (line.split_once(' ').map(|(a, b)| (a.to_string(), b.to_string())).unwrap(), rank))
        .collect()
}

/// The pieces of a word; all but the last end with `@@`.
fn pieces(word: &str, merges: &HashMap<(String, String), usize>) -> Vec<String> {
    let mut parts: Vec<String> = word.chars().map(String::from).collect();
    parts.last_mut().unwrap().push_str("</w>");
    loop {
        let rank = |at: usize| merges.get(&(parts[at].clone(), parts[at + 1].clone()));
        let Some(best) = (0..parts.len() - 1).filter_map(|at| Some((*rank(at)?, at))).min() else { break };
        let pair = (parts[best.1].clone(), parts[best.1 + 1].clone());
        let mut joined = Vec::new();
        let mut at = 0;
        while at < parts.len() {
            if at + 1 < parts.len() && (&parts[at], &parts[at + 1]) == (&pair.0, &pair.1) {
                joined.push(format!("{}{}", pair.0, pair.1));
                at += 2;
            } else {
                joined.push(parts[at].clone());
                at += 1;
            }
        }
        parts = joined;
    }
    let last = parts.len() - 1;
    let shown = |(at, part): (usize, String)| if at == last { part.replace("</w>", "") } else { format!("{part}@@") };
    parts.into_iter().enumerate().map(shown).filter(|part| !part.is_empty()).collect()
}

/// One minus the edits over the longer length.
fn similarity(left: &str, right: &str) -> f64 {
    strsim::normalized_levenshtein(left, right)
}

#[test]
fn a_transformer_of_fairseq_writes_its_own_test_lines() {
    let wheel = match weights::fetch(WHEEL, &mut |_| {}) {
        Ok(wheel) => wheel,
        Err(error) => {
            writeln!(std::io::stderr(), "SKIPPED: {error}").unwrap();
            return;
        }
    };
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = folder.path().join("checkpoint.pt");
    std::fs::write(&checkpoint, unpacked(&wheel, &format!("{MODEL}/checkpoints/checkpoint_best.pt"))).unwrap();
    let read = weights::read(&checkpoint).unwrap();
    let shape = |name: &str| read.tensors[name].shape().to_vec();
    let layers = |side: &str| {
        let layer = |i: usize| format!("{side}.layers.{i}.fc1.weight");
        (0..64).take_while(|i| read.tensors.contains_key(&layer(*i))).count()
    };
    let [source, dim] = shape("encoder.embed_tokens.weight")[..] else { panic!("a table") };
    let config = TransformerConfig {
        source_vocabulary: source,
        target_vocabulary: shape("decoder.embed_tokens.weight")[0],
        dim,
        inner: shape("encoder.layers.0.fc1.weight")[0],
        heads: 8,
        encoder_layers: layers("encoder"),
        decoder_layers: layers("decoder"),
        norm: NormPlace::Pre,
        position: PositionKind::Fairseq,
        tying: Tying::Target,
        ..TransformerConfig::base()
    };
    let model = config.init(&device::cpu()).unwrap();
    let loaded = weights::fit(model, read, &LoadOptions::default()).unwrap();
    assert_eq!(loaded.upstream, Upstream::Fairseq);
    let model = Translator::Transformer(loaded.model);

    let merges = merges(&text(&wheel, &format!("{MODEL}/data/bpe.code")));
    let [source, target] =
        ["roman", "nqo"].map(|side| dictionary(&text(&wheel, &format!("{MODEL}/data/dict.{side}.txt"))));
    let ids: HashMap<&str, u32> = source.iter().enumerate().map(|(id, token)| (token.as_str(), id as u32)).collect();
    let encode = |line: &str| {
        let words = line.split_whitespace().flat_map(|word| pieces(word, &merges));
        let mut tokens: Vec<u32> = words.map(|piece| *ids.get(piece.as_str()).unwrap_or(&UNKNOWN)).collect();
        tokens.push(END);
        tokens
    };
    let decode = |tokens: &[u32]| {
        tokens.iter().map(|token| target[*token as usize].as_str()).collect::<Vec<_>>().join(" ").replace("@@ ", "")
    };
    let [latin, nko] = ["emk-tonal", "nqo"].map(|side| text(&wheel, &format!("test_data/diane_parallel_002.{side}")));
    let clean = |line: &str| line.trim().trim_matches('"').trim().to_lowercase();
    let pairs: Vec<(String, String)> = latin.lines().zip(nko.lines()).map(|(a, b)| (clean(a), clean(b))).collect();
    let pairs: Vec<&(String, String)> =
        pairs.iter().filter(|(a, _)| (10..120).contains(&a.chars().count())).take(LINES).collect();
    let tokens: Vec<Vec<u32>> = pairs.iter().map(|(latin, _)| encode(latin)).collect();
    let found = translate(&model, &Tokens::new(&tokens), &Search::new(END, END).greedy(), &device::cpu());
    let mut sum = 0.0;
    for (index, ((latin, nko), found)) in pairs.iter().zip(&found).enumerate() {
        let written = decode(&found[0].tokens);
        if index < 5 {
            writeln!(std::io::stderr(), "{latin}\n  {nko}\n  {written}").unwrap();
        }
        sum += similarity(&written, nko);
    }
    let mean = sum / pairs.len() as f64;
    writeln!(std::io::stderr(), "{} lines, mean similarity {mean:.4}", pairs.len()).unwrap();
    assert!(pairs.len() >= 100 && mean >= 0.95, "{mean}");
}
