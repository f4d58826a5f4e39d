//! `diff`, through the binary: honest layouts are within rounding, planted bugs are found and placed, bad
//! input is told.
use crate::child::equipart;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use tensor::dtype::Dtype;
use tensor::safetensors::{File, Writer};

const CONFIG: &str = r#"{ "model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "hidden_size": 24,
    "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "vocab_size": 256, "tie_word_embeddings": false, "bos_token_id": null, "eos_token_id": null,
    "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "use_sliding_window": false }"#;

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A text so short that what is held out of it costs nothing.
fn data(dir: &Path) -> PathBuf {
    let file = dir.join("text.txt");
    let letters: Vec<u8> = (0..1000u32).map(|i| b"an order of sums "[(i * i / 7 % 17) as usize]).collect();
    std::fs::write(&file, letters).unwrap();
    file
}

/// One run's dump of the third step, made once for all tests: under a layout in f32, or the truth.
fn dump(of: &str) -> PathBuf {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    static RUNS: OnceLock<BTreeMap<&str, PathBuf>> = OnceLock::new();
    let dir = DIR.get_or_init(|| tempfile::tempdir().unwrap());
    let runs = RUNS.get_or_init(|| {
        let config = dir.path().join("config.json");
        std::fs::write(&config, CONFIG).unwrap();
        let data = data(dir.path());
        let run = |of: &'static str| {
            let out = dir.path().join(of);
            let layout = of.strip_prefix("bf16 ").unwrap_or(of);
            let which = match of {
                "truth" => &["--dtype", "f64"][..],
                _ if layout == of => &["--layout", layout],
                _ => &["--dtype", "bf16", "--layout", layout],
            };
            let sizes: Vec<_> =
                "--steps 3 --seq 16 --batch-size 4 --microbatches 2 --dropout 0.1".split(' ').collect();
            let to = ["train", "--json", "--config", text(&config), "--dump", text(&out)];
            let said = equipart(&[&to[..], which, &sizes, &["--data", text(&data)]].concat());
            assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
            (of, out)
        };
        let narrow = ["bf16 none", "bf16 tp=4,sp", "bf16 dp=2", "bf16 tp=2,sp,dp=2"];
        let wide = ["truth", "none", "tp=2", "tp=4,sp", "dp=2", "tp=2,sp,dp=2"];
        wide.into_iter().chain(narrow).map(run).collect()
    });
    runs[of].clone()
}

/// Standard output of `diff`, and its exit code.
fn diff(a: &Path, b: &Path, more: &[&str]) -> (String, i32) {
    let out = equipart(&[&["diff", text(a), text(b)], more].concat());
    let said = if out.stdout.is_empty() { out.stderr } else { out.stdout };
    (String::from_utf8(said).unwrap(), out.status.code().unwrap())
}

fn judged(a: &Path, b: &Path) -> (String, i32) {
    let truth = dump("truth");
    diff(a, b, &["--truth", text(&truth)])
}

/// A tensor of a file, to be changed.
struct Changed {
    name: String,
    shape: Vec<usize>,
    values: Vec<f32>,
}

/// A file, a tensor, what is done to it; what is then said of the place, and which tensor comes before.
type Plant<'a> = (&'a str, &'a str, &'a dyn Fn(&mut Changed), &'a str, &'a str);

