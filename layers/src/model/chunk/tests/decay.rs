//! Decay of the parameters of a model.
use crate::{Builder, Chunk};
use comm::{Axis, Mesh, World};
use ops::{ADAMW, Error, Keeper, Optimizer, RandomValues};
use shape::{Biases, NormKind, Positions, Shape};
use tensor::Cpu;

/// Without gradients, only decay changes the values: w − lr·λ·w, exact for a quarter. Kills: decay of a
/// gain or a bias, of none of the matrices or by another factor; a share of a matrix taken for a row.
#[test]
fn decay_shrinks_matrices_and_leaves_gains_and_biases() {
    let run = |device: Cpu<f32>, mesh: Mesh<_>, norm| {
        let bias = Biases { qkv: true, out: true, mlp: true };
        let heads = kernels::Heads::new(4, 2, 2);
        let positions = Positions::Learned(3);
        let shape =
            Shape { width: 4, hidden: 4, vocabulary: 5, heads, norm, bias, positions, ..Shape::LLAMA };
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let mut model = Chunk::whole(&at, &Shape { head_norm: true, ..shape })?;
        let mut params = model.params();
        for param in &mut params {
            param.sync()?;
        }
        let before = params.iter().map(|p| p.elements()).collect::<Vec<_>>();
        let decay = ADAMW.with(&[0.9, 0.95, 1e-8, 0.5]);
        Optimizer::new(decay, None).step(&mut params, &mesh, 0.5, &mut Keeper::default())?;
        let mut decayed = Vec::new();
        for (param, before) in params.iter().zip(before) {
            let shrunk = before.iter().map(|&(i, w)| (i, w * 0.75)).collect::<Vec<_>>();
            assert!(before.iter().all(|(_, w)| *w != 0.0), "{}", param.name());
            if param.elements() == shrunk {
                decayed.push(param.name().to_string());
            } else {
                assert_eq!(param.elements(), before, "{}", param.name());
            }
        }
        Ok::<_, Error>(decayed)
    };
    let blocks =
        ["attention.qkv", "attention.out", "mlp.gate_up", "mlp.down"].map(|w| format!("blocks.0.{w}"));
    let matrices = [&["embedding".into(), "positions".into()][..], &blocks[..], &["head".into()]].concat();
    for norm in [NormKind::Rms, NormKind::Layer] {
        let world = World::threads(&[(Axis::Tp, 4)]).unwrap();
        for decayed in world.run(|device, mesh| run(device, mesh, norm)).unwrap() {
            assert_eq!(decayed, matrices);
        }
    }
}
