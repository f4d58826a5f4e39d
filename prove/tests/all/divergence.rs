//! The report of a program that differs from the oracle: the first differing tensor in program order, its
//! rank, the collective, a hint.
use comm::mutants::{CallSite, Mutation, Trial};
use comm::{CallRecord, Op};
use kernels::Heads;
use layers::{Biases, NormKind, Shape};
use ops::{GradientScaling, LossScaling};
use parallel::Layout;
use prove::cases::PANEL;
use prove::{Difference, OracleTraces, Subject, locate, locate_in, prove, prove_in};
use tensor::Key;

const SHAPE: Shape = Shape {
    width: 6,
    blocks: 2,
    heads: Heads::new(4, 2, 2),
    hidden: 8,
    vocabulary: 11,
    bias: Biases { qkv: true, out: true, mlp: true },
    norm: NormKind::Layer,
    ..Shape::LLAMA
};

fn subject(layout: &str) -> (Subject, Layout) {
    let layout = layout.parse().unwrap();
    (Subject::small(SHAPE, &layout).unwrap(), layout)
}

/// Label of the calls that gather new parameter values.
const VALUES: &str = "values of the model";

/// The calls of all ranks, each listed once.
fn calls(subject: &Subject, layout: &Layout) -> Vec<CallSite> {
    let honest = Trial::honest();
    let world = layout.world().unwrap().on_trial(&honest);
    assert!(prove_in(&world, subject, layout, &[Key(5)], &OracleTraces::default(), &|_| ()).unwrap().equal);
    honest.meetings()
}

/// The difference caused by a mutant of the training call that `pick` selects.
fn after(layout: &str, mutation: Mutation, pick: impl Fn(&[CallSite]) -> CallSite) -> Difference {
    let (subject, layout) = subject(layout);
    let world = layout.world().unwrap().on_trial(&Trial::at(&pick(&calls(&subject, &layout)), mutation));
    locate_in(world, &subject, &layout, Key(5)).unwrap().expect("a difference")
}

fn label(site: &CallSite) -> &str {
    site.label.as_deref().unwrap_or_default()
}

/// Selects the `n`th call with this label.
fn nth(of: &'static str, n: usize) -> impl Fn(&[CallSite]) -> CallSite {
    move |sites| sites.iter().filter(|s| label(s) == of).nth(n).expect("so many calls").clone()
}

/// Kills: a consequence named before its cause, a rank without a difference named, a collective named that
/// did not touch the tensor.
#[test]
fn the_first_tensor_that_differs_is_named_with_what_touched_it() {
    // Forward, while reading the texts.
    let d = after("tp=2", Mutation::Skip, nth("blocks.1.attention.out", 0));
    assert_eq!(d.name, "texts: blocks.1.attention.out.out", "{d}");
    assert_eq!(d.after.as_deref(), Some("texts: blocks.1.attention.out.in"), "{d}");
    let is_it =
        |call: &CallRecord| call.words.contains("for blocks.1.attention.out at layers/src/linear/row.rs:");
    assert_eq!((d.ranks.as_slice(), d.collectives.len()), (&[0, 1][..], 1), "{d}");
    assert!(d.collectives.iter().all(is_it), "{d}");
    assert!(d.hint.as_deref().unwrap().starts_with("tensor parallelism: "), "{d}");
    // Backward, in the sum of dX for the second microbatch of the first step.
    let d = after("tp=2", Mutation::Tail, nth("blocks.0.mlp.gate_up", 1));
    assert_eq!(d.name, "step 0: gradient of blocks.0.mlp.gate_up.in", "{d}");
    assert_eq!(d.after.as_deref(), Some("step 0: gradient of blocks.0.mlp.gate_up.out"), "{d}");
    let tokens: usize = subject("tp=2").0.steps[0].0.microbatches()[1].iter().map(|s| s.ids.len()).sum();
    let [call] = &d.collectives[..] else { panic!("{d}") };
    assert!(d.differ == 1 && call.is_for("blocks.0.mlp.gate_up"), "{d}");
    assert_eq!(call.shape, [tokens, 6], "the second microbatch's: {d}");
    // Under sequence parallelism a bias's gradient is a partial sum: the hint is that of its strategy.
    let d = after("tp=2,sp", Mutation::Skip, nth("gradients of blocks.0", 0));
    assert_eq!((d.name.as_str(), d.differ), ("step 0: gradient of blocks.0.mlp.down.bias", 6), "{d}");
    assert!(
        d.hint
            .as_deref()
            .unwrap()
            .contains("sequence parallelism: a parameter applied to a rank's own tokens"),
        "{d}"
    );
}

/// Kills: gradients compared before they are summed, the sum over data ranks (one call for a block) not
/// named, the norm's bug blamed on gradients.
#[test]
fn what_happens_once_a_step_is_told_apart() {
    let d = after("dp=2", Mutation::Average, nth("gradients of blocks.1", 0));
    assert_eq!(d.name, "step 0: gradient of blocks.1.mlp.down.bias", "{d}");
    assert_eq!(d.collectives.len(), 1, "{d}");
    assert!(d.hint.as_deref().unwrap().starts_with("data parallelism: "), "{d}");
    let d = after("dp=2", Mutation::Skip, nth("loss", 0));
    assert_eq!(d.name, "step 0: loss", "{d}");
    assert!(d.collectives.iter().any(|call| call.is_for("loss")), "{d}");
    let d = after("tp=2", Mutation::Repeat, nth("norm2", 0));
    assert_eq!(d.name, "step 0: norm²", "{d}");
    assert_eq!(d.collectives.len(), 1, "{d}");
}

