//! Launches of `attention.cu` and `attention_backward.cu`.
use super::{DropoutArgs, HeadsArgs, Launches, MatrixIn, MatrixOut, MatrixView, THREADS, boxes};
use crate::card::{Argument, BeginsEarly, LaunchConfig, arguments_of};
use crate::device::Cuda;
use crate::gpu::Gpu;
use kernels::{Attend, Heads, Mask, Qkv, RunningSoftmax, Scores};
use tensor::{Index, Scalar};

/// Most features of a head that these kernels take.
pub(crate) const MOST_FEATURES: usize = 256;

/// The attention's parameters in the kernels' layout: `Attend` of `attention.cuh`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
struct AttendArgs {
    heads: HeadsArgs,
    first: u32,
    causal: u32,
    size: u32,
    sinks: u32,
    scale: f32,
    cap: f32,
    dropout: DropoutArgs,
}
arguments_of!(AttendArgs);

impl From<&Attend> for AttendArgs {
    fn from(attend: &Attend) -> Self {
        let small = |n: usize| u32::try_from(n).unwrap_or(u32::MAX); // positions are below that
        let features = widest(attend.heads);
        assert!(
            features <= MOST_FEATURES,
            "{features} features per head; GPU kernels take at most {MOST_FEATURES}"
        );
        let Scores { divisor, factor, cap, mask } = attend.scores;
        let (causal, size, sinks) = match mask {
            Mask::All => (false, usize::MAX, 0),
            Mask::Causal => (true, usize::MAX, 0),
            Mask::Window { size, sinks } => (true, size, sinks),
        };
        let scale = factor as f32 / (divisor as f32).sqrt();
        Self {
            heads: attend.heads.into(),
            first: small(attend.first),
            causal: causal.into(),
            size: small(size),
            sinks: small(sinks),
            scale,
            cap: cap.map_or(0.0, |cap| cap as f32 / scale),
            dropout: attend.dropout.as_ref().into(),
        }
    }
}

/// Features of the larger of a key head and a value head.
fn widest(heads: Heads) -> usize {
    heads.dim.max(heads.value)
}

/// Rows per tile.
const TILE: usize = 64;

/// One block per tile of rows and head.
fn tiles(rows: usize, heads: usize) -> LaunchConfig {
    LaunchConfig { blocks: [rows.div_ceil(TILE), heads, 1], threads: 256, shared: 3 * TILE * (TILE + 4) * 4 }
}

/// Widths of kernels: the largest number of features of a head that each takes.
const WIDTHS: [usize; 3] = [64, 128, 256];

/// True if Hopper kernels take these heads.
fn is_tiled_on_hopper(heads: Heads) -> bool {
    [64, 128].contains(&heads.dim) && heads.dim == heads.value
}

/// Names of a kernel by these widths.
macro_rules! by_width {
    ($kernel:literal) => {
        [concat!($kernel, "_64"), concat!($kernel, "_128"), concat!($kernel, "_256")]
    };
}

