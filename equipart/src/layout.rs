//! How a model is split: how many ranks along each axis, as the user writes it.
//!
//! ```text
//! layout = "none" | part { "," part }       part = axis "=" ranks | "sp"
//! ```
//! An axis left out has one rank. `sp`: sequence regions, in which the tensor ranks share the tokens of norms, dropout
//! and residuals; it needs tensor ranks, and has no number of its own (`sp=2` is taken where it is that of `tp`). Printed: the axes that are split, innermost first (the one whose ranks talk most
//! comes first, as in `tp=2,dp=2`); `none` if there is none. What is printed reads back as the same layout.
use comm::{Axis, Mesh};
use kernels::Kernels;
use layers::{Builder, Shape, Values};
use std::fmt;
use std::str::FromStr;

/// The most ranks a layout may have.
pub const MAX_RANKS: usize = 1024;

const AXES: usize = Axis::ALL.len();

/// How many ranks there are along each axis: pure data. The default is the unsplit model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layout {
    sizes: [usize; AXES], // by `Axis as usize`; each at least 1, the product at most MAX_RANKS
    regions: bool,        // only with tensor ranks
}

/// Why a layout is none, or does not fit a model: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Nothing was written.
    #[error("the layout is empty; write none, or ranks along axes, such as {}", example())]
    Empty,
    /// Not `axis=ranks`: a comma too many, no `=`.
    #[error("{part:?} is no part of a layout; write axis=ranks, such as {}", example())]
    Part {
        /// What stands between two commas.
        part: String,
    },
    /// An axis that does not exist.
    #[error("{key:?} is no axis of a layout; the axes are {}", either(&names(), "and"))]
    Unknown {
        /// What stands before the `=`.
        key: String,
    },
    /// An axis given twice.
    #[error("the {axis} axis is given twice; give each axis once")]
    Twice {
        /// The axis.
        axis: Axis,
    },
    /// Sequence regions without tensor ranks, or of another number.
    #[error("{seen} is written beside tp={tp}; sequence regions are over the tensor ranks: write {}",
        if *tp > 1 { "sp" } else { "tp=2,sp" })]
    Regions {
        /// What was written.
        seen: String,
        /// Tensor ranks.
        tp: usize,
    },
    /// Ranks that are no number of at least 1.
    #[error("{axis} is {seen:?}; it must be a whole number of ranks, 1 or more")]
    Size {
        /// The axis.
        axis: Axis,
        /// What stands after the `=`.
        seen: String,
    },
    /// More ranks than there may be.
    #[error("{seen} makes more than {MAX_RANKS} ranks; the product of all axes must be at most {MAX_RANKS}")]
    Many {
        /// The sizes, as they were given.
        seen: String,
    },
    /// `none` beside an axis.
    #[error("none stands alone: it cannot be combined with {with:?}")]
    Combined {
        /// Another part of the layout.
        with: String,
    },
    /// A model that the ranks of an axis cannot share.
    #[error("{axis}={ranks} does not fit {shared}: {axis} can be {}", either(possible, "or"))]
    Fit {
        /// The axis.
        axis: Axis,
        /// Its ranks.
        ranks: usize,
        /// What they cannot share, with its size: "4 key heads".
        shared: String,
        /// The numbers of ranks that would fit, all else unchanged.
        possible: Vec<usize>,
    },
}

impl Default for Layout {
    fn default() -> Self {
        Self::UNSPLIT
    }
}

impl Layout {
    /// The model in one piece, on one rank.
    pub const UNSPLIT: Self = Self { sizes: [1; AXES], regions: false };

