//! A user's schedule: a table of cells from a file, and any schedule written as one.
//!
//! ```text
//! 0F0,0F1,,,0B0,0B1       one row a rank, one column a tick; an empty cell is a tick in which the rank waits
//! ,1F0,1F1,1B0,1B1,
//! ```
//!
//! Cells are those of `torch.distributed.pipelining`: a chunk, a letter (`F` forward, `B` the whole backward, `I` its input
//! half, `W` its weight half), a microbatch; `.1` behind it is its second slice. The same in JSON: a list of lists of texts.
use super::simulate::{Times, simulate};
use super::{Act, Cell, Plan, Unit, check};
use crate::Schedule;
use crate::pipeline::ALONE;
use layers::About;
use layers::model::shape::counted;
use std::collections::HashMap;
use tensor::quoted::{quoted, sentence};

/// A table that [`check`] is content with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    rows: Vec<Vec<Cell>>,
    rank_of: Vec<usize>,
    plan: Plan,
}

static ABOUT: About = About { name: "from a file", word: "table", ..ALONE };

impl Schedule for Table {
    fn about(&self) -> &'static About {
        &ABOUT
    }
    fn plan(&self, _: usize, _: usize, _: Option<usize>) -> Plan {
        self.plan
    }
    fn rank_of(&self, chunk: usize, _: &Plan) -> usize {
        self.rank_of[chunk]
    }
    fn row(&self, rank: usize, _: &Plan) -> Box<dyn Iterator<Item = Cell>> {
        Box::new(self.rows[rank].clone().into_iter())
    }
}

/// Row and column, from 0.
type Place = (usize, usize);

fn named((row, column): Place) -> String {
    format!("row {}, column {}", row + 1, column + 1)
}

impl Table {
    /// Reads CSV, or JSON where the text begins with a bracket.
    ///
    /// # Errors
    /// One sentence with the row and the column, counted from 1, of the first cell that is wrong.
    pub fn read(text: &str) -> Result<Self, String> {
        let (rows, places) = cells(&fields(text)?)?;
        let (plan, rank_of) = sizes(&rows, &places)?;
        complete(&plan, &rank_of, &places)?;
        let table = Self { rows, rank_of, plan };
        let found = |word: &str| {
            let bare = word.trim_end_matches(',');
            let place = cell(bare).and_then(|cell| places.get(&cell));
            place.map_or(word.into(), |place| format!("{bare} ({}){}", named(*place), &word[bare.len()..]))
        };
        let located = |why: String| why.split(' ').map(found).collect::<Vec<_>>().join(" ");
        check(&table, &plan).map_err(located).map(|_| table)
    }
    /// The sizes that it is made for.
    pub fn sizes(&self) -> Plan {
        self.plan
    }
}

/// The texts of all cells, in rows of equal length.
fn fields(text: &str) -> Result<Vec<Vec<String>>, String> {
    let rows: Vec<Vec<String>> = if text.trim_start().starts_with('[') {
        let why =
            |why: serde_json::Error| format!("no list of lists of cells: {}", sentence(&why.to_string()));
        serde_json::from_str(text).map_err(why)?
    } else {
        let row = |line: &str| line.split(',').map(|cell| cell.trim().into()).collect();
        text.trim_end().lines().map(row).collect()
    };
    let widest = rows.iter().map(Vec::len).max().unwrap_or(0);
    let Some(short) = rows.iter().position(|row| row.len() != widest) else { return Ok(rows) };
    let (row, has) = (short + 1, rows[short].len());
    Err(format!(
        "row {row} ends before column {}: it has {}, another row {widest}; wanted as many, of which any may be empty",
        has + 1,
        counted(has, "column")
    ))
}

