//! `regard`: the command line of the library. Arguments become a plan before anything runs.

mod analyse;
mod answerer;
mod args;
mod ask;
mod candidates;
mod clip_files;
mod compare;
mod data;
mod denoise;
mod detect;
mod embed_text;
mod eval;
mod explain;
mod export;
mod failure;
mod files;
mod fill;
mod findings;
mod gallery;
mod model;
mod models;
mod operators;
mod plan;
mod predict;
mod quickstart;
mod recipes;
mod run;
mod sentences;
mod serve;
mod subject;
mod table;
mod train;
mod translate;
mod video;

use clap::Parser as _;
use std::io::stdout;
use std::process::ExitCode;

use failure::Failure;

fn main() -> ExitCode {
    // loading a model and every training step free memory that the next one needs
    regard::device::keep_memory();
    let args = args::Args::parse();
    if args.is_long_running() {
        regard::device::large_pages();
    }
    let verbose = args.verbose();
    let is_server = args.is_server();
    let run = || args.into_plan().and_then(|plan| plan.run(&mut stdout().lock()));
    // on a thread of the pool: a kernel called from outside has to wake and wait for another thread each time;
    // not a server, which has its own pool and would block that thread until it ends
    let result = if is_server { Failure::of_panics(run) } else { rayon::scope(|_| Failure::of_panics(run)) };
    match result {
        // a closed pipe is not an error
        Ok(()) | Err(Failure::Pipe) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(verbose);
            ExitCode::from(failure.status())
        }
    }
}
