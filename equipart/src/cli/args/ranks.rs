//! Flags of what each rank has: how many bytes, how many blocks, and when it does what.
use crate::cli::out;
use clap::Args;
use comm::Axis;
use layers::{Choice, Design};
use parallel::split::BlockSplit;
use parallel::step::table::Table;
use parallel::{Error, Layout, Result, bail, deal};
use std::path::{Path, PathBuf};
use tensor::files;
use tensor::quoted::shown;

#[derive(Args, Debug, Default)]
pub(crate) struct RanksArgs {
    /// The most that each rank may hold at once, in all categories together, such as 80GB, 80GiB or a number of bytes; what would hold
    /// more is refused [default: what the machine has]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<usize>,
    /// How many blocks each chunk of a pipeline has: even, parameters (the largest chunk has as few as can be), time (as
    /// measured on this machine), or numbers such as 3,5 [default: even]
    #[arg(long, value_name = "HOW")]
    pub(crate) split: Option<BlockSplit>,
}

/// Notes what layouts do not say by themselves: how many ranks there are where those of experts lie on the others, and which
/// stages of a model have more blocks.
pub(crate) fn note(layouts: &[Layout], design: Option<&Design>) {
    for layout in layouts {
        if [Axis::Ep, Axis::Etp].iter().any(|axis| layout.size(*axis) > 1) {
            let ranks = layout.ranks();
            out::note(&format!(
                "note: {layout} are {ranks} ranks; those of experts are ranks of the other axes, too"
            ));
        }
        let (chunks, blocks) = (layout.chunks(), design.map_or(0, Design::parts));
        if !blocks.is_multiple_of(chunks) && design.is_some_and(|design| layout.fits(design).is_ok()) {
            let each = (0..chunks).map(|chunk| deal(blocks, chunk, chunks).len().to_string());
            let each = each.collect::<Vec<_>>().join(",");
            let what = if chunks == layout.size(Axis::Pp) { "stages" } else { "chunks" };
            out::note(&format!(
                "note: the {what} of {layout} have {each} of {blocks} blocks; --split deals them otherwise"
            ));
        }
    }
}

/// Notes what a layout says to no effect where nothing is learnt.
pub(crate) fn note_inference(layout: &Layout) {
    for about in layout.strategies().iter().filter(|about| about.choice == Choice::Recompute) {
        out::note(&format!(
            "note: {} changes nothing here: it is about backward, and nothing is learnt",
            about.name
        ));
    }
}

/// A number of bytes.
fn size(text: &str) -> std::result::Result<usize, String> {
    comm::parse_bytes(text).ok_or_else(|| {
        format!("{text:?} is no number of bytes; write one with or without a unit, such as 80GB, 80GiB or 80000000000")
    })
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
    /// This layout, with such a model on its ranks; what it does not say is noted.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn of(&self, layout: Layout, design: &Design) -> Result<Layout> {
        let all = self.all(vec![layout], design)?;
        note(&all, Some(design).filter(|_| self.split.is_none()));
        Ok(all[0])
    }
}

#[derive(Args, Debug, Default)]
pub(crate) struct TableArgs {
    /// A table of your own for the stages of --layout pp=N: CSV or JSON, N rows of cells such as 0F0 and 0B0, which `schedule
    /// --file` draws
    #[arg(long, value_name = "FILE")]
    pub(crate) schedule: Option<PathBuf>,
}

impl TableArgs {
    /// This layout, with its stages gone through as the table has it, if there is one.
    ///
    /// # Errors
    /// If there is no such table, or it is none for this layout.
    pub(crate) fn on(&self, layout: Layout) -> Result<Layout> {
        self.schedule.as_deref().map_or(Ok(layout), |file| layout.scheduled(table(file)?))
    }
}

/// Reads a table, which is kept until the program ends.
///
/// # Errors
/// If there is no such file, or it is no table.
pub(crate) fn table(file: &Path) -> Result<&'static Table> {
    let name = shown(&file.display().to_string());
    let text = String::from_utf8(files::read(file)?);
    let text = text.map_err(|why| Error::new(format!("{name} is no text: {why}")))?;
    let table = Table::read(&text).map_err(|why| Error::new(format!("{name}: {why}")))?;
    Ok(Box::leak(Box::new(table)))
}

/// The microbatches of a step under a layout, where it has a table, or else those that are given.
///
/// # Errors
/// If others are given than the table has.
pub(crate) fn microbatches(layout: &Layout, given: Option<usize>) -> Result<Option<usize>> {
    let Some(has) = layout.table().map(|table| table.sizes().microbatches) else { return Ok(given) };
    if let Some(given) = given.filter(|given| *given != has) {
        bail!("--microbatches is {given}, and the table of --schedule has {has}; leave --microbatches out");
    }
    Ok(Some(has))
}
