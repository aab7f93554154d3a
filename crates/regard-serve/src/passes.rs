//! Texts of several requests in forward passes whose size is bounded by tokens.

use regard::data::text::Buckets;

/// Words and regions of one forward pass, padding included: a network needs a few kilobytes for each.
const PASS_TOKENS: usize = 1 << 12;

/// The texts of each forward pass: of similar lengths, at most `most` of them, and of bounded size unless there is only one.
/// Lengths are words and regions.
pub fn passes(lengths: Vec<[usize; 2]>, most: usize) -> Vec<Vec<usize>> {
    let longest = lengths.iter().flatten().copied().max().unwrap_or(0);
    let buckets = Buckets::new(lengths, PASS_TOKENS.max(longest), 0).expect("no text is longer than the longest");
    let parts = |pass: Vec<usize>| pass.chunks(most.max(1)).map(<[usize]>::to_vec).collect::<Vec<_>>();
    buckets.in_order().into_iter().flat_map(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pass_is_bounded_by_tokens_with_padding_and_every_text_is_in_one() {
        let lengths: Vec<[usize; 2]> = (0..200).map(|text| [1 + text * 37 % 300, 40]).collect();
        let found = passes(lengths.clone(), 50);
        for pass in &found {
            let longest = pass.iter().map(|text| lengths[*text][0]).max().unwrap();
            assert!(pass.len() * longest <= PASS_TOKENS && pass.len() <= 50, "{} x {longest}", pass.len());
        }
        let mut all: Vec<usize> = found.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..200));
        assert_eq!(passes(vec![[PASS_TOKENS + 5, 0], [3, 0]], 8).len(), 2);
        assert!(passes(Vec::new(), 8).is_empty());
    }
}
