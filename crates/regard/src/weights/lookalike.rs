//! Finds the presets that a checkpoint looks like, by names and shapes of its tensors.

use std::collections::BTreeMap;

use super::load::is_head;
use super::shapes;
use crate::{device, models};

/// The presets that a checkpoint fits best, as a text such as "`vit-tiny-patch16-224` or `deit-tiny`"; none if it
/// resembles no preset.
///
/// Heads and positions are ignored: heads may be for other classes, and positions can be resampled.
pub(super) fn presets_like(found: &BTreeMap<String, Vec<usize>>) -> Option<String> {
    let is_body = |name: &str| !is_head(name) && name != "pos_embed";
    let there = found.keys().filter(|name| is_body(name)).count();
    let mut best: (usize, Vec<&str>) = (0, Vec::new());
    for preset in models::presets() {
        let Ok(model) = preset.config.init(&device::cpu()) else { continue };
        let wanted = shapes(&model);
        let fits =
            |(name, shape): (&String, &Vec<usize>)| found.get(name).is_some_and(|there| same_shape(there, shape));
        let same = wanted.iter().filter(|(name, _)| is_body(name)).filter(|entry| fits(*entry)).count();
        let here = wanted.keys().filter(|name| is_body(name)).count();
        // nearly all tensors must match: a checkpoint without a few of them is still that model
        if same * 10 < here.max(there) * 9 {
            continue;
        }
        // 2 for each match in the body, 1 in head and positions, minus the missing tensors of the body
        let sure = 2 * same + wanted.iter().filter(|(name, _)| !is_body(name)).filter(|entry| fits(*entry)).count();
        let score = sure.saturating_sub(here - same);
        match score.cmp(&best.0) {
            std::cmp::Ordering::Greater => best = (score, vec![preset.name]),
            std::cmp::Ordering::Equal => best.1.push(preset.name),
            std::cmp::Ordering::Less => {}
        }
    }
    let names: Vec<String> = best.1.iter().take(3).map(|name| format!("`{name}`")).collect();
    (!names.is_empty()).then(|| names.join(" or "))
}

/// Whether two shapes are equal, up to trailing axes of size 1.
pub(super) fn same_shape(left: &[usize], right: &[usize]) -> bool {
    trimmed(left) == trimmed(right)
}

/// A shape without trailing axes of size 1.
fn trimmed(shape: &[usize]) -> &[usize] {
    let end = shape.iter().rposition(|&size| size != 1).map_or(0, |last| last + 1);
    &shape[..end]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes_of(preset: &str) -> BTreeMap<String, Vec<usize>> {
        shapes(&models::preset(preset).unwrap().config.init(&device::cpu()).unwrap())
    }

    #[test]
    fn a_checkpoint_looks_like_its_preset_whatever_its_head() {
        let mut deit = shapes_of("deit-tiny");
        assert!(presets_like(&deit).unwrap().contains("`deit-tiny`"));
        deit.insert("head.weight".into(), vec![5, 192]);
        deit.remove("head.bias");
        assert!(presets_like(&deit).unwrap().contains("`deit-tiny`"));
        assert_eq!(presets_like(&shapes_of("resnet-50")).as_deref(), Some("`resnet-50`"));
        let strange = [("tok_embeddings.weight".to_string(), vec![32000, 4096])];
        assert_eq!(presets_like(&strange.into()), None);
    }
}
