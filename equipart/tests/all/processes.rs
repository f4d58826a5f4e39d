//! Ranks as processes of the binary, found by torchrun's variables: they have what threads have, bit for bit,
//! and whatever goes wrong between them is one sentence in each.
mod apart;
mod elastic;
mod launched;
mod measured;

use crate::child::{Watched, binary, output};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A port that was free a moment ago.
fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}
/// The process of one rank.
fn rank(rank: usize, ranks: usize, port: u16, args: &[&str]) -> Command {
    let mut command = binary();
    let variables = [("RANK", rank), ("WORLD_SIZE", ranks), ("MASTER_PORT", port.into())];
    command.args(args).env("MASTER_ADDR", "127.0.0.1").stdin(Stdio::null());
    command.envs(variables.map(|(name, number)| (name, number.to_string())));
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}
/// Output of the processes of all ranks.
pub(crate) fn all(ranks: usize, args: &[&str], prepared: &dyn Fn(&mut Command)) -> Vec<Output> {
    let port = port();
    let start = |place| {
        let mut command = rank(place, ranks, port, args);
        prepared(&mut command);
        Watched::start(&mut command)
    };
    let started: Vec<_> = (0..ranks).map(start).collect();
    started.into_iter().map(Watched::output).collect()
}
fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
/// Output of rank 0 of processes that all end with success; the others print nothing.
pub(crate) fn displayed(ranks: usize, args: &[&str], prepared: &dyn Fn(&mut Command)) -> String {
    let outputs = all(ranks, args, prepared);
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.status.success(), "rank {rank}: {}", text(&output.stderr));
        assert!(rank == 0 || (output.stdout.is_empty() && output.stderr.is_empty()), "rank {rank}");
    }
    text(&outputs[0].stdout)
}
/// The losses of lines of training.
fn losses(lines: &str) -> Vec<String> {
    lines.lines().map(|line| line.split("tokens_per_second").next().unwrap().to_string()).collect()
}

pub(crate) const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 256, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;

/// A folder with a config and a batch, and their paths.
pub(crate) fn small() -> (tempfile::TempDir, String, String) {
    let dir = tempfile::tempdir().unwrap();
    let [config, batch] = ["config.json", "ids.json"].map(|name| dir.path().join(name));
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(&batch, "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[72,101,108,108,111],[200,3,200,3]]").unwrap();
    let [config, batch] = [config, batch].map(|path| path.display().to_string());
    (dir, config, batch)
}
fn same_files(a: &Path, b: &Path) {
    let mut names: Vec<_> = std::fs::read_dir(a).unwrap().map(|file| file.unwrap().file_name()).collect();
    names.retain(|name| name != "log.jsonl"); // it has times
    names.sort();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        assert!(
            std::fs::read(a.join(&name)).unwrap() == std::fs::read(b.join(&name)).unwrap(),
            "{}",
            name.display()
        );
    }
}

