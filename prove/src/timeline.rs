//! All that can be compared of one rank's run, in program order, and what the oracle says of it: activations and their
//! gradients, losses, gradients of parameters, norms, new weights.
use super::Subject;
use super::trace::disturbed;
use comm::Mesh;
use kernels::Kernels;
use layers::{Activation, Activations, Param, Touched, is_summed_in};
use parallel::Report;
use reference::Weights;
use std::collections::BTreeMap;
use std::ops::Range;
use tensor::{F61, Scalar, Tensor};

/// Where an element lies: (sequence, position) of its row and its column, or its index in the whole.
pub(super) type Place = (usize, usize, usize);
/// The sequence of what lies nowhere in the whole: it must be 0.
pub(super) const PADDING: usize = usize::MAX;

/// Something that came about on one rank.
pub(super) struct Moment<E> {
    pub(super) name: String,
    /// Of this rank's share.
    pub(super) elements: Vec<(Place, E)>,
    /// Where it came about, in parts (the microbatches), and the rank's calls that may have touched it there, in words.
    pub(super) touched: Vec<Part>,
}

/// The tokens of a part (of each sequence, from one position to another; nothing: all there is), and calls.
pub(super) type Part = (Vec<(usize, Range<usize>)>, Vec<String>);

/// What a step had shown of itself when it ended on one rank.
pub(super) struct Shown<'a, D: Kernels<Wide = D>> {
    pub(super) prefix: String,
    pub(super) seen: Activations<D::Elem>,
    pub(super) report: Option<&'a Report<D>>,
    /// Calls made when it began.
    pub(super) calls: usize,
}

/// Shows every moment of one step on this rank, in program order.
pub(super) fn moments<D: Kernels<Wide = D>>(
    shown: Shown<D>,
    mut params: Vec<&mut Param<D>>,
    mesh: &Mesh<D::Place>,
    see: &mut dyn FnMut(Moment<D::Elem>),
) {
    let Shown { prefix, seen, report, calls: began } = shown;
    let calls = mesh.calls();
    let (back, forth): (Vec<_>, Vec<_>) =
        seen.0.into_iter().filter(|a| !a.addends).partition(|a| a.name.starts_with("gradient of"));
    let between =
        back.first().map_or_else(Vec::new, |a| parts(a, &calls)).into_iter().flat_map(|(_, calls)| calls);
    let activation = |a: Activation<D::Elem>| {
        let touched = parts(&a, &calls);
        let row = |((sequence, position), row): ((usize, usize), Vec<D::Elem>)| {
            let at = a.columns.iter().map(move |&column| (sequence, position, column));
            at.zip(row).collect::<Vec<_>>()
        };
        let elements = a.rows.into_iter().flat_map(row).collect();
        Moment { name: format!("{prefix}{}", a.name), elements, touched }
    };
    forth.into_iter().map(&activation).for_each(&mut *see);
    let Some(report) = report else { return };
    let all_of = |calls: Vec<String>| vec![(Vec::new(), calls)];
    let number = |name: &str, x: &Tensor<D>, touched| {
        let elements = x.read().unwrap_or_default().into_iter().map(|x| ((0, 0, 0), x)).collect();
        Moment { name: format!("{prefix}{name}"), elements, touched: all_of(touched) }
    };
    let said: Vec<_> = calls.iter().skip(began).cloned().collect();
    let is_of = |call: &str, label: &str| call.contains(&format!(" for {label} at "));
    let total = said.iter().filter(|call| is_of(call, "loss")).cloned();
    see(number("loss", &report.loss, between.chain(total).collect()));
    back.into_iter().map(&activation).for_each(&mut *see);
    let flat = |elements: Vec<(usize, D::Elem)>| elements.into_iter().map(|(i, x)| ((0, 0, i), x)).collect();
    for param in params.iter().rev() {
        let touched = all_of(said.iter().filter(|call| sums(call, param.name())).cloned().collect());
        let name = format!("{prefix}gradient of {}", param.name());
        see(Moment { name, elements: flat(param.gradient_elements()), touched });
        let padding: Vec<_> =
            (0..).zip(param.gradient_padding()).map(|(i, x)| ((PADDING, 0, i), x)).collect();
        if !padding.is_empty() {
            let name = format!("{prefix}padding of {}'s gradient", param.name());
            see(Moment { name, elements: padding, touched: all_of(Vec::new()) });
        }
    }
    let of_norm = said.iter().filter(|call| is_of(call, "norm2")).cloned().collect();
    see(number("norm²", &report.norm2, of_norm));
    for param in &mut params {
        let name = format!("{prefix}new {}", param.name());
        see(Moment { name, elements: flat(param.elements()), touched: Vec::new() });
    }
}

