//! The hand-written backward is exactly the derivative of the forward: for random directions Ẋ and Ẇ,
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ + Σ ⟨dW, Ẇ⟩ in the field, where Ẏ comes from running the forward on dual numbers.
use super::case::{LayerInput, place};
use super::erased::{Erased, OnDevice};
use super::lies::{ActivationLayout, AtRank};
use super::run::weights;
use comm::{Axes, World};
use ops::{Draw, Error, ParamValues, RandomValues, Result, ValueSource};
use tensor::{Cpu, Dual, F61, Key, Scalar};

type DualNumber = Dual<F61>;

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    let _key = Key(2).enter();
    for &ranks in case.ranks().iter().filter(|&&n| n <= 2) {
        World::threads(&case.world(ranks))
            .expect("a world")
            .run(|device: Cpu<DualNumber>, mesh| {
                let group = mesh.group(case.axis());
                let features = case.features();
                let values = Moving(case);
                let at = place(&device, &mesh, &values, regions);
                let mut layer = OnDevice::<Cpu<DualNumber>>::build(case, &at)?;
                let axes: Axes = case.dealers().iter().map(|(axis, _)| *axis).collect();
                let at = AtRank { device: &device, group, region: at.region, dealers: &mesh.over(axes)? };
                let given = LayerInput::<DualNumber>::draw(features, 0).swap_remove(0);
                let deal = |place| case.deal(&given.tokens, place);
                let mine = given.of(deal(at.place()), features, case.shards(at.place()));
                let whole = |x: &dyn ActivationLayout<_>, features| at.together(x, (features, &deal));
                let start = whole(&*layer.input(&mine, features[0], &at)?, features[0])?;
                let (_, [y, dx]) = layer.forward_backward(vec![mine], features, &at)?.swap_remove(0);
                let moved = whole(&*y, features[1])?;
                let mut sum = along(&whole(&*dx, features[0])?, &start);
                let values = weights(&mut *layer, &mesh)?;
                for param in layer.params().into_iter().filter(|param| param.placement().trained) {
                    param.sync()?;
                    let gradient = param.gather_gradient(&mesh)?.expect("a contribution to every gradient");
                    sum += along(&gradient, &values[&**param.name()]);
                }
                assert_eq!(along(&given.dy, &moved), sum, "⟨dY, Ẏ⟩ and ⟨dX, Ẋ⟩ + Σ⟨dW, Ẇ⟩ on {ranks} ranks");
                assert_ne!(sum, F61::ZERO, "the derivative is zero");
                Ok::<_, Error>(())
            })
            .unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Values that move in a random direction, except those of rows that are still.
struct Moving<'a, C: ?Sized>(&'a C);

impl<C: Erased + ?Sized> ValueSource<DualNumber> for Moving<'_, C> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, DualNumber>> {
        let all = RandomValues { seed: 7 }.of(name, shape, draw)?;
        let name = name.to_owned();
        Ok(all.map(
            move |[row, _], x: DualNumber| {
                if self.0.has_no_gradient(&name, row) { DualNumber::constant(x.value) } else { x }
            },
        ))
    }
}

/// ⟨values of the gradient, tangents⟩.
fn along(gradient: &[DualNumber], moving: &[DualNumber]) -> F61 {
    gradient.iter().zip(moving).fold(F61::ZERO, |sum, (g, m)| sum + g.value * m.tangent)
}
