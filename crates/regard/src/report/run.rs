//! The report of a training run, with the metrics of its task.

use super::figure::{Figure as _, Line, Lines, Scale, Stroke};
use super::findings::Findings;
use super::page::{Page, PageSection};
use super::table::Table;
use crate::evaluate::{EpochRecord, History, Metric, StepRecord, TaskInfo, TestRecord, Unit};

/// The metric that is drawn together with the training loss.
const LOSS: &str = "loss";

/// The data of a report.
#[derive(Clone, Debug)]
pub struct RunReport {
    pub title: String,
    /// The command line.
    pub command: String,
    pub seed: u64,
    /// Commit of the program, if known.
    pub commit: Option<String>,
    /// The complete recipe.
    pub recipe: String,
    /// Further facts: the model, its parameters, the data.
    pub facts: Vec<(String, String)>,
    /// The metrics, and which one decides.
    pub task: TaskInfo,
    pub history: History,
    /// The results of the best weights on the test part.
    pub findings: Findings,
}

impl RunReport {
    /// `REPORT.html`.
    #[must_use]
    pub fn html(&self) -> String {
        Page::new(&self.title)
            .lead(self.lead())
            .section(PageSection::new("numbers").facts(self.numbers()))
            .section(self.curves())
            .section(self.answers())
            .section(self.epochs())
            .section(self.origin())
            .html()
    }

    /// The figures as separate files: names and contents.
    #[must_use]
    pub fn figures(&self) -> Vec<(String, String)> {
        let mut figures = vec![
            ("loss.svg".to_string(), self.loss().svg()),
            ("rate.svg".to_string(), self.by_step("learning rate", "rate", Stroke::Strong, |step| step.rate).svg()),
        ];
        figures.extend(self.metrics().into_iter().map(|(name, lines)| (name, lines.svg())));
        figures.extend(self.findings.figures.iter().map(|(name, figure)| ((*name).to_string(), figure.svg())));
        figures
    }

    fn lead(&self) -> String {
        let primary = self.task.primary();
        match (&self.history.test, self.history.best(primary), self.history.steps.last()) {
            (Some(test), ..) => {
                let value = primary.show(test.metric(&primary.name));
                format!("{} {value} on the test part, with the weights of epoch {}", primary.label, test.epoch)
            }
            (None, Some(best), _) => {
                let value = primary.show(best.metric(&primary.name));
                format!("{} {value} on the validation part after epoch {}", primary.label, best.epoch)
            }
            (None, None, Some(step)) => format!("{} steps, not measured so far", step.step),
            (None, None, None) => "nothing was trained so far".into(),
        }
    }

    fn numbers(&self) -> Vec<(String, String)> {
        let mut facts = Vec::new();
        let mut fact = |name: String, value: String| facts.push((name, value));
        let metrics = || self.task.metrics.iter();
        if let Some(TestRecord { metrics: values, .. }) = &self.history.test {
            for metric in metrics().filter(|metric| values.contains_key(metric.name.as_ref())) {
                fact(format!("test {}", metric.label), metric.show(values[metric.name.as_ref()]));
            }
        }
        let primary = self.task.primary();
        if let Some(best) = self.history.best(primary) {
            let value = primary.show(best.metric(&primary.name));
            fact(format!("best validation {}", primary.label), format!("{value}, epoch {}", best.epoch));
        }
        if let Some(last) = self.history.epochs.last() {
            for metric in metrics().filter(|metric| last.metrics.contains_key(metric.name.as_ref())) {
                fact(format!("last validation {}", metric.label), metric.show(last.metric(&metric.name)));
            }
            fact("last training loss".into(), loss(last.train_loss));
            fact("epochs".into(), self.history.epochs.len().to_string());
        }
        if let Some(last) = self.history.steps.last() {
            fact("steps".into(), last.step.to_string());
        }
        for (name, value) in &self.findings.facts {
            fact(name.clone(), value.clone());
        }
        let seconds = self.history.epochs.iter().map(|epoch| epoch.seconds).filter(|seconds| seconds.is_finite());
        if !self.history.epochs.is_empty() {
            fact("time".into(), duration(seconds.sum()));
        }
        let speeds = self.history.steps.iter().map(|step| step.items_per_second).filter(|speed| speed.is_finite());
        if let Some(speed) = median(speeds.collect()) {
            fact("training speed".into(), format!("{speed:.1} {}/s", self.task.items));
        }
        facts
    }

