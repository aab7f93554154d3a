//! The report of a training run.

use super::classes;
use super::figure::{Figure as _, Line, Lines, Scale, Stroke};
use super::page::{Page, Picture, Section};
use super::table::Table;
use crate::evaluate::{EpochRecord, Evaluation, History, StepRecord};

/// Everything that is known of a run.
#[derive(Clone, Debug, Default)]
pub struct RunReport {
    pub title: String,
    /// What was typed.
    pub command: String,
    pub seed: u64,
    /// Of the program, if it is known.
    pub commit: Option<String>,
    /// The recipe with every value filled in.
    pub recipe: String,
    /// What else is worth knowing: the model, its parameters, the data.
    pub facts: Vec<(String, String)>,
    pub history: History,
    /// Names of the classes.
    pub classes: Vec<String>,
    /// The test of the best checkpoint.
    pub evaluation: Option<Evaluation>,
    pub pictures: Vec<Picture>,
}

impl RunReport {
    /// `REPORT.html`.
    #[must_use]
    pub fn html(&self) -> String {
        Page::new(&self.title)
            .lead(self.lead())
            .section(Section::new("numbers").facts(self.numbers()))
            .section(self.curves())
            .section(Section::new("pictures").pictures(self.pictures.clone()))
            .section(self.answers())
            .section(self.epochs())
            .section(self.origin())
            .html()
    }

    /// The figures as files of their own: names and contents.
    #[must_use]
    pub fn figures(&self) -> Vec<(&'static str, String)> {
        let mut figures = vec![
            ("loss.svg", self.loss().svg()),
            ("accuracy.svg", self.accuracy().svg()),
            ("rate.svg", self.by_step("learning rate", "rate", Stroke::Strong, |step| step.rate).svg()),
        ];
        if let Some(Evaluation { confusion, calibration, .. }) = &self.evaluation {
            figures.push(("confusion.svg", classes::confusion(confusion, &self.classes).svg()));
            figures.push(("calibration.svg", classes::calibration(calibration).svg()));
        }
        figures
    }

    fn lead(&self) -> String {
        match (self.history.best(), self.history.steps.last()) {
            (Some(best), _) => format!("{} of the test pictures right after epoch {}", percent(best.top1), best.epoch),
            (None, Some(step)) => format!("{} steps, no test so far", step.step),
            (None, None) => "nothing was trained so far".into(),
        }
    }

    fn numbers(&self) -> Vec<(String, String)> {
        let mut facts = Vec::new();
        let mut fact = |name: &str, value: String| facts.push((name.to_string(), value));
        if let Some(best) = self.history.best() {
            fact("best top-1", format!("{}, epoch {}", percent(best.top1), best.epoch));
        }
        if let Some(last) = self.history.epochs.last() {
            fact("last top-1", percent(last.top1));
            fact("last top-5", percent(last.top5));
            fact("last test loss", loss(last.test_loss));
            fact("last training loss", loss(last.train_loss));
            fact("epochs", self.history.epochs.len().to_string());
        }
        if let Some(last) = self.history.steps.last() {
            fact("steps", last.step.to_string());
        }
        if let Some(evaluation) = &self.evaluation {
            fact("calibration error", percent(evaluation.calibration.error()));
        }
        let seconds = self.history.epochs.iter().map(|epoch| epoch.seconds).filter(|seconds| seconds.is_finite());
        if !self.history.epochs.is_empty() {
            fact("time", duration(seconds.sum()));
        }
        let speeds = self.history.steps.iter().map(|step| step.pictures_per_second).filter(|speed| speed.is_finite());
        if let Some(speed) = median(speeds.collect()) {
            fact("training speed", format!("{speed:.1} pictures/s"));
        }
        facts
    }

