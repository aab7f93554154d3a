//! `regard denoise`: non-local means on an image file.

use burn::tensor::{Device, Tensor, TensorData};
use image::{DynamicImage, ImageFormat};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use regard::Pass;
use regard::attention::{NonLocalMeans, non_local_means_with_progress};
use std::io::{Write as _, stderr};
use std::path::PathBuf;
use std::sync::Once;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::files;

/// Remove noise from an image by non-local means
///
/// Each pixel becomes the mean of pixels with similar surroundings (Buades, Coll and Morel 2005). The weight of a pixel is exp(-d/h^2), where d is the
/// mean squared difference of the patches around both, less the noise expected in it. An alpha channel
/// is kept; of an animation only the first frame is read. Runs on the CPU.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Image to read: png, jpeg, webp, tiff, bmp or gif
    #[arg(value_name = "IN")]
    input: PathBuf,

    /// Image to write; its extension sets the format
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Standard deviation of the noise, for values from 0 to 1
    #[arg(long, value_name = "S", allow_negative_numbers = true)]
    sigma: f32,

    /// Side of the compared patches, odd
    #[arg(long, value_name = "PIXELS", default_value_t = 7)]
    patch: usize,

    /// Side of the window in which to look for similar patches, odd
    #[arg(long, value_name = "PIXELS", default_value_t = 21)]
    search: usize,

    /// h as a multiple of sigma: more is smoother
    #[arg(long, value_name = "FACTOR", default_value_t = NonLocalMeans::STRENGTH, allow_negative_numbers = true)]
    strength: f32,
}

/// The checked arguments.
#[derive(Debug)]
pub struct Plan {
    input: PathBuf,
    output: PathBuf,
    format: ImageFormat,
    options: NonLocalMeans,
}

impl Args {
    pub fn into_plan(self) -> Result<Plan, Failure> {
        let number = |name: &str, value: f32, most: f32, hint: &str| match value {
            value if (0.0..=most).contains(&value) => Ok(()),
            value => Err(Failure::input(format!("`{name}` must be from 0 to {most}, got {value}"), hint)),
        };
        let hint = "values run from 0 to 1; noise of 25 in 8-bit values is `--sigma 0.1`";
        number("--sigma", self.sigma, 1.0, hint)?;
        number("--strength", self.strength, 100.0, "0.8 is usual, more is smoother")?;
        for (name, side, usual) in [("--patch", self.patch, 7), ("--search", self.search, 21)] {
            if side % 2 == 0 {
                let hint = format!("{usual} is usual");
                return Err(Failure::input(format!("`{name}` must be odd, got {side}"), hint));
            }
        }
        let format = files::check_output(&self.output)?;
        let options =
            NonLocalMeans { patch: self.patch, search: self.search, sigma: self.sigma, h: self.strength * self.sigma };
        Ok(Plan { input: self.input, output: self.output, format, options })
    }
}

impl Plan {
    pub fn run(self, device: &Device) -> Result<(), Failure> {
        let mut image = files::read(&self.input)?;
        let (width, height) = (image.width(), image.height());
        if width.min(height) < self.options.patch as u32 {
            let (name, patch) = (self.input.display(), self.options.patch);
            return Err(Failure::input(
                format!("`{name}` is smaller than the patch: {width}x{height} pixels, `--patch` {patch}"),
                "give a smaller `--patch`, such as 3",
            ));
        }
        if image.color().has_alpha() && self.format == ImageFormat::Jpeg {
            return Err(Failure::input(
                format!("jpeg has no alpha channel, the image has one: `{}`", self.output.display()),
                "write png, webp or tiff",
            ));
        }
        let start = Instant::now();
        let options = self.options;
        let bar = Bar::new(u64::from(height));
        each_kind(&mut image, &mut |planes, channels| {
            let shape = [channels, height as usize, width as usize];
            let planes = Tensor::<3>::from_data(TensorData::new(planes, shape), device);
            let attended =
                non_local_means_with_progress(planes, &options, &mut Pass::silent(), &|rows| bar.advance(rows as u64))?;
            Ok(attended.out.into_data().convert::<f32>().try_to_vec().expect("the data was converted to f32"))
        })?;
        bar.0.finish_and_clear();
        files::write(&self.output, self.format, &image)?;
        writeln!(
            stderr(),
            "denoised {width}x{height} pixels in {:.2} s: {}",
            start.elapsed().as_secs_f32(),
            self.output.display()
        )?;
        Ok(())
    }
}

