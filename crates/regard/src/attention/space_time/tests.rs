use super::*;
use crate::testing::{assert_close, assert_gradients_are_differences, distance, random, values};

const SCHEMES: [SpaceTime; 5] =
    [SpaceTime::Space, SpaceTime::Joint, SpaceTime::Divided, SpaceTime::SparseLocalGlobal, SpaceTime::Axial];
const STEPS: [SpaceTimeStep; 7] = [
    SpaceTimeStep::Space,
    SpaceTimeStep::Joint,
    SpaceTimeStep::Time,
    SpaceTimeStep::Local,
    SpaceTimeStep::Global,
    SpaceTimeStep::Width,
    SpaceTimeStep::Height,
];

fn grid(frames: usize, height: usize, width: usize) -> ClipGrid {
    ClipGrid { frames, height, width }
}

/// Even, odd, one frame, one row, one column, one patch.
fn grids() -> Vec<ClipGrid> {
    vec![grid(2, 4, 4), grid(3, 5, 3), grid(1, 4, 3), grid(4, 1, 3), grid(2, 3, 1), grid(1, 1, 1)]
}

fn inputs(batch: usize, grid: ClipGrid, seed: u64) -> [Tensor<4>; 3] {
    let tokens = grid.tokens();
    [
        random([batch, 2, tokens, 3], seed).mul_scalar(2.0),
        random([batch, 2, tokens, 3], seed + 1).mul_scalar(2.0),
        random([batch, 2, tokens, 4], seed + 2),
    ]
}

fn run(step: SpaceTimeStep, grid: ClipGrid, [query, key, value]: [Tensor<4>; 3]) -> Attended<4> {
    step.attend(grid, query, key, value, &mut Pass::recording())
}

/// Whether the window of half of `length` around `centre` holds `place`.
fn near(centre: usize, place: usize, length: usize) -> bool {
    let size = length.div_ceil(2) as i64;
    let mut first = centre as i64 - size / 2;
    while first < 0 {
        first += 1;
    }
    while first + size > length as i64 {
        first -= 1;
    }
    (first..first + size).contains(&(place as i64))
}

/// The sets of keys that a token looks at: its output is the mean of one attention for each.
fn looks_at(step: SpaceTimeStep, grid: ClipGrid, query: usize) -> Vec<Vec<usize>> {
    let ClipGrid { frames, height, width } = grid;
    let mut patches = Vec::new();
    for t in 0..frames {
        for h in 0..height {
            for w in 0..width {
                patches.push((t, h, w));
            }
        }
    }
    let those = |keep: &dyn Fn(usize, usize, usize) -> bool| {
        let mut keys = if step == SpaceTimeStep::Time { vec![] } else { vec![0] };
        keys.extend((0..patches.len()).filter(|i| keep(patches[*i].0, patches[*i].1, patches[*i].2)).map(|i| i + 1));
        keys
    };
    if query == 0 {
        return match step {
            SpaceTimeStep::Joint | SpaceTimeStep::Local | SpaceTimeStep::Global => vec![those(&|_, _, _| true)],
            SpaceTimeStep::Time => vec![vec![0]],
            SpaceTimeStep::Space => (0..frames).map(|f| those(&|t, _, _| t == f)).collect(),
            SpaceTimeStep::Width => {
                (0..frames * height).map(|i| those(&|t, h, _| (t, h) == (i / height, i % height))).collect()
            }
            SpaceTimeStep::Height => {
                (0..frames * width).map(|i| those(&|t, _, w| (t, w) == (i / width, i % width))).collect()
            }
        };
    }
    let (t0, h0, w0) = patches[query - 1];
    vec![match step {
        SpaceTimeStep::Joint => those(&|_, _, _| true),
        SpaceTimeStep::Space => those(&|t, _, _| t == t0),
        SpaceTimeStep::Time => those(&|_, h, w| (h, w) == (h0, w0)),
        SpaceTimeStep::Width => those(&|t, h, _| (t, h) == (t0, h0)),
        SpaceTimeStep::Height => those(&|t, _, w| (t, w) == (t0, w0)),
        SpaceTimeStep::Local => those(&|_, h, w| near(h0, h, height) && near(w0, w, width)),
        SpaceTimeStep::Global => {
            those(&|t, h, w| t.abs_diff(t0) % 2 == 0 && h.abs_diff(h0) % 2 == 0 && w.abs_diff(w0) % 2 == 0)
        }
    }]
}

