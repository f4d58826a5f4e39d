//! Padding of a vocabulary that the ranks do not divide.
use crate::build::strategy;
use crate::{Builder, Embedding, Head, Layer, Objective, Params, Shape, StageRequest, Targets};
use comm::{Axis, Mesh, World};
use ops::{ADAMW, Error, Keeper, Optimizer, Param, PassContext, RandomValues, SavedRectangle, VALUE};
use tensor::{Cpu, Device, TokenIds};

/// Elements of a rank's padding of the value.
fn padding(param: &Param<Cpu<f32>>) -> Vec<f32> {
    let value = param.tensors().find(|tensor| tensor.name() == VALUE).unwrap();
    let mut rest: Vec<_> = value.read().read().unwrap().iter().map(|&v| Some(v)).collect();
    for SavedRectangle { shape: [rows, cols], from, stride, .. } in value.rectangles() {
        (0..rows).for_each(|row| rest[from + row * stride..][..cols].fill(None));
    }
    rest.into_iter().flatten().collect()
}

/// A vocabulary of 13 over 4 ranks, of which the last has one row of 4: its ids come and are targets, its
/// padding is neither. Kills: padding that a softmax, an id of another rank or decay touches.
#[test]
fn padding_has_no_gradient_and_stays_zero_while_its_neighbours_learn() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>, tied| {
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let loss = Objective { smoothing: 0.1, z: 0.01 };
        let shape = Shape { width: 5, vocabulary: 13, tied, loss, ..Shape::LLAMA };
        let (axis, name, sizes) = (Axis::Tp, "table", [13, 5]);
        let ids = strategy::Embedding {
            axis,
            name,
            sizes,
            padding: None,
            context: None,
            root: None,
            rate: 0.0,
            tied,
        };
        let mut embedding = Embedding::shard(&at, &ids)?;
        let mut head = Head::shard(&at, &strategy::Head::of(axis, &shape))?;
        let (mut optimizer, cx) = (Optimizer::new(ADAMW, Some(0.5)), PassContext::train(0, [4], 4));
        for step in 0..3 {
            let targets = Targets::Ids(TokenIds::targets(device.place(), &[12, 1, 3, 12], 13)?);
            let (x, kept) = embedding.forward(&cx, TokenIds::new(device.place(), &[0, 12, 5, 11], 13)?)?;
            let lend = |head: &mut Head<_>, embedding: &mut Embedding<_>| {
                if let Some(table) = head.table() {
                    std::mem::swap(table, embedding.table().unwrap());
                }
            };
            lend(&mut head, &mut embedding);
            let (_, saved) = head.forward(&cx, (x, Some(StageRequest::Loss(targets))))?;
            let (dx, _) = head.backward(&cx, saved, None)?;
            lend(&mut head, &mut embedding);
            embedding.backward(&cx, kept, dx)?;
            let mut params = Params::new();
            embedding.params(&mut params);
            head.params(&mut params);
            for param in &mut params {
                param.sync()?;
            }
            optimizer.step(&mut params, &mesh, 0.1, &mut Keeper::default())?;
            let tables = if tied { 1 } else { 2 };
            let wanted = vec![0.0; if mesh.rank() == 3 { tables * 3 * 5 } else { 0 }];
            let gradients: Vec<_> = params.iter().flat_map(|p| p.gradient_padding()).collect();
            assert_eq!(gradients, wanted, "rank {}, step {step}", mesh.rank());
            let values: Vec<_> = params.iter().flat_map(|p| padding(p)).collect();
            assert_eq!(values, wanted, "rank {}, step {step}", mesh.rank());
            let head = if tied { "table" } else { "head" };
            let head = params.iter().find(|p| &**p.name() == head).unwrap().gradient_elements();
            assert!(!head.is_empty() && head.iter().all(|(_, g)| *g != 0.0), "every id learns");
        }
        Ok::<_, Error>(())
    };
    for tied in [true, false] {
        let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
        world.run(|device, mesh| run(device, mesh, tied)).unwrap();
    }
}
