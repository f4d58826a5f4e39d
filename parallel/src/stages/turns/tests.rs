//! Passes of slots, in the field: every slot's logits equal those of its text alone, in one piece.
use super::*;
use crate::pipeline::ALL;
use crate::{BuildContext, Error, Layout, session};
use kernels::Heads;
use layers::{Experts, Shape};
use ops::{RandomValues, TokenShards};
use std::collections::BTreeMap;
use tensor::{Cpu, Device, F61, Key, TokenIds};

const DENSE: Shape =
    Shape { width: 4, blocks: 5, heads: Heads::new(2, 2, 2), hidden: 4, vocabulary: 8, ..Shape::LLAMA };
const ROUTED: Shape =
    Shape { experts: Some(Experts { count: 4, chosen: 2, hidden: 2, ..Experts::MIXTRAL }), ..DENSE };

/// Texts with the lengths of their prompts; the rest is fed token by token. Some end with their prompt.
fn texts() -> Vec<(Vec<u32>, usize)> {
    let text = |n: usize| {
        let (prompt, new) = [(3, 4), (1, 0), (2, 2), (5, 1), (1, 5), (2, 0), (4, 3)][n];
        ((0..prompt + new).map(|i| ((3 * i + n * (i + 1)) % 8) as u32).collect(), prompt)
    };
    (0..7).map(text).collect()
}

/// Logits by text and position.
type Rows = BTreeMap<(usize, usize), Vec<F61>>;

/// Slots whose next tokens are those of the texts, whatever the logits are.
struct Forced {
    device: Cpu<F61>,
    tokens: TokenShards,
    texts: Vec<(Vec<u32>, usize)>,
    waiting: std::ops::Range<usize>,
    slots: Vec<(PassContext<Cpu<F61>>, Option<(usize, usize)>)>, // text and tokens that were read, or none
    rows: Rows,
}

impl Forced {
    fn new(device: &Cpu<F61>, tokens: TokenShards, slots: usize) -> Self {
        let texts = texts();
        let slot = |_| (PassContext::infer([0; 0]).sharded(tokens).with_cache(0), None);
        let (slots, waiting) = ((0..slots).map(slot).collect(), tokens.sequences(texts.len()));
        Self { device: device.clone(), tokens, texts, waiting, slots, rows: Rows::new() }
    }
    fn fed(&self, slot: usize) -> Vec<Vec<u32>> {
        let (cx, of) = &self.slots[slot];
        let fed = |&(text, read): &(usize, usize)| {
            let (ids, len) = (&self.texts[text].0, cx.parts()[0].len);
            ids[read - len..read].to_vec()
        };
        of.as_ref().map(fed).into_iter().collect()
    }
}

impl SlotRequests<Cpu<F61>> for Forced {
    fn begin(&mut self, slot: usize) -> Result<bool> {
        let (cx, of) = &mut self.slots[slot];
        match of {
            Some((text, read)) if *read < self.texts[*text].0.len() => {
                cx.advance(&[1]);
                *read += 1;
            }
            _ => {
                *of = self.waiting.next().map(|text| (text, self.texts[text].1));
                let Some((text, prompt)) = of else { return Ok(false) };
                let fresh = PassContext::infer([*prompt]).sharded(self.tokens).numbered_from(*text);
                *cx = fresh.with_cache(9);
            }
        }
        Ok(true)
    }
    fn cx(&self, slot: usize) -> &PassContext<Cpu<F61>> {
        &self.slots[slot].0
    }
    fn input(&mut self, slot: usize) -> Result<Input<Cpu<F61>>> {
        let fed = self.fed(slot);
        Ok(TokenIds::new(self.device.place(), self.slots[slot].0.own(&fed), 8)?.into())
    }
    fn choose(&mut self, slot: usize, logits: Tensor<Cpu<F61>>) -> Result<Option<SlotToken>> {
        let of = self.slots[slot].1.expect("a text");
        self.rows.insert(of, logits.read().unwrap());
        Ok(Some(SlotToken { id: (of.0 * 1000 + of.1) as u32 * 77_777, open: of.1.is_multiple_of(2) }))
    }
    fn chosen(&mut self, slot: usize, token: Option<SlotToken>) {
        let of = self.slots[slot].1.expect("a text");
        let wanted = SlotToken { id: (of.0 * 1000 + of.1) as u32 * 77_777, open: of.1.is_multiple_of(2) };
        assert_eq!(token, Some(wanted), "slot {slot}");
    }
}

