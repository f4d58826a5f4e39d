//! What a strategy is: one way of splitting a model, as an entry of a list (`parallel::strategies`).
//!
//! Every entry says what it is called, how a layout names it, where it fits and where it comes from ([`About`]). One that
//! splits layers says besides what it builds ([`Strategy`]): where layers are built, and layers of its own in place of
//! the usual ones. All that a layout may say, what is drawn in property tests, the commands and the book's table come
//! from the lists.
mod descriptors;
pub mod sharing;

pub use descriptors::{Attention, Column, Core, Embedding, Head, Mlp, Norm, Row};

pub use sharing::{Shared, Sharing};

use crate::model::part::{Block, Part};
use crate::model::stage::{Ending, Output};
use crate::ops::{Branches, Split, Stream};
use crate::{Builder, Design, Hooks, Result};
use comm::Axis;
use kernels::Kernels;
use tensor::Ids;

/// Which choice an entry of the lists is. A layout makes each choice once, but may have several of [`Choice::Layers`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// What is split inside of layers: by the ranks of an axis, `tp=2`, and by words beside them, `tp=2,sp`.
    Layers,
    /// Which tokens of a sequence a rank is dealt.
    Dealing,
    /// How attention meets the tokens of other ranks.
    Core,
    /// Where value, gradient and optimizer state of a parameter rest.
    State,
    /// What rests away from the device.
    Offload,
    /// When each part of the model is gone through.
    Schedule,
    /// How tokens come to the ranks of their experts, and back.
    Exchange,
    /// What is computed again for backward, not kept.
    Recompute,
}

impl Choice {
    /// How many there are.
    pub const COUNT: usize = Choice::Recompute as usize + 1;
    /// The word that names a choice which no axis names.
    pub const RECOMPUTE: &'static str = "recompute";

    /// Whether the first entry of this choice builds its layers where none is named, on one rank too: a model's experts.
    pub fn is_always_made(self) -> bool {
        self == Choice::Exchange
    }
    /// Whether the first entry of this choice is taken where its axis is split and no other is named.
    pub fn has_default(self) -> bool {
        !matches!(self, Choice::Offload | Choice::Recompute)
    }
}

/// Whether a method takes a number, `interleaved/2`, and what the number means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// None.
    Nothing,
    /// One may be written.
    Optional(&'static str),
    /// One must be written.
    Required(&'static str),
}

/// The sizes of a layout, for a strategy that is asked where it fits.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Ranks, by `Axis as usize`.
    pub ranks: [usize; Axis::ALL.len()],
    /// The strategy's own number, if it was given one.
    pub number: Option<usize>,
}

impl Sizes {
    /// Ranks along an axis.
    pub fn along(&self, axis: Axis) -> usize {
        self.ranks[axis as usize]
    }
}

/// The description of a strategy: all that other code knows of it.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name in the literature.
    pub name: &'static str,
    /// The axis whose ranks it is about.
    pub axis: Option<Axis>,
    /// Which choice it is.
    pub choice: Choice,
    /// How a layout names it: `sp`, `zero1`; the axis' own name for what an axis means by itself.
    pub word: &'static str,
    /// Whether a number follows the word.
    pub takes: Takes,
    /// Where it fits: what ranks share of a model. Nothing: any number of ranks will do.
    pub shares: fn(&Design, &Sizes) -> Vec<Shared>,
    /// Where it comes from.
    pub paper: &'static str,
    /// The file of the book's chapter about it, if there is one.
    pub chapter: Option<&'static str>,
    /// Where to look first when it is not equal: a part of a tensor's name, and what such a tensor is about, without a
    /// full stop. The first counts that the name contains: `texts: blocks.0.attention.out.out`, `step 0: gradient of
    /// blocks.1.norm2`. The last one is for any tensor: `""`. Of a layout's strategies that one speaks which built the
    /// layer.
    pub hints: &'static [(&'static str, &'static str)],
}

