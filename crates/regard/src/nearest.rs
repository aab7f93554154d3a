//! What somebody may have meant.

/// What to say of a name that is not known.
pub fn unknown(name: &str, known: &[&str]) -> String {
    // a name that was not finished is nearer than one that was misspelt
    let nearest = known.iter().min_by_key(|known| (!known.starts_with(name), strsim::levenshtein(name, known)));
    match nearest {
        Some(nearest) => format!("unknown; the nearest is `{nearest}`"),
        None => "unknown".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_is_the_one_that_begins_so_or_differs_least() {
        assert!(unknown("vit-ti", &["sit-ti", "vit-tiny-patch16"]).contains("`vit-tiny-patch16`"));
        assert!(unknown("bach", &["epochs", "batch"]).contains("`batch`"));
        assert_eq!(unknown("x", &[]), "unknown");
    }
}