/// Whether a call sums the gradient of this parameter, alone or with others'.
fn sums(call: &str, name: &str) -> bool {
    let label = call.split_once(" for ").and_then(|(_, rest)| rest.rsplit_once(" at "));
    label.is_some_and(|(label, _)| label == name || is_summed_in(label, name))
}

/// The calls between what was seen before and this, in words, part by part.
fn parts<E>(a: &Activation<E>, calls: &[String]) -> Vec<Part> {
    let of = |touched: &Touched| {
        let made = touched.calls.start.min(calls.len())..touched.calls.end.min(calls.len());
        (touched.tokens.clone(), calls[made].to_vec())
    };
    a.touched.iter().map(of).collect()
}

/// What the oracle says, by name.
pub(super) type Expected = BTreeMap<String, BTreeMap<Place, F61>>;

/// What it says of one element of such a tensor, if anything.
pub(super) fn wanted(tensor: Option<&BTreeMap<Place, F61>>, place: &Place) -> Option<F61> {
    if place.0 == PADDING { Some(F61::ZERO) } else { tensor?.get(place).copied() }
}

/// All that the oracle says of a subject from these weights, under the key in force.
pub(super) fn expected(subject: &Subject, weights: Weights<F61>) -> Expected {
    let (model, mut all) = (subject.oracle(), Expected::new());
    let texts = subject.oracle_texts();
    let rows = tokens(&model, &texts, 0);
    model.logits_seen(&weights, &texts, &mut |name, x| put(&mut all, format!("texts: {name}"), &rows, x));
    let (shapes, shown) = (model.shapes(), model.clone());
    let optimizer = subject.oracle_optimizer();
    let mut trainer = reference::Trainer::new(model, optimizer, subject.optimizer.1, weights);
    for (n, (batch, lr)) in subject.oracle_steps().iter().enumerate() {
        let mut first = 0;
        let rows: Vec<_> = batch
            .iter()
            .map(|microbatch| {
                let rows = tokens(&shown, microbatch, first);
                first += microbatch.len();
                rows
            })
            .collect();
        let step = trainer.step_seen(batch, *lr, &mut |m, name, x| {
            put(&mut all, format!("step {n}: {name}"), &rows[m], x);
        });
        let loss = step.losses.iter().fold(F61::ZERO, |sum, &loss| sum + loss);
        let mut flat = |name: String, x: &[F61]| {
            all.insert(
                format!("step {n}: {name}"),
                (0..).map(|i| (0, 0, i)).zip(x.iter().copied()).collect(),
            );
        };
        flat("loss".into(), &[loss]);
        flat("norm²".into(), &[step.norm2]);
        for (name, _) in &shapes {
            flat(format!("gradient of {name}"), &step.gradients[name]);
            flat(format!("new {name}"), &trainer.weights()[name]);
        }
        trainer.replace(disturbed(shapes.clone(), n, trainer.weights()));
    }
    all
}

/// The (sequence, position) of every token, sequences numbered from `first`.
fn tokens(model: &reference::Design, sequences: &[reference::Sequence], first: usize) -> Vec<(usize, usize)> {
    let of = |(b, s): (usize, &reference::Sequence)| (0..model.tokens(s)).map(move |p| (first + b, p));
    sequences.iter().enumerate().flat_map(of).collect()
}

fn put(all: &mut Expected, name: String, rows: &[(usize, usize)], x: &[F61]) {
    let width = (x.len() / rows.len().max(1)).max(1);
    let place = |(i, &x): (usize, &F61)| ((rows[i / width].0, rows[i / width].1, i % width), x);
    all.entry(name).or_default().extend(x.iter().enumerate().map(place));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Look, START, program};
    use layers::Shape;
    use parallel::{At, Layout, session};
    use tensor::{Cpu, Key};

    /// Kills: gradients of parameters in another order than backward's, or before those of activations; a norm before
    /// what it is of; something that a run shows and the oracle does not.
    #[test]
    fn moments_stand_in_the_order_of_the_program() {
        let (layout, _key) = (Layout::UNSPLIT, Key(1).enter());
        let subject = &Subject::small(Shape::LLAMA, &layout).unwrap();
        let names = session::alone(&START, |at: At<Cpu<F61>>| {
            let mut names = Vec::new();
            let look = Look::Everything(&mut |moment| names.push(moment.name));
            program(subject, &at, look, &|_| ()).map(|_| names)
        });
        let names = names.unwrap();
        let truth = expected(subject, subject.start().unwrap());
        assert!(names.iter().all(|name| truth.contains_key(name)), "{names:?}");
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
