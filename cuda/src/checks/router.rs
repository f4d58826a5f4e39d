//! Checks of `router.cu`.
use super::{Both, Check, Number, both, index};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Kernels, RouterBalance, RouterNoise, RouterTerms, Segment};
use tensor::{Cpu, Device, Host, Index, Noise};

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

fn same_list(what: &str, seen: &Index<Gpu>, wanted: &Index<Host>) -> Result<(), String> {
    let [mut list, mut of_host] = [const { Vec::new() }; 2];
    let there = seen.read_into(&mut list) && wanted.read_into(&mut of_host);
    if there && list == of_host { Ok(()) } else { Err(format!("{what}: {list:?}, wanted {of_host:?}")) }
}

/// With and without bias, noise and groups, of fewer experts than a warp has lanes, and of more.
fn choices<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    let (on_gpu, on_host) = index(gpu, &tokens());
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
                let (mut seen, mut wanted) =
                    (Index::empty(gpu, 9 * k), Index::<Host>::empty(&Host::default(), 9 * k));
                let noise = Noise::new(0.5, 1, 2, "here");
                gpus.choose(
                    &mut seen,
                    logits.gpu.view().take_cols(1, experts),
                    biased.then(|| bias.gpu.view().take_cols(1, experts)),
                    noisy.then_some(RouterNoise { noise, tokens: &on_gpu, first: 2 }),
                    &terms,
                );
                host.choose(
                    &mut wanted,
                    logits.host.view().take_cols(1, experts),
                    biased.then(|| bias.host.view().take_cols(1, experts)),
                    noisy.then_some(RouterNoise { noise, tokens: &on_host, first: 2 }),
                    &terms,
                );
                let what = format!("of {experts}, way {way}, bias {biased}, noise {noisy}");
                same_list(&what, &seen, &wanted)?;
            }
        }
    }
    Ok(())
}

/// Few different scores, among them both zeros, infinities and none.
fn ties<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    let few = [0.0, -0.0, 1.0, f64::NAN, f64::NEG_INFINITY, f64::INFINITY, -1.0];
    for special in [3, 7] {
        let logits = Both::<f32>::of(gpu, 6, 40, |i| few[tensor::mix(i as u64) as usize % special]);
        for terms in terms(40, None).chain(terms(10, Some([8, 3]))) {
            let k = terms.chosen;
            let (mut seen, mut wanted) =
                (Index::empty(gpu, 6 * k), Index::<Host>::empty(&Host::default(), 6 * k));
            gpus.choose(&mut seen, logits.gpu.view(), None, None, &terms);
            host.choose(&mut wanted, logits.host.view(), None, None, &terms);
            same_list("ties", &seen, &wanted)?;
        }
    }
    Ok(())
}

/// Lists of so many experts for every row: no two of a row are the same.
fn some_experts(gpu: &Gpu, rows: usize, experts: usize, k: usize) -> (Index<Gpu>, Index<Host>) {
    let list: Vec<u32> = (0..rows * k).map(|i| ((i / k * 5 + i % k * 3) % experts) as u32).collect();
    (Index::new(gpu, list.len(), list.iter().copied()), Index::new(&Host::default(), list.len(), list))
}

fn gates_of_rows<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    for (rows, experts, k) in [(9, 7, 2), (6, 70, 8), (1, 40, 33), (0, 4, 1)] {
        let (on_gpu, on_host) = some_experts(gpu, rows, experts, k);
        for terms in terms(k, None) {
            let logits = Both::<S>::draw(gpu, 5, rows, experts + 3);
            let (mut gates, mut lse) =
                (Both::<S>::draw(gpu, 6, rows, k + 2), Both::<S>::draw(gpu, 7, rows, 3));
            gpus.gates(
                gates.gpu.view_mut().take_cols(1, k),
                lse.gpu.view_mut().take_cols(1, 1),
                logits.gpu.view().take_cols(2, experts),
                &on_gpu,
                &terms,
            );
            host.gates(
                gates.host.view_mut().take_cols(1, k),
                lse.host.view_mut().take_cols(1, 1),
                logits.host.view().take_cols(2, experts),
                &on_host,
                &terms,
            );
            gates.close("gates", 1.0)?;
            lse.close("log-sum-exp", 1.0)?;
        }
    }
    Ok(())
}

