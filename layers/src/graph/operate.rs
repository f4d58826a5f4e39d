//! Operators on sharded matrices: each rank computes on its own parts, and the result's sharding follows from
//! those of the inputs.
use super::sharded::{MeshPlace, Sharded, owned};
use crate::graph::sharding::Sharding;
use crate::graph::{GradientOf, OperatorKind, OperatorSplit};
use kernels::{Attend, Heads, Indexed, Kernels, LossTerms, Mask, Qkv, Segment, Span, Write};
use ops::{
    AttentionCall, Error, Param, Result, cross_entropy, filled, logits_gradient, product, product_gradient,
    softmax, softmax_backward, sum_of, wide_along,
};
use tensor::{Category, Scalar, Tensor, TokenIds, ViewMut};

/// Values that the backward of an operator needs.
pub struct OperatorSaved<D: Kernels> {
    inputs: Vec<Sharded<D>>,
    stats: Option<Tensor<D::Wide>>, // of a norm; the log-sum-exp of a softmax
    output: Option<Tensor<D>>,      // of an attention
}

/// Settings of an attention on the heads of this rank's keys, and its spans: whole sequences of `seq` tokens.
fn attends<D: Kernels>(
    heads: Heads,
    seq: usize,
    keys: [usize; 2],
) -> (AttentionCall<D>, Indexed<Span, D::Place>) {
    let span = |row| {
        let segment = Segment { row, len: seq, position: 0, sequence: 0 };
        Span { query: segment, key: segment }
    };
    let attend = Attend::of(heads.of_keys(keys[1]), Mask::Causal);
    (attend.into(), (0..keys[0]).step_by(seq).map(span).collect::<Vec<_>>().into())
}

/// Applies an operator's function to this rank's parts, which needs no other rank. A [`loss`] is not among
/// them.
///
/// # Errors
/// If the function cannot take these shardings.
pub fn operate<D: Kernels>(
    kind: OperatorKind,
    mut inputs: Vec<Sharded<D>>,
) -> Result<(Sharded<D>, OperatorSaved<D>)> {
    let sharding = kind.result(&inputs.iter().map(|input| &input.at).collect::<Vec<_>>())?;
    let (mut shape, mut stats, mut output) = (inputs[0].shape, None, None);
    let device = inputs[0].share.device().clone();
    if kind == OperatorKind::Bias {
        let Sharded { share, at: sharding, .. } = inputs.swap_remove(0); // the bias is left
        let mut y = owned(share);
        device.add_row(y.view_mut(), inputs[0].share.view());
        let nothing = Tensor::empty(&device, Category::Buffers, 0, 0); // backward needs no value of X
        inputs.insert(0, Sharded { share: nothing, shape, at: sharding.clone() });
        return Ok((Sharded { share: y, shape, at: sharding }, OperatorSaved { inputs, stats, output }));
    }
    let x = &inputs[0].share;
    let other = |i: usize| inputs[i].share.view();
    let mut y = x.along(x.cols());
    match kind {
        OperatorKind::Product => {
            shape[1] = inputs[1].shape[1];
            y = x.along(inputs[1].share.cols());
            product(&device, y.view_mut(), x.view(), other(1), Write::Set);
        }
        OperatorKind::Sum => {
            device.copy(y.view_mut(), x.view());
            device.add(y.view_mut(), other(1));
        }
        OperatorKind::Activation(f) => device.activate(y.view_mut(), x.view(), f),
        OperatorKind::Gated(f) => device.gated(y.view_mut(), x.view(), other(1), f),
        OperatorKind::Norm { eps } => {
            let mut r = wide_along(x, 1);
            device.rms_norm(y.view_mut(), r.view_mut(), x.view(), other(1), eps);
            stats = Some(r);
        }
        OperatorKind::Attention { heads, seq } => {
            shape[1] = heads.gathered();
            let (attend, spans) = attends(heads, seq, inputs[1].share.shape());
            let qkv = Qkv { q: x.view(), k: other(1), v: other(2) };
            let (o, lse) = softmax(&device, &attend, (&spans, seq), qkv);
            (y, stats, output) = (o.clone(), Some(lse), Some(o));
        }
        OperatorKind::Value => y = x.clone(),
        OperatorKind::Bias => unreachable!("it has returned"),
        OperatorKind::Loss => return Err(Error::Cannot("a loss needs targets".into())),
    }
    Ok((Sharded { share: y, shape, at: sharding }, OperatorSaved { inputs, stats, output }))
}

