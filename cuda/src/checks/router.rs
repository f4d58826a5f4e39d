//! Checks of `router.cu`.
use super::{
    Both, Check, Number, Read, both, index, on_both, only, refs, refs_mut, room, same, same_list, words,
};
use crate::gpu::Gpu;
use kernels::{Kernels, RouterBalance, RouterNoise, RouterTerms, Segment};
use tensor::{Cpu, Host, Index, Noise};

pub(crate) const ALL: &[Check] = &[
    ("experts are chosen", both!(choices)),
    ("equal scores, and what is no number", both!(ties)),
    ("gates", both!(gates_of_rows)),
    ("a router's loss", both!(losses)),
    ("a router's gradient", both!(gradients)),
];

/// Every way to score and to choose.
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

/// Sequences that begin in their middle; some tokens of which the rows at hand are not the first.
fn tokens() -> [Segment; 4] {
    let part = |row, len, position, sequence| Segment { row, len, position, sequence };
    [part(0, 3, 4, 7), part(3, 4, 0, 2), part(7, 1, 9, 3), part(8, 5, 2, 0)]
}

/// The noise of both sides.
fn noises((on_gpu, on_host): &(Index<Gpu>, Index<Host>)) -> (RouterNoise<'_, Gpu>, RouterNoise<'_, Host>) {
    let noise = Noise::new(0.5, 1, 2, "here");
    (RouterNoise { noise, tokens: on_gpu, first: 2 }, RouterNoise { noise, tokens: on_host, first: 2 })
}

/// The balance of both sides.
fn balances<'a, S: Number>(
    (weights, weights_host): Read<'a, S>,
    (on_gpu, on_host): &'a (Index<Gpu>, Index<Host>),
    first: usize,
    (z, z_host): Read<'a, S>,
) -> (RouterBalance<'a, S::On>, RouterBalance<'a, Cpu<f64>>) {
    let of_gpu = RouterBalance { weights, tokens: on_gpu, first, z };
    (of_gpu, RouterBalance { weights: weights_host, tokens: on_host, first, z: z_host })
}

/// With and without bias, noise and groups, of fewer experts than a warp has lanes, and of more.
fn choices<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let tokens = index(gpu, &tokens());
    let sizes = [
        (5, 1, None),
        (12, 3, Some([4, 2])),
        (70, 6, Some([35, 9])),
        (77, 7, Some([5, 2])),
        (23, 4, Some([4, 4])),
        (9, 2, Some([9, 3])),
    ];
    for (experts, k, groups) in sizes {
        let logits = Both::<f32>::draw(gpu, experts as u64, 9, experts + 2);
        let bias = Both::<S>::draw(gpu, 3, 1, experts + 1);
        for (way, terms) in terms(k, groups).chain(terms(k, None)).enumerate() {
            for (biased, noisy) in [(false, false), (true, false), (true, true), (false, true)] {
                let mut chosen = room(gpu, 9 * k);
                on_both!(gpu: S, choose(
                    refs_mut(&mut chosen), logits.cut(1, experts), only(biased, bias.cut(1, experts)),
                    only(noisy, noises(&tokens)), same(&terms)
                ));
                let what = format!("of {experts}, way {way}, bias {biased}, noise {noisy}");
                same_list(&what, &chosen)?;
            }
        }
    }
    Ok(())
}

/// Few different scores, among them both zeros, infinities and none.
fn ties<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let few = [0.0, -0.0, 1.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -1.0];
    for special in [3, 7] {
        let logits = Both::<f32>::of(gpu, 6, 40, |i| few[tensor::mix(i as u64) as usize % special]);
        for terms in terms(40, None).chain(terms(10, Some([8, 3]))) {
            let k = terms.chosen;
            let mut chosen = room(gpu, 6 * k);
            on_both!(gpu: S, choose(
                refs_mut(&mut chosen), logits.view(), (None, None), (None, None), same(&terms)
            ));
            same_list("ties", &chosen)?;
        }
    }
    Ok(())
}

