//! The command line as its users meet it. One binary for all files: linking the program again for each takes longer than
//! running them.

mod analyse;
mod ask;
mod clips;
mod command_line;
mod common;
mod data;
mod detect;
mod embed_text;
#[cfg(feature = "mpi")]
mod ranks;
#[cfg(unix)]
mod serve;
mod train;
mod translate;
mod zoo;
