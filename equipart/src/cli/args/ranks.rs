//! Flags of each rank: memory limit, number of blocks, schedule.
use crate::terminal::out;
use clap::Args;
use comm::Axis;
use layers::{Choice, Design};
use parallel::pipeline::table::Table;
use parallel::split::BlockSplit;
use parallel::{Error, Layout, Result, bail, deal};
use run::device::DeviceName;
use std::path::{Path, PathBuf};
use tensor::files;
use tensor::quoted::displayed;

#[derive(Args, Debug, Default)]
pub(crate) struct RanksArgs {
    /// Memory limit of each rank, over all categories, such as 80GB, 80GiB or a number of bytes; a run that
    /// needs more is refused [default: the machine's memory]
    #[arg(long = "memory-limit", value_name = "SIZE", value_parser = size)]
    pub(crate) limit: Option<usize>,
    /// Blocks of each chunk of a pipeline, or layers of a plain classifier: even, parameters (the largest
    /// chunk has as few as possible), time (as measured on this machine), or numbers such as 3,5 [default:
    /// even]
    #[arg(long, value_name = "HOW")]
    pub(crate) split: Option<BlockSplit>,
}

/// Prints notes on facts that a layout implies: the number of ranks if experts have axes of their own,
/// experts that tensor ranks do not split, and the stages with more blocks if blocks do not divide.
pub(crate) fn note(layouts: &[Layout], design: Option<&Design>) {
    for layout in layouts {
        if [Axis::Ep, Axis::Etp].iter().any(|axis| layout.size(*axis) > 1) {
            let ranks = layout.ranks();
            out::note(&format!(
                "note: {layout} has {ranks} ranks; the ranks of experts are also ranks of the other axes"
            ));
        }
        let tp = layout.size(Axis::Tp);
        let experts = design.and_then(Design::shape).and_then(|shape| shape.experts);
        if tp > 1 && experts.is_some() && [Axis::Ep, Axis::Etp].iter().all(|axis| layout.size(*axis) == 1) {
            out::note(&format!(
                "note: {layout} keeps all experts on each rank; etp={tp} splits each of them, and ep={tp} deals them"
            ));
        }
        let chunks = layout.chunks();
        let blocks = design.map_or(0, |design| design.parts(layout.size(Axis::Tp)));
        if !blocks.is_multiple_of(chunks) && design.is_some_and(|design| layout.fits(design).is_ok()) {
            let each = (0..chunks).map(|chunk| deal(blocks, chunk, chunks).len().to_string());
            let each = each.collect::<Vec<_>>().join(",");
            let what = if chunks == layout.size(Axis::Pp) { "stages" } else { "chunks" };
            let parts = design.map_or("blocks", |design| design.of_parts(layout.size(Axis::Tp)));
            out::note(&format!(
                "note: the {what} of {layout} have {each} of {blocks} {parts}; --split changes that"
            ));
        }
    }
}

/// Prints a note for each strategy that has no effect without training.
pub(crate) fn note_inference(layout: &Layout) {
    for about in layout.strategies() {
        let of = match about.choice {
            Choice::Recompute => "backward",
            Choice::Offload => "state of an optimizer",
            _ => continue,
        };
        out::note(&format!(
            "note: {} has no effect here: it applies to {of}, and this command has none",
            about.name
        ));
    }
}

/// Parses a number of bytes.
pub(crate) fn size(text: &str) -> std::result::Result<usize, String> {
    tensor::parse_bytes(text).ok_or_else(|| {
        format!("{text:?} is not a number of bytes; write one with or without a unit, such as 80GB, 80GiB or 80000000000")
    })
}

impl RanksArgs {
    /// Returns these layouts with the memory limit and the split of blocks for this model.
    ///
    /// # Errors
    /// If blocks are to be split and no layout has stages, or the split does not fit.
    pub(crate) fn all(&self, layouts: Vec<Layout>, design: &Design) -> Result<Vec<Layout>> {
        let mut limited: Vec<_> = layouts.into_iter().map(|layout| layout.limited(self.limit)).collect();
        let Some(split) = &self.split else { return Ok(limited) };
        let mut staged: Vec<_> = limited.iter_mut().filter(|layout| layout.chunks() > 1).collect();
        if staged.is_empty() {
            bail!("--split needs a layout with pipeline stages; write one, such as pp=2");
        }
        staged.iter().try_for_each(|layout| layout.fits(design))?;
        let sizes: Vec<_> = staged.iter().map(|layout| [layout.chunks(), layout.size(Axis::Tp)]).collect();
        for (layout, blocks) in staged.iter_mut().zip(split.of(design, &sizes)?) {
            **layout = layout.splitting(blocks.leak(), design)?;
        }
        Ok(limited)
    }
    /// Returns this layout with the memory limit and the split of blocks for this model; prints the
    /// [notes](note) on it.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn of(&self, layout: Layout, design: &Design) -> Result<Layout> {
        let layouts = self.all(vec![layout], design)?;
        note(&layouts, Some(design).filter(|_| self.split.is_none()));
        Ok(layouts[0])
    }
}