/// A copy of the dump of tp=2 in which one file's tensors were changed.
fn changed(file: &str, change: impl Fn(&mut Vec<Changed>)) -> tempfile::TempDir {
    let (from, to) = (dump("tp=2"), tempfile::tempdir().unwrap());
    for name in ["weights", "activations", "gradients"].map(|f| format!("{f}.safetensors")) {
        std::fs::copy(from.join(&name), to.path().join(&name)).unwrap();
    }
    let path = to.path().join(format!("{file}.safetensors"));
    let old = File::open(&path).unwrap();
    let read = |name: &str| {
        let shape = old.info(name).unwrap().shape.clone();
        Changed { name: name.to_owned(), values: old.values(name, &shape).unwrap(), shape }
    };
    let mut tensors: Vec<_> = old.in_order().into_iter().map(read).collect();
    change(&mut tensors);
    let header: Vec<_> = tensors.iter().map(|t| (t.name.clone(), Dtype::F32, t.shape.clone())).collect();
    let mut writer = Writer::create(&path, old.metadata(), &header).unwrap();
    for t in &tensors {
        writer.tensor(&t.name, &t.values).unwrap();
    }
    writer.finish().unwrap();
    to
}

fn find<'a>(tensors: &'a mut [Changed], name: &str) -> &'a mut Changed {
    tensors.iter_mut().find(|t| t.name == name).unwrap()
}

/// Kills: a bound that honest layouts exceed, a truth that begins with other weights, one that is not in f64.
#[test]
fn honest_layouts_are_within_rounding() {
    let truth = File::open(&dump("truth").join("weights.safetensors")).unwrap();
    assert!(truth.names().all(|name| truth.info(name).unwrap().dtype == Dtype::F64));
    assert_eq!(truth.metadata()["number"], "f64");
    let none = dump("none");
    for layout in ["tp=2", "tp=4,sp", "dp=2", "tp=2,sp,dp=2"] {
        for (a, b) in [(&none, &dump(layout)), (&dump(layout), &none)] {
            let (said, code) = judged(a, b);
            assert_eq!(code, 0, "{layout}: {said}");
            assert!(said.ends_with("\nNo difference is more than rounding.\n"), "{said}");
        }
    }
    // In 16 bits as in 32, and the one beside the other; gradients are files of f32 there, too.
    let narrow = dump("bf16 none");
    for other in ["bf16 tp=4,sp", "bf16 dp=2", "bf16 tp=2,sp,dp=2", "none"].map(dump) {
        let (said, code) = judged(&narrow, &other);
        assert_eq!(code, 0, "{other:?}: {said}");
    }
    let (said, code) = judged(&none, &none);
    let row = |file: &str| said.lines().find(|l| l.trim().starts_with(file)).unwrap().to_owned();
    let numbers = |row: String| row.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let weights = numbers(row("weights"));
    assert_eq!(
        (code, weights[0] == weights[1], &weights[2..]),
        (0, true, &["0", "0", "0"].map(String::from)[..])
    );
}

/// Kills: fresh weights in f64 that are not rounded as those of the run are: the truth of another model.
#[test]
fn the_truth_begins_with_the_weights_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let data = data(dir.path());
    let weights = ["f32", "f64"].map(|number| {
        let out = dir.path().join(number);
        let short = ["--steps", "1", "--seq", "8", "--batch-size", "1"];
        let to = ["train", "--json", "--dtype", number, "--data", text(&data), "--dump", text(&out)];
        assert!(equipart(&[&to[..], &short].concat()).status.success());
        out.join("weights.safetensors")
    });
    let (said, code) = diff(&weights[0], &weights[1], &[]);
    assert!(code == 0 && said.ends_with("\nAll tensors are equal.\n"), "{said}");
}

