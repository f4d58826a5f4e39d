//! Optimizer steps on this rank's local parts, with clipping by the global norm.
//!
//! ```text
//! norm² = Σ over all parameters of Σ g²     elements count once; an all-reduce of 1 element per set of axes
//!                                           that cuts parameters, per group with shards, and over the stages
//! c     = min(1, limit/norm)
//! ```
//!
//! Loss scaling (`loss_scale.rs`) needs the norm, too: a step whose norm is not finite is skipped.
//!
//! The placements determine which ranks have different elements. State is kept at rest as the parameter is:
//! whole, or as a shard. Norm and factor stay on the device. Without clipping, the norm is summed during the
//! update, some rows at a time while they are in the cache.
//!
//! Source: Pascanu et al., arXiv:1211.5063 (clipping).
mod adamw;
mod adamw_8bit;
mod duplicated;
mod lion;
pub mod list;
pub mod loss_scale;
pub mod matrices;
mod muon;
mod newton_schulz;
mod norm;
mod owner;
pub mod rule;
mod sgd;

use crate::{Keeper, Param, ParamValues, Result, Wide, filled};
use comm::Mesh;
use kernels::Kernels;
use loss_scale::{GradientScaling, LossScaling, unscale};
use norm::SquareSums;
use rule::{UpdateRule, UpdateStep};
use shape::StateInfo;
use std::sync::Arc;
use tensor::{Category, Scalar, Tensor};

/// An optimizer. Its state lies beside this rank's local parts, whole or sharded at rest.
pub struct Optimizer<D: Kernels> {
    rule: Box<dyn UpdateRule<D>>,
    scaling: GradientScaling,
    steps: usize,
    sums: SquareSums<D::Wide>,
    label: Arc<str>, // of the norm's calls
}

