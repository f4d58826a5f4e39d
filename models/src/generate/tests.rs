//! What a generation reads of its logits, and what it holds while it does.
use super::*;
use crate::Config;
use crate::config::Architecture;
use kernels::Heads;
use layers::Shape;
use parallel::At;
use tensor::Cpu;

const V: usize = 300;
const NEW: usize = 6;

fn model(eos: Vec<u32>) -> Model {
    let heads = Heads { queries: 2, keys: 1, dim: 4 };
    let shape = Shape { width: 8, blocks: 1, heads, hidden: 8, vocabulary: V, ..Shape::LLAMA };
    let (architecture, bos) = (Architecture::Llama, None);
    Model::fresh(Config { architecture, shape, positions: 64, bos, eos }, 5)
}

fn request(sampling: Sampling, max_new: usize, prompts: Vec<Vec<u32>>) -> Prompts {
    Prompts { prompts, max_new, sampling, record: false }
}

const GREEDY: Sampling = Sampling { temperature: None, top_k: None, top_p: None, seed: 3 };
const WARM: Sampling = Sampling { temperature: Some(0.8), ..GREEDY };

/// Bytes that each rank read from the device's memory, but for those of the first new token.
fn brought(layout: &str, sampling: Sampling) -> Vec<u64> {
    let (layout, model) = (layout.parse::<Layout>().unwrap(), model(Vec::new()));
    let of = |max_new| {
        let request = request(sampling, max_new, vec![vec![1, 2, 3], vec![4]]);
        let run = |at: At<Cpu<f32>>| {
            on_rank(&model, &request, &at, &|_| ())?;
            Ok(at.device.meter().brought())
        };
        session::run((&layout, &layout.world().unwrap()), model.values(), run).unwrap()
    };
    of(NEW).iter().zip(of(1)).map(|(all, first)| all - first).collect()
}

/// A number of 4 bytes and a column of 4 for each that may be chosen and the one behind; rows where any may be. Kills:
/// rows read for greedy choices or for the first k, logits read twice, columns of more than is needed.
#[test]
fn a_token_reads_what_its_choice_needs() {
    let first = |k: u64| 2 * (NEW as u64 - 1) * (k + 1) * (4 + 4);
    let rows = 2 * (NEW as u64 - 1) * 4 * V as u64;
    for (sampling, wanted) in [
        (GREEDY, first(1)),
        (Sampling { top_k: Some(20), ..WARM }, first(20)),
        (Sampling { top_k: Some(20), top_p: Some(0.9), ..WARM }, first(20)),
        (WARM, rows),
        (Sampling { top_p: Some(0.9), ..WARM }, rows),
        (Sampling { top_k: Some(V), ..WARM }, rows),
    ] {
        assert_eq!(brought("none", sampling), [wanted], "{sampling:?}");
        assert_eq!(brought("tp=2", sampling), [wanted; 2], "{sampling:?}");
        assert_eq!(brought("dp=2", sampling), [wanted / 2; 2], "{sampling:?}");
    }
}

/// The same ids and margins as a choice from the whole row of logits that a text without a cache has; where a text ends
/// early, rows are fewer than texts. Kills: a row of another sequence, a position off by one, another draw.
#[test]
fn texts_are_those_chosen_from_whole_rows() {
    let (layout, prompts) = (Layout::default(), vec![vec![1, 2, 3], vec![4], vec![9, 8]]);
    let texts = |eos, sampling| {
        let request = request(sampling, NEW, prompts.clone());
        generate::<Cpu<f32>>(&model(eos), (&layout, &Network::default()), &request, &|_| ()).unwrap().texts
    };
    for sampling in [GREEDY, Sampling { top_k: Some(7), ..WARM }, Sampling { top_k: Some(V - 1), ..WARM }] {
        let end = texts(Vec::new(), sampling)[0].ids[4];
        for eos in [Vec::new(), vec![end]] {
            for (n, (text, prompt)) in texts(eos, sampling).iter().zip(&prompts).enumerate() {
                let of_all =
                    all_logits::<Cpu<f32>>(&model(Vec::new()), &layout, std::slice::from_ref(&text.ids))
                        .unwrap();
                let rows: Vec<Vec<f32>> =
                    of_all.chunks(V).map(|row| row.iter().map(|&x| x as f32).collect()).collect();
                assert_eq!(text.prompt_logits.len(), V);
                for (new, margin) in text.margins.iter().enumerate() {
                    let position = prompt.len() + new - 1;
                    let wanted = sampling.choose(&rows[position], n, position).unwrap();
                    assert_eq!(text.ids[position + 1], wanted.id, "text {n}, position {position}");
                    assert!((margin - wanted.margin).abs() < 1e-4, "{margin}, not {}", wanted.margin);
                }
            }
        }
    }
}

/// Of a model and prompts so small that the choice is the peak. Kills: a price without the first logits or their columns, or with
/// those of a choice that needs them all.
#[test]
fn the_price_of_a_generation_is_what_is_measured_to_the_byte() {
    let model = model(Vec::new());
    let priced = |k| {
        let sampling = Sampling { top_k: k, ..WARM };
        let request = request(sampling, NEW, vec![vec![7], vec![1]]);
        let network = Network::default();
        for layout in ["none", "tp=2", "dp=2"] {
            let layout = layout.parse().unwrap();
            let measured = generate::<Cpu<f32>>(&model, (&layout, &network), &request, &|_| ()).unwrap();
            let held: usize = measured.taken.iter().map(|t| t.load.max(t.work)).sum();
            assert_eq!(
                request.peak::<Cpu<f32>>(&model, &layout).unwrap().all,
                held as u128,
                "{k:?} {layout}"
            );
        }
        request.peak::<Cpu<f32>>(&model, &Layout::default()).unwrap().all
    };
    assert!(priced(Some(V - 1)) > priced(Some(V)));
    assert_eq!(priced(None), priced(Some(V)));
}
