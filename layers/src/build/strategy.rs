//! A strategy: one way of splitting a model, as an entry of a list (`parallel::strategies`).
//!
//! Every entry states its name, its word in a layout, the sizes it fits and its source ([`StrategyInfo`]). A
//! strategy that splits layers also states what it builds ([`Strategy`]): the builder's settings, and its own
//! layers in place of the default ones. The syntax of layouts, the random layouts of property tests, the
//! commands and the book's table are all derived from the lists.
mod descriptors;

pub use descriptors::{Attention, Column, Core, Embedding, Head, Mlp, Norm, Row};

use ops::DividedSize;

use crate::build::part::{Block, BoxedLayer};
use crate::build::stage::{Ending, Output};
use crate::{Builder, Design, Hooks};
use comm::Axis;
use kernels::Kernels;
use ops::{Branches, Result, Split, Stream};
use tensor::TokenIds;

/// Kind of choice that an entry of the lists makes. A layout makes each choice once, but may have several of
/// [`Choice::Layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The split inside layers: by the ranks of an axis, `tp=2`, and by additional words, `tp=2,sp`.
    Layers,
    /// The assignment of a sequence's tokens to ranks.
    Dealing,
    /// The way attention reaches the tokens of other ranks.
    Core,
    /// The input features of linear layers that ranks send each other.
    Features,
    /// Sharding of a parameter's value, gradient and optimizer state at rest.
    State,
    /// State that is kept off the device at rest.
    Offload,
    /// Gathering of a linear layer's sharded weight in tiles of its outputs.
    Tiling,
    /// The order in which the parts of the model run.
    Schedule,
    /// The token dispatcher: sends tokens to the ranks of their experts, and back.
    Dispatcher,
    /// Activations that are recomputed for backward instead of kept.
    Recompute,
}

impl Choice {
    /// Number of choices.
    pub const COUNT: usize = Choice::Recompute as usize + 1;
    /// The word for a choice that no axis names.
    pub const RECOMPUTE: &'static str = "recompute";

    /// True if the first entry of this choice builds its layers even if the layout names none, on one rank
    /// too: a model's experts.
    pub fn is_always_made(self) -> bool {
        self == Choice::Dispatcher
    }
    /// True if the choice changes the memory of a run and not the split of its work.
    pub fn is_of_memory(self) -> bool {
        matches!(self, Choice::State | Choice::Tiling | Choice::Offload | Choice::Recompute)
    }
    /// True if the first entry of this choice is the default where its axis is split and the layout names no
    /// other.
    pub fn has_default(self) -> bool {
        !matches!(self, Choice::Offload | Choice::Tiling | Choice::Recompute | Choice::Features)
    }
}