/// A step by its definition: outputs and weights.
fn naive(step: SpaceTimeStep, grid: ClipGrid, [query, key, value]: &[Tensor<4>; 3]) -> (Vec<f32>, Vec<f32>) {
    let [batch, heads, tokens, width] = query.dims();
    let out_width = value.dims()[3];
    let (query, key, value) = (values(query), values(key), values(value));
    let (mut out, mut weights) = (Vec::new(), Vec::new());
    for sequence in 0..batch * heads {
        for n in 0..tokens {
            let mut row = vec![0.0; tokens];
            let sets = looks_at(step, grid, n);
            for keys in &sets {
                let score = |m: &usize| -> f32 {
                    (0..width)
                        .map(|i| query[(sequence * tokens + n) * width + i] * key[(sequence * tokens + m) * width + i])
                        .sum()
                };
                let scores: Vec<f32> = keys.iter().map(|m| (score(m) / (width as f32).sqrt()).exp()).collect();
                let total: f32 = scores.iter().sum();
                for (m, score) in keys.iter().zip(scores) {
                    row[*m] += score / total / sets.len() as f32;
                }
            }
            for i in 0..out_width {
                out.push((0..tokens).map(|m| row[m] * value[(sequence * tokens + m) * out_width + i]).sum());
            }
            weights.extend(row);
        }
    }
    (out, weights)
}

#[test]
fn every_step_equals_its_definition() {
    for step in STEPS {
        for grid in grids() {
            let attended = run(step, grid, inputs(2, grid, 1));
            let (out, weights) = naive(step, grid, &inputs(2, grid, 1));
            assert!(distance(&values(&attended.out), &out) < 1e-5, "{step:?} on {grid:?}");
            assert!(distance(&values(&attended.weights.unwrap()), &weights) < 1e-5, "{step:?} on {grid:?}");
        }
    }
}

#[test]
fn an_output_depends_on_exactly_the_tokens_of_the_plan() {
    for step in STEPS {
        for grid in [grid(3, 5, 4), grid(1, 4, 3)] {
            let [query, key, value] = inputs(1, grid, 7);
            let tokens = grid.tokens();
            let attend = |key: Tensor<4>, value: Tensor<4>| {
                values(&step.attend(grid, query.clone(), key, value, &mut Pass::silent()).out)
            };
            let before = attend(key.clone(), value.clone());
            for moved in 0..tokens {
                let push = |tensor: &Tensor<4>| {
                    let there = tensor.clone().slice([0..1, 0..2, moved..moved + 1]).add_scalar(1.5);
                    tensor.clone().slice_assign([0..1, 0..2, moved..moved + 1], there)
                };
                let after = attend(push(&key), push(&value));
                for token in 0..tokens {
                    let sees = looks_at(step, grid, token).iter().any(|keys| keys.contains(&moved));
                    let row = token * 4..token * 4 + 4;
                    let change = distance(&after[row.clone()], &before[row]);
                    assert_eq!(change > 1e-6, sees, "{step:?}: {moved} moves {token} by {change:e} on {grid:?}");
                }
            }
        }
    }
}

#[test]
fn the_paper_sizes_have_the_paper_neighbourhoods() {
    let clip = grid(8, 14, 14);
    let keys = |step, token| looks_at(step, clip, token)[0].len() - 1;
    for token in [1, 700, 1568] {
        assert_eq!(keys(SpaceTimeStep::Local, token), 8 * 7 * 7);
        assert_eq!(keys(SpaceTimeStep::Global, token), 4 * 7 * 7);
    }
    let local = SpaceTimeStep::Local.plan(clip);
    let gathered: usize = local.groups.iter().map(|group| group.keys.len()).sum();
    assert!(gathered < 6 * clip.tokens(), "{gathered} keys would be gathered");
    for step in STEPS {
        let mut queries: Vec<usize> = step.plan(clip).groups.iter().flat_map(|g| g.queries.clone()).collect();
        queries.sort_unstable();
        queries.dedup();
        assert_eq!(queries, (0..clip.tokens()).collect::<Vec<_>>(), "{step:?}");
    }
}

#[test]
fn pairs_are_counted_as_the_definition_has_them() {
    for step in STEPS {
        for grid in grids() {
            let pairs: usize =
                (0..grid.tokens()).flat_map(|query| looks_at(step, grid, query)).map(|keys| keys.len()).sum();
            assert_eq!(step.plan(grid).pairs(), pairs, "{step:?} on {grid:?}");
        }
    }
}

