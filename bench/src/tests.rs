use super::figures::MeasuredWork;
use super::machine::cores;
use super::{model, *};
use crate::pass::{BenchPass, least};
use parallel::dtype::DtypeName;

fn entry(name: &str) -> &'static FigureEntry {
    FIGURES.iter().find(|entry| entry.name == name).unwrap_or_else(|| panic!("{name}"))
}

fn names(only: &[&str]) -> Vec<&'static str> {
    let only: Vec<_> = only.iter().map(ToString::to_string).collect();
    chosen::<Cores>(&only, None).unwrap().iter().map(|entry| entry.name).collect()
}

fn peers(lines: &str) -> Result<Peers> {
    Peers::parse(lines.as_bytes(), "peers.jsonl")
}

/// The lines that scripts rely on. Kills: a figure that is missing, renamed, moved, or counted in another
/// unit.
#[test]
fn figures_are_these_in_this_order() {
    let all: Vec<_> = FIGURES.iter().map(|entry| (entry.name, entry.unit.name())).collect();
    let wanted = [
        ("machine_peak_gflops", "GFLOP/s"),
        ("machine_read_gbps", "GB/s"),
        ("gemm_gflops_1024", "GFLOP/s"),
        ("gemm_gflops_1024_bf16", "GFLOP/s"),
        ("gemm_gflops_256x4096x4096", "GFLOP/s"),
        ("linear_gflops_m32", "GFLOP/s"),
        ("forward_ms_tp1", "ms"),
        ("train_step_ms_tp1", "ms"),
        ("forward_ms_tp2", "ms"),
        ("train_step_ms_tp2", "ms"),
        ("train_step_ms_dp2", "ms"),
        ("step_ms_two_ranks", "ms"),
        ("step_ms_zero3", "ms"),
        ("step_ms_recompute", "ms"),
        ("step_ms_offload", "ms"),
        ("ring_attention_ms_one_rank", "ms"),
        ("ring_attention_ms", "ms"),
        ("ring_attention_ms_contiguous", "ms"),
        ("ulysses_attention_ms", "ms"),
        ("ring_block_ms", "ms"),
        ("pipeline_gpipe_ms", "ms"),
        ("pipeline_1f1b_ms", "ms"),
        ("pipeline_zb_h1_ms", "ms"),
        ("pipeline_zb_h2_ms", "ms"),
        ("pipeline_whole_1f1b_ms", "ms"),
        ("decode_tokens_per_s_tp1", "token/s"),
        ("decode_tokens_per_s_tp1_bf16", "token/s"),
        ("experts_gflops_8x64", "GFLOP/s"),
        ("experts_gflops_as_one", "GFLOP/s"),
        ("experts_forward_ms_ep1", "ms"),
        ("experts_forward_ms_ep2", "ms"),
        ("experts_decode_tokens_per_s", "token/s"),
        ("all_to_all_us_256KiB", "us"),
        ("all_to_all_us_4MiB", "us"),
        ("all_reduce_us_4KiB", "us"),
        ("all_reduce_us_256KiB", "us"),
        ("all_reduce_us_4MiB", "us"),
        ("all_reduce_us_64MiB", "us"),
        ("all_reduce_us_4KiB_4ranks", "us"),
        ("all_reduce_us_256KiB_4ranks", "us"),
        ("all_reduce_us_4MiB_4ranks", "us"),
        ("all_reduce_us_64MiB_4ranks", "us"),
        ("proof_ms_100k", "ms"),
    ];
    assert_eq!(all, wanted);
    for (name, ranks, bytes) in
        [("all_reduce_us_256KiB", 2, 256 << 10), ("all_reduce_us_64MiB_4ranks", 4, 64 << 20)]
    {
        assert!(
            matches!(entry(name).work, MeasuredWork::AllReduce(r, b) if (r, b) == (ranks, bytes)),
            "{name}"
        );
    }
}

