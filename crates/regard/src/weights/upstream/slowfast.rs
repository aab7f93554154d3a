//! Names of facebookresearch/SlowFast: ours but for the layers of non-local blocks.

use super::Table;

pub(super) const SLOWFAST: Table = &[
    ("s{s}.pathway0_nonlocal{i}.conv_theta.*", "s{s}.pathway0_nonlocal{i}.theta.*"),
    ("s{s}.pathway0_nonlocal{i}.conv_phi.*", "s{s}.pathway0_nonlocal{i}.phi.*"),
    ("s{s}.pathway0_nonlocal{i}.conv_g.*", "s{s}.pathway0_nonlocal{i}.g.*"),
    ("s{s}.pathway0_nonlocal{i}.conv_out.*", "s{s}.pathway0_nonlocal{i}.output.*"),
    ("s{s}.pathway0_nonlocal{i}.bn.*", "s{s}.pathway0_nonlocal{i}.norm.*"),
];
