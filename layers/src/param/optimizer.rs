//! Optimizer steps on this rank's local parts, with clipping by the global norm.
//!
//! ```text
//! norm² = Σ over all parameters of Σ g²     elements count once; an all-reduce of 1 element per set of axes
//!                                           that cuts parameters, per group with shards, and over the stages
//! c     = min(1, limit/norm)
//! SGD     w −= lr·c·g
//! AdamW   m = β₁m + (1−β₁)cg,  v = β₂v + (1−β₂)(cg)²,  w −= lr·λ·w + lr·m̂/(√v̂ + ε)
//! ```
//!
//! The placements determine which ranks have different elements. State is kept at rest as the parameter is:
//! whole, or as a shard. Norm and factor stay on the device. Without clipping, the norm is summed during the
//! update, some rows at a time while they are in the cache.
//!
//! Source: Pascanu et al., arXiv:1211.5063 (clipping); Loshchilov, Hutter, arXiv:1711.05101 (`AdamW`).
use crate::ops::{filled, plus};
use crate::param::Wide;
use crate::{OptimizerKind, Param, ParamHooks, ParamValues, Result};
use comm::{Axes, Axis, Mesh, Reduce};
use kernels::{AdamW, Kernels};
use std::sync::Arc;
use tensor::{Category, Move, Scalar, Tensor};

/// An optimizer. Its state lies beside this rank's local parts, whole or sharded at rest.
pub struct Optimizer<D: Kernels> {
    kind: OptimizerKind,
    clip: Option<f64>,
    steps: usize,
    sums: SquareSums<D::Wide>,
    label: Arc<str>, // of the norm's calls
}

