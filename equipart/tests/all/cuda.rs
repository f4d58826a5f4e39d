//! Commands with `--device cuda`, as their users call them: on the driver's twin, which runs the GPU's
//! kernels on the host. Where there is no C++ compiler to make it with, these tests say so.
use crate::child::{binary, output};
use crate::memory::path;
use crate::narrow::{deviation, roundings, three_deviations};
use run::roundoff::unit;
use serde_json::Value;
use std::path::Path;
use std::process::Output;
use tensor::dtype::Dtype;

/// Output of a command with the host twin as the driver; `None` if there is no host twin.
fn on_the_twin(args: &[&str], variables: &[(&str, &str)]) -> Option<Output> {
    match cuda::twin::compile(&[]) {
        Ok(twin) => {
            let mut command = binary();
            Some(output(command.args(args).env("EQUIPART_CUDA", twin).envs(variables.iter().copied())))
        }
        Err(why) => {
            crate::skipped::skipped(&why);
            None
        }
    }
}

/// The objects that a command printed.
fn lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The error of a command that was refused.
fn error(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(output.stdout.is_empty() && error.starts_with("error: "), "{error}");
    error
}

/// A model of two blocks, 4 query heads, 2 KV heads, with experts or without; what it learns lies beside it.
fn config(experts: bool) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    let (name, more) = if experts {
        ("mixtral", r#""num_local_experts":4,"num_experts_per_tok":2,"#)
    } else {
        ("llama", "")
    };
    let config = format!(
        r#"{{"model_type":"{name}","hidden_size":24,"intermediate_size":20,"num_hidden_layers":2,"num_attention_heads":4,
        "num_key_value_heads":2,{more}"vocab_size":256,"max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu"}}"#
    );
    std::fs::write(dir.path().join("config.json"), config).unwrap();
    let ids = "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[72,101,108,108,111],[200,3,200,3,200,3,200,3]]";
    std::fs::write(dir.path().join("ids.json"), ids).unwrap();
    let config = path(&dir, "config.json");
    (dir, config)
}

/// The losses of a short training run on given ids.
fn losses(config: &str, batch: &str, device: &str, layout: &str, number: &str) -> Option<Vec<f64>> {
    let sizes = [
        "--steps",
        "3",
        "--batch",
        batch,
        "--microbatches",
        "2",
        "--optimizer",
        "adamw",
        "--lr",
        "0.01",
        "--json",
    ];
    let model = ["train", "--config", config, "--layout", layout, "--dtype", number, "--device", device];
    let output = on_the_twin(&[&model[..], &sizes].concat(), &[])?;
    Some(lines(&output).iter().filter_map(|line| line["loss"].as_f64()).collect())
}

/// Three deviations of a loss of 26 tokens. A sum of `n` terms in any order is rounded `n` times, where half
/// of it is there in the mean, so its square deviates as after `n/4` roundings of all of it. Both sides add
/// up the tokens' losses so, in f32, and, where all is f32, the 24 terms or 20 of every number; 16 bits are
/// rounded once for each number, on the card alone.
fn within(number: &str, first: f64, loss: f64) -> f64 {
    const F32: f64 = 1.0 / (1 << 24) as f64;
    let (tokens, logits) = (26, deviation(first, loss));
    let sums = three_deviations(F32, 2.0 * 26.0 / 4.0, loss, 1);
    sums + match number {
        "f32" => three_deviations(F32, 2.0 * (24.0 / 4.0) * roundings(2), logits, tokens),
        _ => three_deviations(unit(Dtype::BF16), roundings(2), logits, tokens),
    }
}

