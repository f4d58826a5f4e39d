//! Muon: steps along the nearest orthogonal matrix of a momentum, for matrices of blocks.
//!
//! ```text
//! m ← μ·m + (1 − μ)·g',   u = μ·m + (1 − μ)·g'          of each matrix W[I,O] by itself:
//! X = u/max(‖u‖, 10⁻⁷),   5 times  A = X·Xᵀ,  X ← a·X + (b·A + c·A²)·X
//! w ← w − η·λ·w − η·s·X,   s = √max(1, O/I)  or  0.2·√max(O, I)
//! ```
//! A matrix is what maps one stream of features to another: `[Q|K|V]` are three, `[gate|up]` two, and each
//! expert has its own. Experts' second matrices lie in memory as `[O,I]`.
//!
//! Source: Jordan et al., "Muon", kellerjordan.github.io/posts/muon; `torch.optim.Muon`; the second scale:
//! Liu et al., "Muon is scalable for LLM training", §2.2, arXiv:2502.16982.
use shape::Shape;
use tensor::Scalar;

/// A matrix of a parameter: its first row and column, and its size there.
pub(super) struct BlockMatrix {
    begin: [usize; 2],
    size: [usize; 2],
    transposed: bool, // [O,I]
}

/// Returns the matrices of a block's parameter.
pub(super) fn matrices(model: &Shape, name: &str, [rows, cols]: [usize; 2]) -> Vec<BlockMatrix> {
    let heads = model.heads;
    let part = name.rsplit('.').next();
    let columns = match part {
        Some("qkv") => vec![heads.queries * heads.dim, heads.keys * heads.dim, heads.keys * heads.value],
        Some("gate_up") => vec![cols / 2; 2],
        _ => vec![cols],
    };
    let of_experts = name.contains(".experts.");
    let height = if of_experts { model.width } else { rows };
    let mut blocks = Vec::new();
    for row in (0..rows).step_by(height) {
        let mut column = 0;
        for width in &columns {
            let transposed = of_experts && part == Some("down");
            blocks.push(BlockMatrix { begin: [row, column], size: [height, *width], transposed });
            column += width;
        }
    }
    blocks
}

/// Updates a parameter with rows of `cols` elements. `decay` is η·λ.
pub(super) fn update<S: Scalar>(
    w: &mut [S],
    m: &mut [S],
    g: &[S],
    (matrices, cols): (&[BlockMatrix], usize),
    [momentum, by_rms]: [f64; 2],
    (lr, decay): (S, S),
) {
    let (mu, fresh) = (S::from_f64(momentum), S::ONE - S::from_f64(momentum));
    m.iter_mut().zip(g).for_each(|(m, &g)| *m = mu * *m + fresh * g);
    for BlockMatrix { begin, size: [rows, width], transposed } in matrices {
        let index = |i: usize| (begin[0] + i / width) * cols + begin[1] + i % width;
        let u: Vec<S> = (0..rows * width).map(|i| mu * m[index(i)] + fresh * g[index(i)]).collect();
        let o = orthogonal(u, [*rows, *width]);
        let [a, b] = [*rows as f64, *width as f64];
        let [inputs, outputs] = if *transposed { [b, a] } else { [a, b] };
        let scale =
            if by_rms == 0.0 { (outputs / inputs).max(1.0).sqrt() } else { 0.2 * outputs.max(inputs).sqrt() };
        for (i, o) in o.into_iter().enumerate() {
            let w = &mut w[index(i)];
            *w = *w - decay * *w - lr * (S::from_f64(scale) * o);
        }
    }
}

/// Five steps of Newton and Schulz.
fn orthogonal<S: Scalar>(mut x: Vec<S>, [rows, cols]: [usize; 2]) -> Vec<S> {
    const LEAST: f64 = 1e-7;
    let [a, b, c] = [3.4445, -4.7750, 2.0315].map(S::from_f64);
    let norm2 = x.iter().fold(S::ZERO, |sum, &x| sum + x * x);
    // 1/max(‖x‖, ε) = min(1, ε/‖x‖)/ε
    let scale = S::clip_factor(norm2, LEAST) * S::from_f64(1.0 / LEAST);
    for x in &mut x {
        *x = *x * scale;
    }
    for _ in 0..5 {
        let gram =
            |i: usize, j: usize| (0..cols).fold(S::ZERO, |sum, k| sum + x[i * cols + k] * x[j * cols + k]);
        let gram: Vec<S> = (0..rows * rows).map(|at| gram(at / rows, at % rows)).collect();
        let square = |i: usize, j: usize| {
            (0..rows).fold(S::ZERO, |sum, k| sum + gram[i * rows + k] * gram[k * rows + j])
        };
        let by: Vec<S> = (0..rows * rows).map(|at| b * gram[at] + c * square(at / rows, at % rows)).collect();
        let new = |i: usize, j: usize| {
            let moved = (0..rows).fold(S::ZERO, |sum, k| sum + by[i * rows + k] * x[k * cols + j]);
            a * x[i * cols + j] + moved
        };
        x = (0..rows * cols).map(|at| new(at / cols, at % cols)).collect();
    }
    x
}
