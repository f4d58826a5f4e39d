//! The logits that a generation reads, and the memory that it holds.
use super::*;
use crate::Config;
use crate::families;
use crate::sampling::Sampling;
use kernels::Heads;
use layers::{Balance, Experts, Shape};
use parallel::BuildContext;
use tensor::{Cpu, Device};

mod modes;

const V: usize = 300;
const NEW: usize = 6;

fn model(eos: Vec<u32>) -> Model {
    let heads = Heads::new(2, 1, 4);
    let shape = Shape { width: 8, blocks: 1, heads, hidden: 8, vocabulary: V, ..Shape::LLAMA };
    let (family, bos) = (families::LLAMA, None);
    Model::fresh(Config { family, shape, positions: 64, bos, eos, spare_coefficient: 0.0, wrapper: None }, 5)
}

fn request(sampling: Sampling, max_new: usize, prompts: Vec<Vec<u32>>) -> Prompts {
    Prompts { prompts, max_new, sampling, ..Prompts::default() }
}

const GREEDY: Sampling = Sampling { temperature: None, top_k: None, top_p: None, seed: 3 };
const WARM: Sampling = Sampling { temperature: Some(0.8), ..GREEDY };

/// Bytes that each rank read from the device's memory, without those of the first new token.
fn brought(layout: &str, sampling: Sampling) -> Vec<u64> {
    let (layout, model) = (layout.parse::<Layout>().unwrap(), model(Vec::new()));
    let of = |max_new| {
        let request = request(sampling, max_new, vec![vec![1, 2, 3], vec![4]]);
        let run = |at: BuildContext<Cpu<f32>>| {
            once((&model, &mut Stages::new(&at, model.config.shape)?), &request, &at, &|_| ())?;
            Ok(at.device.meter().brought())
        };
        session::run((&layout, &layout.world().unwrap()), model.values(), run).unwrap()
    };
    of(NEW).iter().zip(of(1)).map(|(all, first)| all - first).collect()
}

/// Counts a value and a column index of 4 bytes each for every candidate and the next one behind; whole rows
/// where any token may be chosen. Kills: rows read for greedy or top-k choices, logits read twice, more
/// columns read than needed.
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

/// Checks that ids and margins equal those chosen from whole rows of logits, computed without a cache. Where
/// a text ends early, there are fewer rows than texts. Kills: a row of another sequence, a position off by
/// one, another random draw.
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
                let of_all = all_logits::<Cpu<f32>>(
                    &model(Vec::new()),
                    (&layout, &Network::default()),
                    std::slice::from_ref(&text.ids),
                )
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

/// Compares the price with the measured peak, in a model so small that sampling is the peak, in three
/// successive runs. Kills: a price without the first logits or their columns, columns priced for a choice
/// from whole rows, memory of one run left over in the next.
#[test]
fn the_price_of_a_generation_is_what_is_measured_to_the_byte() {
    let model = model(Vec::new());
    let priced = |k| {
        let sampling = Sampling { top_k: k, ..WARM };
        let request = request(sampling, NEW, vec![vec![7], vec![1]]);
        let network = Network::default();
        for layout in ["none", "tp=2", "dp=2"] {
            let layout = layout.parse().unwrap();
            let all = repeated::<Cpu<f32>>(&model, (&layout, &network), (&request, 3), &|_| ()).unwrap();
            for measured in &all {
                let held: usize = measured.taken.iter().map(|t| t.load.max(t.work)).sum();
                let priced = request.peak::<Cpu<f32>>(&model, &layout).unwrap().all;
                assert_eq!(priced, held as u128, "{k:?} {layout}");
                assert_eq!((all.len(), &measured.texts), (3, &all[0].texts), "{k:?} {layout}");
            }
        }
        request.peak::<Cpu<f32>>(&model, &Layout::default()).unwrap().all
    };
    assert!(priced(Some(V - 1)) > priced(Some(V)));
    assert_eq!(priced(None), priced(Some(V)));
}

