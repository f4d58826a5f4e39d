//! The layer's proofs: every router and way of splitting, against the oracle; and those that an exchange has
//! in its file.
mod alone;
mod by_hand;

pub(crate) use crate::ExpertFeedForward;
use crate::TokenDispatcher;
use crate::dispatcher::all_to_all::AllToAll;
pub(crate) use comm::{Axis, Op};
use kernels::Activation;
pub(crate) use kernels::Kernels;
pub(crate) use layers::Builder;
use layers::build::strategy::Mlp;
use layers::proof::SEED;
pub(crate) use layers::proof::{Answer, Case, LayerInput, holds, proves, proves_in_regions};
use layers::{Experts, FeedForward, Groups, Scoring, SharedExpert};
pub(crate) use ops::Result;
use reference::{Mixture, Walk};
pub(crate) use tensor::Scalar;

pub(crate) const D: usize = 5;

pub(crate) fn mixtral() -> Experts {
    Experts { count: 5, chosen: 2, hidden: 4, ..Experts::MIXTRAL }
}
pub(crate) fn deepseek() -> Experts {
    let (groups, shared) =
        (Some(Groups { count: 3, chosen: 2 }), Some(SharedExpert { hidden: 12, gated: false }));
    let scoring = Scoring::Sigmoid;
    Experts { count: 6, chosen: 3, scoring, bias: Some(0.0), scale: 2.5, groups, shared, ..mixtral() }
}
pub(crate) fn qwen() -> Experts {
    let shared = Some(SharedExpert { hidden: 12, gated: true });
    Experts { normalize: false, shared, capacity: Some(0.75), ..mixtral() }
}

/// Each takes ⌈0.75·2·B/5⌉ of all B tokens.
pub(crate) fn choosing() -> Experts {
    Experts { by_experts: true, scale: 2.5, ..qwen() }
}

pub(crate) const SWIGLU: FeedForward = FeedForward::SWIGLU;

/// A layer of experts: settings and activation.
pub(crate) struct Layer(pub(crate) Experts, pub(crate) FeedForward);

impl Layer {
    pub(crate) fn mlp(&self) -> Mlp<'static> {
        let (kind, experts) = (self.1, Some(self.0));
        Mlp { axis: Axis::Tp, name: "mlp", kind, sizes: [D, 0], bias: false, experts }
    }
    fn mixture(&self) -> Mixture {
        Mixture { name: "mlp".into(), width: D, kind: self.1, experts: self.0 }
    }
    pub(crate) fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
        let layer = self.mixture();
        let pass =
            reference::Pass { seed: SEED, step: g.step, first_sequence: g.first, mean_over: 1, tokens: 1 };
        let mut walk = Walk::unseen(&g.weights, Some(pass));
        let (y, saved) = layer.forward(g.x.clone(), &g.lengths, &mut walk);
        let mut gradients = std::collections::BTreeMap::new();
        let dx = layer.backward((&saved, &g.dy), &mut walk, &mut gradients);
        Answer { y, dx, gradients }
    }
}

/// Layers whose ranks along dp and tp are split into ep and etp, too.
macro_rules! worlds {
    ($($Name:ident: $TokenDispatcher:ident, dp $dp:literal, tp $tp:expr, ep $ep:literal, etp $etp:literal;)*) => {$(
        struct $Name(Layer);
        impl Case for $Name {
            type Layer<T: Kernels> = ExpertFeedForward<T, $TokenDispatcher>;
            const RANKS: &'static [usize] = $tp;
            const EXPERTS: &'static [(Axis, usize)] = &[(Axis::Ep, $ep), (Axis::Etp, $etp)];
            const PREDICTED: bool = false;
            fn dealers(&self) -> Vec<(Axis, usize)> {
                ($dp > 1).then_some((Axis::Dp, $dp)).into_iter().collect()
            }
            fn features(&self) -> [usize; 2] {
                [D, D]
            }
            fn build<T: Kernels>(&self, at: &Builder<T>) -> Result<Self::Layer<T>> {
                ExpertFeedForward::new(at, &self.0.mlp(), self.0.0, $TokenDispatcher)
            }
            fn oracle<S: Scalar>(&self, g: &LayerInput<S>) -> Answer<S> {
                self.0.oracle(g)
            }
            fn traffic(&self, _: usize, _: usize) -> Vec<(Op, usize)> {
                vec![]
            }
            fn has_no_gradient(&self, parameter: &str, _: usize) -> bool {
                parameter.ends_with("router.bias")
            }
        }
    )*};
}