/// Each of these is a few numbers of one tensor. Kills: an error that drowns in the mean, an element that is
/// placed wrongly, a bug that is told of the wrong run, an order that is not the program's, a row without its
/// token.
#[test]
fn planted_bugs_are_found_and_placed() {
    let last = |t: &mut Changed| *t.values.last_mut().unwrap() *= 1.01;
    let row = |t: &mut Changed| t.values[3 * 24..4 * 24].iter_mut().for_each(|x| *x *= 1.001);
    let coarse = |t: &mut Changed| {
        t.values.iter_mut().for_each(|x| *x = f32::from_bits(x.to_bits() & 0xFFFF_F000));
    };
    let nan = |t: &mut Changed| t.values[5] = f32::NAN;
    let plants: [Plant; 5] = [
        (
            "activations",
            "blocks.1.mlp.down.out",
            &last,
            "[63, 23] (sequence 3, position 15)",
            "blocks.1.mlp.down.in",
        ),
        ("activations", "blocks.0.norm2.out", &row, "(sequence 0, position 3)", "blocks.0.norm2.in"),
        ("gradients", "model.layers.1.mlp.down_proj.weight", &coarse, "", "model.norm.weight"),
        (
            "gradients",
            "model.layers.0.self_attn.k_proj.bias",
            &nan,
            "[5]: ",
            "model.layers.0.self_attn.v_proj.bias",
        ),
        ("weights", "model.norm.weight", &last, "[23]: ", "model.layers.1.mlp.down_proj.weight"),
    ];
    for (file, name, plant, place, before) in plants {
        let bad = changed(file, |tensors| plant(find(tensors, name)));
        let (none, bad) = (dump("none"), bad.path().to_path_buf());
        for (a, b, of) in [(&none, &bad, "B"), (&bad, &none, "A")] {
            let (said, code) = judged(a, b);
            assert_eq!(code, 1, "{name}: {said}");
            let other = if of == "A" { "B" } else { "A" };
            let sentence =
                format!("\n{of} departs from the truth by more than rounding, {other} does not.\n");
            assert!(said.contains(&format!("The first bug, in program order, is in {name} [")), "{said}");
            assert!(said.contains(&sentence) && said.contains(place), "{said}");
            assert!(said.contains(&format!("The tensor before it, {before} [")), "{said}");
        }
    }
}

/// Kills: a bug of both runs that counts as rounding, since it is as large in both.
#[test]
fn a_truth_of_another_run_is_told() {
    let both = changed("activations", |all| {
        find(all, "head.out").values.iter_mut().for_each(|x| *x *= 1.1);
    });
    let (said, code) = judged(both.path(), both.path());
    assert_eq!((code, said.contains("No difference")), (0, true), "what is equal is equal: {said}");
    let other = changed("activations", |all| {
        find(all, "head.out").values.iter_mut().for_each(|x| *x *= 1.1f32 * (1.0 + f32::EPSILON));
    });
    let (said, code) = judged(both.path(), other.path());
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("is in head.out [64, 256]") && said.contains("\nBoth depart from the truth"),
        "{said}"
    );
    let broken = changed("activations", |all| find(all, "head.out").values[0] = f32::INFINITY);
    let (said, code) = judged(broken.path(), broken.path());
    assert!(code == 1 && said.contains("\nBoth depart from the truth"), "the same infinity in both: {said}");
}

/// Kills: a tensor that is forgotten, a shape that is not looked at, a comparison that ends at the first.
#[test]
fn what_cannot_be_compared_is_listed_and_the_rest_is_compared() {
    let bad = changed("gradients", |all| {
        all.retain(|t| t.name != "model.norm.weight");
        find(all, "lm_head.weight").shape = vec![24, 256];
        all.push(Changed { name: "more".into(), shape: vec![1], values: vec![1.0] });
    });
    let (said, code) = judged(&dump("none"), bad.path());
    let wanted = "\nNo difference is more than rounding.\n\nNot compared:\n  \
        lm_head.weight of gradients: its shape is [256, 24] in A and [24, 256] in B\n  \
        model.norm.weight of gradients: B lacks it\n  more of gradients: A lacks it\n";
    assert!(code == 1 && said.ends_with(wanted), "{said}");
    let (said, code) = diff(&dump("none"), bad.path(), &["--truth", text(bad.path())]);
    assert!(code == 2 && said.contains("is F32 in the truth and F32 in a run"), "{said}");
    let few = tempfile::tempdir().unwrap();
    std::fs::copy(dump("truth").join("weights.safetensors"), few.path().join("weights.safetensors")).unwrap();
    let (said, code) = diff(&dump("none"), &dump("tp=2"), &["--truth", text(few.path())]);
    assert!(code == 1 && said.contains("\n  head.out of activations: the truth lacks it\n"), "{said}");
    assert!(said.contains("\nNo difference that could be judged is more than rounding.\n"), "{said}");
}

