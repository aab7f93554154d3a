//! What a person sees of a run: a bar on a terminal, plain lines elsewhere.

use indicatif::{ProgressBar, ProgressStyle};
use regard::train::{Event, Ranks, Recipe};
use std::io::{IsTerminal as _, Write as _, stderr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::report::write_report;
use crate::failure::Failure;

/// Ctrl-C, which ends a run after its step; pressed again, it ends the process.
///
/// A launcher may pass one press on twice, and kills by itself when it has waited long enough.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    pub fn listen(ranks: &dyn Ranks) -> Result<Self, Failure> {
        let (alone, first) = (ranks.count() == 1, ranks.rank() == 0);
        let pressed = Arc::new(AtomicBool::new(false));
        let seen = pressed.clone();
        ctrlc::set_handler(move || {
            let again = seen.swap(true, Ordering::SeqCst);
            if again && alone {
                std::process::exit(130);
            }
            // the run says more when its step is done
            if alone {
                let _ = writeln!(stderr(), "\nstopping after this step; once more ends at once");
            } else if first && !again {
                let _ = writeln!(stderr(), "stopping after the next step");
            }
        })
        .map_err(|error| Failure::ours(format!("cannot listen to ctrl-c: {error}"), "is it listened to already?"))?;
        Ok(Self(pressed))
    }

    pub fn pressed(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}

/// How often a line is written where there is no terminal.
const PERIOD: Duration = Duration::from_secs(15);

/// What is learned from, and what a right answer is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Units {
    Pictures,
    Tokens,
}

impl Units {
    const fn name(self) -> &'static str {
        match self {
            Self::Pictures => "pictures",
            Self::Tokens => "tokens",
        }
    }

    const fn right(self) -> &'static str {
        match self {
            Self::Pictures => "top-1",
            Self::Tokens => "foreseen",
        }
    }
}

/// Watches a run.
#[derive(Debug)]
pub struct Watch {
    /// A run of pictures, whose report is written as it goes.
    reported: Option<(Recipe, PathBuf)>,
    epochs: usize,
    units: Units,
    interrupt: Interrupt,
    bar: Option<ProgressBar>,
    steps: usize,
    last: Instant,
    accuracy: String,
    /// What failed while watching; it does not stop the run.
    problem: Option<Failure>,
}

impl Watch {
    pub fn new(recipe: &Recipe, folder: &Path, interrupt: Interrupt) -> Self {
        let reported = Some((recipe.clone(), folder.to_path_buf()));
        Self { reported, ..Self::of(recipe.epochs, Units::Pictures, interrupt) }
    }

    /// A watch that writes no report.
    pub fn of(epochs: usize, units: Units, interrupt: Interrupt) -> Self {
        let bar = stderr().is_terminal().then(|| ProgressBar::new(1));
        if let Some(bar) = &bar {
            let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta} left");
            bar.set_style(style.expect("the template is fixed"));
        }
        Self {
            reported: None,
            epochs,
            units,
            interrupt,
            bar,
            steps: 0,
            last: Instant::now(),
            accuracy: String::new(),
            problem: None,
        }
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            // nobody reads it: the run goes on
            None => drop(writeln!(stderr(), "{text}")),
        }
    }

    /// Shows an event; whether the run shall go on.
    pub fn tell(&mut self, event: &Event) -> bool {
        match event {
            Event::Begin { step, steps, epoch_steps, learning, note } => {
                self.steps = *steps;
                if let Some(bar) = &self.bar {
                    bar.set_length(*steps as u64);
                    bar.set_position(*step as u64);
                    bar.reset_eta();
                }
                if let Some(note) = note {
                    self.line(&format!("note: {note}"));
                }
                self.line(&format!("learning    {learning} parameters in {steps} steps, {epoch_steps} an epoch"));
                if *step > 0 {
                    self.line(&format!("goes on     after step {step}"));
                }
            }
            Event::Step(record) => {
                let text = format!(
                    "epoch {}/{} loss {:.4}{} {:.0} {}/s",
                    record.epoch,
                    self.epochs,
                    record.loss,
                    self.accuracy,
                    record.pictures_per_second,
                    self.units.name()
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
            Event::Testing { done, of } => {
                if let Some(bar) = &self.bar {
                    bar.set_message(format!("testing {done} of {of}"));
                }
            }
            Event::Epoch { record, best } => {
                let right = self.units.right();
                self.accuracy = format!(" {right} {:.2} %", 100.0 * record.top1);
                let bleu = record.bleu.map_or(String::new(), |bleu| format!("  BLEU {bleu:.2}"));
                self.line(&format!(
                    "epoch {:<4} loss {:.4}  test loss {:.4}  {right} {:.2} %{bleu}{}  {:.0} s",
                    record.epoch,
                    record.train_loss,
                    record.test_loss,
                    100.0 * record.top1,
                    if *best { " best" } else { "" },
                    record.seconds
                ));
            }
            Event::Averaged { measured, best } => {
                let bleu = measured.bleu.map_or(String::new(), |bleu| format!("  BLEU {bleu:.2}"));
                self.line(&format!(
                    "mean of the last epochs  test loss {:.4}  {} {:.2} %{bleu}{}",
                    measured.loss,
                    self.units.right(),
                    100.0 * measured.top1,
                    if *best { " best" } else { "" }
                ));
            }
            Event::Saved { .. } => {
                // a picture of a run that goes on is a convenience: what fails is told at the end
                if let Some((recipe, folder)) = &self.reported
                    && let Err(failure) = write_report(folder, recipe, &regard::device::cpu(), false)
                {
                    self.problem = Some(failure);
                }
            }
        }
        !self.interrupt.pressed()
    }

    /// Takes the bar away; what failed while watching.
    pub fn finish(self) -> Option<Failure> {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        self.problem
    }
}