/// A method's number, as in `interleaved/2`: none, optional, required or a percentage, with its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberArgument {
    /// No number.
    Nothing,
    /// An optional number.
    Optional(&'static str),
    /// A required number.
    Required(&'static str),
    /// A required percentage, 0 to 99.
    Percent(&'static str),
}

/// Numbers with which a search for a layout tries an entry; without numbers, it is tried as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tries {
    /// Always.
    Always(&'static [usize]),
    /// Only if nothing else fits: it costs time, and nothing but memory is gained.
    Needed(&'static [usize]),
    /// Never: another entry is at least as good everywhere, or it computes another function.
    Never,
}

/// Sizes of a layout, passed to a strategy to find whether it fits.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Number of ranks, by `Axis as usize`.
    pub ranks: [usize; Axis::ALL.len()],
    /// The number written after the strategy's word, if any.
    pub number: Option<usize>,
}

impl Sizes {
    /// Number of ranks along an axis.
    pub fn along(&self, axis: Axis) -> usize {
        self.ranks[axis as usize]
    }
}

/// Description of a strategy: all that other code knows about it.
#[derive(Clone, Copy, Debug)]
pub struct StrategyInfo {
    /// Its name in the literature.
    pub name: &'static str,
    /// The mesh axis it applies to.
    pub axis: Option<Axis>,
    /// The choice it makes.
    pub choice: Choice,
    /// Its word in a layout: `sp`, `zero1`; the axis' own name for the default meaning of an axis.
    pub word: &'static str,
    /// The number after the word: none, optional or required.
    pub takes: NumberArgument,
    /// Numbers that a search for a layout tries.
    pub tries: Tries,
    /// The word of a strategy of the same axis, without which it cannot be.
    pub needs: Option<&'static str>,
    /// The sizes of a model that ranks must divide. Empty: any number of ranks fits.
    pub shares: fn(&Design, &Sizes) -> Vec<DividedSize>,
    /// True if a layout that names it has nothing else, but for recomputation.
    pub alone: bool,
    /// Its source.
    pub paper: &'static str,
    /// File of the book's chapter about it, if any.
    pub chapter: Option<&'static str>,
    /// Hints for debugging a failed proof: a part of a tensor's name, and the likely cause, without a full
    /// stop. The first entry whose part occurs in the name applies: `texts: blocks.0.attention.out.out`,
    /// `step 0: gradient of blocks.1.norm2`. The last entry is for any tensor: `""`. Of a layout's
    /// strategies, the one that built the layer gives the hint.
    pub hints: &'static [(&'static str, &'static str)],
}

impl StrategyInfo {
    /// Returns a default description: the strategy takes no number, fits any number of ranks and has no
    /// chapter.
    #[must_use]
    pub const fn of(axis: Option<Axis>, choice: Choice) -> Self {
        let (takes, shares): (_, fn(&Design, &Sizes) -> _) = (NumberArgument::Nothing, |_, _| vec![]);
        Self {
            name: "",
            axis,
            choice,
            word: "",
            takes,
            tries: Tries::Always(&[]),
            needs: None,
            shares,
            alone: false,
            paper: "",
            chapter: None,
            hints: &[],
        }
    }
    /// Returns whether its word is only the axis' name, or for an entry without axis the word of its choice.
    pub fn is_plain(&self) -> bool {
        self.word == self.axis.map_or(Choice::RECOMPUTE, Axis::name)
    }
    /// Returns whether its word may stand beside axes: that of layers, of a store, which needs no ranks, or
    /// of a choice without axis.
    pub fn stands_alone(&self) -> bool {
        let beside = matches!(self.choice, Choice::Layers | Choice::Offload);
        self.is_plain() == self.axis.is_none() && (beside || self.axis.is_none())
    }
    /// Returns whether it must be named in a layout: it is not its axis' default.
    pub fn is_named(&self) -> bool {
        self.axis.is_none() || !self.is_plain()
    }
    /// Returns the word with a number that it needs: `zero1`, `interleaved/2`.
    pub fn method(&self) -> String {
        let number = match self.takes {
            NumberArgument::Required(_) => "/2",
            NumberArgument::Percent(_) => "/50",
            NumberArgument::Nothing | NumberArgument::Optional(_) => "",
        };
        format!("{}{number}", self.word)
    }
    /// Returns a layout that names it, with this number of ranks along its axis.
    pub fn written(&self, ranks: usize) -> String {
        let axis = self.axis.map_or(Choice::RECOMPUTE.into(), |axis| format!("{axis}={ranks}"));
        match self.choice {
            _ if self.is_plain() => axis,
            Choice::Layers => format!("{axis},{}", self.word),
            _ => {
                let needs = self.needs.map_or_else(String::new, |word| format!("{word}:"));
                format!("{axis}:{needs}{}", self.method())
            }
        }
    }
}

/// Layers that a strategy of kind [`Choice::Layers`] builds. By default, every method changes nothing.
pub trait Strategy<D: Kernels>: Sync {
    /// Its description.
    fn about(&self) -> &'static StrategyInfo;
    /// Changes the builder's settings.
    fn place<'a>(&self, at: Builder<'a, D>) -> Builder<'a, D> {
        at
    }
    /// Wraps block `number` of the model, `X[B,D]` of the stream to `Y[B,D]`, or returns the block unchanged.
    fn block(&self, _: &Builder<D>, _number: usize, block: Block<D>) -> Block<D> {
        block
    }
    /// Wraps the attention of a block, whichever strategy built it, or returns it unchanged.
    fn around_attention(&self, attention: Block<D>) -> Block<D> {
        attention
    }
    /// Returns its additional work in training, on every rank of a model of this design, whichever layers the
    /// rank has.
    fn hooks(&self, _: &Builder<D>, _: &Design) -> Option<Box<dyn Hooks<D>>> {
        None
    }
    /// Replaces a [`ColumnLinear`](crate::ColumnLinear): `X[B,I]` of the stream to `Y[B,O_t]`.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn column(&self, _: &Builder<D>, _: &Column) -> Result<Option<BoxedLayer<D, Stream<D>, Split<D>>>> {
        Ok(None)
    }
    /// Replaces a [`RowLinear`](crate::RowLinear): `X[B,I_t]` to `Y[B,O]` of the stream.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn row(&self, _: &Builder<D>, _: &Row) -> Result<Option<BoxedLayer<D, Split<D>, Stream<D>>>> {
        Ok(None)
    }
    /// Replaces a [`Norm`](crate::Norm), the final one included: `X[B,D]` of the stream to `Y[B,D]`, and X
    /// itself for the [residual branch](Branches) around the next layer.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn norm(&self, _: &Builder<D>, _: &Norm) -> Result<Option<BoxedLayer<D, Stream<D>, Branches<D>>>> {
        Ok(None)
    }
    /// Replaces a block's [`Attention`](crate::Attention): `X[B,D]` of the stream to `Y[B,D]`.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn attention(
        &self,
        _: &Builder<D>,
        _: &Attention<D>,
    ) -> Result<Option<BoxedLayer<D, Stream<D>, Stream<D>>>> {
        Ok(None)
    }
    /// Replaces the [core](crate::attention::core) of an attention: `[Q|K|V][B,(H_t+2K_t)·d]`, rotated, to
    /// `O[B,H_t·d]`.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn core(&self, _: &Builder<D>, _: &Core) -> Result<Option<BoxedLayer<D, Split<D>, Split<D>>>> {
        Ok(None)
    }
    /// Replaces a block's [`Mlp`](crate::Mlp): `X[B,D]` of the stream to `Y[B,D]`.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn feed_forward(&self, _: &Builder<D>, _: &Mlp) -> Result<Option<BoxedLayer<D, Stream<D>, Stream<D>>>> {
        Ok(None)
    }
    /// Replaces the [`Embedding`](crate::Embedding): ids `[B]` to `Y[B,D]` of the stream.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn embedding(
        &self,
        _: &Builder<D>,
        _: &Embedding,
    ) -> Result<Option<BoxedLayer<D, TokenIds<D::Place>, Stream<D>>>> {
        Ok(None)
    }
    /// Replaces the [`Head`](crate::Head) and the norm before it: `X[B,D]` of the stream to the loss or
    /// logits, as an [`Ending`] requests.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn head(&self, _: &Builder<D>, _: &Head) -> Result<Option<BoxedLayer<D, Ending<D>, Option<Output<D>>>>> {
        Ok(None)
    }
    /// Replaces all layers of a classifier of these sizes: examples `[B,F]`, whole on every rank, to the loss
    /// or logits.
    ///
    /// # Errors
    /// If the number of ranks does not fit.
    fn classifier(
        &self,
        _: &Builder<D>,
        _sizes: &[usize],
    ) -> Result<Option<BoxedLayer<D, Ending<D>, Option<Output<D>>>>> {
        Ok(None)
    }
}
