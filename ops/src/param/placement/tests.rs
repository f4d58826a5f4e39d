//! Cuts, and what is put together of them.
use super::*;
use crate::ParamValues;
use comm::{CommError, World};
use tensor::{Category, Cpu, Tensor};

/// Places in the whole, and shapes, of the rectangles of `n` elements from `first` on.
fn rectangles(cuts: &Cuts, first: usize, n: usize) -> Vec<(Option<[usize; 2]>, [usize; 2])> {
    cuts.rectangles(first, n).iter().map(|rectangle| (rectangle.whole, rectangle.shape)).collect()
}

/// Two axes cut the same dimension of a fused matrix; every element comes back to its place, and each rank's
/// share holds both sections. Kills: a cut that ignores sections, the wrong order of axes.
#[test]
fn what_two_axes_cut_is_gathered_whole() {
    let sections = vec![8.into(), 4.into()];
    let placement = Placement::default()
        .on(Axis::Dp, Placed::Shard { dim: 1, sections: sections.clone() })
        .on(Axis::Tp, Placed::Shard { dim: 1, sections });
    World::threads(&[(Axis::Dp, 2), (Axis::Tp, 2)])
        .unwrap()
        .run(|device: Cpu<f32>, mesh: Mesh<tensor::Host>| {
            let cuts = placement.cuts(&mesh, "w", [3, 12]).unwrap();
            assert_eq!(cuts.local, [3, 3]);
            let share = Tensor::from_fn(&device, Category::Buffers, 3, 3, |i| {
                let [r, c] = cuts.whole_index([i / 3, i % 3]).unwrap();
                (r * 12 + c) as f32
            });
            let first: Vec<f32> = share.read().unwrap()[..3].to_vec();
            let at = 4 * mesh.group(Axis::Dp).rank() + 2 * mesh.group(Axis::Tp).rank();
            assert_eq!(first, [at as f32, at as f32 + 1.0, 8.0 + at as f32 / 2.0]);
            let second = [(Some([1, at]), [1, 2]), (Some([1, 8 + at / 2]), [1, 1])];
            assert_eq!(rectangles(&cuts, 3, 3), second);
            let whole = cuts.gather(&mesh, &share).unwrap().unwrap();
            assert_eq!(whole, (0..36).map(|i| i as f32).collect::<Vec<_>>());
            Ok::<_, CommError>(())
        })
        .unwrap();
}

/// Rows that the tensor ranks cut first and the data ranks then, or the other way round. Kills: cuts in the
/// order of the axes, whatever order was given.
#[test]
fn axes_cut_in_the_order_in_which_they_are_named() {
    let sizes = [(Axis::Dp, 2), (Axis::Tp, 2)];
    let on =
        |placement: Placement, axis| placement.on(axis, Placed::Shard { dim: 0, sections: vec![12.into()] });
    for order in [[Axis::Tp, Axis::Dp], [Axis::Dp, Axis::Tp]] {
        let placement = order.into_iter().fold(Placement::default(), on);
        assert_eq!(placement.different(), Axis::Dp | Axis::Tp);
        let run = |device: Cpu<f32>, mesh: Mesh<tensor::Host>| {
            let cuts = placement.cuts(&mesh, "w", [12, 2])?;
            let [outer, inner] = order.map(|axis| mesh.group(axis).rank());
            assert_eq!(cuts.whole_index([1, 1]), Some([6 * outer + 3 * inner + 1, 1]), "{order:?}");
            let at = |i: usize| cuts.whole_index([i / 2, i % 2]).unwrap();
            assert_eq!(rectangles(&cuts, 1, 5), [(Some(at(1)), [1, 1]), (Some(at(2)), [2, 2])]);
            let share =
                Tensor::from_fn(&device, Category::Buffers, 3, 2, |i| (2 * at(i)[0] + at(i)[1]) as f32);
            assert!(cuts.gather(&mesh, &share)?.unwrap().into_iter().eq((0..24).map(|i| i as f32)));
            Ok::<_, Error>(())
        };
        World::threads(&sizes).unwrap().run(run).unwrap();
    }
}

/// Error of a cut of this section over four ranks, or the first row of each rank's piece.
fn cut(section: Section) -> std::result::Result<Vec<usize>, String> {
    let size = section.size;
    let placement = Placement::default().on(Axis::Tp, Placed::Shard { dim: 0, sections: vec![section] });
    let run = |_: Cpu<f32>, mesh: Mesh<tensor::Host>| {
        let cuts = placement.cuts(&mesh, "w", [size, 1])?;
        Ok::<_, Error>(cuts.whole_index([0, 0]).map_or(size, |[row, _]| row))
    };
    World::threads(&[(Axis::Tp, 4)]).unwrap().run(run).map_err(|why| why.reason)
}

#[test]
fn ranks_that_do_not_divide_are_refused_with_those_that_would() {
    let why = cut(6.into()).unwrap_err();
    assert_eq!(why, "tp=4 does not divide the 6 rows of w; tp can be 1, 2, 3, 6");
}

