//! The hand-written backward is the derivative of the forward, exactly: for random directions Ẋ and Ẇ,
//! ⟨dY, Ẏ⟩ = ⟨dX, Ẋ⟩ + Σ ⟨dW, Ẇ⟩ in the field, where Ẏ comes from running the forward on dual numbers.
use super::erased::{Erased, On};
use super::lies::AtRank;
use super::run::weights;
use super::{Given, place};
use crate::model::build::Element;
use crate::{Draw, Error, Random, Result, Values};
use comm::{Axis, World};
use tensor::{Cpu, Dual, F61, Key, Scalar};

type Number = Dual<F61>;

pub(super) fn check(case: &(impl Erased + ?Sized), regions: bool) {
    let _key = Key(2).enter();
    for &ranks in case.ranks().iter().filter(|&&n| n <= 2) {
        World::threads(&[(Axis::LAYERS, ranks)])
            .expect("a world")
            .run(|device: Cpu<Number>, mesh| {
                let (group, features) = (mesh.group(Axis::LAYERS), case.features());
                let values = Moving(case);
                let at = place(&device, &mesh, &values, regions);
                let mut layer = On::<Cpu<Number>>::build(case, &at)?;
                let at = AtRank { device: &device, group, region: at.region };
                let given = Given::<Number>::draw(features, 0).swap_remove(0);
                let start = layer.input(&given, features[0], &at)?.whole(&at)?;
                let (_, [y, dx]) = layer.there_and_back(vec![given.clone()], features, &at)?.swap_remove(0);
                let moved = y.whole(&at)?;
                let mut sum = along(&dx.whole(&at)?, &start);
                let values = weights(&mut *layer, &mesh)?;
                for param in layer.params() {
                    param.sync()?;
                    let gradient = param.gather_gradient(&mesh)?.expect("a contribution to every gradient");
                    sum += along(&gradient, &values[&**param.name()]);
                }
                assert_eq!(along(&given.dy, &moved), sum, "⟨dY, Ẏ⟩ and ⟨dX, Ẋ⟩ + Σ⟨dW, Ẇ⟩ on {ranks} ranks");
                assert_ne!(sum, F61::ZERO, "nothing moved");
                Ok::<_, Error>(())
            })
            .unwrap_or_else(|why| panic!("{why}"));
    }
}

/// Values that move in a random direction, all but those of rows that are still.
struct Moving<'a, C: ?Sized>(&'a C);

impl<C: Erased + ?Sized> Values<Number> for Moving<'_, C> {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<Element<'_, Number>> {
        let (all, name) = (Random { seed: 7 }.of(name, shape, draw)?, name.to_owned());
        Ok(Box::new(move |at| {
            let x: Number = all(at);
            if self.0.is_still(&name, at[0]) { Number::constant(x.value) } else { x }
        }))
    }
}

/// ⟨values of the gradient, tangents⟩.
fn along(gradient: &[Number], moving: &[Number]) -> F61 {
    gradient.iter().zip(moving).fold(F61::ZERO, |sum, (g, m)| sum + g.value * m.tangent)
}
