//! Attention among the members of a ring: queries stay, and keys and values travel; their gradients return,
//! in the wide dtype. With one new token for each sequence queries travel instead.
//!
//! ```text
//! hop h     [K|V] of member r−h arrives;  (o, m, l) of this member's queries takes it in
//! backward  [K|V] of member r−h arrives;  its d[K|V] goes back to r−h, which sums it
//! decoding  O[i] = Σ_r e^(m_r − m)·o_r / Σ_r e^(m_r − m)·l_r      o_r of the keys on member r
//! ```
//! Source: Liu et al., "Ring attention", §3, arXiv:2310.01889; Li et al., "`DistFlashAttn`", §3,
//! arXiv:2310.03294.
use super::attention::{
    add_gradients, count, delta, most_keys, parts, scratch, softmax, take_rows, with_keys,
};
use super::running::{AttentionCall, Running};
use crate::cx::hops::Hop;
use crate::{PassContext, Result, Split, filled};
use comm::{Group, Request, Tag};
use kernels::{Attend, Indexed, Kernels, Qkv, Span};
use std::ops::Range;
use tensor::{Category, Device, Scalar, Tensor, View, ViewMut};

/// A ring of members, each of `block` consecutive context ranks, which have each other's tokens.
pub struct AttentionRing<D: Kernels> {
    group: Group<D::Place>, // the ranks of all members that have the same heads
    block: usize,
}

/// Keys and values on their way: those that go, and those that come.
struct Travelling<D: Kernels> {
    sent: Option<Request<D>>,
    coming: Option<Request<D>>,
}

/// Adds gradients of keys and values that came back to the rows of `to` that were given away.
fn add_back<D: Kernels>(
    wide: &D::Wide,
    given: &[Range<usize>],
    back: &Tensor<D::Wide>,
    mut to: ViewMut<D::Wide>,
) {
    let mut row = 0;
    for of in given {
        wide.add(to.again().take_rows(of.start, of.len()), back.view().take_rows(row, of.len()));
        row += of.len();
    }
}

impl<D: Kernels> Travelling<D> {
    /// Waits until all have arrived, and returns those that came.
    fn arrive(self) -> Result<Option<Tensor<D>>> {
        let arrived = self.coming.map(Request::wait).transpose()?;
        self.sent.map(Request::wait).transpose()?;
        Ok(arrived)
    }
}

/// Takes the keys of these spans into the running softmax.
fn take_in<D: Kernels>(
    device: &D,
    attend: &Attend,
    spans: &Indexed<Span, D::Place>,
    qkv: Qkv<D>,
    run: &mut Running<D>,
) {
    if spans.list().is_empty() {
        return;
    }
    let mut scratch = scratch(device, attend.heads, most_keys(spans));
    count(device, attend, spans, [1, 1]);
    device.attention_block(attend, spans.on(device.place()), qkv, run.view(attend.heads), scratch.view_mut());
}