/// Locates wrong messages between stages, and tensors that only one stage's ranks have. Kills: a first
/// difference in the order of a rank that lacks some tensors, a rank named that lacks the tensor, a
/// consequence in one stage named before its cause in another, a sharded update reported without the call
/// that gathers it.
#[test]
fn what_only_a_stage_has_is_located() {
    let message = |of: &'static str| {
        move |sites: &[CallSite]| {
            let is_step = |s: &CallSite| s.words.contains("/stages/run.rs:"); // not texts in turns
            let mut sends = sites.iter().filter(|s| s.op == Op::Send && s.words.contains(of) && is_step(s));
            sends.next().expect("such a message").clone()
        }
    };
    let zero = "tp=2,dp=2:zero1,pp=2";
    let of_stage = |d: &Difference, name: &str, op: Op, ranks: &[usize]| {
        assert_eq!((d.name.as_str(), d.ranks.as_slice()), (name, ranks), "{d}");
        assert!(d.collectives.last().is_some_and(|call| call.op == op), "{d}");
    };
    let d = after("pp=2", Mutation::Skip, message(" as activation of 1 "));
    of_stage(&d, "step 0: blocks.1.norm1.in", Op::Receive, &[1]);
    assert_eq!(d.after.as_deref(), Some("step 0: blocks.0.mlp.added"), "{d}");
    assert!(d.hint.as_deref().unwrap().starts_with("1F1B: "), "{d}");
    let d = after("pp=2", Mutation::Tail, message(" as gradient of 1 "));
    of_stage(&d, "step 0: gradient of blocks.0.mlp.down.out", Op::Receive, &[0]);
    assert_eq!(d.after.as_deref(), Some("step 0: gradient of blocks.1.norm1.in"), "{d}");
    let d = after(zero, Mutation::Skip, nth("gradients of blocks.1", 0));
    of_stage(&d, "step 0: gradient of blocks.1.mlp.down.bias", Op::ReduceScatter, &[4, 5, 6, 7]);
    assert_eq!(d.after.as_deref(), Some("step 0: gradient of norm"), "{d}");
    assert!(d.hint.as_deref().unwrap().starts_with("ZeRO, stage 1: a rank's shard"), "{d}");
    // One call gathers the new values of a whole stage; call numbers start again on the second stage's ranks.
    let d = after(zero, Mutation::Skip, nth(VALUES, 0));
    of_stage(&d, "step 0: new embedding", Op::AllGather, &[0, 1, 2, 3]);
    let of_second_stage = |sites: &[CallSite]| {
        let of: Vec<_> = sites.iter().filter(|site| label(site) == VALUES).collect();
        let first = of.windows(2).find(|two| two[1].call < two[0].call).expect("calls of two stages");
        first[1].clone()
    };
    let d = after(zero, Mutation::Skip, of_second_stage);
    of_stage(&d, "step 0: new blocks.1.norm1", Op::AllGather, &[4, 5, 6, 7]);
    let d = after(zero, Mutation::Skip, nth("loss", 0));
    of_stage(&d, "step 0: loss", Op::AllReduce, &[0, 1, 2, 3, 4, 5, 6, 7]);
}

/// The program trains one step instead of two, and all tensors it reports are right. Kills: a proof that
/// ignores tensors missing on every rank.
#[test]
fn what_no_rank_has_is_missed() {
    for layout in ["none", "tp=2", "dp=2:zero1,pp=2"] {
        let (whole, layout) = subject(layout);
        let mut part = whole.clone();
        part.steps.truncate(1);
        let verdict = prove(&part, &layout, &[Key(7)], &OracleTraces::only(whole)).unwrap();
        let first = verdict.first_difference.as_ref().map(|d| (d.name.as_str(), d.differ));
        assert_eq!((verdict.equal, first), (false, Some(("step 1: loss (no rank has it)", 1))), "{layout}");
    }
}

/// Every model of the panel, with its loss scaled. Kills: gradients that are compared while the scale is in
/// them; a tensor that is missed though programs do not record it.
#[test]
fn what_is_equal_is_nowhere_different_in_any_family() {
    let layout = Layout::UNSPLIT;
    for member in PANEL.iter() {
        let Subject { optimizer: (rule, scaling), .. } = member.subject(&layout).unwrap();
        let loss = Some(LossScaling { log2: 4, good: 0, window: 3 });
        let optimizer = (rule, GradientScaling { loss, ..scaling });
        let subject = Subject { optimizer, ..member.subject(&layout).unwrap() };
        assert_eq!(locate(&subject, &layout, &[Key(7)]).unwrap(), None, "{}", member.name);
    }
}

/// Kills: a difference reported where there is none, an incomplete statement.
#[test]
fn what_is_equal_is_nowhere_different() {
    for layout in ["none", "tp=2", "tp=4,sp", "dp=2", "tp=2,sp,dp=2", "pp=2", "tp=2,sp,dp=2:zero1,pp=2"] {
        let (subject, layout) = subject(layout);
        assert_eq!(locate(&subject, &layout, &[Key(7)]).unwrap(), None, "{layout}");
    }
    let (subject, layout) = subject("tp=2");
    let verdict = prove(&subject, &layout, &[Key(7)], &OracleTraces::default()).unwrap();
    let says = verdict.statement();
    assert!(says.contains("What ran: 2 blocks, width 6, 4 query heads of 2 features, 2 KV heads"), "{says}");
    let says = after("tp=2,dp=2", Mutation::Skip, nth("blocks.0.mlp.down", 0)).to_string();
    for part in [
        "rank 0: ",
        "; it also differs on rank",
        "The last equal tensor: ",
        "Since then: all_reduce",
        "Look first",
    ] {
        assert!(says.contains(part), "{part} is not in\n{says}");
    }
}