/// Every figure's own code, on sizes of nothing. Kills: a figure that cannot run, one without its limit, a
/// limit or a ratio upside down.
#[test]
fn every_figure_runs_beside_its_limit() {
    let (all, said) = (chosen::<Cores>(&[], None).unwrap(), std::cell::RefCell::new(Vec::new()));
    let figures = measure(&Cores, &all, 2, (&Network::default(), &Scale::TINY), &|what| {
        said.borrow_mut().push(what.to_string());
    })
    .unwrap();
    let reported = figures.iter().map(|figure| figure.name).collect::<Vec<_>>();
    assert_eq!(reported, names(&[]));
    assert_eq!(said.borrow().len(), 2 * all.len());
    assert!(said.borrow()[1].starts_with("machine_read_gbps, turn 1 of 2"), "they take turns");
    for (figure, entry) in figures.iter().zip(&all) {
        assert!(figure.value.is_finite() && figure.value > 0.0, "{figure:?}");
        assert_eq!(figure.pipeline.is_some(), figure.name.starts_with("pipeline_"), "{figure:?}");
        let of_machine = figure.name.starts_with("machine");
        assert_eq!((figure.limit.is_none(), figure.ratio.is_none()), (of_machine, of_machine), "{figure:?}");
        if let (Some(limit), Some(ratio)) = (figure.limit, figure.ratio) {
            let reached = if entry.unit.is_time() { limit / figure.value } else { figure.value / limit };
            assert!(limit > 0.0 && (reached / ratio - 1.0).abs() < 1e-12, "{figure:?}");
        }
    }
}

/// Hardware that is not the host, though it computes there: calls go on, and its two processors have one rank
/// each.
struct Elsewhere;

impl Hardware for Elsewhere {
    type F32 = tensor::Cpu<f32>;
    type Bf16 = tensor::Cpu<tensor::Bf16>;
    const HOST: bool = false;
    const CALLS: usize = 3000;
    fn name(&self) -> String {
        "elsewhere".into()
    }
    fn cores(&self, ranks: usize) -> usize {
        ranks.min(2)
    }
    fn seconds(&self, probe: Probe, divisor: usize) -> Result<f64> {
        assert_eq!(divisor, Scale::TINY.divisor);
        Ok(match probe {
            Probe::Peak { cores: 1 } | Probe::Read { .. } => 2.0,
            Probe::Peak { cores: 2 } => 3.0,
            Probe::PeakBf16 { .. } => 5.0,
            Probe::Rewrite { cores: 2, bytes } => 7.0 * bytes as f64,
            Probe::Copy { cores: 2, bytes } => 11.0 * bytes as f64,
            Probe::Meet { .. } => 0.5,
            other => panic!("{other:?} bounds nothing here"),
        })
    }
}

/// Kills: a figure of the host that is shown elsewhere, or passed over where it is named; the host's limits,
/// cores or name beside another's figures; limits by another number of processors than the ranks have.
#[test]
fn elsewhere_figures_have_the_limits_of_that_hardware() {
    let (all, scale) = (chosen::<Elsewhere>(&[], None).unwrap(), &Scale::TINY);
    let of_the_host = |name: &str| name.starts_with("pipeline") || name == "proof_ms_100k";
    let reported: Vec<_> = all.iter().map(|entry| entry.name).collect();
    assert_eq!(reported, names(&[]).into_iter().filter(|name| !of_the_host(name)).collect::<Vec<_>>());
    for only in ["proof_ms_100k", "pipe", "p"] {
        let why = chosen::<Elsewhere>(&["gemm".into(), only.into()], None).unwrap_err().to_string();
        let name = if only.starts_with("pr") { "proof_ms_100k" } else { "pipeline_gpipe_ms" };
        let wanted =
            format!("--only: {name} is measured on the host only; leave out --device or that figure");
        assert_eq!(why, wanted);
    }
    let figures = measure(&Elsewhere, &all, 1, (&Network::default(), scale), &|_| ()).unwrap();
    let limit = |name: &str| {
        let figure = figures.iter().find(|figure| figure.name == name).unwrap();
        assert_eq!(figure.processor, "elsewhere");
        figure.limit.unwrap_or(figure.value)
    };
    assert_eq!((limit("machine_peak_gflops"), limit("machine_read_gbps")), (0.5e-9, 0.5e-9));
    assert_eq!((limit("gemm_gflops_1024"), limit("gemm_gflops_1024_bf16")), (0.5e-9, 0.2e-9));
    let flops = |layout: &str| model::flops(BenchPass::Step, &layout.parse().unwrap(), scale).unwrap();
    assert_eq!(limit("train_step_ms_tp1"), 2.0 * flops("none") * 1e3);
    assert_eq!(limit("train_step_ms_tp2"), 3.0 * flops("tp=2") / 2.0 * 1e3);
    let weights = model::weights_read::<tensor::Cpu<tensor::Bf16>>(scale.shape).unwrap();
    assert_eq!(limit("decode_tokens_per_s_tp1_bf16"), 1.0 / (2.0 * weights));
    assert_eq!(limit("all_reduce_us_4MiB_4ranks"), 7.0 * 2.0 * 4096.0 * 1e6);
    assert_eq!(limit("all_to_all_us_4MiB"), 11.0 * 4096.0 * 1e6);
}

