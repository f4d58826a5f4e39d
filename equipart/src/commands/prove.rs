//! `prove`: proves that a layout equals the unsplit oracle, on a panel of small models, on one configuration,
//! or on drawn cases.
pub(crate) mod cases;

use super::Run;
use crate::cli::args::{RanksArgs, TableArgs, device, dtype, note};
use crate::cli::pictures::{NamedModel, PicturesArgs, refuse};
use crate::cli::processes::ProcessesArgs;
use crate::cli::watch::ProgressWatch;
use crate::cli::{out, processes, show};
use crate::commands::gpu_check::{TableLine, kernels};
use cases::CasesArgs;
use clap::Args;
use layers::Shape;
use models::{Config, Model, names};
use parallel::dtype::DtypeName;
use parallel::{Layout, Network, Result, bail, budget, dump};
use prove::cases::{certify_panel, image, never_ran};
use prove::{Exact, KEYS, Keys, Subject, Verdict, certify, exact};
use run::device::{DeviceName, first_card};
use run::in_device;
use std::path::PathBuf;
use tensor::{Key, mix};

/// Prove that a layout equals the unsplit model, bit for bit, in a finite field
#[derive(Args, Debug)]
#[command(allow_negative_numbers = true, after_long_help = processes::HELP)]
pub(crate) struct ProveArgs {
    #[arg(long, help = format!("{} [default: none; with --cases drawn]", parallel::layout::grammar()))]
    pub(crate) layout: Option<Layout>,
    /// With --device cuda: only this dtype, f32 or bf16 [default: both]; without it, a proof runs in a finite
    /// field
    #[arg(long = "dtype", alias = "number", value_name = "DTYPE", value_parser = dtype())]
    pub(crate) number: Option<DtypeName>,
    /// Device of the proof: cpu, in the field; or cuda: linear layers and collectives of the layout on whole
    /// numbers, which a card adds exactly, and every kernel compared with the host's
    #[arg(long, default_value_t, value_name = "DEVICE", value_parser = device())]
    pub(crate) device: DeviceName,
    #[command(flatten)]
    pub(crate) on_ranks: RanksArgs,
    #[command(flatten)]
    pub(crate) table: TableArgs,
    /// Random key, decimal or 0x; further keys, and those of drawn cases, are hashed from it [default: a
    /// fresh one]
    #[arg(long)]
    pub(crate) key: Option<Key>,
    /// Least number of keys; each costs as much as the first and adds its exponent to the bound [default: 2];
    /// more are used until the bound is 2^-30, 64 at most
    #[arg(long, value_name = "N", conflicts_with_all = ["cases", "minutes", "case"])]
    pub(crate) keys: Option<usize>,
    /// Prove only the model of this config.json [default: a panel of small models of every family]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// With --config, a folder for the first step under the first key, as safetensors: activations,
    /// gradients, weights before and after, loss and norm²
    #[arg(long, value_name = "DIR", requires = "config")]
    pub(crate) dump: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) cases: CasesArgs,
    /// moe: the embedded model with experts; mlp: a plain classifier of 784 pixels and 10 classes [default:
    /// the model of --config]
    #[arg(long, conflicts_with_all = ["config", "dump"])]
    pub(crate) model: Option<NamedModel>,
    #[command(flatten)]
    pub(crate) pictures: PicturesArgs,
    #[command(flatten)]
    pub(crate) processes: ProcessesArgs,
}

/// Returns a key that no earlier run had.
pub(crate) fn fresh_key() -> Key {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Key(mix(now.map_or(0, |d| d.as_nanos() as u64) ^ u64::from(std::process::id())))
}

