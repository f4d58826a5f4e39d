//! Models with experts made from dense models: both compute the same, and impossible requests are refused.
use super::*;
use crate::model::tests::golden;
use layers::Design;
use ops::PassContext;
use parallel::{Stages, session};
use std::path::PathBuf;
use tensor::{Cpu, F61, Key, TokenIds};

/// Logits of every token of two texts, in the field.
fn logits(model: &Model) -> Vec<F61> {
    session::alone(model.values(), |at: parallel::BuildContext<Cpu<F61>>| {
        let shape = model.config.shape;
        let mut stages = Stages::new(&at, Design::from(shape))?;
        let ids = (0..12).map(|i| i * i % shape.vocabulary as u32);
        let ids = TokenIds::new(tensor::Device::place(at.device), ids, shape.vocabulary)?;
        let logits = stages.logits(&PassContext::infer([7, 5]), ids, true)?;
        Ok(logits.read().expect("the host has values"))
    })
    .unwrap()
}

fn why(from: &Model, by: [usize; 3], out: &Path) -> String {
    let [experts, chosen, slices] = by;
    upcycle(from, Upcycling { experts, chosen, slices }, out, None).unwrap_err().to_string()
}

/// Compares logits bit for bit in the field, where nothing is rounded: copies, slices, several copies for a
/// token. Kills: a slice of another expert, gate exchanged with up, a slice not scaled, a slice scaled twice,
/// copies of which a token gets only some slices, a tensor of the rest of the model left out.
#[test]
fn a_model_with_experts_equals_the_one_it_is_made_of_bit_for_bit() {
    let _key = Key(5).enter();
    for (name, experts) in [("linear", "mixtral"), ("mistral", "mixtral"), ("qwen3", "qwen3_moe")] {
        let dense = Model::read(&golden(name)).unwrap();
        let wanted = logits(&dense);
        for [experts_of, chosen, slices] in [[5, 3, 1], [4, 4, 2], [8, 4, 4], [16, 8, 4]] {
            let out = tempfile::tempdir().unwrap();
            let by = Upcycling { experts: experts_of, chosen, slices };
            upcycle(&dense, by, out.path(), None).unwrap();
            let model = Model::read(out.path()).unwrap();
            assert_eq!(model.config.family.about().model_type, experts);
            assert_eq!(model.config, by.config(&dense.config).unwrap());
            let made = model.config.shape.experts.unwrap();
            assert_eq!([made.count, made.chosen, made.hidden], [experts_of, chosen, 24 / slices]);
            assert!(logits(&model) == wanted, "{name}: {by:?}");
        }
    }
}

/// Kills: a division by zero slices, left-over experts, lost biases, half a model left in a folder.
#[test]
fn experts_that_cannot_be_are_refused() {
    let read = |name: &str| Model::read(&golden(name)).unwrap();
    let (folder, model) = (tempfile::tempdir().unwrap(), read("linear"));
    let out: PathBuf = folder.path().join("out");
    let slices = |n| format!("it must be a multiple of the {n} slices that a copy is cut into");
    for (by, wanted) in [
        ([4, 2, 0], "--slices is 0; it must be 1 or more".to_owned()),
        ([9, 2, 2], format!("--experts is 9; {}", slices(2))),
        ([9, 2, 3], format!("--chosen is 2; {}", slices(3))),
        ([10, 5, 5], format!("intermediate_size is 24; {}", slices(5))),
    ] {
        assert_eq!(why(&model, by, &out), wanted);
    }
    let few = why(&model, [4, 5, 1], &out);
    assert!(
        few.starts_with("the model with experts: num_experts_per_tok is 5; it must be at most 4"),
        "{few}"
    );
    assert!(why(&model, [0, 0, 1], &out).contains("it must be a whole number, 1 or more"));
    let biases =
        "this llama has biases or windows that mixtral, its counterpart with experts, does not support";
    assert_eq!(why(&read("llama"), [4, 2, 1], &out), biases);
    for (name, kind) in [("gpt2", "gpt2"), ("mixtral", "mixtral"), ("qwen2", "qwen2")] {
        let wanted = "cannot be given experts; it must be llama, mistral or qwen3";
        assert_eq!(why(&read(name), [4, 2, 1], &out), format!("a model of model_type {kind} {wanted}"));
    }
    assert!(!out.exists());
}