    /// The sizes in any order; axes left out have one rank.
    ///
    /// # Errors
    /// If an axis has no ranks or is given twice, or there are more than [`MAX_RANKS`] ranks.
    pub fn new(sizes: &[(Axis, usize)]) -> Result<Self, LayoutError> {
        let mut given = [None; AXES];
        for &(axis, size) in sizes {
            if size == 0 {
                return Err(LayoutError::Size { axis, seen: "0".into() });
            }
            if given[axis as usize].replace(size).is_some() {
                return Err(LayoutError::Twice { axis });
            }
        }
        let sizes_of = given.map(|size| size.unwrap_or(1));
        let ranks = sizes_of.iter().try_fold(1usize, |ranks, &size| ranks.checked_mul(size));
        if ranks.is_none_or(|ranks| ranks > MAX_RANKS) {
            let seen: Vec<_> = sizes.iter().map(|(axis, size)| format!("{axis}={size}")).collect();
            return Err(LayoutError::Many { seen: seen.join(",") });
        }
        Ok(Self { sizes: sizes_of, regions: false })
    }
    /// The same in sequence regions.
    ///
    /// # Errors
    /// If there is one tensor rank only.
    pub fn in_regions(self) -> Result<Self, LayoutError> {
        let tp = self.size(Axis::Tp);
        if tp == 1 { Err(LayoutError::Regions { seen: "sp".into(), tp }) } else { Ok(Self { regions: true, ..self }) }
    }
    /// Whether each tensor rank has its own tokens of norms, dropout and residuals.
    pub fn has_regions(&self) -> bool {
        self.regions
    }
    /// The place where this layout's ranks build a model.
    pub fn place<'a, D: Kernels>(
        &self,
        device: &'a D,
        mesh: &'a Mesh<D>,
        values: &'a dyn Values<D::Elem>,
    ) -> Builder<'a, D> {
        let at = Builder::new(device, mesh, values);
        if self.regions { at.in_regions() } else { at }
    }
    /// How many ranks there are in all.
    pub fn ranks(&self) -> usize {
        self.sizes.iter().product()
    }
    /// How many ranks there are along an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }
    /// Every axis with its ranks, outermost first: what a world is made of.
    pub fn axes(&self) -> Vec<(Axis, usize)> {
        Axis::ALL.iter().map(|&axis| (axis, self.size(axis))).collect()
    }
    /// Whether the ranks of every axis can share a model of this shape.
    ///
    /// # Errors
    /// If an axis has ranks that do not divide what they share; says which numbers do.
    pub fn fits(&self, shape: &Shape) -> Result<(), LayoutError> {
        for (axis, ranks) in self.axes() {
            let shared = shared(axis, shape);
            let bad: Vec<_> = shared.iter().filter(|s| !s.fit(ranks)).map(|s| format!("{} {}", s.size, s.what)).collect();
            if !bad.is_empty() {
                let limit = MAX_RANKS / (self.ranks() / ranks);
                let possible = (1..=limit).filter(|n| shared.iter().all(|s| s.fit(*n))).collect();
                return Err(LayoutError::Fit { axis, ranks, shared: either(&bad, "and"), possible });
            }
        }
        Ok(())
    }
}

/// What the ranks of an axis share.
struct Shared {
    what: &'static str,
    size: usize,
    copies: bool, // several ranks may hold the same one
}

impl Shared {
    fn fit(&self, ranks: usize) -> bool {
        self.size.is_multiple_of(ranks) || (self.copies && ranks.is_multiple_of(self.size))
    }
}

fn shared(axis: Axis, shape: &Shape) -> Vec<Shared> {
    let one = |what, size, copies| Shared { what, size, copies };
    match axis {
        Axis::Dp => vec![],
        Axis::Tp => vec![
            one("query heads", shape.heads.queries, false),
            one("key heads", shape.heads.keys, true),
            one("hidden features", shape.hidden, false),
        ],
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let split = self.axes().into_iter().rev().filter(|&(_, size)| size > 1);
        let mut parts: Vec<_> = split.map(|(axis, size)| format!("{axis}={size}")).collect();
        if self.regions {
            parts.insert(1, "sp".into()); // after the tensor ranks, which are innermost
        }
        f.pad(&if parts.is_empty() { "none".into() } else { parts.join(",") })
    }
}

impl FromStr for Layout {
    type Err = LayoutError;
    fn from_str(text: &str) -> Result<Self, LayoutError> {
        if text.trim().is_empty() {
            return Err(LayoutError::Empty);
        }
        let parts: Vec<_> = text.split(',').map(str::trim).collect();
        if parts.contains(&"none") {
            let other =
                (parts.len() > 1).then(|| parts.iter().find(|part| **part != "none").unwrap_or(&"none"));
            return other
                .map_or(Ok(Self::UNSPLIT), |with| Err(LayoutError::Combined { with: (*with).to_owned() }));
        }
        let is_region = |part: &&str| part.split('=').next().is_some_and(|key| key.trim() == "sp");
        let (regions, axes): (Vec<_>, Vec<_>) = parts.into_iter().partition(is_region);
        let layout = Self::new(&axes.into_iter().map(split).collect::<Result<Vec<_>, _>>()?)?;
        let tp = layout.size(Axis::Tp);
        match regions[..] {
            [] => Ok(layout),
            [part] if part == "sp" || part.split_once('=').is_some_and(|(_, n)| n.trim() == tp.to_string()) => {
                layout.in_regions()
            }
            [part] => Err(LayoutError::Regions { seen: part.into(), tp }),
            _ => Err(LayoutError::Regions { seen: regions.join(","), tp }),
        }
    }
}

