//! Model folders: reading the golden folders, which `transformers` wrote, and refusing invalid ones.
use super::*;
use crate::generate::all_logits;
use crate::tokenizer;
use ops::VALUE;
use parallel::checkpoint::{self, CheckpointFile};
use parallel::{Network, Stages};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use tempfile::TempDir;
use tensor::Cpu;
use tensor::bulk::finite_f32;
use tensor::dtype::Dtype;
use tensor::safetensors::Writer;

/// Name, shape and elements.
pub(crate) type Tensor = (String, Vec<usize>, Vec<f64>);

pub(crate) fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}
/// Names of all golden folders.
pub(crate) fn goldens() -> Vec<String> {
    let all = fs::read_dir(golden("")).unwrap().map(|entry| entry.unwrap());
    let names =
        all.filter(|entry| entry.path().is_dir()).map(|entry| entry.file_name().into_string().unwrap());
    names.collect()
}
/// All tensors of a folder.
pub(crate) fn tensors(dir: &Path) -> Vec<Tensor> {
    let shards = File::open_folder(dir).unwrap();
    let all = shards.names().map(|name| {
        let shape = shards.info(name).unwrap().shape.clone();
        let (rows, cols) = (shape[..shape.len() - 1].iter().product(), shape[shape.len() - 1]);
        let matrix = match shape[..] {
            [count, of_one, _] => shards.stack(name, [count, of_one, cols]),
            _ => shards.matrix(name, [rows, cols]),
        };
        let matrix = matrix.unwrap();
        let numbers = (0..rows * cols).map(|i| matrix.get(i / cols, i % cols)).collect();
        (name.to_owned(), shape, numbers)
    });
    all.collect()
}
/// Folder with the configuration of a golden folder and these tensors, in f64.
pub(crate) fn folder(name: &str, tensors: &[Tensor]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::copy(golden(name).join("config.json"), folder.path().join("config.json")).unwrap();
    write(folder.path(), tensors);
    folder
}
pub(crate) fn write(dir: &Path, tensors: &[Tensor]) {
    let header: Vec<_> = tensors.iter().map(|(name, shape, _)| (name, Dtype::F64, shape.clone())).collect();
    let mut writer = Writer::create(&dir.join("model.safetensors"), &BTreeMap::new(), &header).unwrap();
    for (name, _, numbers) in tensors {
        writer.tensor(name, numbers).unwrap();
    }
    writer.finish().unwrap();
}
/// Error of reading a golden folder with changed tensors, without the path.
fn why(name: &str, change: impl Fn(&mut Vec<Tensor>)) -> String {
    let mut all = tensors(&golden(name));
    change(&mut all);
    let folder = folder(name, &all);
    said(folder.path())
}
fn said(dir: &Path) -> String {
    let why = Model::read(dir).err().unwrap().to_string();
    why.replace(&format!("{}/", dir.display()), "").replace(&dir.display().to_string(), "DIR")
}
fn read(model: &Model, name: &str, shape: [usize; 2]) -> Vec<f64> {
    let numbers = ValueSource::<f64>::of(&model.weights, name, shape, Draw { mean: 0.0, std: 0.0 }).unwrap();
    (0..shape[0] * shape[1]).map(|i| numbers.at([i / shape[1], i % shape[1]])).collect()
}
fn transposed(x: &[f64], [rows, cols]: [usize; 2]) -> Vec<f64> {
    (0..rows * cols).map(|i| x[i % rows * cols + i / rows]).collect()
}
/// Concatenates matrices of `rows` rows side by side.
fn beside(rows: usize, parts: &[Vec<f64>]) -> Vec<f64> {
    (0..rows)
        .flat_map(|row| {
            parts.iter().flat_map(move |part| part.chunks(part.len() / rows).nth(row).unwrap().to_vec())
        })
        .collect()
}

