//! Weights gathered over their ranks, and weights of experts.
use super::*;
use crate::{Error, RandomValues, Split, gathered_gradient, matmul};
use comm::{Mesh, World};
use tensor::{Cpu, F61, Host, Key};

/// A fused weight of three sections, the second padded and the third in copies, over two and three ranks, in
/// the field. Kills: columns that are cut as if there were one section, padding that is another's column or
/// has a gradient, copies of which one alone adds to the gradient.
#[test]
fn fused_weights_are_gathered_section_by_section() {
    let _key = Key(3).enter();
    let number = |i: usize| F61::sample(i as u64, 1.0);
    for ranks in [2, 3] {
        let sections = [6.into(), Section::new(4, Pieces::Padded), Section::new(2, Pieces::Shared(1))];
        let run = |device: Cpu<F61>, mesh: Mesh<Host>| {
            let (at, group) =
                (ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }), mesh.group(Axis::Tp));
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut weight = RowWeight::new(&at, Axis::Tp, "w", [5, 12], Pieces::Padded, draw)?;
            let whole = weight.param().gather(&mesh)?.unwrap();
            let cuts = Cuts::columns((Axis::Tp, group), "w", &sections)?;
            let width = cuts.local[1];
            let column = |j| cuts.whole_index([0, j]).map(|[_, column]| column);
            let tensor = |rows: usize, cols: usize, salt: usize| {
                Tensor::from_fn(&device, Category::Buffers, rows, cols, |i| number(i + salt))
            };
            // The first rows of the unit matrix are the first rows of the weight.
            let one = |i: usize| if i / 5 == i % 5 { F61::ONE } else { F61::ZERO };
            let grain = Tensor::from_fn(&device, Category::Buffers, 5, 5, one);
            let y = matmul(&grain, &weight.gathered(group, &sections)?)?;
            let mine = y.all_gather(group)?.read().unwrap();
            let first = group.rank() * width;
            for (i, j) in (0..5).flat_map(|i| (0..width).map(move |j| (i, j))) {
                let wanted = column(j).map_or(F61::ZERO, |column| whole[12 * i + column]);
                assert_eq!(mine[i * width * ranks + first + j], wanted, "row {i}, column {j}");
            }
            let (x, dy) = (tensor(3, 5, 100), tensor(3, width * ranks, 200));
            for _ in 0..2 {
                gathered_gradient(&mut weight, group, &sections, (&x, &Split::cut(&dy, group)?))?;
            }
            let seen = weight.param().gather_gradient(&mesh)?.unwrap();
            let mut wanted = vec![F61::ZERO; 5 * 12];
            for rank in 0..ranks {
                let piece = |size: usize, start: usize, share: usize, rank: usize| {
                    (0..share).map(move |j| (rank * share + j < size).then_some(start + rank * share + j))
                };
                let own = piece(6, 0, 6 / ranks, rank);
                let own = own.chain(piece(4, 6, 4usize.div_ceil(ranks), rank)).chain(piece(2, 10, 2, 0));
                for (j, column) in own.enumerate() {
                    let Some(column) = column else { continue };
                    for (i, b) in (0..5).flat_map(|i| (0..3).map(move |b| (i, b))) {
                        let dy = number(200 + b * width * ranks + rank * width + j);
                        wanted[12 * i + column] +=
                            number(100 + 5 * b + i) * dy + number(100 + 5 * b + i) * dy;
                    }
                }
            }
            assert!(seen == wanted, "{ranks} ranks");
            Ok::<_, Error>(())
        };
        World::threads(&[(Axis::Tp, ranks)]).unwrap().run(run).unwrap();
    }
}

/// Kills: a weight gathered over ranks that have other rows of other weights.
#[test]
fn weights_are_gathered_over_their_own_axis_only() {
    let (device, mesh) = (tensor::Cpu::<f32>::default(), comm::Mesh::alone());
    let at = ParamOrigin::new(&device, &mesh, &crate::RandomValues { seed: 1 });
    let weight =
        RowWeight::new(&at, Axis::Tp, "w", [2, 2], Pieces::Even, Draw { mean: 0.0, std: 1.0 }).unwrap();
    let why = weight.gathered(mesh.group(Axis::Dp), &[2.into()]).err().unwrap().to_string();
    assert_eq!(why, "a part along axis tp cannot be used with a part or group along axis dp");
}

/// Two experts on two data ranks of four tensor ranks, whole or each on two of them; rank `r` has a gradient
/// of 2^r. Kills: a gradient that is summed over other ranks than those that have the same part of the same
/// expert.
#[test]
fn experts_are_summed_over_the_ranks_that_have_the_same() {
    for (slices, apart) in [(1, 2), (2, 4)] {
        let run = |device: Cpu<f32>, mesh: Mesh<Host>| {
            let at = ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 });
            let draw = Draw { mean: 0.0, std: 1.0 };
            let mut experts = ExpertWeight::new(&at, "experts", [2, 3], (&[4.into()], false), draw)?;
            let own = |rank: usize| (1 << rank) as f32;
            experts.param().accumulate(|device, gradient, _| device.fill(gradient, own(mesh.rank())));
            experts.param().sync()?;
            let wanted: f32 = (0..8).filter(|rank| rank % apart == mesh.rank() % apart).map(own).sum();
            let seen: Vec<_> = experts.param().gradient_elements().into_iter().map(|(_, g)| g).collect();
            assert_eq!(seen, vec![wanted; 3 * 4 / slices], "rank {} of {slices} slices", mesh.rank());
            Ok::<_, Error>(())
        };
        let sizes = [(Axis::Dp, 2), (Axis::Tp, 4), (Axis::Ep, 2), (Axis::Etp, slices)];
        World::threads(&sizes).unwrap().run(run).unwrap();
    }
}
