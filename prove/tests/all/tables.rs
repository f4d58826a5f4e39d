//! Schedules that users write as tables.
use crate::layouts::SHAPE;
use layers::Shape;
use parallel::Layout;
use parallel::pipeline::table::{Table, csv};
use prove::cases::PANEL;
use prove::{OracleTraces, Subject, prove};
use tensor::Key;

/// Kills: a user's table not followed as the built-in schedules are, chunks placed on other ranks than their
/// rows, texts read wrongly where the table has more microbatches, a proof with another number of
/// microbatches than the table's.
#[test]
fn tables_of_users_equal_the_oracle() {
    let v = "0F0,0F1,3F0,3B0,3F1,3I1,3W1,0F2,0B0,3F2,3B2,0B1,0B2\n1F0,2F0,1F1,2F1,2B0,2B1,1B0,1F2,2F2,1B1,2I2,1I2,2W2,1W2\n";
    let upside_down = "1F0,1B0\n0F0,0B0\n"; // the embedding on the last rank
    let slices = "0F0,0F0.1,0B0.1,0B0\n1F0,1F0.1,1B0.1,1B0\n";
    let alone = "0F0,1F0,0F1,1F1,1B1,0B1,1B0,0B0\n";
    for (text, layout) in [(v, "pp=2"), (upside_down, "tp=2,pp=2"), (slices, "dp=2,pp=2"), (alone, "none")] {
        let table = Box::leak(Box::new(Table::read(text).unwrap()));
        let layout = layout.parse::<Layout>().unwrap().scheduled(table).unwrap();
        let subject = Subject::smallest(Shape { blocks: 4, ..SHAPE }, &layout).unwrap();
        let microbatches = subject.steps.iter().map(|(batch, _)| batch.microbatches().len());
        assert!(microbatches.eq([table.sizes().microbatches; 2]), "{layout}");
        let verdict = prove(&subject, &layout, &[Key(3)], &OracleTraces::default()).unwrap();
        assert!(verdict.equal, "{layout}: {:?}", verdict.first_difference);
    }
    let table = Box::leak(Box::new(Table::read(v).unwrap()));
    let layout = "pp=2".parse::<Layout>().unwrap().scheduled(table).unwrap();
    let few = Subject::small(Shape { blocks: 4, ..SHAPE }, &Layout::UNSPLIT).unwrap();
    let why = prove(&few, &layout, &[Key(1)], &OracleTraces::default()).unwrap_err().to_string();
    assert_eq!(why, "the table has 3 microbatches, but the step has 2");
    let sliced = Box::leak(Box::new(Table::read(slices).unwrap()));
    let layout = "pp=2".parse::<Layout>().unwrap().scheduled(sliced).unwrap();
    let member = PANEL.iter().find(|member| member.name == "Switch").unwrap();
    let why = layout.fits(Shape { blocks: 4, ..member.shape }).unwrap_err().to_string();
    assert!(why.contains("experts over a whole microbatch"), "{why}");
    assert!(layout.fits(Shape { blocks: 1, ..SHAPE }).is_err(), "two chunks of one block");
}

/// Takes the table that `equipart schedule --kind interleaved --stages 4 --chunks 2 --csv` writes. Kills: a
/// proof of many microbatches so large that its error has no bound, or that only many keys make sure.
#[test]
fn tables_of_many_microbatches_are_proven_with_a_bound() {
    let usual: Layout = "pp=4:interleaved".parse().unwrap();
    let text = csv(usual.pipeline().schedule, &usual.pipeline().plan(4, 8)).unwrap();
    let table = Box::leak(Box::new(Table::read(&text).unwrap()));
    let layout = "pp=4".parse::<Layout>().unwrap().scheduled(table).unwrap();
    for member in PANEL.iter() {
        let bound = member.subject(&layout).unwrap().bound_log2(1);
        assert!(bound.is_some_and(|log2| log2 < -2.0), "{}: {bound:?}", member.name);
    }
}