/// Kills: Q, K and V exchanged, gate and up exchanged, a transpose forgotten, a needless transpose.
#[test]
fn parameters_are_the_tensors_that_their_names_say() {
    let model = Model::read(&golden("llama")).unwrap();
    let all: BTreeMap<_, _> = tensors(&golden("llama")).into_iter().map(|(name, _, x)| (name, x)).collect();
    let block = |name: &str| all[&format!("model.layers.1.{name}")].clone();
    let linear = |name: &str, shape| transposed(&block(&format!("{name}.weight")), shape);
    let [q, k, v] =
        [("q", 24), ("k", 12), ("v", 12)].map(|(n, cols)| linear(&format!("self_attn.{n}_proj"), [cols, 16]));
    assert_eq!(read(&model, "blocks.1.attention.qkv", [16, 48]), beside(16, &[q, k, v]));
    let biases = ["q", "k", "v"].map(|n| block(&format!("self_attn.{n}_proj.bias")));
    assert_eq!(read(&model, "blocks.1.attention.qkv.bias", [1, 48]), biases.concat());
    let [gate, up] = ["gate", "up"].map(|n| linear(&format!("mlp.{n}_proj"), [20, 16]));
    assert_eq!(read(&model, "blocks.1.mlp.gate_up", [16, 40]), beside(16, &[gate, up]));
    assert_eq!(read(&model, "blocks.1.attention.out", [24, 16]), linear("self_attn.o_proj", [16, 24]));
    assert_eq!(read(&model, "blocks.1.norm2", [1, 16]), block("post_attention_layernorm.weight"));
    assert_eq!(read(&model, "head", [16, 37]), transposed(&all["lm_head.weight"], [37, 16]));

    let model = Model::read(&golden("gpt2-erf")).unwrap();
    let all: BTreeMap<_, _> =
        tensors(&golden("gpt2-erf")).into_iter().map(|(name, _, x)| (name, x)).collect();
    for (ours, theirs, shape) in [
        ("embedding", "wte.weight", [39, 16]),
        ("positions", "wpe.weight", [32, 16]),
        ("blocks.1.attention.qkv", "h.1.attn.c_attn.weight", [16, 48]),
        ("blocks.1.attention.qkv.bias", "h.1.attn.c_attn.bias", [1, 48]),
        ("blocks.0.mlp.up", "h.0.mlp.c_fc.weight", [16, 24]),
        ("blocks.0.mlp.down", "h.0.mlp.c_proj.weight", [24, 16]),
        ("blocks.0.norm1.bias", "h.0.ln_1.bias", [1, 16]),
        ("norm", "ln_f.weight", [1, 16]),
    ] {
        assert_eq!(read(&model, ours, shape), all[&format!("transformer.{theirs}")], "{ours}");
    }
    let model = Model::read(&golden("qwen3")).unwrap();
    let k_norm = tensors(&golden("qwen3")).into_iter().find(|t| t.0.ends_with("0.self_attn.k_norm.weight"));
    assert_eq!(read(&model, "blocks.0.attention.k_norm", [1, 6]), k_norm.unwrap().2);
}

/// Kills: experts out of order, gate and up exchanged, a transpose forgotten, a needless transpose.
#[test]
fn parameters_of_experts_are_the_tensors_that_their_names_say() {
    const D: usize = 16;
    for (name, block, [count, f], mlp, parts) in [
        ("mixtral", 1, [4, 7], "block_sparse_moe", ["w1", "w3", "w2"]),
        ("qwen2-moe", 1, [5, 6], "mlp", ["gate_proj", "up_proj", "down_proj"]),
        ("qwen3-moe", 0, [5, 4], "mlp", ["gate_proj", "up_proj", "down_proj"]),
    ] {
        let model = Model::read(&golden(name)).unwrap();
        let all: BTreeMap<_, _> = tensors(&golden(name)).into_iter().map(|(name, _, x)| (name, x)).collect();
        let theirs = |name: &str| all[&format!("model.layers.{block}.{mlp}.{name}.weight")].clone();
        let ours = |name: &str, shape| read(&model, &format!("blocks.{block}.mlp.{name}"), shape);
        let turned = |name: &str, shape| transposed(&theirs(name), shape);
        assert_eq!(ours("router", [D, count]), turned("gate", [count, D]), "{name}");
        let gate_up = |e: usize| {
            let [gate, up] = [parts[0], parts[1]].map(|part| turned(&format!("experts.{e}.{part}"), [f, D]));
            beside(D, &[gate, up])
        };
        let whole: Vec<f64> = (0..count).flat_map(gate_up).collect();
        assert_eq!(ours("experts.gate_up", [count * D, 2 * f]), whole, "{name}");
        let down = |e: usize| theirs(&format!("experts.{e}.{}", parts[2]));
        let whole: Vec<f64> = (0..count).flat_map(down).collect();
        assert_eq!(ours("experts.down", [count * D, f]), whole, "{name}");
        if name == "qwen2-moe" {
            let [gate, up] = ["gate", "up"].map(|n| turned(&format!("shared_expert.{n}_proj"), [9, D]));
            assert_eq!(ours("shared.gate_up", [D, 18]), beside(D, &[gate, up]));
            assert_eq!(ours("shared.down", [9, D]), turned("shared_expert.down_proj", [D, 9]));
            assert_eq!(ours("shared.gate", [D, 1]), theirs("shared_expert_gate"));
        }
    }
}