#[derive(Args, Debug, Default)]
pub(crate) struct OffloadArgs {
    /// Folder for the files of a layout with offload-file; each has no name, and goes with its rank [default:
    /// the system's folder for temporary files]
    #[arg(long = "offload-dir", value_name = "DIR")]
    pub(crate) folder: Option<PathBuf>,
}

impl OffloadArgs {
    /// Returns these layouts with their files of offloaded state in the folder.
    ///
    /// # Errors
    /// If there is a folder and none of them has such files, the folder takes no file, or a store has nothing
    /// to offer on the device.
    pub(crate) fn all(&self, layouts: Vec<Layout>, device: DeviceName) -> Result<Vec<Layout>> {
        let folder = self.folder.clone().map(|folder| &*Box::leak(folder.into_boxed_path()));
        let has_file = |layout: &Layout| layout.offload().is_some_and(|offload| !offload.pinned);
        if folder.is_some() && !layouts.iter().any(has_file) {
            bail!(
                "--offload-dir needs a layout with files of offloaded state; write one, such as offload-file"
            );
        }
        offloads_on(device, &layouts)?;
        let layouts: Vec<_> = layouts.into_iter().map(|layout| layout.offloading_to(folder)).collect();
        layouts.iter().try_for_each(|layout| layout.has_room(1))?;
        Ok(layouts)
    }
    /// Returns this layout with its file of offloaded state in the folder.
    ///
    /// # Errors
    /// As [`all`](Self::all).
    pub(crate) fn of(&self, layout: Layout, device: DeviceName) -> Result<Layout> {
        Ok(self.all(vec![layout], device)?[0])
    }
}

/// Checks that offload saves memory of the device.
///
/// # Errors
/// If state would be kept in the memory of the device itself.
pub(crate) fn offloads_on(device: DeviceName, layouts: &[Layout]) -> Result<()> {
    let pinned = layouts.iter().filter_map(Layout::offload).find(|offload| offload.pinned);
    match pinned.filter(|_| device == DeviceName::Cpu) {
        Some(offload) => bail!(
            "{} keeps state in the host's memory, where --device cpu has it already; write offload-file, or \
             --device cuda",
            offload.about.word
        ),
        None => Ok(()),
    }
}

#[derive(Args, Debug, Default)]
pub(crate) struct TableArgs {
    /// Schedule table for the stages of --layout pp=N: CSV or JSON, N rows of cells such as 0F0 and 0B0;
    /// `schedule --file` draws it
    #[arg(long, value_name = "FILE")]
    pub(crate) schedule: Option<PathBuf>,
}

impl TableArgs {
    /// Returns this layout with its stages scheduled by the table, if a table is given.
    ///
    /// # Errors
    /// If the file is missing, or its table does not fit the layout.
    pub(crate) fn on(&self, layout: Layout) -> Result<Layout> {
        self.schedule.as_deref().map_or(Ok(layout), |file| layout.scheduled(table(file)?))
    }
}

/// Reads a table; it is kept until the program ends.
///
/// # Errors
/// If the file is missing or is not a table.
pub(crate) fn table(file: &Path) -> Result<&'static Table> {
    let name = displayed(&file.display().to_string());
    let text = String::from_utf8(files::read(file)?);
    let text = text.map_err(|why| Error::new(format!("{name} is not valid UTF-8: {why}")))?;
    Ok(Box::leak(Box::new(Table::read(&text).map_err(|why| Error::new(format!("{name}: {why}")))?)))
}

/// Returns the microbatches of a step: the number in the layout's table, if it has one, else `given`.
///
/// # Errors
/// If `given` differs from the table's number.
pub(crate) fn microbatches(layout: &Layout, given: Option<usize>) -> Result<Option<usize>> {
    let Some(has) = layout.table().map(|table| table.sizes().microbatches) else { return Ok(given) };
    if let Some(given) = given.filter(|given| *given != has) {
        bail!("--microbatches is {given}, but the table of --schedule has {has}; leave --microbatches out");
    }
    Ok(Some(has))
}
