//! `prove --device cuda`: what a card can prove. On whole numbers linear layers, collectives and products are exact, and equal the
//! field's oracle bit for bit; every kernel besides is compared with the host's in f64.
use super::ProveArgs;
use crate::cli::pictures::refuse;
use crate::cli::watch::Watch;
use crate::cli::{out, show};
use crate::commands::gpu_check::{Line, kernels};
use crate::device::{first_card, in_device};
use parallel::Result;
use parallel::number::NumberName::{Bf16, F32};
use prove::{Exact, exact};

const STATEMENT: &str = "\
On whole numbers every sum is exact in any order: there linear layers, collectives and products equal the field's oracle, or the\n\
host's product, bit for bit. Kernels that round equal the host's in f64 to the rounding of their number. The layout's program itself\n\
is proven in the field, without --device.";

pub(crate) fn run(a: &ProveArgs, json: bool) -> Result<bool> {
    let layout = a.layout.unwrap_or_default();
    let of_a_model = [
        ("key", a.key.is_some()),
        ("keys", a.keys.is_some()),
        ("config", a.config.is_some()),
        ("model", a.model.is_some()),
        ("hidden", a.pictures.hidden.is_some()),
        ("schedule", a.table.schedule.is_some()),
        ("split", a.on_ranks.split.is_some()),
        ("memory-limit", a.on_ranks.limit.is_some()),
        (a.cases.given().unwrap_or_default(), a.cases.given().is_some()),
    ];
    refuse(&of_a_model, "proofs in the field; --device cuda")?;
    a.device.open(layout.ranks())?;
    let (card, watch, mut lines) = (first_card()?, Watch::spinner(), Vec::new());
    for number in a.number.map_or(vec![Bf16, F32], |number| vec![number]) {
        let both = in_device!((a.device, number), D => exact::<D>(&layout, &|what| watch.say(what)))?;
        let line = |(what, seen): (&str, Exact)| {
            let Exact { tensors, elements, first_difference } = seen;
            let well = Some(first_difference.is_none());
            let equal = || format!("{tensors} tensors, {elements} numbers equal the oracle's bit for bit");
            Line {
                what: format!("{what} of {layout}, {number}"),
                outcome: first_difference.unwrap_or_else(equal),
                well,
            }
        };
        let made = |(_, seen): &(&str, Exact)| seen.tensors > 0;
        lines.extend(["linear layers", "collectives"].into_iter().zip(both).filter(made).map(line));
    }
    lines.extend(kernels(&card, &watch));
    watch.done();
    show::all(json, &lines, || {
        out::line(&show::table(&Line::HEAD, lines.iter().map(Line::cells)).to_string());
        out::line(STATEMENT);
    });
    Ok(lines.iter().all(|line| line.well == Some(true)))
}