/// The tensors of a model with experts in the format of version 5 of `transformers`: two fused tensors hold
/// all experts of a block.
pub(crate) fn fused(all: &[Tensor]) -> Vec<Tensor> {
    let (mut fused, mut experts) = (Vec::new(), BTreeMap::<_, Vec<_>>::new());
    for (name, shape, numbers) in all {
        let name = name.replace(".block_sparse_moe.", ".mlp.");
        let Some((mlp, rest)) = name.split_once(".experts.") else {
            fused.push((name, shape.clone(), numbers.clone()));
            continue;
        };
        let (expert, part) = rest.split_once('.').unwrap();
        let part =
            ["w1.", "gate_", "w3.", "up_", "w2.", "down_"].iter().position(|name| part.starts_with(name));
        let at = (mlp.to_owned(), part.unwrap() / 4, expert.parse::<usize>().unwrap(), part.unwrap() / 2);
        let all = experts.entry((at.0.clone(), at.1)).or_default();
        all.push((at.2, at.3, shape.clone(), numbers.clone()));
    }
    for ((mlp, down), mut parts) in experts {
        parts.sort_by_key(|(expert, part, ..)| (*expert, *part));
        let (count, rows, cols) = (parts.last().unwrap().0 + 1, parts[0].2[0], parts[0].2[1]);
        let (name, rows) = [("gate_up_proj", 2 * rows), ("down_proj", rows)][down];
        let numbers = parts.into_iter().flat_map(|(.., numbers)| numbers).collect();
        fused.push((format!("{mlp}.experts.{name}"), vec![count, rows, cols], numbers));
    }
    fused
}

/// Checks that experts read from fused and from single tensors are equal bit by bit, whole and as a rank's
/// local part. Kills: gate and up interleaved or exchanged, a neighbouring expert, a router under its old
/// name, a fused tensor of another shape accepted.
#[test]
fn fused_experts_are_those_of_single_tensors() {
    for (name, split) in [("mixtral", "tp=2,ep=2"), ("qwen2-moe", "ep=2"), ("qwen3-moe", "etp=2")] {
        let single = Model::read(&golden(name)).unwrap();
        let folder = folder(name, &fused(&tensors(&golden(name))));
        let model = Model::read(folder.path()).unwrap();
        let shards = model.tensors().unwrap().shards();
        assert!(
            shards.names().count() < 40 && shards.names().any(|name| name.ends_with(".experts.down_proj"))
        );
        for layout in ["none", split] {
            let logits = |model| {
                let sequences = [vec![1, 2, 3, 4, 5], vec![6, 7]];
                let all = all_logits::<Cpu<f64>>(
                    model,
                    (&layout.parse().unwrap(), &Network::default()),
                    &sequences,
                )
                .unwrap();
                all.into_iter().map(f64::to_bits).collect::<Vec<_>>()
            };
            assert_eq!(logits(&model), logits(&single), "{name} under {layout}");
        }
    }
    let turned = |all: &mut Vec<Tensor>| {
        *all = fused(all);
        all.iter_mut().find(|t| t.0 == "model.layers.1.mlp.experts.gate_up_proj").unwrap().1 =
            vec![4, 16, 14];
    };
    let wanted =
        "tensor \"model.layers.1.mlp.experts.gate_up_proj\" has shape [4, 16, 14], wanted [4, 14, 16]";
    assert_eq!(why("mixtral", turned), format!("model.safetensors: {wanted}"));
    let missing = why("qwen3-moe", |all| {
        *all = fused(all);
        all.retain(|t| t.0 != "model.layers.0.mlp.experts.down_proj");
    });
    assert!(missing.contains("there is no tensor \"model.layers.0.mlp.experts.down_proj\""), "{missing}");
}