/// Kills: a loss, a weight, an optimizer's state, a text or an evaluation that differs by a bit from that of
/// threads; a rank besides the first that shows something; a text or a loss of another rank that is lost.
#[test]
fn processes_train_generate_and_evaluate_as_threads_do() {
    let (dir, config, batch) = small();
    for (layout, ranks) in [("tp=2", 2), ("pp=2,dp=2", 4)] {
        let [threads, processes] =
            ["threads", "processes"].map(|name| dir.path().join(format!("{name} {ranks}")));
        let train = |out: &Path| {
            let sizes = [
                "--steps",
                "3",
                "--batch",
                &batch,
                "--microbatches",
                "2",
                "--lr",
                "0.01",
                "--optimizer",
                "adamw",
            ];
            let begin =
                ["train", "--json", "--config", &config, "--layout", layout, "--out"].map(str::to_string);
            begin
                .into_iter()
                .chain([out.display().to_string()])
                .chain(sizes.map(str::to_string))
                .collect::<Vec<_>>()
        };
        let [of_threads, of_processes] = [&threads, &processes].map(|out| train(out));
        let of_threads: Vec<_> = of_threads.iter().map(String::as_str).collect();
        let of_processes: Vec<_> = of_processes.iter().map(String::as_str).collect();
        let wanted = output(binary().args(&of_threads));
        assert!(wanted.status.success(), "{}", text(&wanted.stderr));
        let seen = displayed(ranks, &of_processes, &|_| ());
        assert!(losses(&seen).len() == 3 && losses(&seen) == losses(&text(&wanted.stdout)), "{seen}");
        same_files(&threads, &processes);
        let model = threads.display().to_string();
        let prompts = ["--prompt-ids", "72,101,108", "--prompt-ids", "9,8,7,6,5", "--max-new", "6"];
        let generate =
            [&["generate", "--json", "--model", &model, "--layout", layout][..], &prompts].concat();
        let seconds = |lines: &str| {
            lines
                .lines()
                .map(|line| line.split("\"seconds\"").next().unwrap().to_string())
                .collect::<Vec<_>>()
        };
        let wanted = seconds(&text(&output(binary().args(&generate)).stdout));
        assert!(wanted.len() == 2 && wanted == seconds(&displayed(ranks, &generate, &|_| ())), "{wanted:?}");
        let eval = ["eval", "--json", "--model", &model, "--batch", &batch, "--layout", layout];
        assert_eq!(displayed(ranks, &eval, &|_| ()), text(&output(binary().args(eval)).stdout));
    }
}

/// Kills: ranks on a card whose bits differ from those of ranks that share it as threads.
#[test]
fn processes_on_cards_have_what_threads_on_one_have() {
    let twin = match cuda::twin::compile(&[]) {
        Ok(twin) => twin,
        Err(why) => return crate::skipped::skipped(&why),
    };
    let (_dir, config, batch) = small();
    let train = [
        "train", "--json", "--config", &config, "--batch", &batch, "--steps", "2", "--layout", "tp=2",
        "--device", "cuda",
    ];
    let on_the_twin = |command: &mut Command| {
        let variables = [("EQUIPART_TWIN_CARDS", "2"), ("EQUIPART_ENGINE", "card")];
        command.env("EQUIPART_CUDA", &twin).envs(variables);
    };
    let mut threads = binary();
    on_the_twin(threads.args(train));
    let (wanted, outputs) = (output(&mut threads), all(2, &train, &on_the_twin));
    assert!(wanted.status.success() && outputs.iter().all(|output| output.status.success()), "{outputs:?}");
    let note = "note: each rank is a process with a GPU; data goes by host and TCP: EQUIPART_ENGINE=card";
    assert!(text(&outputs[0].stderr).contains(note), "{}", text(&outputs[0].stderr));
    assert_eq!(losses(&text(&outputs[0].stdout)), losses(&text(&wanted.stdout)));
    assert_eq!(losses(&text(&wanted.stdout)).len(), 2);
}