/// Kills: a verdict without a truth, columns of a truth that is not there, an exit code that hides a
/// difference, sizes of another tensor.
#[test]
fn without_a_truth_sizes_are_told_and_no_verdict() {
    let (said, code) = diff(&dump("none"), &dump("none"), &[]);
    assert!(code == 0 && said.ends_with("\nAll tensors are equal.\n"), "{said}");
    let bad = changed("activations", |all| find(all, "norm.out").values[0] += 100.0);
    let (said, code) = diff(&dump("tp=2"), bad.path(), &[]);
    assert_eq!(code, 1);
    assert!(
        said.contains("The first difference, and the largest, is in norm.out [64, 24] of activations."),
        "{said}"
    );
    assert!(said.contains("1 of 1536 elements differ, the largest difference is 1.0e2, relative "), "{said}");
    assert!(
        said.contains("furthest off at [0, 0] (sequence 0, position 0): A ") && !said.contains("departs"),
        "{said}"
    );
    let (said, _) = diff(&dump("tp=2"), bad.path(), &["--all"]);
    let words = |line: &str| line.split_whitespace().count();
    let counts: Vec<_> = said.lines().take(3).map(words).collect();
    assert_eq!(counts, [6; 3], "as many columns as headings: {said}");
}

/// One object a line, and numbers that scripts can read.
#[test]
fn json_has_every_tensor_and_a_summary() {
    let bad = changed("gradients", |all| find(all, "lm_head.weight").values[0] = 9.0);
    let truth = dump("truth");
    let (said, code) = diff(&dump("tp=2"), bad.path(), &["--json", "--truth", text(&truth)]);
    let all: Vec<serde_json::Value> = said.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let (summary, tensors) = all.split_last().unwrap();
    assert_eq!(
        (code, summary["kind"].as_str(), summary["first_bug"].as_str()),
        (1, Some("summary"), Some("lm_head.weight"))
    );
    assert_eq!(summary["tensors"], tensors.len());
    assert_eq!(
        (&summary["bugs"], summary["last_good"].as_str()),
        (&serde_json::json!(1), Some("gradient of blocks.0.norm1.in"))
    );
    let bug = tensors.iter().find(|t| t["verdict"] == "bug_in_b").unwrap();
    assert_eq!((bug["name"].as_str(), bug["file"].as_str()), (Some("lm_head.weight"), Some("gradients")));
    assert_eq!(bug["apart"]["differ"], 1);
    assert_eq!(
        (&bug["worst"]["at"], &bug["worst"]["b"]),
        (&serde_json::json!([0, 0]), &serde_json::json!(9.0))
    );
    let (said, _) = diff(&dump("tp=2"), bad.path(), &["--all", "--truth", text(&truth)]);
    let row = said.lines().find(|l| l.trim().ends_with("a bug in B")).unwrap();
    assert!(row.trim().starts_with("lm_head.weight") && row.contains(" gradients "), "{row}");
}

/// Dumps of the field do not round. Kills: a difference in it that is taken for rounding.
#[test]
fn numbers_of_the_field_are_equal_or_not() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("config.json");
    std::fs::write(&config, CONFIG).unwrap();
    let prove = |key: &str, layout: &str| {
        let out = dir.path().join(format!("{layout}{key}"));
        let to = ["prove", "--config", text(&config), "--layout", layout, "--key", key, "--dump", text(&out)];
        assert!(equipart(&to).status.success());
        out
    };
    let (none, split, other) = (prove("1", "none"), prove("1", "tp=2"), prove("2", "none"));
    let (said, code) = diff(&none, &split, &[]);
    assert!(code == 0 && said.ends_with("\nAll tensors are equal.\n"), "{said}");
    let (said, code) = diff(&none, &other, &[]);
    assert!(code == 1 && said.contains("\nThese values do not round, but differ.\n"), "{said}");
}

