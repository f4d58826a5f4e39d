//! Sums of gradients over the ranks that hold addends of them: the parameters of a unit in one call.
//!
//! ```text
//! start    replicated parts, then each axis but dp: summed. dp: one sum of all gradients of the unit is started
//! finish   every sum that was started is waited for, in the order of the starts
//! ```
//!
//! A unit is what backward completes at one time: the head, a block, the embedding. A call of its own for each parameter
//! would pay the latency for each; one call for the whole model could not begin before backward ends. Each number is added
//! in rank order either way, so the bits are the same.
//!
//! Source: Li et al., "PyTorch distributed", §3.2.3 (buckets, and sums beside backward), arXiv:2006.15704.
use crate::{Param, Result};
use comm::{Axis, Group, Mesh, Reduce, Together};
use kernels::Kernels;
use std::sync::Arc;
use tensor::Tensor;

/// The sums of one step's gradients. What a step needs is kept for the next.
pub struct GradientSums<D: Kernels> {
    units: Vec<Unit<D>>, // in the order of their starts
    started: usize,      // of them, in this step
}

/// The gradients that are summed together.
struct Unit<D: Kernels> {
    label: Arc<str>,
    gradients: Vec<Tensor<D::Wide>>, // last parameter first; empty between steps
    under_way: Option<Together<D::Wide>>,
}

impl<D: Kernels> Default for GradientSums<D> {
    fn default() -> Self {
        Self { units: Vec::new(), started: 0 }
    }
}

impl<D: Kernels> GradientSums<D> {
    /// Starts the sums of these parameters' gradients, to which nothing more is added in this step. All ranks start the
    /// same units in the same order.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn start(&mut self, params: &mut [&mut Param<D>], mesh: &Mesh<D::Place>) -> Result<()> {
        let number = self.started;
        if number == self.units.len() {
            let label = label(params).into();
            self.units.push(Unit { label, gradients: Vec::new(), under_way: None });
        }
        let unit = &mut self.units[number];
        for param in params.iter_mut().filter(|param| param.summed_in.is_none()) {
            param.begin_sum()?;
            param.summed_in = Some(number);
        }
        for (axis, group) in mesh.axes().filter(|(axis, _)| *axis != Axis::SEQUENCES) {
            if let Some(sums) = unit.start(number, params, (axis, group))? {
                unit.gradients = sums.wait()?;
                unit.give_back(number, params);
            }
        }
        unit.under_way = unit.start(number, params, (Axis::SEQUENCES, mesh.group(Axis::SEQUENCES)))?;
        self.started += 1;
        Ok(())
    }
    /// Waits for all sums, and gives the gradients back. `params` are all parameters of the step, those of a unit in the
    /// order in which the unit had them; of those that nobody has started, the sums are started here, as one unit.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub fn finish(&mut self, params: &mut [&mut Param<D>], mesh: &Mesh<D::Place>) -> Result<()> {
        if params.iter().any(|param| param.summed_in.is_none()) {
            self.start(params, mesh)?;
        }
        for unit in self.units.iter_mut().take(self.started) {
            if let Some(sums) = unit.under_way.take() {
                unit.gradients = sums.wait()?;
            }
        }
        for param in params.iter_mut() {
            let number = param.summed_in.take().expect("started above");
            self.units[number].give_one_back(param);
        }
        self.started = 0;
        Ok(())
    }
}

impl<D: Kernels> Unit<D> {
    /// Starts the sum along an axis of the gradients that have addends along it; none if there are no such gradients.
    fn start(
        &mut self,
        number: usize,
        params: &mut [&mut Param<D>],
        (axis, group): (Axis, &Group<D::Place>),
    ) -> Result<Option<Together<D::Wide>>> {
        let mut gradients = std::mem::take(&mut self.gradients);
        let own = params.iter_mut().rev().filter(|param| param.summed_in == Some(number));
        gradients.extend(own.filter_map(|param| param.lend_gradient(axis)));
        if gradients.is_empty() {
            self.gradients = gradients;
            return Ok(None);
        }
        let group = group.named(self.label.clone());
        Ok(Some(group.start_all_reduce_together(gradients, Reduce::Sum)?))
    }
    fn give_back(&mut self, number: usize, params: &mut [&mut Param<D>]) {
        let own = params.iter_mut().filter(|param| param.summed_in == Some(number));
        own.for_each(|param| self.give_one_back(param));
    }
    /// Gives a parameter its gradient, if it was lent: the last one in the list.
    fn give_one_back(&mut self, param: &mut Param<D>) {
        param.take_back(|| self.gradients.pop().expect("as many as were lent"));
    }
}

/// How the label of a sum begins.
const OF: &str = "gradients of ";
/// Between names in a label.
const AND: &str = ", ";

/// What the sum of these parameters' gradients is called: by the longest part that their names share, or else by all names.
fn label<D: Kernels>(params: &[&mut Param<D>]) -> String {
    let first: &str = params.first().map_or("", |param| param.name());
    let parts = first.rmatch_indices('.').map(|(dot, _)| &first[..dot]);
    let shared = |part: &&str| params.iter().all(|param| is_within(param.name(), part));
    let names = || params.iter().map(|param| &**param.name()).collect::<Vec<_>>().join(AND);
    let what = std::iter::once(first).chain(parts).find(shared).map_or_else(names, str::to_string);
    format!("{OF}{what}")
}