/// Both dtypes under the first layouts; they take turns under the others. Kills: a kernel, a launch or a sum
/// between ranks that goes wrong where a model calls it; a run that computes on the host though it was told
/// otherwise is refused below.
#[test]
fn training_on_a_card_is_training_on_the_host_under_every_kind_of_layout() {
    for (experts, layouts) in [
        (
            false,
            &[
                "none",
                "tp=2,sp",
                "dp=2:zero3",
                "pp=2",
                "tp=2,dp=2:zero1,pp=2",
                "cp=2,recompute",
                "cp=2:striped:ulysses",
            ][..],
        ),
        (true, &["none", "ep=2"]),
    ] {
        let (dir, config) = config(experts);
        let batch = path(&dir, "ids.json");
        let wanted = losses(&config, &batch, "cpu", "none", "f32");
        for number in ["f32", "bf16"] {
            let turns = |i: &usize| *i < 2 || i % 2 == usize::from(number == "bf16");
            for (_, layout) in layouts.iter().enumerate().filter(|(i, _)| turns(i)) {
                let Some((seen, wanted)) =
                    losses(&config, &batch, "cuda", layout, number).zip(wanted.as_ref())
                else {
                    return;
                };
                assert_eq!(seen.len(), 3);
                for (seen, loss) in seen.iter().zip(wanted) {
                    let bound = within(number, wanted[0], *loss);
                    assert!(
                        (seen - loss).abs() < bound,
                        "{layout} in {number}: {seen}, wanted {loss} within {bound}"
                    );
                }
                assert!(seen[2] < seen[0], "{layout} in {number} learns: {seen:?}");
            }
        }
    }
}

/// Kills: ranks that all compute on one card, or each on another's; a call that NCCL does otherwise than a
/// card alone; a run that does not say what carries its bytes.
#[test]
fn training_on_a_card_each_is_training_on_one() {
    let nccl = match cuda::twin::nccl(&[]) {
        Ok(nccl) => nccl,
        Err(why) => return crate::skipped::skipped(&why),
    };
    for (experts, layouts) in
        [(false, &["tp=2,sp", "dp=2:zero3", "tp=2,dp=2:zero1,pp=2"][..]), (true, &["ep=2"])]
    {
        let (dir, config) = config(experts);
        let batch = path(&dir, "few.json");
        std::fs::write(&batch, "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[72,101,108,108,111],[200,3,200,3]]").unwrap();
        for layout in layouts {
            let train = ["train", "--config", &config, "--layout", layout, "--device", "cuda", "--json"];
            let sizes = ["--steps", "3", "--batch", &batch, "--microbatches", "2", "--lr", "0.01"];
            let run = |engine| {
                let variables = [
                    ("EQUIPART_TWIN_CARDS", "8"),
                    ("EQUIPART_NCCL", nccl.to_str().unwrap()),
                    ("EQUIPART_ENGINE", engine),
                ];
                let output = on_the_twin(&[&train[..], &sizes].concat(), &variables)?;
                let losses: Vec<_> = lines(&output).iter().filter_map(|line| line["loss"].as_f64()).collect();
                Some((losses, String::from_utf8_lossy(&output.stderr).into_owned()))
            };
            let Some(((alone, shared), (each, own))) = run("card").zip(run("nccl")) else { return };
            assert_eq!(each.len(), 3);
            assert_eq!(alone, each, "{layout}");
            assert!(own.contains("note: each rank has its own GPU, joined by NCCL 2.18.3 ("), "{own}");
            assert!(shared.contains(" ranks share the first GPU: EQUIPART_ENGINE=card"), "{shared}");
        }
    }
}

