use super::*;
use crate::price::training;
use crate::{Batch, BuildContext, Error, Sequence, Trainer, session};
use kernels::{Heads, Meta};
use layers::{Design, OptimizerKind, Shape};
use ops::ADAMW;
use std::cell::Cell;
use tensor::{Category, Cpu, Device, Peaks};

/// Its logits are so wide that the last stage holds the most.
const SHAPE: Shape =
    Shape { width: 8, blocks: 4, heads: Heads::new(2, 2, 4), hidden: 12, vocabulary: 300, ..Shape::LLAMA };
const OPTIMIZER: (OptimizerKind, Option<f64>) = (ADAMW, Some(1.0));
const MOST: usize = 20;

fn batch([sequences, microbatches]: [usize; 2]) -> Batch {
    Batch::new(vec![Sequence::new(vec![1; 6], vec![2; 6]); sequences], microbatches).unwrap()
}
fn peak(layout: &Layout, numbers: [usize; 2]) -> Result<Peak> {
    training::<Cpu<f32>>(layout, SHAPE, OPTIMIZER, &batch(numbers), |_, _| Ok(()))
}
/// Peaks of all ranks, each alone.
fn each(layout: &Layout, numbers: [usize; 2]) -> Vec<usize> {
    let program = |at: BuildContext<Meta<f32>>| {
        let mut trainer = Trainer::new(&at, SHAPE, OPTIMIZER)?;
        (0..2).try_for_each(|_| trainer.step(&batch(numbers), 0.0).map(drop))?;
        Ok(at.device.meter().peaks_of_all().total)
    };
    let alone = |rank| session::ghost::<Cpu<f32>, _>(layout, (rank, None), program).unwrap();
    (0..layout.ranks()).map(alone).collect()
}
fn of_all(peaks: &[usize]) -> u128 {
    peaks.iter().map(|bytes| *bytes as u128).sum()
}
fn layouts() -> [Layout; 6] {
    ["none", "tp=2", "dp=2:zero3", "pp=2", "recompute", "tp=2,pp=2:gpipe"].map(|text| text.parse().unwrap())
}

/// Against all numbers of sequences, in three microbatches: under the limit of each rank and in the room of
/// all ranks together, at each peak and a byte below it. Kills: a number off by one, or of another rank than
/// the largest; microbatches that divide the sequences only; a limit of all ranks in the place of one's; more
/// prices than a search needs.
#[test]
fn the_largest_batch_fits_and_one_sequence_more_is_refused() {
    for layout in layouts() {
        let data = layout.tokens().data_ranks();
        let (least, prices) = (3 * data, Cell::new(0));
        let all: Vec<_> = (least..=MOST).map(|n| each(&layout, [n, 3])).collect();
        let scan = |fits: &dyn Fn(&Vec<usize>) -> bool| all.iter().rposition(fits).map(|at| least + at);
        let counted = |layout: &Layout, numbers| {
            prices.set(prices.get() + 1);
            peak(layout, numbers)
        };
        let search = |limit, room| {
            prices.set(0);
            let layout = &layout.limited(limit);
            let numbers = [MOST, 3];
            let unknown = Unknown::BatchSize;
            Search { layout, room, unknown, numbers, peak: &counted }.find()
        };
        let largest: Vec<_> = all.iter().map(|peaks| *peaks.iter().max().unwrap()).collect();
        for limit in largest.iter().flat_map(|peak| [*peak, peak - 1]) {
            let Some(wanted) = scan(&|peaks| *peaks.iter().max().unwrap() <= limit) else {
                let refused = search(Some(limit), None).unwrap_err();
                assert_eq!(refused.works, Some(largest[0]), "{layout}: {refused}");
                continue;
            };
            assert_eq!(search(Some(limit), None), Ok(wanted), "{layout} within {limit} bytes");
            assert!(prices.get() <= 8, "{layout}: {} prices", prices.get());
            let more = peak(&layout.limited(Some(limit)), [wanted + 1, 3]);
            assert!(wanted == MOST || more.is_err(), "{layout}: {more:?}");
        }
        for room in all.iter().map(|peaks| of_all(peaks)).flat_map(|sum| [sum, sum - 1]) {
            let wanted = scan(&|peaks| of_all(peaks) <= room).unwrap_or(least);
            assert_eq!(search(None, Some(room)), Ok(wanted), "{layout} in {room} bytes");
        }
        assert_eq!(search(None, None), Ok(MOST));
    }
}

