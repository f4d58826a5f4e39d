//! Cases with their layer's type erased: the harness is compiled once for each dtype, and not again for each
//! layer.
use super::case::{Answer, Case, LayerInput};
use super::lies::ActivationLayout;
use crate::proof::lies::AtRank;
use crate::{Builder, Layer, Params};
use comm::{Axis, Op};
use kernels::{Kernels, Meta, Segment};
use ops::{Result, TokenShards};
use tensor::{Cpu, Dual, F61, Scalar};

/// Everything that a proof needs of a case, on every device that it runs on. The harness takes it as `dyn`,
/// but by a type parameter, so it is compiled with the proofs and not with the layers.
pub(crate) trait Erased:
    ErasedSpec
    + OnDevice<Cpu<F61>>
    + OnDevice<Cpu<Dual<F61>>>
    + OnDevice<Cpu<f32>>
    + OnDevice<Meta<f32>>
    + Unsplit<F61>
    + Unsplit<f64>
{
}
impl<C: Case> Erased for C {}

/// Parts of a case that are the same on every device.
pub(crate) trait ErasedSpec: Sync {
    /// Name of the case's type.
    fn name(&self) -> &'static str;
    /// As [`Case::RANKS`].
    fn ranks(&self) -> &'static [usize];
    /// As [`Case::AXIS`].
    fn axis(&self) -> Axis;
    /// As [`Case::DEALERS`].
    fn dealers(&self) -> Vec<(Axis, usize)>;
    /// As [`Case::EXPERTS`].
    fn experts(&self) -> &'static [(Axis, usize)];
    /// As [`Case::PREDICTED`].
    fn is_predicted(&self) -> bool;
    /// Division of tokens that contexts of this rank know.
    fn shards(&self, place: (usize, usize)) -> Option<TokenShards>;
    /// As [`Case::deal`].
    fn deal(&self, tokens: &[Segment], place: (usize, usize)) -> Vec<Segment>;
    /// As [`Case::traffic_of_dealt`].
    fn traffic_of_dealt(&self, microbatches: &[Vec<Segment>], place: (usize, usize)) -> Vec<(Op, usize)>;
    /// Axes of a world with `ranks` ranks along the axis of features; with one rank, experts are not split.
    fn world(&self, ranks: usize) -> Vec<(Axis, usize)> {
        let experts = if ranks > 1 { self.experts() } else { &[] };
        [&self.dealers()[..], &[(self.axis(), ranks)], experts].concat()
    }
    /// As [`Case::features`].
    fn features(&self) -> [usize; 2];
    /// As [`Case::traffic_on`].
    fn traffic_on(&self, rank: (usize, usize), microbatches: &[usize], regions: bool) -> Vec<(Op, usize)>;
    /// As [`Case::has_no_gradient`].
    fn has_no_gradient(&self, parameter: &str, row: usize) -> bool;
    /// As [`Case::synced`].
    fn synced(&self, ranks: usize, regions: bool) -> usize;
}

impl<C: Case> ErasedSpec for C {
    fn name(&self) -> &'static str {
        std::any::type_name::<C>()
    }
    fn ranks(&self) -> &'static [usize] {
        C::RANKS
    }
    fn axis(&self) -> Axis {
        C::AXIS
    }
    fn dealers(&self) -> Vec<(Axis, usize)> {
        Case::dealers(self)
    }
    fn experts(&self) -> &'static [(Axis, usize)] {
        C::EXPERTS
    }
    fn is_predicted(&self) -> bool {
        C::PREDICTED
    }
    fn shards(&self, (rank, ranks): (usize, usize)) -> Option<TokenShards> {
        Case::dealing(self).map(|dealing| TokenShards::new([1, ranks], dealing).of_context_rank(rank))
    }
    fn deal(&self, tokens: &[Segment], place: (usize, usize)) -> Vec<Segment> {
        Case::deal(self, tokens, place)
    }
    fn traffic_of_dealt(&self, microbatches: &[Vec<Segment>], place: (usize, usize)) -> Vec<(Op, usize)> {
        Case::traffic_of_dealt(self, microbatches, place)
    }
    fn features(&self) -> [usize; 2] {
        Case::features(self)
    }
    fn traffic_on(&self, rank: (usize, usize), microbatches: &[usize], regions: bool) -> Vec<(Op, usize)> {
        Case::traffic_on(self, rank, microbatches, regions)
    }
    fn has_no_gradient(&self, parameter: &str, row: usize) -> bool {
        Case::has_no_gradient(self, parameter, row)
    }
    fn synced(&self, ranks: usize, regions: bool) -> usize {
        Case::synced(self, ranks, regions)
    }
}