/// Kills: a cache, a choice of the next token, or a checkpoint that differs.
#[test]
fn what_is_generated_on_a_card_is_what_the_host_generates() {
    let ((dir, config), out) = (config(false), tempfile::tempdir().unwrap());
    let model = path(&out, "model");
    let batch = path(&dir, "ids.json");
    let train = [
        "train", "--config", &config, "--steps", "2", "--batch", &batch, "--out", &model, "--device", "cuda",
    ];
    let Some(trained) = on_the_twin(&train, &[]) else { return };
    assert!(trained.status.success(), "{}", String::from_utf8_lossy(&trained.stderr));
    let generated = |device, layout| {
        let ask = ["--prompt-ids", "72,101,108", "--prompt-ids", "9,8,7,6,5", "--max-new", "12", "--json"];
        let model = ["generate", "--model", &model, "--device", device, "--layout", layout];
        let lines = lines(&on_the_twin(&[&model[..], &ask].concat(), &[]).unwrap());
        lines.into_iter().map(|line| line["ids"].clone()).collect::<Vec<_>>()
    };
    let wanted = generated("cpu", "none");
    assert_eq!(wanted.len(), 2);
    for layout in ["none", "tp=2", "pp=2,tp=2", "dp=2", "cp=2", "cp=2:ulysses"] {
        assert_eq!(generated("cuda", layout), wanted, "{layout}");
    }
}

/// Kills: a device that is overlooked, an error that is a panic, a hang or several sentences.
#[test]
fn what_is_missing_is_one_sentence() {
    let (dir, config) = config(false);
    let batch = path(&dir, "ids.json");
    let begin = ["train", "--config", &config, "--batch", &batch, "--device", "cuda"];
    let train = |more: &[&'static str]| [&begin, more].concat();
    let nowhere = [("EQUIPART_CUDA", "/nowhere/libcuda.so")];
    let elsewhere = |args: &[&str]| output(binary().args(args).envs(nowhere));
    let said = error(&elsewhere(&train(&[])));
    assert!(said.starts_with("error: --device cuda: no CUDA driver on this machine: "), "{said}");
    assert!(error(&elsewhere(&["gpu-check"])).contains("no CUDA driver on this machine"));
    let nowhere_too = ("EQUIPART_NCCL", "/nowhere/libnccl.so");
    let devices = lines(&elsewhere(&["devices", "--json"]));
    assert!(devices[1]["missing"].as_str().unwrap().contains("/nowhere/libcuda.so"), "{devices:?}");
    assert!(devices[0]["device"] == "cpu" && devices[0].get("missing").is_none(), "{devices:?}");
    let Some(narrow) = on_the_twin(&train(&["--dtype", "f64"]), &[]) else { return };
    assert!(error(&narrow).contains("--device cuda does not support f64; it supports f32 and bf16"));
    let none = on_the_twin(&train(&[]), &[("EQUIPART_TWIN_CARDS", "0")]).unwrap();
    assert!(error(&none).contains("--device cuda: the CUDA driver finds no GPU"));
    let small = on_the_twin(&train(&[]), &[("EQUIPART_TWIN_MEMORY", "100000")]).unwrap();
    let said = error(&small);
    assert!(said.contains("B over all ranks, but 100.00 kB of memory are free"), "{said}");
    let many = on_the_twin(&train(&["--layout", "dp=512"]), &[]).unwrap();
    assert!(error(&many).contains("512 ranks on one GPU; at most 256 can share it"));
    let cards = |cards, engine, layout| {
        let variables = [("EQUIPART_TWIN_CARDS", cards), ("EQUIPART_ENGINE", engine), nowhere_too];
        error(&on_the_twin(&train(&["--layout", layout]), &variables).unwrap())
    };
    let few = "EQUIPART_ENGINE=nccl needs a GPU for each rank: 4 ranks, and 2 GPUs are available";
    assert!(cards("2", "nccl", "dp=4").contains(few));
    let none = cards("2", "nccl", "dp=2");
    assert!(none.contains("--device cuda: no NCCL on this machine: /nowhere/libnccl.so: "), "{none}");
    assert!(cards("2", "many", "dp=2").contains("EQUIPART_ENGINE=many: must be card or nccl"));
    let found = lines(&on_the_twin(&["devices", "--json"], &[]).unwrap());
    assert!(found[1]["here"].as_str().unwrap().starts_with("GPU 0: the CPU's twin of a GPU"), "{found:?}");
}

/// Kills: a GPU with another one's bus or local rank, a list of GPUs that is not shown, is empty, or is cut
/// off without a word; ranks that are processes and choose engines each by its own number.
#[test]
fn visible_gpus_are_listed_as_ranks_get_them() {
    let devices = |visible: &str, more: &[(&str, &str)]| {
        let variables = [&[("EQUIPART_TWIN_CARDS", "3"), ("CUDA_VISIBLE_DEVICES", visible)], more].concat();
        on_the_twin(&["devices", "--json"], &variables).map(|output| lines(&output)[1..].to_vec())
    };
    let order = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
    let Some(two) = devices("2,0", &order) else { return };
    assert_eq!(two[0]["set"], "CUDA_VISIBLE_DEVICES=\"2,0\", CUDA_DEVICE_ORDER=\"PCI_BUS_ID\"");
    for (local, bus) in [(0, 3), (1, 1)] {
        let here = two[1 + local]["here"].as_str().unwrap();
        let ends = format!(", PCI 0000:0{bus}:00.0, for local rank {local}");
        assert!(here.starts_with(&format!("GPU {local}: ")) && here.ends_with(&ends), "{here}");
    }
    assert!(two.len() == 4 && two[3]["device"] == "nccl", "{two:?}");
    let cut = devices("1,x,0", &[]).unwrap();
    let wanted = "of the 3 GPUs in CUDA_VISIBLE_DEVICES=\"1,x,0\", the driver takes those before the first that it does not find: 1";
    assert!(cut.len() == 4 && cut[2]["missing"] == wanted, "{cut:?}");
    for none in ["", "-1", "two"] {
        let seen = devices(none, &[]).unwrap();
        let wanted = format!("the CUDA driver finds no GPU; CUDA_VISIBLE_DEVICES is {none:?}");
        assert!(seen.len() == 3 && seen[1]["missing"] == *wanted, "{seen:?}");
    }
    let text = on_the_twin(&["devices"], &[("EQUIPART_TWIN_CARDS", "2")]).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("take these GPUs in turn, local rank 2 GPU 0 again.") && !text.contains("VISIBLE"));
    let join = [("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"), ("EQUIPART_ENGINE", "nccl")];
    let at = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1"), ("EQUIPART_TWIN_CARDS", "2")];
    let (_dir, config) = config(false);
    let train = ["train", "--config", &config, "--device", "cuda", "--layout", "dp=4"];
    let refused = error(&on_the_twin(&train, &[&join[..], &at].concat()).unwrap());
    assert!(refused.contains("4 ranks or more are on this machine, and 2 GPUs are available"), "{refused}");
}

