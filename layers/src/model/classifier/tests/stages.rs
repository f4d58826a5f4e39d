//! A classifier cut into stages, each of which hands its activations to the next.
use super::{SIZES, given, run_cut, truth};
use crate::model::chunk::tests::one_run;
use crate::{Builder, Chunk, Half, Input, Output, StageRequest, Targets};
use comm::{Axis, World};
use kernels::Kernels;
use ops::{Keeper, Param, Partial, PassContext, Result};
use tensor::{Cpu, F61, Key, Tensor, TokenIds};

/// A classifier in stages, one after the other.
pub(super) struct Model<D: Kernels>(pub(super) Vec<Chunk<D>>);

impl<D: Kernels> Model<D> {
    /// Cut before these layers, from the first to the last one.
    pub(super) fn cut(at: &Builder<D>, sizes: &[usize], cuts: &[usize]) -> Result<Self> {
        let stage = |c: &[usize]| Chunk::classifier(at, sizes, &one_run(c));
        Ok(Self(cuts.windows(2).map(stage).collect::<Result<_>>()?))
    }
    pub(super) fn whole(at: &Builder<D>, sizes: &[usize]) -> Result<Self> {
        Self::cut(at, sizes, &[0, sizes.len().saturating_sub(1)])
    }
    pub(super) fn params(&mut self) -> Vec<&mut Param<D>> {
        self.0.iter_mut().flat_map(Chunk::params).collect()
    }
    pub(super) fn run(
        &mut self,
        cx: &PassContext<D>,
        x: Tensor<D>,
        wanted: StageRequest<D>,
    ) -> Result<Output<D>> {
        let (mut input, mut wanted) = (Input::Rows(x), Some(wanted));
        let last = self.0.len() - 1;
        for (i, stage) in self.0.iter_mut().enumerate() {
            match stage.forward(0, cx, &mut Keeper::default(), input, wanted.take_if(|_| i == last))? {
                Output::Activation(y) => input = Input::Activation(y),
                output => return Ok(output),
            }
        }
        unreachable!("the last stage gives what is wanted")
    }
    pub(super) fn logits(&mut self, cx: &PassContext<D>, x: Tensor<D>) -> Result<Tensor<D>> {
        let Output::Logits(logits) = self.run(cx, x, StageRequest::Logits { all: true })? else {
            unreachable!()
        };
        Ok(logits)
    }
    pub(super) fn forward(
        &mut self,
        cx: &PassContext<D>,
        x: Tensor<D>,
        labels: TokenIds<D::Place>,
    ) -> Result<Partial<D::Wide>> {
        let Output::Loss(loss) = self.run(cx, x, StageRequest::Loss(Targets::Ids(labels)))? else {
            unreachable!()
        };
        Ok(loss)
    }
    pub(super) fn backward(&mut self, cx: &PassContext<D>, half: Half) -> Result<()> {
        let mut dy = None;
        for stage in self.0.iter_mut().rev() {
            dy = stage.backward(0, cx, &mut Keeper::default(), dy, half, false)?;
        }
        assert!(dy.is_none(), "examples have no gradient");
        Ok(())
    }
}

/// Cut after any layer, on tensor ranks too, where a layout keeps pairs. Kills: activations of a stage in
/// another region than the next one takes, a stage that does not know its first layer, a layer that two
/// stages have or none, a pair that reaches into the next stage, columns that are not gathered, weight halves
/// of another microbatch or in another order.
#[test]
fn stages_and_later_halves_equal_the_oracle_bit_for_bit() {
    let _key = Key(2).enter();
    let cut: [(&[usize], &[&[usize]]); 4] = [
        (SIZES[2], &[&[0, 3], &[0, 2, 3]]),
        (&[5, 24, 6, 10], &[&[0, 1, 3], &[0, 1, 2, 3]]),
        (SIZES[3], &[&[0, 4], &[0, 1, 4], &[0, 3, 4], &[0, 1, 3, 4]]),
        (&[5, 24, 48, 12, 11], &[&[0, 2, 4], &[0, 1, 2, 3, 4]]),
    ];
    for (sizes, cuts) in cut.into_iter().flat_map(|(sizes, all)| all.iter().map(move |cuts| (sizes, *cuts))) {
        for (half, [ranks, regions]) in [Half::Both, Half::Input]
            .into_iter()
            .flat_map(|half| [[1, 0], [2, 0], [2, 1], [3, 1]].map(|at| (half, at)))
        {
            let given = |step| given::<F61>(sizes, step);
            let run =
                |device: Cpu<F61>, mesh| run_cut(&device, &mesh, (sizes, regions == 1), (cuts, half), &given);
            let seen = World::threads(&[(Axis::Tp, ranks)]).unwrap().run(run).unwrap();
            let truth = truth(sizes, &seen[0].start, &given);
            for (rank, seen) in seen.iter().enumerate() {
                assert!(seen.trace == truth, "{cuts:?}, {half:?}, regions {regions}, rank {rank} of {ranks}");
            }
        }
    }
}