impl<D: Kernels> Optimizer<D> {
    /// Creates an optimizer at step 0. `scaling`: the largest global norm of the gradient, and loss scaling.
    pub fn new(rule: impl UpdateRule<D> + 'static, scaling: impl Into<GradientScaling>) -> Self {
        let scaling = scaling.into();
        Self { rule: Box::new(rule), scaling, steps: 0, sums: SquareSums::NONE, label: "norm2".into() }
    }
    /// Returns the rule by which it updates parameters.
    pub fn rule(&self) -> &dyn UpdateRule<D> {
        &*self.rule
    }
    /// Returns the number of finished steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// Runs one step with synced gradients. Returns the norm² before clipping, the same on every rank.
    /// `keeper` has the state of each parameter there when it changes, and gathers values afterwards. With
    /// loss scaling, nothing changes and the step is not counted if the norm² is not finite.
    ///
    /// # Errors
    /// If ranks do not meet, a parameter is cut inside a block of its state, or gradients are not finite at a
    /// loss scale of 1.
    pub fn step(
        &mut self,
        params: &mut [&mut Param<D>],
        mesh: &Mesh<D::Place>,
        lr: f64,
        keeper: &mut Keeper<D>,
    ) -> Result<Tensor<D::Wide>> {
        let device = params.first().expect("the model has no parameters").device().wide().clone();
        let mut factor = filled(&device, Category::Buffers, [1, 1], Wide::<D>::ONE);
        if self.scaling == GradientScaling::default() {
            self.update(params, mesh, (&factor, lr), true, keeper)?;
            return self.sums.over(&device, mesh, &self.label);
        }
        for param in params.iter().filter(|param| param.placement().trained) {
            param.add_norm2(self.sums.of(param));
        }
        let mut norm2 = self.sums.over(&device, mesh, &self.label)?;
        let log2 = self.scaling.loss.map_or(0, |loss| loss.log2);
        if let Some(loss) = &mut self.scaling.loss {
            unscale(&mut norm2, 2 * log2);
            let is_finite = norm2.read().is_none_or(|norm2| norm2[0].is_finite());
            loss.adapt(is_finite)?;
            if !is_finite {
                for param in params {
                    param.skip_update();
                }
                return Ok(norm2);
            }
        }
        if let Some(limit) = self.scaling.clip {
            device.clip_factor(factor.view_mut(), norm2.view(), limit);
        }
        if log2 > 0 {
            unscale(&mut factor, log2);
        }
        self.update(params, mesh, (&factor, lr), false, keeper)?;
        Ok(norm2)
    }
    /// Runs one step without the norm of the gradients, for which all stages would wait, and so without
    /// clipping and loss scaling.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    ///
    /// # Panics
    /// If the optimizer scales gradients.
    pub fn step_without_norm(
        &mut self,
        params: &mut [&mut Param<D>],
        mesh: &Mesh<D::Place>,
        lr: f64,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        assert!(self.scaling == GradientScaling::default(), "a scaled step needs the norm of all stages");
        let device = params.first().expect("the model has no parameters").device().wide().clone();
        let factor = filled(&device, Category::Buffers, [1, 1], Wide::<D>::ONE);
        self.update(params, mesh, (&factor, lr), false, keeper)
    }
    /// Returns how it scales gradients.
    pub fn scaling(&self) -> GradientScaling {
        self.scaling
    }
    /// Counts the step and updates all values; adds the squares of the gradients to the sums if `sums`. Whole
    /// matrices are updated last, when all ranks have their directions.
    fn update(
        &mut self,
        params: &mut [&mut Param<D>],
        mesh: &Mesh<D::Place>,
        (factor, lr): (&Tensor<D::Wide>, f64),
        sums: bool,
        keeper: &mut Keeper<D>,
    ) -> Result<()> {
        self.steps += 1;
        let rule = &*self.rule;
        let step = |param: &Param<D>| UpdateStep { factor, lr, decays: param.decays(), number: self.steps };
        let (of_matrices, mut directions) = (rule.matrices(), Vec::new());
        keeper.update(params, rule.states(), |param| {
            let sum = sums.then(|| self.sums.of(param));
            let step = step(param);
            match &of_matrices {
                Some(rule) if param.is_matrix() => {
                    directions.push(param.direction(sum, |part, to| rule.direction(part, to, &step)));
                }
                _ => param.update(sum, |part| rule.update(part, &step)),
            }
        })?;
        if let Some(rule) = &of_matrices {
            let matrices = params.iter().filter(|param| param.is_matrix());
            let mut directions: Vec<_> = matrices.map(|param| &**param).zip(directions).collect();
            matrices::change(&**rule, &mut directions, mesh)?;
            let changed: Vec<_> = directions.into_iter().map(|(_, changed)| changed).collect();
            for (param, changed) in params.iter_mut().filter(|param| param.is_matrix()).zip(changed) {
                let step = step(param);
                param.apply(&changed, |part| rule.apply(part, &step));
            }
        }
        keeper.publish(params)
    }
    /// Restores a saved state: the number of finished steps, loss scaling if it scales the loss, and the
    /// values of each parameter's state.
    ///
    /// # Errors
    /// The errors of `values`.
    pub fn restore<'a>(
        &mut self,
        (steps, loss): (usize, Option<LossScaling>),
        params: &mut [&mut Param<D>],
        values: impl Fn(&Param<D>, &StateInfo) -> Result<ParamValues<'a, Wide<D>>>,
    ) -> Result<()> {
        self.steps = steps;
        self.scaling.loss = self.scaling.loss.map(|own| loss.unwrap_or(own));
        let mut trained = params.iter_mut().filter(|param| steps > 0 && param.placement().trained);
        trained.try_for_each(|param| {
            let states = self.rule.states().of(param.name(), param.shape());
            param.set_states(states, &values)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::origin::ParamOrigin;
    use crate::{
        ADAMW, AtRest, Draw, Placement, RandomValues, SGD, SavedRectangle, ShardingStrategy, UpdatePart,
    };
    use comm::{Axis, World};
    use shape::{Like, RuleStates};
    use tensor::{Cpu, F61, Key};

    /// Kills: a moment taken for the other, for its turn or for a fresh one, steps counted anew.
    #[test]
    fn moments_that_were_saved_are_restored() {
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
        let draw = Draw { mean: 0.0, std: 1.0 };
        let mut param = Param::new(&at, "w", [2, 3], Placement::default(), draw).unwrap();
        let gradient = Tensor::from_fn(&device, Category::Buffers, 2, 3, |i| 1.0 + i as f32);
        param.accumulate(|device, to, _| device.copy(to, gradient.view()));
        let mut optimizer = Optimizer::new(ADAMW, None);
        optimizer.step(&mut [&mut param], &mesh, 0.5, &mut Keeper::default()).unwrap();
        let moments = |param: &Param<Cpu<f32>>| {
            ["m", "v"].map(|name| {
                let moment = param.tensors().find(|tensor| tensor.name() == name).unwrap();
                moment.read().read().unwrap().into_owned()
            })
        };
        let saved = moments(&param);
        assert!(saved[0] != saved[1], "{saved:?}");
        let element = |_: &Param<_>, of: &StateInfo| {
            let moment = &saved[usize::from(of.name == "v")];
            Ok(ParamValues::each(|[row, column]| moment[row * 3 + column]))
        };
        let mut other = Optimizer::new(ADAMW, None);
        other.restore((7, None), &mut [&mut param], element).unwrap();
        assert_eq!((other.steps(), moments(&param)), (7, saved.clone()));
    }

    /// A parameter of several pieces, the last one shorter, in two steps. Kills: rows of a moment beside
    /// those of another piece, a piece left out or taken twice, also in the norm.
    #[test]
    fn a_step_in_pieces_is_a_step_on_the_whole() {
        const SIZE: [usize; 2] = [300, 301];
        let _key = Key(5).enter();
        let (device, mesh) = (Cpu::<F61>::default(), Mesh::alone());
        let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
        let tensor = |value: &dyn Fn(usize) -> F61| {
            Tensor::from_fn(&device, Category::Buffers, SIZE[0], SIZE[1], value)
        };
        let kinds = [SGD, ADAMW].into_iter().flat_map(|kind| [(kind, None), (kind, Some(0.5))]);
        for (kind, clip) in kinds {
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut param = Param::new(&at, "w", SIZE, Placement::default(), draw).unwrap();
            let start = param.gather(&mesh).unwrap().unwrap();
            let mut whole = [tensor(&|i| start[i]), tensor(&|_| F61::ZERO), tensor(&|_| F61::ZERO)];
            let mut optimizer = Optimizer::new(kind, clip);
            for step in 1..=2 {
                let gradient = tensor(&|i| F61::sample((i * 2 + step) as u64, 1.0));
                param.accumulate(|device, to, _| device.copy(to, gradient.view()));
                let reported = optimizer.step(&mut [&mut param], &mesh, 0.5, &mut Keeper::default()).unwrap();
                let mut norm2 = SquareSums::zero(&device);
                device.add_norm2(norm2.view_mut(), gradient.view());
                assert_eq!(reported.read(), norm2.read(), "{kind:?} {clip:?} step {step}");
                let factor = clip.map_or(F61::ONE, |limit| F61::clip_factor(norm2.read().unwrap()[0], limit));
                let factor = filled(&device, Category::Buffers, [1, 1], factor);
                let ([w, m, v], g) = (whole.each_mut().map(Tensor::view_mut), gradient.view());
                if kind == SGD {
                    device.sgd(w, None, g, factor.view(), [0.5, 0.0]);
                } else {
                    let [beta1, beta2, eps, decay] = kind.constants();
                    let constants = [0.5, beta1, beta2, eps, decay];
                    device.adamw(w, None, (m, v), g, factor.view(), (constants, step));
                }
                assert!(param.gather(&mesh).unwrap() == whole[0].read(), "{kind:?} {clip:?} step {step}");
            }
        }
    }

    /// Rule that notes the first gradient of each block of 4 elements.
    struct Firsts;
    impl UpdateRule<Cpu<f64>> for Firsts {
        fn name(&self) -> &'static str {
            "firsts"
        }
        fn states(&self) -> RuleStates {
            const FIRST: &[StateInfo] = &[StateInfo { name: "first", like: Like::Blocks(4) }];
            FIRST.into()
        }
        fn update(&self, part: UpdatePart<Cpu<f64>>, _: &UpdateStep<Cpu<f64>>) {
            let [mut firsts] = part.states.all();
            for block in 0..part.gradient.cols().div_ceil(4) {
                let first = part.gradient.take_cols(4 * block, 1);
                part.device.copy(firsts.again().take_cols(block, 1), first);
            }
        }
    }

    /// Shards of several pieces, of whole blocks (8 columns) or whole rows (6 or 1), and a whole parameter.
    /// Kills: a piece or a shard that begins inside a block or, where the blocks of a row are unequal, inside
    /// a row; blocks beside the elements of another piece.
    #[test]
    fn a_piece_has_whole_blocks() {
        for (ranks, [rows, cols]) in [(2, [30_001, 6]), (2, [20_003, 8]), (2, [50_001, 1]), (1, [30_001, 6])]
        {
            let run = |device: Cpu<f64>, mesh: Mesh<_>| {
                let rests = ShardingStrategy { state: AtRest::Shard, ..ShardingStrategy::WHOLE };
                let states = UpdateRule::<Cpu<f64>>::states(&Firsts);
                let at = ParamOrigin {
                    rests,
                    states,
                    ..ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 })
                };
                let draw = Draw { mean: 0.0, std: 1.0 };
                let mut param = Param::new(&at, "w", [rows, cols], at.placement(), draw)?;
                let of = if mesh.rank() == 0 { 1.0 } else { 0.0 };
                let own = Tensor::from_fn(&device, Category::Buffers, rows, cols, |i| of * i as f64);
                param.accumulate(|device, to, _| device.copy(to, own.view()));
                param.sync()?;
                Optimizer::new(Firsts, None).step(&mut [&mut param], &mesh, 1.0, &mut Keeper::default())?;
                let tensor = param.tensors().find(|tensor| tensor.name() == "first").unwrap();
                let at_rest = tensor.read();
                let (values, mut seen) = (at_rest.read().unwrap(), 0);
                for SavedRectangle { begin, shape, from, stride } in tensor.rectangles() {
                    for (row, block) in (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |col| (row, col)))
                    {
                        let wanted = (begin[0] + row) * cols + 4 * (begin[1] + block);
                        assert_eq!(
                            values[from + row * stride + block],
                            wanted as f64,
                            "{ranks} ranks, {cols} columns"
                        );
                        seen += 1;
                    }
                }
                Ok::<_, crate::Error>(seen)
            };
            let seen = World::threads(&[(Axis::Dp, ranks)]).unwrap().run(run).unwrap();
            assert_eq!(seen.iter().sum::<usize>(), rows * cols.div_ceil(4), "{seen:?}");
        }
    }
}
