//! Shows the progress of a run: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use regard::evaluate::{TaskInfo, Values};
use regard::report::Findings;
use regard::tasks::AnyRecipe;
use regard::train::TrainEvent;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::interrupt::Interrupt;
use super::report::write_report;
use crate::failure::Failure;

/// Time between lines without a terminal.
const PERIOD: Duration = Duration::from_secs(15);

/// Prints progress, and writes the report during the run.
#[derive(Debug)]
pub struct ProgressReporter {
    recipe: AnyRecipe,
    folder: PathBuf,
    task: TaskInfo,
    interrupt: Interrupt,
    bar: Option<ProgressBar>,
    steps: usize,
    last: Instant,
    /// The last value of the deciding metric.
    primary: String,
    facts: Vec<(String, String)>,
    /// The first error while printing or reporting; it does not stop the run.
    problem: Option<Failure>,
}

impl ProgressReporter {
    pub fn new(recipe: &AnyRecipe, folder: &Path, interrupt: Interrupt) -> Self {
        let bar = stderr().is_terminal().then(|| ProgressBar::new(1));
        if let Some(bar) = &bar {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta} left");
            bar.set_style(style.expect("the template is fixed"));
        }
        Self {
            recipe: recipe.clone(),
            folder: folder.into(),
            task: recipe.info(),
            interrupt,
            bar,
            steps: 0,
            last: Instant::now(),
            primary: String::new(),
            facts: Vec::new(),
            problem: None,
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // stderr is closed: the run continues
            None => drop(writeln!(stderr(), "{text}")),
        }
    }

    /// Writes the report so far; an error is reported at the end.
    fn report(&mut self, tested: Option<(&regard::evaluate::TestRecord, &Findings)>) {
        if let Err(failure) = write_report(&self.folder, &self.recipe, &self.facts, tested) {
            self.problem = Some(failure);
        }
    }

    /// Shows an event; returns whether the run should continue.
    pub fn show(&mut self, event: &TrainEvent) -> bool {
        match event {
            TrainEvent::Begin { step, steps, epoch_steps, learning, note, facts } => {
                self.steps = *steps;
                self.facts.clone_from(facts);
                if let Some(bar) = &self.bar {
                    bar.set_length(*steps as u64);
                    bar.set_position(*step as u64);
                    bar.reset_eta();
                }
                if let Some(note) = note {
                    self.line(&format!("note: {note}"));
                }
                self.line(&format!("learning    {learning} parameters in {steps} steps, {epoch_steps} per epoch"));
                if let Some((_, memory)) = facts.iter().find(|(name, _)| name == "memory") {
                    self.line(&format!("memory      {memory}"));
                }
                if *step > 0 {
                    self.line(&format!("resuming    after step {step}"));
                }
            }
            TrainEvent::Step(record) => {
                let parts: Vec<String> = record.parts.iter().map(|(name, part)| format!(" {name} {part:.4}")).collect();
                let parts = parts.concat();
                let text = format!(
                    "epoch {}/{} loss {:.4}{parts}{} {:.0} {}/s",
                    record.epoch,
                    self.recipe.common().epochs,
                    record.loss,
                    self.primary,
                    record.items_per_second,
                    self.task.items
                );
                match &self.bar {
                    Some(bar) => {
                        bar.set_position(record.step as u64);
                        bar.set_message(text);
                    }
                    None if self.last.elapsed() > PERIOD => {
                        self.last = Instant::now();
                        self.line(&format!("step {}/{} {text}", record.step, self.steps));
                    }
                    None => {}
                }
            }
            TrainEvent::Measuring { done, of } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("evaluating {done} of {of}"));
                }
            }
            TrainEvent::Epoch { record, best } => {
                let primary = self.task.primary();
                self.primary = format!(" {} {}", primary.label, primary.show(record.metric(&primary.name)));
                self.line(&format!(
                    "epoch {:<4} training loss {:.4}  validation: {}{}  {:.0} s",
                    record.epoch,
                    record.train_loss,
                    self.values(&record.metrics),
                    if *best { " best" } else { "" },
                    record.seconds
                ));
            }
            TrainEvent::Averaged { values, best } => {
                let best = if *best { " best" } else { "" };
                self.line(&format!("mean of the last epochs  validation: {}{best}", self.values(values)));
            }
            TrainEvent::Saved { .. } => self.report(None),
            TrainEvent::Tested { record, findings } => {
                self.line(&format!("test        {}", self.values(&record.metrics)));
                self.report(Some((*record, *findings)));
            }
        }
        !self.interrupt.is_pressed()
    }

    fn values(&self, values: &Values) -> String {
        self.task.show(values)
    }

    /// Removes the bar; returns the error, if there was one.
    pub fn finish(self) -> Option<Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.problem
    }
}