/// Kills: a check that goes on after a failure as if nothing were, a report that is not written.
#[test]
fn the_check_of_a_card_reports_everything() {
    let dir = tempfile::tempdir().unwrap();
    let report = path(&dir, "report.json");
    let Some(checked) = on_the_twin(&["gpu-check", "--small", "--only", "figures", "--out", &report], &[])
    else {
        return;
    };
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let written: Value = serde_json::from_slice(&std::fs::read(Path::new(&report)).unwrap()).unwrap();
    let of = |name: &str| {
        let line = written["lines"]
            .as_array()
            .unwrap()
            .iter()
            .find(|line| line["what"].as_str().unwrap().contains(name));
        line.unwrap_or_else(|| panic!("no line of {name}: {written}"))["outcome"]
            .as_str()
            .unwrap()
            .to_string()
    };
    assert!(
        of("device copy").ends_with("GB/s")
            && of("RMSNorm, bf16").contains(" of a device copy (0.90 wanted)")
    );
    assert!(of("training step").contains("TFLOP/s") && of("decoding").contains("(0.80 wanted)"));
    assert!(String::from_utf8_lossy(&checked.stdout).contains("attention forward"));
}

/// Kills: a figure of the host alone that is shown, or passed over where it is named; one that computes on
/// the host; the host's limits or name beside a card's figures; a profile that is.
#[test]
fn figures_of_a_card_stand_beside_what_a_card_does() {
    let bench = |args: &[&str], variables: &[_]| {
        let all = ["bench", "--device", "cuda", "--small", "--json"];
        let turns = if args.contains(&"--profile") { &[][..] } else { &["--turns", "1"] };
        on_the_twin(&[&all[..], turns, args].concat(), variables)
    };
    let Some(output) = bench(&[], &[]) else { return };
    let figures = lines(&output);
    assert_eq!(figures.len(), 37);
    for figure in &figures {
        let name = figure["name"].as_str().unwrap();
        assert_eq!(figure["processor"], "the CPU's twin of a GPU", "{name}");
        assert!(figure["value"].as_f64().unwrap() > 0.0 && !name.starts_with("pipeline"), "{figure}");
        assert_eq!(figure["limit"].is_null(), name.starts_with("machine"), "{figure}");
    }
    let refused = error(&bench(&["--only", "gemm,proof"], &[]).unwrap());
    let wanted =
        "error: --only: proof_ms_100k is measured on the host only; leave out --device or that figure\n";
    assert_eq!(refused, wanted);
    for figure in ["train_step_ms_tp2", "all_reduce_us_64MiB", "gemm_gflops_1024", "machine_read_gbps"] {
        let full = bench(&["--only", figure], &[("EQUIPART_TWIN_MEMORY", "5000")]).unwrap();
        let said = String::from_utf8_lossy(&full.stderr).into_owned();
        assert!(!full.status.success() && said.contains("the system has no more"), "{figure}: {said}");
    }
    let profile = lines(&bench(&["--profile", "--layout", "tp=2"], &[]).unwrap());
    assert!(profile.iter().any(|line| line["rank"] == 1 && line["kind"] == "product"));
    assert!(profile.iter().all(|line| line.get("peak_gflops").is_none_or(Value::is_null)));
    let none = bench(&["--only", "gemm"], &[("EQUIPART_TWIN_CARDS", "0")]).unwrap();
    assert_eq!(error(&none), "error: --device cuda: the CUDA driver finds no GPU\n");
}

