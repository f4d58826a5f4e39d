//! How a model is split, as the user writes it.
//!
//! ```text
//! layout = "none" | part {"," part}
//! part   = axis "=" n mods | word mods | "order=" axis {"." axis}
//! mods   = {":" method ["/" n]}            method = [a-z0-9-]+
//! ```
//! Axes, words and methods are those of the [lists of strategies](crate::strategies). An axis left out has
//! one rank. A layout names at most one method for each [choice](layers::Choice) of an axis; the first is the
//! default. A word, such as `sp`, needs the ranks of its axis. `order` lists the split axes, innermost first.
pub mod covering;
pub mod entry;
mod fits;
mod grammar;
mod misfit;

pub use misfit::either;

use crate::dealing::{self, Dealing};
use crate::pipeline::table::Table;
use crate::pipeline::{self, Pipeline};
use crate::step::Plan;
use crate::{BuildContext, Error, Result, Schedule, bail, data, deal, offload, strategies};
use ::tensor::quoted::displayed;
use ::tensor::{Store, files};
use comm::{Axis, CommError, Mesh, World};
use grammar::Grammar;
use kernels::Kernels;
use layers::{Builder, Choice, Design, NumberArgument, Strategy, StrategyInfo, counted};
use ops::{ShardingStrategy, TokenShards, ValueSource, Wide};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tensor::readable;

/// The most ranks a layout may have.
pub const MAX_RANKS: usize = 1 << 20;
/// The most ranks that a refusal offers.
const MOST_OFFERED: usize = 1024;

const AXES: usize = Axis::ALL.len();

/// Ranks along axes, strategies, and the nesting of the axes: pure data. The default is the unsplit model.
///
/// ```text
/// tp=2,sp                   dp=8:zero3/4               pp=4:interleaved/2     pp=2:seq1f1b/2
/// ep=2:all-gather           dp=2:zero1                 ep=2,etp=2             tp=2,dp=2,pp=2,order=dp.tp.pp
/// ```
/// An axis may have methods of several choices: `cp=2:contiguous:gathered`.
///
/// Among the experts' axes, etp is 1 unless it is written, ep·etp divides dp·cp·tp, and edp is never written;
/// if dp, cp and tp are all left out, dp is ep·etp.
///
/// A layout is printed as its split axes, innermost first (the axis whose ranks communicate most comes first,
/// as in `tp=2,dp=2`), each with its methods and words but without defaults; as `none` if there is nothing to
/// print. The printed text reads back as the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    sizes: [usize; AXES], // by `Axis as usize`; each at least 1, the product at most MAX_RANKS
    named: u64,           // bit i: strategy i of the lists is named, and not a default
    says_schedule: Unseen<bool>, // the default schedule is written out
    numbers: [u32; Choice::COUNT], // of the named strategy of each choice; 0 if it has none
    order: [Option<Axis>; Axis::NESTED.len()], // split axes, innermost first; none in the default order
    limit: Option<usize>, // bytes that each rank may hold
    folder: Option<&'static Path>, // of files of offloaded state
    rests: Option<ShardingStrategy>, // state sharded at rest, if not as strategies say
    split: Option<&'static [usize]>, // blocks of each chunk of a pipeline, if they are not dealt evenly
    table: Option<&'static Table>, // the schedule of the stages, if it is none of the lists
}

/// A fact that makes no difference between two layouts.
#[derive(Clone, Copy, Debug)]
struct Unseen<T>(T);

impl<T> PartialEq for Unseen<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}
impl<T> Eq for Unseen<T> {}
impl<T> PartialOrd for Unseen<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<T> Ord for Unseen<T> {
    fn cmp(&self, _: &Self) -> Ordering {
        Ordering::Equal
    }
}
impl<T> Hash for Unseen<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl Default for Layout {
    fn default() -> Self {
        Self::UNSPLIT
    }
}

fn grammar_of_all() -> Grammar<'static> {
    Grammar(strategies::all())
}

impl Layout {
    /// The model in one piece, on one rank.
    pub const UNSPLIT: Self = Self {
        sizes: [1; AXES],
        named: 0,
        says_schedule: Unseen(false),
        numbers: [0; Choice::COUNT],
        order: [None; Axis::NESTED.len()],
        limit: None,
        folder: None,
        rests: None,
        split: None,
        table: None,
    };

