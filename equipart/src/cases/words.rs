//! A case in words: what a model has beyond the plainest, how it is split, what it learns.
use super::Case;
use kernels::{Activation, Heads};
use layers::{FeedForward, Kind, NormKind, Positions, Shape};
use std::fmt;
use tensor::Scaling;

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, layout, shape, optimizer, lr, clip, steps, texts } = self;
        let ranks = counted(layout.ranks(), "rank");
        writeln!(f, "layout     {layout}, {ranks}; key {key:#018x}")?;
        writeln!(f, "model      {}", model(shape))?;
        for (n, step) in steps.iter().enumerate() {
            let documents = |s: &Vec<_>| s.iter().map(ToString::to_string).collect::<Vec<_>>().join("|");
            let sequences: Vec<_> = step.sequences.iter().map(documents).collect();
            let parts = match step.microbatches {
                1 => "one microbatch".to_string(),
                n => format!("{n} microbatches"),
            };
            writeln!(f, "step {n}     {} in {parts}", sequences.join(" "))?;
        }
        let read: Vec<_> = texts.iter().map(|(n, prompt)| format!("{prompt} of {n}")).collect();
        if !read.is_empty() {
            writeln!(f, "texts      prompts of {} tokens, the rest one by one", read.join(", "))?;
        }
        match optimizer {
            Kind::Sgd => write!(f, "optimizer  plain descent")?,
            Kind::AdamW { beta1, beta2, eps, decay } => {
                write!(f, "optimizer  AdamW, β {beta1} and {beta2}, ε {eps}, decay {decay}")?;
            }
        }
        let limit = clip.map_or_else(|| "no limit of the norm".into(), |c| format!("the norm at most {c}"));
        write!(f, ", rate {lr}, {limit}\n(. is a token, x one whose target is ignored, | parts documents)")
    }
}

fn model(shape: &Shape) -> String {
    let Shape { width, blocks, heads: Heads { queries, keys, dim }, hidden, vocabulary, .. } = *shape;
    let mut says = vec![
        counted(blocks, "block"),
        format!("width {width}"),
        format!("{} of {}", counted(queries, "query head"), counted(dim, "feature")),
        counted(keys, "key head"),
        format!("{hidden} hidden"),
        counted(vocabulary, "id"),
        format!("{}, ε {}", if shape.norm == NormKind::Rms { "RMS norm" } else { "layer norm" }, shape.eps),
        match shape.feed_forward {
            FeedForward::SwiGlu => "SwiGLU",
            FeedForward::Plain(Activation::Gelu) => "GELU",
            FeedForward::Plain(Activation::GeluTanh) => "GELU by tanh",
            FeedForward::Plain(Activation::Relu) => "ReLU",
        }
        .into(),
        match shape.positions {
            Positions::Learned(n) => counted(n, "learned position"),
            Positions::Rotary(rope) => {
                let scaling = match rope.scaling {
                    Scaling::None => "",
                    Scaling::Linear { .. } => ", scaled alike",
                    Scaling::Llama3 { .. } => ", scaled as Llama 3's",
                };
                format!("rotary from {}{scaling}", rope.base)
            }
        },
    ];
    let window = shape
        .window
        .map(|w| format!("window {}, {}, from block {}", w.size, counted(w.sinks, "sink"), w.from));
    says.extend(window);
    let flags = [
        (shape.tied, "tied head"),
        (shape.head_norm, "norms of queries and keys"),
        (shape.bias.qkv, "bias of QKV"),
        (shape.bias.out, "bias of attention's output"),
        (shape.bias.mlp, "biases of the feed-forward"),
    ];
    says.extend(flags.into_iter().filter(|(on, _)| *on).map(|(_, what)| what.to_string()));
    let rates = [
        (shape.dropout.embedding, "dropout of the embedding"),
        (shape.dropout.attention, "dropout of probabilities"),
        (shape.dropout.residual, "dropout of residuals"),
        (shape.loss.smoothing, "label smoothing"),
        (shape.loss.z, "z-loss"),
    ];
    says.extend(
        rates.into_iter().filter(|(rate, _)| *rate > 0.0).map(|(rate, what)| format!("{what} {rate}")),
    );
    says.join(", ")
}

/// "1 rank", "2 ranks".
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
