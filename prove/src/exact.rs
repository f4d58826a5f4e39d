//! Exact proof on floats: linear layers and collectives on small integers, whose sums are exact in any order.
//! On them, a device equals the field's oracle bit for bit, whatever its dtype.
//!
//! Two microbatches go through a column layer and a row layer as the layout's strategies build them, forward
//! and backward. Gradients are summed and kept at rest as the layout requires. Then the ranks of each axis
//! run every collective.
use crate::{ProofProgress, world};
use comm::{Axes, Axis, Group, Reduce, Tag};
use layers::Layer;
use layers::build::strategy::{Column, Row};
use ops::{Draw, Keeper, ParamValues, PassContext, Stream, ValueSource};
use parallel::dtype::RunDevice;
use parallel::{BuildContext, Layout, Network, Result, bail, deal, session};
use reference::{add_bias, bias_gradient, linear, linear_backward};
use tensor::{Category, F61, Real, Scalar, Tensor, mix};

/// Counts of the comparisons on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Exact {
    /// Number of tensors.
    pub tensors: usize,
    /// Number of their elements.
    pub elements: usize,
    /// The first element that differs from the oracle's, in words.
    pub first_difference: Option<String>,
}

/// Number of features that enter and leave. The features between are split; `SHARED` is their least number.
const WIDTH: usize = 3;
const SHARED: usize = 24;

/// Compares a layout's linear layers, and its collectives, with the field's oracle, on integers. Calls
/// `watch` with each activity.
///
/// # Errors
/// If the device's dtype cannot hold the sums of this number of ranks exactly, or a rank fails.
pub fn exact<D: RunDevice>(layout: &Layout, watch: &ProofProgress) -> Result<[Exact; 2]> {
    let shared = SHARED.next_multiple_of(layout.size(Axis::Tp));
    let (holds, most) = (if D::Elem::NARROW { 1 << 8 } else { 1 << 24 }, shared * (WIDTH + 1) + 1);
    if most.max(layout.ranks()) > holds {
        let number = D::Elem::NAME;
        bail!(
            "{layout} in {number}: its sums reach {most}, and {number} represents every integer only up to \
             {holds}"
        );
    }
    watch(&format!("proving {layout} in {}", D::Elem::NAME));
    let ranks =
        session::run((layout, &world(layout, &Network::default())?), &Whole, |at: BuildContext<D>| {
            let mut seen = [Exact::default(), Exact::default()];
            linear_layers(&at, shared, &mut seen[0])?;
            for (_, group) in at.mesh.axes().filter(|(_, group)| group.size() > 1) {
                collectives(at.device, group, &mut seen[1])?;
            }
            Ok(seen)
        })?;
    let with = |a: Exact, b: Exact| Exact {
        tensors: a.tensors + b.tensors,
        elements: a.elements + b.elements,
        first_difference: a.first_difference.or(b.first_difference),
    };
    Ok(ranks.into_iter().fold(Default::default(), |[a, b], [c, d]| [with(a, c), with(b, d)]))
}

impl Exact {
    fn compare<E: Real>(&mut self, what: &str, seen: Option<Vec<E>>, wanted: &[F61]) {
        let seen = seen.unwrap_or_default();
        self.tensors += 1;
        self.elements += wanted.len();
        let same = |x: f64, wanted| x.fract() == 0.0 && F61::from_f64(x) == wanted;
        let differs = (0..seen.len().max(wanted.len())).find(|&i| {
            !seen.get(i).zip(wanted.get(i)).is_some_and(|(seen, wanted)| same(seen.to_f64(), *wanted))
        });
        if let (Some(i), None) = (differs, &self.first_difference) {
            let [seen, wanted] = [seen.get(i).map(|x| x.to_f64()), wanted.get(i).map(|x| number(*x))];
            let reported = |x: Option<f64>| x.map_or_else(|| "none".into(), |x| x.to_string());
            self.first_difference =
                Some(format!("{what}: element {i} is {}, wanted {}", reported(seen), reported(wanted)));
        }
    }
}

/// Returns the integer that an element of the field represents.
fn number(x: F61) -> f64 {
    let x = x.canonical();
    if x > F61::P / 2 { -((F61::P - x) as f64) } else { x as f64 }
}

/// Returns −1, 0 or 1, by hash.
fn whole<E: Scalar>(salt: u64, i: usize) -> E {
    E::from_f64((mix(mix(salt) ^ i as u64) % 3) as f64 - 1.0)
}

/// Parameters whose elements are −1, 0 or 1.
struct Whole;

