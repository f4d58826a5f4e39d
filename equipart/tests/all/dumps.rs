//! The files of `prove --dump` are consistent, modulo 2^61 − 1: for whoever wants to check a proof without
//! this program. Arithmetic here is that of u128.
use crate::child::{binary, output};
use std::collections::BTreeMap;
use std::path::Path;
use tensor::safetensors::File;

const P: u128 = (1 << 61) - 1;
const CONFIG: &str = r#"{ "model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "hidden_size": 12,
    "intermediate_size": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "head_dim": 4, "vocab_size": 11, "tie_word_embeddings": false, "attention_dropout": 0.25, "bos_token_id": null,
    "eos_token_id": null }"#;

fn equipart(arguments: &[&str]) -> String {
    let out = output(binary().args(arguments));
    assert!(out.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Whole tensors by name, with their columns, of one file of a dump.
type Tensors = BTreeMap<String, (usize, Vec<u128>)>;

fn read(dir: &Path, file: &str) -> (Tensors, BTreeMap<String, String>) {
    let file = File::open(&dir.join(file)).unwrap();
    let one = |name: &str| {
        let shape = file.info(name).unwrap().shape.clone();
        let values: Vec<u64> = file.values(name, &shape).unwrap();
        (name.to_string(), (*shape.last().unwrap(), values.into_iter().map(u128::from).collect()))
    };
    (file.names().map(one).collect(), file.metadata().clone())
}

/// X·Wᵀ modulo p, W as in a file: `[outputs, inputs]`.
fn product((inputs, x): &(usize, Vec<u128>), w: &[&(usize, Vec<u128>)]) -> Vec<u128> {
    let rows = x.chunks(*inputs);
    let dot = |x: &[u128], w: &[u128]| x.iter().zip(w).fold(0, |sum, (x, w)| (sum + x * w) % P);
    rows.flat_map(|x| w.iter().flat_map(move |(_, w)| w.chunks(*inputs).map(move |w| dot(x, w)))).collect()
}

/// aⁿ modulo p.
fn power(a: u128, n: u128) -> u128 {
    let half = if n == 0 { return 1 } else { power(a, n / 2) };
    half * half % P * if n % 2 == 1 { a } else { 1 } % P
}

/// The step of plain descent, clipping included. Kills: new weights of another step or a rank's share, a
/// factor that is not the same for all, a norm² after clipping, gradients of `[Q|K|V]` of one of several
/// ranks with the same KV head.
fn a_step_holds(out: &Path, (activations, weights, gradients): (&Tensors, &Tensors, &Tensors), layout: &str) {
    let ((new, notes), (numbers, _)) = (read(out, "new_weights.safetensors"), read(out, "step.safetensors"));
    let note = |key: &str| notes[key].as_str();
    assert_eq!((note("optimizer"), note("lr"), note("clip")), ("\"sgd\"", "1.0", "0.5"));
    let square = |sum, g: &u128| (sum + g * g) % P;
    let norm2 = gradients.values().flat_map(|(_, g)| g).fold(0, square);
    assert_eq!(numbers["norm2"].1, [norm2], "{layout}");
    assert!(numbers["loss"].1[0] > 0 && numbers.len() == 2);
    let mut factors = std::collections::BTreeSet::new();
    for (name, (_, old)) in weights {
        for ((old, new), g) in old.iter().zip(&new[name].1).zip(&gradients[name].1) {
            if *g == 0 {
                assert_eq!(old, new, "{name}, {layout}");
            } else {
                factors.insert((old + P - new) * power(*g, P - 2) % P);
            }
        }
    }
    assert!(factors.len() == 1 && !factors.contains(&0), "{} factors, {layout}", factors.len());
    let x = &activations["blocks.1.attention.qkv.in"];
    let dy = &activations["gradient of blocks.1.attention.qkv.out"];
    let mut first = 0;
    for part in ["q", "k", "v"] {
        let (inputs, g) = &gradients[&format!("model.layers.1.self_attn.{part}_proj.weight")];
        let at = |i: usize| {
            let rows = x.1.chunks(x.0).zip(dy.1.chunks(dy.0));
            rows.fold(0, |sum, (x, dy)| (sum + x[i % inputs] * dy[first + i / inputs]) % P)
        };
        assert_eq!(g, &(0..g.len()).map(at).collect::<Vec<_>>(), "{part}, {layout}");
        first += g.len() / inputs;
    }
    assert_eq!(first, dy.0);
}

fn prove(dir: &Path, layout: &str, key: &str, dump: &str) -> std::path::PathBuf {
    let (config, out) = (dir.join("config.json"), dir.join(dump));
    std::fs::write(&config, CONFIG).unwrap();
    let [config, to] = [&config, &out].map(|p| p.to_str().unwrap());
    equipart(&["prove", "--layout", layout, "--config", config, "--key", key, "--dump", to]);
    out
}

/// Kills: shares dumped for wholes, fused columns in another order, padding that is dumped, weights or
/// gradients of another step, elements that are not canonical, a key that is noted and not used.
#[test]
fn dumped_field_tensors_hold_modulo_the_prime() {
    let dir = tempfile::tempdir().unwrap();
    let mut first: Option<[Tensors; 3]> = None;
    for (n, layout) in ["none", "tp=2", "tp=4,sp", "tp=2,dp=2"].into_iter().enumerate() {
        let out = prove(dir.path(), layout, "0x1234", &format!("dump{n}"));
        let (activations, notes) = read(&out, "activations.safetensors");
        let ((weights, _), (gradients, _)) =
            (read(&out, "weights.safetensors"), read(&out, "gradients.safetensors"));
        let note = |key: &str| notes[key].as_str();
        let noted = (note("key"), note("layout"), note("number"), note("step"));
        assert_eq!(noted, ("0x0000000000001234", layout, "f61", "0"));
        for i in 0..2 {
            let act = |name: &str| &activations[&format!("blocks.{i}.{name}")];
            let w = |name: &str| &weights[&format!("model.layers.{i}.{name}_proj.weight")];
            let qkv = ["q", "k", "v"].map(|part| w(&format!("self_attn.{part}")));
            assert_eq!(act("attention.qkv.out").1, product(act("attention.qkv.in"), &qkv), "{layout}");
            assert_eq!(act("attention.out.out").1, product(act("attention.out.in"), &[w("self_attn.o")]));
            let gate_up = [w("mlp.gate"), w("mlp.up")];
            assert_eq!(act("mlp.gate_up.out").1, product(act("mlp.gate_up.in"), &gate_up));
            assert_eq!(act("mlp.down.out").1, product(act("mlp.down.in"), &[w("mlp.down")]));
            let (x, y) = (&act("norm1.in").1, &act("attention.added").1);
            let sum: Vec<_> = x.iter().zip(y).map(|(x, y)| (x + y) % P).collect();
            assert_eq!(act("norm2.in").1, sum, "the residual, {layout}");
        }
        assert_eq!(
            activations["head.out"].1,
            product(&activations["head.in"], &[&weights["lm_head.weight"]])
        );
        assert_eq!(activations["head.out"].0, 11);
        assert!(activations.values().chain(weights.values()).all(|(_, x)| x.iter().all(|x| *x < P)));
        a_step_holds(&out, (&activations, &weights, &gradients), layout);
        let all = [activations, weights, gradients];
        if let Some(first) = &first {
            let same = |i: usize| all[i] == first[i];
            // Data ranks make the subject larger, so only the weights are those of the others.
            assert!(same(1) && (layout.contains("dp") || (same(0) && same(2))), "{layout} differs from none");
        } else {
            first = Some(all);
        }
    }
    let other = prove(dir.path(), "none", "77", "other");
    let (weights, notes) = read(&other, "weights.safetensors");
    assert!(
        notes["key"] == "0x000000000000004d" && weights != first.as_ref().unwrap()[1],
        "another key, other bits"
    );
    let again = prove(dir.path(), "tp=2", "0x1234", "again");
    for file in
        ["activations", "gradients", "weights", "new_weights", "step"].map(|f| format!("{f}.safetensors"))
    {
        let [a, b] = [dir.path().join("dump1"), again.clone()].map(|d| std::fs::read(d.join(&file)).unwrap());
        assert!(a == b, "the same key, other bytes in {file}");
    }
}

/// A generation's dump has a row for every token that was read, whatever ranks it was on, and no gradients.
#[test]
fn a_generation_dumps_what_it_read() {
    let dir = tempfile::tempdir().unwrap();
    for layout in ["none", "tp=2,sp", "dp=2"] {
        let out = dir.path().join(layout);
        let to = out.to_str().unwrap();
        let prompts = ["generate", "--prompt", "abc", "--prompt", "de", "--max-new", "3", "--layout", layout];
        equipart(&[&prompts[..], &["--dump", to]].concat());
        let file = File::open(&out.join("activations.safetensors")).unwrap();
        let rows = (3 + 2) + (2 + 2); // the last new token is not read
        for name in ["embedding.out", "blocks.0.attention.qkv.in", "norm.out", "head.out"] {
            assert_eq!(file.info(name).unwrap().shape[0], rows, "{name} under {layout}");
        }
        assert!(out.join("weights.safetensors").exists() && !out.join("gradients.safetensors").exists());
    }
}
