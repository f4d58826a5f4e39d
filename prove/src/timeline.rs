//! Timeline of one rank's run: everything that can be compared, in program order, and the oracle's values:
//! activations and their gradients, losses, gradients of parameters, norms, new weights.
use super::Subject;
use crate::oracle;
use crate::trace::unscaling;
use comm::{CallRecord, Mesh};
use kernels::Kernels;
use layers::Params;
use ops::{Activations, RecordedActivation, RecordedCall};
use parallel::Report;
use reference::Weights;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::{F61, Scalar, Tensor};

/// Place of an element: (sequence, position) of its row and its column; or (0, 0) and its index in the whole
/// tensor.
pub(super) type ElementPlace = (usize, usize, usize);

/// One tensor of a rank's run.
pub(super) struct TimelineEntry<E> {
    pub(super) name: String,
    /// Elements on this rank; `None` if ranks have addends, which are not compared.
    pub(super) elements: Option<Vec<(ElementPlace, E)>>,
    /// Parts (microbatches) that computed it, and the rank's calls that may have touched it there.
    pub(super) touched: Vec<TokenPart>,
}

/// Tokens of a part (for each sequence, a range of positions; empty: all tokens), and calls.
pub(super) type TokenPart = (Vec<(usize, Range<usize>)>, Vec<CallRecord>);

/// Everything recorded of one step on one rank, at its end.
pub(super) struct StepRecords<'a, D: Kernels<Wide = D>> {
    pub(super) prefix: String,
    pub(super) seen: Activations<D::Elem>,
    pub(super) report: Option<&'a Report<D>>,
    /// Number of calls made before the step.
    pub(super) calls: usize,
}

/// Reports every moment of one step on this rank, in program order.
pub(super) fn moments<D: Kernels<Wide = D>>(
    displayed: StepRecords<D>,
    mut params: Params<D>,
    mesh: &Mesh<D::Place>,
    see: &mut dyn FnMut(TimelineEntry<D::Elem>),
) {
    let StepRecords { prefix, seen, report, calls: began } = displayed;
    let calls = mesh.calls();
    let (back, forth): (Vec<_>, Vec<_>) = seen.0.into_iter().partition(|a| is_of_backward(&a.name));
    let first_back = back.iter().find(|a| !a.is_partial);
    let between = first_back.into_iter().flat_map(|a| parts(a, &calls)).flat_map(|(_, calls)| calls);
    let mut see = |name: &str, elements, touched| {
        see(TimelineEntry { name: format!("{prefix}{name}"), elements, touched });
    };
    let activation = |a: RecordedActivation<D::Elem>,
                      see: &mut dyn FnMut(&str, Option<Vec<_>>, Vec<TokenPart>)| {
        let touched = parts(&a, &calls);
        let row = |((sequence, position), row): ((usize, usize), Vec<D::Elem>)| {
            a.columns.iter().map(move |&column| (sequence, position, column)).zip(row).collect::<Vec<_>>()
        };
        see(&a.name, (!a.is_partial).then_some(a.rows.into_iter().flat_map(row).collect()), touched);
    };
    for a in forth {
        activation(a, &mut see);
    }
    let Some(report) = report else { return };
    let of_step =
        |what: &str| calls.iter().skip(began).filter(|call| call.is_for(what)).cloned().collect::<Vec<_>>();
    let all_of = |calls| vec![(Vec::new(), calls)];
    let flat =
        |elements: Vec<(usize, D::Elem)>| Some(elements.into_iter().map(|(i, x)| ((0, 0, i), x)).collect());
    let number = |x: &Tensor<D>| flat(x.read().unwrap_or_default().into_iter().enumerate().collect());
    see("loss", number(&report.loss), all_of(between.chain(of_step("loss")).collect()));
    let by = unscaling(report);
    for mut a in back {
        a.rows.values_mut().flatten().for_each(|x| *x = *x * by);
        activation(a, &mut see);
    }
    for param in params.iter().rev() {
        let summed = of_step(param.call_names()[0]);
        let gradient = param.gradient_elements().into_iter().map(|(i, x)| (i, x * by)).collect();
        see(&format!("gradient of {}", param.name()), flat(gradient), all_of(summed));
        let padding: Vec<_> = param.gradient_padding().into_iter().enumerate().collect();
        if !padding.is_empty() {
            see(&padding_of(param.name()), flat(padding), all_of(Vec::new()));
        }
    }
    if let Some(norm2) = &report.norm2 {
        see("norm²", number(norm2), all_of(of_step("norm2")));
    }
    for param in &mut params {
        let gathered = of_step(param.call_names()[1]);
        see(&format!("new {}", param.name()), flat(param.elements()), all_of(gathered));
    }
}

/// Returns true if an activation of this name is a gradient.
fn is_of_backward(name: &str) -> bool {
    name.starts_with("gradient of ")
}

/// Returns the name of the padding of a parameter's gradient: its elements beyond the whole, which must be 0.
fn padding_of(name: &str) -> String {
    format!("padding of {name}'s gradient")
}

/// Returns the calls between the previous activation and this one, part by part.
fn parts<E>(a: &RecordedActivation<E>, calls: &[CallRecord]) -> Vec<TokenPart> {
    let part = |touched: &RecordedCall| {
        let made = touched.calls.start.min(calls.len())..touched.calls.end.min(calls.len());
        (touched.tokens.clone(), calls[made].to_vec())
    };
    a.touched.iter().map(part).collect()
}