/// Kills: processes on cards that begin with different engines, or with one card for several; NCCL that is
/// not asked for the same group by all, or without a limit. Its twin joins ranks of one process only: so none
/// of these finds the others.
#[test]
fn processes_on_cards_are_joined_by_nccl() {
    let twins = cuda::twin::compile(&[]).and_then(|twin| Ok((twin, cuda::twin::nccl(&[])?)));
    let (twin, nccl) = match twins {
        Ok(twins) => twins,
        Err(why) => return crate::skipped::skipped(&why),
    };
    let (_dir, config, batch) = small();
    let train = [
        "train",
        "--config",
        &config,
        "--batch",
        &batch,
        "--steps",
        "2",
        "--layout",
        "tp=2",
        "--device",
        "cuda",
        "--timeout",
        "4",
    ];
    let said = |engines: [&str; 2], cards: &str| {
        let port = port();
        let start = |(place, engine): (usize, &str)| {
            let mut command = rank(place, 2, port, &train);
            command.env("EQUIPART_CUDA", &twin).env("EQUIPART_NCCL", &nccl);
            Watched::start(command.env("EQUIPART_TWIN_CARDS", cards).env("EQUIPART_ENGINE", engine))
        };
        let started: Vec<_> = engines.into_iter().enumerate().map(start).collect();
        let outputs = started.into_iter().map(Watched::output);
        outputs.map(|output| (output.status.code(), text(&output.stderr))).collect::<Vec<_>>()
    };
    let alone = said(["nccl"; 2], "2");
    let own = "note: each rank has its own GPU, joined by NCCL 2.18.3 (";
    assert!(alone[0].1.contains(own), "{alone:?}");
    let (code, error) = &alone[0];
    let why = error.contains(": all_reduce(sum) over tp of ") && error.contains(": NCCL's rank ");
    assert!(*code == Some(2) && why && error.contains(" was not ready within 2s"), "{error}");
    let (code, error) = &said(["nccl", "card"], "2")[0];
    assert!(*code == Some(2) && error.contains("ranks have different arguments: rank 1 has "), "{error}");
    let engines =
        error.contains(" [EQUIPART_ENGINE=card], rank 0 has ") && error.contains(" [EQUIPART_ENGINE=nccl]");
    assert!(engines, "{error}");
    let few = &said(["nccl"; 2], "1")[0];
    let why = "EQUIPART_ENGINE=nccl needs a GPU for each rank: 2 ranks or more are on this machine, and 1 GPU is available";
    assert!(few.0 == Some(2) && few.1.contains(why), "{few:?}");
}

/// The one sentence that a process ends with.
fn sentence(output: &Output) -> String {
    let error = text(&output.stderr);
    let sentences: Vec<_> = error.lines().filter_map(|line| line.strip_prefix("error: ")).collect();
    assert!(
        sentences.len() == 1 && !error.contains("panicked") && output.status.code() == Some(2),
        "{error}"
    );
    sentences[0].to_string()
}

/// The one sentence that these processes end with: the first of them prints it, and no other does.
fn told_once(outputs: Vec<Output>) -> String {
    for output in &outputs[1..] {
        let printed = text(&output.stderr) + &text(&output.stdout);
        assert!(output.status.code() == Some(2) && printed.is_empty(), "{printed}");
    }
    sentence(&outputs[0])
}

