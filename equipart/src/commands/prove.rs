//! `prove`: proves that a layout equals the unsplit oracle, on a panel of small models, on one configuration,
//! or on drawn cases.
use crate::cli::args::{RankedArgs, TableArgs, device, dtype, note};
use crate::cli::pictures::{NamedModel, PicturesArgs, refuse};
use crate::cli::processes;
use crate::cli::run::Run;
use crate::terminal::out;
use crate::views::Views;
use clap::Args;
use draw::details;
use models::{Config, Model, names};
use parallel::dtype::DtypeName;
use parallel::{Layout, Network, Result, bail};
use run::device::DeviceName;
use run::prove::{ProofRun, ProvenModel, draw, fresh_key, on_card, replay};
use std::path::PathBuf;
use tensor::Key;

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
    pub(crate) ranks: RankedArgs,
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
}

/// Flags of `prove` for drawn or saved cases.
#[derive(Args, Debug)]
pub(crate) struct CasesArgs {
    /// Prove this number of drawn cases: models, batches and, without --layout, layouts; a failing case is
    /// shrunk to the smallest
    #[arg(long, value_name = "N", conflicts_with_all = ["config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(crate) cases: Option<usize>,
    /// Draw cases for this number of minutes; with --cases, until either limit is reached
    #[arg(long, value_name = "M", conflicts_with_all = ["config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(crate) minutes: Option<f64>,
    /// Prove the cases of a file, or of standard input (-), one line of JSON each
    #[arg(long, value_name = "FILE|-",
        conflicts_with_all = ["cases", "minutes", "layout", "key", "config", "dump", "model", "hidden", "limit", "split", "schedule"])]
    pub(crate) case: Option<PathBuf>,
}

impl Run for ProveArgs {
    const BY_PROCESSES: bool = true;

    fn run(self, views: &Views) -> Result<bool> {
        let a = self;
        let layout = a.table.on(a.layout.unwrap_or_default())?.limited(a.ranks.each.limit);
        let all_here = [
            ("device cuda", a.device != DeviceName::Cpu),
            ("cases", a.cases.cases.is_some()),
            ("minutes", a.cases.minutes.is_some()),
            ("case", a.cases.case.is_some()),
            ("dump", a.dump.is_some()),
        ];
        let cases = &a.cases;
        let is_drawn = cases.cases.is_some() || cases.minutes.is_some() || cases.case.is_some();
        // before ranks join, as they compare the files that they have read
        let model = if a.device == DeviceName::Cpu && !is_drawn { a.model()? } else { None };
        let network = a.ranks.join(Network::default(), &[layout], DeviceName::Cpu, &all_here)?;
        if a.device != DeviceName::Cpu {
            a.fits_card()?;
        } else if let Some(number) = a.number {
            bail!(
                "--dtype is {number}; a proof runs in a finite field, where nothing rounds; leave --dtype out"
            );
        }
        views.open("this run")?;
        let unsplit = a.layout.unwrap_or_default();
        match &a.cases {
            _ if a.device != DeviceName::Cpu => on_card(&unsplit, &a.numbers(), a.device, views),
            CasesArgs { case: Some(file), .. } => replay(file, views),
            CasesArgs { cases: None, minutes: None, .. } => a.prove((layout, model), network, views),
            CasesArgs { cases, minutes, .. } => {
                draw((a.layout, a.key.unwrap_or_else(fresh_key)), (*cases, *minutes), views)
            }
        }
    }
}

impl ProveArgs {
    /// Proves the layout on the panel, or on one model.
    fn prove(
        &self,
        (layout, model): (Layout, Option<ProvenModel>),
        network: Network,
        views: &Views,
    ) -> Result<bool> {
        let drawn = || network.processes.as_ref().map_or_else(fresh_key, |all| Key(all.number()));
        let mut proof = ProofRun { layout, key: self.key.unwrap_or_else(drawn), keys: self.keys, network };
        proof.check()?;
        let Some(model) = model else {
            if self.ranks.each.split.is_some() {
                bail!("--split needs one model, but the panel has many; give --config or --model");
            }
            note(&[layout], None);
            views.details(|observer| details::layout(&layout, observer))?;
            return proof.on_panel(views);
        };
        proof.layout = self.ranks.each.of(layout, &model.design)?;
        views.details(|observer| details::layout(&proof.layout, observer))?;
        proof.on_model(&model, views)
    }
    /// Returns the model of the flags, if one is given.
    fn model(&self) -> Result<Option<ProvenModel>> {
        if self.model != Some(NamedModel::Mlp) {
            self.pictures.unused()?;
        }
        let of_text = |config: &Config| (config.shape.into(), names::entries(config));
        let (design, entries) = match (&self.model, &self.config) {
            (Some(NamedModel::Mlp), _) => {
                let model = self.pictures.fresh(None, 0);
                (model.design.clone(), model.entries())
            }
            (Some(NamedModel::Moe), _) => of_text(&Model::moe()?.config),
            (None, Some(file)) => of_text(&Config::read(file)?),
            (None, None) => return Ok(None),
        };
        let has_image = self.config.is_some() && self.dump.is_none() && self.ranks.each.split.is_none();
        Ok(Some(ProvenModel { design, entries, dump: self.dump.clone(), has_image }))
    }
    /// The dtypes of a proof on a card.
    fn numbers(&self) -> Vec<DtypeName> {
        self.number.map_or(vec![DtypeName::Bf16, DtypeName::F32], |number| vec![number])
    }
    /// Checks that a card can prove what flags ask for, and opens it.
    fn fits_card(&self) -> Result<()> {
        let a = self;
        let of_a_model = [
            ("key", a.key.is_some()),
            ("keys", a.keys.is_some()),
            ("config", a.config.is_some()),
            ("model", a.model.is_some()),
            ("hidden", a.pictures.hidden.is_some()),
            ("schedule", a.table.schedule.is_some()),
            ("split", a.ranks.each.split.is_some()),
            ("memory-limit", a.ranks.each.limit.is_some()),
            ("cases", a.cases.cases.is_some()),
            ("minutes", a.cases.minutes.is_some()),
            ("case", a.cases.case.is_some()),
        ];
        refuse(&of_a_model, "proofs in the field; --device cuda")?;
        a.device.open(a.layout.unwrap_or_default().ranks(), &out::note).map(drop)
    }
}