/// `axis=ranks`.
fn split(part: &str) -> Result<(Axis, usize), LayoutError> {
    let (key, size) = part.split_once('=').ok_or_else(|| LayoutError::Part { part: part.into() })?;
    let (key, size) = (key.trim(), size.trim());
    let axis = Axis::ALL.iter().copied().find(|axis| axis.name() == key);
    let axis = axis.ok_or_else(|| LayoutError::Unknown { key: key.into() })?;
    if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(LayoutError::Size { axis, seen: size.into() });
    }
    let size = size.parse().map_err(|_| LayoutError::Many { seen: format!("{axis}={size}") })?;
    Ok((axis, size))
}

fn names() -> Vec<&'static str> {
    Axis::ALL.iter().rev().map(|axis| axis.name()).collect()
}

fn example() -> String {
    names().iter().map(|name| format!("{name}=2")).collect::<Vec<_>>().join(",")
}

/// "1", "1 or 2", "1, 2 or 4".
fn either<T: fmt::Display>(all: &[T], last: &str) -> String {
    let words: Vec<_> = all.iter().map(T::to_string).collect();
    match words.split_last() {
        Some((end, rest)) if !rest.is_empty() => format!("{} {last} {end}", rest.join(", ")),
        _ => words.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Heads;

    fn read(text: &str) -> Result<Layout, LayoutError> {
        text.parse()
    }
    fn why(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }
    fn shape(queries: usize, keys: usize, hidden: usize) -> Shape {
        Shape { width: 8, heads: Heads { queries, keys, dim: 4 }, hidden, ..Shape::LLAMA }
    }

    /// Every layout of at most `MAX_RANKS` ranks. Kills: an axis printed and not read, or read as another.
    #[test]
    fn every_printed_layout_reads_back_as_itself() {
        let mut all = vec![vec![]];
        for &axis in Axis::ALL {
            let longer = |sizes: &Vec<(Axis, usize)>| {
                let ranks: usize = sizes.iter().map(|(_, size)| size).product();
                (1..=MAX_RANKS / ranks)
                    .map(|size| [sizes.clone(), vec![(axis, size)]].concat())
                    .collect::<Vec<_>>()
            };
            all = all.iter().flat_map(longer).collect();
        }
        assert!(all.len() > 5_000);
        for sizes in all {
            let layout = Layout::new(&sizes).unwrap();
            assert_eq!(layout.axes(), sizes);
            assert_eq!(layout.ranks(), sizes.iter().map(|(_, size)| size).product::<usize>());
            assert!(sizes.iter().all(|&(axis, size)| layout.size(axis) == size));
            assert_eq!(read(&layout.to_string()), Ok(layout));
            let spelt: Vec<_> = sizes.iter().map(|(axis, size)| format!(" {axis} = {size}\t")).collect();
            assert_eq!(read(&spelt.join(",")), Ok(layout));
        }
    }

    #[test]
    fn layouts_are_printed_as_users_write_them() {
        let printed = |sizes: &[(Axis, usize)]| Layout::new(sizes).unwrap().to_string();
        assert_eq!(printed(&[(Axis::Dp, 2), (Axis::Tp, 4)]), "tp=4,dp=2");
        assert_eq!(printed(&[(Axis::Dp, 2), (Axis::Tp, 1)]), "dp=2");
        assert_eq!((printed(&[(Axis::Tp, 1)]), printed(&[])), ("none".to_owned(), "none".to_owned()));
        assert_eq!(format!("{:<6}|", Layout::UNSPLIT), "none  |");
        for unsplit in ["none", " none ", "tp=1", "dp=1,tp=1", "tp=01"] {
            assert_eq!(read(unsplit), Ok(Layout::default()), "{unsplit}");
        }
        assert_eq!(read("dp=2,tp=4"), read("tp=4,dp=2"));
        assert_eq!(Layout::UNSPLIT.axes().len(), Axis::ALL.len());
    }

    #[test]
    fn what_is_no_layout_is_said_in_one_sentence() {
        let empty = "the layout is empty; write none, or ranks along axes, such as tp=2,dp=2";
        assert_eq!((why(""), why(" ")), (empty.to_owned(), empty.to_owned()));
        assert_eq!(why("tp=2,"), "\"\" is no part of a layout; write axis=ranks, such as tp=2,dp=2");
        assert_eq!(why("tp"), "\"tp\" is no part of a layout; write axis=ranks, such as tp=2,dp=2");
        assert_eq!(why("zp=2"), "\"zp\" is no axis of a layout; the axes are tp and dp");
        assert_eq!(why("TP=2"), "\"TP\" is no axis of a layout; the axes are tp and dp");
        assert_eq!(why("tp=2,dp=2,tp=2"), "the tp axis is given twice; give each axis once");
        for (text, seen) in [("tp=", ""), ("tp=0", "0"), ("tp=-1", "-1"), ("tp=+2", "+2"), ("tp=2=2", "2=2")]
        {
            let wanted = format!("tp is {seen:?}; it must be a whole number of ranks, 1 or more");
            assert_eq!(why(text), wanted);
        }
        for with in ["none,tp=2", "tp=2,none", "tp=2, none ,"] {
            assert_eq!(why(with), "none stands alone: it cannot be combined with \"tp=2\"");
        }
        assert_eq!(why("none,none"), "none stands alone: it cannot be combined with \"none\"");
    }

    #[test]
    fn more_ranks_than_there_may_be_are_refused() {
        let wanted =
            |seen| format!("{seen} makes more than 1024 ranks; the product of all axes must be at most 1024");
        assert_eq!(read("tp=32,dp=32").unwrap().ranks(), 1024);
        let huge = format!("tp={},dp=2", 1u64 << 63);
        for text in ["tp=1025", "tp=32,dp=33", "tp=99999999999999999999", huge.as_str()] {
            assert_eq!(why(text), wanted(text));
        }
    }

    #[test]
    fn ranks_that_cannot_share_a_model_are_refused_with_those_that_can() {
        let fits = |text: &str, shape: &Shape| read(text).unwrap().fits(shape).map_err(|why| why.to_string());
        let model = shape(8, 4, 96);
        for good in ["none", "tp=2", "tp=4", "tp=8,sp", "tp=4,dp=256", "dp=1023"] {
            assert_eq!(fits(good, &model), Ok(()), "{good}");
        }
        let wrong = |text: &str, shape: &Shape| fits(text, shape).unwrap_err();
        assert_eq!(
            wrong("tp=5", &model),
            "tp=5 does not fit 8 query heads, 4 key heads and 96 hidden features: tp can be 1, 2, 4 or 8"
        );
        assert_eq!(wrong("tp=16,dp=2", &model), "tp=16 does not fit 8 query heads: tp can be 1, 2, 4 or 8");
        assert_eq!(
            wrong("tp=4", &shape(12, 6, 96)),
            "tp=4 does not fit 6 key heads: tp can be 1, 2, 3, 6 or 12"
        );
        assert_eq!(
            wrong("tp=6", &shape(12, 6, 33)),
            "tp=6 does not fit 33 hidden features: tp can be 1 or 3"
        );
        assert_eq!(fits("tp=6", &shape(12, 1, 96)), Ok(()), "one key head, six copies");
        assert_eq!(
            wrong("tp=3,dp=300", &shape(4, 4, 4)),
            "tp=3 does not fit 4 query heads, 4 key heads and 4 hidden features: tp can be 1 or 2"
        );
    }

    /// Kills: regions that are printed and not read, or taken where there is nobody to share tokens with.
    #[test]
    fn sequence_regions_are_over_the_tensor_ranks() {
        for text in ["tp=2,sp", "sp,tp=2", "sp=2, tp=2", "tp = 2 , sp = 2"] {
            let layout = read(text).unwrap();
            assert_eq!((layout.to_string(), layout.has_regions(), layout.ranks()), ("tp=2,sp".into(), true, 2));
        }
        assert_eq!(read("dp=2,sp,tp=4").unwrap().to_string(), "tp=4,sp,dp=2");
        assert_eq!(read("tp=4,sp,dp=2"), read("dp=2,sp,tp=4"));
        assert_ne!(read("tp=2,sp"), read("tp=2"));
        let over = "sequence regions are over the tensor ranks: write";
        assert_eq!(why("sp"), format!("sp is written beside tp=1; {over} tp=2,sp"));
        assert_eq!(why("dp=2,sp=2"), format!("sp=2 is written beside tp=1; {over} tp=2,sp"));
        assert_eq!(why("tp=2,sp=4"), format!("sp=4 is written beside tp=2; {over} sp"));
        assert_eq!(why("tp=2,sp,sp"), format!("sp,sp is written beside tp=2; {over} sp"));
    }
}