/// Seven sequences, which most numbers of microbatches do not divide. Kills: a number off by one, more
/// microbatches than data ranks have sequences for, a limit that works and is larger than the smallest.
#[test]
fn the_fewest_microbatches_fit_and_one_less_is_refused() {
    for layout in layouts() {
        let most = 7 / layout.tokens().data_ranks();
        let largest: Vec<_> = (1..=most).map(|m| each(&layout, [7, m]).into_iter().max().unwrap()).collect();
        let search = |limit| {
            let (layout, numbers) = (&layout.limited(Some(limit)), [7, 1]);
            let unknown = Unknown::Microbatches;
            Search { layout, room: None, unknown, numbers, peak: &peak }.find()
        };
        let smallest = *largest.iter().min().unwrap();
        for limit in largest.iter().flat_map(|peak| [*peak, peak - 1]) {
            match largest.iter().position(|peak| *peak <= limit) {
                Some(at) => assert_eq!(search(limit), Ok(at + 1), "{layout} within {limit} of {largest:?}"),
                None => assert_eq!(search(limit).unwrap_err().works, Some(smallest), "{layout}: {largest:?}"),
            }
        }
    }
}

/// Sums of gradients may need more than smaller microbatches save. Kills: a limit that works and is not the
/// smallest, as it is that of the most microbatches.
#[test]
fn the_smallest_limit_may_be_that_of_one_microbatch() {
    let peak = |layout: &Layout, [_, microbatches]: [usize; 2]| {
        let total = [5, 9, 8][microbatches - 1];
        match layout.memory_limit().filter(|limit| total > *limit) {
            Some(_) => Err(Error { works: Some(total), ..Error::new("too small") }),
            None => Ok(Peak { largest: Peaks { total, ..Peaks::default() }, ..Peak::default() }),
        }
    };
    let find = |bytes| {
        let (layout, unknown) = (&Layout::UNSPLIT.limited(Some(bytes)), Unknown::Microbatches);
        Search { layout, room: None, unknown, numbers: [3, 1], peak: &peak }.find()
    };
    assert_eq!((find(4).unwrap_err().works, find(5), find(8)), (Some(5), Ok(1), Ok(1)));
}

/// Kills: the answer of the first machine, or of the one with the most memory.
#[test]
fn all_machines_take_the_number_that_has_room_on_each() {
    assert_eq!(Unknown::BatchSize.of_all([24, 8, 16]), Some(8));
    assert_eq!(Unknown::Microbatches.of_all([1, 4, 2]), Some(4));
    assert_eq!(Unknown::BatchSize.of_all([]), None);
}

/// Kills: a layout that has the strategy already, or both of two that exclude each other; bytes of another
/// rank, or with the sign turned; another category than the largest of the fullest rank.
#[test]
fn the_report_names_what_would_free_memory_and_how_much() {
    let with = |text: &str| {
        let layout: Layout = text.parse().unwrap();
        let (unknown, numbers) = (Unknown::BatchSize, [MOST, 2]);
        let limited = layout.limited(Some(1)); // reports on a batch of any size
        let search = Search { layout: &limited, room: None, unknown, numbers, peak: &peak };
        let report = search.report(8, &Design::from(SHAPE)).unwrap();
        let largest = |layout: &Layout| *each(layout, [8, 2]).iter().max().unwrap();
        for (other, bytes) in &report.frees {
            let less = largest(&layout).saturating_sub(largest(&other.parse().unwrap()));
            assert_eq!(*bytes, less, "{text}: {other}");
        }
        let most = peak(&layout, [8, 2]).unwrap();
        assert_eq!((report.rank, report.peak_bytes), (most.rank, largest(&layout)));
        assert_eq!(each(&layout, [8, 2])[report.rank], report.peak_bytes, "{text}");
        let category = Category::ALL.iter().find(|category| category.name() == report.category).unwrap();
        assert_eq!(most.largest.category[*category as usize], report.category_bytes);
        assert_eq!(most.largest.category.iter().max(), Some(&report.category_bytes), "{text}");
        report
    };
    let has = |text: &str, others: &[&str], not: &[&str]| {
        let (report, said) = (with(text), with(text).to_string());
        assert!(others.iter().all(|other| report.frees.contains_key(*other)), "{text}: {report:?}");
        assert!(!not.iter().any(|other| report.frees.contains_key(*other)), "{text}: {report:?}");
        for (layout, bytes) in &report.frees {
            assert_eq!(said.contains(&format!("\n  {layout} would free ")), *bytes > 0, "{said}");
        }
        assert!(said.starts_with("8 sequences in 2 microbatches: rank "), "{said}");
        report
    };
    has("none", &["recompute"], &["none", "dp=2:zero1"]);
    has("recompute", &[], &["recompute", "none"]);
    has("dp=2", &["dp=2:zero1", "dp=2:zero2", "dp=2:zero3", "dp=2,recompute"], &["dp=2"]);
    let others = ["dp=4:zero1,recompute", "dp=4:zero2,recompute"];
    has("dp=4:zero3,recompute", &others, &["dp=4,recompute", "dp=4:zero3,recompute"]);
    assert!(with("pp=2").rank == 1, "the last stage holds the most");
}
