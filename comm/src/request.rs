//! Messages from one rank of a group to another: at once, or as requests that are waited for later.
use crate::ledger::elements_sent;
use crate::record::Begun;
use crate::{Call, Group, Op, Post, Record, Result, Standing, Tag};
use std::sync::Arc;
use std::time::Instant;
use tensor::{Category, Device, Place, Tensor};

impl<P: Place> Group<P> {
    /// Sends `data[R,C]` to rank `to` of the group, under a tag that names what it is.
    /// Returns when it has been received: nothing holds a copy meanwhile.
    ///
    /// # Errors
    /// [`CommError::BadArgument`](crate::CommError::BadArgument) if `to` is no other rank of the group, and those of every
    /// call.
    #[track_caller]
    pub fn send<D: Device<Place = P>>(&self, to: usize, data: &Tensor<D>, tag: Tag) -> Result<()> {
        self.start_send(to, data.clone(), tag)?.wait().map(drop)
    }
    /// Receives what rank `from` of the group sends, an activation `[rows, cols]` on `device`. Messages of one rank to
    /// another arrive in order.
    ///
    /// # Errors
    /// [`CommError::BadArgument`](crate::CommError::BadArgument) if `from` is no other rank of the group,
    /// [`CommError::Mismatch`](crate::CommError::Mismatch), on both, if what it sends has another shape or tag, and
    /// those of every call.
    #[track_caller]
    pub fn receive<D: Device<Place = P>>(
        &self,
        device: &D,
        from: usize,
        rows: usize,
        cols: usize,
        tag: Tag,
    ) -> Result<Tensor<D>> {
        self.start_receive(device, from, rows, cols, tag)?.wait()
    }
    /// Starts to send `data[R,C]` to rank `to` of the group. The request keeps the tensor and gives it back when it has
    /// been received.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Tag, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// // Round a ring: everyone sends first, so with `send` all would wait for each other.
    /// let got = World::threads(&[(Axis::Tp, 3)])?.run(|device: Cpu<f32>, mesh| {
    ///     let (ring, rank, tag) = (mesh.group(Axis::Tp), mesh.rank(), Tag::new("block", 0));
    ///     let mine = Tensor::from_fn(&device, Category::Buffers, 1, 1, |_| rank as f32);
    ///     let sent = ring.start_send((rank + 1) % 3, mine, tag)?;
    ///     let got = ring.receive(&device, (rank + 2) % 3, 1, 1, tag)?;
    ///     sent.wait()?;
    ///     Ok::<_, CommError>(got.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(got, [2.0, 0.0, 1.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Group::send`].
    #[track_caller]
    pub fn start_send<D: Device<Place = P>>(
        &self,
        to: usize,
        data: Tensor<D>,
        tag: Tag,
    ) -> Result<Request<D>> {
        self.start(self.message::<D>(Op::Send, to, data.shape(), tag)?, data, None)
    }
    /// Starts to receive what rank `from` of the group sends. The request gives the tensor when it has arrived.
    ///
    /// # Errors
    /// Those of [`Group::receive`].
    #[track_caller]
    pub fn start_receive<D: Device<Place = P>>(
        &self,
        device: &D,
        from: usize,
        rows: usize,
        cols: usize,
        tag: Tag,
    ) -> Result<Request<D>> {
        let call = self.message::<D>(Op::Receive, from, [rows, cols], tag)?;
        self.start(call, Tensor::empty(device, Category::Activations, rows, cols), None)
    }

    #[track_caller]
    fn message<D: Device>(&self, op: Op, root: usize, shape: [usize; 2], tag: Tag) -> Result<Call> {
        Ok(Call { tag: Some(tag), ..self.call_with::<D>(op, shape, root)? })
    }
}

/// A message or a collective under way. Whoever started it waits for it: a rank that drops one instead fails at its next
/// call, or at its end ([`CommError::Forgotten`](crate::CommError::Forgotten)).
///
/// What is under way has no values yet, and the request owns it until then:
///
/// ```compile_fail,E0382
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradient = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0);
/// let sum = mesh.group(Axis::Dp).start_all_reduce(gradient, Reduce::Sum)?;
/// gradient.read(); // before the wait
/// sum.wait()?;
/// # Ok::<(), comm::CommError>(())
/// ```
///
/// It is waited for once:
///
/// ```compile_fail,E0382
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradient = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0);
/// let sum = mesh.group(Axis::Dp).start_all_reduce(gradient, Reduce::Sum)?;
/// let gradient = sum.wait()?;
/// sum.wait()?; // again
/// # Ok::<(), comm::CommError>(())
/// ```
///
/// So it compiles:
///
/// ```
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradient = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0);
/// let sum = mesh.group(Axis::Dp).start_all_reduce(gradient, Reduce::Sum)?;
/// let gradient = sum.wait()?;
/// gradient.read();
/// # Ok::<(), comm::CommError>(())
/// ```
#[must_use = "what is under way is waited for"]
pub struct Request<D: Device, T = Tensor<D>> {
    pub(crate) under_way: UnderWay<D::Place>, // ends before the tensors do
    pub(crate) given: Option<T>,              // kept as long as others read it
    pub(crate) result: Option<T>,             // where that is another
}

impl<D: Device, T> Request<D, T> {
    /// Of what is done already.
    pub(crate) fn done(given: T) -> Self {
        Self { under_way: UnderWay(None), given: Some(given), result: None }
    }
    /// Returns when it is done: the tensor sent, received, or made of what all ranks gave; or the list of those reduced.
    ///
    /// # Errors
    /// Those of every call of a group.
    ///
    /// # Panics
    /// Never: a request has its tensor until then.
    pub fn wait(mut self) -> Result<T> {
        self.under_way.wait()?;
        Ok(self.result.take().or_else(|| self.given.take()).expect("not given before"))
    }
}

/// What was posted, until it has ended; nothing in a group of one.
pub(crate) struct UnderWay<P: Place>(Option<Posted<P>>);

struct Posted<P: Place> {
    standing: Standing<P>,
    record: Arc<Record>,
    begun: Begun,
}

impl<P: Place> UnderWay<P> {
    /// Counts a call, posts it, and keeps it on record as under way.
    pub(crate) fn new(
        group: &Group<P>,
        call: Call,
        post: impl FnOnce(&Call) -> Result<Post>,
    ) -> Result<Self> {
        let record = group.record.clone();
        let begun = record.begin(&call, elements_sent(&call, group.size(), group.rank), true)?;
        let post = post(&call);
        if post.is_err() {
            record.end(begun, None, &call, &post);
        } else {
            record.sends(begun, &call);
        }
        Ok(Self(Some(Posted { standing: Standing::new(&group.engine, post?, call), record, begun })))
    }
    pub(crate) fn wait(&mut self) -> Result<()> {
        let Some(Posted { mut standing, record, begun }) = self.0.take() else { return Ok(()) };
        let waited = Instant::now();
        let outcome = standing.finish();
        record.end(begun, Some(waited), &standing.call, &outcome);
        outcome
    }
}

impl<P: Place> Drop for UnderWay<P> {
    fn drop(&mut self) {
        if let Some(Posted { standing, record, begun }) = self.0.take() {
            record.forget(begun, &standing.call);
        }
    }
}
