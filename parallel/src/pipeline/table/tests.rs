//! Tables that are read, and those that are refused.
use super::*;
use crate::pipeline;
use crate::step::{Action, ActionPhase, Payload, moves};

/// Kills: a cell that is written or read as another one, a column too many or too few, sizes that are not the
/// table's.
#[test]
fn what_is_written_is_read_again() {
    for (schedule, ranks, microbatches) in pipeline::ALL
        .iter()
        .flat_map(|schedule| [(1, 1), (2, 3), (4, 8), (4, 2)].map(|(k, m)| (schedule, k, m)))
    {
        let plan = schedule.plan(ranks, microbatches, None);
        let rows =
            |schedule: &dyn Schedule| (0..ranks).map(|rank| schedule.row(rank, &plan).collect()).collect();
        let rows: [Vec<Vec<Cell>>; 2] = if schedule.fits(&plan).is_err() {
            continue;
        } else {
            let table = Table::read(&csv(*schedule, &plan).unwrap()).unwrap();
            assert_eq!(table.sizes(), plan, "{}", schedule.about().name);
            [rows(*schedule), rows(&table)]
        };
        assert_eq!(rows[0], rows[1], "{}, {plan}", schedule.about().name);
    }
    let gpipe = csv(&pipeline::gpipe::GPipe, &Plan::whole(2, 2)).unwrap();
    assert_eq!(gpipe, "0F0,0F1,,,0B0,0B1\n,1F0,1F1,1B0,1B1,\n");
}

/// Kills: a format that is not taken for what it is, idle ticks, spaces or line ends that are something.
#[test]
fn csv_and_json_are_one_table() {
    let json = r#" [["0F0", "", "", "0I0", "0W0"], ["", "1F0", "1B0", "", ""]]"#;
    let csv = Table::read("0F0,,, 0I0 ,0W0\r\n,1F0,1B0,,\r\n\r\n").unwrap();
    assert_eq!(Table::read(json).unwrap(), csv);
    assert_eq!(csv.sizes(), Plan::whole(2, 1));
    let folded = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n";
    let table = Table::read(folded).unwrap();
    assert_eq!((table.rank_of.clone(), table.sizes().chunks), (vec![0, 1, 1, 0], 2));
    let slices = Table::read("0F0.0,0F0.1,0B0.1,0B0\n").unwrap();
    assert_eq!(slices.sizes(), Plan { ranks: 1, chunks: 1, slices: 2, microbatches: 1 });
    assert_eq!(super::csv(&slices, &slices.sizes()).unwrap(), "0F0,0F0.1,0B0.1,0B0\n");
}

fn refused(text: &str, says: &str) {
    let why = Table::read(text).unwrap_err();
    assert!(why.contains(says), "{text:?} says {why:?}, wanted {says:?}");
}