/// Builds a model from a file, gathers it from one rank and from two, and writes it again: the bytes are
/// equal, except for the dtype. Kills: a bias sharded or gathered in other columns than its weight, an order
/// that is not the program's.
#[test]
fn what_layers_are_built_from_they_write_again() {
    for name in &goldens() {
        let model = Model::read(&golden(name)).unwrap();
        let entries = names::entries(&model.config);
        let wanted = tensors(&golden(name));
        let split = if model.config.shape.experts.is_some() { "ep=2" } else { "tp=2" };
        for ranks in ["none", split] {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("model.safetensors");
            let layout: parallel::Layout = ranks.parse().unwrap();
            let ends = layout.world().unwrap().run(|device: Cpu<f32>, mesh| {
                let at = layout.place(&device, &mesh, model.values());
                let mut chunk = Stages::new(&at, model.config.shape)?;
                let file = CheckpointFile {
                    path: path.clone(),
                    shards: String::new(),
                    limit: u64::MAX,
                    metadata: BTreeMap::new(),
                    tensors: entries.iter().map(|entry| (entry.clone(), VALUE)).collect(),
                };
                let saving = checkpoint::save(vec![file], &chunk.params(), &mesh, (finite_f32, false));
                saving?.advance(&mesh, true)
            });
            ends.unwrap();
            assert_eq!(tensors(folder.path()), wanted, "{name} on {ranks}");
        }
    }
}

#[test]
fn tensors_that_are_missing_too_many_or_of_another_shape_are_named() {
    let missing = why("qwen2", |all| all.retain(|t| t.0 != "model.layers.1.self_attn.k_proj.bias"));
    let some = "(model.embed_tokens.weight, model.layers.0.input_layernorm.weight, \
                model.layers.0.mlp.down_proj.weight, model.layers.0.mlp.gate_proj.weight, …)";
    let wanted = format!(
        "there is no tensor \"model.layers.1.self_attn.k_proj.bias\" among the 37 of the file {some}"
    );
    assert_eq!(missing, format!("model.safetensors: {wanted}"));
    let missing =
        why("mixtral", |all| all.retain(|t| !t.0.ends_with("1.block_sparse_moe.experts.3.w2.weight")));
    let wanted = "there is no tensor \"model.layers.1.block_sparse_moe.experts.3.w2.weight\" among the ";
    assert!(missing.starts_with(&format!("model.safetensors: {wanted}")), "{missing}");
    let extra = why("qwen2-moe", |all| {
        all.push(("model.layers.1.mlp.experts.5.up_proj.weight".into(), vec![6, 16], vec![0.0; 96]));
    });
    let wanted = "the tensor \"model.layers.1.mlp.experts.5.up_proj.weight\" is not part of this model";
    assert_eq!(extra, format!("model.safetensors: {wanted}"));
    let shape = why("gpt2", |all| {
        let c_fc = all.iter_mut().find(|t| t.0 == "transformer.h.1.mlp.c_fc.weight").unwrap();
        c_fc.1.reverse();
    });
    let wanted = "tensor \"transformer.h.1.mlp.c_fc.weight\" has shape [64, 16], wanted [16, 64]";
    assert_eq!(shape, format!("model.safetensors: {wanted}"));
    let extra = why("llama", |all| {
        all.push(("model.layers.2.input_layernorm.weight".into(), vec![16], vec![0.0; 16]));
    });
    let wanted = "the tensor \"model.layers.2.input_layernorm.weight\" is not part of this model";
    assert_eq!(extra, format!("model.safetensors: {wanted}"));
    let headless = why("llama", |all| all.retain(|t| t.0 != names::HEAD));
    assert!(
        headless.starts_with("model.safetensors: there is no tensor \"lm_head.weight\" among the "),
        "{headless}"
    );
}

/// Kills: a head ignored although it differs from the table.
#[test]
fn a_tied_model_may_repeat_its_table_as_its_head() {
    for (name, table) in [("qwen3", "model.embed_tokens.weight"), ("gpt2", "transformer.wte.weight")] {
        let head = |all: &mut Vec<Tensor>, last: Option<f64>| {
            let (_, shape, mut numbers) = all.iter().find(|t| t.0 == table).unwrap().clone();
            *numbers.last_mut().unwrap() += last.unwrap_or(0.0);
            all.push((names::HEAD.into(), shape, numbers));
        };
        let mut all = tensors(&golden(name));
        head(&mut all, None);
        let model = Model::read(folder(name, &all).path()).unwrap();
        assert!(model.tensors().unwrap().entries().iter().all(|entry| entry.param != "head"));
        let differs = format!(
            "model.safetensors: tensor lm_head.weight differs from {table}, but tie_word_embeddings ties \
             them; set it to false in config.json, or remove the tensor"
        );
        assert_eq!(why(name, |all| head(all, Some(1.0))), differs);
    }
}

