//! Checkpoints that something broke: each is refused with one sentence that names the tensor or the file, by
//! every command that reads it, and nothing in the folder changes.
use crate::child::{equipart, refused};
use crate::endings::small;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tensor::safetensors::{File, Writer};

/// Trains a few steps into a folder, with more flags; returns the folder and the text.
fn trained(more: &[&str]) -> (tempfile::TempDir, String, String) {
    let (dir, config, text) = small();
    let out = dir.path().join("run").display().to_string();
    let args =
        ["train", "--config", &config, "--data", &text, "--seq", "32", "--steps", "4", "--stop-after", "3"];
    let output = equipart(&[&args[..], &["--out", &out], more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (dir, out, text)
}

fn files(folder: &str) -> BTreeMap<String, Vec<u8>> {
    let all = fs::read_dir(folder).unwrap().map(|file| file.unwrap());
    all.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

/// Changes a byte in the middle of a tensor.
fn alter(path: &Path, tensor: &str) {
    let at = {
        let file = File::open(path).unwrap();
        let all = fs::read(path).unwrap();
        let (_, _, bytes) = file.whole(tensor).unwrap();
        all.windows(bytes.len()).position(|some| some == bytes).unwrap() + bytes.len() / 2
    };
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

/// Kills: a digest that a command does not check, a tensor that is charged to another, an optimizer's file
/// that is not checked, or is another run's of the same shapes; a truncated file that is read, a missing
/// shard, a folder that is changed by a refusal.
#[test]
fn a_broken_checkpoint_is_refused_by_name() {
    let (_dir, out, text) = trained(&[]);
    let whole = files(&out);
    let [model, optimizer] =
        ["model.safetensors", "optimizer-3.safetensors"].map(|name| Path::new(&out).join(name));
    let generate = ["generate", "--model", &out, "--prompt", "a", "--layout", "tp=2"];
    let eval = ["eval", "--model", &out, "--data", &text, "--seq", "16", "--verify"];
    let resume = ["train", "--resume", &out, "--data", &text, "--layout", "dp=2:zero3"];
    let converted = format!("{out}-converted");
    let convert = ["convert", "--model", &out, "--out", &converted];
    let restored =
        || whole.iter().for_each(|(name, bytes)| fs::write(Path::new(&out).join(name), bytes).unwrap());
    let check = |commands: &[&[&str]], says: &str| {
        let before = files(&out);
        for args in commands {
            refused(args, says);
        }
        assert!(files(&out) == before, "{says}");
        restored();
    };
    for tensor in ["model.layers.0.mlp.down_proj.weight", "model.norm.weight"] {
        alter(&model, tensor);
        let says =
            format!("model.safetensors: tensor \"{tensor}\" is torn or altered: its digest is another");
        check(&[&generate, &eval, &resume, &convert], &says);
    }
    let (_other, other, _) = trained(&["--lr", "0.25"]);
    fs::copy(Path::new(&other).join("optimizer-3.safetensors"), &optimizer).unwrap();
    check(&[&resume], "optimizer-3.safetensors is of another run or step than the model beside it");
    alter(&optimizer, "v.blocks.0.attention.qkv");
    check(&[&resume], "optimizer-3.safetensors: tensor \"v.blocks.0.attention.qkv\" is torn or altered");
    let bytes = &whole["model.safetensors"];
    fs::write(&model, &bytes[..bytes.len() - 10]).unwrap();
    check(&[&generate, &eval, &resume], "of the data, but the file has only");
    let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let at = text_of(bytes).find("\"step\":\"3\"").unwrap() + 8;
    let mut changed = bytes.clone();
    let at = bytes.windows(10).position(|some| some == b"\"step\":\"3\"").unwrap_or(at) + 8;
    changed[at] = b'4';
    fs::write(&model, changed).unwrap();
    check(&[&generate, &eval, &resume], "model.safetensors: the header is altered: its digest is");
    let notes = |format: &str| {
        let file = File::open(&model).unwrap();
        let mut notes = file.metadata().clone();
        notes.insert("checkpoint_format".into(), format.into());
        let names = file.in_order();
        let header: Vec<_> = names
            .iter()
            .map(|name| (*name, file.info(name).unwrap().dtype, file.info(name).unwrap().shape.clone()))
            .collect();
        let mut writer = Writer::create(&model, &notes, &header).unwrap();
        for (name, _, shape) in &header {
            let shape = if let [rows, cols] = shape[..] { [rows, cols] } else { [1, shape[0]] };
            writer.matrix(name, &file.matrix(name, shape).unwrap()).unwrap();
        }
        writer.finish().unwrap();
    };
    notes("2");
    check(&[&resume], "is a checkpoint of format \"2\"; this version reads formats up to 1");
    let resumed = equipart(&resume);
    assert!(resumed.status.success(), "{}", String::from_utf8_lossy(&resumed.stderr));
}

/// Kills: a shard that is not looked for, an index that names no files of this step.
#[test]
fn a_missing_shard_is_named() {
    let (_dir, out, text) = trained(&["--max-shard-size", "3kB"]);
    let shard = files(&out).into_keys().find(|name| name.starts_with("model-3-00002-of-")).unwrap();
    let generate = ["generate", "--model", &out, "--prompt", "a", "--max-new", "2"];
    assert!(equipart(&generate).status.success());
    fs::remove_file(Path::new(&out).join(&shard)).unwrap();
    let says = format!("in \"{shard}\", but there is no such file");
    refused(&generate, &says);
    refused(&["train", "--resume", &out, "--data", &text], &says);
}