/// Logits of all texts in slots, as their last stage has them, by rank.
fn in_slots(shape: Shape, layout: &Layout, slots: usize) -> Vec<Rows> {
    let run = |at: BuildContext<Cpu<F61>>| {
        let mut requests = Forced::new(at.device, at.tokens, slots);
        let mut stages = Stages::new(&at, shape)?;
        stages.in_turns(slots, &mut requests)?;
        let is_last = at.mesh.group(Axis::Pp).rank() == stages.last_stage();
        assert_eq!(requests.rows.is_empty(), !is_last, "the last stage alone has logits");
        Ok(requests.rows)
    };
    let ranks = session::run((layout, &layout.world().unwrap()), &RandomValues { seed: 4 }, run);
    ranks.unwrap_or_else(|why| panic!("{layout}, {slots} slots: {why}"))
}

/// Logits of the texts, each read alone and at once by the model in one piece.
fn alone(shape: Shape) -> Rows {
    let mut rows = Rows::new();
    for (n, (ids, prompt)) in texts().into_iter().enumerate() {
        let all = session::alone(&RandomValues { seed: 4 }, |at: BuildContext<Cpu<F61>>| {
            let (cx, given) = (PassContext::infer([ids.len()]), TokenIds::new(at.device.place(), &ids, 8)?);
            Ok::<_, Error>(Stages::new(&at, shape)?.logits(&cx, given, true)?.read().unwrap())
        });
        let all = all.unwrap();
        rows.extend((prompt..=ids.len()).map(|read| ((n, read), all[(read - 1) * 8..read * 8].to_vec())));
    }
    rows
}

fn assert_equal(shape: Shape, layout: &str) {
    let (layout, wanted) = (layout.parse().unwrap(), alone(shape));
    for slots in [1, 2, 3, 4, 7] {
        let mut seen = Rows::new();
        for rows in in_slots(shape, &layout, slots) {
            for (of, row) in rows {
                assert!(row == wanted[&of], "text and tokens {of:?}, {slots} slots, {layout}");
                seen.insert(of, row);
            }
        }
        assert_eq!(seen.len(), wanted.len(), "{slots} slots, {layout}");
    }
}

/// Kills: a cache of another slot, a pass that begins before the token of the one before it, a message for
/// another slot or another chunk, ranks that wait for each other.
#[test]
fn every_schedule_reads_texts_in_slots_as_alone() {
    let _key = Key(8).enter();
    assert_equal(DENSE, "none");
    for schedule in ALL {
        let method = schedule.about().word;
        for pp in [2, 3] {
            if let Ok(layout) = format!("pp={pp}:{method}").parse::<Layout>() {
                let chunks = layout.chunks();
                let shape = Shape { blocks: chunks.max(5), ..DENSE };
                assert_equal(shape, &layout.to_string());
            }
        }
    }
}

/// Kills: an activation in another region than a stage computes in, logits without those of other ranks.
#[test]
fn every_axis_reads_texts_in_slots_as_alone() {
    let _key = Key(8).enter();
    for layout in ["pp=2,tp=2", "pp=2,tp=2,sp", "pp=2,cp=2", "pp=2,dp=2", "pp=2:interleaved/2,tp=2,sp"] {
        assert_equal(DENSE, layout);
    }
    for layout in ["none", "pp=2", "pp=3", "pp=2,tp=2"] {
        assert_equal(ROUTED, layout);
    }
}

/// Kills: a digit in another place or lost in a narrow dtype, a flag taken for a digit, a panic on what is no
/// digit.
#[test]
fn every_id_is_read_as_it_was_sent() {
    for id in [0, 1, 255, 256, 65_535, 128_255, 0x0102_0304, u32::MAX] {
        for open in [false, true] {
            let token = SlotToken { id, open };
            let narrow = message(&Cpu::<tensor::Bf16>::default(), Some(token)).read().unwrap();
            assert_eq!(read(&narrow).unwrap(), token);
            let exact = message(&Cpu::<F61>::default(), Some(token)).read().unwrap();
            assert_eq!(read(&exact).unwrap(), token);
        }
    }
    for (sent, says) in [
        ([0.0, 0.5, 0.0, 0.0, 0.0], "a token's message has 0.5; it must be 0 to 255"),
        ([256.0, 0.0, 0.0, 0.0, 1.0], "a token's message has 256.0; it must be 0 to 255"),
        ([1.0, 0.0, 0.0, 0.0, 2.0], "a token's message has 2.0; it must be 0 to 1"),
    ] {
        assert_eq!(read(&sent).unwrap_err().to_string(), says);
    }
}