/// Kills: the time of all calls between two waits for that of one, and one call for all of them.
#[test]
fn a_call_takes_its_part_of_all_that_are_waited_for_together() {
    let (calls, begin) = (std::cell::Cell::new(0), std::time::Instant::now());
    let call = || {
        calls.set(calls.get() + 1);
        std::hint::black_box((0..2_000_000).fold(1u64, |x, i| tensor::mix(x ^ i)));
    };
    let seconds = products::fastest::<Elsewhere>(&Scale::TINY, &tensor::Host::default(), call);
    assert_eq!(calls.get(), 1 + 3, "one to warm up");
    assert!(2.0 * seconds < begin.elapsed().as_secs_f64(), "a third of what the three took");
}

/// Shape L's work, counted by hand: 37.75 million weights multiply 1024 tokens, attention half of all pairs.
/// Kills: a limit of other work, a rank that is counted twice or not at all, a forward pass that keeps or
/// trains.
#[test]
fn the_work_of_shape_l_is_what_its_sizes_say() {
    let (tokens, blocks, width, hidden, vocabulary) = (1024.0, 8.0, 512.0, 2048.0, 8192.0);
    let weights = blocks * (4.0 * width * width + 3.0 * width * hidden) + vocabulary * width;
    let pairs = blocks * 4.0 * (256.0 * 257.0 / 2.0) * width;
    let (forward, step) = (2.0 * weights * tokens + 4.0 * pairs, 6.0 * weights * tokens + 14.0 * pairs);
    let products: f64 = 2.0 * weights * tokens;
    assert!((products / 1e9 - 77.3).abs() < 0.05, "{products}");
    for (layout, pass, wanted) in [
        ("none", BenchPass::Forward, forward),
        ("tp=2", BenchPass::Forward, forward),
        ("none", BenchPass::Step, step),
        ("tp=2", BenchPass::Step, step),
        ("dp=2", BenchPass::Step, step),
    ] {
        let seen = model::flops(pass, &layout.parse().unwrap(), &Scale::FULL).unwrap();
        assert_eq!(seen, wanted, "{pass:?} under {layout}");
    }
    let pairs = blocks * 8.0 * (128.0 * 129.0 / 2.0) * width;
    let [whole, bare] = [weights, weights - vocabulary * width].map(|w| 6.0 * w * tokens + 14.0 * pairs);
    for (name, flops) in
        [("pipeline_gpipe_ms", bare), ("pipeline_zb_h2_ms", bare), ("pipeline_whole_1f1b_ms", whole)]
    {
        let cores = cores(2);
        let bound = vec![(Probe::Peak { cores }, flops / cores as f64)];
        assert_eq!(entry(name).work.bound(&Cores, &Scale::FULL).unwrap(), bound, "{name}");
    }
    let gains = (2.0 * blocks + 1.0) * width;
    for (number, bytes) in [(DtypeName::F32, 4.0), (DtypeName::Bf16, 2.0)] {
        let read = vec![(Probe::Read { cores: 1 }, bytes * (weights + gains + width))];
        assert_eq!(MeasuredWork::Decode(number).bound(&Cores, &Scale::FULL).unwrap(), read);
    }
    let parameters = parallel::price::parameters(Scale::FULL.proven).unwrap();
    assert!((100_000..110_000).contains(&parameters), "{parameters} parameters in proof_ms_100k");
}

/// Kills: the first try counted, the first rank's time for the last's, the best of each rank for the best of
/// all.
#[test]
fn a_try_ends_with_its_last_rank_and_the_first_only_warms_up() {
    assert_eq!(least(&[vec![1.0, 5.0, 9.0, 7.0], vec![1.0, 8.0, 3.0, 6.0]]), 7.0);
    assert_eq!(least(&[vec![1.0, 4.0]]), 4.0);
}

/// Kills: the sum or the least of several bounds for the longest.
#[test]
fn the_longest_of_several_bounds_holds() {
    let mut machine = ProbeTimes::default();
    let [one, two] = [Probe::Peak { cores: 1 }, Probe::Meet { threads: 2 }];
    machine.probe(&Cores, &vec![(one, 1.0), (two, 1.0)], &Scale::TINY).unwrap();
    let [a, b] = [one, two].map(|probe| machine.least(&vec![(probe, 1.0)]));
    assert_eq!(machine.least(&vec![(one, 3.0 * b / a), (two, 1.0)]), a * (3.0 * b / a));
    assert_eq!(machine.least(&vec![(one, 0.1 * b / a), (two, 1.0)]), b);
}

