//! Tensor parallelism of experts, `etp=N`: the hidden features of every expert are split over the ranks, as
//! those of a usual feed-forward.
//!
//! ```text
//! forward    X of etp ranks   all-gather, B·D elements     Y, a partial sum   reduce-scatter, N·B·D elements
//! backward   dY               all-gather                   dX                 reduce-scatter
//! ```
//! Experts' weights are stored `[E·D, F]`, gate, up and down, so ep cuts their rows and etp their columns.
//! This strategy builds no layers.
//!
//! Source: Singh et al., "A hybrid tensor-expert-data parallelism approach", §4, arXiv:2303.06318.
//! Chapter: experts.
use comm::Axis;
use layers::{Choice, Design, Sizes, StrategyInfo};
use ops::{DividedSize, DivisionRule};

/// Its description.
pub static ABOUT: StrategyInfo = StrategyInfo {
    name: "tensor parallelism of experts",
    word: "etp",
    shares,
    paper: "Singh et al., arXiv:2303.06318",
    chapter: Some("experts.md"),
    hints: &[(
        "",
        "a product whose contracted dimension is split is a partial sum, of outputs and of gates' gradients alike",
    )],
    ..StrategyInfo::of(Some(Axis::Etp), Choice::Layers)
};

fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let experts = design.shape().and_then(|shape| shape.experts);
    let over = sizes.along(Axis::Etp);
    vec![match experts {
        Some(experts) => DividedSize {
            what: "hidden features of an expert",
            size: experts.hidden,
            over,
            by: DivisionRule::Equally,
        },
        None => DividedSize { what: "experts", size: 0, over, by: DivisionRule::AtLeastOne },
    }]
}
