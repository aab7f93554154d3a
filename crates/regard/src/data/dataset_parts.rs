//! The three parts of a dataset of any kind.

use std::fmt::Debug;
use std::sync::Arc;

use super::dataset::{Origin, Origins, Part};
use super::detection::Issue;
use crate::Error;

/// The three parts of a dataset, and the issues found.
#[derive(Debug)]
pub struct DatasetParts<D: ?Sized> {
    pub train: Arc<D>,
    pub validation: Arc<D>,
    pub test: Arc<D>,
    pub layout: &'static str,
    pub origins: Origins,
    pub issues: Vec<Issue>,
}

impl<D: ?Sized> Clone for DatasetParts<D> {
    fn clone(&self) -> Self {
        let Self { train, validation, test, layout, origins, issues } = self;
        let [train, validation, test] = [train, validation, test].map(Arc::clone);
        Self { train, validation, test, layout, origins: origins.clone(), issues: issues.clone() }
    }
}

impl<D: ?Sized> DatasetParts<D> {
    /// The parts of an embedded dataset.
    pub(super) fn embedded(open: impl Fn(Part) -> Result<Arc<D>, Error>) -> Result<Self, Error> {
        let own = || Origin::Own("its own".into());
        Ok(Self {
            train: open(Part::Train)?,
            validation: open(Part::Validation)?,
            test: open(Part::Test)?,
            layout: "embedded",
            origins: Origins { validation: own(), test: own() },
            issues: Vec::new(),
        })
    }

    /// The parts of what files list.
    pub(super) fn listed(
        layout: &'static str,
        (origins, issues): (Origins, Vec<Issue>),
        only: impl Fn(Part) -> Arc<D>,
    ) -> Self {
        let [train, validation, test] = [Part::Train, Part::Validation, Part::Test].map(only);
        Self { train, validation, test, layout, origins, issues }
    }
}
