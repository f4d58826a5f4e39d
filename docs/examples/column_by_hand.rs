//! A linear layer split by columns over threads, by hand: slices, threads and nothing else.
//!
//! Letters: `B` tokens, `I` inputs, `O` outputs, `O_t` the outputs of rank `t`; matrices are row-major. The
//! same layer for any device and any dtype is `ColumnLinear`, `layers/src/linear/column.rs`.
//! Chapter: by hand.
use std::sync::{Barrier, Mutex};
use std::thread;

const B: usize = 4;
const I: usize = 3;
const O: usize = 8;
const UNIT: f32 = 1.0; // every value is a small multiple of it

/// Computes `Y`, `dX` and `dW` of the layer on the given columns: all of them, or one rank's.
fn layer(x: &[f32], w: &[f32], dy: &[f32]) -> [Vec<f32>; 3] {
    let o = w.len() / I;
    let (mut y, mut dx, mut dw) = (vec![0.0; B * o], vec![0.0; B * I], vec![0.0; I * o]);
    for (b, i, j) in (0..B * I * o).map(|n| (n / o / I, n / o % I, n % o)) {
        y[b * o + j] += x[b * I + i] * w[i * o + j];
        dx[b * I + i] += dy[b * o + j] * w[i * o + j];
        dw[i * o + j] += x[b * I + i] * dy[b * o + j];
    }
    [y, dx, dw]
}

/// Returns the columns of rank `t`, split as evenly as possible.
fn cut(whole: &[f32], t: usize, ranks: usize) -> Vec<f32> {
    whole.chunks(O).flat_map(|row| &row[O * t / ranks..O * (t + 1) / ranks]).copied().collect()
}

/// Returns the sum of the ranks' addends, on every rank; a barrier separates writing from reading.
fn all_reduce(addend: &[f32], slots: &[Mutex<Vec<f32>>], t: usize, meet: &Barrier) -> Vec<f32> {
    let mut sum = vec![0.0; addend.len()];
    *slots[t].lock().unwrap() = addend.to_vec();
    meet.wait();
    for slot in slots {
        sum.iter_mut().zip(&*slot.lock().unwrap()).for_each(|(sum, addend)| *sum += addend);
    }
    sum
}

/// Number of elements of `Y`, `dX` and `dW` that differ between split and unsplit layer, over all ranks.
fn differing(ranks: usize, summed: bool) -> [usize; 3] {
    let numbers =
        |len, seed| (0..len).map(|n| ((n * n + seed * n) % 7 + 1) as f32 * UNIT).collect::<Vec<_>>();
    let (x, w, dy) = (&numbers(B * I, 1), &numbers(I * O, 2), &numbers(B * O, 3));
    let slots: &Vec<_> = &(0..ranks).map(|_| Mutex::default()).collect();
    let [y, dx, dw] = &layer(x, w, dy);
    let meet = &Barrier::new(ranks);
    let rank = |t| {
        let mut got = layer(x, &cut(w, t, ranks), &cut(dy, t, ranks));
        if summed {
            got[1] = all_reduce(&got[1], slots, t, meet);
        }
        let wanted = [cut(y, t, ranks), dx.clone(), cut(dw, t, ranks)];
        let differ = |(got, wanted): &(&f32, &f32)| got.to_bits() != wanted.to_bits();
        [0, 1, 2].map(|k| got[k].iter().zip(&wanted[k]).filter(differ).count())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks).map(|t| scope.spawn(move || rank(t))).collect();
        let counts: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        [0, 1, 2].map(|k| counts.iter().map(|count| count[k]).sum())
    })
}

fn main() {
    println!("[Y, dX, dW]: elements that differ from the unsplit layer's, over all ranks");
    for ranks in [1, 2, 3, 4, 8] {
        println!(
            "{ranks} ranks: {:?}, without the sum {:?}",
            differing(ranks, true),
            differing(ranks, false)
        );
    }
}

/// Kills: a forgotten sum, a wrong block.
#[test]
fn split_equals_unsplit_exactly_and_needs_the_sum() {
    for ranks in [1, 2, 3, 4, 8] {
        assert_eq!(differing(ranks, true), [0, 0, 0], "{ranks} ranks");
        let dx = if ranks == 1 { 0 } else { ranks * B * I };
        assert_eq!(differing(ranks, false), [0, dx, 0], "{ranks} ranks, not summed");
    }
    main();
}
