//! `schedule --model`: what each rank would hold at most, in bytes.
use crate::cli::args::{ModelName, NumberArgs, SEQ};
use crate::cli::config;
use crate::device::in_device;
use clap::Args;
use layers::{Design, Kind};
use models::Model;
use parallel::price::HeldBytes;
use parallel::step::Plan;
use parallel::step::table::Table;
use parallel::{Batch, Layout, Pipeline, Result, Scheme, Sequence, bail};

#[derive(Args, Debug)]
pub(super) struct HeldArgs {
    /// A folder with a config.json, or embedded, or moe: of a training with AdamW, a sequence in each microbatch, what each
    /// rank holds at most is told in bytes, too
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    model: Option<ModelName>,
    /// With --model, tokens of a sequence [default: 256, or as many as the model has positions for]
    #[arg(long, requires = "model")]
    seq: Option<usize>,
    #[command(flatten)]
    number: NumberArgs,
}

impl HeldArgs {
    /// Of each rank, if there is a model.
    pub(super) fn peaks(
        &self,
        pipeline: Pipeline,
        plan: &Plan,
        table: Option<&'static Table>,
    ) -> Result<Option<Vec<usize>>> {
        let config = match &self.model {
            None => return Ok(None),
            Some(ModelName::Mlp) => {
                bail!("--model mlp has no config.json; write a folder, or embedded, or moe")
            }
            Some(ModelName::Embedded) => config(None)?,
            Some(ModelName::Moe) => Model::moe()?.config,
            Some(ModelName::Folder(folder)) => config(Some(&folder.join("config.json")))?,
        };
        let seq = self.seq.unwrap_or(SEQ.min(config.positions));
        if !(1..=config.positions).contains(&seq) {
            bail!("--seq is {seq}; it must be 1 to {}, the positions of the model", config.positions);
        }
        let layout: Layout =
            if plan.ranks == 1 { Layout::UNSPLIT } else { format!("pp={}", plan.ranks).parse()? };
        let layout = table.map_or(Ok(layout), |table| layout.scheduled(table))?;
        // As many microbatches as show every kind of cells; a table that was read has its own number.
        let few = plan.microbatches.min((2 * plan.ranks + 1).max(3));
        let few = table.map_or(few, |_| plan.microbatches);
        let batch = Batch::new(vec![Sequence::new(vec![0; seq], vec![0; seq]); few], few)?;
        let design: Design = config.shape.into();
        in_device!((self.number.device, self.number.name), D => {
            let scheme = Scheme::<D> { schedule: Some(pipeline), ..(&layout).into() };
            scheme.fits(&design)?;
            let held = |rank| HeldBytes::new(scheme, rank, &design, (Kind::ADAMW, Some(1.0)), &batch);
            (0..plan.ranks).map(|rank| held(rank)?.peak(pipeline.schedule, plan)).collect::<Result<_>>().map(Some)
        })
    }
}