/// Names of a backward's kernels, for keys and for queries: by tiles, on tensor cores, on Hopper.
struct BackwardKernels {
    tiles: [[&'static str; 3]; 2],
    cores: [[&'static str; 3]; 2],
    hopper: [[&'static str; 3]; 2],
}

/// Kernels that add to gradients of the dtype itself.
const NARROW: BackwardKernels = BackwardKernels {
    tiles: [by_width!("attention_keys"), by_width!("attention_queries")],
    cores: [by_width!("attention_cores_keys"), by_width!("attention_cores_queries")],
    hopper: [by_width!("attention_hopper_keys"), by_width!("attention_hopper_queries")],
};

/// Kernels of a narrow dtype that add to gradients of the wide one.
const WIDE: BackwardKernels = BackwardKernels {
    tiles: [by_width!("attention_keys_wide"), by_width!("attention_queries_wide")],
    cores: [by_width!("attention_cores_keys_wide"), by_width!("attention_cores_queries_wide")],
    hopper: [by_width!("attention_hopper_keys_wide"), by_width!("attention_hopper_queries_wide")],
};

/// Blocks of eight warps that multiply, and four more, one of which starts the card's copies for them.
fn block_on_hopper(blocks: [usize; 2], shared: usize) -> LaunchConfig {
    let [x, y] = blocks;
    LaunchConfig { blocks: [x, y, 1], threads: 384, shared }
}

/// One warp per row and head.
fn warps(gpu: &Gpu, n: usize) -> LaunchConfig {
    let most = gpu.card().about.processors * 64;
    LaunchConfig { blocks: [(n * 32).div_ceil(THREADS).min(most), 1, 1], threads: THREADS, shared: 0 }
}

/// Outputs of a softmax: (o, out, max, sum).
type Results = [MatrixView; 4];

/// Query heads per block in kernels of single rows.
const TOGETHER: usize = 4;
/// Blocks of single rows that keep a card busy. With fewer, keys are split.
const BUSY: usize = 512;

/// One block per row, up to four heads, and part of the keys; a span has about `keys` keys.
fn by_rows(heads: Heads, rows: usize, keys: usize, scratch: usize) -> (usize, LaunchConfig) {
    let across = heads.keys * heads.fan().div_ceil(TOGETHER);
    let fit = scratch / (rows * heads.queries * (heads.value + 2)).max(1);
    let splits = (BUSY / (rows * across).max(1)).min(keys / 256).min(fit).max(1);
    let shared = 8 * TOGETHER * (heads.value + 2) * 4;
    (splits, LaunchConfig { blocks: [rows * splits, across, 1], threads: 128, shared })
}

/// One block per 128 rows. Shared memory holds two tiles of them, and two stages of two tiles of 32 rows of
/// the other side, with two values per row.
fn backward_on_cores(rows: usize, heads: usize, dim: usize) -> LaunchConfig {
    let (width, threads) = if dim <= 64 { (64, 128) } else { (128, 256) };
    let shared = (2 * 128 + 4 * 32) * width * 2 + 4 * 32 * 4;
    LaunchConfig { blocks: [rows.div_ceil(128), heads, 1], threads, shared }
}

/// Returns the scratch elements of attention: a running softmax for each part of the keys, if single rows
/// attend to many keys, else one unused element.
pub(crate) fn attention_scratch(heads: Heads, keys: usize) -> usize {
    if keys < 512 { 1 } else { BUSY * TOGETHER.min(heads.fan()) * (heads.value + 2) }
}

#[allow(clippy::too_many_arguments)] // as the kernels
impl<S: Scalar<Wide = f32>> Launches<'_, S> {
    /// Returns the narrowest kernel that takes these heads.
    fn wide_enough(&self, kernel: [&'static str; 3], heads: Heads) -> &'static str {
        let wide = WIDTHS.into_iter().zip(kernel).filter(|&(width, _)| widest(heads) <= width);
        wide.map(|(_, name)| name).find(|name| self.has(name)).expect("a kernel for 256 features is loaded")
    }

    /// Returns the kernel on tensor cores, if there is one of this dtype. It takes up to 128 features, in
    /// rows of `from` whose pieces of 16 bytes are aligned, and in outputs `to` whose pairs are.
    fn on_cores(
        &self,
        kernel: [&'static str; 3],
        heads: Heads,
        from: &[MatrixView],
        to: &[(MatrixView, u64)],
    ) -> Option<&'static str> {
        let aligned = |w: &MatrixView, bytes: u64, size: u64| {
            w.at.is_multiple_of(bytes) && (w.row_stride * size).is_multiple_of(bytes)
        };
        let name = kernel[usize::from(widest(heads) > 64)];
        let size = size_of::<S>() as u64;
        let fits = widest(heads) <= 128
            && [heads.dim, heads.value].iter().all(|features| features.is_multiple_of(8))
            && from.iter().all(|w| aligned(w, 16, size))
            && to.iter().all(|(w, size)| aligned(w, 2 * size, *size));
        (fits && self.has(name)).then_some(name)
    }

    /// Launches the softmax over these spans.
    fn forward(
        &self,
        (attend, spans): (&Attend, &Index<Gpu>),
        qkv: &Qkv<Cuda<S>>,
        to: Results,
        scratch: MatrixView,
    ) {
        let a = AttendArgs::from(attend);
        let heads @ Heads { queries, dim, .. } = attend.heads;
        let [q, k, v] = [&qkv.q, &qkv.k, &qkv.v].map(MatrixView::from);
        let [o, out, max, sum] = to;
        let (rows, count) = (qkv.q.rows(), spans.len() / 8);
        if count > 0 && rows <= 4 * count {
            let (splits, shape) = by_rows(heads, rows, qkv.k.rows() / count, scratch.len());
            let splits = splits as u32;
            let arguments: [&dyn Argument; 11] =
                [&a, spans, &q, &k, &v, &o, &out, &max, &sum, &scratch, &splits];
            if self.has("attention_rows_hopper_256") {
                let kernel = self.wide_enough(by_width!("attention_rows_hopper"), heads);
                self.launch_under(&BeginsEarly, kernel, shape, &arguments);
            } else {
                self.launch(self.wide_enough(by_width!("attention_rows"), heads), shape, &arguments);
            }
            if splits > 1 {
                let value = heads.value as u32;
                let arguments: [&dyn Argument; 7] = [&o, &out, &max, &sum, &scratch, &splits, &value];
                self.launch("attention_join", warps(self.0, max.len()), &arguments);
            }
            return;
        }
        let to_numbers = [(o, size_of::<S>() as u64), (out, 4)];
        let on_cores = |kernel| self.on_cores(kernel, heads, &[q, k, v], &to_numbers);
        let on_hopper = is_tiled_on_hopper(heads).then(|| on_cores(by_width!("attention_hopper")));
        if let Some(name) = on_hopper.flatten() {
            let shape =
                block_on_hopper([rows.div_ceil(128), queries], (128 + 4 * 128) * dim * 2 + (1 + 4 * 2) * 8);
            let [boxes_of_q, boxes_of_k, boxes_of_v] = [q, k, v].map(|x| boxes(self.0, &x));
            let arguments: [&dyn Argument; 10] =
                [&a, spans, &q.rows, &boxes_of_q, &boxes_of_k, &boxes_of_v, &o, &out, &max, &sum];
            return self.launch(name, shape, &arguments);
        }
        let (kernel, shape) = match on_cores(by_width!("attention_cores")) {
            Some(name) => {
                let (width, blocks) =
                    (if widest(heads) <= 64 { 64 } else { 128 }, [rows.div_ceil(128), queries, 1]);
                (name, LaunchConfig { blocks, threads: 128, shared: (128 * width + 2 * 4096) * 2 })
            }
            None => (self.wide_enough(by_width!("attention"), heads), tiles(rows, queries)),
        };
        self.launch(kernel, shape, &[&a, spans, &q, &k, &v, &o, &out, &max, &sum]);
    }

    pub(crate) fn attention(
        &self,
        attend: &Attend,
        spans: &Index<Gpu>,
        qkv: Qkv<Cuda<S>>,
        o: MatrixOut<S>,
        lse: MatrixOut<f32>,
        scratch: MatrixOut<f32>,
    ) {
        let outputs = [MatrixView::from(&o), MatrixView::NONE, MatrixView::from(&lse), MatrixView::NONE];
        self.forward((attend, spans), &qkv, outputs, MatrixView::from(&scratch));
    }

    pub(crate) fn attention_block(
        &self,
        attend: &Attend,
        spans: &Index<Gpu>,
        qkv: Qkv<Cuda<S>>,
        run: RunningSoftmax<Cuda<f32>>,
        scratch: MatrixOut<f32>,
    ) {
        let [out, max, sum] = [&run.out, &run.max, &run.sum].map(MatrixView::from);
        self.forward((attend, spans), &qkv, [MatrixView::NONE, out, max, sum], MatrixView::from(&scratch));
    }

    pub(crate) fn attention_finish(&self, heads: Heads, o: MatrixOut<S>, run: RunningSoftmax<Cuda<f32>>) {
        let arguments: [&dyn Argument; 5] = [&o, &run.out, &run.max, &run.sum, &(heads.value as u32)];
        self.launch("attention_finish", warps(self.0, MatrixView::from(&run.max).len()), &arguments);
    }

    pub(crate) fn attention_delta(
        &self,
        heads: Heads,
        delta: MatrixOut<f32>,
        o: MatrixIn<S>,
        d_o: MatrixIn<S>,
    ) {
        let shape = warps(self.0, MatrixView::from(&delta).len());
        self.launch("attention_delta", shape, &[&delta, &o, &d_o, &(heads.value as u32)]);
    }

    pub(crate) fn attention_sinks(
        &self,
        dsinks: MatrixOut<f32>,
        sinks: MatrixIn<S>,
        lse: MatrixIn<f32>,
        delta: MatrixIn<f32>,
    ) {
        let blocks = [MatrixView::from(&dsinks).len(), 1, 1];
        let shape = LaunchConfig { blocks, threads: THREADS, shared: 0 };
        self.launch("attention_sinks", shape, &[&dsinks, &sinks, &lse, &delta]);
    }

    pub(crate) fn attention_merge(
        &self,
        heads: Heads,
        run: RunningSoftmax<Cuda<S>>,
        (out, max, sum): (MatrixIn<S>, MatrixIn<S>, MatrixIn<S>),
    ) {
        let value = heads.value as u32;
        let arguments: [&dyn Argument; 7] = [&run.out, &run.max, &run.sum, &out, &max, &sum, &value];
        self.launch("attention_merge", warps(self.0, MatrixView::from(&run.max).len()), &arguments);
    }

    pub(crate) fn attention_backward(
        &self,
        attend: &Attend,
        spans: &Index<Gpu>,
        qkv: Qkv<Cuda<S>>,
        saved: (MatrixIn<f32>, MatrixIn<f32>),
        d_o: MatrixIn<S>,
        dqkv: [MatrixOut<S>; 3],
        _: MatrixOut<f32>,
    ) {
        let gradients = dqkv.each_ref().map(|to| (MatrixView::from(to), size_of::<S>() as u64));
        self.both_passes((attend, spans), &qkv, saved, d_o, gradients, &NARROW);
    }

    pub(crate) fn attention_block_backward(
        &self,
        attend: &Attend,
        spans: &Index<Gpu>,
        qkv: Qkv<Cuda<S>>,
        saved: (MatrixIn<f32>, MatrixIn<f32>),
        d_o: MatrixIn<S>,
        dqkv: [MatrixOut<f32>; 3],
        _: MatrixOut<f32>,
    ) {
        let dqkv = dqkv.each_ref().map(|to| (MatrixView::from(to), 4));
        self.both_passes((attend, spans), &qkv, saved, d_o, dqkv, if S::NARROW { &WIDE } else { &NARROW });
    }

    /// Makes two passes: the gradients of keys and values, where each block owns some of their rows; then
    /// those of queries. Outputs are given with the size of their elements.
    fn both_passes(
        &self,
        (attend, spans): (&Attend, &Index<Gpu>),
        qkv: &Qkv<Cuda<S>>,
        (lse, delta): (MatrixIn<f32>, MatrixIn<f32>),
        d_o: MatrixIn<S>,
        outputs: [(MatrixView, u64); 3],
        kernels: &BackwardKernels,
    ) {
        let a = AttendArgs::from(attend);
        let of_heads @ Heads { queries, keys, dim, .. } = attend.heads;
        let [q, k, v, d_o] = [&qkv.q, &qkv.k, &qkv.v, &d_o].map(MatrixView::from);
        let [dq, dk, dv] = outputs.map(|(to, _)| to);
        let from = [q, k, v, d_o];
        let on_cores = |kernel| self.on_cores(kernel, of_heads, &from, &outputs);
        let on_hopper = |kernel| is_tiled_on_hopper(of_heads).then(|| on_cores(kernel)).flatten();
        let [of_keys, of_queries] = kernels.hopper.map(on_hopper);
        if let (Some(of_keys), Some(of_queries)) = (of_keys, of_queries) {
            // Two tiles of 128 rows of its own; stages of two tiles of `aside` rows of the other side, with
            // two values per row; barriers.
            let shared = |stages: usize, aside: usize| {
                (2 * 128 + 2 * stages * aside) * dim * 2 + 2 * stages * aside * 4 + (1 + 2 * stages) * 8
            };
            let tiles = |rows: usize| rows.div_ceil(128);
            let [map_of_q, map_of_k, map_of_v, map_of_d_o] = from.map(|x| boxes(self.0, &x));
            let maps: [&dyn Argument; 4] = [&map_of_q, &map_of_k, &map_of_v, &map_of_d_o];
            let [q, k, v, d_o] = maps;
            let shape = block_on_hopper([keys, tiles(qkv.k.rows())], shared(2, 64));
            self.launch(of_keys, shape, &[&a, spans, &from[1].rows, q, k, v, d_o, &lse, &delta, &dk, &dv]);
            let shape = block_on_hopper([tiles(qkv.q.rows()), queries], shared(3, 64 * 128 / dim));
            return self.launch(
                of_queries,
                shape,
                &[&a, spans, &from[0].rows, q, k, v, d_o, &lse, &delta, &dq],
            );
        }
        let pass = |[kernel, cores]: [[&'static str; 3]; 2], rows: usize, heads: usize| match on_cores(cores)
        {
            Some(name) => (name, backward_on_cores(rows, heads, widest(of_heads))),
            None => (self.wide_enough(kernel, of_heads), tiles(rows, heads)),
        };
        let [of_keys, of_queries] = [0, 1].map(|i| [kernels.tiles[i], kernels.cores[i]]);
        let (kernel, shape) = pass(of_keys, qkv.k.rows(), keys);
        self.launch(kernel, shape, &[&a, spans, &q, &k, &v, &lse, &delta, &d_o, &dk, &dv]);
        let (kernel, shape) = pass(of_queries, qkv.q.rows(), queries);
        self.launch(kernel, shape, &[&a, spans, &q, &k, &v, &lse, &delta, &d_o, &dq]);
    }
}