/// Rows from the middle of the tokens, more than there are tokens for, none.
fn losses<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    let ((on_gpu, on_host), weights) = (index(gpu, &tokens()), Both::<S>::draw(gpu, 1, 4, 41));
    let z = Both::<S>::of(gpu, 1, 2, |i| 0.25 * i as f64);
    for (rows, first, sigmoid) in [(13, 0, false), (6, 4, true), (11, 4, false), (11, 4, true), (0, 0, false)]
    {
        let (logits, lse) = (Both::<S>::draw(gpu, 2, rows, 43), Both::<S>::draw(gpu, 3, rows, 2));
        let mut loss = Both::<S>::of(gpu, 1, 2, |_| 9.0);
        let balance = RouterBalance {
            weights: weights.gpu.view().take_cols(1, 39),
            tokens: &on_gpu,
            first,
            z: z.gpu.view().take_cols(1, 1),
        };
        let of = (logits.gpu.view().take_cols(2, 39), lse.gpu.view().take_cols(1, 1));
        gpus.router_loss(loss.gpu.view_mut().take_cols(1, 1), of.0, of.1, balance, sigmoid);
        let balance = RouterBalance {
            weights: weights.host.view().take_cols(1, 39),
            tokens: &on_host,
            first,
            z: z.host.view().take_cols(1, 1),
        };
        let of = (logits.host.view().take_cols(2, 39), lse.host.view().take_cols(1, 1));
        host.router_loss(loss.host.view_mut().take_cols(1, 1), of.0, of.1, balance, sigmoid);
        loss.close(&format!("loss of {rows} rows"), 2.0)?;
    }
    Ok(())
}

fn gradients<S: Number>(gpu: &Gpu) -> Result<(), String> {
    let (gpus, host) = (S::On::on(gpu), Cpu::<f64>::default());
    let ((on_gpu, on_host), z) = (index(gpu, &tokens()), Both::<f32>::of(gpu, 1, 1, |_| 0.125));
    for (rows, experts, k) in [(9, 7, 2), (6, 70, 8), (1, 40, 33), (0, 4, 1)] {
        let (chosen, chosen_host) = some_experts(gpu, rows, experts, k);
        let weights = Both::<f32>::draw(gpu, 1, 4, experts + 1);
        for (way, terms) in terms(k, None).chain(terms(k, None)).enumerate() {
            let (logits, lse) = (
                Both::<f32>::draw(gpu, 2, rows, experts + 3),
                Both::<f32>::of(gpu, rows, 1, |i| 3.0 + 0.1 * i as f64),
            );
            let (mut d, dgates) =
                (Both::<S>::draw(gpu, 3, rows, experts + 2), Both::<f32>::draw(gpu, 4, rows, k + 1));
            let balance = (way >= 4).then(|| RouterBalance::<Cuda<f32>> {
                weights: weights.gpu.view().take_cols(1, experts),
                tokens: &on_gpu,
                first: 2,
                z: z.gpu.view(),
            });
            gpus.router_backward(
                d.gpu.view_mut().take_cols(1, experts),
                logits.gpu.view().take_cols(2, experts),
                lse.gpu.view(),
                dgates.gpu.view().take_cols(1, k),
                &chosen,
                balance,
                &terms,
            );
            let balance = (way >= 4).then(|| RouterBalance::<Cpu<f64>> {
                weights: weights.host.view().take_cols(1, experts),
                tokens: &on_host,
                first: 2,
                z: z.host.view(),
            });
            host.router_backward(
                d.host.view_mut().take_cols(1, experts),
                logits.host.view().take_cols(2, experts),
                lse.host.view(),
                dgates.host.view().take_cols(1, k),
                &chosen_host,
                balance,
                &terms,
            );
            d.close(&format!("dlogits, way {way}"), 1.0)?;
        }
    }
    Ok(())
}
