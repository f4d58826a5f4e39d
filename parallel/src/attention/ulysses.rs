//! Ulysses attention, `cp=N:ulysses`: before attention's core the context ranks exchange heads for tokens, so
//! that each has all tokens of its part of the heads, and after it tokens for heads. With a number,
//! `ulysses/4`, blocks of 4 consecutive ranks exchange, and keys and values travel in a ring of the blocks.
//!
//! ```text
//! forward   [Q|K|V][B,·/N] = all-to-all of [Q|K|V][B_r,(H_t+2K_t)d],  O[B_r] = all-to-all of O[B,H_t·d/N]
//! backward  the mirror image
//! ```
//! With more ranks than KV heads, several ranks get the same one, and its gradient is their sum, in the wide
//! dtype. A KV cache holds this rank's heads of all tokens.
//!
//! Source: Jacobs et al., "`DeepSpeed` Ulysses", §3, arXiv:2309.14509; Fang, Zhao, "USP", arXiv:2405.07719.
//! Chapter: context parallelism.
use super::ring::RingCore;
use comm::Axis;
use kernels::Kernels;
use layers::attention::core::CoreSettings;
use layers::build::strategy::Core;
use layers::{
    BoxedLayer, Builder, Choice, Design, InputHalf, Layer, NumberArgument, Params, Sizes, Strategy,
    StrategyInfo,
};
use ops::{DividedSize, DivisionRule, HeadExchange, PassContext, Result, Split, TokenShards};

/// Ulysses attention.
pub struct Ulysses;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "Ulysses attention",
    word: "ulysses",
    takes: NumberArgument::Optional("ranks that exchange heads"),
    shares,
    paper: "Jacobs et al., arXiv:2309.14509",
    chapter: Some("context-parallelism.md"),
    hints: &[
        ("gradient of", "a KV head that several ranks have gets the sum of their gradients"),
        ("", "each rank has all tokens of its own heads in attention, in the order of their positions"),
    ],
    ..StrategyInfo::of(Some(Axis::Cp), Choice::Core)
};

/// The heads that ranks of a block share, with those of tensor ranks, and the ranks that blocks divide.
fn shares(design: &Design, sizes: &Sizes) -> Vec<DividedSize> {
    let ranks = sizes.along(Axis::Cp);
    let (block, Some(shape)) = (sizes.number.unwrap_or(ranks), design.shape()) else { return vec![] };
    let one = |what, size, over, by| DividedSize { what, size, over, by };
    let over = block.saturating_mul(sizes.along(Axis::Tp));
    let blocks = sizes.number.map(|block| one("context ranks", ranks, block, DivisionRule::Equally));
    let heads = [
        one("query heads", shape.heads.queries, over, DivisionRule::Equally),
        one("KV heads", shape.heads.keys, over, DivisionRule::OrCopies),
    ];
    blocks.into_iter().chain(heads).collect()
}

impl<D: Kernels> Strategy<D> for Ulysses {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn core(&self, at: &Builder<D>, core: &Core) -> Result<Option<BoxedLayer<D, Split<D>, Split<D>>>> {
        let sharers = TokenShards::sharers(at.mesh).named(core.name);
        let number = at.numbers[Choice::Core as usize] as usize;
        let group = sharers.consecutive(if number == 0 { sharers.size() } else { number })?;
        let ranks = group.size();
        let exchange = HeadExchange::new(group, core.heads);
        let settings = CoreSettings::new(at, core)?.part(exchange.heads(), exchange.first());
        let inner = RingCore::new(at, core.name, settings, ranks)?;
        Ok(Some(BoxedLayer::new(UlyssesCore { inner, exchange })))
    }
}

/// Attention of this rank's part of the heads to the tokens of its block, or of all blocks.
struct UlyssesCore<D: Kernels> {
    inner: RingCore<D>,
    exchange: HeadExchange<D>,
}

impl<D: Kernels> Layer<D> for UlyssesCore<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = <RingCore<D> as Layer<D>>::Saved;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, qkv: Split<D>) -> Result<(Split<D>, Self::Saved)> {
        let own = self.exchange.qkv(cx, &qkv)?;
        drop(qkv);
        let (o, saved) = self.inner.forward(cx, own)?;
        Ok((self.exchange.output(cx, o)?, saved))
    }
    fn backward_input(
        &mut self,
        cx: &PassContext<D>,
        saved: Self::Saved,
        d_o: Split<D>,
    ) -> InputHalf<D, Self> {
        let (device, own) = (d_o.device().clone(), self.exchange.gradient(cx, &d_o)?);
        drop(d_o);
        Ok((self.exchange.qkv_gradient(cx, &device, self.inner.gradient(cx, saved, &own)?)?, ()))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.inner.params(into);
    }
}
