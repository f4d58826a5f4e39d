//! `generate`: continues prompts token by token, with a cache of keys and values. Every tensor rank has all
//! logits of the next token and chooses by the same draw. Data ranks have different prompts, or none.
mod answers;
mod batch;
mod chooser;
mod generated;
mod peak;
mod prompts;
mod requests;
mod slots;
mod text;
mod whole;

pub use generated::{Generated, Line, TokenLatency, TokenTimes};
pub use prompts::Prompts;
pub use requests::RequestMode;
pub use text::Text;
pub use whole::{all_logits, all_logits_peak};

use crate::Model;
use answers::Answers;
use batch::{OfRank, once};
use layers::{Design, counted};
use parallel::dtype::RunDevice;
use parallel::{Batch, BuildContext, Layout, Network, Result, Stages, bail, budget, session};
use tensor::TokenIds;

impl Prompts {
    /// Checks that the request fits the model and the layout, and that the machine has enough memory.
    ///
    /// # Errors
    /// Names the first misfit, in one sentence.
    pub fn check<D: RunDevice>(&self, model: &Model, (layout, network): (&Layout, &Network)) -> Result<()> {
        layout.fits(Design::from(model.config.shape).inferring())?;
        model.config.generates()?;
        self.sampling.validate()?;
        if let (RequestMode::Sync | RequestMode::Async { .. }, true) = (self.requests, self.record) {
            let name = self.requests.name();
            bail!("a dump records one batch, but requests are answered {name}; leave one of them out");
        }
        if let RequestMode::Async { slots: Some(0) } = self.requests {
            bail!("there are 0 slots; give at least 1");
        }
        let data = layout.tokens().data_ranks();
        let positions = model.config.positions;
        let least = if layout.shares_experts() { 1 } else { data };
        if self.prompts.len() < least {
            let n = self.prompts.len();
            let n = counted(n, "prompt");
            bail!("{n} cannot be dealt over dp={data}: each rank needs at least one");
        }
        for prompt in &self.prompts {
            if prompt.is_empty() {
                bail!("the prompt is empty; it must have at least one token");
            }
            let tokens = prompt.len().saturating_add(self.max_new);
            Batch::reach(tokens, &layout.tokens())?;
            if tokens > positions {
                bail!(
                    "a prompt of {} and {} new make {tokens}; the model has {}",
                    counted(prompt.len(), "token"),
                    self.max_new,
                    counted(positions, "position")
                );
            }
            TokenIds::new(&tensor::Host::default(), prompt, model.config.shape.vocabulary)?;
        }
        budget::fits::<D::Place>(
            format_args!("generating under {layout}"),
            [network.here(layout), layout.ranks()],
            self.peak::<D>(model, layout)?.all,
        )
    }
}

/// Continues the prompts under a layout, over a network. Calls `watch` with every new token of the first
/// prompt.
///
/// # Errors
/// If the request, the layout and the model do not fit, the machine has too little memory, or a rank fails.
pub fn generate<D: RunDevice>(
    model: &Model,
    (layout, network): (&Layout, &Network),
    request: &Prompts,
    watch: &(dyn Fn(u32) + Sync),
) -> Result<Generated<D::Elem>> {
    Ok(repeated::<D>(model, (layout, network), (request, 1), watch)?.swap_remove(0))
}

/// Runs [`generate`] this number of times, on ranks that build the model once.
///
/// # Errors
/// As [`generate`].
pub fn repeated<D: RunDevice>(
    model: &Model,
    (layout, network): (&Layout, &Network),
    (request, times): (&Prompts, usize),
    watch: &(dyn Fn(u32) + Sync),
) -> Result<Vec<Generated<D::Elem>>> {
    request.check::<D>(model, (layout, network))?;
    let world = network.world(layout, "inference")?;
    let ranks = session::run((layout, &world), model.values(), |at: BuildContext<D>| {
        let lengths = request.lengths(0..request.prompts.len());
        let mut chunk = Stages::new(&at, model.config.shape.reaching(request.positions(&lengths)))?;
        network.agrees(at.mesh)?;
        let once = |_| once((model, &mut chunk), request, &at, watch);
        let runs = (0..times).map(once).collect::<Result<Vec<_>>>()?;
        let reported = |(Answers { texts, times, prefill }, took, seen): OfRank<D>| -> Result<_> {
            Ok((network.of_all(at.mesh, (texts, times, prefill, took))?, seen))
        };
        runs.into_iter().map(reported).collect::<Result<Vec<_>>>()
    })?;
    let mut all: Vec<Generated<D::Elem>> = (0..times).map(|_| Generated::new()).collect();
    for rank in ranks {
        for (all, (of_ranks, seen)) in all.iter_mut().zip(rank) {
            for (texts, times, prefill, taken) in of_ranks {
                all.texts.extend(texts);
                all.times.extend(times);
                all.taken.push(taken);
                all.prefill_seconds = all.prefill_seconds.max(prefill);
            }
            all.seen.extend(seen);
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
