//! The kinds of model, as files and flags.
use super::works::Unsplit;
use crate::child::{binary, output};
use crate::classify::written;
use layers::{Design, OptimizerKind};
use models::{Config, TrainableModel};
use ops::OPTIMIZERS;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use tempfile::TempDir;

/// A kind of model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Dense,
    /// Two of four experts take each token.
    Experts,
    /// All of four experts do, so what they hold and send is known before; all blocks have one balance.
    AllExperts,
    Classifier,
}

const SIZES: &str = r#""hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 4,
    "intermediate_size": 24, "vocab_size": 64, "max_position_embeddings": 32, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "tie_word_embeddings": false, "hidden_act": "silu""#;
const HIDDEN: [usize; 3] = [8, 8, 8];
/// Sequences of unequal and of equal length.
const UNEQUAL: &str = "[[1,2,3,4,5,6,7],[9,8,7,6,5,4],[12,1,10,11],[20,3,20,3,1],[5,5,6],[7,8,9,10,11,12,13,14],[1,3],[60,61,62]]";
const EQUAL: &str = "[[1,2,3,4,5],[9,8,7,6,5],[12,1,10,11,13],[20,3,20,3,1],[5,5,6,8,7],[7,8,9,10,11],[1,3,33,40,2],[60,61,62,63,0]]";

impl Kind {
    pub(crate) const ALL: [Self; 4] = [Self::Dense, Self::Experts, Self::AllExperts, Self::Classifier];

    /// The optimizers that can train it, with their usual constants.
    pub(crate) fn optimizers(self) -> Vec<OptimizerKind> {
        let all = OPTIMIZERS.iter().filter(|info| self != Self::Classifier || info.matrices.is_none());
        all.map(|info| OptimizerKind::usual(info)).collect()
    }
    /// The config.json of a model of text.
    fn config(self) -> String {
        let (chosen, balanced) = match self {
            Self::Dense | Self::Classifier => return format!(r#"{{"model_type": "llama", {SIZES}}}"#),
            Self::Experts => (2, false),
            Self::AllExperts => (4, true),
        };
        format!(
            r#"{{"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": {chosen},
                "output_router_logits": {balanced}, "router_aux_loss_coef": 0.02, {SIZES}}}"#
        )
    }
    /// Flags of so many steps; an even number, since a classifier has two an epoch.
    pub(crate) fn lasting(self, steps: usize) -> Vec<String> {
        words(&match self {
            Self::Classifier => format!("--epochs {}", steps / 2),
            _ => format!("--steps {steps}"),
        })
    }
    pub(crate) fn reads_text(self) -> bool {
        self != Self::Classifier
    }
    /// Its design, as a layout is fitted to it.
    pub(crate) fn design(self) -> Design {
        match self {
            Self::Classifier => TrainableModel::classifier([&[784], &HIDDEN[..], &[10]].concat(), 0).design,
            _ => Config::parse(&self.config(), "the test's").unwrap().shape.into(),
        }
    }
}

/// The files that the cases read.
pub(crate) struct Models {
    dir: TempDir,
    unsplit: Mutex<BTreeMap<String, Arc<OnceLock<Unsplit>>>>,
}

impl Models {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        for kind in Kind::ALL.into_iter().filter(|kind| kind.reads_text()) {
            write(&format!("{kind:?}.json"), &kind.config());
        }
        write("unequal.json", UNEQUAL);
        write("equal.json", EQUAL);
        let digits = dir.path().join("digits");
        std::fs::create_dir(&digits).unwrap();
        written(&digits, [16, 4]);
        let models = Self { dir, unsplit: Mutex::default() };
        for kind in Kind::ALL {
            let out = ["--out".into(), models.model(kind).display().to_string()];
            let trained = output(binary().arg("train").args(models.training(kind, 2)).args(out));
            assert!(trained.status.success(), "{kind:?}: {}", String::from_utf8_lossy(&trained.stderr));
        }
        models
    }
    /// A folder with a model of this kind: trained unsplit, in f32.
    pub(crate) fn model(&self, kind: Kind) -> PathBuf {
        self.path(&format!("model of {kind:?}"))
    }
    /// Results of an unsplit run, computed once.
    pub(crate) fn unsplit(&self, of: &str, find: impl FnOnce() -> Unsplit) -> Arc<OnceLock<Unsplit>> {
        let found = self.unsplit.lock().unwrap().entry(of.to_owned()).or_default().clone();
        found.get_or_init(find);
        found
    }
    /// A path that nobody else has.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    fn file(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
    /// Flags of a run of so many steps.
    pub(crate) fn training(&self, kind: Kind, steps: usize) -> Vec<String> {
        let begun = match kind {
            Kind::Classifier => words("--model mlp --hidden 8,8,8 --batch-size 8 --warmup 0"),
            _ => words(&format!("--config {}", self.file(&format!("{kind:?}.json")))),
        };
        [begun, self.learnt(kind), kind.lasting(steps)].concat()
    }
    /// Flags of what is learnt.
    pub(crate) fn learnt(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::Classifier => words(&format!("--data {}", self.file("digits"))),
            _ => words(&format!("--batch {}", self.file("unequal.json"))),
        }
    }
    /// Flags of a run of equal sequences, and of its price.
    pub(crate) fn priced(&self, kind: Kind) -> [Vec<String>; 2] {
        let (config, batch) = (self.file(&format!("{kind:?}.json")), self.file("equal.json"));
        let of_train = format!("--config {config} --batch {batch} --steps 2");
        [of_train, format!("--config {config} --seq 4 --batch-size 8")].map(|flags| words(&flags))
    }
    /// Flags of what is proven or compared without a folder.
    pub(crate) fn proven(&self, kind: Kind) -> Vec<String> {
        match kind {
            Kind::Classifier => words("--model mlp --hidden 8,8,8"),
            _ => words(&format!("--config {}", self.file(&format!("{kind:?}.json")))),
        }
    }
}

pub(crate) fn words(flags: &str) -> Vec<String> {
    flags.split_whitespace().map(str::to_owned).collect()
}

/// All files of a folder but its log, which has times: their names and bytes.
pub(crate) fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&path).unwrap())
    };
    let mut all: Vec<_> = std::fs::read_dir(dir).unwrap().map(read).collect();
    all.retain(|(name, _)| name != "log.jsonl");
    all.sort();
    all
}
