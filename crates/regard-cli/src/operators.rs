//! `regard operators`: lists the attention operators.

use serde::Serialize;
use std::io::Write;

use crate::failure::Failure;

/// List the attention operators: name, paper, which keys a query attends to
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// One operator of the library.
#[derive(Debug, Serialize)]
pub struct Operator {
    /// Its name in `regard::attention`.
    pub name: &'static str,
    pub paper: &'static str,
    pub looks: &'static str,
}

/// Every operator, in the order of `regard::attention`.
pub const OPERATORS: &[Operator] = &[
    Operator { name: "dot_product", paper: "Vaswani et al. 2017", looks: "every query to every key" },
    Operator {
        name: "additive",
        paper: "Bahdanau et al. 2014",
        looks: "every query to every key, scored by a small network",
    },
    Operator {
        name: "non_local",
        paper: "Wang et al. 2018",
        looks: "every position to every position, by four affinities",
    },
    Operator { name: "local", paper: "Ramachandran et al. 2019", looks: "every pixel to the window around it" },
    Operator { name: "stem", paper: "Ramachandran et al. 2019", looks: "every pixel to its own aligned block" },
    Operator { name: "pairwise", paper: "Zhao et al. 2020", looks: "every pixel to its footprint, as a set of pairs" },
    Operator { name: "patchwise", paper: "Zhao et al. 2020", looks: "every pixel to its footprint, as one patch" },
    Operator { name: "space_time", paper: "Bertasius et al. 2021", looks: "patches of a clip, in space and in time" },
    Operator {
        name: "non_local_means",
        paper: "Buades et al. 2005",
        looks: "every pixel to pixels whose patch looks like its own",
    },
];

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    if args.json {
        let json = serde_json::to_string_pretty(OPERATORS).expect("strings serialise");
        writeln!(out, "{json}")?;
    } else {
        writeln!(out, "{:<17}{:<26}what attends to what", "operator", "paper")?;
        for Operator { name, paper, looks } in OPERATORS {
            writeln!(out, "{name:<17}{paper:<26}{looks}")?;
        }
    }
    Ok(())
}
