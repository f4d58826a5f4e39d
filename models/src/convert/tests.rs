//! Converted models: equal values where the dtype can represent them, rounded values elsewhere, and never
//! half a model.
use super::*;
use crate::model::tests::{folder, fused, golden, goldens, tensors, write};
use crate::names::tests::OWN;
use std::path::PathBuf;
use tempfile::TempDir;
use tensor::safetensors::File;

fn to(dir: &Path, dtype: Option<Dtype>) -> (TempDir, Converted) {
    let out = tempfile::tempdir().unwrap();
    let converted = convert(&Model::read(dir).unwrap(), out.path(), dtype).unwrap();
    (out, converted)
}
fn why(model: &Model, out: &Path, dtype: Option<Dtype>) -> String {
    let why = convert(model, out, dtype).unwrap_err().to_string();
    why.replace(&out.display().to_string(), "OUT")
}
/// The bytes of every tensor, by name.
fn bytes(dir: &Path) -> Vec<(String, Dtype, Vec<u64>)> {
    let shards = File::open_folder(dir).unwrap();
    let of = |(name, _, numbers): (String, _, Vec<f64>)| {
        let dtype = shards.info(&name).unwrap().dtype;
        (name, dtype, numbers.into_iter().map(f64::to_bits).collect())
    };
    tensors(dir).into_iter().map(of).collect()
}
fn files(dir: &Path) -> Vec<String> {
    let mut all: Vec<_> =
        fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    all.sort();
    all
}

/// Converts every golden folder to another dtype and back. Kills: a tensor under another tensor's name, a
/// tensor of another shape, a dtype that was not asked for, a configuration changed on the way.
#[test]
fn there_and_back_is_the_identity_where_numbers_are_exact() {
    for name in &goldens() {
        let (dir, config) = (golden(name), Model::read(&golden(name)).unwrap().config);
        let (own, unchanged) = to(&dir, None);
        assert_eq!(bytes(own.path()), bytes(&dir), "{name}");
        let wide = if unchanged.dtype == Dtype::F32 { Dtype::F64 } else { Dtype::F32 };
        for kind in [wide, unchanged.dtype] {
            let (there, converted) = to(&dir, Some(kind));
            assert_eq!(converted.dtype, kind);
            assert!(bytes(there.path()).iter().all(|(_, dtype, _)| *dtype == kind));
            assert_eq!(Model::read(there.path()).unwrap().config, config);
            let (back, _) = to(there.path(), Some(unchanged.dtype));
            assert_eq!(bytes(back.path()), bytes(&dir), "{name} by {kind}");
            assert_eq!(files(back.path()), ["config.json", "model.safetensors"]);
            let text = fs::read_to_string(back.path().join("config.json")).unwrap();
            assert_eq!(text, config.to_json_in(unchanged.dtype));
        }
        let numbers: usize = tensors(&dir).iter().map(|(.., numbers)| numbers.len()).sum();
        assert_eq!(
            (unchanged.tensors, unchanged.bytes),
            (bytes(&dir).len(), numbers * unchanged.dtype.bitsize() / 8)
        );
    }
}

/// Kills: a router's bias or a shared expert written under another name.
#[test]
fn experts_of_our_own_are_written_again() {
    let source = tempfile::tempdir().unwrap();
    fs::write(source.path().join(CONFIG), OWN).unwrap();
    let config = crate::Config::parse(OWN, "").unwrap();
    let entries = names::entries(&config).into_iter().enumerate();
    let all = entries.map(|(i, entry)| {
        let (shape, first) = (entry.shape(), 100.0 * i as f64);
        let numbers = (0..shape.iter().product()).map(|n: usize| first + n as f64).collect();
        (entry.name, shape, numbers)
    });
    write(source.path(), &all.collect::<Vec<_>>());
    let (out, _) = to(source.path(), None);
    assert_eq!((bytes(out.path()), tensors(out.path())), (bytes(source.path()), tensors(source.path())));
    assert_eq!(Model::read(out.path()).unwrap().config, config);
}

/// Kills: a fused tensor written once for each of its parts, a dtype that is not that of the fused experts.
#[test]
fn fused_experts_are_written_one_by_one() {
    for name in ["mixtral", "qwen2-moe", "qwen3-moe"] {
        let single = tensors(&golden(name));
        let source = folder(name, &fused(&single));
        let (out, converted) = to(source.path(), None);
        assert_eq!((tensors(out.path()), converted.dtype), (single, Dtype::F64), "{name}");
    }
}