/// Kills: a wrong cell that is taken, one whose row or column is that of another.
#[test]
fn what_is_wrong_is_said_with_row_and_column() {
    for text in [
        "0X1",
        "0F",
        "F0",
        "0f0",
        "0F0.",
        "0F+1",
        "0F0.0.0",
        "70000F0",
        "é",
        "0Fé",
        "0SEND_F",
        "0SEND0",
        "UNSHARD",
        "0UNSHARD1",
        "0SEND_B0",
        "65535SEND_F0",
        "(0F1)",
        "(0F1;0B1)",
        "(0F1;UNSHARD)OVERLAP_F_B",
        "()OVERLAP_F_B",
    ] {
        refused(
            &format!("0F0,0B0,\n,,{text}\n"),
            &format!("row 2, column 3 is {text:?}; wanted a chunk, F, B, I, W or U"),
        );
    }
    for text in ["", "\n\n", ",,\n,,", "[]", "[[]]", r#"[["", ""]]"#] {
        refused(text, "it has no cells; wanted a row of cells for each rank");
    }
    refused("[[1]]", "not a list of lists of cells: ");
    refused("0F0,0B0\n1F0\n", "row 2 has no 1B0, nor 1I0 and 1W0; wanted it as row 2, column 1 is 1F0");
    refused(
        "0F0,(0B0;0B0)OVERLAP_F_B\n",
        "row 1, column 2 is 0B0, as is row 1, column 2; wanted each cell once",
    );
    refused("0F0,0B0,0F0\n", "row 1, column 3 is 0F0, as is row 1, column 1; wanted each cell once");
    refused(
        "0F0,,0B0\n1F0,1B0,0F1",
        "row 2, column 3 is 0F1, but row 1, column 1 is 0F0; wanted chunk 0 in one row",
    );
    refused("0F0,0B0\n2F0,2B0", "no row has chunk 1; wanted it as row 2, column 1 is 2F0");
    refused("0F0,0B0,2F0,2B0\n1F0,1B0,,", "row 2 has 1 chunk of 3 in 2 rows; wanted as many in each row");
    refused("0F0,0B0\n,", "row 2 has 0 chunks of 1 in 2 rows");
    refused("0F0,0B0,0F1\n", "row 1 has no 0B1, nor 0I1 and 0W1; wanted it as row 1, column 3 is 0F1");
    refused("0F0,0B0,0B1\n", "row 1 has no 0F1; wanted it as row 1, column 3 is 0B1");
    refused(
        "0F0,0B0,0F4000000000,0B4000000000\n",
        "row 1 has no 0F1; wanted it as row 1, column 3 is 0F4000000000",
    );
    refused("0F0.1,0B0.1,0F1,0B1\n", "row 1 has no 0F0; wanted it as row 1, column 1 is 0F0.1");
    refused("0B0,0F0\n", "rank 0 has 0B0 (row 1, column 1) before 0F0 (row 1, column 2)");
    let crossed = "0F0,0F1,,,0B0,0B1\n,1F1,1F0,1B0,1B1,\n";
    refused(crossed, "for chunk 1, at 0F0 (row 1, column 1), but rank 1 is first to receive activation of 1");
    refused(crossed, "for chunk 1, at 1F1 (row 2, column 2)");
    let cycle = "0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n";
    refused(cycle, "to run 0B0 (row 1, column 2), and rank 1 waits to receive activation of 1");
    refused(cycle, "to run 1F1 (row 2, column 2)");
    refused("0F0,0I0\n", "row 1 has no 0W0; wanted it as row 1, column 2 is 0I0");
    refused("0F0,0W0\n", "row 1 has no 0I0; wanted it as row 1, column 2 is 0W0");
    refused(
        "0F0,0B0,0W0\n",
        "row 1, column 3 is 0W0, but row 1, column 2 is 0B0; wanted one backward or its halves",
    );
}

/// A table with its messages, as `_dump_csv` writes it.
fn with_messages(schedule: &dyn Schedule, plan: &Plan) -> Vec<Vec<String>> {
    let other = |of: Task, forth| if forth { of.chunk + 1 } else { of.chunk - 1 };
    let word = |step: &Action| match *step {
        Action::Run { cell, .. } => {
            let version = schedule.read_by(cell, plan).map_or(String::new(), |version| format!("@{version}"));
            Some(format!("{cell}{version}"))
        }
        Action::Send(Payload::Activation, of, _) => {
            Some(format!("{}SEND_F{}", other(of, false), of.microbatch))
        }
        Action::Send(Payload::Gradient, of, _) => Some(format!("{}SEND_B{}", other(of, true), of.microbatch)),
        Action::Receive(Payload::Activation, of, _) => Some(format!("{}RECV_F{}", of.chunk, of.microbatch)),
        Action::Receive(Payload::Gradient, of, _) => Some(format!("{}RECV_B{}", of.chunk, of.microbatch)),
        Action::Complete => Some("0REDUCE_GRAD".into()),
        Action::Update => None,
    };
    lowered(schedule, plan, true).unwrap().iter().map(|row| row.iter().filter_map(word).collect()).collect()
}

fn joined(rows: &[Vec<String>]) -> String {
    rows.iter().map(|row| row.join(",") + "\n").collect()
}