#[test]
fn rows_of_query_key_and_value_give_what_the_three_give() {
    for step in STEPS {
        for grid in grids() {
            let qkv = random::<3>([2, grid.tokens(), 3 * 8], 3).mul_scalar(2.0);
            let [query, key, value] = [0, 1, 2].map(|part| split_heads(qkv.clone().narrow(2, 8 * part, 8), 2));
            let apart = merge_heads(step.attend(grid, query, key, value, &mut Pass::silent()).out);
            for mut pass in [Pass::silent(), Pass::recording()] {
                assert_close(&step.plan(grid).self_attention(qkv.clone(), 2, &mut pass), &apart, 1e-5);
                for (name, geometry) in pass.into_trace().attention() {
                    assert_eq!((name, geometry), ("weights", &Geometry::everywhere(grid.axes(), grid.axes())));
                }
            }
        }
    }
}

#[test]
fn a_clip_of_the_paper_size_fits_into_memory() {
    let clip = grid(8, 14, 14);
    for step in [SpaceTimeStep::Local, SpaceTimeStep::Global, SpaceTimeStep::Time] {
        let tokens = random::<4>([1, 1, clip.tokens(), 8], 3);
        let out = step.attend(clip, tokens.clone(), tokens.clone(), tokens, &mut Pass::silent()).out;
        assert!(values(&out).iter().all(|x| x.is_finite()), "{step:?}");
    }
}

#[test]
fn joint_attention_over_one_frame_is_space_attention() {
    let frame = grid(1, 3, 4);
    let joint = run(SpaceTimeStep::Joint, frame, inputs(2, frame, 5));
    let space = run(SpaceTimeStep::Space, frame, inputs(2, frame, 5));
    assert_close(&joint.out, &space.out, 1e-6);
    assert_close(&joint.weights.unwrap(), &space.weights.unwrap(), 1e-6);
}

#[test]
fn divided_attention_over_one_frame_is_space_attention() {
    let frame = grid(1, 3, 4);
    let through = |scheme: SpaceTime| {
        let [query, key, mut value] = inputs(2, frame, 5);
        for step in scheme.steps() {
            value = run(*step, frame, [query.clone(), key.clone(), value]).out;
        }
        value
    };
    assert_close(&through(SpaceTime::Divided), &through(SpaceTime::Space), 1e-6);
}

#[test]
fn frames_kept_apart_are_a_batch_of_clips_of_one_frame() {
    let (clip, frame) = (grid(3, 2, 2), grid(1, 2, 2));
    let patches = random([1, 2, 12, 3], 1);
    let class = random([1, 2, 1, 3], 2);
    let clip_tokens = Tensor::cat(vec![class.clone(), patches.clone()], 2);
    let together = run(SpaceTimeStep::Space, clip, [clip_tokens.clone(), clip_tokens.clone(), clip_tokens]).out;
    let apart: Vec<Tensor<4>> = (0..3)
        .map(|t| {
            let one = patches.clone().slice([0..1, 0..2, 4 * t..4 * t + 4]);
            let one = Tensor::cat(vec![class.clone(), one], 2);
            run(SpaceTimeStep::Space, frame, [one.clone(), one.clone(), one]).out
        })
        .collect();
    let averaged = (apart[0].clone() + apart[1].clone() + apart[2].clone()).div_scalar(3.0);
    let head = |tensor: Tensor<4>| tensor.slice([0..1, 0..2, 0..1]);
    assert_close(&head(together.clone()), &head(averaged), 1e-6);
    for (t, frame) in apart.into_iter().enumerate() {
        let there = together.clone().slice([0..1, 0..2, 1 + 4 * t..5 + 4 * t]);
        assert_close(&there, &frame.slice([0..1, 0..2, 1..5]), 1e-6);
    }
}

#[test]
fn in_every_scheme_the_class_token_comes_to_depend_on_every_patch() {
    for scheme in SCHEMES {
        let clip = grid(3, 4, 4);
        // which tokens each token has heard of
        let mut heard: Vec<Vec<bool>> =
            (0..clip.tokens()).map(|n| (0..clip.tokens()).map(|m| n == m).collect()).collect();
        for step in scheme.steps() {
            heard = (0..clip.tokens())
                .map(|n| {
                    let seen = looks_at(*step, clip, n).concat();
                    (0..clip.tokens()).map(|m| heard[n][m] || seen.iter().any(|s| heard[*s][m])).collect()
                })
                .collect();
        }
        assert!(heard[0].iter().all(|heard| *heard), "{scheme:?}");
    }
}

