//! Ring attention, `cp=N:ring`: the queries of a rank stay, and keys and values travel. In hop `h` every rank
//! sends its keys to the `h`th rank after it, and computes meanwhile with those of hop `h−1`. Keys that no
//! query of a rank sees do not travel to it.
//!
//! ```text
//! forward   (o, m, l) of Q[B_r] takes in [K|V][B_h] hop by hop       send of B_h·2K_t·d elements
//! backward  the same again, and d[K|V][B_h] returns, summed wide     send of 2·B_h·2K_t·d elements
//! ```
//! Under the causal mask a rank sees about half of the keys, so zigzag tokens balance the work. A KV cache
//! holds each rank's own tokens; a new token's query then visits the keys of all ranks.
//!
//! Source: Liu et al., "Ring attention", arXiv:2310.01889. Chapter: context parallelism.
use comm::Axis;
use kernels::Kernels;
use layers::attention::core::CoreSettings;
use layers::build::strategy::Core;
use layers::{BoxedLayer, Builder, Choice, InputHalf, Layer, Params, Strategy, StrategyInfo};
use ops::{KeptValue, PassContext, Result, Split, TokenShards};

/// Ring attention.
pub struct RingAttention;

static ABOUT: StrategyInfo = StrategyInfo {
    name: "ring attention",
    word: "ring",
    paper: "Liu et al., arXiv:2310.01889",
    chapter: Some("context-parallelism.md"),
    hints: &[
        (
            "gradient of",
            "a key's gradient is a sum over the queries of all hops, and returns to the key's rank",
        ),
        (
            "",
            "each query sees the keys of all hops, and parts of its softmax are merged by their largest scores",
        ),
    ],
    ..StrategyInfo::of(Some(Axis::Cp), Choice::Core)
};

impl<D: Kernels> Strategy<D> for RingAttention {
    fn about(&self) -> &'static StrategyInfo {
        &ABOUT
    }
    fn core(&self, at: &Builder<D>, core: &Core) -> Result<Option<BoxedLayer<D, Split<D>, Split<D>>>> {
        Ok(Some(BoxedLayer::new(RingCore::new(at, core.name, CoreSettings::new(at, core)?, 1)?)))
    }
}

/// Attention of this rank's heads among the members of a ring.
pub(super) struct RingCore<D: Kernels> {
    ring: ops::AttentionRing<D>,
    settings: CoreSettings<D>,
}

/// Values that backward needs: `[Q|K|V]`, `O` and the log-sum-exp.
type Saved<D> = KeptValue<(Split<D>, Split<D>, Split<<D as Kernels>::Wide>)>;

impl<D: Kernels> RingCore<D> {
    /// Makes the core of a block's attention, in a ring of members of `of` context ranks each.
    pub(super) fn new(at: &Builder<D>, name: &str, settings: CoreSettings<D>, of: usize) -> Result<Self> {
        let ring = ops::AttentionRing::new(&TokenShards::sharers(at.mesh).named(name), of)?;
        Ok(Self { ring, settings })
    }
    /// The gradient of `[Q|K|V]`, in the wide dtype.
    pub(super) fn gradient(
        &mut self,
        cx: &PassContext<D>,
        saved: Saved<D>,
        d_o: &Split<D>,
    ) -> Result<Split<D::Wide>> {
        let (qkv, o, lse) = saved.open();
        self.settings.learn((&o, &lse, d_o))?;
        let attend = self.settings.attend(cx)?;
        self.ring.attention_backward(cx, self.settings.block, &qkv, &attend, (&o, &lse, d_o))
    }
}

impl<D: Kernels> Layer<D> for RingCore<D> {
    type In = Split<D>; // [Q|K|V]
    type Out = Split<D>; // O
    type Saved = Saved<D>;
    type Pending = ();

    fn forward(&self, cx: &PassContext<D>, qkv: Split<D>) -> Result<(Split<D>, Saved<D>)> {
        let (o, lse) = self.ring.attention(cx, self.settings.block, &qkv, &self.settings.attend(cx)?)?;
        let kept = cx.keep((qkv, o.clone(), lse));
        Ok((o, kept))
    }
    fn backward_input(&mut self, cx: &PassContext<D>, saved: Saved<D>, d_o: Split<D>) -> InputHalf<D, Self> {
        Ok((Split::narrowed(d_o.device(), &self.gradient(cx, saved, &d_o)?), ()))
    }
    fn backward_weight(&mut self, _: &PassContext<D>, (): ()) -> Result<()> {
        Ok(())
    }
    fn params<'a>(&'a mut self, into: &mut Params<'a, D>) {
        self.settings.params(into);
    }
}
