//! The default layer of each description, used where no strategy builds another. Only this file names all
//! layers.
use crate::attention::core::AttentionCore;
use crate::build::part::BoxedLayer;
use crate::build::spec::Spec;
use crate::build::stage::{Ending, Output};
use crate::build::strategy::{Attention, Column, Core, Embedding, Head, Mlp, Norm, Row};
use crate::{Builder, ColumnLinear, RowLinear, Strategy, attention, mlp};
use kernels::Kernels;
use ops::{Branches, Result, Split, Stream};
use tensor::{Device, TokenIds};

/// `description: input => output; the strategy's method, the default constructor, true if it has its own line
/// in a profile`.
macro_rules! default_layers {
    ($($spec:ty: $x:ty => $y:ty; $own:ident, $usual:expr, $profiled:literal)*) => {$(
        impl<D: Kernels> Spec<D> for $spec {
            type In = $x;
            type Out = $y;
            const PROFILED: bool = $profiled;

            fn name(&self) -> &str {
                self.name
            }
            fn own(&self, at: &Builder<D>, strategy: &dyn Strategy<D>) -> Result<Option<BoxedLayer<D, $x, $y>>> {
                strategy.$own(at, self)
            }
            fn default_layer(&self, at: &Builder<D>) -> Result<BoxedLayer<D, $x, $y>> {
                $usual(at, self).map(BoxedLayer::new)
            }
        }
    )*};
}

default_layers! {
    Column<'_>: Stream<D> => Split<D>; column, ColumnLinear::shard, true
    Row<'_>: Split<D> => Stream<D>; row, RowLinear::shard, true
    Norm<'_>: Stream<D> => Branches<D>; norm, crate::Norm::new, true
    Attention<'_, D>: Stream<D> => Stream<D>; attention, attention::shard, false
    Core<'_>: Split<D> => Split<D>; core, |at, core| AttentionCore::new(at, core, None), false
    Mlp<'_>: Stream<D> => Stream<D>; feed_forward, mlp::shard, false
    Embedding<'_>: TokenIds<<D as Device>::Place> => Stream<D>; embedding, crate::Embedding::shard, false
    Head<'_>: Ending<D> => Option<Output<D>>; head, crate::Head::shard, false
}