#[test]
fn rows_of_weights_sum_to_one_and_give_the_output() {
    for step in STEPS {
        let clip = grid(2, 3, 4);
        let [query, key, value] = inputs(2, clip, 9);
        let attended = run(step, clip, [query, key, value.clone()]);
        let weights = attended.weights.unwrap();
        let sums = weights.clone().sum_dim(3);
        assert_close(&sums.clone(), &sums.ones_like(), 1e-5);
        assert_close(&weights.matmul(value), &attended.out, 1e-5);
    }
}

#[test]
fn recorded_and_silent_passes_agree_and_record_once() {
    for step in STEPS {
        let clip = grid(3, 3, 4);
        let [query, key, value] = inputs(2, clip, 11);
        let silent = step.attend(clip, query, key, value, &mut Pass::silent());
        assert!(silent.weights.is_none(), "nothing is recorded");
        let mut pass = Pass::recording();
        let [query, key, value] = inputs(2, clip, 11);
        let recorded = pass.within("time", |pass| step.attend(clip, query, key, value, pass));
        assert_close(&silent.out, &recorded.out, 1e-5);
        let trace = pass.into_trace();
        assert_eq!(trace.names().collect::<Vec<_>>(), ["time.weights"], "{step:?}");
        assert_close(&trace.get::<4>("time.weights").unwrap(), &recorded.weights.unwrap(), 0.0);
    }
}

#[test]
fn the_gradient_of_recorded_weights_can_be_read() {
    for step in STEPS {
        let clip = grid(2, 3, 2);
        let [query, key, value] = inputs(1, clip, 19);
        let mut pass = Pass::recording().with_gradients();
        let out = step.attend(clip, query, key, value.clone(), &mut pass).out;
        let gradient = pass.into_trace().gradient::<4>("weights", &out.sum().backward()).unwrap();
        // one more of a weight adds the value of its key
        let expected = value.sum_dim(3).swap_dims(2, 3).expand([1, 2, 13, 13]);
        assert_close(&gradient, &expected, 1e-5);
    }
}

#[test]
fn a_batch_of_two_equals_two_batches_of_one() {
    for step in STEPS {
        let clip = grid(2, 3, 4);
        let both = run(step, clip, inputs(2, clip, 13)).out;
        for b in 0..2 {
            let one = inputs(2, clip, 13).map(|tensor| tensor.slice_dim(0, b..=b));
            assert_close(&both.clone().slice_dim(0, b..=b), &run(step, clip, one).out, 1e-6);
        }
    }
}

#[test]
fn gradients_are_finite_differences() {
    for step in STEPS {
        let clip = grid(2, 3, 2);
        let shapes = inputs(1, clip, 17);
        let named = [("query", values(&shapes[0])), ("key", values(&shapes[1])), ("value", values(&shapes[2]))];
        assert_gradients_are_differences(&named, |t| {
            let [query, key, value] = [0, 1, 2].map(|i| t[i].clone().reshape(shapes[i].shape()));
            step.attend(clip, query, key, value, &mut Pass::silent()).out
        });
    }
}

#[test]
fn numbers_that_are_not_finite_neither_hang_nor_crash() {
    for step in STEPS {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let clip = grid(2, 2, 3);
            let [query, key, value] = inputs(1, clip, 1);
            let out = run(step, clip, [query.mul_scalar(bad), key, value]).out;
            assert_eq!(out.dims(), [1, 2, 13, 4]);
        }
    }
}

#[test]
fn schemes_are_named_as_in_the_recipes() {
    let names: Vec<String> = SCHEMES.iter().map(|scheme| serde_json::to_string(scheme).unwrap()).collect();
    assert_eq!(names, ["\"space\"", "\"joint\"", "\"divided\"", "\"sparse-local-global\"", "\"axial\""]);
    assert_eq!(serde_json::from_str::<SpaceTime>("\"axial\"").unwrap(), SpaceTime::Axial);
}

#[test]
#[should_panic(expected = "space_time: key has tokens 12, grid with class token has tokens 13")]
fn a_missing_class_token_is_refused_by_name() {
    let clip = grid(2, 2, 3);
    let [query, _, value] = inputs(1, clip, 1);
    run(SpaceTimeStep::Time, clip, [query, random([1, 2, 12, 3], 1), value]);
}

#[test]
#[should_panic(expected = "space_time: grid has frames 0, needs at least 1")]
fn an_empty_grid_is_refused_by_name() {
    let _ = SpaceTimeStep::Time.plan(grid(0, 2, 3));
}
