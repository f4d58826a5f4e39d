//! Runs of the command in processes of this test's program, in which one element of one rank changes.
use crate::cli::echo::tell;
use crate::commands::Arguments;
use clap::Parser;
use run::train::state::State;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output, Stdio, exit};

/// Seed of the runs in which an element changes, and its tensor: `run::train` plants the change.
const PLANTED: &str = "7031977";
const TENSOR: &str = "blocks.1.norm2";
/// Variable with the arguments of a run, one a line.
const ARGUMENTS: &str = "EQUIPART_TEST_ARGUMENTS";
const CONFIG: &str = r#"{"model_type": "llama", "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2,
    "num_hidden_layers": 2, "intermediate_size": 24, "vocab_size": 256, "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu"}"#;

/// Runs the arguments as the binary does, in a process of its own, or in one for each of these ranks.
fn ran(test: &str, arguments: &[&str], ranks: Option<usize>) -> Vec<Output> {
    let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]).env(ARGUMENTS, arguments.join("\n"));
        if let Some(ranks) = ranks {
            let variables = [("RANK", rank), ("WORLD_SIZE", ranks), ("MASTER_PORT", port.into())];
            command.env("MASTER_ADDR", "127.0.0.1").env("EQUIPART_SECRET", "a secret of this test alone");
            command.envs(variables.map(|(name, number)| (name, number.to_string())));
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let started: Vec<_> = (0..ranks.unwrap_or(1)).map(start).collect();
    started.into_iter().map(|process| process.wait_with_output().unwrap()).collect()
}

/// Element 5 of a norm changes on rank 1 after step 3, and checks come every two steps. Kills: a check that
/// is late, or after the checkpoint that it guards; another step, rank or parameter named; a sentence that
/// not all processes say; another exit code; an advice that cannot be followed.
#[test]
fn a_difference_ends_a_run_at_the_next_check_with_one_sentence() {
    if let Ok(arguments) = std::env::var(ARGUMENTS) {
        let Arguments { command, json } = Arguments::parse_from(arguments.lines());
        let outcome = command.expect("one is given").run(json);
        exit(outcome.map_or_else(
            |error| {
                tell(&error);
                2
            },
            |_| 0,
        ));
    }
    let name = "commands::train::tests::a_difference_ends_a_run_at_the_next_check_with_one_sentence";
    let dir = tempfile::tempdir().unwrap();
    let [config, batch] = ["config.json", "ids.json"].map(|name| dir.path().join(name).display().to_string());
    std::fs::write(&config, CONFIG).unwrap();
    std::fs::write(&batch, "[[1,2,3,4,5],[9,8,7,6,5,4],[72,101,108]]").unwrap();
    let train = ["equipart", "train", "--json", "--config", &config, "--batch", &batch, "--steps", "6"];
    let flags = [&train[..], &["--seed", PLANTED, "--check-every"]].concat();
    let is_told = |more: &[&str], ranks: Option<usize>, says: &str| {
        let outputs = ran(name, &[&flags[..], more].concat(), ranks);
        for output in &outputs {
            let said = String::from_utf8_lossy(&output.stderr);
            let errors: Vec<_> = said.lines().filter(|line| line.starts_with("error: ")).collect();
            assert_eq!(errors, [format!("error: {says}")], "{said}");
            assert_eq!((output.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        }
    };
    let majority = format!("{TENSOR} of rank 1 differs from that of ranks 0 and 2, the majority");
    let neither = format!("{TENSOR} of rank 1 differs from that of rank 0, and neither is a majority");
    is_told(&["2", "--layout", "dp=3"], None, &format!("after step 4, {majority}; start again"));
    is_told(&["3", "--layout", "tp=2"], None, &format!("after step 3, {neither}; start again"));
    is_told(&["100", "--layout", "tp=2"], None, &format!("after step 6, {neither}; start again"));
    for ranks in [None, Some(3)] {
        let out = dir.path().join(format!("run {ranks:?}")).display().to_string();
        let saved = ["3", "--layout", "dp=3", "--checkpoint-every", "2", "--out", &out];
        let says = format!("after step 3, {majority}; continue from the last checkpoint with --resume");
        is_told(&saved, ranks, &says);
        assert_eq!(State::read(Path::new(&out)).unwrap().steps(), 2);
    }
    let out = dir.path().join("guarded").display().to_string();
    let saved = ["100", "--layout", "dp=3", "--checkpoint-every", "2", "--out", &out];
    let says = format!("after step 4, {majority}; continue from the last checkpoint with --resume");
    is_told(&saved, None, &says);
    assert_eq!(State::read(Path::new(&out)).unwrap().steps(), 2, "the checkpoint of step 4 is not saved");
}
