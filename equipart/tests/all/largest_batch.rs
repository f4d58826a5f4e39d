//! `--batch-size auto`, `--microbatches auto` and `--largest-batch`: the largest batch that a limit holds.
use crate::child::{SHORT, equipart, refused};
use crate::memory::{path, sized};
use serde_json::Value;

/// The lines of JSON, and the notes.
fn said(args: &[&str]) -> (Vec<Value>, String) {
    let json: &[&str] = if args.contains(&"--json") { &[] } else { &["--json"] };
    let output = equipart(&[args, json].concat());
    let [lines, notes] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(output.status.success(), "{args:?}: {notes}");
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), notes)
}
/// The smallest limit with which these arguments work.
fn works(args: &[&str]) -> String {
    let error = String::from_utf8(equipart(&[args, &["--memory-limit", "1"]].concat()).stderr).unwrap();
    let works = error.trim_end().rsplit("; ").next().unwrap().split(' ').next().unwrap().to_string();
    assert!(works.parse::<usize>().is_ok(), "{args:?}: {error}");
    works
}
/// The most bytes that a rank held in any step.
fn held(lines: &[Value]) -> u64 {
    let peaks = lines.iter().filter_map(|line| line["peak_bytes"].as_array()).flatten();
    peaks.map(|bytes| bytes.as_u64().unwrap()).max().expect("steps")
}

/// With checkpoints and an evaluation, for several layouts. Kills: a batch that leaves room for another
/// sequence, one that the run cannot hold, a price of other work than the run's; microbatches that are not
/// the given ones; a number that a checkpoint does not keep, another one after a resumption.
#[test]
fn a_run_takes_the_largest_batch_and_keeps_it() {
    for layout in ["none", "tp=2,recompute", "dp=2:zero3", "pp=2"] {
        let (dir, config) = sized("8", "256", "48");
        let (text, out) = (std::fs::read_to_string(&config).unwrap(), path(&dir, "out"));
        std::fs::write(&config, text.replace("_layers\":1", "_layers\":2")).unwrap(); // one for each stage
        let same = ["--config", &config, "--layout", layout, "--seq", "16", "--out", &out, "--data", SHORT];
        let train = [&["train", "--steps", "2", "--microbatches", "3"][..], &same].concat();
        let limit = works(&[&train[..], &["--batch-size", "14"]].concat());
        let of = |n| [&train[..], &["--batch-size", n, "--memory-limit", &limit]].concat();
        let (lines, notes) = said(&of("auto"));
        let found = &lines[0]["largest_batch"];
        let [n, parts, peak] = ["batch_size", "microbatches", "peak_bytes"].map(|key| found[key].as_u64());
        assert!(
            peak.unwrap() <= limit.parse().unwrap() && held(&lines) <= peak.unwrap(),
            "{layout}: {found}"
        );
        assert_eq!((parts, lines.len()), (Some(3), 3), "{layout}: {lines:?}");
        let [n, more] = [0, 1].map(|more| (n.unwrap() + more).to_string());
        let wanted = format!("note: --batch-size auto takes {n} sequences in 3 microbatches: rank ");
        assert!(notes.contains(&wanted), "{notes}");
        assert!(n.parse::<usize>().unwrap() >= 14, "{layout}: {n}");
        refused(&of(&more), "are the smallest limit that works");
        let kept = |steps: &str| {
            let file = std::fs::read(format!("{out}/optimizer-{steps}.safetensors")).unwrap();
            String::from_utf8_lossy(&file[..2000.min(file.len())]).into_owned()
        };
        let noted = format!("\\\"batch_size\\\":{n},\\\"microbatches\\\":3");
        assert!(kept("2").contains(&noted), "{}", kept("2"));
        let resume = ["train", "--resume", &out, "--layout", layout, "--steps", "3", "--batch-size", "auto"];
        let (lines, notes) = said(&resume);
        assert!(notes.contains(&format!("keeps its batch size, {n}, and microbatches, 3")), "{notes}");
        assert!(lines.len() == 1 && kept("3").contains(&noted), "{lines:?}, {}", kept("3"));
    }
}

/// Kills: more microbatches than needed, fewer than fit, given ids that are not cut.
#[test]
fn a_run_takes_the_fewest_microbatches() {
    let (dir, config) = sized("8", "256", "48");
    let ids = path(&dir, "ids");
    std::fs::write(&ids, format!("[{}]", ["[1,2,3,4,5,6,7,8]"; 90].join(","))).unwrap();
    let train = ["train", "--config", &config, "--steps", "2"];
    let (text, given) = (["--seq", "16", "--batch-size", "90"], ["--batch", &ids]);
    for data in [&text[..], &given] {
        let of = |m| [&train[..], data, &["--microbatches", m]].concat();
        let limit = works(&of("3"));
        let within = |m| [&of(m)[..], &["--memory-limit", &limit]].concat();
        let (lines, notes) = said(&within("auto"));
        assert_eq!((&lines[0]["largest_batch"]["microbatches"], lines.len()), (&Value::from(3), 3));
        assert!(
            notes.contains("note: --microbatches auto takes 90 sequences in 3 microbatches: "),
            "{notes}"
        );
        assert!(held(&lines) <= limit.parse().unwrap());
        refused(&within("2"), "are the smallest limit that works");
    }
}

