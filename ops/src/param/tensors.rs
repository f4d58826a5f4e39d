//! The tensors of a parameter that this rank keeps at rest: its value, the master of a narrow value, and each
//! tensor of optimizer state. Checkpoints and comparisons of replicas walk this list.
//!
//! ```text
//! sharded at rest        each rank saves its shard; of subgroups with equal shards, the first
//! whole on all ranks     the first of the ranks that sum the gradient, or that hold a replicated parameter
//! pieces with holders    the first holder of each piece: KV heads that several tensor ranks share
//! tied over stages       the first stage
//! ```
//! Over all ranks, every element of a whole tensor is saved once; padding never is.
use crate::param::placement::CutRectangle;
use crate::param::sharding::TensorLayout;
use crate::param::state::{MASTER, StateTensor, VALUE};
use crate::{Param, Wide};
use kernels::Kernels;
use std::borrow::Cow;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// A tensor of a parameter at rest on this rank.
pub struct ParamTensor<'a, D: Kernels> {
    param: &'a Param<D>,
    state: Option<&'a StateTensor<D::Wide>>, // none for the value
}

/// A tensor at rest: a value in the dtype of the device, or wide state.
pub enum TensorAtRest<D: Kernels> {
    /// A value.
    Value(Tensor<D>),
    /// A master, or optimizer state.
    Wide(Tensor<D::Wide>),
}

/// Elements of a tensor at rest that form a rectangle of the whole tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedRectangle {
    /// First row and column in the whole.
    pub begin: [usize; 2],
    /// Rows and columns.
    pub shape: [usize; 2],
    /// Index of the first element in the tensor at rest.
    pub from: usize,
    /// Number of elements from one row to the next in the tensor at rest.
    pub stride: usize,
}

/// The elements of a tensor that this rank saves.
pub struct SavedPart<D: Kernels> {
    /// Name of the parameter.
    pub param: Arc<str>,
    /// Name of the tensor in files.
    pub name: &'static str,
    /// The tensor at rest on this rank.
    pub tensor: TensorAtRest<D>,
    /// Its elements that this rank saves.
    pub rectangles: Vec<SavedRectangle>,
}

impl<D: Kernels> Param<D> {
    /// Returns the tensors that this rank keeps at rest. A rank keeps nothing of a parameter that rests on
    /// another one, the root.
    pub fn tensors(&self) -> impl Iterator<Item = ParamTensor<'_, D>> {
        let states = std::iter::once(None).chain(self.states.iter().map(Some));
        states.filter(|_| !self.sharding.is_elsewhere()).map(|state| ParamTensor { param: self, state })
    }
}

impl<'a, D: Kernels> ParamTensor<'a, D> {
    /// Name of its parameter.
    pub fn param(&self) -> &'a str {
        self.param.name()
    }
    /// Its name: [`VALUE`], [`MASTER`], or that of the optimizer's state.
    pub fn name(&self) -> &'static str {
        self.state.map_or(VALUE, |state| state.info.name)
    }
    /// Returns the elements at rest. Loads state that is kept off the device.
    pub fn read(&self) -> TensorAtRest<D> {
        match self.state {
            Some(state) => TensorAtRest::Wide(state.kept.read()),
            None => TensorAtRest::Value(self.param.value.at_rest().expect("a value at rest")),
        }
    }
    /// Returns its elements as rectangles of the whole tensor; padding is left out.
    pub fn rectangles(&self) -> Vec<SavedRectangle> {
        self.placed().map(|(rectangle, _)| rectangle).collect()
    }
    /// Returns the elements that this rank saves; `None` if it saves none of them. A master is saved in place
    /// of its value.
    pub fn saved(&self) -> Option<SavedPart<D>> {
        let name = match self.name() {
            VALUE if self.param.has_master() => return None,
            MASTER => VALUE,
            name => name,
        };
        if !self.param.sharding.saves(self.layout().is_shard) {
            return None;
        }
        let rectangles: Vec<_> =
            self.placed().filter_map(|(rectangle, first)| first.then_some(rectangle)).collect();
        if rectangles.is_empty() {
            return None;
        }
        Some(SavedPart { param: self.param.name.clone(), name, tensor: self.read(), rectangles })
    }
    fn layout(&self) -> Cow<'_, TensorLayout> {
        match self.state {
            Some(state) => Cow::Borrowed(&state.layout),
            None => Cow::Owned(self.param.sharding.of_value(self.param.value.shard().is_some())),
        }
    }
    /// Returns its rectangles, each with whether no lower rank holds its pieces.
    fn placed(&self) -> impl Iterator<Item = (SavedRectangle, bool)> {
        let TensorLayout { cuts, shape, from, .. } = self.layout().into_owned();
        let stride = cuts.local[1];
        let rectangle = move |CutRectangle { from, shape, whole, first, .. }: CutRectangle| {
            whole.map(|begin| (SavedRectangle { begin, shape, from, stride }, first))
        };
        cuts.rectangles(from, shape[0] * shape[1]).into_iter().filter_map(rectangle)
    }
}

impl<D: Kernels> std::fmt::Display for ParamTensor<'_, D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.state {
            Some(state) => write!(f, "{} of {}", state.info.name, self.param()),
            None => f.write_str(self.param()),
        }
    }
}

impl<D: Kernels> SavedPart<D> {
    /// Returns a copy that later updates do not change.
    #[must_use]
    pub fn snapshot(self) -> Self {
        Self { tensor: self.tensor.snapshot(), ..self }
    }
}

impl<D: Kernels> TensorAtRest<D> {
    /// Returns the elements on the host, wide; `None` on the meta device. They are copied only if they are
    /// elsewhere, or narrow.
    pub fn read(&self) -> Option<Cow<'_, [Wide<D>]>> {
        match self {
            Self::Value(value) => value.values().map(Scalar::widened),
            Self::Wide(wide) => wide.values(),
        }
    }
    fn snapshot(&self) -> Self {
        fn copy<E: Kernels>(of: &Tensor<E>) -> Tensor<E> {
            let mut copy = Tensor::empty(of.device(), Category::Snapshot, of.rows(), of.cols());
            of.device().copy(copy.view_mut(), of.view());
            copy
        }
        match self {
            Self::Value(value) => Self::Value(copy(value)),
            Self::Wide(wide) => Self::Wide(copy(wide)),
        }
    }
}
