//! Generation: prompts continued, and the speed of that.
use crate::event::{Observer, RunEvent};
use crate::records;
use models::generate::{Generated, Line, Prompts, generate};
use models::tokenizer::Tokenizer;
use models::{Model, names};
use parallel::dtype::RunDevice;
use parallel::dump::{self, Provenance};
use parallel::measure::{self, PeakBytes};
use parallel::{Layout, Network, Result};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tensor::quoted::counted;
use tensor::{Scalar, readable};

records!(Line<'_>: "text");

/// Prompts to continue.
pub struct GenerateRun {
    /// The model.
    pub model: Model,
    /// The layout.
    pub layout: Layout,
    /// The network between its ranks.
    pub network: Network,
    /// The prompts, and how they are continued.
    pub prompts: Prompts,
    /// The tokenizer of the texts; they are told as ids, if there is none.
    pub tokenizer: Option<Tokenizer>,
    /// Folder for activations and weights.
    pub dump: Option<PathBuf>,
}

impl GenerateRun {
    /// Continues the prompts, and tells the texts; `keep` sees the outcome before that.
    ///
    /// # Errors
    /// If the prompts, the layout and the model do not fit, memory is too small, a rank fails, or the dump
    /// cannot be written.
    pub fn tell<D: RunDevice>(
        &self,
        keep: impl FnOnce(Result<Generated<D::Elem>>) -> Result<Generated<D::Elem>>,
        observer: &Observer,
    ) -> Result<()> {
        let Self { model, layout, network, prompts, .. } = self;
        prompts.check::<D>(model, (layout, network))?;
        self.note_waiting(observer)?;
        self.dump.as_deref().map_or(Ok(()), dump::prepare)?;
        let done = AtomicUsize::new(0);
        let watch = |_| {
            let done = done.fetch_add(1, Relaxed) + 1;
            drop(observer.see(&RunEvent::Reached { words: "", done, of: prompts.max_new }));
        };
        let generated = keep(generate::<D>(model, (layout, network), prompts, &watch))?;
        if let Some(dir) = &self.dump {
            let about = Provenance { layout: layout.to_string(), ..Provenance::default() };
            dump::write(dir, &names::entries(&model.config), generated.seen.clone(), &about)?;
        }
        observer.records(&generated.lines().collect::<Vec<_>>())?;
        if observer.wants_words() { self.texts(&generated, observer) } else { Ok(()) }
    }
    /// Notes requests that wait for a slot.
    fn note_waiting(&self, observer: &Observer) -> Result<()> {
        let (waiting @ 1.., slots) = self.prompts.waiting(&self.layout) else { return Ok(()) };
        let of = if self.layout.tokens().data_ranks() > 1 { " of each data rank" } else { "" };
        let prompts = self.prompts.prompts.len();
        let slots = counted(slots, "slot");
        observer.note(&format!("note: {waiting} of {prompts} requests wait for a free slot ({slots}{of})"))
    }
    /// Tells the texts, and their speed.
    fn texts<E: Scalar>(&self, generated: &Generated<E>, observer: &Observer) -> Result<()> {
        for t in &generated.texts {
            match &self.tokenizer {
                Some(tokenizer) => observer.see(&RunEvent::Screen(&tokenizer.decode(&t.ids)?))?,
                None => observer.say(&t.ids.iter().map(u32::to_string).collect::<Vec<_>>().join(","))?,
            }
        }
        let ms = |what, seconds: Option<f64>| {
            seconds.map(|s| format!(", {what} {:.2} ms", 1e3 * s)).unwrap_or_default()
        };
        let latency = generated.latency();
        let held: Vec<_> =
            PeakBytes::of(&generated.taken).total.iter().map(|n| readable(*n as u128)).collect();
        observer.note(&format!(
            "{} new tokens in {:.2} s, {:.0} token/s{}{}; peak of each rank: {}",
            generated.new_tokens(),
            measure::seconds(&generated.taken),
            generated.tokens_per_second(),
            ms("first token after", latency.first_token_seconds),
            ms("then one every", latency.token_seconds),
            held.join(", ")
        ))
    }
}