/// The cells of each row, and where they are.
fn cells(rows: &[Vec<String>]) -> Result<(Vec<Vec<Cell>>, HashMap<Cell, Place>), String> {
    let (mut places, mut table) = (HashMap::new(), vec![vec![]; rows.len()]);
    for (row, texts) in rows.iter().enumerate() {
        for (column, text) in texts.iter().enumerate().filter(|(_, text)| !text.is_empty()) {
            let place = (row, column);
            let wanted =
                "wanted a chunk, F, B, I or W, and a microbatch, such as 0F0 (or 0F0.1, its second slice)";
            let cell = cell(text).ok_or_else(|| format!("{} is {}; {wanted}", named(place), quoted(text)))?;
            if let Some(first) = places.insert(cell, place) {
                let (place, first) = (named(place), named(first));
                return Err(format!("{place} is {cell}, as is {first}; wanted each cell once"));
            }
            table[row].push(cell);
        }
    }
    Ok((table, places))
}

/// A cell as it is written.
fn cell(text: &str) -> Option<Cell> {
    let letter = text.find(|c: char| !c.is_ascii_digit())?;
    let act = match text.as_bytes()[letter] {
        b'F' => Act::F,
        b'B' => Act::B,
        b'I' => Act::I,
        b'W' => Act::W,
        _ => return None,
    };
    let (chunk, of) = (&text[..letter], text[letter + 1..].split_once('.'));
    let (microbatch, slice) = of.unwrap_or((&text[letter + 1..], "0"));
    let plain = !text.contains('+'); // which Rust's numbers may begin with
    let unit = || {
        let (chunk, slice, microbatch) = (chunk.parse().ok()?, slice.parse().ok()?, microbatch.parse().ok()?);
        Some(Unit { chunk, slice, microbatch })
    };
    Some(Cell { act, of: unit().filter(|_| plain)? })
}

/// What the cells say of the table's sizes, and the rank of each chunk.
fn sizes(table: &[Vec<Cell>], places: &HashMap<Cell, Place>) -> Result<(Plan, Vec<usize>), String> {
    let cells = || table.iter().flatten().map(|cell| cell.of);
    let Some(last) = cells().map(|of| of.chunk).max() else {
        return Err("it has no cells; wanted a row of cells for each rank, such as 0F0,0B0".into());
    };
    let mut rank_of = vec![None; usize::from(last) + 1];
    for (rank, cell) in
        table.iter().enumerate().flat_map(|(rank, row)| row.iter().map(move |cell| (rank, cell)))
    {
        let at: &mut Option<(usize, Cell)> = &mut rank_of[usize::from(cell.of.chunk)];
        let (other, first) = *at.get_or_insert((rank, *cell));
        if other != rank {
            let [place, first_place] = [cell, &first].map(|cell| named(places[cell]));
            let chunk = cell.of.chunk;
            return Err(format!(
                "{place} is {cell}, but {first_place} is {first}; wanted chunk {chunk} in one row"
            ));
        }
    }
    let none = |chunk| {
        let cell = rank_of[usize::from(last)]
            .map_or(String::new(), |(_, cell)| format!("{} is {cell}", named(places[&cell])));
        format!("no row has chunk {chunk}; wanted it as {cell}")
    };
    let of = |chunk: usize| rank_of[chunk].map(|(rank, _)| rank).ok_or_else(|| none(chunk));
    let rank_of = (0..rank_of.len()).map(of).collect::<Result<Vec<_>, String>>()?;
    let (ranks, all) = (table.len(), rank_of.len());
    let chunks = all.div_ceil(ranks);
    for rank in 0..ranks {
        let has = rank_of.iter().filter(|at| **at == rank).count();
        if has != chunks {
            let (row, has) = (rank + 1, counted(has, "chunk"));
            return Err(format!("row {row} has {has} of {all} in {ranks} rows; wanted as many in each row"));
        }
    }
    let slices = cells().map(|of| usize::from(of.slice) + 1).max().unwrap_or(1);
    let microbatches = cells().map(|of| of.microbatch as usize + 1).max().unwrap_or(1);
    Ok((Plan { ranks, chunks, slices, microbatches }, rank_of))
}

