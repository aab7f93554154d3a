//! `regard gallery`: every operator on one picture, timed and drawn.
//!
//! Nothing is trained. Operators without parameters compare patches through a fixed random projection,
//! which keeps similar patches similar; layers are initialised with a fixed seed.

mod draw;
mod global;
mod means;
mod scene;
mod space_time;
mod windows;

use burn::tensor::{Device, Tensor, TensorData};
use image::{DynamicImage, ImageFormat, RgbImage};
use regard::Pass;
use regard::attention::Attended;
use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::files;
use draw::AttentionMap;
use scene::{Picture, SIDE};

/// Run every operator on a small picture, time it and draw its attention
///
/// Prints a table of operators and times, and writes a PNG file for each: the picture next to the attention
/// of one patch (framed), or of the centre pixel of each window for local operators. Nothing is trained.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder for the PNG files
    #[arg(long, value_name = "FOLDER", default_value = "regard-out")]
    out: PathBuf,
}

/// One line of the table.
struct Entry {
    operator: &'static str,
    variant: &'static str,
    run: fn(&GalleryContext) -> OperatorRun,
}

/// The result of an operator.
struct OperatorRun {
    /// Number of parameters.
    parameters: usize,
    time: Duration,
    /// Drawn at the left of its map.
    picture: Picture,
    heat: AttentionMap,
    /// Drawn at the right of its map.
    result: Option<Picture>,
}

/// Every operator and variant, in the order of the table. To add one: a function and a line.
const ENTRIES: &[Entry] = &[
    Entry { operator: "dot_product", variant: "", run: global::dot_product },
    Entry { operator: "additive", variant: "", run: global::additive },
    Entry { operator: "non_local", variant: "gaussian", run: global::gaussian },
    Entry { operator: "non_local", variant: "embedded", run: global::embedded_gaussian },
    Entry { operator: "non_local", variant: "dot", run: global::non_local_dot_product },
    Entry { operator: "non_local", variant: "concatenation", run: global::concatenation },
    Entry { operator: "local", variant: "", run: windows::local },
    Entry { operator: "stem", variant: "", run: windows::stem },
    Entry { operator: "pairwise", variant: "summation", run: windows::summation },
    Entry { operator: "pairwise", variant: "subtraction", run: windows::subtraction },
    Entry { operator: "pairwise", variant: "concatenation", run: windows::pair_concatenation },
    Entry { operator: "pairwise", variant: "hadamard", run: windows::hadamard },
    Entry { operator: "pairwise", variant: "dot", run: windows::pair_dot },
    Entry { operator: "patchwise", variant: "star", run: windows::star },
    Entry { operator: "patchwise", variant: "clique", run: windows::clique },
    Entry { operator: "patchwise", variant: "concatenation", run: windows::patch_concatenation },
    Entry { operator: "space_time", variant: "space", run: space_time::space },
    Entry { operator: "space_time", variant: "joint", run: space_time::joint },
    Entry { operator: "space_time", variant: "divided", run: space_time::divided },
    Entry { operator: "space_time", variant: "local-global", run: space_time::sparse_local_global },
    Entry { operator: "space_time", variant: "axial", run: space_time::axial },
    Entry { operator: "non_local_means", variant: "", run: means::non_local_means },
];

impl Entry {
    fn name(&self) -> String {
        let dash = if self.variant.is_empty() { "" } else { "-" };
        format!("{}{dash}{}", self.operator, self.variant)
    }
}

pub fn run(args: &Args, device: &Device, out: &mut impl Write) -> Result<(), Failure> {
    let folder = &args.out;
    fs::create_dir_all(folder).map_err(|error| {
        Failure::input(
            format!("cannot create the folder `{}`: {error}", folder.display()),
            "choose another with `--out`",
        )
    })?;
    let context = GalleryContext { device: device.clone(), picture: scene::picture() };
    let save = |name: &str, image: RgbImage| {
        files::write(&folder.join(format!("{name}.png")), ImageFormat::Png, &DynamicImage::ImageRgb8(image))
    };

    writeln!(out, "{:<17}{:<15}{:>10}{:>10}  map", "operator", "variant", "parameters", "time")?;
    let mut panels = vec![("picture".to_string(), draw::picture(&context.picture))];
    for entry in ENTRIES {
        // the same initial parameters for every entry, independent of the others
        device.seed(1);
        let shown = (entry.run)(&context);
        let name = entry.name();
        let heat = draw::heat(&shown.heat);
        let result = shown.result.as_ref().map(draw::picture);
        let row: Vec<_> = [draw::picture(&shown.picture), heat.clone()].into_iter().chain(result).collect();
        save(&name, draw::row_of(&row))?;
        let milliseconds = shown.time.as_secs_f64() * 1e3;
        writeln!(
            out,
            "{:<17}{:<15}{:>10}{:>7.2} ms  {name}.png",
            entry.operator, entry.variant, shown.parameters, milliseconds
        )?;
        panels.push((name, heat));
    }
    save("all", draw::contact_sheet(&panels))?;
    writeln!(out, "\n{} maps and one sheet of all: {}", ENTRIES.len(), folder.join("all.png").display())?;
    Ok(())
}