/// The price of the batch that it tells is within the limit, and that of the next is not. Kills: a flag that
/// prices another program; a largest rank or bytes that are not the price's; a report that is no price.
#[test]
fn a_price_tells_the_largest_batch() {
    for layout in ["none", "tp=2", "dp=2:zero1", "pp=2"] {
        let price = ["price", "--seq", "16", "--layout", layout, "--microbatches", "2"];
        let limit = works(&[&price[..], &["--batch-size", "9"]].concat());
        let limited = [&price[..], &["--memory-limit", &limit]].concat();
        let (found, _) = said(&[&limited[..], &["--largest-batch"]].concat());
        assert_eq!((found.len(), found[0]["layout"].as_str()), (1, Some(layout)));
        let n = found[0]["batch_size"].as_u64().unwrap();
        let [fits, more] = [n, n + 1].map(|n| n.to_string());
        let of = |n| [&limited[..], &["--batch-size", n]].concat();
        let (prices, _) = said(&of(&fits));
        let rank = &prices[found[0]["rank"].as_u64().unwrap() as usize]["peak_bytes"];
        assert_eq!(rank["total"], found[0]["peak_bytes"], "{layout}");
        assert_eq!(rank[found[0]["category"].as_str().unwrap()], found[0]["category_bytes"], "{layout}");
        assert!(found[0]["frees"].as_object().is_some_and(|frees| !frees.is_empty()), "{found:?}");
        refused(&of(&more), "are the smallest limit that works");
    }
    let people = equipart(&["price", "--largest-batch", "--memory-limit", "100MB"]);
    let people = String::from_utf8(people.stdout).unwrap();
    assert!(people.starts_with("The largest batch in f32 under none has "), "{people}");
    assert!(people.contains(" holds the most, ") && people.contains("\n  recompute would free "), "{people}");
}

/// Kills: a rank that waits for the number of others for ever, or takes another number than they.
#[test]
fn processes_take_the_batch_that_threads_take() {
    let (_dir, config) = sized("8", "256", "48");
    let train =
        ["train", "--config", &config, "--seq", "16", "--steps", "2", "--layout", "dp=2:zero1", "--json"];
    let limit = works(&[&train[..], &["--batch-size", "9"]].concat());
    let auto = [&train[..], &["--batch-size", "auto", "--memory-limit", &limit]].concat();
    let (wanted, _) = said(&auto[..]);
    assert_eq!(wanted[0]["largest_batch"]["batch_size"], 10, "five on each rank");
    let outputs = crate::processes::all(2, &auto, &|_| ());
    assert!(outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let lines = String::from_utf8(outputs[0].stdout.clone()).unwrap();
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((&lines[0], lines.len()), (&wanted[0], 3));
    assert_eq!(lines[2]["loss"], wanted[2]["loss"]);
}

/// Without a limit, all pictures have room at once: one step is the epoch. Kills: more pictures than there
/// are, an end of the run that is that of the smallest batch.
#[test]
fn a_batch_of_pictures_is_at_most_all_of_them() {
    let (lines, notes) =
        said(&["train", "--model", "mlp", "--hidden", "none", "--epochs", "2", "--batch-size", "auto"]);
    assert_eq!(lines[0]["largest_batch"]["batch_size"], 10_000);
    assert!(lines.len() == 3 && notes.contains("takes 10000 sequences in 1 microbatch: "), "{lines:?}");
}

/// Kills: a flag that is taken and ignored; a number that is none.
#[test]
fn auto_is_refused_where_it_means_nothing() {
    let auto = ["--batch-size", "auto"];
    refused(&[&["train", "--microbatches", "auto"][..], &auto].concat(), "are both auto; give one a number");
    refused(&[&["train", "--batch", "ids"][..], &auto].concat(), "cannot be used with");
    refused(&["price", "--largest-batch", "--batch-size", "8"], "cannot be used with");
    refused(&["train", "--batch-size", "many"], "\"many\" is not a number of 1 or more; write one, or auto");
    refused(&["train", "--batch-size", "auto", "--microbatches", "0"], "--microbatches is 0; it must be");
    let dir = tempfile::tempdir().unwrap();
    let table = path(&dir, "table.csv");
    std::fs::write(&table, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n").unwrap();
    let scheduled = ["train", "--layout", "pp=2", "--schedule", &table, "--microbatches", "auto"];
    refused(&scheduled, "the table of --schedule has the number; leave it out");
}
