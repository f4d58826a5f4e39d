//! Loss scaling: training multiplies the loss, and so every gradient, by a power of two, the loss scale, so
//! that gradients of activations stay within the range of f16. The sums of gradients are f32; the update
//! divides them by the scale.
//!
//! ```text
//! norm² is not finite     skip the update on all ranks, halve the scale
//! so many steps of finite ones in turn    double the scale
//! ```
//!
//! The norm is the same on every rank and known before any parameter changes, so all ranks decide alike. A
//! skipped step changes no value, master, state or router bias, and is not counted.
//!
//! Source: Micikevicius et al., "Mixed precision training", §3.2, arXiv:1710.03740.
use crate::{Error, Result, filled};
use kernels::{Kernels, loss_scale};
use serde::{Deserialize, Serialize};
use tensor::{Category, Scalar, Tensor};

/// Loss scale, which follows the gradients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossScaling {
    /// Logarithm of the scale, to the base 2.
    pub log2: u32,
    /// Number of steps since the scale last changed, all with finite gradients.
    #[serde(skip)]
    pub good: u32,
    /// Number of such steps after which the scale doubles.
    pub window: u32,
}

impl LossScaling {
    /// Logarithm of the largest scale.
    pub const MOST: u32 = 24;
    /// The usual start: 65 536, and twice that after each 2 000 good steps.
    pub const USUAL: Self = Self { log2: 16, good: 0, window: 2000 };

    /// Returns the usual loss scaling of training in a dtype, if it needs any.
    pub fn usual<S: Scalar>() -> Option<Self> {
        S::SMALL_RANGE.then_some(Self::USUAL)
    }
    /// Adapts the scale after a step, whose gradients were `finite` or not.
    ///
    /// # Errors
    /// If they were not, and the scale is 1.
    pub(super) fn adapt(&mut self, finite: bool) -> Result<()> {
        if !finite {
            let Some(log2) = self.log2.checked_sub(1) else {
                return Err(Error::Cannot(
                    "the gradients are not finite, even at a loss scale of 1; a dtype with a larger range may \
                     help, such as bf16"
                        .into(),
                ));
            };
            (self.log2, self.good) = (log2, 0);
        } else if self.good + 1 < self.window || self.log2 >= Self::MOST {
            self.good = self.good.saturating_add(1);
        } else {
            (self.log2, self.good) = (self.log2 + 1, 0);
        }
        Ok(())
    }
}

/// Divides a number `x[1, 1]` by the loss scale with this logarithm.
pub fn unscale<D: Kernels<Wide = D>>(x: &mut Tensor<D>, log2: u32) {
    let device = x.device().clone();
    let by = filled(&device, Category::Buffers, [1, 1], loss_scale::<D::Elem>(log2).inv());
    device.scale_rows(x.view_mut(), by.view());
}

/// Factors of gradients, besides the learning rate.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GradientScaling {
    /// The largest norm of all gradients together; larger ones are scaled down to it.
    pub clip: Option<f64>,
    /// Loss scaling, which is divided out.
    pub loss: Option<LossScaling>,
}

impl From<Option<f64>> for GradientScaling {
    /// Clipping alone.
    fn from(clip: Option<f64>) -> Self {
        Self { clip, loss: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::param::origin::ParamOrigin;
    use crate::{ADAMW, Draw, Keeper, Optimizer, Param, Placed, RandomValues, UpdateRule};
    use comm::{Axis, Mesh, World};
    use tensor::Cpu;

    const SCALE: LossScaling = LossScaling { log2: 3, good: 0, window: 3 };

    /// Kills: a count that overflow does not reset, or that goes on after the scale grew; a scale that is
    /// halved twice, or grows without end.
    #[test]
    fn the_scale_doubles_after_a_window_of_good_steps_and_halves_on_overflow() {
        let mut scaling = SCALE;
        let mut after = |finite: &[bool]| {
            finite.iter().try_for_each(|finite| scaling.adapt(*finite)).map(|()| (scaling.log2, scaling.good))
        };
        assert_eq!(after(&[true, true]).unwrap(), (3, 2));
        assert_eq!(after(&[true]).unwrap(), (4, 0));
        assert_eq!(after(&[true, true, false]).unwrap(), (3, 0));
        assert_eq!(after(&[true, true]).unwrap(), (3, 2));
        assert_eq!(after(&[false, false, false]).unwrap(), (0, 0));
        let why = after(&[false]).unwrap_err().to_string();
        assert!(why.starts_with("the gradients are not finite, even at a loss scale of 1"), "{why}");
        assert_eq!(after(&[true; 200]).unwrap().0, LossScaling::MOST);
    }

    /// One of two ranks with other parameters has a gradient that is not finite. Kills: a rank that decides
    /// by its own gradients, a step that is counted or changes a value or a moment though it is skipped, a
    /// gradient that stays for the next step, an update by the scaled gradient or by the scale of the next
    /// step.
    #[test]
    fn all_ranks_skip_a_step_whose_gradients_overflow_on_one() {
        for (axis, clip, worst) in [(Axis::Tp, None, f32::INFINITY), (Axis::Pp, Some(1e9), f32::NAN)] {
            let run = |device: Cpu<f32>, mesh: Mesh<_>| {
                let values = RandomValues { seed: 1 };
                let states = UpdateRule::<Cpu<f32>>::states(&ADAMW);
                let at = ParamOrigin { states, ..ParamOrigin::new(&device, &mesh, &values) };
                let sections = vec![4.into()];
                let placement = at.placement().on(Axis::Tp, Placed::Shard { dim: 1, sections });
                let new = || Param::new(&at, "w", [2, 4], placement.clone(), Draw { mean: 0.0, std: 1.0 });
                let (mut param, mut twin) = (new()?, new()?);
                let loss = Some(LossScaling { window: 2, ..SCALE });
                let mut optimizer = Optimizer::new(ADAMW, GradientScaling { clip, loss });
                let mut plain = Optimizer::new(ADAMW, clip);
                let state = |param: &Param<Cpu<f32>>| -> Vec<Vec<u32>> {
                    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect();
                    param.tensors().map(|tensor| bits(&tensor.read().read().unwrap())).collect()
                };
                let step = |optimizer: &mut Optimizer<_>, param: &mut Param<Cpu<f32>>, g: f32| {
                    param.accumulate(|device, to, _| device.fill(to, g));
                    param.sync()?;
                    optimizer.step(&mut [param], &mesh, 0.5, &mut Keeper::default())
                };
                let own = if mesh.group(axis).rank() == 1 { worst } else { 2.0 };
                let norm2 = step(&mut optimizer, &mut param, own)?.read().unwrap()[0];
                assert!(!norm2.is_finite(), "{norm2}");
                assert_eq!((optimizer.steps(), state(&param)), (0, state(&twin)), "{axis:?}");
                assert_eq!(optimizer.scaling().loss.map(|loss| loss.log2), Some(2));
                for n in 1..=2 {
                    let norm2 = step(&mut optimizer, &mut param, 4.0 * n as f32)?;
                    let wanted = step(&mut plain, &mut twin, n as f32)?;
                    assert_eq!((norm2.read(), optimizer.steps()), (wanted.read(), n));
                    assert_eq!(state(&param), state(&twin), "{axis:?}, step {n}");
                }
                assert_eq!(optimizer.scaling().loss.map(|loss| loss.log2), Some(3));
                Ok::<_, Error>(())
            };
            World::threads(&[(axis, 2)]).unwrap().run(run).unwrap();
        }
    }
}
