//! The subset of YAML that `data.yaml` needs: strings, and lists and maps of strings, at the top level.
//!
//! Our own code because the common crates are unmaintained, and six keys do not need a parser with anchors,
//! tags and types.

use std::collections::BTreeMap;
use std::path::Path;

use crate::{Error, file};

/// Keys with their values; a string is a list of one, a map is a list in the order of its numbers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Yaml(BTreeMap<String, Vec<String>>);

impl Yaml {
    pub fn list(&self, key: &str) -> Option<&[String]> {
        self.0.get(key).map(Vec::as_slice)
    }

    pub fn text(&self, key: &str) -> Option<&str> {
        self.list(key)?.first().map(String::as_str).filter(|text| !text.is_empty())
    }
}

/// # Errors
/// When the file cannot be read, or a line is not understood; the error names both.
pub fn read(path: &Path) -> Result<Yaml, Error> {
    parse(&file::read_text(path)?).map_err(|reason| Error::file(path, reason))
}

fn parse(text: &str) -> Result<Yaml, String> {
    let mut yaml = Yaml::default();
    let mut lines = text.trim_start_matches('\u{feff}').lines().enumerate().peekable();
    while let Some((number, line)) = lines.next() {
        let content = without_comment(line);
        if content.trim().is_empty() || content.starts_with([' ', '\t', '-']) || content.trim() == "..." {
            // nested keys of sections that are not needed
            continue;
        }
        let Some((key, value)) = content.split_once(':') else {
            return Err(format!("line {}: must be `key: value`", number + 1));
        };
        let mut value = value.trim().to_string();
        // a list in brackets may go over several lines
        while value.starts_with(['[', '{']) && !value.ends_with([']', '}']) {
            let Some((_, more)) = lines.next() else {
                return Err(format!("line {}: a bracket is not closed", number + 1));
            };
            value.push(' ');
            value.push_str(without_comment(more).trim());
        }
        let items = if value.is_empty() {
            let mut items = Vec::new();
            while let Some((number, line)) = lines.peek() {
                let content = without_comment(line);
                let inner = content.trim();
                let is_inner = content.starts_with([' ', '\t']) || inner.starts_with("- ") || inner == "-";
                if !inner.is_empty() && !is_inner {
                    break;
                }
                if let Some(item) = inner.strip_prefix('-') {
                    items.push((items.len(), unquoted(item)));
                } else if let Some(item) = numbered(inner) {
                    items.push(item);
                } else if !inner.is_empty() && key.trim() == "names" {
                    return Err(format!("line {}: must be `- name` or `number: name`", number + 1));
                }
                lines.next();
            }
            ordered(items).map_err(|reason| format!("line {}: `{}`: {reason}", number + 1, key.trim()))?
        } else if let Some(inner) = value.strip_prefix('[').and_then(|value| value.strip_suffix(']')) {
            pieces(inner).iter().map(|item| unquoted(item)).collect()
        } else if let Some(inner) = value.strip_prefix('{').and_then(|value| value.strip_suffix('}')) {
            let items: Vec<(usize, String)> = pieces(inner).iter().filter_map(|item| numbered(item.trim())).collect();
            ordered(items).map_err(|reason| format!("line {}: `{}`: {reason}", number + 1, key.trim()))?
        } else {
            vec![unquoted(&value)]
        };
        yaml.0.insert(unquoted(key), items);
    }
    Ok(yaml)
}

/// Whether numbers are 0, 1, 2 .. without gaps.
fn ordered(mut items: Vec<(usize, String)>) -> Result<Vec<String>, String> {
    items.sort_by_key(|(number, _)| *number);
    match items.iter().enumerate().find(|(place, (number, _))| place != number) {
        Some((place, _)) => Err(format!("number {place} is missing or there twice")),
        None => Ok(items.into_iter().map(|(_, name)| name).collect()),
    }
}

fn numbered(item: &str) -> Option<(usize, String)> {
    let (number, name) = item.split_once(':')?;
    Some((unquoted(number).parse().ok()?, unquoted(name)))
}

/// Up to a `#` outside quotes, which begins a comment at the start or after a blank.
fn without_comment(line: &str) -> &str {
    let (mut quote, mut before) = (None, ' ');
    for (place, letter) in line.char_indices() {
        match (quote, letter) {
            (None, '#') if before.is_whitespace() => return &line[..place],
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            _ => {}
        }
        before = letter;
    }
    line
}

/// The items of a list, cut at commas outside quotes.
fn pieces(list: &str) -> Vec<String> {
    let (mut found, mut quote) = (vec![String::new()], None);
    for letter in list.chars() {
        match (quote, letter) {
            (None, ',') => {
                found.push(String::new());
                continue;
            }
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if letter == open => quote = None,
            _ => {}
        }
        found.last_mut().expect("there is always one").push(letter);
    }
    found.retain(|item| !item.trim().is_empty());
    found
}

fn unquoted(text: &str) -> String {
    let text = text.trim();
    for quote in ['\'', '"'] {
        if let Some(inner) = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote)) {
            return if quote == '\'' { inner.replace("''", "'") } else { inner.replace("\\\"", "\"") };
        }
    }
    text.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_in_every_form_that_tools_write() {
        for text in [
            "train: ../train/images\nnc: 3\nnames: ['red cell', \"b,c\", it's]\n",
            "names:\n  0: red cell\n  2: it's\n  1: 'b,c'\n\ntrain: ../train/images # here\n",
            "train: '../train/images'\nnames:\n- red cell\n- \"b,c\"\n- it's\nroboflow:\n  version: 3\n",
            "names: {0: red cell, 1: 'b,c', 2: it's}\ntrain:\n  - ../train/images\n",
            "names: ['red cell',\n  'b,c',\n  it's]\ntrain: ../train/images\n",
        ] {
            let yaml = parse(text).unwrap();
            assert_eq!(yaml.list("names").unwrap(), ["red cell", "b,c", "it's"], "{text}");
            assert_eq!(yaml.text("train"), Some("../train/images"), "{text}");
        }
    }

    #[test]
    fn what_is_not_understood_is_named_with_its_line() {
        for (text, expected) in [
            ("train: a\nnonsense", "line 2: must be `key: value`"),
            ("names: ['a',", "line 1: a bracket is not closed"),
            ("names:\n  0: a\n  2: b\n", "line 1: `names`: number 1 is missing or there twice"),
            ("names:\n  zero: a\n", "line 2: must be `- name` or `number: name`"),
        ] {
            assert_eq!(parse(text).unwrap_err(), expected);
        }
    }
}
