//! `regard table`: the papers' numbers next to ours.

use regard::analyse::papers::{Cell, PaperRow, Table, Verdict};
use std::io::Write;

use crate::failure::Failure;
use crate::models::print_json;

/// Compare a paper's parameters and FLOPs with our own counts
#[derive(Debug, clap::Args)]
pub struct Args {
    paper: Paper,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Paper {
    /// Exploring Self-attention for Image Recognition, 2020
    San,
    /// Stand-Alone Self-Attention in Vision Models, 2019
    Sasa,
    /// ViT, DeiT, ResNet and RegNet
    Vit,
    /// RetinaNet with convolution and attention in backbone and heads, from the paper of `sasa`
    Retinanet,
    /// End-to-End Object Detection with Transformers, 2020
    Detr,
    /// Is Space-Time Attention All You Need for Video Understanding?, 2021
    Timesformer,
    /// Non-local Neural Networks, 2018: C2D and I3D
    NonLocal,
}

pub fn run(args: &Args, out: &mut impl Write) -> Result<(), Failure> {
    let table = match args.paper {
        Paper::San => Table::San,
        Paper::Sasa => Table::Sasa,
        Paper::Vit => Table::Vit,
        Paper::Retinanet => Table::Retinanet,
        Paper::Detr => Table::Detr,
        Paper::Timesformer => Table::Timesformer,
        Paper::NonLocal => Table::NonLocal,
    };
    let rows = table.rows()?;
    if args.json {
        return print_json(&rows, out);
    }
    writeln!(out, "{:<36}{:>9}{:>14}  {:<11}{:>7}{:>16}", "", "paper M", "ours", "", "paper G", "ours")?;
    for PaperRow { name, parameters, flops, multiply_adds, note } in &rows {
        // published tables give whole millions for transformers
        let decimals = match args.paper {
            Paper::Vit | Paper::Detr => 0,
            Paper::San | Paper::Sasa | Paper::Retinanet | Paper::Timesformer => 1,
            Paper::NonLocal => 2,
        };
        write!(out, "{name:<36}{:>9.decimals$}{:>14}  {:<11}", parameters.printed, parameters.ours, word(*parameters))?;
        if let Some(flops) = flops {
            write!(out, "{:>7.1}{:>16}  {}", flops.printed, flops.ours, word(*flops))?;
        }
        if let Some(multiply_adds) = multiply_adds {
            write!(out, "{:>7}{multiply_adds:>16}", "-")?;
        }
        writeln!(out)?;
        if !note.is_empty() {
            writeln!(out, "  {note}")?;
        }
    }
    let convention = match args.paper {
        Paper::San => "multiply-adds with biases, plus norms, activations, pools and relations; rounded twice",
        Paper::Sasa => "two for a multiply-add, plus element-wise work; six value maps in the attention stem",
        Paper::Vit => "multiply-adds of the patches only, without class token and head",
        Paper::Retinanet => {
            "two for a multiply-add, plus softmax and relative positions, at 640 x 640; 6 anchors, 90 classes"
        }
        Paper::Detr => {
            "multiply-adds, plus one for each element of sums and activations and seven for one of a softmax; \
             65% pictures of 800x1066 and 35% of 800x1199 in place of the first 100 of val2017; \
             of DETR the parameters that are trained, of Faster R-CNN all"
        }
        Paper::Timesformer => {
            "ViT-B/16 over 8 frames of 224 x 224, 174 classes; multiply-adds of one crop, which the table does not print: \
             three of them with divided attention are the 0.59 TFLOPs of the paper"
        }
        Paper::NonLocal => {
            "ResNet-50 over 8 frames of 224 x 224, 400 classes; parameters of facebookresearch/SlowFast; multiply-adds of one \
             crop: thirty of I3D at 256 x 256 are the 1.11 TFLOPs in the paper of TimeSformer"
        }
    };
    writeln!(out, "\ncounted as the paper does: {convention}")?;
    let cells = rows.iter().flat_map(|row| [Some(row.parameters), row.flops]).flatten();
    let (agree, all) =
        cells.fold((0, 0), |(agree, all), cell| (agree + usize::from(cell.verdict == Verdict::Agrees), all + 1));
    writeln!(out, "{agree} of {all} cells agree as printed")?;
    Ok(())
}

fn word(cell: Cell) -> &'static str {
    match cell.verdict {
        Verdict::Agrees => "agrees",
        Verdict::Truncated => "truncated",
        Verdict::Differs => "differs",
    }
}