/// Lists of so many experts for every row: no two of a row are the same.
fn some_experts(gpu: &Gpu, rows: usize, experts: usize, k: usize) -> (Index<Gpu>, Index<Host>) {
    let list: Vec<u32> = (0..rows * k).map(|i| ((i / k * 5 + i % k * 3) % experts) as u32).collect();
    words(gpu, &list)
}

fn gates_of_rows<S: Number>(gpu: &Gpu) -> Result<(), String> {
    for (rows, experts, k) in [(9, 7, 2), (6, 70, 8), (1, 40, 33), (0, 4, 1)] {
        let chosen = some_experts(gpu, rows, experts, k);
        for terms in terms(k, None) {
            let logits = Both::<S>::draw(gpu, 5, rows, experts + 3);
            let (mut gates, mut lse) =
                (Both::<S>::draw(gpu, 6, rows, k + 2), Both::<S>::draw(gpu, 7, rows, 3));
            on_both!(gpu: S, gates(
                gates.cut_mut(1, k), lse.cut_mut(1, 1), logits.cut(2, experts), refs(&chosen), same(&terms)
            ));
            gates.close("gates", 1.0)?;
            lse.close("log-sum-exp", 1.0)?;
        }
    }
    Ok(())
}

/// Rows from the middle of the tokens, more than there are tokens for, none.
fn losses<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (tokens, weights) = (index(gpu, &tokens()), Both::<S>::draw(gpu, 1, 4, 41));
    let z = Both::<S>::of(gpu, 1, 2, |i| 0.25 * i as f64);
    for (rows, first, sigmoid) in [(13, 0, false), (6, 4, true), (11, 4, false), (11, 4, true), (0, 0, false)]
    {
        let (logits, lse) = (Both::<S>::draw(gpu, 2, rows, 43), Both::<S>::draw(gpu, 3, rows, 2));
        let mut loss = Both::<S>::of(gpu, 1, 2, |_| 9.0);
        let balance = balances::<S>(weights.cut(1, 39), &tokens, first, z.cut(1, 1));
        on_both!(gpu: S, router_loss(
            loss.cut_mut(1, 1), logits.cut(2, 39), lse.cut(1, 1), balance, same(sigmoid)
        ));
        loss.close(&format!("loss of {rows} rows"), 2.0)?;
    }
    Ok(())
}

fn gradients<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (tokens, z) = (index(gpu, &tokens()), Both::<f32>::of(gpu, 1, 1, |_| 0.125));
    for (rows, experts, k) in [(9, 7, 2), (6, 70, 8), (1, 40, 33), (0, 4, 1), (5, 6, 1)] {
        let chosen = some_experts(gpu, rows, experts, k);
        let weights = Both::<f32>::draw(gpu, 1, 4, experts + 1);
        for (way, terms) in terms(k, None).chain(terms(k, None)).enumerate() {
            let (logits, lse) = (
                Both::<f32>::draw(gpu, 2, rows, experts + 3),
                Both::<f32>::of(gpu, rows, 1, |i| 3.0 + 0.1 * i as f64),
            );
            let (mut d, dgates) =
                (Both::<S>::draw(gpu, 3, rows, experts + 2), Both::<f32>::draw(gpu, 4, rows, k + 1));
            let balance = balances::<f32>(weights.cut(1, experts), &tokens, 2, z.view());
            on_both!(gpu: S, router_backward(
                d.cut_mut(1, experts), logits.cut(2, experts), lse.view(), dgates.cut(1, k), refs(&chosen),
                only(way >= 4, balance), same(&terms)
            ));
            d.close(&format!("dlogits, way {way}"), 1.0)?;
            if k == 1 && terms.normalize && way < 4 {
                d.equal("dlogits of one gate, which is always the same")?;
            }
        }
    }
    Ok(())
}
