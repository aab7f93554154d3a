//! Renames tensors by pattern: `encoder.layer.{i}.output.dense.*` is `blocks.{i}.mlp.fc2.*`, in either direction.
//!
//! `{i}` is a number, the same in both patterns; `{i+1}` is the next one; `*` at the end matches the rest.

use std::fmt::Write;

/// Renames from pattern `from` to pattern `to`; none if the name does not match `from`.
pub(super) fn rename(name: &str, from: &str, to: &str) -> Option<String> {
    let mut numbers: Vec<(&str, usize)> = Vec::new();
    let (mut name, mut pattern) = (name, from);
    let rest = loop {
        let Some(special) = pattern.find(['{', '*']) else {
            if name != pattern {
                return None;
            }
            break "";
        };
        name = name.strip_prefix(&pattern[..special])?;
        if pattern[special..].starts_with('*') {
            if name.is_empty() {
                return None;
            }
            break name;
        }
        let (variable, after) = pattern[special + 1..].split_once('}')?;
        let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
        let number = number(&name[..digits])?;
        let (variable, number) = match variable.strip_suffix("+1") {
            Some(variable) => (variable, number.checked_sub(1)?),
            None => (variable, number),
        };
        if numbers.iter().any(|&(known, value)| known == variable && value != number) {
            return None;
        }
        numbers.push((variable, number));
        (name, pattern) = (&name[digits..], after);
    };
    Some(write(to, &numbers, rest))
}

fn write(pattern: &str, numbers: &[(&str, usize)], rest: &str) -> String {
    let mut name = String::new();
    let mut pieces = pattern.split('{');
    name.push_str(pieces.next().unwrap_or_default());
    for piece in pieces {
        let (variable, after) = piece.split_once('}').unwrap_or((piece, ""));
        let (variable, step) = variable.strip_suffix("+1").map_or((variable, 0), |variable| (variable, 1));
        let number = numbers.iter().find(|(known, _)| *known == variable).map_or(0, |(_, number)| number + step);
        write!(name, "{number}{after}").expect("a string takes any text");
    }
    name.replace('*', rest)
}

/// A number without leading zeros.
fn number(digits: &str) -> Option<usize> {
    let plain = digits == "0" || !digits.starts_with('0');
    if plain && digits.len() <= 9 { digits.parse().ok() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_the_rest_are_carried_over_in_both_directions() {
        let (there, here) = ("encoder.layer.{i}.output.dense.*", "blocks.{i}.mlp.fc2.*");
        let renamed = rename("encoder.layer.11.output.dense.weight", there, here).unwrap();
        assert_eq!(renamed, "blocks.11.mlp.fc2.weight");
        assert_eq!(rename(&renamed, here, there).unwrap(), "encoder.layer.11.output.dense.weight");
    }

    #[test]
    fn counting_can_start_at_one() {
        let (there, here) = ("trunk_output.block{s}.block{s}-{b}.f.a.0.*", "s{s}.b{b+1}.conv1.conv.*");
        let renamed = rename("trunk_output.block3.block3-0.f.a.0.weight", there, here).unwrap();
        assert_eq!(renamed, "s3.b1.conv1.conv.weight");
        assert_eq!(rename(&renamed, here, there).unwrap(), "trunk_output.block3.block3-0.f.a.0.weight");
        assert_eq!(rename("s3.b0.conv1.conv.weight", here, there), None);
    }

    #[test]
    fn another_name_is_left_alone() {
        let rename = |name| rename(name, "blocks.{i}.norm1.*", "{i}");
        for name in ["blocks.0.norm2.weight", "blocks.x.norm1.weight", "blocks.01.norm1.weight", "blocks.0.norm1.", ""]
        {
            assert_eq!(rename(name), None, "{name}");
        }
        assert_eq!(super::rename("block1.block2", "block{s}.block{s}", "{s}"), None);
        assert_eq!(super::rename("cls_token.weight", "cls_token", "cls"), None);
    }
}
