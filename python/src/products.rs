//! Products of matrices: the kernel that proofs run on.
use crate::buffers::{Residues, finite, read, same, word, write};
use kernels::{Kernels, Write};
use pyo3::{PyResult, Python, pyfunction};
use std::thread;
use tensor::{Category, Cpu, F61, Tensor, limits};

/// Multiplications from which on a product is worth a second thread.
const MANY: usize = 1 << 20;

/// out[B, M, N] = a[B, M, K]·b[B, K, N], by rows.
#[pyfunction]
pub(crate) fn product(
    py: Python<'_>,
    a: Residues,
    b: Residues,
    out: Residues,
    shape: [usize; 4],
) -> PyResult<()> {
    let [batch, m, k, n] = shape;
    let elements = |x: &Residues| read(py, x)?.iter().map(|x| finite(x.get())).collect::<PyResult<Vec<_>>>();
    let (a, b, out) = (elements(&a)?, elements(&b)?, write(py, &out)?);
    same(&[a.len(), batch * m * k])?;
    same(&[b.len(), batch * k * n])?;
    same(&[out.len(), batch * m * n])?;
    if out.is_empty() {
        return Ok(());
    }
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let parts = if m * k * n < MANY { 1 } else { cores.min(m) };
    for at in 0..batch {
        let (a, b) = (&a[at * m * k..][..m * k], &b[at * k * n..][..k * n]);
        let rows = m.div_ceil(parts);
        let part = |from: usize| {
            let rows = rows.min(m - from);
            rows_of_product(&a[from * k..][..rows * k], b, [rows, k, n])
        };
        let products: Vec<_> = py.detach(|| {
            thread::scope(|threads| {
                let starts = (0..m).step_by(rows);
                if parts == 1 {
                    return starts.map(part).collect();
                }
                let part = &part;
                let started: Vec<_> =
                    starts.map(|from| limits::scoped(threads, move || part(from))).collect();
                started.into_iter().map(|part| part.join().expect("a product does not panic")).collect()
            })
        });
        let out = &out[at * m * n..][..m * n];
        out.iter().zip(products.into_iter().flatten()).for_each(|(out, x)| out.set(word(x)));
    }
    Ok(())
}

fn rows_of_product(a: &[F61], b: &[F61], [m, k, n]: [usize; 3]) -> Vec<F61> {
    let cpu = Cpu::<F61>::default();
    let matrix = |x: &[F61], rows, cols| Tensor::from_fn(&cpu, Category::Buffers, rows, cols, |at| x[at]);
    let (a, b, mut c) = (matrix(a, m, k), matrix(b, k, n), Tensor::empty(&cpu, Category::Buffers, m, n));
    cpu.gemm(c.view_mut(), a.view(), b.view(), Write::Set);
    c.read().expect("the host holds its elements")
}
