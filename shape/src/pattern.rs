//! Blocks that differ from the others of their model, as sets of block ids.
use serde::{Deserialize, Serialize};
use tensor::Rope;

/// A set of blocks of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<usize>", into = "Vec<usize>")]
pub struct Blocks(u128);

impl Blocks {
    /// Number of blocks that a set can hold: block ids are below it.
    pub const MOST: usize = 128;
    /// No block.
    pub const NONE: Self = Self(0);
    /// The first block alone.
    pub const FIRST: Self = Self(1);

    /// Returns true if a block is in the set.
    #[must_use]
    pub fn contains(self, block: usize) -> bool {
        block < Self::MOST && self.0 >> block & 1 == 1
    }
    /// Returns the blocks of the set, in order.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..Self::MOST).filter(move |&block| self.contains(block))
    }
}

impl FromIterator<usize> for Blocks {
    /// Ignores block ids of [`Blocks::MOST`] and above.
    fn from_iter<I: IntoIterator<Item = usize>>(blocks: I) -> Self {
        Self(blocks.into_iter().filter(|&block| block < Self::MOST).fold(0, |all, block| all | 1 << block))
    }
}
impl From<Vec<usize>> for Blocks {
    fn from(blocks: Vec<usize>) -> Self {
        blocks.into_iter().collect()
    }
}
impl From<Blocks> for Vec<usize> {
    fn from(blocks: Blocks) -> Self {
        blocks.iter().collect()
    }
}

/// The blocks that differ from what their model's shape says of all. Each set says where an option of the
/// shape is missing, or another one stands in its place; a block can be in several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Pattern {
    /// Blocks with a dense feed-forward, in a model with experts.
    pub dense: Blocks,
    /// Blocks that attend to all tokens before, in a model with a window.
    pub whole: Blocks,
    /// Blocks with `other_rope`, in a model with rotary positions.
    pub other_positions: Blocks,
    /// Rotary positions of these blocks; `None`: they have no positions.
    pub other_rope: Option<Rope>,
}

impl Pattern {
    /// No block differs.
    pub const NONE: Self =
        Self { dense: Blocks::NONE, whole: Blocks::NONE, other_positions: Blocks::NONE, other_rope: None };

    /// Returns the pattern of a model of these blocks, in order.
    #[must_use]
    pub(crate) fn of_blocks(self, blocks: &[usize]) -> Self {
        let chosen = |set: Blocks| (0..blocks.len()).filter(|&i| set.contains(blocks[i])).collect();
        let Self { dense, whole, other_positions, other_rope } = self;
        Self {
            dense: chosen(dense),
            whole: chosen(whole),
            other_positions: chosen(other_positions),
            other_rope,
        }
    }
}