/// Whether a name is this part, or goes on after it.
fn is_within(name: &str, part: &str) -> bool {
    name.strip_prefix(part).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Whether a sum of this label is of the gradient of this parameter, too.
pub fn is_summed_in(label: &str, name: &str) -> bool {
    label.strip_prefix(OF).is_some_and(|parts| parts.split(AND).any(|part| is_within(name, part)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Builder, Draw, Error, Placed, Placement, Random};
    use comm::{Op, World};
    use tensor::Cpu;

    /// A parameter whose gradient is `1 + salt` on rank 0, twice as much on rank 1, and so on.
    fn param(
        at: &Builder<Cpu<f32>>,
        name: &str,
        placement: &Placement,
        salt: usize,
    ) -> Result<Param<Cpu<f32>>> {
        let mut param = Param::new(at, name, [2, 3], placement.clone(), Draw { mean: 0.0, std: 1.0 })?;
        let addend = ((1 + salt) * (1 + at.mesh.rank())) as f32;
        param.accumulate(|device, gradient, _| device.fill(gradient, addend));
        Ok(param)
    }

    /// Six parameters of one shape on four ranks, in units of two, three, and what is left. Gradients have addends along dp,
    /// tp, both or none. Two steps. Kills: a gradient that another parameter gets, one that is summed twice, not at all or
    /// along another axis, a call for each parameter, a unit that is not waited for, a step that the next one takes for its own.
    #[test]
    fn units_are_summed_in_one_call_for_each_axis() {
        let run = |device: Cpu<f32>, mesh: Mesh<_>| {
            let at = Builder::new(&device, &mesh, &Random { seed: 1 });
            let data = Placement::default();
            let [both, tensor] = [&data, &data.clone().on(Axis::Dp, Placed::Same)]
                .map(|placement| placement.clone().on(Axis::Tp, Placed::Summed));
            let none = data.clone().on(Axis::Dp, Placed::Same);
            let [tp, dp] = [Axis::Tp, Axis::Dp].map(|axis| mesh.group(axis).rank());
            let mine = 1 + mesh.rank();
            assert_eq!(mine, 1 + tp + 2 * dp, "tp is innermost");
            let (over_dp, over_tp, over_both) = (2 * (1 + tp) + 2, 2 * (1 + 2 * dp) + 1, 1 + 2 + 3 + 4);
            let params = [
                ("table", &data, over_dp),
                ("blocks.0.a", &both, over_both),
                ("blocks.0.b", &none, mine),
                ("blocks.0.c", &tensor, over_tp),
                ("norm", &data, over_dp),
                ("head", &both, over_both),
            ];
            let mut sums = GradientSums::default();
            for _ in 0..2 {
                let new =
                    |(salt, (name, placement, _)): (_, &(&str, &_, _))| param(&at, name, placement, salt);
                let mut made = params.iter().enumerate().map(new).collect::<Result<Vec<_>>>()?;
                let mut all: Vec<_> = made.iter_mut().collect();
                let before = mesh.ledger();
                sums.start(&mut all[4..], &mesh)?;
                sums.start(&mut all[1..4], &mesh)?;
                let begun = (mesh.ledger() - &before).get(Axis::Dp, Op::AllReduce);
                sums.finish(&mut all, &mesh)?;
                assert_eq!((sums.started, sums.units.len()), (0, 3), "a step's units are the next one's");
                let said = mesh.ledger() - &before;
                let [dp, tp] = [Axis::Dp, Axis::Tp].map(|axis| said.get(axis, Op::AllReduce));
                assert_eq!([begun.calls, dp.calls, tp.calls], [2, 3, 2]);
                assert_eq!([dp.elements, tp.elements], [4 * 6, 3 * 6]);
                for (salt, (param, (name, _, sum))) in made.iter().zip(params).enumerate() {
                    let gradient: Vec<_> = param.gradient_elements().into_iter().map(|(_, g)| g).collect();
                    assert_eq!(gradient, [((1 + salt) * sum) as f32; 6], "{name} on {}", mesh.rank());
                }
            }
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)]).unwrap().run(run).unwrap();
    }

    /// Kills: a name cut within a part, a shared part of two parameters that not all have, a sum that is taken for that of
    /// a parameter whose name begins alike.
    #[test]
    fn a_unit_is_called_what_its_parameters_share() {
        let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
        let at = Builder::new(&device, &mesh, &Random { seed: 1 });
        let name = |names: &[&str]| {
            let new = |name: &&str| param(&at, name, &Placement::default(), 0).unwrap();
            let mut params: Vec<_> = names.iter().map(new).collect();
            label(&params.iter_mut().collect::<Vec<_>>())
        };
        let blocks = ["blocks.1.norm1", "blocks.1.mlp.up", "blocks.1.mlp.down"];
        assert_eq!(name(&["head.weight"]), "gradients of head.weight");
        assert_eq!(name(&blocks), "gradients of blocks.1");
        assert_eq!(name(&["blocks.1.norm1", "blocks.10.norm1"]), "gradients of blocks");
        assert_eq!(name(&["norm", "head", "normal"]), "gradients of norm, head, normal");
        for (of, name, wanted) in [
            ("gradients of blocks.1", "blocks.1.norm1", true),
            ("gradients of blocks.1", "blocks.10.norm1", false),
            ("gradients of norm, head", "head", true),
            ("gradients of norm, head", "normal", false),
            ("blocks.1", "blocks.1.norm1", false),
        ] {
            assert_eq!(is_summed_in(of, name), wanted, "{name} in {of}");
        }
    }
}