/// Models in files of several kinds of numbers, whole and in shards, and single files. Kills: errors of
/// 16-bit numbers held against bounds of 32, a file that is matched by its name where there is but one.
#[test]
fn models_and_single_files_of_other_numbers_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tests/golden/qwen3");
    let convert = |dtype: &str| {
        let out = dir.path().join(dtype);
        assert!(
            equipart(&["convert", "--model", model, "--dtype", dtype, "--out", text(&out)]).status.success()
        );
        out
    };
    let (f16, bf16) = (convert("f16"), convert("bf16"));
    let (said, code) = diff(&f16, &bf16, &["--truth", model]);
    assert!(code == 0 && said.contains("No difference is more than rounding"), "{said}");
    let [one, other] = [&f16, &bf16].map(|dir| dir.join("model.safetensors"));
    let renamed = dir.path().join("renamed.safetensors");
    std::fs::copy(&other, &renamed).unwrap();
    let (said, code) = diff(&one, &renamed, &["--truth", model]);
    assert!(code == 0 && !said.contains("renamed"), "{said}");
    assert_eq!(diff(&bf16, &renamed, &[]).1, 0);
}

/// Kills: "all are equal" above a list of tensors that were not compared, a name that is told raw or whole.
#[test]
fn what_was_not_compared_is_not_told_to_be_equal() {
    let dir = tempfile::tempdir().unwrap();
    let hostile = format!("\u{1b}[31m\n{}", "x".repeat(5000));
    let write = |file: &str, other: &str| {
        let path = dir.path().join(file);
        let tensors = ["same", other].map(|name| (name, Dtype::F32, vec![1]));
        let mut writer = Writer::create(&path, &BTreeMap::new(), &tensors).unwrap();
        for (name, ..) in &tensors {
            writer.tensor(name, &[1f32]).unwrap();
        }
        writer.finish().unwrap();
        path
    };
    let (a, b) = (write("a", "mine"), write("b", &hostile));
    let (said, code) = diff(&a, &b, &[]);
    assert!(
        code == 1 && said.contains("\nAll compared tensors are equal.\n\nNot compared:\n  mine of a"),
        "{said}"
    );
    assert!(
        said.contains(r"  \u{1b}[31m\nxx") && said.contains("xx… of b: A lacks it") && said.len() < 600,
        "{said}"
    );
}

/// Kills: a panic, a message without the path, exit code 1 for what is no comparison.
#[test]
fn bad_input_is_told_in_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let (empty, none) = (dir.path().join("empty"), dump("none"));
    std::fs::create_dir(&empty).unwrap();
    let garbage = dir.path().join("garbage.safetensors");
    std::fs::write(&garbage, b"no tensors").unwrap();
    let nowhere = dir.path().join("nowhere");
    let file = none.join("gradients.safetensors");
    for (a, b, wanted) in [
        (&nowhere, &none, "nowhere: there is no such file"),
        (&none, &empty, "empty holds no safetensors file; wanted a dump, a model or a file"),
        (&garbage, &none, "garbage.safetensors: the header's length is "),
        (&none.join("activations.safetensors"), &file, "have no tensor of one name and shape in common"),
    ] {
        let (said, code) = diff(a, b, &[]);
        assert!(code == 2 && said.starts_with("error: ") && said.contains(wanted), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    let said = equipart(&["train", "--dtype", "f64", "--out", text(&nowhere)]);
    let why = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2));
    assert!(
        why.starts_with("error: --dtype f64 keeps no checkpoints, as they hold f32; leave out --out"),
        "{why}"
    );
    assert!(!nowhere.exists());
}
