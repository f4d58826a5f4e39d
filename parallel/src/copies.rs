//! Copies of parameters: ranks that hold the same elements compare digests of them.
//!
//! ```text
//! once       every rank    which blocks of which tensors it keeps         48 bytes a block
//! a check    every rank    a digest of each block that others hold too    8 bytes a block
//! ```
//! A block is a rectangle of a whole tensor, cut as checkpoints cut it: the elements that a rank keeps
//! between steps, of the value, its master and the optimizer's state. Data and context ranks hold the same
//! blocks, and so do tensor ranks with the same norm or KV head, stages with a tied embedding, and subgroups
//! of shards. Shards of one group are apart and are not compared.
//!
//! State that is kept off the device is loaded one tensor at a time. An update holds more, so a check needs
//! no price of its own.
use crate::Result;
use comm::{Mesh, named_ranks};
use kernels::Kernels;
use ops::{Param, ParamTensor, SavedRectangle, Wide};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use tensor::dtype::Storable;
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

/// Digest of a parameter's name, digest of its tensor's name, first row and column, rows and columns.
type TensorBlock = [u64; 6];

/// The blocks that several ranks hold, with these ranks.
pub struct Copies(BTreeMap<TensorBlock, BTreeSet<usize>>);

/// A block of which ranks hold different values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyDifference {
    /// The parameter, or the tensor of its state.
    pub tensor: String,
    /// The ranks whose values most of these ranks hold; without a majority, those that agree with the first.
    pub agree: Vec<usize>,
    /// True if they are a majority.
    pub most: bool,
    /// The ranks with other values.
    pub differ: Vec<usize>,
}

impl Copies {
    /// Finds the blocks that several ranks hold, after a step. Every rank calls it.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn of<D: Kernels>(params: &[&mut Param<D>], mesh: &Mesh<D::Place>) -> Result<Self> {
        let tensors = params.iter().flat_map(|param| param.tensors());
        let own: Vec<TensorBlock> =
            tensors.flat_map(|tensor| blocks(&tensor, &tensor.rectangles())).collect();
        let all = mesh.world().named("blocks of parameters").all_gather_values(&own)?;
        let mut holders = BTreeMap::<_, BTreeSet<_>>::new();
        for (rank, own) in all.into_iter().enumerate() {
            for block in own {
                holders.entry(block).or_default().insert(rank);
            }
        }
        holders.retain(|_, ranks| ranks.len() > 1);
        Ok(Self(holders))
    }
    /// Returns whether no two ranks hold the same elements.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
    /// Compares the values of all blocks that several ranks hold, bit for bit, and returns the first
    /// difference, the same on all ranks. Every rank calls it.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn difference<D: Kernels>(
        &self,
        params: &[&mut Param<D>],
        mesh: &Mesh<D::Place>,
    ) -> Result<Option<CopyDifference>>
    where
        Wide<D>: Storable,
    {
        let mut own = BTreeMap::new();
        for tensor in params.iter().flat_map(|param| param.tensors()) {
            let rectangles = tensor.rectangles();
            let blocks = blocks(&tensor, &rectangles);
            if blocks.iter().any(|block| self.0.contains_key(block)) {
                let at_rest = tensor.read();
                let values = at_rest.read();
                let of = |rectangle| values.as_ref().map_or(0, |values| digest(values, rectangle));
                own.extend(blocks.into_iter().zip(rectangles.iter().map(of)));
            }
        }
        let own: Vec<u64> = self.0.keys().filter_map(|block| own.get(block).copied()).collect();
        let all = mesh.world().named("digests of parameters").all_gather_values(&own)?;
        let mut all: Vec<_> = all.iter().map(|digests| digests.iter()).collect();
        let mut apart = BTreeMap::new();
        for (block, ranks) in &self.0 {
            let mut alike = BTreeMap::<_, Vec<usize>>::new();
            for &rank in ranks {
                alike.entry(all[rank].next()).or_default().push(rank);
            }
            if alike.len() > 1 {
                apart.insert(*block, alike.into_values().collect::<Vec<_>>());
            }
        }
        if apart.is_empty() { Ok(None) } else { first(&apart, params, mesh).map(Some) }
    }
}

/// Returns the first of these blocks in program order, with the ranks that hold each of its values.
fn first<D: Kernels>(
    apart: &BTreeMap<TensorBlock, Vec<Vec<usize>>>,
    params: &[&mut Param<D>],
    mesh: &Mesh<D::Place>,
) -> Result<CopyDifference> {
    let is_apart = |tensor: &ParamTensor<D>| {
        blocks(tensor, &tensor.rectangles()).into_iter().find(|block| apart.contains_key(block))
    };
    let mut tensors = params.iter().flat_map(|param| param.tensors());
    let own = tensors.find_map(|tensor| is_apart(&tensor).map(|block| (block, tensor.to_string())));
    let (block, name) = own.map_or((Vec::new(), String::new()), |(block, name)| (vec![block], name));
    let world = mesh.world().named("a parameter that differs");
    let blocks = world.all_gather_values(&block)?;
    let names = world.all_gather_values(name.as_bytes())?;
    let (rank, block) = (blocks.iter().enumerate())
        .find_map(|(rank, block)| Some((rank, block.first()?)))
        .expect("a rank holds it");
    let alike = &apart[block];
    let holders: usize = alike.iter().map(Vec::len).sum();
    let most = alike.iter().find(|ranks| 2 * ranks.len() > holders);
    let agree = most.or(alike.iter().min()).expect("several ranks hold it").clone();
    let mut differ: Vec<_> = alike.iter().filter(|ranks| **ranks != agree).flatten().copied().collect();
    differ.sort_unstable();
    let tensor = String::from_utf8_lossy(&names[rank]).into_owned();
    Ok(CopyDifference { tensor, agree, most: most.is_some(), differ })
}

/// The blocks of a tensor, one for each of its rectangles.
fn blocks<D: Kernels>(tensor: &ParamTensor<D>, rectangles: &[SavedRectangle]) -> Vec<TensorBlock> {
    let [param, name] = [tensor.param(), tensor.name()].map(|name| xxh3_64(name.as_bytes()));
    let of = |SavedRectangle { begin: [row, col], shape: [rows, cols], .. }: &SavedRectangle| {
        let [row, col, rows, cols] = [row, col, rows, cols].map(|n| *n as u64);
        [param, name, row, col, rows, cols]
    };
    rectangles.iter().map(of).collect()
}

/// Digest of the elements of a rectangle.
fn digest<E: Storable>(values: &[E], of: &SavedRectangle) -> u64 {
    let mut hash = Xxh3::new();
    for row in 0..of.shape[0] {
        hash.update(bytemuck::cast_slice::<E, u8>(&values[of.from + row * of.stride..][..of.shape[1]]));
    }
    hash.digest()
}

impl fmt::Display for CopyDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tensor, agree, most, differ } = self;
        let [agree, differ] = [agree, differ].map(|ranks| named_ranks(ranks));
        let right = if *most { "the majority" } else { "and neither is a majority" };
        write!(f, "{tensor} of {differ} differs from that of {agree}, {right}")
    }
}

#[cfg(test)]
pub(crate) mod tests;