/// Computes the gradients of an operator's inputs, each with partial sums over the axes that the split says.
/// Those of parameters are added: `params` has them by number, and `numbers` are those of the inputs. The
/// others are returned, if they are wanted.
///
/// # Errors
/// If `dy` has another sharding than the result.
pub fn operate_back<D: Kernels>(
    (kind, split): (OperatorKind, &OperatorSplit),
    saved: OperatorSaved<D>,
    dy: Sharded<D>,
    params: &mut [Option<Param<D>>],
    numbers: &[usize],
    wants: &[GradientOf],
) -> Result<Vec<Option<Sharded<D>>>> {
    lies_as(&dy.at, &split.output)?;
    let OperatorSaved { inputs, stats, output } = saved;
    let device = dy.share.device().clone();
    let dy = dy.share;
    let x = |i: usize| inputs[i].share.view();
    let stats = || stats.as_ref().expect("forward kept statistics");
    // Adds to a parameter's gradient, or to that of a shape-only run.
    let mut add = |i: usize, kernel: &mut dyn FnMut(ViewMut<D::Wide>, Write)| {
        if let Some(param) = params.get_mut(numbers[i]).and_then(Option::as_mut) {
            return param.accumulate(|_, to, write| kernel(to, write));
        }
        let [rows, columns] = inputs[i].share.shape();
        let mut sum = Tensor::empty(device.wide(), Category::Gradients, rows, columns);
        kernel(sum.view_mut(), Write::Set);
    };
    let is_wanted = |i: usize| wants[i] == GradientOf::Matrix;
    let mut found: Vec<Option<Tensor<D>>> = vec![None; inputs.len()];
    let fresh = |i: usize| inputs[i].share.along(inputs[i].share.cols());
    match kind {
        OperatorKind::Product => {
            for (i, [a, b]) in [[dy.view(), x(1).t()], [x(0).t(), dy.view()]].into_iter().enumerate() {
                if is_wanted(i) {
                    let dx = found[i].insert(fresh(i));
                    product(&device, dx.view_mut(), a, b, Write::Set);
                } else if wants[i] == GradientOf::Param {
                    add(i, &mut |to, write| product_gradient(&device, to, a, b, write));
                }
            }
        }
        OperatorKind::Bias => {
            add(1, &mut |to, write| device.add_rows(sum_of(&device, to, write), dy.view()));
            found[0] = Some(dy);
        }
        OperatorKind::Sum => found = vec![Some(dy.clone()), Some(dy)],
        OperatorKind::Value => found[0] = Some(dy),
        OperatorKind::Activation(f) => {
            device.activate_backward(found[0].insert(fresh(0)).view_mut(), x(0), dy.view(), f);
        }
        OperatorKind::Gated(f) => {
            let [mut gate, mut up] = [fresh(0), fresh(1)];
            device.gated_backward(gate.view_mut(), up.view_mut(), x(0), x(1), dy.view(), f);
            found = vec![Some(gate), Some(up)];
        }
        OperatorKind::Norm { .. } => {
            let (dx, r, dy) = (found[0].insert(fresh(0)), stats(), dy.view());
            add(1, &mut |to, write| {
                let gain = sum_of(&device, to, write);
                device.rms_norm_backward(dx.view_mut(), gain, x(0), r.view(), x(1), dy, None);
            });
        }
        OperatorKind::Attention { heads, seq } => {
            let given = (output.as_ref().expect("forward kept its output"), stats(), &dy);
            found = attention_back(&device, (heads, seq), &inputs, given);
        }
        OperatorKind::Loss => return Err(Error::Cannot("a loss has a backward of its own".into())),
    }
    let sharded = |(i, share): (usize, Option<Tensor<D>>)| {
        let share = share.filter(|_| is_wanted(i))?;
        Some(Sharded { share, shape: inputs[i].shape, at: split.gradient(i) })
    };
    Ok(found.into_iter().enumerate().map(sharded).collect())
}