/// Kills: a piece that ends within a unit, padded ones too; ranks counted against rows where units are meant.
#[test]
fn pieces_fall_on_whole_units() {
    let of = |size, pieces, grain| cut(Section { size, pieces, grain });
    assert_eq!(of(24, Pieces::Even, 3), Ok(vec![0, 6, 12, 18]));
    assert_eq!(of(24, Pieces::Shared(2), 12), Ok(vec![0, 0, 12, 12]));
    assert_eq!(of(15, Pieces::Padded, 3), Ok(vec![0, 6, 12, 15]), "two units each, the last has none");
    let why = "tp=4 does not divide the 3 grains of 8 rows of w; tp can be 1, 3";
    assert_eq!(of(24, Pieces::Even, 8), Err(why.to_string()));
    let why = "the number of rows of w is 13; it must be a multiple of the grain, 3";
    assert_eq!(of(13, Pieces::Even, 3), Err(why.to_string()));
    assert_eq!(of(13, Pieces::Padded, 3), Ok(vec![0, 6, 12, 13]), "the fifth unit is cut short by the end");
}

/// Sizes whose squares 64 bits do not hold, on any rank of a world without peers. Kills: a share that wraps.
#[test]
fn shares_of_large_sections_are_exact() {
    let large = (1 << 32) + 12;
    let sections = vec![large.into(), (3 * large).into()];
    let placement = Placement::default()
        .on(Axis::Dp, Placed::Shard { dim: 1, sections: sections.clone() })
        .on(Axis::Tp, Placed::Shard { dim: 1, sections });
    let mesh = Mesh::ghost(&[(Axis::Dp, 2), (Axis::Tp, 2)], 3).unwrap();
    let cuts = placement.cuts(&mesh, "w", [8, 4 * large]).unwrap();
    assert_eq!(cuts.local, [8, large]);
    assert_eq!(cuts.whole_index([0, 0]), Some([0, large / 4 * 3]));
    assert_eq!(cuts.whole_index([7, large - 1]), Some([7, 4 * large - 1]));
}

/// Kills: padding that lies in the whole, a run that is cut or goes beyond its piece, a number beyond the
/// share that is not zero; a replica of the wrong piece, every rank the first of its block.
#[test]
fn padded_and_shared_sections_are_gathered_whole() {
    let sections = vec![
        Section::new(8, Pieces::Even),
        Section::new(6, Pieces::Shared(2)),
        Section::new(5, Pieces::Padded),
    ];
    let placement = Placement::default().on(Axis::Tp, Placed::Shard { dim: 1, sections });
    World::threads(&[(Axis::Tp, 4)])
        .unwrap()
        .run(|device: Cpu<f32>, mesh: Mesh<tensor::Host>| {
            let (cuts, rank) = (placement.cuts(&mesh, "w", [2, 19]).unwrap(), mesh.rank());
            assert_eq!(cuts.local, [2, 2 + 3 + 2]);
            let at = |i: usize| cuts.whole_index([i / 7, i % 7]);
            assert_eq!((at(7), at(2)), (Some([1, 2 * rank]), Some([0, 8 + rank / 2 * 3])));
            assert_eq!(at(6), (rank < 2).then_some([0, 14 + 2 * rank + 1]));
            let number = |[r, c]: [usize; 2]| (r * 19 + c) as f32;
            let share = Tensor::from_fn(&device, Category::Buffers, 2, 7, |i| at(i).map_or(-1.0, number));
            let all = match rank {
                0 | 1 => {
                    vec![
                        (Some([0, 2 * rank]), [2, 2]),
                        (Some([0, 8]), [2, 3]),
                        (Some([0, 14 + 2 * rank]), [2, 2]),
                    ]
                }
                2 => vec![
                    (Some([0, 4]), [2, 2]),
                    (Some([0, 11]), [2, 3]),
                    (Some([0, 18]), [2, 1]),
                    (None, [2, 1]),
                ],
                _ => vec![(Some([0, 6]), [2, 2]), (Some([0, 11]), [2, 3]), (None, [2, 2])],
            };
            assert_eq!(rectangles(&cuts, 0, 20), all); // six elements lie beyond the local part
            for (first, end) in (0..20).flat_map(|first| (first..=20).map(move |end| (first, end))) {
                let (mut some, numbers) = (vec![9.0; end - first], ParamValues::each(|at| 1.0 + number(at)));
                cuts.fill(first, &mut some, &numbers);
                let at = |i: usize| (i < 14).then(|| at(i)).flatten();
                assert!(some.into_iter().eq((first..end).map(|i| at(i).map_or(0.0, |at| 1.0 + number(at)))));
            }
            let whole = cuts.gather(&mesh, &share).unwrap().unwrap();
            assert_eq!(whole, (0..38).map(|i| i as f32).collect::<Vec<_>>());
            let [replica] = &cuts.replicas()[..] else { panic!("one replicated section") };
            assert_eq!(
                (replica.part.dim, replica.part.start, replica.part.len, replica.holders),
                (1, 2, 3, 2)
            );
            assert_eq!(replica.first, rank % 2 == 0);
            Ok::<_, CommError>(())
        })
        .unwrap();
    let shared = |ranks| Section::new(6, Pieces::Shared(3)).piece(6, "rows", (Axis::Tp, ranks));
    assert!(shared(4).is_err() && shared(2).is_ok());
}
