//! Ranks as processes that read other files, and such that are stopped.
use super::{CONFIG, port, rank, sentence, small, text};
use crate::child::{Watched, binary, foreign, output};
use std::path::Path;
use std::process::{Command, Output};

/// Two ranks, each in a folder of its own, with what each ends with.
fn apart(folders: [&Path; 2], args: &[&str]) -> [Output; 2] {
    let port = port();
    let ranks = [0, 1].map(|place| Watched::start(rank(place, 2, port, args).current_dir(folders[place])));
    ranks.map(Watched::output)
}

/// Ranks that are asked for the same, where a file of rank 1 is another than that of rank 0. Kills: a config,
/// a batch, a tokenizer, a generation config or weights that differ and go unnoticed, or are reported without
/// the file or the ranks.
#[test]
fn ranks_that_read_different_files_are_told_so() {
    let (dir, config, batch) = small();
    let folders = ["zero", "one"].map(|name| dir.path().join(name));
    let large =
        CONFIG.replace("\"hidden_size\": 16", "\"hidden_size\": 128").replace("256, \"max", "20000, \"max");
    std::fs::write(dir.path().join("large.json"), large).unwrap();
    let large = dir.path().join("large.json").display().to_string();
    for (name, config) in [("model", &config), ("large", &large)] {
        let out = folders[0].join(name).display().to_string();
        let made = output(
            binary().args(["train", "--config", config, "--batch", &batch, "--steps", "1", "--out", &out]),
        );
        assert!(made.status.success(), "{}", text(&made.stderr));
    }
    std::fs::copy(&batch, folders[0].join("ids.json")).unwrap();
    let file = folders[0].join("large/model.safetensors");
    std::fs::write(&file, foreign(std::fs::read(&file).unwrap())).unwrap();
    let files = |folder: &Path| {
        for name in ["model", "large"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            for file in std::fs::read_dir(folders[0].join(name)).unwrap() {
                let file = file.unwrap();
                std::fs::copy(file.path(), folder.join(name).join(file.file_name())).unwrap();
            }
        }
        std::fs::copy(&batch, folder.join("ids.json")).unwrap();
    };
    files(&folders[1]);
    let eval = ["eval", "--json", "--model", "model", "--batch", "ids.json", "--layout", "dp=2"];
    let train =
        ["train", "--config", "model/config.json", "--batch", "ids.json", "--steps", "1", "--layout", "tp=2"];
    let generate =
        ["generate", "--model", "model", "--prompt-ids", "1,2", "--layout", "tp=2", "--max-new", "1"];
    let both = |args: &[&str]| apart([&folders[0], &folders[1]], args);
    let reported = |args: &[&str], says: &str| {
        for output in both(args) {
            let said = sentence(&output);
            assert!(said.contains(says), "{args:?}: {said}");
        }
    };
    let [zero, _] = both(&eval);
    assert!(zero.status.success(), "{}", text(&zero.stderr));
    let changed = |name: &str, change: &dyn Fn(Vec<u8>) -> Vec<u8>| {
        let file = folders[1].join(name);
        std::fs::write(&file, change(std::fs::read(&file).unwrap())).unwrap();
    };
    let newer = |bytes: Vec<u8>| [bytes, b" ".to_vec()].concat();
    for (name, args) in [
        ("ids.json", &eval[..]),
        ("model/config.json", &train),
        ("model/config.json", &generate),
        ("model/model.safetensors", &eval),
    ] {
        let flipped = |mut bytes: Vec<u8>| {
            *bytes.last_mut().unwrap() ^= 1;
            bytes
        };
        changed(name, if name.ends_with("json") { &newer } else { &flipped });
        reported(args, &format!("ranks read different files as \"{name}\": rank 1 has a file of "));
        files(&folders[1]);
    }
    // Of a large file only what both read is compared, unless all is asked for: here a number of the head's
    // last row.
    assert!(std::fs::metadata(folders[1].join("large/model.safetensors")).unwrap().len() > 1 << 24);
    changed("large/model.safetensors", &|mut bytes| {
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    });
    let large = ["eval", "--json", "--model", "large", "--batch", "ids.json", "--layout"];
    reported(
        &[&large[..], &["dp=2"]].concat(),
        "ranks 0 and 1 read different values of the tensor \"lm_head.weight of large/model.safetensors\"",
    );
    assert!(both(&[&large[..], &["tp=2"]].concat())[0].status.success(), "that row is rank 1's alone");
    reported(
        &[&large[..], &["tp=2", "--verify"]].concat(),
        "ranks read different files as \"large/model.safetensors\": rank 1 has",
    );
}

/// Stops a rank of three at a drawn moment of training, and lets it go on when the others have ended;
/// `EQUIPART_STOPS` says how often. Kills: a stopped rank that is waited for longer than the limit, or is not
/// named; one that goes on and reads what is gone, saves, or ends without a sentence.
#[test]
fn a_process_that_is_stopped_is_named_and_ends_when_it_goes_on() {
    let (dir, config, batch) = small();
    let rounds = std::env::var("EQUIPART_STOPS").map_or(2, |n| n.parse().unwrap());
    for round in 0..rounds {
        let layout = ["dp=3", "dp=3:zero3", "pp=3:naive"][round % 3];
        let config = if round % 3 == 2 {
            let four = dir.path().join("four.json");
            std::fs::write(&four, CONFIG.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 4"))
                .unwrap();
            four.display().to_string()
        } else {
            config.clone()
        };
        let out = dir.path().join(format!("out {round}")).display().to_string();
        let train = [
            "train",
            "--json",
            "--config",
            &config,
            "--batch",
            &batch,
            "--steps",
            "1000000",
            "--layout",
            layout,
            "--timeout",
            "5",
            "--out",
            &out,
            "--checkpoint-every",
            "1000000",
        ];
        let port = port();
        let mut ranks: Vec<_> =
            (0..3).map(|place| Watched::start(&mut rank(place, 3, port, &train))).collect();
        let mut lines = std::io::BufReader::new(ranks[0].process.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut String::new()).unwrap(); // steps are under way
        std::thread::sleep(std::time::Duration::from_micros(tensor::mix(round as u64) % 50_000));
        let stopped = ranks.remove(1 + round % 2);
        let signal = |name: &str| {
            let id = stopped.process.id().to_string();
            assert!(Command::new("kill").args([name, &id]).status().unwrap().success());
        };
        signal("-STOP");
        let begun = std::time::Instant::now();
        drop(lines);
        let said: Vec<_> = ranks.into_iter().map(|rank| sentence(&rank.output())).collect();
        assert!(begun.elapsed().as_secs_f64() < 5.0 + 4.0, "{layout}: {:?}", begun.elapsed());
        let rank = 1 + round % 2;
        let is_named = |said: &String| {
            // beside ranks that wait for it
            let (late, _) = said.split_once(" did not arrive within 5s").unwrap_or_default();
            let late = late.rsplit("rank").next().is_some_and(|ranks| ranks.contains(&rank.to_string()));
            late || said.contains(&format!("waits for rank {rank} in ")) // the last of a chain
        };
        assert!(said.iter().all(is_named), "{layout}: {said:?}");
        signal("-CONT");
        sentence(&stopped.output());
        assert!(!Path::new(&out).join("model.safetensors").exists(), "{layout}: nothing is saved");
    }
}
