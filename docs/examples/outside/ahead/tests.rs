use super::*;
use kernels::Heads;
use layers::Shape;
use ops::{RandomValues, SGD};
use parallel::step::check;
use parallel::{Batch, BuildContext, Layout, Network, Pipeline, Scheme, Sequence, Trainer, price, session};
use prove::cases::certify_panel;
use prove::{OracleTraces, Subject, prove};
use tensor::{Cpu, Device, F61, Key};

const SHAPE: Shape =
    Shape { width: 6, blocks: 4, heads: Heads::new(4, 2, 2), hidden: 4, vocabulary: 11, ..Shape::LLAMA };

fn layout(text: &str) -> Layout {
    text.parse().unwrap()
}

/// A schedule with this number of chunks on a rank.
fn chunks(schedule: &'static dyn Schedule, number: usize) -> Pipeline {
    Pipeline { number: Some(number), ..schedule.into() }
}

fn ahead<D: Kernels>(layout: &Layout, number: usize) -> Scheme<'_, D> {
    Scheme { schedule: Some(chunks(&Ahead, number)), ..Scheme::with(layout, &[&SecondForwards]) }
}

/// Kills: activations, losses, counts of experts or gradients that are those of a second forward, on data
/// ranks, on tensor ranks, and where a rank has several chunks.
#[test]
fn the_panel_is_equal_with_second_forwards() {
    for text in ["pp=2", "pp=2,dp=2", "tp=2,pp=2"] {
        let layout = layout(text);
        let proof = certify_panel(ahead(&layout, 1), &[Key(1)], (&Network::default(), &|_| ())).unwrap();
        assert!(proof.verdict.equal, "{}", proof.statement());
    }
    let layout = layout("pp=2"); // the panel has fewer blocks than four chunks need
    let subject = Subject::small(SHAPE, &layout).unwrap();
    let verdict = prove(&subject, ahead(&layout, 2), &[Key(1)], &OracleTraces::default()).unwrap();
    assert!(verdict.equal, "{:?}", verdict.first_difference);
}

/// The table of [`Ahead`], each row changed by a function.
struct OtherCells(fn(&mut Vec<Cell>));

impl Schedule for OtherCells {
    fn about(&self) -> &'static StrategyInfo {
        Ahead.about()
    }
    fn plan(&self, ranks: usize, microbatches: usize, number: Option<usize>) -> Plan {
        Ahead.plan(ranks, microbatches, number)
    }
    fn row(&self, rank: usize, plan: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        let mut row = Ahead.row(rank, plan).collect();
        (self.0)(&mut row);
        Box::new(row.into_iter())
    }
}

/// The same order without second forwards.
static KEPT: OtherCells = OtherCells(|row| {
    row.retain(|cell| cell.act != AGAIN);
    row.iter_mut().filter(|cell| cell.act == LIGHT).for_each(|cell| cell.act = PassKind::F);
});
static LEFT_OUT: OtherCells = OtherCells(|row| row.retain(|cell| cell.act != AGAIN));
static TOO_LATE: OtherCells = OtherCells(|row| {
    for n in 1..row.len() {
        if row[n - 1].act == AGAIN {
            row.swap(n - 1, n);
        }
    }
});
static TWICE: OtherCells = OtherCells(|row| {
    let index = row.iter().position(|cell| cell.act == AGAIN).unwrap_or(0);
    row.insert(index, row[index]);
});

/// Strategy whose second forward gives out what the first one gave out.
struct LossTwice;

impl<D: Kernels> Strategy<D> for LossTwice {
    fn about(&self) -> &'static StrategyInfo {
        &CELLS
    }
    fn hooks(&self, _: &Builder<D>, _: &Design) -> Option<Box<dyn Hooks<D>>> {
        Some(Box::new(GivesTwice(KeptInputs(RefCell::default()))))
    }
}

struct GivesTwice<D: Kernels>(KeptInputs<D>);

