//! A case: the whole input of a proof, as a line of JSON.
use super::document::Document;
use crate::Subject;
use crate::subject::reads_alone;
use kernels::Heads;
use layers::{Design, Experts, OptimizerKind, Shape};
use ops::{GradientScaling, LossScaling};
use parallel::{Batch, Error, Layout, Result, Sequence, bail};
use serde::{Deserialize, Serialize};
use tensor::quoted::sentence;
use tensor::{IGNORED, Key, mix};

/// Whole input of a proof.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProofCase {
    /// Key of the field, of ids and of targets; in hexadecimal.
    #[serde(with = "written")]
    pub key: Key,
    /// Layout of the model.
    #[serde(with = "written")]
    pub layout: Layout,
    /// The model.
    pub shape: Shape,
    /// The optimizer.
    #[serde(deserialize_with = "ops::optimizer::list::deserialize")]
    pub optimizer: OptimizerKind,
    /// The learning rate.
    pub lr: f64,
    /// Limit of the gradient norm.
    #[serde(default)]
    pub clip: Option<f64>,
    /// Logarithm of the loss scale to the base 2, if training scales the loss.
    #[serde(default)]
    pub loss_scale: Option<u32>,
    /// Training steps.
    pub steps: Vec<CaseStep>,
    /// Number of tokens of each text that is read before training, and of its prompt; the rest is fed token
    /// by token.
    #[serde(default)]
    pub texts: Vec<(usize, usize)>,
}

/// Batch of one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseStep {
    /// Number of microbatches that the sequences are cut into.
    pub microbatches: usize,
    /// Documents of each sequence.
    pub sequences: Vec<Vec<Document>>,
}

impl ProofCase {
    /// Parses a case from its line of JSON.
    ///
    /// # Errors
    /// Names what is wrong with it.
    pub fn parse(line: &str) -> Result<Self> {
        let case: Self = serde_json::from_str(line)
            .map_err(|why| Error::new(format!("invalid case: {}", sentence(&why.to_string()))))?;
        case.check()?;
        case.layout.fits(case.shape)?;
        let tokens = case.layout.tokens();
        for (batch, _) in case.subject()?.steps {
            (0..batch.microbatches().len()).try_for_each(|m| batch.share(m, &tokens).map(|_| ()))?;
        }
        Ok(case)
    }
    /// Checks that the case is valid.
    fn check(&self) -> Result<()> {
        let Shape { width, blocks, heads, hidden, vocabulary, dropout, loss, window, padding, .. } =
            self.shape;
        let most = self.shape.context().unwrap_or(LARGEST).min(LARGEST);
        let size = |(what, n): (&'static str, usize)| {
            (what, n as f64, (1..=LARGEST).contains(&n), format!("1 to {LARGEST}"))
        };
        let sizes = [
            ("shape.width", width),
            ("shape.blocks", blocks),
            ("shape.heads.queries", heads.queries),
            ("shape.heads.keys", heads.keys),
            ("shape.heads.dim", heads.dim),
            ("shape.heads.value", heads.value),
            ("shape.hidden", hidden),
            ("shape.vocabulary", vocabulary),
        ];
        let mut checks: Vec<_> = sizes.map(size).to_vec(); // name, value seen, true if it holds, value wanted
        let below = format!("below the vocabulary of {vocabulary}");
        checks.extend(padding.map(|id| ("shape.padding", id as f64, id < vocabulary, below)));
        for n in self.steps.iter().flat_map(|step| step.sequences.iter().flatten()).map(Document::tokens) {
            checks.push(("the length of a document", n as f64, n <= most, format!("at most {most}")));
        }
        for &(n, prompt) in &self.texts {
            let wanted = format!("1 to {most}, with a prompt of 1 to all of it");
            checks.push(("the length of a text", n as f64, (1..=n).contains(&prompt) && n <= most, wanted));
        }
        for rate in [dropout.embedding, dropout.attention, dropout.residual, loss.smoothing] {
            let holds = (0.0..1.0).contains(&rate);
            checks.push(("a rate of dropout or smoothing", rate, holds, "0 or more and below 1".into()));
        }
        checks.extend(self.shape.experts.iter().flat_map(of_experts));
        checks.extend(window.map(|w| ("the window", w.size as f64, w.size > 0, "at least 1".into())));
        if let Some((what, seen, _, wanted)) = checks.into_iter().find(|(_, _, holds, _)| !holds) {
            bail!("invalid case: {what} is {seen}; it must be {wanted}");
        }
        if let Some(why) = self.shape.experts.and_then(|of| of.expert_choice_conflict()) {
            bail!("invalid case: experts that choose tokens {why}");
        }
        if let Some(why) = self.shape.attention_conflict() {
            bail!("invalid case: {why}");
        }
        let Heads { queries, keys, .. } = heads;
        if !queries.is_multiple_of(keys) {
            bail!(
                "invalid case: {queries} query heads cannot share {keys} KV heads; the number of KV heads \
                 must divide that of query heads"
            );
        }
        if !self.texts.is_empty() && !reads_alone(&self.shape) {
            bail!(
                "invalid case: it has texts, which are read token by token; its experts must not drop \
                 tokens or take them in turn"
            );
        }
        Ok(())
    }
    /// Returns the case of a subject under a layout, with the same shapes and other ids; `None` for a model
    /// without ids.
    pub fn of(subject: &Subject, layout: Layout) -> Option<Self> {
        let Design::Transformer(shape) = subject.model else { return None };
        let documents = |s: &Sequence| -> Vec<Document> {
            let mut targets = s.targets.iter().map(|target| *target != IGNORED);
            s.documents.iter().map(|&n| Document::new(targets.by_ref().take(n))).collect()
        };
        let step = |(batch, _): &(Batch, f64)| {
            let parts = batch.microbatches();
            CaseStep { microbatches: parts.len(), sequences: parts.iter().flatten().map(documents).collect() }
        };
        let (optimizer, GradientScaling { clip, loss }) = subject.optimizer;
        Some(Self {
            key: Key(0),
            layout,
            shape,
            optimizer,
            lr: subject.steps.first().map_or(0.0, |(_, lr)| *lr),
            clip,
            loss_scale: loss.map(|of| of.log2),
            steps: subject.steps.iter().map(step).collect(),
            texts: subject.texts.iter().map(|(ids, prompt)| (ids.len(), *prompt)).collect(),
        })
    }
    /// Returns its line of JSON.
    pub fn line(&self) -> String {
        serde_json::to_string(self).expect("numbers and words")
    }
    /// Returns the subject to prove.
    ///
    /// # Errors
    /// If a step cannot be cut into its microbatches.
    pub fn subject(&self) -> Result<Subject> {
        let loss = self.loss_scale.map(|log2| LossScaling { log2, ..LossScaling::USUAL });
        let steps = self.steps.iter().enumerate().map(|(n, step)| self.batch(n, step).map(|b| (b, self.lr)));
        let steps = steps.collect::<Result<_>>()?;
        let text = |(t, &(tokens, prompt)): (usize, &(usize, usize))| {
            ((0..tokens).map(|i| self.id([TEXTS, t, 0, i])).collect(), prompt)
        };
        Ok(Subject {
            model: self.shape.into(),
            texts: self.texts.iter().enumerate().map(text).collect(),
            steps,
            optimizer: (self.optimizer, GradientScaling { clip: self.clip, loss }),
            narrowed: None,
            stale: None,
            sparse: None,
        })
    }
    fn batch(&self, n: usize, step: &CaseStep) -> Result<Batch> {
        let document = |s: usize, d: usize, document: &Document| -> (Vec<u32>, Vec<u32>) {
            let id = |salt: usize, i: usize| self.id([2 * n + salt, s, d, i]);
            let target = |(i, counts): (usize, bool)| if counts { id(1, i) } else { IGNORED };
            let targets: Vec<_> = document.counted().enumerate().map(target).collect();
            ((0..targets.len()).map(|i| id(0, i)).collect(), targets)
        };
        let sequence = |(s, documents): (usize, &Vec<Document>)| {
            let all: Vec<_> = documents.iter().enumerate().map(|(d, about)| document(s, d, about)).collect();
            Sequence::packed(&all)
        };
        Batch::new(step.sequences.iter().enumerate().map(sequence).collect(), step.microbatches)
    }
    /// Returns an id for this place, by hash.
    fn id(&self, place: [usize; 4]) -> u32 {
        let hash = place.iter().fold(mix(self.key.0), |hash, &n| mix(hash ^ n as u64));
        (hash % self.shape.vocabulary as u64) as u32
    }
}

