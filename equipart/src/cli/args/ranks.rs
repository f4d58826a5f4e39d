//! Flags of what each rank has: how many bytes, how many blocks.
use clap::Args;
use layers::Design;
use parallel::split::BlockSplit;
use parallel::{Layout, Result, bail};

#[derive(Args, Debug, Default)]
pub(crate) struct RanksArgs {
    /// Bytes that each rank may hold at once, in all categories together; what would hold more is refused [default: as many
    /// as the machine has]
    #[arg(long = "memory-limit", value_name = "BYTES")]
    pub(crate) limit: Option<usize>,
    /// How many blocks each chunk of a pipeline has: even, parameters (the largest chunk has as few as can be), time (as
    /// measured on this machine), or numbers such as 3,5 [default: even]
    #[arg(long, value_name = "HOW")]
    pub(crate) split: Option<BlockSplit>,
}

impl RanksArgs {
    /// These layouts, with such a model on their ranks.
    ///
    /// # Errors
    /// If blocks are to be split and no layout has stages, or they cannot be split so.
    pub(crate) fn all(&self, layouts: Vec<Layout>, design: &Design) -> Result<Vec<Layout>> {
        let mut limited: Vec<_> = layouts.into_iter().map(|layout| layout.limited(self.limit)).collect();
        let Some(split) = &self.split else { return Ok(limited) };
        let mut staged: Vec<_> = limited.iter_mut().filter(|layout| layout.chunks() > 1).collect();
        if staged.is_empty() {
            bail!(
                "--split says how many blocks the stages of a pipeline have; write a layout with stages, such as pp=2"
            );
        }
        staged.iter().try_for_each(|layout| layout.fits(design))?;
        let chunks: Vec<_> = staged.iter().map(|layout| layout.chunks()).collect();
        for (layout, blocks) in staged.iter_mut().zip(split.of(design, &chunks)?) {
            **layout = layout.splitting(blocks.leak(), design.parts())?;
        }
        Ok(limited)
    }
    /// This layout, with such a model on its ranks.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn of(&self, layout: Layout, design: &Design) -> Result<Layout> {
        Ok(self.all(vec![layout], design)?.remove(0))
    }
}
