//! What kernels are called in a profile, and of which kind each is. Both norms are one to a reader.
use tensor::Kind;

/// A kernel of the trait; [`super::run`] takes no other, so none runs without a kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kernel {
    Product,
    Pack,
    Fill,
    Copy,
    Stab,
    Add,
    AddRow,
    AddRows,
    Dropout,
    Rotate,
    Norm,
    NormBackward,
    Activate,
    ActivateBackward,
    Swiglu,
    SwigluBackward,
    Attention,
    AttentionFinish,
    AttentionDelta,
    AttentionBackward,
    Embed,
    EmbedBackward,
    LossStab,
    LossSums,
    Loss,
    LossBackward,
    TopK,
    Norm2,
    ClipFactor,
    Sgd,
    Adamw,
}

impl Kernel {
    /// Its name in reports, and its kind.
    pub(super) fn called(self) -> (&'static str, Kind) {
        match self {
            Kernel::Product => ("product", Kind::Product),
            Kernel::Pack => ("pack", Kind::Product),
            Kernel::Fill => ("fill", Kind::ElementWise),
            Kernel::Copy => ("copy", Kind::ElementWise),
            Kernel::Stab => ("stab", Kind::ElementWise),
            Kernel::Add => ("add", Kind::ElementWise),
            Kernel::AddRow => ("add row", Kind::ElementWise),
            Kernel::AddRows => ("add rows", Kind::ElementWise),
            Kernel::Dropout => ("dropout", Kind::ElementWise),
            Kernel::Rotate => ("rotate", Kind::ElementWise),
            Kernel::Norm => ("norm", Kind::Norm),
            Kernel::NormBackward => ("norm backward", Kind::Norm),
            Kernel::Activate => ("activate", Kind::ElementWise),
            Kernel::ActivateBackward => ("activate backward", Kind::ElementWise),
            Kernel::Swiglu => ("swiglu", Kind::ElementWise),
            Kernel::SwigluBackward => ("swiglu backward", Kind::ElementWise),
            Kernel::Attention => ("attention", Kind::Attention),
            Kernel::AttentionFinish => ("attention finish", Kind::Attention),
            Kernel::AttentionDelta => ("attention delta", Kind::Attention),
            Kernel::AttentionBackward => ("attention backward", Kind::Attention),
            Kernel::Embed => ("embed", Kind::EmbeddingAndLoss),
            Kernel::EmbedBackward => ("embed backward", Kind::EmbeddingAndLoss),
            Kernel::LossStab => ("loss stab", Kind::EmbeddingAndLoss),
            Kernel::LossSums => ("loss sums", Kind::EmbeddingAndLoss),
            Kernel::Loss => ("loss", Kind::EmbeddingAndLoss),
            Kernel::LossBackward => ("loss backward", Kind::EmbeddingAndLoss),
            Kernel::TopK => ("top k", Kind::EmbeddingAndLoss),
            Kernel::Norm2 => ("norm2", Kind::Optimizer),
            Kernel::ClipFactor => ("clip factor", Kind::Optimizer),
            Kernel::Sgd => ("sgd", Kind::Optimizer),
            Kernel::Adamw => ("adamw", Kind::Optimizer),
        }
    }
}

#[cfg(test)]
mod tests {
    /// Kills: an operation of the trait that runs without a name, which no profile would show. What says how
    /// many numbers something takes computes nothing.
    #[test]
    fn every_operation_of_the_trait_is_in_profiles() {
        let (_, operations) = include_str!("../kernels.rs").split_once("pub trait Kernels").unwrap();
        let (_, bodies) = include_str!("mod.rs").split_once("for Cpu<$s>").unwrap();
        let declared: Vec<_> = names(operations).collect();
        let bodies: Vec<_> = bodies.split("\n            fn ").skip(1).collect();
        let silent =
            bodies.iter().filter(|body| !body.contains("run!(")).filter_map(|body| body.split_once('('));
        assert_eq!(silent.map(|(name, _)| name).collect::<Vec<_>>(), ["packed_len", "attention_scratch"]);
        assert!(declared.len() > 30 && declared.len() == bodies.len(), "{declared:?}");
    }

    fn names(code: &str) -> impl Iterator<Item = &str> {
        code.split("\n    fn ").skip(1).filter_map(|body| Some(body.split_once('(')?.0))
    }
}