/// Model of two blocks with four experts; tokens choose their experts, or are dealt to them in turn if
/// `forced`.
fn with_experts(forced: bool, balance: Balance) -> Model {
    let experts = Experts { count: 4, chosen: 2, hidden: 4, forced, balance, ..Experts::MIXTRAL };
    let model = model(Vec::new());
    let shape = Shape { blocks: 2, experts: Some(experts), ..model.config.shape };
    Model::fresh(Config { shape, family: families::MIXTRAL, ..model.config }, 5)
}
/// The new texts, and the total of the peak bytes of all ranks.
fn continued(model: &Model, layout: &str, request: &Prompts) -> (Vec<Vec<u32>>, u128) {
    let layout = layout.parse().unwrap();
    let all = generate::<Cpu<f32>>(model, (&layout, &Network::default()), request, &|_| ())
        .unwrap_or_else(|why| panic!("{layout}: {why}"));
    let held: usize = all.taken.iter().map(|t| t.load.max(t.work)).sum();
    (all.texts.into_iter().map(|text| text.ids).collect(), held as u128)
}

/// Checks that the texts equal those of one rank, and that the price is exact where tokens are dealt in turn.
/// Kills: a rank that exits before the ranks that need its experts, an error about an empty prompt that the
/// user did not give, a cache or logits on a rank without a sequence.
#[test]
fn ranks_without_a_prompt_compute_for_those_with_one() {
    let prompts = [vec![1, 2, 3], vec![4], vec![9, 8]];
    for (layout, most) in [
        ("ep=2", 1),
        ("ep=2:all-gather", 1),
        ("ep=4", 3),
        ("ep=4:all-gather", 2),
        ("etp=2", 1),
        ("dp=2,ep=2", 1),
        ("dp=4:zero3,ep=2", 2),
        ("tp=2,dp=2,ep=4", 1),
        ("ep=2,pp=2", 1),
        ("ep=2:all-gather,pp=2:gpipe", 1),
    ] {
        for n in 1..=most {
            let request = request(GREEDY, NEW, prompts[..n].to_vec());
            for forced in [false, true] {
                let model = with_experts(forced, Balance::default());
                let (texts, held) = continued(&model, layout, &request);
                assert_eq!(texts, continued(&model, "none", &request).0, "{n} under {layout}");
                let priced = request.peak::<Cpu<f32>>(&model, &layout.parse().unwrap()).unwrap().all;
                assert!(!forced || priced == held, "{n} under {layout}: {priced} priced, {held} held");
            }
        }
    }
    let why = |prompts: &[Vec<u32>], layout: &str| {
        let request = request(GREEDY, NEW, prompts.to_vec());
        let refused = request.check::<Cpu<f32>>(
            &with_experts(false, Balance::default()),
            (&layout.parse().unwrap(), &Network::default()),
        );
        refused.unwrap_err().to_string()
    };
    let least = "each rank needs at least one";
    assert_eq!(why(&[], "ep=2"), format!("0 prompts cannot be dealt over dp=2: {least}"));
    assert_eq!(why(&prompts[..1], "dp=2"), format!("1 prompt cannot be dealt over dp=2: {least}"));
}

/// Kills: a schedule of slices refused because of a loss term that only training adds.
#[test]
fn a_balance_of_microbatches_is_nothing_to_generation() {
    let balance = Balance { microbatch: 0.5, sequence: 0.25, ..Balance::default() };
    let (model, sliced) = (with_experts(false, balance), "pp=2:seq1f1b".parse::<Layout>().unwrap());
    assert!(sliced.fits(model.config.shape).is_err());
    let request = request(GREEDY, NEW, vec![vec![1, 2, 3], vec![4]]);
    let alone = continued(&model, "none", &request).0;
    assert_eq!(continued(&model, "pp=2:seq1f1b", &request).0, alone);
    assert!(all_logits::<Cpu<f32>>(&model, (&sliced, &Network::default()), &alone).is_ok());
}
