//! A column-parallel and a row-parallel product as matrices: which part a rank has, and partial sums as
//! sheets behind each other.
use crate::picture::{INK, MUTED, Picture, shade};

/// Sizes, in user units: of a matrix with `B` rows or `D` columns.
const LONG: f64 = 120.0;
const SHORT: f64 = 72.0;
const LEFT: f64 = 24.0;
const TOP: f64 = 92.0;
const ROW: f64 = 210.0;
const GAP: f64 = 46.0;

/// Parts of a matrix, one a rank.
#[derive(Clone, Copy)]
enum MatrixCut {
    No,
    Columns,
    Rows,
    Sums,
}

/// Returns the picture of a pair of layers over this number of ranks as the text of an SVG file.
#[must_use]
pub fn draw(ranks: usize) -> String {
    let title = format!("A column-parallel and a row-parallel layer over {ranks} ranks");
    let lines = ["each colour and number is a rank's part; sheets are addends of full size".into()];
    let mut picture = Picture::new([LEFT + 4.0 * (LONG + GAP) + 20.0, TOP + 2.0 * ROW], &title, &lines);
    let products = [
        (
            "column",
            [("X[B,D]", MatrixCut::No), ("W[D,F_t]", MatrixCut::Columns), ("Y[B,F_t]", MatrixCut::Columns)],
            "no sum forward; in backward dX is a sum over ranks",
        ),
        (
            "row",
            [("X[B,F_t]", MatrixCut::Columns), ("W[F_t,D]", MatrixCut::Rows), ("Σ Y[B,D]", MatrixCut::Sums)],
            "all-reduce of Y forward; in backward dX is complete",
        ),
    ];
    for (row, (name, matrices, words)) in products.into_iter().enumerate() {
        let y = TOP + row as f64 * ROW;
        picture.text([LEFT, y - 10.0], "start", INK, &format!("{name}: {words}"));
        let mut x = LEFT;
        for (at, (label, cut)) in matrices.into_iter().enumerate() {
            let height = if at == 1 { LONG } else { SHORT };
            matrix(&mut picture, [x, y, LONG, height], cut, ranks);
            picture.text([x + LONG / 2.0, y + LONG + 34.0], "middle", MUTED, label);
            if at < 2 {
                let sign = if at == 0 { "·" } else { "=" };
                picture.text([x + LONG + GAP / 2.0, y + SHORT / 2.0 + 6.0], "middle", INK, sign);
            }
            x += LONG + GAP;
        }
    }
    picture.file()
}

/// Draws a matrix with its parts.
fn matrix(picture: &mut Picture, [x, y, width, height]: [f64; 4], cut: MatrixCut, ranks: usize) {
    let n = ranks as f64;
    let part = |rank: usize| {
        let index = rank as f64;
        match cut {
            MatrixCut::No => [x, y, width, height],
            MatrixCut::Columns => [x + index * width / n, y, width / n, height],
            MatrixCut::Rows => [x, y + index * height / n, width, height / n],
            // the last sheet in front
            MatrixCut::Sums => [x + index * 10.0, y + index * 9.0, width, height],
        }
    };
    let parts = if matches!(cut, MatrixCut::No) { 1 } else { ranks };
    for rank in 0..parts {
        let (fill, words) = match cut {
            MatrixCut::No => ("#eef1f4".to_owned(), "all ranks".to_owned()),
            _ => (shade(0.58 + rank as f64 / n, 0.82), rank.to_string()),
        };
        picture.boxed(part(rank), [&fill, r##" stroke="#59636e""##, ""], INK, &words);
    }
}