/// The inputs of the operators.
struct GalleryContext {
    device: Device,
    picture: Picture,
}

impl GalleryContext {
    /// Side of a patch, and patches along a side of the picture.
    const PATCH: usize = 4;
    const GRID: usize = SIDE / Self::PATCH;
    /// Row and column of the query patch: on the red disc.
    const QUERY: (usize, usize) = (scene::RED.0 as usize / Self::PATCH, scene::RED.1 as usize / Self::PATCH);

    /// Seeded random numbers of variance 1/3.
    fn random<const D: usize>(&self, shape: [usize; D], seed: u64) -> Tensor<D> {
        self.tensor(scene::noise(shape.iter().product(), seed), shape)
    }

    fn tensor<const D: usize>(&self, values: Vec<f32>, shape: [usize; D]) -> Tensor<D> {
        Tensor::from_data(TensorData::new(values, shape), &self.device)
    }

    /// `[1, N, D]`: the patches of a picture, row by row, each through the same random projection.
    fn tokens(&self, picture: &Picture, width: usize) -> Tensor<3> {
        let side = Self::PATCH;
        let numbers = 3 * side * side;
        let (down, right) = (picture.rows / side, picture.columns / side);
        let mut patches = Vec::with_capacity(down * right * numbers);
        for patch in 0..down * right {
            for place in 0..side * side {
                let (row, column) = (patch / right * side + place / side, patch % right * side + place % side);
                patches.extend(picture.pixel(row, column).map(|value| value - 0.5));
            }
        }
        let patches = self.tensor(patches, [1, down * right, numbers]);
        // the norm of a token is then about four times that of its patch, large enough for peaked attention
        let projection = self.random([1, numbers, width], 11).mul_scalar(4.0 * (3.0 / width as f64).sqrt());
        patches.matmul(projection)
    }

    /// `[1, C, H, W]`: the colours of the picture through a random projection, pixel by pixel.
    fn features(&self, channels: usize) -> Tensor<4> {
        let pixels = self.tensor(self.picture.planes.clone(), [1, 3, SIDE * SIDE]).sub_scalar(0.5).mul_scalar(4.0);
        self.random([1, channels, 3], 12).matmul(pixels).reshape([1, channels, SIDE, SIDE])
    }

    /// The median time of a few unrecorded runs, and the weights of a recorded one.
    fn watch<const D: usize, const W: usize>(
        &self,
        run: impl Fn(&mut Pass) -> Attended<D, W>,
    ) -> (Duration, Tensor<W>) {
        const RUNS: usize = 5;
        let mut times: Vec<_> = (0..=RUNS)
            .map(|_| {
                let start = Instant::now();
                let attended = run(&mut Pass::silent());
                self.device.sync().expect("the device synchronises");
                drop(attended);
                start.elapsed()
            })
            // the first run is a warm-up
            .skip(1)
            .collect();
        times.sort();
        let weights = run(&mut Pass::recording()).weights.expect("a recording pass forms the weights");
        (times[RUNS / 2], weights)
    }
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("the data was converted to f32")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operators::OPERATORS;

    #[test]
    fn every_operator_has_a_demonstration() {
        for operator in OPERATORS {
            assert!(ENTRIES.iter().any(|entry| entry.operator == operator.name), "{}", operator.name);
        }
        assert!(ENTRIES.iter().all(|entry| OPERATORS.iter().any(|operator| operator.name == entry.operator)));
    }

    #[test]
    fn one_red_patch_looks_at_the_other_disc_more_than_at_the_wall() {
        let context = GalleryContext { device: regard::device::cpu(), picture: scene::picture() };
        for run in [global::dot_product, global::gaussian, global::embedded_gaussian] {
            let heat = run(&context).heat;
            let at = |row: usize, column: usize| heat.values[row / 4 * heat.columns + column / 4];
            assert!(at(14, 50) > 2.0 * at(2, 2), "{} at the disc, {} at the wall", at(14, 50), at(2, 2));
        }
    }
}
