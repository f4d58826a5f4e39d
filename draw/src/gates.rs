//! A transformer block as a chain of operations, with the calls of a layout as gates between them: what each
//! does forward, and what its backward is. Colours say whether a tensor is whole on every rank, cut by
//! features, or cut by tokens.
use crate::picture::{INK, MUTED, Picture, shade};

/// Sizes, in user units.
const STEP: f64 = 92.0;
const BOX: [f64; 2] = [76.0, 34.0];
const LEFT: f64 = 24.0;
const TOP: f64 = 84.0;
const ROW: f64 = 138.0;

/// One element of the chain.
#[derive(Clone, Copy, PartialEq)]
pub enum Element {
    /// An operation.
    Operation(&'static str),
    /// A call: its name forward, and backward.
    Gate([&'static str; 2]),
}

/// Part of its input's rows and features that a rank has.
#[derive(Clone, Copy, PartialEq)]
pub enum HeldPart {
    /// All of it.
    Whole,
    /// Its features or heads.
    Features,
    /// Its tokens.
    Tokens,
}

impl HeldPart {
    fn look(self) -> (f64, &'static str) {
        match self {
            HeldPart::Whole => (0.12, "whole on every rank"),
            HeldPart::Features => (0.6, "this rank's features or heads"),
            HeldPart::Tokens => (0.38, "this rank's tokens"),
        }
    }
}

/// The halves of a block, attention and feed-forward, under tensor parallelism, with or without sequence
/// parallelism.
#[must_use]
pub fn halves(tp: usize, sp: bool) -> [Vec<(Element, HeldPart)>; 2] {
    use Element::{Gate, Operation};
    let stream = if sp { HeldPart::Tokens } else { HeldPart::Whole };
    let held = if tp == 1 { HeldPart::Whole } else { HeldPart::Features };
    let half = |inside: [&'static str; 3]| {
        let mut chain = vec![(Operation("norm"), stream)];
        if tp > 1 {
            let into = if sp { ["all-gather", "reduce-scatter"] } else { ["nothing", "all-reduce"] };
            chain.push((Gate(into), HeldPart::Whole));
        }
        chain.extend(inside.map(|name| (Operation(name), held)));
        if tp > 1 {
            let out = if sp { ["reduce-scatter", "all-gather"] } else { ["all-reduce", "nothing"] };
            chain.push((Gate(out), stream));
        }
        chain.push((Operation("+"), stream));
        chain
    };
    [half(["QKV", "attention", "output"]), half(["gate, up", "SwiGLU", "down"])]
}

/// Returns the picture as the text of an SVG file.
#[must_use]
pub fn draw(title: &str, halves: &[Vec<(Element, HeldPart)>; 2]) -> String {
    let widest = halves.iter().map(Vec::len).max().unwrap_or(1) as f64;
    let size = [LEFT + widest * STEP + 40.0, TOP + 2.0 * ROW + 44.0];
    let mut picture = Picture::new(size, title, &["forward →, and below it the backward ←".into()]);
    for (row, chain) in halves.iter().enumerate() {
        let y = TOP + row as f64 * ROW;
        let end = LEFT + chain.len() as f64 * STEP;
        picture.line(&format!("{LEFT:.1} {:.1}H{end:.1}", y + BOX[1] / 2.0), MUTED, r#" stroke-width="1.4""#);
        let residual = format!(
            "{:.1} {:.1}V{:.1}H{:.1}V{:.1}",
            LEFT + 4.0,
            y + BOX[1] / 2.0,
            y + 92.0,
            end - STEP + BOX[0] / 2.0,
            y + BOX[1]
        );
        picture.line(&residual, MUTED, r#" stroke-dasharray="4 3""#);
        picture.text([LEFT + 10.0, y + 88.0], "start", MUTED, "residual");
        for (at, (element, held)) in chain.iter().enumerate() {
            let x = LEFT + 12.0 + at as f64 * STEP;
            match element {
                Element::Operation(name) => {
                    let edge = format!(r#" rx="5" stroke="{}""#, shade(held.look().0, 0.42));
                    picture.boxed(
                        [x, y, BOX[0], BOX[1]],
                        [&shade(held.look().0, 0.86), &edge, ""],
                        INK,
                        name,
                    );
                }
                Element::Gate([forward, backward]) => {
                    let middle = x + BOX[0] / 2.0;
                    let gate = format!("{middle:.1} {:.1}V{:.1}", y - 8.0, y + BOX[1] + 8.0);
                    picture.line(&gate, INK, r#" stroke-width="3""#);
                    picture.text([middle, y - 14.0], "middle", INK, forward);
                    picture.text([middle, y + BOX[1] + 24.0], "middle", MUTED, backward);
                }
            }
        }
    }
    let mut x = LEFT;
    for held in [HeldPart::Whole, HeldPart::Features, HeldPart::Tokens] {
        if halves.iter().flatten().any(|(element, own)| *own == held && !matches!(element, Element::Gate(_)))
        {
            let (hue, words) = held.look();
            x = picture.key([x, size[1] - 30.0], &shade(hue, 0.78), "", words);
        }
    }
    picture.file()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Meta;
    use ops::SGD;
    use parallel::{Batch, BuildContext, Layout, Sequence, Trainer, session};
    use tensor::Cpu;

    /// Kills: a gate that the program does not have, a call without its gate, a backward that is not the
    /// mirror image.
    #[test]
    fn gates_are_the_calls_of_a_block() {
        for layout in ["none", "tp=2", "tp=2,sp"] {
            let parsed: Layout = layout.parse().unwrap();
            // two models differ by a block
            let calls = [1, 2].map(|blocks| {
                let heads = kernels::Heads::new(2, 2, 4);
                let shape = layers::Shape {
                    width: 8,
                    blocks,
                    heads,
                    hidden: 16,
                    vocabulary: 8,
                    ..layers::Shape::LLAMA
                };
                let batch = Batch::new(vec![Sequence::new(vec![1; 4], vec![2; 4]); 2], 1).unwrap();
                let count = |at: BuildContext<Meta<f32>>| {
                    Trainer::new(&at, shape, (SGD, None))?.step(&batch, 0.1)?;
                    Ok(at
                        .mesh
                        .ledger()
                        .iter()
                        .map(|(_, op, of)| (op.to_string(), of.calls))
                        .collect::<Vec<_>>())
                };
                session::ghost::<Cpu<f32>, _>(&parsed, (0, None), count).unwrap()
            });
            let of = |calls: &[(String, usize)], name: &str| {
                calls.iter().filter(|(op, _)| op.replace('_', "-") == name).map(|(_, n)| n).sum::<usize>()
            };
            let halves = halves(parsed.size(comm::Axis::Tp), layout.contains("sp"));
            let gates = halves.iter().flatten().filter_map(|(element, _)| match element {
                Element::Gate(names) => Some(names),
                Element::Operation(_) => None,
            });
            let drawn: Vec<&str> = gates.flatten().copied().collect();
            // in backward both column layers gather their input again, and the norms' gradients are summed
            let [again, norms] = if layout.contains("sp") { [2, 1] } else { [0, 0] };
            for (name, more) in [("all-reduce", norms), ("all-gather", again), ("reduce-scatter", 0)] {
                let block = of(&calls[1], name) - of(&calls[0], name);
                assert_eq!(
                    drawn.iter().filter(|gate| **gate == name).count() + more,
                    block,
                    "{layout}: {name}"
                );
            }
        }
    }
}