impl<D: Kernels> AttentionRing<D> {
    /// Makes the ring of a group of context ranks: members of `block` consecutive ranks.
    ///
    /// # Errors
    /// If `block` does not divide the number of ranks.
    pub fn new(ranks: &Group<D::Place>, block: usize) -> Result<Self> {
        ranks.consecutive(block)?;
        Ok(Self { group: ranks.split(|rank| rank % block)?, block })
    }
    /// Starts to send the keys and values that a hop gives, and to receive those that it takes.
    fn start(&self, kv: View<D>, device: &D, hop: &Hop<D::Place>, h: usize) -> Result<Travelling<D>> {
        let cols = kv.cols();
        let tag = Tag::new("keys", h);
        let rows = hop.give.iter().map(Range::len).sum();
        let send = || {
            let mut given = Tensor::empty(device, Category::Activations, rows, cols);
            let mut row = 0;
            for of in &hop.give {
                device.copy(given.view_mut().take_rows(row, of.len()), kv.take_rows(of.start, of.len()));
                row += of.len();
            }
            self.group.start_send(hop.to, given, tag)
        };
        let coming = || self.group.start_receive(device, hop.from, hop.take, cols, tag);
        let sent = (rows > 0).then(send).transpose()?;
        Ok(Travelling { sent, coming: (hop.take > 0).then(coming).transpose()? })
    }
    /// Self-attention of this member's queries, `QKV[B_r, (Hq+2Hk)·d]` to `O[B_r, Hq·d]` and the log-sum-exp
    /// `[B_r, Hq]`. With a cache, each member stores the keys and values of its own tokens under `slot`.
    ///
    /// # Errors
    /// If a call fails.
    pub fn attention(
        &self,
        cx: &PassContext<D>,
        slot: usize,
        qkv: &Split<D>,
        attend: &AttentionCall<D>,
    ) -> Result<(Split<D>, Split<D::Wide>)> {
        let (axis, device, hops) = (qkv.axis(), qkv.device(), cx.hops(self.block, attend.scores.mask));
        let [q, mut kv] = parts(qkv.share().view(), attend.heads);
        let mut past = cx.past();
        if let Some(past) = &mut past {
            let room = past.room_of(self.block, self.group.rank());
            let store = &mut past.slot(slot, device, [room, kv.cols()]).stored;
            device.put_rows(store.view_mut(), kv, hops.stored.on(device.place()));
            kv = store.view();
        }
        let run = if cx.decodes() {
            let queries = self.group.all_gather_v(&copied(device, q), &hops.queries)?;
            let mut run = Running::new(device, queries.rows(), attend.heads, None);
            take_in(device, attend, &hops.shared, with_keys(attend.heads, queries.view(), kv), &mut run);
            self.merged(device, &hops.queries, run, attend)?
        } else if let [own] = &hops.list[..] {
            let (o, lse) =
                softmax(device, attend, (&own.spans, most_keys(&own.spans)), with_keys(attend.heads, q, kv));
            return Ok((Split::new(o, axis), Split::new(lse, axis)));
        } else {
            let mut run = Running::new(device, q.rows(), attend.heads, attend.sinks());
            let mut coming = None;
            for (h, hop) in hops.list.iter().enumerate() {
                let arrived = coming.take().map_or(Ok(None), Travelling::arrive)?;
                coming = hops.list.get(h + 1).map(|hop| self.start(kv, device, hop, h + 1)).transpose()?;
                let kv = arrived.as_ref().map_or(kv, Tensor::view);
                take_in(device, attend, &hop.spans, with_keys(attend.heads, q, kv), &mut run);
            }
            run
        };
        let (o, lse) = run.finish(device, attend.heads);
        Ok((Split::new(o, axis), Split::new(lse, axis)))
    }
    /// Returns the running softmax of this member's queries over the keys of all members, from theirs of all
    /// queries: an all-to-all of `B·Hq·(d+2)` elements.
    fn merged(
        &self,
        device: &D,
        queries: &[usize],
        run: Running<D>,
        attend: &AttentionCall<D>,
    ) -> Result<Running<D>> {
        let here = queries[self.group.rank()];
        let heads = attend.heads;
        let arrived = self.group.all_to_all_v(&run.0, queries, &vec![here; queries.len()])?;
        let mut run = Running::new(device, here, heads, attend.sinks());
        for member in 0..queries.len() {
            let other = arrived.view().take_rows(member * here, here);
            let [out, max, sum] = heads.running().map(|of| other.take_cols(of.start, of.len()));
            device.wide().attention_merge(heads, run.view(attend.heads), (out, max, sum));
        }
        Ok(run)
    }
    /// Starts to return the gradients of keys that arrived, and to receive those of keys that were given.
    fn give_back(
        &self,
        (h, hop): (usize, &Hop<D::Place>),
        of_arrived: Option<Tensor<D::Wide>>,
        (wide, cols): (&D::Wide, usize),
    ) -> Result<Travelling<D::Wide>> {
        let rows = hop.give.iter().map(Range::len).sum();
        let tag = Tag::new("gradients of keys", h);
        let sent = of_arrived.map(|d| self.group.start_send(hop.from, d, tag)).transpose()?;
        let receive = || self.group.start_receive(wide, hop.to, rows, cols, tag);
        Ok(Travelling { sent, coming: (rows > 0).then(receive).transpose()? })
    }
    /// The gradient of [`attention`](Self::attention), `dQKV[B_r, (Hq+2Hk)·d]` in the wide dtype. With a
    /// cache, slices run backward last slice first, as in [`attention_backward`](crate::attention_backward).
    ///
    /// # Errors
    /// If a call fails.
    pub fn attention_backward(
        &self,
        cx: &PassContext<D>,
        slot: usize,
        qkv: &Split<D>,
        attend: &Attend,
        (o, lse, d_o): (&Split<D>, &Split<D::Wide>, &Split<D>),
    ) -> Result<Split<D::Wide>> {
        let device = qkv.device();
        let hops = cx.hops(self.block, attend.scores.mask);
        let wide = device.wide();
        let zero = <D::Wide as Device>::Elem::ZERO;
        let [q, mut kv] = parts(qkv.share().view(), attend.heads);
        let cols = kv.cols();
        let mut dqkv = filled(wide, Category::Activations, qkv.shape(), zero);
        let delta = delta(attend, o.share(), d_o.share());
        let mut past = cx.past();
        let (mut dq, mut own) = dqkv.view_mut().split_cols(q.cols());
        let mut cached = None;
        if let Some(past) = &mut past {
            let room = past.room_of(self.block, self.group.rank());
            let (stored, sums) = past.slot(slot, device, [room, cols]).with_gradients();
            kv = stored.view();
            cached = Some(sums);
        }
        let (mut coming, mut returning): (Option<Travelling<D>>, Option<(usize, Travelling<D::Wide>)>) =
            (None, None);
        for (h, hop) in hops.list.iter().enumerate() {
            let arrived = coming.take().map_or(Ok(None), Travelling::arrive)?;
            coming = hops.list.get(h + 1).map(|hop| self.start(kv, device, hop, h + 1)).transpose()?;
            let mut of_arrived =
                arrived.as_ref().map(|kv| filled(wide, Category::Activations, kv.shape(), zero));
            let kv = arrived.as_ref().map_or(kv, Tensor::view);
            let dkv = match (&mut of_arrived, &mut cached) {
                (Some(of), _) => of.view_mut(),
                (None, Some(sums)) => sums.view_mut(),
                (None, None) => own.again(),
            };
            if !hop.spans.list().is_empty() {
                let (dk, dv) = dkv.split_cols(attend.heads.k().len());
                let (saved, d) = ((lse.share(), &delta, d_o.share()), [dq.again(), dk, dv]);
                add_gradients(device, (attend, &hop.spans), with_keys(attend.heads, q, kv), saved, d);
            }
            let mut sum = |(h, back): (usize, Travelling<D::Wide>)| -> Result<()> {
                let Some(back) = back.arrive()? else { return Ok(()) };
                let to = cached.as_mut().map_or_else(|| own.again(), |sums| sums.view_mut());
                add_back::<D>(wide, &hops.list[h].give, &back, to);
                Ok(())
            };
            returning.take().map_or(Ok(()), &mut sum)?;
            if h > 0 {
                returning = Some((h, self.give_back((h, hop), of_arrived, (wide, cols))?));
            }
            if h + 1 == hops.list.len() {
                returning.take().map_or(Ok(()), &mut sum)?;
            }
        }
        if let Some(sums) = cached {
            take_rows(wide, own, sums, &hops.stored);
        }
        if let Some(mut past) = past.filter(|_| cx.pass().slice == 0) {
            past.free(slot);
        }
        Ok(Split::new(dqkv, qkv.axis()))
    }
}

