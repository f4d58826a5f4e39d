//! `--memory-limit`: what a rank would hold beyond it is refused beforehand, with what asked for it.
use crate::child::{SHORT, equipart, refused};
use kernels::Heads;
use layers::Shape;
use ops::{RandomValues, SGD};
use parallel::{BuildContext, Layout, session};
use run::price::program;
use run::train::settings::Settings;
use tensor::{Category, Cpu};

/// The words of a refusal: the category and bytes held, the smallest limit that works.
fn words(args: &[&str], limit: usize) -> (String, usize) {
    let bytes = limit.to_string();
    let limited = [args, &["--memory-limit", &bytes]].concat();
    let output = equipart(&limited);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.is_empty()), (Some(2), true), "{limited:?}: {error}");
    let (asked, category) = error.split_once(" more bytes of ").unwrap_or_else(|| panic!("{error}"));
    let held = category.split_once("beside the ").and_then(|(_, held)| held.split(' ').next());
    let [asked, held] = [asked.rsplit(' ').next(), held].map(|n| n.unwrap().parse::<usize>().unwrap());
    assert!(held <= limit && asked + held > limit, "{error}");
    assert!(error.contains(&format!("the limit is {limit}; ")), "{error}");
    let works = error.rsplit("; ").next().unwrap().split(' ').next().unwrap();
    (category.split(' ').next().unwrap().to_string(), works.parse().unwrap())
}

/// The limit that each refusal says works does, and one byte less does not. Kills: a command that takes the
/// flag and ignores it, another rank's peak, a limit that must not be reached, one that works for the first
/// part of the work alone.
#[test]
fn the_smallest_limit_that_works_does() {
    let train =
        ["train", "--steps", "1", "--seq", "16", "--batch-size", "2", "--layout", "tp=2", "--data", SHORT];
    let generate = ["generate", "--prompt", "a b", "--max-new", "4", "--layout", "tp=2,sp"];
    let price = ["price", "--seq", "16", "--batch-size", "3", "--layout", "dp=2"];
    let eval = ["eval", "--seq", "64", "--layout", "dp=2", "--data", SHORT];
    let (_dir, config) = crate::memory::sized("8", "256", "48");
    let prove = ["prove", "--layout", "tp=2", "--config", &config];
    let (_model_dir, model, text) = crate::memory::trained();
    let compare = [
        "compare",
        "--layout",
        "tp=2",
        "--model",
        &model,
        "--data",
        &text,
        "--seconds",
        "0",
        "--microbatches",
        "2",
    ];
    let panel = ["prove", "--layout", "tp=2"];
    let largest = ["price", "--largest-batch", "--seq", "16", "--microbatches", "3", "--layout", "dp=2"];
    let auto =
        ["train", "--steps", "1", "--seq", "16", "--batch-size", "auto", "--layout", "dp=2", "--data", SHORT];
    let parts = [
        "train",
        "--steps",
        "1",
        "--seq",
        "16",
        "--batch-size",
        "5",
        "--microbatches",
        "auto",
        "--data",
        SHORT,
    ];
    // a step's loss and norm are not held beside the evaluation that follows it
    let evaluated = "train --steps 2 --seq 32 --batch-size 2 --eval-every 1 --layout dp=2:zero3 --data";
    let evaluated: Vec<_> = evaluated.split(' ').chain([&*text, "--config", &config]).collect();
    for args in
        [&evaluated, &largest[..], &auto, &parts, &train, &generate, &price, &eval, &prove, &compare, &panel]
    {
        let (_, works) = words(args, 5000);
        let limited = |bytes: usize| {
            let bytes = bytes.to_string();
            equipart(&[args, &["--memory-limit", &bytes]].concat()).status.code()
        };
        assert_eq!((limited(works), limited(works - 1)), (Some(0), Some(2)), "{args:?} within {works}");
    }
}