/// Kills: variables, a command, flags or processes that do not fit and are not refused in one sentence; a
/// process that was killed and is waited for.
#[test]
fn what_does_not_fit_is_one_sentence() {
    let (_dir, config, batch) = small();
    let train = ["train", "--config", &config, "--batch", &batch, "--steps", "2", "--layout", "tp=2"];
    let alone = |args: &[&str], more: &[(&str, &str)]| {
        let mut command = rank(0, 2, port(), args);
        sentence(&output(command.envs(more.iter().copied())))
    };
    let size = "WORLD_SIZE is 3, but the layout tp=2 has 2 ranks; start one process a rank";
    assert_eq!(alone(&train, &[("WORLD_SIZE", "3")]), size);
    assert_eq!(
        alone(&train, &[("RANK", "2")]),
        "RANK is 2 and WORLD_SIZE is 2; RANK must be 0 to WORLD_SIZE - 1"
    );
    assert_eq!(
        alone(&train, &[("MASTER_PORT", "x")]),
        "MASTER_PORT is \"x\"; it must be a port from 1 to 65535"
    );
    let missing = output(rank(0, 2, 1, &train).env_remove("MASTER_ADDR"));
    assert!(sentence(&missing).starts_with("RANK is 0, and MASTER_ADDR is not set; "));
    let itself = "RANK is 0, and this command runs all its ranks itself; unset RANK, or start compare, train, generate, prove, eval \
         or bench, which run one rank a process";
    for args in [&["price"][..], &["devices"]] {
        assert_eq!(alone(args, &[]), itself);
    }
    for flag in [&["--dump", "/nowhere/d"][..], &["--profile"]] {
        let long = [&train[..5], &["--steps", "9", "--layout", "tp=2"], flag].concat();
        let seen = alone(&long, &[]);
        let wanted = "needs all ranks in one process, but RANK is set; leave one of them out";
        assert!(seen.starts_with(flag[0]) && seen.ends_with(wanted), "{seen}");
    }
    let late = alone(&[&train[..], &["--timeout", "0.3"]].concat(), &[]);
    assert!(
        late.starts_with("rank 1 did not connect to 127.0.0.1:") && late.ends_with(" within 300ms"),
        "{late}"
    );
    let port = port();
    let other = [&train[..], &["--lr", "0.5"]].concat();
    let asked = "ranks have different arguments: rank 1 has … tp=2 --lr 0.5, rank 0 has … tp=2";
    let both =
        [rank(0, 2, port, &train), rank(1, 2, port, &other)].map(|mut command| Watched::start(&mut command));
    assert_eq!(told_once(both.map(Watched::output).into()), asked);
    let secret = |more: &[&str]| alone(&[&train[..], more].concat(), &[("EQUIPART_SECRET", "short")]);
    assert!(secret(&[]).starts_with("the secret of EQUIPART_SECRET has 5 bytes; it needs 16 or more"));
    let far = alone(&train, &[("MASTER_ADDR", "192.0.2.7")]);
    assert!(far.starts_with("MASTER_ADDR is 192.0.2.7") && far.contains("there is no secret"), "{far}");
    let mut launched = binary();
    launched.args(["price"]).envs([("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "2")]);
    let seen = sentence(&output(&mut launched));
    assert!(
        seen.starts_with("OMPI_COMM_WORLD_RANK is 1, and this command runs all its ranks itself"),
        "{seen}"
    );
    let seen = sentence(&output(binary().args(["eval", "--secret", &batch])));
    assert!(seen.starts_with("--secret") && seen.ends_with("RANK is not set; leave it out"), "{seen}");
}

/// Kills: an error that each rank prints, or none; one of a rank that the others wait for, or that has no
/// rank before it; one that comes later because the others do not come.
#[test]
fn bad_input_is_told_by_one_rank() {
    let (_dir, config, batch) = small();
    let train = ["train", "--config", &config, "--batch", &batch, "--steps", "2", "--layout"];
    let more = |more: &[&'static str]| [&train[..], more].concat();
    let said = |args: [&[&str]; 3]| {
        let port = port();
        let start = |place: usize| Watched::start(&mut rank(place, 3, port, args[place]));
        told_once([0, 1, 2].map(start).map(Watched::output).into())
    };
    let good = more(&["dp=3"]);
    let size = "WORLD_SIZE is 3, but the layout dp=2 has 2 ranks; start one process a rank";
    assert_eq!(said([&more(&["dp=2"]); 3]), size);
    assert_eq!(said([&more(&["dp=2"]), &good, &good]), size);
    let flag = more(&["dp=3", "--nonsense"]);
    assert!(said([&flag; 3]).starts_with("unexpected argument '--nonsense' found"));
    assert!(said([&good, &flag, &good]).starts_with("rank 1: unexpected argument '--nonsense' found"));
    let missing = more(&["dp=3", "--resume", "/nowhere"]);
    assert!(said([&good, &good, &missing]).starts_with("rank 2: /nowhere does not exist"));
    let itself = "RANK is 0, and this command runs all its ranks itself; unset RANK";
    assert!(said([&["price"]; 3]).starts_with(itself));
}

/// Kills: a process that was killed and is waited for, or is not named by the others.
#[test]
fn a_process_that_is_killed_is_named_by_the_others() {
    let (_dir, config, batch) = small();
    let train =
        ["train", "--json", "--config", &config, "--batch", &batch, "--steps", "1000000", "--layout", "dp=2"];
    let port = port();
    let mut zero = Watched::start(&mut rank(0, 2, port, &train));
    let mut one = Watched::start(&mut rank(1, 2, port, &train));
    let mut lines = std::io::BufReader::new(zero.process.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut lines, &mut String::new()).unwrap(); // steps are under way
    one.process.kill().unwrap();
    drop(lines);
    let said = sentence(&zero.output());
    assert!(
        said.starts_with("rank 1: its process exited without a report, or its connection broke"),
        "{said}"
    );
    one.output();
}
