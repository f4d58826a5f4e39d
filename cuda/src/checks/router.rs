//! Checks of `router.cu`.
use super::{Side, SideKernels, check, draw};
use kernels::{RouterBalance, RouterNoise, RouterTerms, Segment};
use tensor::{Index, Noise, mix};

/// Returns every way to score and to choose.
fn terms(chosen: usize, groups: Option<[usize; 2]>) -> impl Iterator<Item = RouterTerms> {
    let each = move |way| RouterTerms {
        chosen,
        sigmoid: way & 1 > 0,
        normalize: way & 2 > 0,
        scale: if way & 2 > 0 { 2.5 } else { 1.0 },
        groups,
    };
    (0..4).map(each)
}

/// Tokens of sequences that begin in their middle; some come before the first row at hand.
const TOKENS: [Segment; 4] = {
    const fn part(row: usize, len: usize, position: usize, sequence: usize) -> Segment {
        Segment { row, len, position, sequence }
    }
    [part(0, 3, 4, 7), part(3, 4, 0, 2), part(7, 1, 9, 3), part(8, 5, 2, 0)]
};

/// Checks choices with and without bias, noise and groups, of fewer experts than a warp has lanes, and of
/// more.
pub(crate) fn choices<D: SideKernels>(c: &mut Side<D>) {
    let (tokens, noise) = (c.index(&TOKENS), Noise::new(0.5, 1, 2, "here"));
    let sizes = [
        (5, 1, None),
        (12, 3, Some([4, 2])),
        (70, 6, Some([35, 9])),
        (77, 7, Some([5, 2])),
        (23, 4, Some([4, 4])),
        (9, 2, Some([9, 3])),
    ];
    for (experts, k, groups) in sizes {
        let logits = c.wide([9, experts, experts + 2, 1], draw(experts as u64));
        let bias = c.of([1, experts, experts + 1, 1], draw(3));
        for (way, terms) in terms(k, groups).chain(terms(k, None)).enumerate() {
            for (biased, noisy) in [(false, false), (true, false), (true, true), (false, true)] {
                c.case = format!("of {experts}, way {way}, bias {biased}, noise {noisy}");
                let noise = noisy.then_some(RouterNoise { noise, tokens: &tokens, first: 2 });
                let (mut chosen, bias) = (c.room(9 * k), biased.then(|| bias.of()));
                check!(c.choose(&mut chosen, logits.of(), bias, noise, &terms) => chosen 0.0);
            }
        }
    }
}

/// Checks few distinct scores, among them both zeros, infinities and NaN.
pub(crate) fn ties<D: SideKernels>(c: &mut Side<D>) {
    let few = [0.0, -0.0, 1.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -1.0];
    for special in [3, 7] {
        let logits = c.wide([6, 40, 40, 0], |i| few[mix(i as u64) as usize % special]);
        for terms in terms(40, None).chain(terms(10, Some([8, 3]))) {
            let mut chosen = c.room(6 * terms.chosen);
            check!(c.choose(&mut chosen, logits.of(), None, None, &terms) => chosen 0.0);
        }
    }
}

/// Makes lists of `k` distinct experts for every row.
fn some_experts<D: SideKernels>(c: &Side<D>, [rows, experts, k]: [usize; 3]) -> Index<D::Place> {
    let list: Vec<u32> = (0..rows * k).map(|i| ((i / k * 5 + i % k * 3) % experts) as u32).collect();
    c.words(&list)
}

/// Rows, experts, and experts chosen per row.
const SIZES: [[usize; 3]; 5] = [[9, 7, 2], [6, 70, 8], [1, 40, 33], [0, 4, 1], [5, 6, 1]];

pub(crate) fn gates<D: SideKernels>(c: &mut Side<D>) {
    for size @ [rows, experts, k] in SIZES {
        let chosen = some_experts(c, size);
        for terms in terms(k, None) {
            let logits = c.of([rows, experts, experts + 3, 2], draw(5));
            let (mut gates, mut lse) = (c.of([rows, k, k + 2, 1], draw(6)), c.of([rows, 1, 3, 1], draw(7)));
            check!(c.gates(gates.to(), lse.to(), logits.of(), &chosen, &terms) => gates 1.0, lse 1.0);
        }
    }
}

/// Checks rows from the middle of the tokens, more rows than tokens, and none.
pub(crate) fn losses<D: SideKernels>(c: &mut Side<D>) {
    let (tokens, weights) = (c.index(&TOKENS), c.of([4, 39, 41, 1], draw(1)));
    let z = c.of([1, 1, 2, 1], |i| 0.25 * i as f64);
    for (rows, first, sigmoid) in [(13, 0, false), (6, 4, true), (11, 4, false), (11, 4, true), (0, 0, false)]
    {
        let (logits, lse) = (c.of([rows, 39, 43, 2], draw(2)), c.of([rows, 1, 2, 1], draw(3)));
        let mut loss = c.of([1, 1, 2, 1], |_| 9.0);
        let balance = RouterBalance { weights: weights.of(), tokens: &tokens, first, z: z.of() };
        check!(c.router_loss(loss.to(), logits.of(), lse.of(), balance, sigmoid) => loss 2.0);
    }
}

/// Checks gradients with and without a loss. A single normalized gate is constant, so its gradient is exact.
pub(crate) fn gradients<D: SideKernels>(c: &mut Side<D>) {
    let (tokens, z) = (c.index(&TOKENS), c.wide([1, 1, 1, 0], |_| 0.125));
    for size @ [rows, experts, k] in SIZES {
        let (chosen, weights) = (some_experts(c, size), c.wide([4, experts, experts + 1, 1], draw(1)));
        for (way, terms) in terms(k, None).chain(terms(k, None)).enumerate() {
            c.case = format!("{rows} rows, {k} of {experts}, way {way}");
            let logits = c.wide([rows, experts, experts + 3, 2], draw(2));
            let lse = c.wide([rows, 1, 1, 0], |i| 3.0 + 0.1 * i as f64);
            let mut d = c.of([rows, experts, experts + 2, 1], draw(3));
            let dgates = c.wide([rows, k, k + 1, 1], draw(4));
            let balance = RouterBalance { weights: weights.of(), tokens: &tokens, first: 2, z: z.of() };
            let balance = (way >= 4).then_some(balance);
            let slack = if k == 1 && terms.normalize && way < 4 { 0.0 } else { 1.0 };
            check!(c.router_backward(d.to(), logits.of(), lse.of(), dgates.of(), &chosen, balance, &terms)
                => d slack);
        }
    }
}
