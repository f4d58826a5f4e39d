//! The rest of a pipeline's trace: messages with sender and receiver, and the planned times of cells.
use super::*;

/// Kills: an arrow from another message, to one before it was sent, or that nobody receives; a plan of
/// another schedule or order, one that begins before its step, or that takes another time than the cells of
/// the run.
#[test]
fn the_trace_of_a_pipeline_has_arrows_and_its_plan() {
    let (dir, config, text) = small();
    std::fs::write(&config, CONFIG.replace("layers\":1", "layers\":2")).unwrap();
    let file = dir.path().join("trace.json");
    let train = ["train", "--config", &config, "--data", &text, "--seq", "32", "--batch-size", "8"];
    let flags = ["--layout", "pp=2:zb-h1,tp=2", "--steps", "2", "--microbatches", "4"];
    succeeds(&[&train[..], &flags, &["--trace", file.to_str().unwrap()]].concat());
    let (rows, all) = (rows(&file), entries(&file));
    let row = |rank: &str| rows.iter().find(|((_, row), _)| row == rank).expect("its row").1;
    // of an arrow: in which stretch, and when
    let mut ends = BTreeMap::<u64, Vec<(&str, String, u64)>>::new();
    let ns = |event: &Value| (event["ts"].as_f64().unwrap() * 1e3) as u64;
    for event in all["traceEvents"].as_array().unwrap().iter().filter(|e| e["ph"] == "s" || e["ph"] == "f") {
        let sent = event["ph"] == "s";
        let at = |s: &&Stretch| s.args["call"].is_string() && ns(event) == if sent { s.from } else { s.to };
        let around = row(&format!("rank {}", row_of(event) / 2)).iter().rfind(at).expect("a call");
        let call = around.args["call"].as_str().unwrap();
        let tag = call.split_once(" as ").unwrap().1.split(" at ").next().unwrap();
        assert!(event.get("bp").is_none(), "to what begins then, not to what began before it was sent");
        let end = (&*around.name, format!("{} {tag}", around.cat), ns(event));
        ends.entry(event["id"].as_u64().unwrap()).or_default().push(end);
    }
    for ends in ends.values() {
        let [(send, sent, from), (receive, received, to)] = &ends[..] else { panic!("{ends:?}") };
        assert_eq!((*send, *receive), ("send", "receive"));
        assert_eq!(sent.strip_prefix("message "), received.strip_prefix("collective "));
        assert!(from <= to, "{ends:?}");
    }
    let count =
        |name: &str, cat: &str| rows.values().flatten().filter(|s| s.name == name && s.cat == cat).count();
    assert!(ends.len() >= 2 * 2 * 4 * 2, "two ways of four microbatches in two steps on two tensor ranks");
    assert_eq!([count("send", "message"), count("receive", "collective")], [ends.len(); 2]);
    let cells = |row: &[Stretch]| -> Vec<String> {
        let cell =
            |s: &&Stretch| ["forward", "input half", "weight half"].iter().any(|act| s.name.starts_with(act));
        row.iter().filter(cell).map(|s| s.name.clone()).collect()
    };
    let first = |cell: &str| {
        let from = |rank| row(&format!("rank {rank}")).iter().find(|s| s.name == cell).unwrap().from;
        (0..4).map(from).min().unwrap()
    };
    for rank in 0..4 {
        let (ran, plan) = (row(&format!("rank {rank}")), row(&format!("plan of rank {rank}")));
        tells_all_of_its_time(ran);
        assert_eq!((cells(ran), plan.len()), (cells(plan), 2 * 4 * 3));
        assert!(plan.iter().all(|s| s.cat == "plan" && s.inside.is_none()), "one after the other");
        assert!(plan[0].from >= first("step 1") && (rank > 1 || plan[0].from == first("forward 0")));
    }
    let took = |plans: &str, act: &str| {
        let of = |s: &&Stretch| s.name.starts_with(act);
        let all = (0..4).flat_map(|rank| row(&format!("{plans}rank {rank}")).iter().filter(of));
        all.map(|s| s.to - s.from).sum::<u64>()
    };
    for act in ["forward", "input half", "weight half"] {
        let (plan, ran) = (took("plan of ", act), took("", act));
        assert!(
            plan.abs_diff(ran) < 1_000,
            "{act}: {plan} and {ran} ns: cells of a plan take the mean, to a nanosecond"
        );
    }
}