    fn curves(&self) -> Section {
        let section = Section::new("curves").figure(&self.loss()).figure(&self.accuracy());
        if self.history.steps.is_empty() {
            return section;
        }
        section
            .figure(&self.by_step("learning rate", "rate", Stroke::Strong, |step| step.rate))
            .figure(&self.by_step("length of the gradient", "norm", Stroke::Faint, |step| step.gradient_norm))
            .figure(&self.by_step("training speed", "pictures/s", Stroke::Faint, |step| step.pictures_per_second))
    }

    fn loss(&self) -> Lines {
        let steps: Vec<[f64; 2]> = self.history.steps.iter().map(|step| [step.step as f64, step.loss]).collect();
        let lines = vec![
            Line { name: "training, every step".into(), points: steps, stroke: Stroke::Faint },
            self.by_epoch("training, mean of an epoch", |epoch| epoch.train_loss),
            self.by_epoch("test", |epoch| epoch.test_loss),
        ];
        Lines { title: "loss".into(), x: "step".into(), y: "loss".into(), scale: Scale::Logarithmic, lines }
    }

    fn accuracy(&self) -> Lines {
        let lines = vec![
            self.by_epoch("top-1", |epoch| 100.0 * epoch.top1),
            self.by_epoch("top-5", |epoch| 100.0 * epoch.top5),
        ];
        Lines { title: "test accuracy".into(), x: "step".into(), y: "% right".into(), scale: Scale::Linear, lines }
    }

    fn by_epoch(&self, name: &str, value: impl Fn(&EpochRecord) -> f64) -> Line {
        let points = self.history.epochs.iter().map(|epoch| [epoch.step as f64, value(epoch)]).collect();
        Line { name: name.into(), points, stroke: Stroke::Strong }
    }

    /// A figure of one curve.
    fn by_step(&self, title: &str, y: &str, stroke: Stroke, value: impl Fn(&StepRecord) -> f64) -> Lines {
        let points = self.history.steps.iter().map(|step| [step.step as f64, value(step)]).collect();
        let lines = vec![Line { name: String::new(), points, stroke }];
        Lines { title: title.into(), x: "step".into(), y: y.into(), scale: Scale::Linear, lines }
    }

    fn answers(&self) -> Section {
        let section = Section::new("answers");
        let Some(Evaluation { confusion, calibration, .. }) = &self.evaluation else { return section };
        section
            .figure(&classes::confusion(confusion, &self.classes))
            .table(classes::table(confusion, &self.classes))
            .figure(&classes::calibration(calibration))
    }

    fn epochs(&self) -> Section {
        let section = Section::new("epochs");
        if self.history.epochs.is_empty() {
            return section;
        }
        let names = ["epoch", "step", "training loss", "test loss", "top-1", "top-5", "seconds"];
        let mut table = names.into_iter().fold(Table::new(), Table::numbers);
        for epoch in &self.history.epochs {
            table.row([
                epoch.epoch.to_string(),
                epoch.step.to_string(),
                loss(epoch.train_loss),
                loss(epoch.test_loss),
                percent(epoch.top1),
                percent(epoch.top5),
                format!("{:.1}", epoch.seconds),
            ]);
        }
        section.table(table)
    }

    fn origin(&self) -> Section {
        let commit = self.commit.clone().unwrap_or_else(|| "unknown".into());
        let mut facts = vec![("seed".into(), self.seed.to_string()), ("commit".into(), commit)];
        facts.extend(self.facts.iter().cloned());
        let section = Section::new("what was run").code(&self.command).facts(facts);
        if self.recipe.is_empty() { section } else { section.folded("the recipe", &self.recipe) }
    }
}

fn percent(share: f64) -> String {
    if share.is_finite() { format!("{:.2} %", 100.0 * share) } else { "not measured".into() }
}

fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "not finite".into() }
}

/// Hours, minutes and seconds, as far as they are needed.
fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    let (hours, minutes, rest) = (whole / 3600, whole / 60 % 60, whole % 60);
    match (hours, minutes) {
        (0, 0) => format!("{seconds:.1} s"),
        (0, _) => format!("{minutes} min {rest} s"),
        _ => format!("{hours} h {minutes} min"),
    }
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests;