/// Two checkpoints in the background, from copies that steps go on beside. Kills: a copy that no price
/// counts, two copies at once.
#[test]
fn a_copy_that_is_saved_counts_against_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    for layout in ["dp=2:zero1", "tp=2", "dp=2:zero3,offload-file"] {
        let out = crate::memory::path(&dir, &layout.replace([':', ','], "-"));
        let args = ["train", "--steps", "4", "--seq", "4", "--batch-size", "2", "--checkpoint-every", "1"];
        let args = [&args[..], &["--layout", layout, "--out", &out, "--data", SHORT]].concat();
        let background = [&args[..], &["--save", "async"]].concat();
        let [(_, between), (_, works)] = [words(&args, 5000), words(&background, 5000)];
        assert!(between < works, "{layout}: {between} and {works}");
        assert_eq!(words(&background, works - 1).1, works);
        let bytes = works.to_string();
        let limited = [&background[..], &["--memory-limit", &bytes]].concat();
        let output = equipart(&limited);
        assert!(output.status.success(), "{layout}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Half a microbatch of one sequence fits, and every folder and file that a command is told to write to is
/// named. Kills: a run that is refused after it has begun to write.
#[test]
fn where_a_limit_refuses_nothing_is_written() {
    let (model_dir, model, text) = crate::memory::trained();
    let config = crate::memory::path(&model_dir, "config.json");
    let dir = tempfile::tempdir().unwrap();
    let [out, dump, trace] = ["out", "dump", "trace.json"].map(|name| crate::memory::path(&dir, name));
    let train = ["train", "--config", &config, "--data", &text, "--steps", "2", "--seq", "32", "--out", &out];
    let learn =
        [&train[..], &["--batch-size", "1", "--microbatches", "1", "--dump", &dump, "--trace", &trace]];
    let generate = [
        "generate",
        "--model",
        &model,
        "--prompt-ids",
        "1,2",
        "--max-new",
        "4",
        "--dump",
        &dump,
        "--trace",
        &trace,
    ];
    let eval = ["eval", "--model", &model, "--data", &text, "--seq", "16"];
    let compare = ["compare", "--layout", "tp=2", "--model", &model, "--data", &text, "--trace", &trace];
    let prove = ["prove", "--layout", "tp=2", "--config", &config, "--dump", &dump];
    let price = ["price", "--layout", "tp=2", "--config", &config, "--seq", "16", "--batch-size", "1"];
    for args in [&learn.concat()[..], &generate, &eval, &compare, &prove, &price] {
        let (_, works) = words(args, 1);
        words(args, works / 2);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{args:?}");
    }
}

/// A step under every limit below its peak, and a generation. Kills: a category that is never named, or named
/// for another.
#[test]
fn every_category_is_named() {
    let price = ["price", "--seq", "4", "--batch-size", "1"];
    let named = |args: &[&str], share: usize| {
        let (_, works) = words(args, 1);
        words(args, works / 100 * share).0
    };
    let mut seen: Vec<_> = (1..100).step_by(3).map(|share| named(&price, share)).collect();
    let offload = [&price[..], &["--layout", "offload-file"]].concat();
    seen.extend((80..100).map(|share| named(&offload, share)));
    let generate = ["generate", "--prompt-ids", "1,2,3", "--max-new", "300"];
    seen.extend((60..100).step_by(2).map(|share| named(&generate, share)));
    let out = tempfile::tempdir().unwrap().path().display().to_string();
    let save = ["train", "--seq", "4", "--batch-size", "1", "--steps", "1", "--out", &out, "--save", "async"];
    seen.extend((60..100).step_by(8).map(|share| named(&save, share)));
    for &category in Category::ALL {
        assert!(
            seen.iter().any(|name| name == category.name()),
            "{} is never named in {seen:?}",
            category.name()
        );
    }
}

/// In a run itself, where nothing was foreseen. Kills: a world whose ranks know no limit, a failure that
/// names no rank.
#[test]
fn a_rank_that_asks_for_more_fails_with_what_it_asked_for() {
    let layout: Layout = "tp=2".parse().unwrap();
    let settings = Settings { optimizer: SGD, clip: None, ..crate::memory::settings(8, 1) };
    let heads = Heads::new(4, 2, 4);
    let shape = Shape { width: 16, heads, hidden: 12, vocabulary: 11, ..Shape::LLAMA };
    let run = |bytes| {
        let world = layout.limited(Some(bytes)).world().unwrap();
        session::run((&layout, &world), &RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| {
            program(&at, shape, &settings).map(|cost| cost.peaks.total)
        })
    };
    let most = run(usize::MAX).unwrap().into_iter().max().unwrap();
    assert!(run(most).is_ok());
    let why = run(most - 1).unwrap_err().to_string();
    assert!(why.starts_with("rank ") && why.contains(" more bytes of "), "{why}");
    assert!(why.contains(&format!("the limit is {}", most - 1)), "{why}");
}

#[test]
fn a_limit_is_a_number_of_bytes() {
    refused(
        &["price", "--memory-limit", "2gb"],
        "\"2gb\" is not a number of bytes; write one with or without a unit",
    );
    let under = |limit: &str| equipart(&["price", "--json", "--memory-limit", limit]);
    let reported = |limit: &str| String::from_utf8(under(limit).stderr).unwrap();
    assert!(under("2GB").status.success() && under("2GiB").status.success());
    assert_eq!(reported("2kB"), reported("2000"), "a unit of 1000");
    assert!(
        reported("2KiB").contains("the limit is 2048; ")
            && reported("2KiB").ends_with(" MB) are the smallest limit that works\n")
    );
    refused(&["prove", "--cases", "1", "--memory-limit", "5"], "cannot be used with");
    refused(&["train", "--memory-limit", "0", "--steps", "1"], "beside the 0 held: the limit is 0; ");
}