/// Kills: a part of what a card can prove that is left out, or whose failure is none; a flag that is passed
/// over.
#[test]
fn a_card_proves_a_layout_on_whole_numbers() {
    let prove = |args: &[&str]| on_the_twin(&[&["prove", "--device", "cuda"], args].concat(), &[]);
    let Some(output) = prove(&["--layout", "tp=2,sp,dp=2:zero3", "--json"]) else { return };
    let seen: Vec<_> =
        lines(&output).iter().map(|line| (line["what"].clone(), line["well"].clone())).collect();
    let of = "of tp=2,sp,dp=2:zero3";
    for number in ["f32", "bf16"] {
        for what in ["linear layers", "collectives"] {
            assert!(seen.contains(&(format!("{what} {of}, {number}").into(), true.into())), "{seen:?}");
        }
    }
    let kernels = cuda::checks::all::<cuda::Gpu>().count();
    assert!(seen.len() == 4 + kernels && seen.contains(&("products".into(), true.into())), "{seen:?}");
    for (args, says) in [
        (&["--dtype", "f64"][..], "error: --device cuda does not support f64; it supports f32 and bf16\n"),
        (
            &["--layout", "tp=64"],
            "error: tp=64 in bf16: its sums reach 257, and bf16 represents every integer only up to 256\n",
        ),
        (&["--key", "1"], "error: --key is for proofs in the field; --device cuda has no use for it\n"),
        (
            &["--minutes", "1"],
            "error: --minutes is for proofs in the field; --device cuda has no use for it\n",
        ),
        (&["--split", "1,1"], "error: --split is for proofs in the field; --device cuda has no use for it\n"),
    ] {
        let refused = prove(args).unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            refused.status.code() == Some(2) && refused.stdout.is_empty() && said.ends_with(says),
            "{said}"
        );
    }
}