impl<D: Kernels> Hooks<D> for GivesTwice<D> {
    fn run(&self, cell: &mut CellRun<D>) -> Result<bool> {
        if cell.kind != AGAIN.name {
            return self.0.run(cell);
        }
        let pass = self.0.take(cell);
        cell.output = cell.cx.again(|| (cell.through)(pass))?;
        Ok(true)
    }
}

/// Kills: a table without a second forward, with one too many or with one behind its backward, cells that
/// nobody runs, and a loss that is counted twice, each of which no proof notices.
#[test]
fn mutants_of_second_forwards_are_rejected() {
    let layout = layout("pp=2");
    let subject = Subject::small(SHAPE, &layout).unwrap();
    let truths = OracleTraces::default();
    let equal = |scheme: Scheme<Cpu<F61>>| {
        prove(&subject, scheme, &[Key(1)], &truths).map(|verdict| verdict.equal).map_err(|error| error.why)
    };
    let honest: Scheme<Cpu<F61>> = ahead(&layout, 1);
    assert_eq!(equal(honest), Ok(true));
    assert_eq!(equal(Scheme { schedule: Some(chunks(&KEPT, 1)), ..honest }), Ok(true));
    for (wrong, word) in [(&LEFT_OUT, "no forward"), (&TOO_LATE, "no forward"), (&TWICE, "second forward")] {
        let why = equal(Scheme { schedule: Some(chunks(wrong, 1)), ..honest }).unwrap_err();
        assert!(why.contains(word), "{why}");
    }
    let why = equal(Scheme { others: &[], ..honest }).unwrap_err();
    assert!(why.contains("no strategy runs a cell that is a second forward"), "{why}");
    assert_eq!(equal(Scheme { others: &[&LossTwice], ..honest }), Ok(false));
}

/// Kills: a table that ranks cannot run, and one with second forwards that come before there is time.
#[test]
fn a_rank_has_the_microbatches_of_its_order_in_flight() {
    let of = |number, microbatches| check(&Ahead, &Ahead.plan(2, microbatches, Some(number))).unwrap();
    assert_eq!((of(1, 3).saved, of(2, 4).saved), (vec![2, 1], vec![5, 3]));
    let row = |rank| Ahead.row(rank, &Plan::whole(2, 3)).map(|cell| cell.to_string()).collect::<Vec<_>>();
    assert_eq!(row(0).join(" "), "0K0 0K1 0R0 0B0 0K2 0R1 0B1 0R2 0B2");
    assert_eq!(row(1).join(" "), "1K0 1R0 1B0 1K1 1R1 1B1 1K2 1R2 1B2");
}

/// Kills: a price that does not see what cells keep, activations that a light forward keeps, an input that is
/// kept after its second forward or without a backward.
#[test]
fn what_is_priced_is_what_is_held_and_it_is_less() {
    let layout = layout("pp=2");
    let sequence = || Sequence::new(vec![1, 2, 3, 4, 5, 6, 7, 8], vec![2, 3, 4, 5, 6, 7, 8, 9]);
    let batch = Batch::new((0..4).map(|_| sequence()).collect(), 4).unwrap();
    for number in [1, 2] {
        let scheme: Scheme<Cpu<f32>> = ahead(&layout, number);
        let priced = |scheme| price::training(scheme, SHAPE, (SGD, None), &batch, |_, _| Ok(())).unwrap();
        let held = session::run(
            (scheme, &layout.world().unwrap()),
            &RandomValues { seed: 0 },
            |at: BuildContext<Cpu<f32>>| {
                let mut trainer = Trainer::new(&at, SHAPE, (SGD, None))?;
                (0..price::STEPS).try_for_each(|_| trainer.step(&batch, 1.0).map(drop))?;
                Ok(at.device.meter().peaks_of_all().total)
            },
        );
        let held = held.unwrap();
        let price = priced(scheme);
        assert_eq!(price.all, held.iter().map(|bytes| *bytes as u128).sum::<u128>(), "{held:?}");
        assert_eq!(Some(&price.largest.total), held.iter().max());
        let kept = priced(Scheme { schedule: Some(chunks(&KEPT, number)), ..scheme });
        assert!(price.largest.total < kept.largest.total, "{number} chunks: {price:?}, {kept:?}");
    }
}