impl<D: Kernels> Optimizer<D> {
    /// Creates an optimizer at step 0. `clip`: the largest global norm of the gradient.
    pub fn new(kind: OptimizerKind, clip: Option<f64>) -> Self {
        Self { kind, clip, steps: 0, sums: SquareSums(Vec::new()), label: "norm2".into() }
    }
    /// Returns the kind of optimizer.
    pub fn kind(&self) -> OptimizerKind {
        self.kind
    }
    /// Returns the number of finished steps.
    pub fn steps(&self) -> usize {
        self.steps
    }
    /// Runs one step with synced gradients. Returns the norm² before clipping, the same on every rank. Calls
    /// `uses` for each parameter before and after it changes.
    ///
    /// # Errors
    /// If ranks do not meet, and the errors of `uses`.
    pub fn step(
        &mut self,
        params: &mut [&mut Param<D>],
        mesh: &Mesh<D::Place>,
        lr: f64,
        uses: &mut dyn ParamHooks<D>,
    ) -> Result<Tensor<D::Wide>> {
        let device = params.first().expect("the model has no parameters").device().wide().clone();
        let mut factor = filled(&device, Category::Buffers, [1, 1], Wide::<D>::ONE);
        self.steps += 1;
        let Some(limit) = self.clip else {
            self.update(params, (&factor, lr), true, uses)?;
            return self.sums.over(&device, mesh, &self.label);
        };
        for param in params.iter().filter(|param| param.placement().trained) {
            param.add_norm2(self.sums.of(param));
        }
        let norm2 = self.sums.over(&device, mesh, &self.label)?;
        device.clip_factor(factor.view_mut(), norm2.view(), limit);
        self.update(params, (&factor, lr), false, uses)?;
        Ok(norm2)
    }
    /// Runs one step without the norm of the gradients, for which all stages would wait, and so without
    /// clipping.
    ///
    /// # Errors
    /// The errors of `uses`.
    ///
    /// # Panics
    /// If the optimizer clips gradients.
    pub fn step_without_norm(
        &mut self,
        params: &mut [&mut Param<D>],
        lr: f64,
        uses: &mut dyn ParamHooks<D>,
    ) -> Result<()> {
        assert!(self.clip.is_none(), "a clipped step needs the norm of all stages");
        let device = params.first().expect("the model has no parameters").device().wide().clone();
        self.steps += 1;
        self.update(params, (&filled(&device, Category::Buffers, [1, 1], Wide::<D>::ONE), lr), false, uses)
    }
    /// Returns the limit of the gradients' norm, if there is one.
    pub fn clip(&self) -> Option<f64> {
        self.clip
    }
    /// Updates all values; adds the squares of the gradients to the sums if `sums`.
    fn update(
        &mut self,
        params: &mut [&mut Param<D>],
        (factor, lr): (&Tensor<D::Wide>, f64),
        sums: bool,
        uses: &mut dyn ParamHooks<D>,
    ) -> Result<()> {
        let mut left = params;
        while let Some((param, rest)) = left.split_first_mut() {
            left = rest;
            if !param.placement().trained {
                continue;
            }
            param.take_moments(self.kind.moments());
            uses.before_update(std::slice::from_mut(param))?;
            if let Some(next) = left.iter_mut().find(|param| param.placement().trained) {
                next.take_moments(self.kind.moments());
                uses.ahead_of_update(std::slice::from_mut(next))?;
            }
            let sum = if sums { Some(self.sums.of(param)) } else { None };
            match self.kind {
                OptimizerKind::Sgd => param.update(sum, |device, (w, master, []), g| {
                    device.sgd(w, master, g, factor.view(), lr);
                }),
                OptimizerKind::AdamW { beta1, beta2, eps, decay } => {
                    let decay = if param.decays() { decay } else { 0.0 };
                    let constants = AdamW { lr, beta1, beta2, eps, decay, step: self.steps };
                    param.update(sum, |device, (w, master, [m, v]), g| {
                        device.adamw(w, master, (m, v), g, factor.view(), constants);
                    });
                }
            }
            uses.after_update(std::slice::from_mut(param))?;
        }
        Ok(())
    }
    /// Restores a saved state: the number of finished steps, and the values of each parameter's moments.
    ///
    /// # Errors
    /// The errors of `numbers`.
    pub fn restore<'a>(
        &mut self,
        steps: usize,
        params: &mut [&mut Param<D>],
        numbers: impl Fn(&Param<D>, usize) -> Result<ParamValues<'a, Wide<D>>>,
    ) -> Result<()> {
        self.steps = steps;
        if steps == 0 {
            return Ok(());
        }
        for param in params.iter_mut().filter(|param| param.placement().trained) {
            param.take_moments(self.kind.moments());
            let (mut moments, (_, from)) = (std::mem::take(&mut param.moments), param.sharding.at_rest());
            for (which, moment) in moments.iter_mut().enumerate() {
                moment.load();
                param.set(moment.here(), from, &param.placement().masked(numbers(param, which)?))?;
                drop(moment.begin_store().map(Move::wait));
            }
            param.moments = moments;
        }
        Ok(())
    }
}

/// Σ of squares of gradients on this rank, by the axes along which ranks have different elements; `None`
/// between steps.
struct SquareSums<D: Kernels>(Vec<(Axes, Option<Tensor<D>>)>);