#[test]
fn older_files_of_gpt2_lack_a_prefix_and_have_masks() {
    let mut all = tensors(&golden("gpt2"));
    for tensor in &mut all {
        tensor.0 = tensor.0.replace("transformer.", "");
    }
    all.push(("h.0.attn.bias".into(), vec![1, 1, 2, 2], vec![1.0, 0.0, 1.0, 1.0]));
    all.push(("h.1.attn.masked_bias".into(), vec![1], vec![-1e4]));
    let older = folder("gpt2", &all);
    let [old, new] = [older.path(), &golden("gpt2")].map(|dir| Model::read(dir).unwrap());
    for (name, shape) in
        [("embedding", [43, 16]), ("blocks.1.attention.qkv", [16, 48]), ("norm.bias", [1, 16])]
    {
        assert_eq!(read(&old, name, shape), read(&new, name, shape));
    }
    let mixed = why("gpt2", |all| all[0].0 = all[0].0.replace("transformer.", ""));
    assert!(
        mixed.starts_with("model.safetensors: there is no tensor \"transformer.h.0.attn.c_attn.bias\""),
        "{mixed}"
    );
}

#[test]
fn folders_that_are_no_models_are_said_in_one_sentence() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let wanted = "a model is a folder with config.json and model.safetensors";
    assert_eq!(said(&at("none")), format!("DIR does not exist; {wanted}"));
    fs::write(at("file"), "x").unwrap();
    assert_eq!(said(&at("file")), format!("DIR is a file; {wanted}"));
    assert_eq!(said(folder.path()), "config.json: there is no such file");
    fs::copy(golden("qwen3").join("config.json"), at("config.json")).unwrap();
    assert_eq!(said(folder.path()), "model.safetensors: there is no such file");
    fs::write(at("pytorch_model.bin"), "x").unwrap();
    let wanted = "wanted model.safetensors, as save_pretrained of transformers writes it";
    assert_eq!(said(folder.path()), format!("DIR: the weights are in pytorch_model.bin, {wanted}"));
    let index = "model.safetensors.index.json";
    fs::copy(golden("qwen3").join(index), at(index)).unwrap();
    assert_eq!(
        said(folder.path()),
        format!(
            "{index}: the index puts tensor \"model.embed_tokens.weight\" in \"model-00001-of-00003.safetensors\", \
             but there is no such file"
        )
    );
}

/// Kills: a tokenizer's ids taken for bytes, bytes taken for the ids of a model with a smaller vocabulary.
#[test]
fn text_is_read_with_the_tokenizer_of_the_folder() {
    let instead = "give token ids (train and eval: --batch; generate: --prompt-ids)";
    assert!(Model::embedded().unwrap().tokenizer().unwrap().is_of_bytes());
    let no = Model::read(&golden("gpt2")).unwrap().tokenizer().unwrap_err().why;
    assert_eq!(
        no,
        format!("{} has no tokenizer.json to read text with; {instead}", golden("gpt2").display())
    );

    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("config.json"), embedded::CONFIG).unwrap();
    fs::write(at("model.safetensors"), embedded::WEIGHTS).unwrap();
    let model = Model::read(folder.path()).unwrap();
    assert!(model.tokenizer().is_err());
    fs::write(at("tokenizer.json"), tokenizer::json()).unwrap();
    assert!(model.tokenizer().unwrap().is_of_bytes());
    fs::write(at("tokenizer.json"), tokenizer::tests::words().to_string()).unwrap();
    assert_eq!(model.tokenizer().unwrap().encode_prompt("be").unwrap(), [1, 4, 2]);
    fs::write(at("tokenizer.json"), tokenizer::tests::merges().to_string()).unwrap();
    let beyond = "has token ids up to 259; they must be below the model's vocab_size of 256";
    assert_eq!(model.tokenizer().unwrap_err().why, format!("{} {beyond}", at("tokenizer.json").display()));
    fs::write(at("tokenizer.json"), "{").unwrap();
    let no = model.tokenizer().unwrap_err().why;
    let why = "EOF while parsing an object at line 1 column 1";
    assert_eq!(no, format!("{} is not a readable tokenizer: {why}", at("tokenizer.json").display()));

    let config = Config::read(&golden("llama").join("config.json")).unwrap();
    let no = Model::fresh(config, 1).tokenizer().unwrap_err().why;
    assert_eq!(
        no,
        format!("a new model with a vocabulary of 37 has no tokenizer.json to read text with; {instead}")
    );
}