/// A case on one device.
pub(crate) trait OnDevice<D: Kernels>: ErasedSpec {
    /// As [`Case::build`].
    fn build(&self, at: &Builder<D>) -> Result<Box<dyn ErasedCase<D>>>;
}

impl<C: Case, D: Kernels> OnDevice<D> for C {
    fn build(&self, at: &Builder<D>) -> Result<Box<dyn ErasedCase<D>>> {
        Ok(Box::new(Case::build(self, at)?))
    }
}

/// The unsplit layer, in one dtype.
pub(crate) trait Unsplit<S: Scalar>: ErasedSpec {
    /// As [`Case::oracle`].
    fn oracle(&self, given: &LayerInput<S>) -> Answer<S>;
}

impl<C: Case, S: Scalar> Unsplit<S> for C {
    fn oracle(&self, given: &LayerInput<S>) -> Answer<S> {
        Case::oracle(self, given)
    }
}

/// Y and dX of every microbatch.
pub(crate) type Gone<D> = Vec<(usize, [Box<dyn ActivationLayout<D>>; 2])>;

/// A layer under proof.
pub(crate) trait ErasedCase<D: Kernels> {
    /// Returns the layer's input for a microbatch.
    ///
    /// # Errors
    /// If the ranks do not divide its features.
    fn input(
        &self,
        given: &LayerInput<D::Elem>,
        features: usize,
        at: &AtRank<D>,
    ) -> Result<Box<dyn ActivationLayout<D>>>;
    /// Runs all microbatches forward, then all backward: one whole, the next in halves.
    ///
    /// # Errors
    /// If a collective fails.
    fn forward_backward(
        &mut self,
        microbatches: Vec<LayerInput<D::Elem>>,
        features: [usize; 2],
        at: &AtRank<D>,
    ) -> Result<Gone<D>>;
    /// The layer's parameters.
    fn params(&mut self) -> Params<'_, D>;
}

impl<D: Kernels, L: Layer<D, In: ActivationLayout<D>, Out: ActivationLayout<D>>> ErasedCase<D> for L {
    fn input(
        &self,
        given: &LayerInput<D::Elem>,
        features: usize,
        at: &AtRank<D>,
    ) -> Result<Box<dyn ActivationLayout<D>>> {
        Ok(Box::new(L::In::hand(given, false, features, at)?))
    }
    fn forward_backward(
        &mut self,
        microbatches: Vec<LayerInput<D::Elem>>,
        [inputs, outputs]: [usize; 2],
        at: &AtRank<D>,
    ) -> Result<Gone<D>> {
        let mut forward = Vec::new();
        for (microbatch, given) in microbatches.into_iter().enumerate() {
            let cx = given.cx(microbatch);
            let (y, saved) = self.forward(&cx, L::In::hand(&given, false, inputs, at)?)?;
            forward.push((cx, given, y, saved));
        }
        let mut exited = Gone::new();
        for (cx, given, y, saved) in forward {
            let dy = L::Out::hand(&given, true, outputs, at)?;
            let dx = if cx.pass().microbatch % 2 == 0 {
                self.backward(&cx, saved, dy)?
            } else {
                let (dx, pending) = self.backward_input(&cx, saved, dy)?;
                self.backward_weight(&cx, pending)?;
                dx
            };
            exited.push((cx.pass().microbatch, [Box::new(y), Box::new(dx)]));
        }
        Ok(exited)
    }
    fn params(&mut self) -> Params<'_, D> {
        let mut params = Params::new();
        Layer::params(self, &mut params);
        params
    }
}