impl About {
    /// A description to begin with: the strategy takes no number, runs on any number of ranks and has no chapter.
    #[must_use]
    pub const fn of(axis: Option<Axis>, choice: Choice) -> Self {
        let (takes, shares): (_, fn(&Design, &Sizes) -> _) = (Takes::Nothing, |_, _| vec![]);
        Self { name: "", axis, choice, word: "", takes, shares, paper: "", chapter: None, hints: &[] }
    }
    /// Whether the axis alone names it, or for want of an axis its choice's word.
    pub fn is_plain(&self) -> bool {
        self.word == self.axis.map_or(Choice::RECOMPUTE, Axis::name)
    }
    /// Whether a layout must name it for it to be there: its axis does not say it by itself.
    pub fn is_named(&self) -> bool {
        self.axis.is_none() || !self.is_plain()
    }
    /// The word with the least number that it needs: `zero1`, `interleaved/2`.
    pub fn method(&self) -> String {
        let number = if let Takes::Required(_) = self.takes { "/2" } else { "" };
        format!("{}{number}", self.word)
    }
    /// How a layout of so many ranks along its axis is written that names it.
    pub fn written(&self, ranks: usize) -> String {
        let axis = self.axis.map_or(Choice::RECOMPUTE.into(), |axis| format!("{axis}={ranks}"));
        match self.choice {
            _ if self.is_plain() => axis,
            Choice::Layers => format!("{axis},{}", self.word),
            _ => format!("{axis}:{}", self.method()),
        }
    }
}

/// What a strategy of kind [`Choice::Layers`] builds. Each method that is left out leaves things as they are.
pub trait Strategy<D: Kernels>: Sync {
    /// Its description.
    fn about(&self) -> &'static About;
    /// Where layers are built.
    fn place<'a>(&self, at: Builder<'a, D>) -> Builder<'a, D> {
        at
    }
    /// A layer around block `number` of the model, `X[B,D]` of the stream to as many: one with the block inside, or the block as it is.
    fn block(&self, _number: usize, block: Block<D>) -> Block<D> {
        block
    }
    /// What it does besides in training, on every rank of a model of this design, whichever layers the rank has.
    fn hooks(&self, _: &Builder<D>, _: &Design) -> Option<Box<dyn Hooks<D>>> {
        None
    }
    /// In place of a [`ColumnLinear`](crate::ColumnLinear): `X[B,I]` of the stream to `Y[B,O_t]`.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn column(&self, _: &Builder<D>, _: &Column) -> Result<Option<Part<D, Stream<D>, Split<D>>>> {
        Ok(None)
    }
    /// In place of a [`RowLinear`](crate::RowLinear): `X[B,I_t]` to `Y[B,O]` of the stream.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn row(&self, _: &Builder<D>, _: &Row) -> Result<Option<Part<D, Split<D>, Stream<D>>>> {
        Ok(None)
    }
    /// In place of a [`Norm`](crate::Norm), the final one included: `X[B,D]` of the stream to as many, and
    /// X itself, which goes [around](Branches) what comes next.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn norm(&self, _: &Builder<D>, _: &Norm) -> Result<Option<Part<D, Stream<D>, Branches<D>>>> {
        Ok(None)
    }
    /// In place of a block's [`Attention`](crate::Attention): `X[B,D]` of the stream to as many.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn attention(&self, _: &Builder<D>, _: &Attention<D>) -> Result<Option<Part<D, Stream<D>, Stream<D>>>> {
        Ok(None)
    }
    /// In place of the [core](crate::attention::core) of an attention: `[Q|K|V][B,(H_t+2K_t)·d]`, rotated, to `O[B,H_t·d]`.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn core(&self, _: &Builder<D>, _: &Core) -> Result<Option<Part<D, Split<D>, Split<D>>>> {
        Ok(None)
    }
    /// In place of a block's [`Mlp`](crate::Mlp): `X[B,D]` of the stream to as many.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn feed_forward(&self, _: &Builder<D>, _: &Mlp) -> Result<Option<Part<D, Stream<D>, Stream<D>>>> {
        Ok(None)
    }
    /// In place of the [`Embedding`](crate::Embedding): ids `[B]` to `Y[B,D]` of the stream.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn embedding(&self, _: &Builder<D>, _: &Embedding) -> Result<Option<Part<D, Ids<D::Place>, Stream<D>>>> {
        Ok(None)
    }
    /// In place of the [`Head`](crate::Head), the norm in front of it included: `X[B,D]` of the stream to the loss or to
    /// logits, as an [`Ending`] says.
    ///
    /// # Errors
    /// If the ranks do not fit.
    fn head(&self, _: &Builder<D>, _: &Head) -> Result<Option<Part<D, Ending<D>, Option<Output<D>>>>> {
        Ok(None)
    }
}