    /// Creates a layout of these sizes, in any order; axes left out have one rank.
    ///
    /// # Errors
    /// If an axis has no ranks or is given twice, or there are more than [`MAX_RANKS`] ranks.
    pub fn new(sizes: &[(Axis, usize)]) -> Result<Self> {
        grammar::sized(sizes)
    }
    /// Returns this layout with one more strategy, such as `sp`, and the one that it needs.
    ///
    /// # Errors
    /// If no strategy has this name, its axis has only one rank, or another strategy excludes it.
    pub fn with(self, named: &str) -> Result<Self> {
        grammar_of_all().with(self, named)
    }
    /// Returns the strategies that it names and its axes do not imply: `sp`, `zero1`.
    pub fn named(&self) -> Vec<String> {
        grammar_of_all().named(self).into_iter().map(|(_, written)| written).collect()
    }
    fn names(&self, i: usize) -> bool {
        self.named >> i & 1 == 1
    }
    /// Returns the descriptions of its strategies: those of split axes, and those that it names; in the
    /// lists' order.
    pub fn strategies(&self) -> Vec<&'static StrategyInfo> {
        let listed = grammar_of_all().taken(self).into_iter().map(|i| strategies::all()[i]);
        let stays = |about: &&StrategyInfo| about.choice != Choice::Schedule || self.table.is_none();
        listed.filter(stays).chain(self.table.map(Table::about)).collect()
    }
    fn takes(&self, about: &StrategyInfo) -> bool {
        self.strategies().iter().any(|taken| std::ptr::eq(*taken, about))
    }
    /// Returns the pipeline schedule: when each part of the model runs.
    pub fn pipeline(&self) -> Pipeline {
        if let Some(table) = self.table {
            return Pipeline { schedule: table, number: None, split: self.split };
        }
        if self.size(Axis::Pp) == 1 {
            return Pipeline::ALONE;
        }
        let taken = pipeline::ALL.iter().find(|schedule| self.takes(schedule.about()));
        let schedule = *taken.unwrap_or(&pipeline::ALL[0]);
        Pipeline { schedule, number: self.number(schedule.about()), split: self.split }
    }
    /// Returns which state of parameters data ranks keep sharded at rest.
    pub fn rests(&self) -> ShardingStrategy {
        let taken = data::ALL.iter().filter(|split| self.takes(&split.about));
        let all = taken.fold(ShardingStrategy::WHOLE, |all, of| (of.change)(all, self.number(&of.about)));
        self.rests.unwrap_or(all)
    }
    /// Returns the store of offloaded state that it names, if any.
    pub fn offload(&self) -> Option<&'static offload::Offload> {
        offload::ALL.iter().copied().find(|offload| self.takes(&offload.about))
    }
    /// The folder of the files of offloaded state, if it names such files.
    fn folder(&self) -> Option<PathBuf> {
        let is_file = self.offload().is_some_and(|offload| !offload.pinned);
        is_file.then(|| self.folder.map_or_else(std::env::temp_dir, Path::to_owned))
    }
    /// Creates a rank's store of offloaded state, if it names one.
    fn store(&self) -> Option<Store> {
        self.offload().map(|_| self.folder().map_or_else(Store::host, Store::file))
    }
    /// Checks that files of offloaded state have room for this many bytes.
    ///
    /// # Errors
    /// If there is a file and its folder does not take it.
    pub fn has_room(&self, bytes: u64) -> Result<()> {
        let Some(folder) = self.folder() else { return Ok(()) };
        files::has_room(&folder, bytes).map_err(|why| {
            let (folder, bytes) = (displayed(&folder.display().to_string()), readable(bytes.into()));
            Error::new(format!(
                "{folder} does not take a file of {bytes} of offloaded state: {why}; give another folder with \
                 --offload-dir"
            ))
        })
    }
    /// Returns the tokens of the first rank; [`at`](TokenShards::at) a mesh gives those of each rank.
    pub fn tokens(&self) -> TokenShards {
        let taken: Option<&&Dealing> = dealing::ALL.iter().find(|dealing| self.takes(&dealing.about));
        let sizes = [TokenShards::SEQUENCES, TokenShards::CONTEXT].map(|axis| self.size(axis));
        TokenShards::new(sizes, taken.unwrap_or(&dealing::ALL[0]).stretches)
    }
    /// Returns true if ranks leave features out of their messages: the model lacks weights, so it is another
    /// one than without this layout.
    pub fn is_sparse(&self) -> bool {
        self.strategies().iter().any(|about| about.choice == Choice::Features)
    }
    /// Returns the number that the layout gives a strategy.
    pub fn number(&self, about: &StrategyInfo) -> Option<usize> {
        let number = self.numbers[about.choice as usize] as usize;
        (number > 0 || matches!(about.takes, NumberArgument::Percent(_))).then_some(number)
    }
    /// Returns the context in which this layout's ranks build a model.
    pub fn place<'a, D: Kernels>(
        &self,
        device: &'a D,
        mesh: &'a Mesh<D::Place>,
        values: &'a dyn ValueSource<Wide<D>>,
    ) -> BuildContext<'a, D> {
        let mut taken = self.strategies();
        let spare = strategies::all().iter().find(|about| about.choice.is_always_made());
        taken.extend(spare.filter(|spare| taken.iter().all(|about| about.choice != spare.choice)));
        let is_taken = |of: &&dyn Strategy<D>| taken.iter().any(|about| std::ptr::eq(*about, of.about()));
        let taken = strategies::on().into_iter().filter(is_taken);
        let at = Builder { numbers: self.numbers, ..Builder::new(device, mesh, values) }.with(taken);
        let builder =
            Builder { rests: self.rests(), store: self.store(), tokens: self.tokens().at(mesh), ..at };
        BuildContext { builder, pipeline: self.pipeline() }
    }
    /// Returns the number of ranks in total.
    pub fn ranks(&self) -> usize {
        Axis::DENSE.iter().map(|axis| self.size(*axis)).product()
    }
    /// Returns the number of ranks along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }
    /// Returns true if ranks divide the experts of a model. A data rank without a sequence then still
    /// computes for the others.
    pub fn shares_experts(&self) -> bool {
        [Axis::Ep, Axis::Etp].iter().any(|axis| self.size(*axis) > 1)
    }
    /// Returns every split axis with its number of ranks, outermost first: the axes of a world.
    pub fn axes(&self) -> Vec<(Axis, usize)> {
        split_axes().map(|axis| (axis, self.size(axis))).collect()
    }
    /// Returns the rank with these coordinates along [`Axis::DENSE`]; axes left out have coordinate 0.
    pub fn rank_at(&self, coordinates: &[(Axis, usize)]) -> usize {
        let order = self.order().unwrap_or_else(|| Axis::NESTED.to_vec());
        let dense = order.into_iter().filter(|axis| Axis::DENSE.contains(axis));
        let add = |(rank, stride), axis| {
            let at = coordinates.iter().find(|(named, _)| *named == axis).map_or(0, |(_, at)| *at);
            (rank + at * stride, stride * self.size(axis))
        };
        dense.fold((0, 1), add).0
    }
    fn order(&self) -> Option<Vec<Axis>> {
        Some(self.order.into_iter().flatten().collect::<Vec<_>>()).filter(|order| !order.is_empty())
    }
    /// Creates the world of its ranks, as threads of this process.
    ///
    /// # Errors
    /// If there are more ranks than a world can have.
    pub fn world(&self) -> std::result::Result<World, CommError> {
        let mut world = World::threads(&self.axes())?;
        if let Some(order) = self.order() {
            world = world.order(&order)?;
        }
        Ok(match self.limit {
            Some(bytes) => world.memory_limit(bytes),
            None => world,
        })
    }
    /// Returns one of its ranks without peers, to find out what it would hold and communicate.
    ///
    /// # Errors
    /// If there is no such rank.
    pub fn ghost(&self, rank: usize) -> std::result::Result<Mesh<::tensor::MetaPlace>, CommError> {
        match self.order() {
            Some(order) => Mesh::ghost_in_order(&self.axes(), &order, rank),
            None => Mesh::ghost(&self.axes(), rank),
        }
    }
    /// Returns this layout with a limit of bytes that each rank may hold at once. Not printed.
    #[must_use]
    pub fn limited(self, bytes: Option<usize>) -> Self {
        Self { limit: bytes, ..self }
    }
    /// Returns this layout with files of offloaded state in this folder; without it, in the system's folder
    /// for temporary files. Not printed.
    #[must_use]
    pub fn offloading_to(self, folder: Option<&'static Path>) -> Self {
        Self { folder, ..self }
    }
    /// Returns this layout with state sharded at rest as `rests` says, on the ranks that sum its gradients,
    /// whatever axes they are along. Not printed.
    #[must_use]
    pub fn resting(self, rests: ShardingStrategy) -> Self {
        Self { rests: Some(rests), ..self }
    }
    /// Returns this layout with its stages run by a table, which fixes the numbers of chunks and
    /// microbatches. It is printed with the table's digest, which cannot be read back.
    ///
    /// # Errors
    /// If it names a schedule, or the number of ranks along pp is not the table's number of rows.
    pub fn scheduled(self, table: &'static Table) -> Result<Self> {
        let Plan { ranks, chunks, .. } = table.sizes();
        let stages = self.size(Axis::Pp);
        let named = grammar_of_all().named(&self);
        let named = named.iter().find(|(about, _)| about.choice == Choice::Schedule).map(|(_, word)| &**word);
        if let Some(word) = named.or(self.says_schedule.0.then(|| self.pipeline().schedule.about().word)) {
            bail!("the layout {self} names the schedule {word}, but a table replaces it; leave {word} out");
        }
        if ranks != stages {
            let (rows, has) = (counted(ranks, "row"), counted(stages, "rank"));
            bail!(
                "the table has {rows}, one per rank, but the layout {self} has {has} along pp; write \
                 pp={ranks}"
            );
        }
        let mut numbers = self.numbers;
        numbers[Choice::Schedule as usize] = chunks as u32;
        Ok(Self { table: Some(table), numbers, ..self })
    }
    /// Returns the table that is the schedule of its stages, if there is one.
    pub fn table(&self) -> Option<&'static Table> {
        self.table
    }
    /// Returns the number of chunks that its pipeline cuts a model into.
    pub fn chunks(&self) -> usize {
        self.pipeline().plan(self.size(Axis::Pp), 1).all_chunks()
    }
    /// Returns this layout with `split` of the model's parts in the chunks of the pipeline. Not printed.
    ///
    /// # Errors
    /// If there are more or fewer chunks, one is empty, or the sum is not the number of parts.
    pub fn splitting(self, split: &'static [usize], design: &Design) -> Result<Self> {
        let (chunks, sum, tp) = (self.chunks(), split.iter().sum::<usize>(), self.size(Axis::Tp));
        let (blocks, what) = (design.parts(tp), design.of_parts(tp));
        if split.len() != chunks || split.contains(&0) || sum != blocks {
            let even: Vec<_> =
                (0..chunks).map(|chunk| deal(blocks, chunk, chunks).len().to_string()).collect();
            return Err(Error::new(format!(
                "the split {} is not {blocks} {what} in {chunks} chunks of at least one each, such as {}",
                either(split, "and"),
                even.join(",")
            )));
        }
        Ok(Self { split: Some(split), ..self })
    }
    /// Returns the usual number of microbatches of a step: two for each stage, so that for some time every
    /// rank has forwards and backwards to run; one without stages.
    pub fn usual_microbatches(&self) -> usize {
        match self.size(Axis::Pp) {
            1 => 1,
            stages => 2 * stages,
        }
    }
    /// Returns the bytes that each rank may hold at once, if they are limited.
    pub fn memory_limit(&self) -> Option<usize> {
        self.limit
    }
    /// Returns the numbers of ranks along an axis that `fit`, all else unchanged.
    pub fn possible(&self, axis: Axis, fit: impl Fn(usize) -> bool) -> Vec<usize> {
        (1..=MOST_OFFERED / (self.ranks() / self.size(axis))).filter(|n| fit(*n)).collect()
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.table.map(|table| format!(" with the table {:016x}", table.digest()));
        f.pad(&(grammar_of_all().print(self) + &table.unwrap_or_default()))
    }
}

impl FromStr for Layout {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        grammar_of_all().read(text)
    }
}

/// Returns the axes that some strategy splits along, outermost first.
pub fn split_axes() -> impl DoubleEndedIterator<Item = Axis> {
    grammar_of_all().axes().into_iter().rev()
}

/// Returns the syntax of layouts, for `--help`.
#[must_use]
pub fn grammar() -> String {
    grammar_of_all().help()
}

#[cfg(test)]
mod tests;
