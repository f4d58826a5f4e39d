//! What a strategy is: one way of splitting a model, as an entry of the list ([`crate::strategies`]).
//!
//! An entry says what it is called, how a layout names it, where it fits, where it comes from ([`About`]), and what it
//! builds ([`Strategy`]): where layers are built, and layers of its own in place of the usual ones. All that a layout
//! may say, what is drawn in property tests, the commands and the book's table come from the list.
use crate::model::part::Other;
use crate::param::placement::Section;
use crate::{Builder, NormKind, Result, Shape};
use comm::Axis;
use kernels::Kernels;

/// How a layout names a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// By the ranks of an axis: `tp=2`.
    Ranks(Axis),
    /// By a word beside the ranks of an axis: `tp=2,sp`.
    Beside(&'static str, Axis),
}

impl Key {
    /// The axis whose ranks it is about.
    pub fn axis(self) -> Axis {
        match self {
            Key::Ranks(axis) | Key::Beside(_, axis) => axis,
        }
    }
    /// How it is written for so many ranks.
    pub fn written(self, ranks: usize) -> String {
        match self {
            Key::Ranks(axis) => format!("{axis}={ranks}"),
            Key::Beside(word, axis) => format!("{axis}={ranks},{word}"),
        }
    }
}

/// What the ranks of an axis share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shared {
    /// What: "KV heads".
    pub what: &'static str,
    /// How many there are.
    pub size: usize,
    /// Whether several ranks may hold the same one.
    pub copies: bool,
}

impl Shared {
    /// Whether so many ranks can share it.
    pub fn fits(&self, ranks: usize) -> bool {
        self.size.is_multiple_of(ranks) || (self.copies && ranks.is_multiple_of(self.size))
    }
}

/// All that is said of a strategy; none of it is said anywhere else.
#[derive(Clone, Copy, Debug)]
pub struct About {
    /// Its name in the literature.
    pub name: &'static str,
    /// How a layout names it.
    pub key: Key,
    /// What each rank has, in a few words.
    pub splits: &'static str,
    /// Where it fits: what the ranks of its axis share of a model. Nothing: any number of ranks will do.
    pub shares: fn(&Shape) -> Vec<Shared>,
    /// Where it comes from.
    pub paper: &'static str,
    /// The file of the book's chapter about it, if there is one.
    pub chapter: Option<&'static str>,
    /// Where to look first when it is not equal: a part of a tensor's name, and what such a tensor is about, without a
    /// full stop. The first counts that the name contains, as it is told: `texts: blocks.0.attention.out.out`, `step 0:
    /// gradient of blocks.1.norm2`. The last one is for any tensor: `""`. Of a layout's strategies that one speaks which
    /// built the layer.
    pub hints: &'static [(&'static str, &'static str)],
}

/// What a strategy builds. Each method that is left out leaves things as they are. Embedding and head are built as ever.
pub trait Strategy<D: Kernels>: Sync {
    /// What is said of it.
    fn about(&self) -> &'static About;
    /// Where layers are built.
    fn place<'a>(&self, at: Builder<'a, D>) -> Builder<'a, D> {
        at
    }
    /// In place of a [`ColumnLinear`](crate::ColumnLinear): `X[B,I]` of the stream to `Y[B,O_t]`.
    ///
    /// # Errors
    /// If the ranks do not fit; so it is below.
    fn column(&self, _: &Builder<D>, _: &Column) -> Result<Option<Other<D, crate::ColumnLinear<D>>>> {
        Ok(None)
    }
    /// In place of a [`RowLinear`](crate::RowLinear): `X[B,I_t]` to `Y[B,O]` of the stream.
    ///
    /// # Errors
    /// As above.
    fn row(&self, _: &Builder<D>, _: &Row) -> Result<Option<Other<D, crate::RowLinear<D>>>> {
        Ok(None)
    }
    /// In place of a [`Norm`](crate::Norm), the final one included: `X[B,D]` of the stream to as many. The gradient that
    /// goes around the norm is added outside of the layer.
    ///
    /// # Errors
    /// As above.
    fn norm(&self, _: &Builder<D>, _: &Norm) -> Result<Option<Other<D, crate::Norm<D>>>> {
        Ok(None)
    }
}

/// A column layer to be built: parameter `name[I, Σ sections]`, and `name.bias` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `I`.
    pub inputs: usize,
    /// Each cut on its own.
    pub sections: &'a [Section],
    /// Whether it has a bias.
    pub bias: bool,
}

/// A row layer to be built: parameter `name[I, O]`, and `name.bias` if there is one.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Over the ranks of this axis.
    pub axis: Axis,
    /// Its name.
    pub name: &'a str,
    /// `[I, O]`.
    pub sizes: [usize; 2],
    /// Whether it has a bias.
    pub bias: bool,
}

/// A norm to be built: parameter `name[1, D]`, and `name.bias` where its kind has one.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a> {
    /// Which.
    pub kind: NormKind,
    /// Its name.
    pub name: &'a str,
    /// `D`.
    pub width: usize,
    /// ε, inside the root.
    pub eps: f64,
}
