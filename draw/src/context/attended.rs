//! Attention among the context ranks of a layout, counted: the tokens of each rank, and its hops.
use super::{MemberHop, SharedAttention};
use kernels::{Mask, Meta, Segment, Span};
use layers::{Choice, counted};
use ops::{PassContext, TokenShards};
use parallel::{Layout, Result, bail};

impl SharedAttention {
    /// Attention in documents of these lengths, under a mask with a name.
    ///
    /// # Errors
    /// If the ranks do not form blocks, or there is no picture of the way in which queries reach keys.
    pub fn of(layout: &Layout, documents: &[usize], (mask, masked): (Mask, &str)) -> Result<Self> {
        let ranks = layout.size(TokenShards::CONTEXT);
        let strategy = |choice| layout.strategies().into_iter().find(|about| about.choice == choice);
        let [dealing, core] =
            [Choice::Dealing, Choice::Core].map(|choice| strategy(choice).expect("of each choice one"));
        let (gathers, block) = match core.word {
            "gathered" => (true, 1),
            "ring" => (false, 1),
            "ulysses" => (false, layout.number(core).unwrap_or(ranks)),
            word => bail!("there is no picture of {word}"),
        };
        if !ranks.is_multiple_of(block) {
            bail!("the layout {layout} has {ranks} context ranks, which blocks of {block} do not divide");
        }
        let begins = |document| documents[..document].iter().sum::<usize>();
        let number = |of: &Segment, at| begins(of.sequence) + of.position + at;
        let hop = |from, keys, spans: &[Span]| {
            let mut seen = Vec::new();
            for Span { query, key } in spans {
                let pairs = (0..query.len).flat_map(|q| (0..key.len).map(move |k| [q, k]));
                let sees = |[q, k]: &[usize; 2]| mask.sees(query.position + q, key.position + k);
                seen.extend(pairs.filter(sees).map(|[q, k]| [number(query, q), number(key, k)]));
            }
            MemberHop { from, keys, pairs: spans.iter().map(|span| mask.pairs(span)).sum(), seen }
        };
        let mut tokens = Vec::new();
        let mut members = Vec::new();
        for rank in 0..ranks {
            let cx =
                PassContext::<Meta<f32>>::infer(documents).sharded(layout.tokens().of_context_rank(rank));
            let segments = cx.tokens().iter().filter(|of| of.len > 0);
            tokens.push(segments.map(|of| [number(of, 0), number(of, of.len)]).collect());
            if gathers {
                members.push(vec![hop(None, cx.rows_of_parts() - cx.rows(), cx.spans().list())]);
            } else if rank.is_multiple_of(block) {
                let hops = cx.hops(block, mask);
                members
                    .push(hops.list.iter().map(|of| hop(Some(of.from), of.take, of.spans.list())).collect());
            }
        }
        let blocks = layout.number(core).map_or(String::new(), |n| format!("/{n}"));
        let name = format!("cp={ranks}:{}:{}{blocks}", dealing.word, core.word);
        let packed = counted(documents.len(), "document");
        let packed = if documents.len() > 1 { format!(" in {packed}") } else { String::new() };
        let title = format!("{name}: {}{packed}, {masked}", counted(begins(documents.len()), "token"));
        Ok(Self { title, tokens, block, members })
    }
}
