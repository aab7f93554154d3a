//! The pictures of an evaluation.

use burn::tensor::{Device, Tensor};
use indicatif::{ProgressBar, ProgressStyle};
use rayon::prelude::*;
use regard::data::{Dataset, Part, dataset};
use std::io::{Write as _, stderr};
use std::sync::Arc;

use crate::failure::Failure;
use crate::model::{Classifier, batch, ready};

#[derive(Debug, clap::Args)]
pub struct DataArgs {
    /// `fashion`; a folder with a folder for each class (in the order of their names) or with a `labels.csv` of
    /// `file,label`; or the files of a public dataset. By default a run's own data; a run of another task takes what its recipe
    /// does
    #[arg(long, value_name = "NAME|DIR")]
    data: Option<String>,

    /// Which part; by default test, or all of data without parts unless a run is evaluated
    #[arg(long, value_name = "PART")]
    part: Option<PartName>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PartName {
    Train,
    Validation,
    Test,
    All,
}

/// An open dataset.
#[derive(Debug)]
pub struct Pictures {
    source: String,
    dataset: Arc<dyn Dataset>,
}

impl DataArgs {
    /// The requested data, or the run's own.
    pub fn data(&self, own: Option<String>) -> Result<String, Failure> {
        self.data.clone().or(own).ok_or_else(|| {
            Failure::input("no data", "`--data fashion`, or a folder with a folder for each class; a run has its own")
        })
    }

    /// The part for the evaluation of a run.
    pub const fn part(&self) -> Part {
        match self.part {
            Some(PartName::Train) => Part::Train,
            Some(PartName::Validation) => Part::Validation,
            Some(PartName::Test) | None => Part::Test,
            Some(PartName::All) => Part::All,
        }
    }

    /// `trained`: a model comes from a run, which may have been trained on all but the test part of this data.
    pub fn open(&self, own: Option<String>, trained: bool) -> Result<Pictures, Failure> {
        let data = self.data(own)?;
        let layout = "it needs a folder for each class, or a labels.csv of `file,label`";
        let part = match self.part {
            Some(_) => self.part(),
            None if trained => Part::Test,
            None => {
                let has_parts = dataset::has_parts(&data).map_err(|error| Failure::input(error, layout))?;
                if has_parts { Part::Test } else { Part::All }
            }
        };
        let dataset = dataset::open(&data, part).map_err(|error| Failure::input(error, layout))?;
        if dataset.is_empty() {
            return Err(Failure::input(
                format!("no pictures in the part `{part:?}` of `{data}`").to_lowercase(),
                "`--part all` takes all there are",
            ));
        }
        Ok(Pictures { source: data, dataset })
    }
}

impl Pictures {
    pub fn len(&self) -> usize {
        self.dataset.len()
    }

    pub fn classes(&self) -> &[String] {
        self.dataset.classes()
    }

    /// Passes every readable picture to `see`, in batches with the labels of the data; names and counts the others.
    ///
    /// `see` returns the text of the progress bar.
    pub fn visit(
        &self,
        model: &Classifier,
        size: usize,
        device: &Device,
        mut see: impl FnMut(Tensor<4>, &[usize]) -> Result<String, Failure>,
    ) -> Result<usize, Failure> {
        let bar = ProgressBar::new(self.len() as u64);
        bar.set_style(
            ProgressStyle::with_template("{pos} of {len} {wide_bar} {per_sec} {eta} {msg}")
                .expect("the template is fixed"),
        );
        let mut unreadable = 0;
        let indices: Vec<usize> = (0..self.len()).collect();
        for indices in indices.chunks(size) {
            let read = |index: &usize| ready(&self.dataset.picture(*index)?, &model.preprocess, &model.config);
            let read: Vec<Result<Vec<f32>, regard::Error>> = indices.par_iter().map(read).collect();
            let (mut pictures, mut labels) = (Vec::new(), Vec::new());
            for (picture, index) in read.into_iter().zip(indices) {
                match picture {
                    Ok(picture) => {
                        pictures.push(picture);
                        labels.push(self.dataset.label(*index));
                    }
                    Err(error) => {
                        unreadable += 1;
                        bar.suspend(|| writeln!(stderr(), "error: {error}"))?;
                    }
                }
            }
            if !pictures.is_empty() {
                bar.set_message(see(batch(&pictures, &model.config, device), &labels)?);
            }
            bar.inc(indices.len() as u64);
        }
        bar.finish_and_clear();
        if unreadable == self.len() {
            return Err(Failure::input(
                format!("no picture of `{}` could be read", self.source),
                "each is named above",
            ));
        }
        Ok(unreadable)
    }
}

#[cfg(test)]
mod tests;