/// Kills: a prefix that takes a neighbour along where a name is meant, an order of asking, a figure twice,
/// all where nothing fits.
#[test]
fn figures_are_chosen_by_name_or_beginning() {
    assert_eq!(names(&[]).len(), FIGURES.len());
    let gemm = ["gemm_gflops_1024", "gemm_gflops_1024_bf16", "gemm_gflops_256x4096x4096"];
    assert_eq!(names(&["gemm"]), gemm);
    assert_eq!(names(&["gemm_gflops_1024"]), ["gemm_gflops_1024"]);
    assert_eq!(names(&["all_reduce_us_4MiB"]), ["all_reduce_us_4MiB"]);
    assert_eq!(names(&["all_reduce_us_4M"]), ["all_reduce_us_4MiB", "all_reduce_us_4MiB_4ranks"]);
    assert_eq!(names(&["proof", "linear", "linear_g"]), ["linear_gflops_m32", "proof_ms_100k"]);
    for unknown in ["gem_", "", "1024", "GEMM"] {
        let why = chosen::<Cores>(&["gemm".into(), unknown.into()], None).unwrap_err().to_string();
        let said = format!("no figure is called {unknown:?}");
        assert!(why.contains(&said) && why.contains("machine_read_gbps, gemm_gflops_1024"), "{why}");
    }
}

/// Kills: the largest time or the smallest rate taken for the best, a ratio upside down for one of them, a
/// peer of another figure.
#[test]
fn the_best_peer_is_the_fastest_whatever_is_counted() {
    let file = r#"{"peer": "a", "name": "forward_ms_tp1", "value": 400}
        {"peer": "b", "name": "forward_ms_tp1", "value": 300.5, "unit": "ms"}

        {"peer": "c", "name": "forward_ms_tp1", "value": 500}
        {"peer": "a", "name": "gemm_gflops_1024", "value": 100}
        {"peer": "b", "name": "gemm_gflops_1024", "value": 250, "unit": "GFLOP/s"}
        {"peer": "c", "name": "gemm_gflops_1024", "value": 200}"#;
    let peers = peers(file).unwrap();
    let best = |name| peers.best(entry(name)).map(|of| (&*of.peer, of.value));
    let b = |value| Some(("b", value));
    assert_eq!((best("forward_ms_tp1"), best("gemm_gflops_1024")), (b(300.5), b(250.0)));
    assert_eq!(best("forward_ms_tp2"), None);
    assert_eq!((FigureUnit::Milliseconds.of(300.0, 100.0), FigureUnit::Gflops.of(100.0, 300.0)), (3.0, 3.0));
}

/// Kills: a line that is passed over, a wrong line's number, a misspelt key taken for none.
#[test]
fn lines_that_are_no_figure_are_told_with_their_number() {
    let first = r#"{"peer": "a", "name": "proof_ms_100k", "value": 1}"#;
    for (second, says) in [
        (r#"{"peer": "a", "name": "proof_ms", "value": 1}"#, r#"line 3: no figure is called "proof_ms""#),
        (
            r#"{"peer": "a", "name": "proof_ms_100k", "value": 1, "unit": "us"}"#,
            r#"is "us"; it must be "ms""#,
        ),
        (r#"{"peer": "a", "name": "proof_ms_100k", "value": 0}"#, "line 3: the value of proof_ms_100k is 0;"),
        (r#"{"peer": "a", "name": "proof_ms_100k", "value": -1.5}"#, "is -1.5; it must be above 0"),
        (r#"{"peer": "a", "name": "proof_ms_100k", "value": 1e999}"#, "line 3: number out of range"),
        (r#"{"peer": "a", "name": "proof_ms_100k", "value": "1"}"#, "line 3: invalid type"),
        (r#"{"peer": "a", "name": "proof_ms_100k"}"#, "line 3: missing field `value`"),
        (r#"{"peer": "a", "name": "proof_ms_100k", "value": 1, "limit": 2}"#, "unknown field `limit`"),
        ("proof_ms_100k 1", "line 3: expected value at column 1; wanted {\"peer\""),
        ("\u{fffd}", "line 3: expected value"),
    ] {
        let why = peers(&format!("{first}\n\n{second}\n{first}")).unwrap_err().to_string();
        assert!(why.starts_with("peers.jsonl, line 3: ") && why.contains(says), "{why}, wanted {says}");
        assert!(!why.contains('\n') && !why.contains(" at line 1"), "{why}");
    }
    assert!(Peers::parse(&[0xff, b'\n'], "x").is_err());
}
