//! Ranks as processes that read other files, and such that are stopped.
use super::{CONFIG, port, rank, small, text, told_once};
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
/// also that of a proof, a batch, a tokenizer, a generation config or weights that differ and go unnoticed,
/// or are reported without the file or the ranks.
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
    let prove = ["prove", "--config", "model/config.json", "--layout", "tp=2"];
    let generate =
        ["generate", "--model", "model", "--prompt-ids", "1,2", "--layout", "tp=2", "--max-new", "1"];
    let both = |args: &[&str]| apart([&folders[0], &folders[1]], args);
    let reported = |args: &[&str], says: &str| {
        let said = told_once(both(args).into());
        assert!(said.contains(says), "{args:?}: {said}");
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
        ("model/config.json", &prove),
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
        let said = told_once(ranks.into_iter().map(Watched::output).collect());
        assert!(begun.elapsed().as_secs_f64() < 5.0 + 15.0, "{layout}: {:?}", begun.elapsed());
        let rank = 1 + round % 2;
        let is_named = |said: &str| {
            // beside ranks that wait for it
            let (late, _) = said.split_once(" did not arrive within 5s").unwrap_or_default();
            let late = late.rsplit("rank").next().is_some_and(|ranks| ranks.contains(&rank.to_string()));
            late || said.contains(&format!("waits for rank {rank} in ")) // the last of a chain
        };
        assert!(is_named(&said), "{layout}: {said:?}");
        signal("-CONT");
        assert_eq!(stopped.output().status.code(), Some(2), "{layout}: it goes no further");
        assert!(!Path::new(&out).join("model.safetensors").exists(), "{layout}: nothing is saved");
    }
}

/// Ends a rank as mpirun does when another rank is lost. Kills: a rank that does not tell its last calls,
/// tells those of another rank, or goes on; calls that are told of a rank that torchrun ends.
#[test]
fn a_rank_of_mpi_that_sigterm_ends_tells_its_last_calls() {
    use std::os::unix::process::ExitStatusExt;
    let (_dir, config, batch) = small();
    let train = ["train", "--json", "--config", &config, "--batch", &batch, "--steps", "1000000"];
    let train = [&train[..], &["--layout", "dp=2", "--timeout", "5"]].concat();
    let ended = |[rank_name, size_name]: [&str; 2]| {
        let port = port();
        let [mut zero, one] = [0, 1].map(|place| {
            let mut command = rank(place, 2, port, &train);
            command
                .env_remove("RANK")
                .env_remove("WORLD_SIZE")
                .env("EQUIPART_SECRET", "a secret of sixteen bytes");
            Watched::start(command.env(rank_name, place.to_string()).env(size_name, "2"))
        });
        let mut lines = std::io::BufReader::new(zero.process.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut lines, &mut String::new()).unwrap(); // steps are under way
        let id = one.process.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let one = one.output();
        drop(lines);
        assert_eq!((one.status.signal(), zero.output().status.code()), (Some(15), Some(2)));
        text(&one.stderr)
    };
    let said = ended(["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]);
    let rows: Vec<_> = said.lines().collect();
    assert_eq!(rows[0], "rank 1 was ended by SIGTERM; its last calls:", "{said}");
    assert!(rows.len() > 3 && rows[2..].iter().all(|row| row.starts_with("   1  ")), "{said}");
    assert!(rows[2].contains(" over dp ") && rows.last().unwrap().ends_with("still runs"), "{said}");
    assert_eq!(ended(["RANK", "WORLD_SIZE"]), "");
}

/// Trains from two folders, whose paths differ in length, into one. Kills: a file whose header, and so the
/// place of each tensor, depends on the folder from which a rank was started.
#[test]
fn ranks_that_start_in_different_folders_write_one_checkpoint() {
    let (dir, config, batch) = super::small();
    let folders = ["a", "a-folder-with-a-much-longer-name"].map(|name| dir.path().join(name));
    for folder in &folders {
        std::fs::create_dir(folder).unwrap();
        std::fs::copy(&config, folder.join("config.json")).unwrap();
        std::fs::copy(&batch, folder.join("ids.json")).unwrap();
    }
    let [alone, both] = ["alone", "both"].map(|name| dir.path().join(name).display().to_string());
    let train = [
        "train",
        "--config",
        "config.json",
        "--batch",
        "ids.json",
        "--steps",
        "1",
        "--layout",
        "tp=2",
        "--optimizer",
        "adamw",
    ];
    assert!(output(binary().args(train).args(["--out", &alone]).current_dir(&folders[0])).status.success());
    for ended in apart([&folders[0], &folders[1]], &[&train[..], &["--out", &both]].concat()) {
        assert!(ended.status.success(), "{}", text(&ended.stderr));
    }
    super::same_files(alone.as_ref(), both.as_ref());
}