/// Checks that a gradient is sharded as its result.
fn lies_as(at: &Sharding, wanted: &Sharding) -> Result<()> {
    if at.cuts != wanted.cuts || !at.partial.is_empty() {
        return Err(Error::Cannot(format!("a gradient is {at}; it must be {wanted}")));
    }
    Ok(())
}

/// Computes the gradients of queries, keys and values.
fn attention_back<D: Kernels>(
    device: &D,
    (heads, seq): (Heads, usize),
    inputs: &[Sharded<D>],
    given: (&Tensor<D>, &Tensor<D::Wide>, &Tensor<D>),
) -> Vec<Option<Tensor<D>>> {
    let (attend, spans) = attends::<D>(heads, seq, inputs[1].share.shape());
    let zero = |x: &Sharded<D>| filled(device, Category::Activations, x.share.shape(), D::Elem::ZERO);
    let [mut q, mut k, mut v] = [0, 1, 2].map(|i| zero(&inputs[i]));
    let [x, y, z] = [0, 1, 2].map(|i| inputs[i].share.view());
    let gradients = [q.view_mut(), k.view_mut(), v.view_mut()];
    softmax_backward(device, (&attend, &spans), Qkv { q: x, k: y, v: z }, given, gradients);
    vec![Some(q), Some(k), Some(v)]
}

/// Values that the backward of a loss needs.
pub struct LossSaved<D: Kernels> {
    logits: Sharded<D>,
    lse: Tensor<D::Wide>,
    targets: TokenIds<D::Place>,
}

/// Computes the loss of logits of any rows and columns against the targets of all rows: the same on every
/// rank. Two all-reduces over ranks with other columns, one of one element over those with other rows.
///
/// # Errors
/// If the logits are partial sums, or a collective fails.
pub fn loss<D: Kernels>(
    logits: Sharded<D>,
    on: &MeshPlace<D::Place>,
    (targets, terms): (&TokenIds<D::Place>, &LossTerms),
) -> Result<(Tensor<D::Wide>, LossSaved<D>)> {
    OperatorKind::Loss.result(&[&logits.at])?;
    let rows = logits.at.range(0, logits.shape[0], &on.sizes, &|axis| on.at(axis));
    let [of_rows, of_columns] = [on.group(&logits.at.cuts[0])?, on.group(&logits.at.cuts[1])?];
    let is_whole = rows.len() == targets.len(); // a part is copied by the host
    let targets = if is_whole { targets.clone() } else { targets.part(rows) };
    let (sum, lse) = cross_entropy(&logits.share, &of_columns, &targets, terms, of_rows.axis())?;
    Ok((sum.all_reduce(&of_rows)?, LossSaved { logits, lse, targets }))
}

/// Returns the gradient of the logits, in their memory.
///
/// # Errors
/// None but those of the loss.
pub fn loss_back<D: Kernels>(
    saved: LossSaved<D>,
    on: &MeshPlace<D::Place>,
    terms: &LossTerms,
) -> Result<Sharded<D>> {
    let LossSaved { logits: Sharded { share, shape, at }, lse, targets } = saved;
    let share = logits_gradient(owned(share), &lse, on.group(&at.cuts[1])?.rank(), &targets, terms);
    Ok(Sharded { share, shape, at })
}
