//! Invalid classifiers, and flags that a classifier refuses: one sentence each, exit code 2.
use crate::child::equipart;
use crate::classify::written;

/// One sentence on standard error, exit code 2, nothing on standard output; which one, if it is given.
pub(crate) fn refused(args: &[&str], says: &str) {
    let output = equipart(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(output.stdout.is_empty() && !error.contains("panicked"), "{args:?}: {error}");
    let sentence =
        error.lines().find_map(|line| line.strip_prefix("error: ")).unwrap_or_else(|| panic!("{error}"));
    assert!(says.is_empty() || sentence == says, "{args:?} says {sentence:?}, wanted {says:?}");
}

#[test]
fn flags_that_the_classifier_has_no_use_for_are_refused() {
    for (flag, value) in [
        ("steps", "5"),
        ("seq", "5"),
        ("dropout", "0.5"),
        ("label-smoothing", "0.1"),
        ("z-loss", "0.1"),
        ("batch", "x"),
    ] {
        let says = format!("--{flag} is for models of text; --model mlp has no use for it");
        refused(&["train", "--model", "mlp", &format!("--{flag}"), value], &says);
        if !["steps", "batch"].contains(&flag) {
            refused(&["price", "--model", "mlp", &format!("--{flag}"), value], &says);
        }
    }
    let config = ["train", "--model", "mlp", "--config", "x"];
    refused(&config, "the argument '--model <DIR|NAME>' cannot be used with '--config <FILE>'");
    for (flag, value) in [("epochs", "2"), ("hidden", "4")] {
        let says = format!("--{flag} is for --model mlp; a model of text has no use for it");
        refused(&["train", &format!("--{flag}"), value], &says);
    }
    refused(&["compare", "--epochs", "2"], "--epochs is for --model mlp; a model of text has no use for it");
    refused(
        &["compare", "--model", "mlp", "--epochs", "2", "--seconds", "1"],
        "the argument '--epochs <N>' cannot be used with '--seconds <S>'",
    );
    let prove = |more: &[&str], says: &str| refused(&[&["prove", "--layout", "tp=2"], more].concat(), says);
    prove(&["--hidden", "4"], "--hidden is for --model mlp; a model of text has no use for it");
    prove(
        &["--model", "mlp", "--config", "x"],
        "the argument '--model <MODEL>' cannot be used with '--config <FILE>'",
    );
    prove(
        &["--model", "mlp", "--dump", "x"],
        "the argument '--model <MODEL>' cannot be used with '--dump <DIR>'",
    );
    prove(&["--model", "gpt"], "invalid value 'gpt' for '--model <MODEL>'");
}

#[test]
fn classifiers_that_cannot_be_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), [120, 50]);
    let (data, missing) =
        (dir.path().display().to_string(), dir.path().join("missing").display().to_string());
    let train = |more: &[&str], says: &str| {
        refused(&[&["train", "--model", "mlp", "--data", &data, "--hidden", "24,6"], more].concat(), says);
    };
    train(&["--epochs", "0"], "--epochs is 0; it must be at least 1");
    train(&["--batch-size", "0"], "--batch-size is 0; it must be at least 1");
    train(&["--microbatches", "0"], "--microbatches is 0; it must be at least 1");
    train(
        &["--batch-size", "200", "--microbatches", "121"],
        "120 sequences in 121 microbatches: each needs at least one",
    );
    train(&["--lr", "nan"], "the peak learning rate is NaN; it must be a positive number");
    train(&["--lr", "0"], "the peak learning rate is 0; it must be a positive number");
    train(&["--clip", "-1"], "--clip is -1; it must be a positive number");
    train(&["--warmup", "99"], "the warm-up is 99 steps; it must be at most the 12 steps of the run");
    train(
        &["--layout", "tp=16"],
        "tp=16 does not fit 24 hidden features: tp can be 1, 2, 3, 4, 6, 8, 12 or 24",
    );
    train(&["--layout", "sp"], "");
    let sized = ["--model", "mlp", "--hidden", "24,6"];
    let compare = [&["compare"], &sized[..], &["--data", &data, "--epochs"]].concat();
    refused(&[&compare[..], &["0"]].concat(), "--epochs is 0; it must be at least 1");
    let says = "the split 2 and 2 is not 3 layers in 2 chunks of at least one each, such as 1,2";
    for command in [
        &[&["price"], &sized[..]].concat()[..],
        &[&["prove"], &sized[..]].concat(),
        &[&compare[..], &["1"]].concat(),
    ] {
        refused(&[command, &["--layout", "pp=2", "--split", "2,2"]].concat(), says);
    }
    train(&["--layout", "pp=2", "--split", "2,2"], says);
    train(
        &["--layout", "pp=2,tp=2", "--split", "1,2"],
        "the split 1 and 2 is not 2 pairs of layers in 2 chunks of at least one each, such as 1,1",
    );
    train(&["--layout", "pp=4"], "pp=4 does not fit 3 layers: pp can be 1, 2 or 3");
    let hidden = |sizes: &str, says: &str| {
        refused(&["train", "--model", "mlp", "--data", &data, "--hidden", sizes], says);
    };
    for (sizes, part) in [("", ""), ("24,", ""), ("24,x", "x"), ("0", "0"), ("-1", "-1"), ("1e3", "1e3")] {
        let says = format!(
            "invalid value '{sizes}' for '--hidden <SIZES>': {part:?} is not a hidden size; write numbers of 1 or more, \
             such as 512,512, or none"
        );
        hidden(sizes, &says);
    }
    // Numbers that no machine holds, and that nothing counts.
    hidden("99999999,99999999", "");
    hidden("9999999999999,9999999999999", "");
    refused(
        &["prove", "--model", "mlp", "--layout", "tp=3", "--hidden", "5,12,4"],
        "tp=3 does not fit 5 hidden features: tp can be 1",
    );
    refused(
        &["train", "--model", "mlp", "--data", &missing],
        &format!(
            "{missing} is not a directory; it must contain train-images-idx3-ubyte and \
             train-labels-idx1-ubyte for training, and t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte for \
             testing, each uncompressed or as .gz"
        ),
    );
    let file = dir.path().join("t10k-labels-idx1-ubyte").display().to_string();
    train(&["--out", &file], &format!("{file} is a file; the output must be a folder"));
    train(&["--lr", "1e30", "--epochs", "1"], "rank 0: the loss of step 2 is NaN; a smaller --lr may help");
}
