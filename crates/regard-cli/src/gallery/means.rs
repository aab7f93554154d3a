//! Non-local means on the noisy picture; each tile shows the attention of its centre pixel.

use regard::attention::{self, NonLocalMeans};

use super::scene::{Picture, SIDE};
use super::{AttentionMap, GalleryContext, OperatorRun, values};

pub fn non_local_means(context: &GalleryContext) -> OperatorRun {
    const SIGMA: f32 = 0.1;
    let noisy = context.picture.noisy(SIGMA);
    let options = NonLocalMeans::for_noise(SIGMA);
    let image = context.tensor(noisy.planes.clone(), [3, SIDE, SIDE]);
    let denoise = |pass: &mut _| {
        attention::non_local_means(image.clone(), &options, pass).expect("the picture is finite and large enough")
    };
    let (time, weights) = context.watch(denoise);
    let result = Picture { planes: values(denoise(&mut regard::Pass::silent()).out), ..context.picture };

    let (weights, window) = (values(weights), options.search);
    let mut heat = vec![f32::NAN; SIDE * SIDE];
    for row in 0..SIDE / window * window {
        for column in 0..SIDE / window * window {
            let (inner_row, inner_column) = (row % window, column % window);
            let middle = (row - inner_row + window / 2) * SIDE + column - inner_column + window / 2;
            heat[row * SIDE + column] = weights[(middle * window + inner_row) * window + inner_column];
        }
    }
    let heat = AttentionMap { rows: SIDE, columns: SIDE, values: heat, query: None };
    OperatorRun { parameters: 0, time, picture: noisy, heat, result: Some(result) }
}