/// Returns a copy without gaps between its rows.
fn copied<D: Kernels>(device: &D, x: View<D>) -> Tensor<D> {
    let mut y = Tensor::empty(device, Category::Activations, x.rows(), x.cols());
    device.copy(y.view_mut(), x);
    y
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pass, TokenShards, contiguous};
    use comm::{Axis, World};
    use kernels::{Heads, Mask, Segment};
    use tensor::{Cpu, F61, Key};

    /// Two sequences of 9 and 4 tokens in two slices over three ranks. Kills: a cache that stays after the
    /// first slice's backward, or that goes before it.
    #[test]
    fn slices_share_a_cache_that_ends_with_the_first() {
        let attend = Attend::of(Heads::new(2, 1, 2), Mask::Causal);
        let run = |device: Cpu<F61>, mesh: comm::Mesh<_>| {
            let ring = AttentionRing::new(TokenShards::sharers(&mesh), 1)?;
            let shards = TokenShards::new([1, 3], contiguous).at(&mesh);
            let part = |(position, len, sequence)| Segment { row: 0, len, position, sequence };
            let slices = [[(0, 5, 0), (0, 2, 1)], [(5, 4, 0), (2, 2, 1)]].map(|parts| parts.map(part));
            let slice = |slice: usize| {
                let cx = PassContext::<Cpu<F61>>::default();
                let cx = cx.then(Pass { slice, keeps: true, ..Pass::default() }, [0usize; 0]);
                cx.sharded(shards).dealt(slices[slice])
            };
            let before = slice(0).with_slices(slices.into_iter());
            let cxs = [slice(1).after(&before), before];
            let given = |cx: &PassContext<_>, salt: usize, cols: usize| {
                let tokens =
                    cx.tokens().iter().flat_map(|t| (0..t.len).map(|i| t.sequence * 20 + t.position + i));
                let tokens: Vec<_> = tokens.collect();
                let number = |i: usize| F61::sample((salt + tokens[i / cols] * cols + i % cols) as u64, 1.0);
                Split::new(
                    Tensor::from_fn(&device, Category::Activations, tokens.len(), cols, number),
                    Axis::Tp,
                )
            };
            let forward = |cx: &PassContext<_>| ring.attention(cx, 1, &given(cx, 0, 8), &attend.into());
            let first = forward(&cxs[1])?;
            let second = forward(&cxs[0])?;
            for (cx, (o, lse)) in cxs.iter().zip([second, first]) {
                assert!(device.meter().now(Category::KvCache) > 0);
                ring.attention_backward(cx, 1, &given(cx, 0, 8), &attend, (&o, &lse, &given(cx, 900, 4)))?;
            }
            Ok::<_, crate::Error>(device.meter().now(Category::KvCache))
        };
        let _key = Key(7).enter();
        assert_eq!(World::threads(&[(Axis::Cp, 3)]).unwrap().run(run).unwrap(), [0; 3]);
    }
}