    fn curves(&self) -> PageSection {
        let section = PageSection::new("curves").figure(&self.loss());
        let section = self.metrics().iter().fold(section, |section, (_, lines)| section.figure(lines));
        if self.history.steps.is_empty() {
            return section;
        }
        let speed = format!("{}/s", self.task.items);
        section
            .figure(&self.by_step("learning rate", "rate", Stroke::Strong, |step| step.rate))
            .figure(&self.by_step("norm of the gradient", "norm", Stroke::Faint, |step| step.gradient_norm))
            .figure(&self.by_step("training speed", &speed, Stroke::Faint, |step| step.items_per_second))
    }

    /// The training loss, its parts, and the validation loss if there is one.
    fn loss(&self) -> Lines {
        let steps = |value: &dyn Fn(&StepRecord) -> f64| -> Vec<[f64; 2]> {
            self.history.steps.iter().map(|step| [step.step as f64, value(step)]).collect()
        };
        let mut lines = vec![
            Line { name: "training, every step".into(), points: steps(&|step| step.loss), stroke: Stroke::Faint },
            self.by_epoch("training, mean of an epoch", |epoch| epoch.train_loss),
        ];
        if self.task.metric(LOSS).is_some() {
            lines.push(self.by_epoch("validation", |epoch| epoch.metric(LOSS)));
        }
        let names = self.history.steps.last().map(|step| step.parts.keys());
        for name in names.into_iter().flatten() {
            let points = steps(&|step| step.parts.get(name).copied().unwrap_or(f64::NAN));
            lines.push(Line { name: format!("loss.{name}"), points, stroke: Stroke::Faint });
        }
        Lines { title: "loss".into(), x: "step".into(), y: "loss".into(), scale: Scale::Logarithmic, lines }
    }

    /// The curves of all other metrics with their files: percentages in one figure, other metrics in one each.
    fn metrics(&self) -> Vec<(String, Lines)> {
        let drawn = |metric: &Metric, y: String, title: String| {
            let line = self.by_epoch(&metric.label, |epoch| metric.scaled(epoch.metric(&metric.name)));
            Lines { title, x: "step".into(), y, scale: Scale::Linear, lines: vec![line] }
        };
        let mut figures: Vec<(String, Lines)> = Vec::new();
        for metric in self.task.metrics.iter().filter(|metric| metric.name != LOSS) {
            match (metric.unit, figures.iter_mut().find(|(name, _)| name == "accuracy.svg")) {
                (Unit::Percent, Some((_, figure))) => {
                    let more = drawn(metric, String::new(), String::new());
                    figure.lines.extend(more.lines);
                }
                (Unit::Percent, None) => {
                    let title = "validation".to_string();
                    figures.push(("accuracy.svg".into(), drawn(metric, "%".into(), title)));
                }
                (Unit::Number, _) => {
                    let title = format!("validation {}", metric.label);
                    figures.push((format!("{}.svg", metric.name), drawn(metric, metric.label.to_string(), title)));
                }
            }
        }
        figures
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

    fn answers(&self) -> PageSection {
        let Findings { figures, tables, .. } = &self.findings;
        let section = figures.iter().fold(PageSection::new("answers"), |section, (_, figure)| section.figure(figure));
        tables.iter().fold(section, |section, table| section.table(table.clone()))
    }

    fn epochs(&self) -> PageSection {
        let section = PageSection::new("epochs");
        if self.history.epochs.is_empty() {
            return section;
        }
        let mut table = ["epoch", "step", "training loss"].into_iter().fold(Table::new(), Table::numbers);
        for metric in self.task.metrics.iter() {
            table = table.numbers(metric.label.as_ref());
        }
        let mut table = table.numbers("seconds");
        for epoch in &self.history.epochs {
            let mut row = vec![epoch.epoch.to_string(), epoch.step.to_string(), loss(epoch.train_loss)];
            row.extend(self.task.metrics.iter().map(|metric| metric.show(epoch.metric(&metric.name))));
            row.push(format!("{:.1}", epoch.seconds));
            table.row(row);
        }
        section.table(table)
    }

    fn origin(&self) -> PageSection {
        let commit = self.commit.clone().unwrap_or_else(|| "unknown".into());
        let mut facts = vec![("seed".into(), self.seed.to_string()), ("commit".into(), commit)];
        facts.extend(self.facts.iter().cloned());
        let section = PageSection::new("what was run").code(&self.command).facts(facts);
        if self.recipe.is_empty() { section } else { section.folded("the recipe", &self.recipe) }
    }
}

fn loss(loss: f64) -> String {
    if loss.is_finite() { format!("{loss:.4}") } else { "not finite".into() }
}

/// A duration in hours, minutes and seconds.
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