impl<D: Kernels> SquareSums<D> {
    fn zero(device: &D) -> Tensor<D> {
        filled(device, Category::Buffers, [1, 1], D::Elem::ZERO)
    }
    /// Returns the sum that a parameter's squares are added to.
    fn of<N: Kernels<Wide = D>>(&mut self, param: &Param<N>) -> &mut Tensor<D> {
        let axes = param.sharding.different();
        let at = self.0.iter().position(|(of, _)| *of == axes).unwrap_or_else(|| {
            self.0.push((axes, None));
            self.0.len() - 1
        });
        self.0[at].1.get_or_insert_with(|| Self::zero(param.device().wide()))
    }
    /// Returns the total, the same on every rank: sums each entry over its axes, and the total over the
    /// stages.
    fn over(&mut self, device: &D, mesh: &Mesh<D::Place>, label: &Arc<str>) -> Result<Tensor<D>> {
        let mut total: Option<Tensor<D>> = None;
        self.0.sort_unstable_by_key(|(axes, _)| *axes); // first the sums that all ranks have alike
        for (axes, sum) in &mut self.0 {
            let Some(mut sum) = sum.take() else { continue };
            mesh.over(*axes)?.named(label.clone()).all_reduce(&mut sum, Reduce::Sum)?;
            total = Some(match total.take() {
                Some(total) => plus(total, &sum),
                None => sum,
            });
        }
        let mut total = total.unwrap_or_else(|| Self::zero(device));
        mesh.group(Axis::Pp).named(label.clone()).all_reduce(&mut total, Reduce::Sum)?;
        Ok(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Biases, NormKind, Positions};
    use crate::{Builder, Chunk, Draw, Placement, RandomValues, SavedTensor, Shape};
    use comm::World;
    use tensor::{Cpu, F61, Key};

    /// Without gradients, only decay changes the values: w − lr·λ·w, exact for a quarter. Kills: decay of a
    /// gain or a bias, of none of the matrices or by another factor; a share of a matrix taken for a row.
    #[test]
    fn decay_shrinks_matrices_and_leaves_gains_and_biases() {
        let run = |device: Cpu<f32>, mesh: Mesh<_>, norm| {
            let bias = Biases { qkv: true, out: true, mlp: true };
            let heads = kernels::Heads { queries: 4, keys: 2, dim: 2 };
            let positions = Positions::Learned(3);
            let shape =
                Shape { width: 4, hidden: 4, vocabulary: 5, heads, norm, bias, positions, ..Shape::LLAMA };
            let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
            let mut model = Chunk::whole(&at, &Shape { head_norm: true, ..shape })?;
            let mut params = model.params();
            for param in &mut params {
                param.sync()?;
            }
            let before = params.iter().map(|p| p.elements()).collect::<Vec<_>>();
            let decay = OptimizerKind::AdamW { beta1: 0.9, beta2: 0.95, eps: 1e-8, decay: 0.5 };
            Optimizer::new(decay, None).step(&mut params, &mesh, 0.5, &mut ())?;
            let mut decayed = Vec::new();
            for (param, before) in params.iter().zip(before) {
                let shrunk = before.iter().map(|&(i, w)| (i, w * 0.75)).collect::<Vec<_>>();
                assert!(before.iter().all(|(_, w)| *w != 0.0), "{}", param.name());
                if param.elements() == shrunk {
                    decayed.push(param.name().to_string());
                } else {
                    assert_eq!(param.elements(), before, "{}", param.name());
                }
            }
            Ok::<_, crate::Error>(decayed)
        };
        let blocks =
            ["attention.qkv", "attention.out", "mlp.gate_up", "mlp.down"].map(|w| format!("blocks.0.{w}"));
        let matrices =
            [&["embedding".into(), "positions".into()][..], &blocks[..], &["head".into()]].concat();
        for norm in [NormKind::Rms, NormKind::Layer] {
            let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
            for decayed in world.run(|device, mesh| run(device, mesh, norm)).unwrap() {
                assert_eq!(decayed, matrices);
            }
        }
    }

    /// Optimizer state that is kept elsewhere needs these calls. Kills: a parameter that is changed
    /// unannounced, one that is not trained and announced, moments that are taken after the announcement.
    #[test]
    fn every_update_is_told_before_and_after() {
        #[derive(Default)]
        struct Told(Vec<(String, usize)>);
        impl ParamHooks<Cpu<f32>> for Told {
            fn before_update(&mut self, params: &mut [&mut Param<Cpu<f32>>]) -> Result<()> {
                self.0.extend(params.iter().map(|p| (format!("before {}", p.name()), p.moments.len())));
                Ok(())
            }
            fn after_update(&mut self, params: &mut [&mut Param<Cpu<f32>>]) -> Result<()> {
                self.0.extend(params.iter().map(|p| (format!("after {}", p.name()), p.moments.len())));
                Ok(())
            }
        }
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let draw = Draw { mean: 0.0, std: 1.0 };
        let param = |name: &str, placement| Param::new(&at, name, [2, 3], placement, draw).unwrap();
        let still = param("still", Placement::default().untrained());
        let mut all = [param("a", Placement::default()), still, param("b", Placement::default())];
        let mut params: Vec<_> = all.iter_mut().collect();
        for (kind, moments) in [(OptimizerKind::Sgd, 0), (OptimizerKind::ADAMW, 2)] {
            let mut reported = Told::default();
            for param in params.iter_mut().filter(|param| param.placement().trained) {
                param.sync().unwrap();
            }
            Optimizer::new(kind, None).step(&mut params, &mesh, 0.5, &mut reported).unwrap();
            let wanted = ["before a", "after a", "before b", "after b"];
            assert_eq!(reported.0, wanted.map(|what| (what.to_string(), moments)));
        }
    }

    /// Kills: a moment taken for the other, for its turn or for a fresh one, steps counted anew.
    #[test]
    fn moments_that_were_saved_are_restored() {
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let draw = Draw { mean: 0.0, std: 1.0 };
        let mut param = Param::new(&at, "w", [2, 3], Placement::default(), draw).unwrap();
        let gradient = Tensor::from_fn(&device, Category::Buffers, 2, 3, |i| 1.0 + i as f32);
        param.accumulate(|device, to, _| device.copy(to, gradient.view()));
        let mut optimizer = Optimizer::new(OptimizerKind::ADAMW, None);
        optimizer.step(&mut [&mut param], &mesh, 0.5, &mut ()).unwrap();
        let moments = |param: &Param<Cpu<f32>>| {
            [0, 1].map(|which| {
                param.saved(SavedTensor::Moment(which)).unwrap().tensor.read().unwrap().into_owned()
            })
        };
        let saved = moments(&param);
        assert!(saved[0] != saved[1], "{saved:?}");
        let element = |_: &Param<_>, which: usize| {
            let moment = &saved[which];
            Ok(ParamValues::each(|[row, column]| moment[row * 3 + column]))
        };
        let mut other = Optimizer::new(OptimizerKind::ADAMW, None);
        other.restore(7, &mut [&mut param], element).unwrap();
        assert_eq!((other.steps(), moments(&param)), (7, saved.clone()));
    }

    /// A parameter of several pieces, the last one shorter, in two steps. Kills: rows of a moment beside
    /// those of another piece, a piece left out or taken twice, also in the norm.
    #[test]
    fn a_step_in_pieces_is_a_step_on_the_whole() {
        const SIZE: [usize; 2] = [300, 301];
        let _key = Key(5).enter();
        let (device, mesh) = (Cpu::<F61>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let tensor = |value: &dyn Fn(usize) -> F61| {
            Tensor::from_fn(&device, Category::Buffers, SIZE[0], SIZE[1], value)
        };
        let kinds = [OptimizerKind::Sgd, OptimizerKind::ADAMW]
            .into_iter()
            .flat_map(|kind| [(kind, None), (kind, Some(0.5))]);
        for (kind, clip) in kinds {
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut param = Param::new(&at, "w", SIZE, Placement::default(), draw).unwrap();
            let start = param.gather(&mesh).unwrap().unwrap();
            let mut whole = [tensor(&|i| start[i]), tensor(&|_| F61::ZERO), tensor(&|_| F61::ZERO)];
            let mut optimizer = Optimizer::new(kind, clip);
            for step in 1..=2 {
                let gradient = tensor(&|i| F61::sample((i * 2 + step) as u64, 1.0));
                param.accumulate(|device, to, _| device.copy(to, gradient.view()));
                let reported = optimizer.step(&mut [&mut param], &mesh, 0.5, &mut ()).unwrap();
                let mut norm2 = SquareSums::zero(&device);
                device.add_norm2(norm2.view_mut(), gradient.view());
                assert_eq!(reported.read(), norm2.read(), "{kind:?} {clip:?} step {step}");
                let factor = clip.map_or(F61::ONE, |limit| F61::clip_factor(norm2.read().unwrap()[0], limit));
                let factor = filled(&device, Category::Buffers, [1, 1], factor);
                let ([w, m, v], g) = (whole.each_mut().map(Tensor::view_mut), gradient.view());
                match kind {
                    OptimizerKind::Sgd => device.sgd(w, None, g, factor.view(), 0.5),
                    OptimizerKind::AdamW { beta1, beta2, eps, decay } => {
                        let constants = AdamW { lr: 0.5, beta1, beta2, eps, decay, step };
                        device.adamw(w, None, (m, v), g, factor.view(), constants);
                    }
                }
                assert!(param.gather(&mesh).unwrap() == whole[0].read(), "{kind:?} {clip:?} step {step}");
            }
        }
    }
}