/// Oracle's values, by name and in program order.
#[derive(Default)]
pub(super) struct Expected {
    pub(super) order: Vec<String>,
    tensors: BTreeMap<String, BTreeMap<ElementPlace, F61>>,
}

impl Expected {
    /// Adds elements of a tensor; a new tensor is the last.
    pub(super) fn add(&mut self, name: &str, elements: impl IntoIterator<Item = (ElementPlace, F61)>) {
        if !self.tensors.contains_key(name) {
            self.order.push(name.to_string());
        }
        self.tensors.entry(name.to_string()).or_default().extend(elements);
    }
    /// Appends tensors that come later.
    fn append(&mut self, mut later: Self) {
        self.order.append(&mut later.order);
        self.tensors.append(&mut later.tensors);
    }
    /// Adds padding, whose elements are all 0.
    pub(super) fn add_padding(&mut self, prefix: &str, parameter: &str) {
        self.order.push(format!("{prefix}{}", padding_of(parameter)));
    }
    /// Returns the tensor of this name; `None` for padding.
    pub(super) fn tensor(&self, name: &str) -> Option<&BTreeMap<ElementPlace, F61>> {
        self.tensors.get(name)
    }
    /// Returns the oracle's value of one element, if there is one.
    pub(super) fn wanted(&self, name: &str, place: &ElementPlace) -> Option<F61> {
        match self.tensor(name) {
            Some(tensor) => tensor.get(place).copied(),
            None => self.order.iter().any(|padding| padding == name).then_some(F61::ZERO),
        }
    }
}

/// Returns all values of the oracle for a subject, from these weights, under the key in force.
pub(super) fn expected(subject: &Subject, weights: Weights<F61>) -> Expected {
    let phases = || [Expected::default(), Expected::default()];
    let mut seen: Vec<_> = (0..=subject.steps.len()).map(|_| phases()).collect(); // forward and backward
    let prefix = |at: usize| if at == 0 { "texts: ".to_string() } else { format!("step {}: ", at - 1) };
    let trace = subject.truth(weights, &|_| (), &mut |at, name, rows, x| {
        let width = (x.len() / rows.len().max(1)).max(1);
        let place = |(i, &x): (usize, &F61)| ((rows[i / width].0, rows[i / width].1, i % width), x);
        let phase = &mut seen[at][usize::from(is_of_backward(name))];
        phase.add(&format!("{}{name}", prefix(at)), x.iter().enumerate().map(place));
    });
    let mut seen = seen.into_iter();
    let [mut all, _] = seen.next().expect("texts, though there may be none");
    let each = (trace.len() - 1) / subject.steps.len().max(1);
    for (n, (step, [forth, back])) in trace[1..].chunks(each.max(1)).zip(seen).enumerate() {
        let [loss, norm2, params @ ..] = step else { unreachable!("a step has a loss and a norm") };
        let (gradients, weights) = params.split_at(params.len() / 2);
        let add = |(name, x): &(String, Vec<F61>), all: &mut Expected| {
            all.add(name, (0..).map(|i| (0, 0, i)).zip(x.iter().copied()));
        };
        all.append(forth);
        add(loss, &mut all);
        all.append(back);
        for (gradient, (name, _)) in gradients.iter().zip(oracle::design(&subject.model).shapes()).rev() {
            add(gradient, &mut all);
            all.add_padding(&prefix(n + 1), &name);
        }
        [norm2].into_iter().chain(weights).for_each(|tensor| add(tensor, &mut all));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::program;
    use crate::subject::START;
    use layers::Shape;
    use parallel::{BuildContext, Layout, session};
    use tensor::{Cpu, Key};

    /// Kills: gradients of parameters in another order than backward's, gradients of parameters before those
    /// of activations, a norm before its terms, a tensor that the run reports and the oracle does not.
    #[test]
    fn moments_stand_in_the_order_of_the_program() {
        let (layout, _key) = (Layout::UNSPLIT, Key(1).enter());
        let subject = &Subject::small(Shape::LLAMA, &layout).unwrap();
        let names = session::alone(&START, |at: BuildContext<Cpu<F61>>| {
            let mut names = Vec::new();
            let mut see = |moment: TimelineEntry<_>| names.push(moment.name);
            program(subject, &at, (&mut |_, _| (), Some(&mut see)), &|_| ()).map(|_| names)
        });
        let names = names.unwrap();
        let truth = expected(subject, subject.start().unwrap());
        let reported: Vec<_> = truth.order.iter().filter(|name| truth.tensor(name).is_some()).collect();
        assert_eq!(names.iter().collect::<Vec<_>>(), reported);
        let order = [
            "texts: embedding.out",
            "texts: head.out",
            "step 0: embedding.out",
            "step 0: blocks.0.norm1.in",
            "step 0: head.out",
            "step 0: loss",
            "step 0: gradient of head.out",
            "step 0: gradient of blocks.0.mlp.down.out",
            "step 0: gradient of blocks.0.norm1.in",
            "step 0: gradient of head",
            "step 0: gradient of norm",
            "step 0: gradient of embedding",
            "step 0: norm²",
            "step 0: new embedding",
            "step 0: new head",
            "step 1: embedding.out",
        ];
        let at = order.map(|name| names.iter().position(|n| *n == name).unwrap_or_else(|| panic!("{name}")));
        assert!(at.is_sorted(), "{at:?} of {names:?}");
    }
}