impl<E: Scalar> ValueSource<E> for Whole {
    fn of(&self, name: &str, [_, columns]: [usize; 2], _: Draw) -> ops::Result<ParamValues<'_, E>> {
        let salt = salt(name);
        Ok(ParamValues::each(move |[row, column]| whole(salt, row * columns + column)))
    }
}

fn salt(name: &str) -> u64 {
    name.bytes().fold(0, |salt, byte| mix(salt ^ u64::from(byte)))
}

/// Compares a column layer and a row layer, on this rank's tokens of two microbatches; and their gradients,
/// over all tokens.
fn linear_layers<D: RunDevice>(at: &BuildContext<D>, shared: usize, to: &mut Exact) -> Result<()> {
    let mesh = at.mesh;
    let axis = Axis::Tp;
    let [up, down] = [[WIDTH, shared], [shared, WIDTH]];
    let tokens = mesh.over(Axes::TOKENS)?;
    let rows = 2 * tokens.size() + 3; // of a microbatch: two or more for each rank
    let draws = |name: &str, n: usize| (0..n).map(|i| whole(salt(name), i)).collect::<Vec<F61>>();
    let [x, dy] = ["x", "dy"].map(|name| draws(name, 2 * rows * WIDTH));
    let [w, v] = ["up", "down"].map(|name| draws(name, shared * WIDTH));
    let mut h = linear(&x, &w, up);
    add_bias(&mut h, &draws("up.bias", shared));
    let mut y = linear(&h, &v, down);
    add_bias(&mut y, &draws("down.bias", WIDTH));
    let (dh, dv) = linear_backward(&h, &v, &dy, down);
    let (dx, dw) = linear_backward(&x, &w, &dh, up);

    let column = Column { axis, name: "up", inputs: WIDTH, sections: &[shared.into()], bias: true };
    let mut layer = (at.build(&column)?, at.build(&Row { axis, name: "down", sizes: down, bias: true })?);
    let mut keeper = Keeper::new(at.rests);
    for microbatch in 0..2 {
        let mine = deal(rows, tokens.rank(), tokens.size());
        let first = microbatch * rows + mine.start;
        let given = |name: &str| {
            let value = |i| whole(salt(name), first * WIDTH + i);
            let whole = Tensor::from_fn(at.device, Category::Activations, mine.len(), WIDTH, value);
            Stream::cut(&whole, at.region)
        };
        let mut params = layers::Params::new();
        layer.params(&mut params);
        keeper.gather(&mut params)?;
        drop(params);
        let cx = PassContext::train(microbatch, [mine.len()], 1);
        let (seen_y, saved) = layer.forward(&cx, given("x"))?;
        let seen_dx = layer.backward(&cx, saved, given("dy"))?;
        for (what, seen, wanted) in [("Y", seen_y, &y), ("dX", seen_dx, &dx)] {
            let range = seen.mine();
            let wanted = &wanted[(first + range.start) * WIDTH..(first + range.end) * WIDTH];
            to.compare(&format!("{what} on rank {}", mesh.rank()), seen.share().read(), wanted);
        }
        let mut params = layers::Params::new();
        layer.params(&mut params);
        keeper.release(&mut params, false)?;
    }
    let mut params = layers::Params::new();
    layer.params(&mut params);
    keeper.finish(&mut params)?;
    for (param, wanted) in params.iter().zip([dw, bias_gradient(&dh, shared), dv, bias_gradient(&dy, WIDTH)])
    {
        let what = format!("the gradient of {} on rank {}", param.name(), mesh.rank());
        to.compare(&what, param.gather_gradient(mesh)?, &wanted);
    }
    Ok(())
}