impl Run for ProveArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, json: bool) -> Result<bool> {
        let a = self;
        let layout = a.table.on(a.layout.unwrap_or_default())?.limited(a.on_ranks.limit);
        let all_here = [
            ("device cuda", a.device != DeviceName::Cpu),
            ("cases", a.cases.cases.is_some()),
            ("minutes", a.cases.minutes.is_some()),
            ("case", a.cases.case.is_some()),
            ("dump", a.dump.is_some()),
        ];
        let network =
            a.processes.join(Network::default(), (&[layout], None), a.on_ranks.split.as_ref(), &all_here)?;
        if a.device != DeviceName::Cpu {
            return on_device(&a, json);
        }
        if let Some(number) = a.number {
            bail!(
                "--dtype is {number}; a proof runs in a finite field, where nothing rounds; leave --dtype out"
            );
        }
        if let Some(equal) = cases::asked(&a, json)? {
            return Ok(equal);
        }
        let watch = ProgressWatch::spinner();
        let drawn = || network.processes.as_ref().map_or_else(fresh_key, |all| Key(all.number()));
        let key = a.key.unwrap_or_else(drawn);
        let keys = Keys::Sure(key, a.keys.unwrap_or(*KEYS.start()));
        if let Some(keys) = a.keys.filter(|keys| !(1..=*KEYS.end()).contains(keys)) {
            bail!("--keys is {keys}; it must be 1 to {}", KEYS.end());
        }
        if a.model != Some(NamedModel::Mlp) {
            a.pictures.unused()?;
        }
        let of_text = |config: &Config| (config.shape.into(), names::entries(config));
        let (model, entries) = match (&a.model, &a.config) {
            (Some(NamedModel::Mlp), _) => {
                let model = a.pictures.fresh(None, 0);
                (model.design.clone(), model.entries())
            }
            (Some(NamedModel::Moe), _) => of_text(&Model::moe()?.config),
            (None, Some(file)) => of_text(&Config::read(file)?),
            (None, None) => {
                if a.on_ranks.split.is_some() {
                    bail!("--split needs one model, but the panel has many; give --config or --model");
                }
                note(&[layout], None);
                let reported = |name: &str| watch.say(&format!("proving {name}"));
                let certificate = certify_panel(&layout, keys, (&network, &reported))?;
                watch.done();
                show::one(json, &certificate, || certificate.statement());
                return Ok(certificate.verdict.equal);
            }
        };
        let layout = a.on_ranks.of(layout, &model)?;
        layout.fits(&model)?;
        let (mut subject, mut of) = (Subject::smallest(model, &layout)?, None);
        if let Err(why) = prove::check(&subject, &layout, &network) {
            if network.processes.is_some() {
                return Err(why); // each has another idea of what is free
            }
            let (small, words) = image_of(&a, &subject, &layout).ok_or(why.clone())?;
            let words = format!("{why}. Its small image is proven instead, with all of its parts: {words}.");
            out::note(&format!("note: {words}"));
            (subject, of) = (Subject::smallest(small, &layout)?, Some(words));
            prove::check(&subject, &layout, &network)?;
        }
        a.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let verdict = certify(&subject, &layout, keys, (&network, &|what| watch.say(what)))?;
        let verdict = Verdict { never_ran: never_ran(&subject, &layout), image: of, ..verdict };
        if let Some(dir) = &a.dump {
            prove::dump(&subject, &layout, key, dir, &entries)?;
        }
        watch.done();
        Ok(tell(&verdict, json))
    }
}

/// Small image of the model of --config, if this machine lacks the memory for the model. `None` if the proof
/// fails for another reason, or if the files or stages of the model itself are requested.
fn image_of(a: &ProveArgs, subject: &Subject, layout: &Layout) -> Option<(Shape, String)> {
    let whole = a.config.is_none() || a.dump.is_some() || a.on_ranks.split.is_some();
    let shape = subject.model.shape().filter(|_| !whole)?;
    let bytes = prove::bytes(subject, layout).ok()?;
    (!budget::fits_in_free(bytes, budget::free())).then(|| image(*shape, layout))?
}

/// Prints a verdict. Returns true if all was equal.
pub(crate) fn tell(verdict: &Verdict, json: bool) -> bool {
    show::one(json, verdict, || verdict.statement());
    verdict.equal
}

/// Text below the table of a card's proof.
const STATEMENT: &str = "\
On whole numbers every sum is exact in any order: there linear layers, collectives and products equal the field's oracle, or the\n\
host's product, bit for bit. Kernels that round equal the host's in f64 to the rounding of their dtype. The layout's program itself\n\
is proven in the field, without --device.";

/// Proves on a card: on whole numbers linear layers, collectives and products are exact, and equal the
/// field's oracle bit for bit; every other kernel is compared with the host's in f64.
fn on_device(a: &ProveArgs, json: bool) -> Result<bool> {
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
        ("cases", a.cases.cases.is_some()),
        ("minutes", a.cases.minutes.is_some()),
        ("case", a.cases.case.is_some()),
    ];
    refuse(&of_a_model, "proofs in the field; --device cuda")?;
    a.device.open(layout.ranks(), &out::note)?;
    let (card, watch, mut lines) = (first_card()?, ProgressWatch::spinner(), Vec::new());
    for number in a.number.map_or(vec![DtypeName::Bf16, DtypeName::F32], |number| vec![number]) {
        let both = in_device!((a.device, number), D => exact::<D>(&layout, &|what| watch.say(what)))?;
        let line = |(what, seen): (&str, Exact)| {
            let Exact { tensors, elements, first_difference } = seen;
            let well = Some(first_difference.is_none());
            let equal = || format!("{tensors} tensors, {elements} elements equal the oracle's bit for bit");
            TableLine {
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
        out::line(&show::table(&TableLine::HEAD, lines.iter().map(TableLine::cells)).to_string());
        out::line(STATEMENT);
    });
    Ok(lines.iter().all(|line| line.well == Some(true)))
}