worlds! {
    Alone: AllToAll, dp 1, tp &[1, 2, 3], ep 1, etp 1;
    Two: AllToAll, dp 1, tp &[1, 2, 4], ep 2, etp 1;
    Four: AllToAll, dp 2, tp &[1, 2], ep 4, etp 1;
    Sliced: AllToAll, dp 1, tp &[1, 2], ep 1, etp 2;
    SlicedAndDealt: AllToAll, dp 2, tp &[1, 2], ep 2, etp 2;
}

/// The proofs of an exchange, for the end of its file. Kills: a row that goes to other experts, or home to
/// other tokens; copies that are lost, doubled or not dropped; experts that choose, sliced, or among ranks
/// with other tokens; any call gone wrong.
macro_rules! proves_dispatcher {
    ($TokenDispatcher:ident) => {
        mod tests {
            use super::$TokenDispatcher;
            use $crate::tests::*;

            worlds! {
                DividedSize: $TokenDispatcher, dp 1, tp &[1, 2, 4], ep 2, etp 1;
                Sliced: $TokenDispatcher, dp 2, tp &[1, 2], ep 2, etp 2;
            }

            #[test]
            fn experts_equal_the_oracle_over_ranks() {
                holds(&DividedSize(Layer(mixtral(), SWIGLU)));
                holds(&DividedSize(Layer(deepseek(), SWIGLU)));
                proves(&DividedSize(Layer(qwen(), SWIGLU)));
                proves_in_regions(&DividedSize(Layer(qwen(), SWIGLU)));
            }

            #[test]
            fn sliced_experts_equal_the_oracle() {
                proves(&Sliced(Layer(mixtral(), SWIGLU)));
                proves(&Sliced(Layer(choosing(), SWIGLU)));
                holds(&Sliced(Layer(deepseek(), SWIGLU)));
            }
        }
    };
}
pub(crate) use {proves_dispatcher, worlds};

/// Qwen's experts make every call that Mixtral's make, so that mutants are tried with these.
#[test]
fn experts_equal_the_oracle_where_each_rank_has_all() {
    holds(&Alone(Layer(mixtral(), SWIGLU)));
    holds(&Alone(Layer(mixtral(), FeedForward::Plain(Activation::Relu))));
    holds(&Alone(Layer(deepseek(), SWIGLU)));
    proves(&Alone(Layer(qwen(), SWIGLU)));
    proves_in_regions(&Alone(Layer(deepseek(), SWIGLU)));
}

#[test]
fn experts_equal_the_oracle_over_ranks_with_other_tokens() {
    proves(&Four(Layer(qwen(), SWIGLU)));
    holds(&Four(Layer(deepseek(), SWIGLU)));
    holds(&Four(Layer(Experts { forced: true, ..mixtral() }, SWIGLU)));
}

#[test]
fn sliced_experts_equal_the_oracle() {
    proves(&Sliced(Layer(qwen(), SWIGLU)));
    proves(&SlicedAndDealt(Layer(deepseek(), SWIGLU)));
    proves_in_regions(&SlicedAndDealt(Layer(qwen(), SWIGLU)));
}

/// Some tokens of each expert are on other ranks, and few tokens have one expert. Kills: a choice among a
/// rank's own tokens, an order of ranks that is not that of tokens, gates or gradients of copies that nobody
/// took.
#[test]
fn experts_that_choose_tokens_equal_the_oracle() {
    proves(&Alone(Layer(choosing(), SWIGLU)));
    proves(&Two(Layer(choosing(), SWIGLU)));
    proves(&Four(Layer(choosing(), SWIGLU)));
    proves_in_regions(&SlicedAndDealt(Layer(choosing(), SWIGLU)));
}

/// Kills: a bias of outputs that every etp rank adds whole, one without its gate, one of another expert, a
/// gate whose gradient lacks it; a logit's bias that is left out of the choice or learns on one rank alone.
#[test]
fn layers_with_biases_equal_the_oracle() {
    holds(&Alone(Layer(Experts { biases: true, ..mixtral() }, FeedForward::Plain(Activation::Relu))));
    proves(&SlicedAndDealt(Layer(Experts { biases: true, ..qwen() }, SWIGLU)));
}

/// Kills: noise by a token's place on its rank and not in its sequence, one that moves gates, one of another
/// layer's name.
#[test]
fn experts_chosen_with_noise_equal_the_oracle() {
    for experts in [mixtral(), deepseek()] {
        proves(&Two(Layer(Experts { noise: 0.5, ..experts }, SWIGLU)));
    }
    proves_in_regions(&SlicedAndDealt(Layer(Experts { noise: 0.5, ..qwen() }, SWIGLU)));
}
