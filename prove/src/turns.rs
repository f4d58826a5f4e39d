//! Texts of a proof in slots that take turns, as `generate --requests async` reads them: each slot has a
//! cache of its own, and the ids travel from the last stage to the first.
//!
//! Text `n` of a data rank is in slot `n mod slots`. Ranks that share experts meet in every pass, also for
//! the tokens of others: a slot runs as many passes on each data rank, empty ones behind its last text.
use crate::Subject;
use comm::Axis;
use kernels::Kernels;
use layers::Input;
use ops::PassContext;
use parallel::stages::turns::{SlotRequests, SlotToken};
use parallel::{BuildContext, Result, Stages};
use std::ops::Range;
use tensor::{Scalar, Tensor, TokenIds};

/// Reads this data rank's texts with a slot for each chunk of the pipeline. Returns the logits of
/// [`read`](crate::read) on the last stage, nothing on others; and one element more on a rank that received
/// another id.
///
/// # Errors
/// If an id is not in the vocabulary, or ranks do not meet.
pub(crate) fn read<D: Kernels>(
    subject: &Subject,
    at: &BuildContext<D>,
    model: &mut Stages<D>,
) -> Result<Vec<D::Elem>> {
    let rows = subject.rows_read();
    let most = rows.len().div_ceil(at.tokens.data_ranks());
    let n = at.pipeline.plan(at.mesh.group(Axis::Pp).size(), 1).all_chunks().min(most);
    let mine = at.tokens.sequences(rows.len());
    let empty = || PassContext::infer([0; 0]).sharded(at.tokens).with_cache(0);
    let slot = |slot: usize| {
        let of_rank = |rank| {
            rows[at.tokens.of_data_rank(rank).sequences(rows.len())].iter().skip(slot).step_by(n).sum()
        };
        TextSlot {
            passes: mine.clone().skip(slot).step_by(n).flat_map(|text| passes(subject, text)).collect(),
            most: (0..at.tokens.data_ranks()).map(of_rank).max().unwrap_or(0),
            begun: 0,
            cx: empty(),
            id: None,
        }
    };
    let mut turns = TextTurns { subject, at, slots: (0..n).map(slot).collect(), rows: Vec::new() };
    turns.rows.resize(mine.len(), Vec::new());
    model.in_turns(n, &mut turns)?;
    Ok(turns.rows.concat())
}

/// Passes of a text: the tokens that each reads.
fn passes(subject: &Subject, text: usize) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (ids, prompt) = &subject.texts[text];
    let later = (*prompt..ids.len()).map(|token| token..token + 1);
    std::iter::once(0..*prompt).chain(later).map(move |tokens| (text, tokens))
}

/// Texts in slots, on one rank.
struct TextTurns<'a, D: Kernels> {
    subject: &'a Subject,
    at: &'a BuildContext<'a, D>,
    slots: Vec<TextSlot<D>>,
    rows: Vec<Vec<D::Elem>>, // logits of each text
}

/// A slot.
struct TextSlot<D: Kernels> {
    passes: Vec<(usize, Range<usize>)>, // text and tokens
    most: usize,                        // passes of any data rank
    begun: usize,
    cx: PassContext<D>,
    id: Option<u32>, // that came from the last stage, if values are known
}

impl<D: Kernels> TextSlot<D> {
    fn pass(&self) -> Option<&(usize, Range<usize>)> {
        self.passes.get(self.begun - 1)
    }
}

impl<D: Kernels> TextTurns<'_, D> {
    /// Id that follows these tokens of a text; behind the last, one that no text has.
    fn next(&self, text: usize, tokens: &Range<usize>) -> u32 {
        self.subject.texts[text].0.get(tokens.end).copied().unwrap_or(u32::MAX)
    }
}

impl<D: Kernels> SlotRequests<D> for TextTurns<'_, D> {
    fn begin(&mut self, slot: usize) -> Result<bool> {
        let TextSlot { passes, most, begun, cx, .. } = &mut self.slots[slot];
        if begun == most {
            return Ok(false);
        }
        match passes.get(*begun) {
            Some((text, range)) if range.start == 0 => {
                let fresh = PassContext::infer([range.len()]).sharded(self.at.tokens).numbered_from(*text);
                *cx = fresh.with_cache(self.subject.texts[*text].0.len());
            }
            Some(_) => cx.advance(&[1]),
            None => cx.advance(&[0][..cx.parts().len()]),
        }
        *begun += 1;
        Ok(true)
    }
    fn cx(&self, slot: usize) -> &PassContext<D> {
        &self.slots[slot].cx
    }
    fn input(&mut self, slot: usize) -> Result<Input<D>> {
        let TextSlot { cx, id, .. } = &self.slots[slot];
        let fed = self.slots[slot].pass().map(|(text, range)| match id {
            Some(id) if range.start > 0 => vec![*id],
            _ => self.subject.texts[*text].0[range.clone()].to_vec(),
        });
        let fed: Vec<_> = fed.into_iter().chain([Vec::new()]).collect();
        let ids = cx.own(&fed[..cx.parts().len()]);
        Ok(TokenIds::new(self.at.device.place(), ids, self.subject.model.outputs())?.into())
    }
    fn choose(&mut self, slot: usize, logits: Tensor<D>) -> Result<Option<SlotToken>> {
        let Some(row) = logits.read() else { return Ok(None) };
        let mut id = 0;
        if let Some((text, range)) = self.slots[slot].pass() {
            let first = self.at.tokens.sequences(self.subject.texts.len()).start;
            self.rows[*text - first].extend(row);
            id = self.next(*text, range);
        }
        Ok(Some(SlotToken { id, open: false }))
    }
    fn chosen(&mut self, slot: usize, token: Option<SlotToken>) {
        self.slots[slot].id = token.map(|token| token.id);
        let wanted = self.slots[slot].pass().map(|(text, range)| self.next(*text, range));
        if let (Some(token), Some(wanted)) = (token, wanted)
            && token.id != wanted
        {
            self.rows.push(vec![D::Elem::ZERO]);
        }
    }
}
