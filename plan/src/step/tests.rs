use super::*;
use parallel::pipeline::one_f_one_b::OneForwardOneBackward;

/// A rank with two forwards of 1 s and two backwards of 2 s each.
fn row(cells: [f64; 4]) -> RankRow {
    RankRow {
        cells: cells.to_vec(),
        messages: [None; 2],
        late: Vec::new(),
        tail: 0.0,
        update: 0.0,
        parts: [0.0; PARTS],
        flops: 1.0,
        peak: 1,
        sent: 1,
    }
}

/// Two stages, two microbatches, by hand.
///
/// ```text
/// stage 0   F0 F1 .. .. B0 B0 .. B1 B1        ends after 9 s
/// stage 1   .. F0 B0 B0 F1 B1 B1              ends after 7 s
/// ```
/// On the clock of stage 0, its first backward ends after 4 s, and in the table after 6 s. A call of 5 s that
/// starts then would last 3 s after its last cell, and lasts 2 s. Kills: a call that ends after the last cell
/// and is not waited for, or as if there were no bubbles; an update of the fastest stage; cores that cells
/// which run at once do not share, or always share; a peak of the last stage for that of the fullest.
#[test]
fn rows_of_two_stages_are_combined_by_hand() {
    let (schedule, plan) = (&OneForwardOneBackward, Plan::whole(2, 2));
    let rows = |late: bool| {
        let mut rows = vec![row([1.0, 1.0, 2.0, 2.0]), row([1.0, 2.0, 1.0, 2.0])];
        (rows[0].update, rows[1].update, rows[0].peak) = (0.25, 0.5, 7);
        if late {
            (rows[0].late, rows[0].tail) = (vec![(2, 2.0, 5.0)], 3.0);
            rows[0].parts[Part::Dp as usize] = 3.0;
        }
        rows
    };
    let machine = Machine::named("h100").unwrap();
    let of = |late, machine: &Machine| combined(rows(late), schedule, &plan, (2, machine)).unwrap();
    let step = of(false, &machine);
    assert_eq!((step.seconds, step.bubble, step.peak, step.flops), (9.5, 9.5, 7, 2.0));
    let step = of(true, &machine);
    assert_eq!((step.seconds, step.parts[Part::Dp as usize]), (11.5, 2.0));
    let one = Machine { cores: Some(1), ..machine.clone() };
    assert_eq!(of(false, &one).seconds, 9.0 + 3.0 + 2.0 * 0.5, "both compute for 3 s");
    assert_eq!(of(true, &one).seconds, 11.0 + 3.0 + 3.0 + 2.0 * 0.5);
    assert_eq!(of(true, &Machine { cores: Some(2), ..machine }).seconds, 11.5);
}

/// Kills: a rank of a stage whose memory is that of its slowest one.
#[test]
fn the_most_of_all_rows_counts() {
    let all = [RankRow { peak: 3, sent: 9, ..row([1.0; 4]) }, RankRow { peak: 2, sent: 4, ..row([2.0; 4]) }];
    assert_eq!(RankRow::most(&all), [3, 9]);
}
