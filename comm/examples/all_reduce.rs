//! Time of an all-reduce between thread ranks, in µs per call: the best of many batches of calls back to
//! back, on rank 0.
use comm::{Axis, CommError, Reduce, World};
use std::time::Instant;
use tensor::{Category, Cpu, Tensor};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for ranks in [2, 4] {
        for bytes in [4 << 10, 256 << 10, 4 << 20, 64 << 20] {
            let batch = ((1 << 20) / bytes).clamp(1, 100);
            let batches = if bytes > 4 << 20 { 60 } else { 1500 };
            let best = World::threads(&[(Axis::Tp, ranks)])?.run(|device: Cpu<f32>, mesh| {
                let mut x = Tensor::from_fn(&device, Category::Buffers, 1, bytes / 4, |_| 0.0);
                let mut best = f64::MAX;
                for _ in 0..batches {
                    let start = Instant::now();
                    for _ in 0..batch {
                        mesh.group(Axis::Tp).all_reduce(&mut x, Reduce::Sum)?;
                    }
                    best = best.min(start.elapsed().as_secs_f64() / batch as f64);
                }
                Ok::<_, CommError>(best)
            })?;
            println!("{ranks} ranks, {bytes} bytes: {:.2} us", best[0] * 1e6);
        }
    }
    Ok(())
}