/// A progress bar that appears only on a terminal, and only if the work takes a while.
struct Bar(ProgressBar, Instant, Once);

impl Bar {
    fn new(rows: u64) -> Self {
        let style = ProgressStyle::with_template("denoising {bar:40} {percent} %, {eta} left")
            .expect("the template is well-formed");
        let bar = ProgressBar::with_draw_target(Some(rows), ProgressDrawTarget::hidden()).with_style(style);
        Self(bar, Instant::now(), Once::new())
    }

    fn advance(&self, rows: u64) {
        if self.1.elapsed() > Duration::from_millis(500) {
            self.2.call_once(|| self.0.set_draw_target(ProgressDrawTarget::stderr()));
        }
        self.0.inc(rows);
    }
}

/// A stored sample and its value from 0 to 1.
trait Sample: Copy {
    fn to_unit(self) -> f32;
    fn from_unit(value: f32) -> Self;
}

impl Sample for u8 {
    fn to_unit(self) -> f32 {
        f32::from(self) / 255.0
    }
    fn from_unit(value: f32) -> Self {
        (value * 255.0).round() as Self
    }
}

impl Sample for u16 {
    fn to_unit(self) -> f32 {
        f32::from(self) / 65535.0
    }
    fn from_unit(value: f32) -> Self {
        (value * 65535.0).round() as Self
    }
}

impl Sample for f32 {
    fn to_unit(self) -> f32 {
        self
    }
    fn from_unit(value: f32) -> Self {
        value
    }
}

/// Denoises planes `[C, H, W]`, given with their number C.
type Filter<'a> = &'a mut dyn FnMut(Vec<f32>, usize) -> Result<Vec<f32>, Failure>;

/// Runs the filter on the colours of an image of any kind.
fn each_kind(image: &mut DynamicImage, filter: Filter) -> Result<(), Failure> {
    match image {
        DynamicImage::ImageLuma8(samples) => on_samples(samples, 1, 1, filter),
        DynamicImage::ImageLumaA8(samples) => on_samples(samples, 2, 1, filter),
        DynamicImage::ImageRgb8(samples) => on_samples(samples, 3, 3, filter),
        DynamicImage::ImageRgba8(samples) => on_samples(samples, 4, 3, filter),
        DynamicImage::ImageLuma16(samples) => on_samples(samples, 1, 1, filter),
        DynamicImage::ImageLumaA16(samples) => on_samples(samples, 2, 1, filter),
        DynamicImage::ImageRgb16(samples) => on_samples(samples, 3, 3, filter),
        DynamicImage::ImageRgba16(samples) => on_samples(samples, 4, 3, filter),
        DynamicImage::ImageRgb32F(samples) => on_samples(samples, 3, 3, filter),
        DynamicImage::ImageRgba32F(samples) => on_samples(samples, 4, 3, filter),
        other => {
            let message = format!("images of kind {:?} are not supported", other.color());
            Err(Failure::input(message, "convert it to png first"))
        }
    }
}

/// Runs the filter on the first `colours` of every `stride` samples.
fn on_samples<T: Sample>(samples: &mut [T], stride: usize, colours: usize, filter: Filter) -> Result<(), Failure> {
    let pixels = samples.len() / stride;
    let plane = |colour: usize| samples[colour..].iter().step_by(stride).map(|sample| sample.to_unit());
    let planes = (0..colours).flat_map(plane).collect();
    let planes = filter(planes, colours)?;
    for (colour, plane) in planes.chunks_exact(pixels).enumerate() {
        for (sample, value) in samples[colour..].iter_mut().step_by(stride).zip(plane) {
            *sample = T::from_unit(*value);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_survive_the_way_to_floats_and_back() {
        assert!((0..=u8::MAX).all(|sample| u8::from_unit(sample.to_unit()) == sample));
        assert!((0..=u16::MAX).all(|sample| u16::from_unit(sample.to_unit()) == sample));
    }

    #[test]
    fn the_filter_sees_planes_and_never_alpha() {
        let mut samples: Vec<u8> = vec![0, 51, 102, 7, 153, 204, 255, 8];
        on_samples(&mut samples, 4, 3, &mut |planes, colours| {
            assert_eq!((planes.len(), colours), (6, 3));
            assert_eq!(planes[..2], [0.0, 0.6]);
            Ok(vec![0.2; 6])
        })
        .unwrap();
        assert_eq!(samples, [51, 51, 51, 7, 51, 51, 51, 8]);
    }
}