/// Kills: a generation setting lost on the way, a generation setting invented.
#[test]
fn what_config_json_says_of_generation_goes_along() {
    let source = tempfile::tempdir().unwrap();
    let path = source.path().join(CONFIG);
    fs::copy(golden("linear").join("model.safetensors"), source.path().join("model.safetensors")).unwrap();
    let mut config: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(golden("linear").join(CONFIG)).unwrap()).unwrap();
    for (key, value) in [("do_sample", true.into()), ("top_k", 5.into()), ("num_beams", 3.into())] {
        let key: &str = key;
        config[key] = value;
    }
    (config["eos_token_id"], config["length_penalty"]) = ([3, 4].as_slice().into(), 2.0.into());
    fs::write(&path, config.to_string()).unwrap();
    let (out, converted) = to(source.path(), None);
    assert_eq!(converted.along, ["config.json", "generation_config.json"]);
    let reported = |dir: &Path| {
        let generation = Model::read(dir).unwrap().generation(None).unwrap();
        let note = generation.note(false).unwrap().split_once(" asks for ").unwrap().1.to_owned();
        (generation.sampling, generation.eos, note)
    };
    assert_eq!(reported(out.path()), reported(source.path()));
    let text = fs::read_to_string(out.path().join("generation_config.json")).unwrap();
    let kept: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&kept["length_penalty"], &kept["hidden_size"]), (&2.0.into(), &serde_json::Value::Null));
}

/// Compares with a second implementation of rounding, on the bits of f32. Kills: truncation, rounding by way
/// of another dtype.
#[test]
fn numbers_are_rounded_to_the_nearest() {
    for name in ["llama", "qwen3", "gpt2-erf"] {
        let (out, _) = to(&golden(name), Some(Dtype::BF16));
        let upper = |x: f64| {
            let bits = (x as f32).to_bits();
            f64::from(f32::from_bits((bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16))
        };
        for ((name, _, wide), (_, _, narrow)) in tensors(&golden(name)).into_iter().zip(tensors(out.path())) {
            assert_eq!(wide.into_iter().map(upper).collect::<Vec<_>>(), narrow, "{name}");
        }
        let (out, _) = to(&golden(name), Some(Dtype::F16));
        for ((name, _, wide), (_, _, narrow)) in tensors(&golden(name)).into_iter().zip(tensors(out.path())) {
            let near = |x: f64, y: f64| (x - y).abs() <= x.abs() / 2048.0 + 2f64.powi(-25);
            assert!(wide.iter().zip(&narrow).all(|(x, y)| near(*x, *y)), "{name}");
        }
    }
}

#[test]
fn names_become_those_that_save_pretrained_writes() {
    let mut all = tensors(&golden("gpt2"));
    for tensor in &mut all {
        tensor.0 = tensor.0.replace("transformer.", "");
    }
    all.push(("h.0.attn.bias".into(), vec![1, 1, 1, 1], vec![1.0]));
    let old = folder("gpt2", &all);
    let (out, converted) = to(old.path(), Some(Dtype::F16));
    assert_eq!((bytes(out.path()), converted.tensors), (bytes(&golden("gpt2")), 28));
    let file = File::open(&out.path().join("model.safetensors")).unwrap();
    assert_eq!(file.metadata()["format"], "pt");
}

/// Kills: a dtype invented where the model has one, one of several dtypes taken for all.
#[test]
fn the_kind_of_number_is_the_models_own_unless_it_has_several() {
    for (name, wanted) in [("llama", Dtype::F32), ("mistral", Dtype::F16), ("qwen2", Dtype::BF16)] {
        assert_eq!(to(&golden(name), None).1.dtype, wanted);
    }
    let all = tensors(&golden("linear"));
    let folder = folder("linear", &all);
    assert_eq!(to(folder.path(), None).1.dtype, Dtype::F64);
    let kind = |i| if i == 3 { Dtype::F32 } else { Dtype::F64 };
    let header: Vec<_> =
        all.iter().enumerate().map(|(i, (name, shape, _))| (name, kind(i), shape.clone())).collect();
    let path = folder.path().join("model.safetensors");
    let mut writer = Writer::create(&path, &[].into(), &header).unwrap();
    for (i, (name, _, numbers)) in all.iter().enumerate() {
        match kind(i) {
            Dtype::F64 => writer.tensor(name, numbers).unwrap(),
            _ => writer.tensor(name, &numbers.iter().map(|x| *x as f32).collect::<Vec<_>>()).unwrap(),
        }
    }
    writer.finish().unwrap();
    assert_eq!(to(folder.path(), None).1.dtype, Dtype::F32);
}

/// Kills: infinity written for a value out of range, a folder that looks like a model after the error.
#[test]
fn a_number_too_large_is_named_and_leaves_no_model() {
    let mut all = tensors(&golden("linear"));
    all[5].2[7] = -1e5;
    let folder = folder("linear", &all);
    let out = tempfile::tempdir().unwrap();
    let model = Model::read(folder.path()).unwrap();
    let large = format!("tensor {:?} has the value -100000, which is too large for F16", all[5].0);
    assert_eq!(why(&model, out.path(), Some(Dtype::F16)), format!("OUT/model.safetensors: {large}"));
    assert!(files(out.path()).is_empty());
    assert!(convert(&model, out.path(), Some(Dtype::BF16)).is_ok());
    all[5].2[7] = f64::NEG_INFINITY; // an infinity loses nothing
    write(folder.path(), &all);
    let (out, _) = to(folder.path(), Some(Dtype::F16));
    assert_eq!(tensors(out.path())[5].2[7], f64::NEG_INFINITY);
}

/// Writes a model with a companion file that cannot be read: a process's memory. Kills: a model written
/// before its companion files, companion files left behind after an error.
#[test]
#[cfg(target_os = "linux")]
fn the_model_comes_last() {
    let (source, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden("linear").join(file), source.path().join(file)).unwrap();
    }
    std::os::unix::fs::symlink("/proc/self/mem", source.path().join("vocab.json")).unwrap();
    let why = why(&Model::read(source.path()).unwrap(), out.path(), None);
    assert!(why.starts_with(&format!("cannot read {}/vocab.json: ", source.path().display())), "{why}");
    assert!(files(out.path()).is_empty(), "{:?}", files(out.path()));
    fs::remove_file(source.path().join("vocab.json")).unwrap();
    assert!(convert(&Model::read(source.path()).unwrap(), out.path(), None).is_ok());
}

