//! Optimizer written outside of equipart, whose state is neither like the value nor known to any file of
//! equipart: a counter for each block of 16 elements.
//!
//! ```text
//! counter_b += Σ over the elements of block b of g,   w −= lr·c·(g + counter of its block)
//! ```
use kernels::{Kernels, Write};
use layers::{Like, RuleStates, StateInfo};
use ops::{UpdatePart, UpdateRule, UpdateStep, filled};
use tensor::{Category, Scalar, Tensor};

/// Descent that adds to each gradient the sum of all gradients that its block has had.
///
/// **A rule** ([`ops::UpdateRule`]) lists the state that it keeps, and updates a part of a parameter. From
/// the list follow shards, which are cut between blocks, offload, checkpoints, resharding and prices. A part
/// is rows of the parameter or of a shard, with its blocks beside it; a parameter may have several parts, so
/// state of one number is set in each, and not added to.
#[derive(Clone, Copy)]
pub struct Counted;

const BLOCK: usize = 16;

impl<D: Kernels> UpdateRule<D> for Counted {
    fn name(&self) -> &'static str {
        "counted"
    }
    fn states(&self) -> RuleStates {
        const STATES: [StateInfo; 2] = [
            StateInfo { name: "counter", like: Like::Blocks(BLOCK) },
            StateInfo { name: "updates", like: Like::One },
        ];
        RuleStates::from(&STATES[..])
    }
    fn update(&self, part: UpdatePart<D>, step: &UpdateStep<D>) {
        let (device, gradient) = (part.device.wide(), part.gradient);
        let ([mut counter, updates], [rows, cols]) = (part.states.all(), [gradient.rows(), gradient.cols()]);
        let ones = filled(device, Category::Buffers, [BLOCK, 1], Scalar::ONE);
        let mut moved = Tensor::empty(device, Category::Buffers, rows, cols);
        device.copy(moved.view_mut(), gradient);
        for (block, from) in (0..cols).step_by(BLOCK).enumerate() {
            let len = BLOCK.min(cols - from);
            let (ones, elements) = (ones.view().take_rows(0, len), gradient.take_cols(from, len));
            device.gemm(counter.again().take_cols(block, 1), elements, ones, Write::Add);
            let sum = counter.read().take_cols(block, 1);
            device.gemm(moved.view_mut().take_cols(from, len), sum, ones.t(), Write::Add);
        }
        device.fill(updates, Scalar::from_usize(step.number));
        part.device.sgd(part.value, part.master, moved.view(), step.factor.view(), [step.lr, 0.0]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Heads;
    use layers::Shape;
    use ops::{Param, RandomValues, SavedPart, SavedRectangle, VALUE, ValueSource};
    use parallel::checkpoint::{CheckpointFile, optimizer_file, restore_optimizer, save};
    use parallel::{
        Batch, BuildContext, Entry, Layout, Result, Scheme, Sequence, Stored, Trainer, named, price, session,
    };
    use std::collections::BTreeMap;
    use std::path::Path;
    use tensor::safetensors::File;
    use tensor::{Cpu, Device, F61, Host, Key};

    /// Two tensor ranks cut these sections into whole blocks.
    const EVEN: Shape = Shape {
        width: 32,
        blocks: 2,
        heads: Heads::new(4, 4, 8),
        hidden: 32,
        vocabulary: 32,
        ..Shape::LLAMA
    };
    /// No row but the vocabulary's is of whole blocks: shards have whole rows.
    const RAGGED: Shape = Shape { width: 6, heads: Heads::new(3, 1, 2), hidden: 10, vocabulary: 48, ..EVEN };
    const STEPS: usize = 3;

    /// Tensors of all parameters by name, from the ranks that save their elements.
    type Tensors<E> = BTreeMap<String, Vec<E>>;

    fn batch() -> Batch {
        let sequence = |n: u32| Sequence::new((0..n).collect(), (1..=n).collect());
        Batch::new([5, 9, 3, 7, 2, 8, 4, 6].map(sequence).to_vec(), 2).unwrap()
    }
    /// Whole tensors, of which every element is saved once.
    fn saved<D: Kernels<Wide = D>>(trainer: &mut Trainer<D>) -> Vec<(String, usize, D::Elem)> {
        let mut all = Vec::new();
        for param in trainer.model().params() {
            for tensor in param.tensors() {
                let Some(SavedPart { name, tensor, rectangles, .. }) = tensor.saved() else { continue };
                let states = UpdateRule::<D>::states(&Counted);
                let like =
                    states.others.iter().find(|state| state.name == name).map_or(Like::Value, |of| of.like);
                let ([_, cols], values) = (like.shape(param.shape()), tensor.read().unwrap());
                for SavedRectangle { begin, shape, from, stride } in rectangles {
                    for (row, col) in (0..shape[0]).flat_map(|row| (0..shape[1]).map(move |col| (row, col))) {
                        let at = (begin[0] + row) * cols + begin[1] + col;
                        all.push((format!("{name}.{}", param.name()), at, values[from + row * stride + col]));
                    }
                }
            }
        }
        all
    }
    fn whole<E: Scalar>(ranks: Vec<Vec<(String, usize, E)>>) -> Tensors<E> {
        let mut all = BTreeMap::<_, BTreeMap<usize, E>>::new();
        for (name, at, x) in ranks.into_iter().flatten() {
            assert!(all.entry(name.clone()).or_default().insert(at, x).is_none(), "{name}: {at} twice");
        }
        let full = |(name, elements): (String, BTreeMap<usize, E>)| {
            assert!(elements.keys().copied().eq(0..elements.len()), "{name} has gaps");
            (name, elements.into_values().collect())
        };
        all.into_iter().map(full).collect()
    }
    fn run<D: Kernels<Place = Host> + Default, T: Send>(
        layout: &str,
        program: impl Fn(BuildContext<D>) -> Result<T> + Sync,
    ) -> Vec<T>
    where
        RandomValues: ValueSource<ops::Wide<D>>,
    {
        let layout: Layout = layout.parse().unwrap();
        session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 1 }, program).unwrap()
    }
    fn trained(shape: Shape, layout: &str) -> (Tensors<F61>, Vec<Tensors<F61>>) {
        let ranks = run(layout, |at: BuildContext<Cpu<F61>>| {
            let _key = Key(5).enter();
            let mut trainer = Trainer::new(&at, shape, (Counted, None))?;
            let mut gradients = Vec::new();
            for _ in 0..STEPS {
                trainer.step(&batch(), 0.5)?;
                let whole = |param: &mut Param<_>| {
                    let gradient = param.gather_gradient(at.mesh)?.unwrap();
                    Ok((param.name().to_string(), gradient))
                };
                let params = trainer.model().params();
                gradients.push(params.into_iter().map(whole).collect::<Result<Tensors<F61>>>()?);
            }
            Ok((saved(&mut trainer), gradients))
        });
        let (saved, gradients): (Vec<_>, Vec<_>) = ranks.into_iter().unzip();
        (whole(saved), gradients.into_iter().next().unwrap())
    }

    const LAYOUTS: [&str; 9] = [
        "dp=2:zero1",
        "dp=2:zero2",
        "dp=3:zero3",
        "dp=4:zero3/2",
        "dp=2:zero3:tile/4",
        "dp=2:zero3:offload-host",
        "dp=2:classic",
        "pp=2,dp=2:zero2",
        "dp=4",
    ];
    const OVER_TENSOR_RANKS: [&str; 3] = ["tp=2", "tp=2,sp,dp=2:zero3", "tp=2,dp=2:zero1:offload-file"];

    /// Three steps in the field. The counters of the unsplit run are added up here, from its gradients.
    /// Kills: a shard that begins within a block, a block beside another one's elements, a part that begins
    /// within a block, a number that several ranks save or none.
    #[test]
    fn counters_are_those_of_the_unsplit_run_under_every_layout() {
        let _key = Key(5).enter();
        for shape in [EVEN, RAGGED] {
            let (alone, gradients) = trained(shape, "none");
            let mut wanted = Tensors::<F61>::new();
            for (name, gradient) in gradients.iter().flatten() {
                let matrix = alone[&format!("value.{name}")].len();
                let cols = if name.contains("norm") { matrix } else { columns(&shape, name) };
                let blocks = gradient.chunks(cols).flat_map(|row| row.chunks(BLOCK));
                let counter = wanted.entry(name.clone()).or_default();
                counter.resize(matrix / cols * cols.div_ceil(BLOCK), F61::ZERO);
                for (counter, block) in counter.iter_mut().zip(blocks) {
                    *counter = block.iter().fold(*counter, |sum, g| sum + *g);
                }
            }
            for (name, counter) in wanted {
                assert!(alone[&format!("counter.{name}")] == counter, "{name}");
                assert_eq!(alone[&format!("updates.{name}")], [F61::from_usize(STEPS)], "{name}");
            }
            let more: &[&str] = if shape.width == EVEN.width { &OVER_TENSOR_RANKS } else { &[] };
            for layout in LAYOUTS.iter().chain(more) {
                assert!(trained(shape, layout).0 == alone, "{layout}, width {}", shape.width);
            }
        }
    }
    fn columns(shape: &Shape, name: &str) -> usize {
        let (heads, name) = (shape.heads, name.rsplit_once('.').map_or(name, |(_, name)| name));
        match name {
            "qkv" => (heads.queries + 2 * heads.keys) * heads.dim,
            "gate_up" => 2 * shape.hidden,
            "head" => shape.vocabulary,
            _ => shape.width,
        }
    }

    fn files<D: Kernels<Place = Host, Elem = f32, Wide = D>>(
        folder: &Path,
        trainer: &mut Trainer<D>,
        background: bool,
    ) -> Result<()> {
        let (model, optimizer, mesh) = trainer.parts();
        let (design, params, metadata) = (model.design().clone(), model.params(), BTreeMap::new());
        let entries = named(&design, &params, mesh)?.into_iter();
        let tensors = entries.map(|of| (Entry::whole(of.name, of.shape), VALUE)).collect();
        let (path, limit) = (folder.join("model.safetensors"), 4000); // several files each
        let state = (folder.join("state.safetensors"), "state".into(), limit);
        let state = optimizer_file(state, BTreeMap::new(), optimizer, (&design, &params), mesh)?;
        let model = CheckpointFile { path, shards: "model".into(), limit, metadata, tensors };
        let mut saving = save(vec![state, model], &params, mesh, (tensor::bulk::finite_f32, background))?;
        drop(params);
        while !saving.advance(mesh, !background)? {}
        Ok(())
    }
    fn read(folder: &Path, name: &str) -> File {
        File::open_whole_or_shards(&folder.join(format!("{name}.safetensors"))).unwrap()
    }
    fn restored(shape: Shape, folder: &Path, layout: &str, steps: usize) -> Tensors<f32> {
        whole(run(layout, |at: BuildContext<Cpu<f32>>| {
            let design = layers::Design::from(shape);
            let mut fresh = Trainer::new(&at, shape, (Counted, None))?;
            let names = named(&design, &fresh.model().params(), at.mesh)?;
            let entries = names.into_iter().map(|of| Entry::whole(of.name, of.shape)).collect();
            let stored = Stored::new(read(folder, "model"), entries, |_| false)?;
            let builder = layers::Builder { values: &stored, ..at.builder.clone() };
            let at = BuildContext { builder, pipeline: at.pipeline };
            let mut trainer = Trainer::new(&at, shape, (Counted, None))?;
            let (model, optimizer, mesh) = trainer.parts();
            restore_optimizer(
                "state",
                &read(folder, "state"),
                optimizer,
                (&design, &mut model.params()),
                mesh,
            )?;
            (0..steps).try_for_each(|_| trainer.step(&batch(), 0.5).map(drop))?;
            Ok(saved(&mut trainer))
        }))
    }

    /// Files of each layout, of several shards, written at once or in the background, are read by the next
    /// layout of the list; a run that goes on under its own layout ends with the bits of one that did not
    /// stop. Kills: a state left behind in a reshard, a block of another place, a count of updates that is
    /// lost.
    #[test]
    fn files_of_every_layout_are_read_by_every_other() {
        for shape in [EVEN, RAGGED] {
            let more: &[&str] = if shape.width == EVEN.width { &OVER_TENSOR_RANKS } else { &[] };
            let layouts: Vec<_> = ["none"].iter().chain(&LAYOUTS).chain(more).copied().collect();
            for (i, layout) in layouts.iter().enumerate() {
                let folder = tempfile::tempdir().unwrap();
                let both = run(layout, |at: BuildContext<Cpu<f32>>| {
                    let mut trainer = Trainer::new(&at, shape, (Counted, None))?;
                    (0..2).try_for_each(|_| trainer.step(&batch(), 0.5).map(drop))?;
                    files(folder.path(), &mut trainer, i % 2 == 1)?;
                    let stopped = saved(&mut trainer);
                    trainer.step(&batch(), 0.5)?;
                    Ok((stopped, saved(&mut trainer)))
                });
                let (stopped, went_on): (Vec<_>, Vec<_>) = both.into_iter().unzip();
                let (stopped, went_on) = (whole(stopped), whole(went_on));
                assert!(stopped.keys().any(|name| name.starts_with("counter.")), "{layout}");
                let other = layouts[(i + 1) % layouts.len()];
                assert!(restored(shape, folder.path(), other, 0) == stopped, "{layout} into {other}");
                assert!(restored(shape, folder.path(), layout, 1) == went_on, "{layout}");
            }
        }
    }

    /// Kills: a state that is priced and not held, or held and not priced; a counter for each element; a
    /// state in blocks that every rank keeps whole.
    #[test]
    fn state_is_priced_to_the_byte() {
        let optimizer = Category::Optimizer as usize;
        for layout in ["none"].iter().chain(&LAYOUTS).chain(&OVER_TENSOR_RANKS) {
            let parsed: Layout = layout.parse().unwrap();
            let scheme = Scheme::<Cpu<f32>>::from(&parsed);
            let price = price::training(scheme, EVEN, (Counted, None), &batch(), |_, _| Ok(())).unwrap();
            let peaks = run(layout, |at: BuildContext<Cpu<f32>>| {
                let mut trainer = Trainer::new(&at, EVEN, (Counted, None))?;
                (0..price::STEPS).try_for_each(|_| trainer.step(&batch(), 0.0).map(drop))?;
                Ok(at.device.meter().peaks_of_all())
            });
            let total: u128 = peaks.iter().map(|peaks| peaks.total as u128).sum();
            assert_eq!((price.all, price.largest.total), (total, peaks[price.rank].total), "{layout}");
            assert_eq!(price.largest.category[optimizer], peaks[price.rank].category[optimizer], "{layout}");
        }
        // by hand, of f32: embedding, head, 2 · (qkv, out, gate and up, down) in blocks; 5 gains of 2 blocks;
        // a number for each of 15 parameters
        let blocks = 32 * 2 + 32 * 2 + 2 * (32 * 6 + 32 * 2 + 32 * 4 + 32 * 2) + 5 * 2;
        let held = |layout: &str| {
            let parsed: Layout = layout.parse().unwrap();
            let scheme = Scheme::<Cpu<f32>>::from(&parsed);
            let price = price::training(scheme, EVEN, (Counted, None), &batch(), |_, _| Ok(())).unwrap();
            price.largest.category[optimizer]
        };
        assert_eq!(held("none"), 4 * (blocks + 15));
        assert_eq!(held("dp=2:zero1"), 4 * (blocks / 2 + 15));
        assert_eq!(held("dp=4:zero3/2"), 4 * (blocks / 2 + 15));
    }

    #[test]
    fn a_cut_inside_a_block_is_refused() {
        let layout: Layout = "tp=2".parse().unwrap();
        let shape = Shape { hidden: 24, ..EVEN };
        let program = |at: BuildContext<Cpu<f32>>| {
            Trainer::new(&at, shape, (Counted, None))?.step(&batch(), 0.5).map(drop)
        };
        let why = session::run((&layout, &layout.world().unwrap()), &RandomValues { seed: 1 }, program);
        let wanted = "the column of blocks.0.mlp.gate_up at which tp cuts is 12; it must be a multiple of 16, the \
                      elements of a block";
        let why = why.unwrap_err().to_string();
        assert!(why.ends_with(wanted), "{why}");
    }
}