/// Whether each chunk has each slice of each microbatch, forth and back.
fn complete(plan: &Plan, rank_of: &[usize], places: &HashMap<Cell, Place>) -> Result<(), String> {
    let all = (0..plan.all_chunks()).flat_map(|chunk| (0..plan.slices).map(move |slice| (chunk, slice)));
    let all = all.flat_map(|of| (0..plan.microbatches).map(move |microbatch| (of, microbatch)));
    for ((chunk, slice), microbatch) in all {
        let of = Unit { slice: slice as u16, ..Unit::new(chunk, microbatch as u32) };
        let all @ [f, b, i, w] = [Act::F, Act::B, Act::I, Act::W].map(|act| Cell { act, of });
        let at = |cell: &Cell| named(places[cell]);
        let lacks = |missing: String, other: &Cell| {
            let (row, place) = (rank_of[chunk] + 1, at(other));
            Err(format!("row {row} has no {missing}; wanted it as {place} is {other}"))
        };
        match all.map(|cell| places.contains_key(&cell)) {
            [true, true, false, false] | [true, false, true, true] => {}
            [false, ..] => {
                let behind = places.keys().filter(|cell| cell.of.microbatch >= of.microbatch);
                return lacks(f.to_string(), behind.min_by_key(|cell| places[*cell]).expect("the last one"));
            }
            [_, false, false, false] => return lacks(format!("{b}, nor {i} and {w}"), &f),
            [_, false, true, _] => return lacks(w.to_string(), &i),
            [_, false, ..] => return lacks(i.to_string(), &w),
            [_, true, has, _] => {
                let half = if has { i } else { w };
                let (whole, place) = (at(&b), at(&half));
                return Err(format!(
                    "{place} is {half}, but {whole} is {b}; wanted one backward or its halves"
                ));
            }
        }
    }
    Ok(())
}

/// Any schedule as CSV: a cell takes a tick, and what it needs from another rank is there in the next one.
///
/// # Errors
/// If a rank waits for ever.
pub fn csv(schedule: &dyn Schedule, plan: &Plan) -> Result<String, String> {
    let mut lines = vec![(String::new(), 0); plan.ranks];
    let ticks = simulate(schedule, plan, &Times::ticks(plan), &mut |rank, cell, start, _| {
        let (line, columns) = &mut lines[rank];
        let waits = start as usize + 1 - *columns; // the first cell has no comma before it
        line.extend(std::iter::repeat_n(',', waits - usize::from(*columns == 0)));
        line.push_str(&cell.to_string());
        *columns += waits;
    })?;
    let filled = |(line, columns): (String, usize)| {
        line + &",".repeat(ticks.makespan as usize - columns.max(1)) + "\n"
    };
    Ok(lines.into_iter().map(filled).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline;

    /// Kills: a cell that is written or read as another one, a column too many or too few, sizes that are not the table's.
    #[test]
    fn what_is_written_is_read_again() {
        for (schedule, ranks, microbatches) in pipeline::ALL
            .iter()
            .flat_map(|schedule| [(1, 1), (2, 3), (4, 8), (4, 2)].map(|(k, m)| (schedule, k, m)))
        {
            let plan = schedule.plan(ranks, microbatches, None);
            let rows = |schedule: &dyn Schedule| {
                (0..ranks).map(|rank| schedule.row(rank, &plan).collect()).collect()
            };
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
        for text in ["0X1", "0F", "F0", "0f0", "0F0.", "0F+1", "0F0.0.0", "70000F0", "é", "0Fé"] {
            refused(
                &format!("0F0,0B0,\n,,{text}\n"),
                &format!("row 2, column 3 is {text:?}; wanted a chunk, F, B, I or W"),
            );
        }
        for text in ["", "\n\n", ",,\n,,", "[]", "[[]]", r#"[["", ""]]"#] {
            refused(text, "it has no cells; wanted a row of cells for each rank");
        }
        refused("[[1]]", "no list of lists of cells: ");
        refused(
            "0F0,0B0\n1F0\n",
            "row 2 ends before column 2: it has 1 column, another row 2; wanted as many",
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
        refused(crossed, "for chunk 1, at 0F0 (row 1, column 1), and rank 1 to receive activation of 1");
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
}