/// As `ScheduleDualPipeV`, `ScheduleZBVZeroBubble` and `ScheduleInterleaved1F1B` of `PyTorch` 2.15 dump them.
/// Kills: rows of unequal lengths refused, one half of an overlap left out, a word of theirs that is none of
/// ours.
#[test]
fn tables_of_pytorch_are_read_as_they_are() {
    let overlaps = "0F0,0F1,0F2,3F0,3I0,3W0,3F1,(0F3;3B1)OVERLAP_F_B,(3F2;0B0)OVERLAP_F_B,3B2,(3F3;0B1)OVERLAP_F_B,3B3,0I2,0W2,\
                    0I3,0W3\r\n1F0,2F0,1F1,2F1,1F2,2B0,(2F2;1B0)OVERLAP_F_B,(1F3;2B1)OVERLAP_F_B,(2F3;1B1)OVERLAP_F_B,2B2,1B2,\
                    2I3,1I3,2W3,1W3\r\n";
    let table = Table::read(overlaps).unwrap();
    assert_eq!((table.sizes(), table.messages()), (Plan { chunks: 2, ..Plan::whole(2, 4) }, 0));
    assert_eq!(
        joined(&table.rows.iter().map(|row| row.iter().map(Cell::to_string).collect()).collect::<Vec<_>>()),
        overlaps.replace(['(', '\r'], "").replace(")OVERLAP_F_B", "").replace(';', ",")
    );
    let v = "0UNSHARD,3UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,3RECV_F0,3F0,3I0,3SEND_B0,3RECV_F1,3W0,3F1,3I1,3SEND_B1,0RECV_B0,3W1,\
             3REDUCE_GRAD,3WAIT_REDUCE_GRAD,3RESHARD,0I0,0WAIT_SEND_F0,0W0,0RECV_B1,0I1,0WAIT_SEND_F1,0W1,0REDUCE_GRAD,\
             0WAIT_REDUCE_GRAD,0RESHARD,3WAIT_SEND_B0,3WAIT_SEND_B1\r\n\
             1UNSHARD,2UNSHARD,1RECV_F0,1F0,1RECV_F1,2F0,2SEND_F0,1F1,2RECV_B0,2F1,2SEND_F1,2I0,2WAIT_SEND_F0,2W0,2RECV_B1,1I0,\
             1SEND_B0,1W0,2I1,2WAIT_SEND_F1,2W1,2REDUCE_GRAD,2WAIT_REDUCE_GRAD,2RESHARD,1I1,1SEND_B1,1W1,1REDUCE_GRAD,\
             1WAIT_REDUCE_GRAD,1RESHARD,1WAIT_SEND_B0,1WAIT_SEND_B1\r\n";
    assert_eq!(Table::read(v).unwrap().messages(), 16);
    let bare = "0F0,0F1,,3F0,3I0,3W0,3F1,3I1,3W1,0I0,0W0,,,,0I1,0W1,,\r\n\
                ,1F0,2F0,1F1,2F1,2I0,2W0,,1I0,1W0,,2I1,2W1,1I1,,,1W1,,\r\n";
    assert_eq!(Table::read(v).unwrap().digest(), Table::read(bare).unwrap().digest());
}