/// Returns the conditions on experts: name, value seen, true if it holds, value wanted.
fn of_experts(of: &Experts) -> Vec<(&'static str, f64, bool, String)> {
    let (groups, from) = of.groups.map_or((1, 1), |groups| (groups.count, groups.chosen));
    let most = (of.count / groups.max(1)).saturating_mul(from);
    let size =
        |what, n: usize, most: usize| (what, n as f64, (1..=most).contains(&n), format!("1 to {most}"));
    let mut checks = vec![
        size("shape.experts.count", of.count, LARGEST),
        size("shape.experts.hidden", of.hidden, LARGEST),
        size("shape.experts.groups.count", groups, of.count),
        size("shape.experts.groups.chosen", from, groups),
        size("shape.experts.chosen", of.chosen, most),
    ];
    let even = groups > 0 && of.count.is_multiple_of(groups);
    checks.push(("shape.experts.groups.count", groups as f64, even, format!("a divisor of {}", of.count)));
    checks.extend(of.shared.map(|shared| size("shape.experts.shared.hidden", shared.hidden, LARGEST)));
    let capacity = of.capacity.unwrap_or(1.0);
    let rate = of.bias.unwrap_or(0.0);
    checks.push(("shape.experts.bias", rate, rate >= 0.0, "0 or more".into()));
    checks.push(("shape.experts.noise", of.noise, of.noise >= 0.0, "0 or more".into()));
    checks.push(("shape.experts.capacity", capacity, capacity > 0.0, "more than 0".into()));
    checks
}

/// First coordinate of the ids of texts: no step has it.
const TEXTS: usize = usize::MAX;
/// Largest size of a small case; a larger case might not fit any machine.
const LARGEST: usize = 1 << 12;

/// Serializes layouts and keys as text.
pub(super) mod written {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::fmt::Display;
    use std::str::FromStr;

    pub(crate) fn serialize<T: Display, S: Serializer>(it: &T, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(it)
    }
    pub(crate) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}