#[test]
fn a_folder_that_is_not_empty_is_left_as_it_is() {
    let model = Model::read(&golden("linear")).unwrap();
    let out = tempfile::tempdir().unwrap();
    let at = |name: &str| out.path().join(name);
    let wanted = "the output must be an empty folder or a new one";
    fs::write(at("file"), "x").unwrap();
    assert_eq!(why(&model, out.path(), None), format!("OUT is not empty; {wanted}"));
    assert_eq!(why(&model, &at("file"), None), format!("OUT is a file; {wanted}"));
    assert_eq!(why(&model, &golden("linear"), None), format!("OUT is not empty; {wanted}"));
    assert!(why(&model, &at("file/new"), None).starts_with("cannot create OUT: "));
    assert_eq!(files(out.path()), ["file"]);
    assert!(convert(&model, &at("new/folder"), None).is_ok());
    assert_eq!(files(&at("new/folder")), ["config.json", "model.safetensors"]);
    let kind = "weights cannot be written as U8; choose F32, BF16 or F16";
    assert_eq!(why(&model, &at("other"), Some(Dtype::U8)), kind);
    let fresh = Model::fresh(model.config.clone(), 3);
    let nothing = "fresh weights of seed 3 are not in a file; train the model, then convert the folder that \
                   training writes";
    assert_eq!(why(&fresh, &at("other"), None), nothing);
    assert!(!at("other").exists());
}

#[test]
fn what_text_is_read_with_goes_along() {
    let source = tempfile::tempdir().unwrap();
    let at = |name: &str| source.path().join(name);
    for file in ["config.json", "model.safetensors"] {
        fs::copy(golden("linear").join(file), at(file)).unwrap();
    }
    for name in
        ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"]
    {
        fs::write(at(name), format!("of {name}")).unwrap();
    }
    fs::write(at("merges.txt"), "").unwrap();
    fs::write(at("optimizer-3.safetensors"), "x").unwrap();
    fs::create_dir(at("tokenizer.model")).unwrap();
    let (out, converted) = to(source.path(), None);
    let wanted: &[&str] = &["config.json", "generation_config.json", "merges.txt", "model.safetensors"];
    let wanted = [wanted, &["special_tokens_map.json", "tokenizer.json", "tokenizer_config.json"]].concat();
    assert_eq!(files(out.path()), wanted);
    assert_eq!(converted.along.len(), 6);
    assert_eq!(fs::read(out.path().join("tokenizer.json")).unwrap(), b"of tokenizer.json");

    let out: PathBuf = source.path().join("default");
    convert(&Model::embedded().unwrap(), &out, Some(Dtype::BF16)).unwrap();
    let default = Model::read(&out).unwrap();
    assert!(default.tokenizer().unwrap().is_of_bytes());
    assert_eq!(default.config, Model::embedded().unwrap().config);
}