/// Kills: a message that is not compared, one of another kind, chunk, microbatch or rank that is taken for
/// the one that is wanted, an order or a place that does not matter.
#[test]
fn messages_are_those_that_follow_from_the_cells() {
    for (schedule, ranks) in
        pipeline::ALL.iter().flat_map(|schedule| [(schedule, 1), (schedule, 2), (schedule, 3)])
    {
        let plan = Plan { slices: 1, ..schedule.plan(ranks, 3, Some(if ranks == 1 { 1 } else { 2 })) };
        let whole = schedule.plan(ranks, 3, None).slices == 1;
        if !whole {
            continue;
        }
        let rows = with_messages(*schedule, &plan);
        let count = rows.iter().flatten().filter(|word| word.contains("_F") || word.contains("_B")).count();
        let table = Table::read(&joined(&rows)).unwrap();
        assert_eq!(table.messages(), count, "{}", schedule.about().name);
        assert_eq!(table.digest(), Table::read(&csv(*schedule, &plan).unwrap()).unwrap().digest());
        for (rank, at) in (0..ranks).flat_map(|rank| (0..rows[rank].len()).map(move |at| (rank, at))) {
            if rows[rank][at].contains('_') && !rows[rank][at].ends_with("_GRAD") {
                let mut less = rows.clone();
                let exited = less[rank].remove(at);
                let why = Table::read(&joined(&less)).err().unwrap_or_default();
                assert!(
                    why.contains(&format!("rank {rank} (row {}", rank + 1)) && why.contains("wanted to "),
                    "{exited}: {why}"
                );
            }
        }
    }
    let row = "\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n";
    let says = |first: &str, says: &str| refused(&format!("{first}{row}"), says);
    assert_eq!(
        Table::read(&format!("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1{row}")).unwrap().messages(),
        8
    );
    says(
        "0F0,0SEND_F0,0F1,0RECV_B0,0B0,0RECV_B1,0B1",
        "rank 0 (row 1) lacks a message; wanted to send activation of 1 to rank 1 for chunk 1",
    );
    says(
        "0F0,0F1,0SEND_F1,0SEND_F0,0RECV_B0,0B0,0RECV_B1,0B1",
        "rank 0 (row 1, column 3) has 0SEND_F1; wanted to send activation of 0 to rank 1 for chunk 1",
    );
    says(
        "0SEND_F0,0F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
        "rank 0 (row 1, column 1) has 0SEND_F0; wanted it after the cell that gives it",
    );
    says(
        "0F0,0SEND_F0,0F1,0SEND_F1,0B0,0RECV_B0,0RECV_B1,0B1",
        "rank 0 (row 1, column 5) has 0B0; wanted to receive gradient of 0 from rank 1 for chunk 0 before it",
    );
    says(
        "0F0,0SEND_F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1",
        "rank 0 (row 1, column 3) has 0SEND_F0; wanted to send activation of 1 to rank 1 for chunk 1",
    );
    for other in ["1SEND_B0", "0RECV_F0", "7SEND_F0", "1RECV_B0"] {
        says(
            &format!("0F0,0SEND_F0,{other},0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"),
            &format!("rank 0 (row 1, column 3) has {other}; wanted no such message here"),
        );
    }
}

/// Kills: a digest of spacing, of acts without their microbatches, or of nothing; cells of one table for
/// another step's sizes.
#[test]
fn a_table_is_known_again_and_is_of_its_microbatches() {
    let of = |text: &str| Table::read(text).unwrap();
    let table = of("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    assert_eq!(table.digest(), of("0F0,,0F1,,,0B0,0B1,\n,1F0,1B0,1F1,1B1\n").digest());
    let others = [
        "0F0,0F1,0B1,0B0\n1F0,1F1,1B1,1B0\n",
        "0F0,0F1,0B0,0I1,0W1\n1F0,1B0,1F1,1B1\n",
        "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
    ];
    let mut digests = others.map(|other| of(other).digest()).to_vec();
    digests.push(table.digest());
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 4, "each is another table");
    let plan = |microbatches| table.plan(2, microbatches, None);
    assert_eq!((check(&table, &plan(2)).map(drop), plan(3)), (Ok(()), Plan::whole(2, 3)));
    assert_eq!(check(&table, &plan(3)).unwrap_err(), "the table has 2 microbatches, but the step has 3");
    assert_eq!(
        moves(&table, &plan(1), 1, true).unwrap_err(),
        "the table has 2 microbatches, but the step has 1"
    );
    let forwards = |microbatches, rank| moves(&table, &plan(microbatches), rank, false).unwrap();
    let cells = |microbatches, rank| {
        forwards(microbatches, rank)
            .iter()
            .filter(|at| matches!(at, ActionPhase::Begin(Action::Run { .. })))
            .count()
    };
    assert_eq!([cells(1, 0), cells(1, 1), cells(2, 0), cells(5, 1)], [1, 1, 2, 5]);
    let sliced = of("0F0,0F0.1,3F0,3F0.1,3B0.1,3B0,0B0.1,0B0\n1F0,1F0.1,2F0,2F0.1,2B0.1,2B0,1B0.1,1B0\n");
    for rank in [0, 1] {
        assert!(moves(&sliced, &Plan { slices: 1, ..sliced.plan(2, 4, None) }, rank, false).is_ok());
    }
}