/// Compares every collective of a group, on different values for each rank.
fn collectives<D: RunDevice>(device: &D, group: &Group<D::Place>, to: &mut Exact) -> Result<()> {
    let ranks: Vec<_> = group.ranks().map(|rank| rank as u64).collect();
    let (n, me) = (group.size(), group.rank());
    let mine = |rows: usize| Tensor::from_fn(device, Category::Buffers, rows, 3, |i| whole(ranks[me], i));
    let rows = |number: &dyn Fn(usize) -> F61, first: usize, rows: usize| -> Vec<F61> {
        (3 * first..3 * (first + rows)).map(number).collect()
    };
    let part = |rank: usize, first: usize, count| rows(&|i| whole(ranks[rank], i), first, count);
    let of_all = |first| (0..n).flat_map(|rank| part(rank, first, 2)).collect::<Vec<_>>();
    let each = |first, count, add: fn(F61, F61) -> F61| {
        rows(&|i| ranks.iter().map(|&rank| whole(rank, i)).reduce(add).expect("ranks"), first, count)
    };
    let mut compare = |what: &str, seen: &Tensor<D>, wanted: Vec<F61>| {
        to.compare(&format!("{what} over {} on rank {}", group.axis(), ranks[me]), seen.read(), &wanted);
    };
    let [mut sum, mut most, mut sent] = [5; 3].map(mine);
    let last = n - 1;
    group.all_reduce(&mut sum, Reduce::Sum)?;
    compare("all_reduce(sum)", &sum, each(0, 5, |a, b| a + b));
    group.all_reduce(&mut most, Reduce::Stab)?;
    compare("all_reduce(max)", &most, each(0, 5, |a, b| if number(a) > number(b) { a } else { b }));
    group.broadcast(&mut sent, last)?;
    compare("broadcast", &sent, part(last, 0, 5));
    compare("all_gather", &group.all_gather(&mine(2))?, of_all(0));
    compare("reduce_scatter", &group.reduce_scatter(&mine(2 * n))?, each(2 * me, 2, |a, b| a + b));
    compare("all_to_all", &group.all_to_all(&mine(2 * n))?, of_all(2 * me));
    if let Some(all) = group.gather(&mine(2), 0)? {
        compare("gather", &all, of_all(0));
    }
    let given = (me == last).then(|| mine(2 * n));
    compare("scatter", &group.scatter(device, given.as_ref(), last, 2, 3)?, part(last, 2 * me, 2));
    let from = (me + last) % n;
    let tag = Tag::new("ring", 0);
    let message = group.start_send((me + 1) % n, mine(2), tag)?;
    compare("a message", &group.receive(device, from, 2, 3, tag)?, part(from, 0, 2));
    message.wait()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::{Bf16, Cpu};

    /// Kills: wrong values from a layer, from the sum of a gradient, from where parameters are kept at rest
    /// or from a collective of any axis, over the tokens or ranks of any of these layouts; a tensor that is
    /// not compared.
    #[test]
    fn linear_layers_and_collectives_equal_the_field_under_every_kind_of_layout() {
        let layouts = [
            "none",
            "tp=3",
            "tp=2,sp",
            "dp=2:zero3",
            "tp=2,dp=2:zero2",
            "pp=2,dp=2:zero1",
            "tp=2,sp,dp=2:zero3",
        ];
        for layout in layouts {
            let parsed: Layout = layout.parse().unwrap();
            for [linear, said] in
                [exact::<Cpu<f32>>(&parsed, &|_| ()).unwrap(), exact::<Cpu<Bf16>>(&parsed, &|_| ()).unwrap()]
            {
                assert_eq!((&linear.first_difference, &said.first_difference), (&None, &None), "{layout}");
                assert_eq!(linear.tensors, 8 * parsed.ranks(), "{layout}");
                assert_eq!(said.tensors == 0, parsed.ranks() == 1, "{layout}");
            }
        }
    }

    /// Kills: values compared although a float rounds them.
    #[test]
    fn sums_that_are_not_exact_are_refused() {
        let layout: Layout = "tp=64".parse().unwrap();
        let why = exact::<Cpu<Bf16>>(&layout, &|what| panic!("{what}")).unwrap_err().to_string();
        assert_eq!(
            why,
            "tp=64 in bf16: its sums reach 257, and bf16 represents every integer only up to 256"
        );
    }

    /// Kills: a difference not noticed, a difference reported at another index or with another value, a
    /// fraction that rounds to the right value, a tensor too short, a missing tensor.
    #[test]
    fn what_differs_first_is_told() {
        let wanted = [1.0, -2.0, 0.0].map(F61::from_f64);
        let mut equal = Exact::default();
        equal.compare("Y", Some(vec![1.0f32, -2.0, 0.0]), &wanted);
        assert_eq!(equal, Exact { tensors: 1, elements: 3, first_difference: None });
        for (seen, says) in [
            (Some(vec![1.0f32, -2.5, 1.0]), "Y: element 1 is -2.5, wanted -2"),
            (Some(vec![1.0, -2.0, f32::NAN]), "Y: element 2 is NaN, wanted 0"),
            (Some(vec![1.0, -2.0, 0.0, 4.0]), "Y: element 3 is 4, wanted none"),
            (Some(vec![1.0]), "Y: element 1 is none, wanted -2"),
            (None, "Y: element 0 is none, wanted 1"),
        ] {
            let mut of = equal.clone();
            of.compare("Y", seen, &wanted);
            of.compare("Z", Some(vec![0.0f32]), &wanted[..1]);
            assert_eq!(of.first_difference.as_deref(), Some(says));
        }
    }
}
