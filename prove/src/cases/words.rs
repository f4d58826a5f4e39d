//! A case in words: its layout, model, steps, texts and optimizer.
use super::case::ProofCase;
use layers::counted;
use std::fmt;

impl fmt::Display for ProofCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, layout, shape, optimizer, lr, clip, loss_scale, steps, texts } = self;
        let ranks = counted(layout.ranks(), "rank");
        writeln!(f, "layout     {layout}, {ranks}; key {key}")?;
        writeln!(f, "model      {shape}")?;
        for (n, step) in steps.iter().enumerate() {
            let documents = |s: &Vec<_>| s.iter().map(ToString::to_string).collect::<Vec<_>>().join("|");
            let sequences: Vec<_> = step.sequences.iter().map(documents).collect();
            let parts = counted(step.microbatches, "microbatch");
            writeln!(f, "step {n}     {} in {parts}", sequences.join(" "))?;
        }
        let read: Vec<_> = texts.iter().map(|(n, prompt)| format!("{prompt} of {n}")).collect();
        if !read.is_empty() {
            writeln!(f, "texts      prompts of {} tokens, the rest one by one", read.join(", "))?;
        }
        let limit = clip.map_or_else(|| "no limit of the norm".into(), |c| format!("the norm at most {c}"));
        let scaled = loss_scale.map_or_else(String::new, |log2| format!(", the loss scaled by 2^{log2}"));
        writeln!(f, "optimizer  {optimizer}, rate {lr}, {limit}{scaled}")?;
        f.write_str("(. is a token, x a token whose target is ignored, | separates documents)")
    }
}
