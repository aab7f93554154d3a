//! Attention over a clip: from a patch of the rolling disc to the four frames.

use burn::tensor::Tensor;
use regard::attention::{ClipGrid, SpaceTime, split_heads};
use std::time::Duration;

use super::scene::{self, Picture};
use super::{AttentionMap, GalleryContext, OperatorRun, values};

const WIDTH: usize = 64;
const FRAMES: usize = 4;
/// The query patch: on the disc of the second frame.
const QUERY: (usize, usize, usize) = (1, 2, 3);

pub fn space(context: &GalleryContext) -> OperatorRun {
    scheme(context, SpaceTime::Space)
}

pub fn joint(context: &GalleryContext) -> OperatorRun {
    scheme(context, SpaceTime::Joint)
}

pub fn divided(context: &GalleryContext) -> OperatorRun {
    scheme(context, SpaceTime::Divided)
}

pub fn sparse_local_global(context: &GalleryContext) -> OperatorRun {
    scheme(context, SpaceTime::SparseLocalGlobal)
}

pub fn axial(context: &GalleryContext) -> OperatorRun {
    scheme(context, SpaceTime::Axial)
}

fn scheme(context: &GalleryContext, scheme: SpaceTime) -> OperatorRun {
    let clip = scene::clip();
    let side = GalleryContext::GRID / 2;
    let grid = ClipGrid { frames: FRAMES, height: side, width: side };
    let class = Tensor::zeros([1, 1, WIDTH], &context.device);
    let tokens = clip.iter().map(|frame| context.tokens(frame, WIDTH));
    let tokens = split_heads(Tensor::cat(std::iter::once(class).chain(tokens).collect(), 1), 4);

    // the steps of one block run one after the other; the map is their mean
    let mut time = Duration::ZERO;
    let mut looks = vec![0.0; grid.tokens()];
    for step in scheme.steps() {
        let plan = step.plan(grid);
        let (step_time, weights) =
            context.watch(|pass| plan.attend(tokens.clone(), tokens.clone(), tokens.clone(), pass));
        time += step_time;
        let query = grid.token(QUERY.0, QUERY.1, QUERY.2);
        let weights = values(weights.mean_dim(1));
        for (look, weight) in looks.iter_mut().zip(&weights[query * grid.tokens()..]) {
            *look += weight;
        }
    }

    // frames are drawn as in the picture: two above, two below
    let place = |frame: usize, row: usize, column: usize| (frame / 2 * side + row, frame % 2 * side + column);
    let mut heat = vec![0.0; 4 * side * side];
    for frame in 0..FRAMES {
        for (row, column) in (0..side).flat_map(|row| (0..side).map(move |column| (row, column))) {
            let (down, right) = place(frame, row, column);
            heat[down * 2 * side + right] = looks[grid.token(frame, row, column)];
        }
    }
    let query = Some(place(QUERY.0, QUERY.1, QUERY.2));
    let heat = AttentionMap { rows: 2 * side, columns: 2 * side, values: heat, query };
    OperatorRun { parameters: 0, time, picture: Picture::four(&clip), heat, result: None }
}
