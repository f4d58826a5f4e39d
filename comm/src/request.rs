//! Messages from one rank of a group to another: blocking, or as requests that are waited for later.
use crate::ledger::elements_sent;
use crate::record::Begun;
use crate::{Call, Group, Op, Post, RankRecord, Result, StandingPost, Tag};
use std::sync::Arc;
use std::time::Instant;
use tensor::{Category, Device, Place, Tensor};

impl<P: Place> Group<P> {
    /// Sends `data[R,C]` to rank `to` of the group, with a tag that names its content. Returns when the data
    /// has been received; no copy is held meanwhile.
    ///
    /// # Errors
    /// [`CommError::BadArgument`](crate::CommError::BadArgument) if `to` is not another rank of the group,
    /// and those of every call.
    #[track_caller]
    pub fn send<D: Device<Place = P>>(&self, to: usize, data: &Tensor<D>, tag: Tag) -> Result<()> {
        self.start_send(to, data.clone(), tag)?.wait().map(drop)
    }
    /// Receives a message from rank `from` of the group: an activation `[rows, cols]` on `device`. Messages
    /// of one kind ([`Tag`]) from one rank to another arrive in order.
    ///
    /// # Errors
    /// [`CommError::BadArgument`](crate::CommError::BadArgument) if `from` is not another rank of the group,
    /// [`CommError::Mismatch`](crate::CommError::Mismatch), on both ranks, if the message has another shape
    /// or tag, and those of every call.
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
    /// Starts to send `data[R,C]` to rank `to` of the group. The request keeps the tensor, and returns it
    /// when it has been received.
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
    /// Same as [`Group::send`].
    #[track_caller]
    pub fn start_send<D: Device<Place = P>>(
        &self,
        to: usize,
        data: Tensor<D>,
        tag: Tag,
    ) -> Result<Request<D>> {
        self.start(self.message::<D>(Op::Send, to, data.shape(), tag)?, data, None)
    }
    /// Starts to receive a message from rank `from` of the group. The request returns the tensor when it has
    /// arrived.
    ///
    /// # Errors
    /// Same as [`Group::receive`].
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

/// A message or a collective under way. The rank that starts a request must wait for it. A rank that drops a
/// request instead fails at its next call, or at its end
/// ([`CommError::Forgotten`](crate::CommError::Forgotten)).
///
/// The request owns the tensor until the wait, because its values are not valid before:
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
/// A request is waited for once:
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
/// This compiles:
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
    pub(crate) under_way: UnderWay<D::Place>, // dropped before the tensors
    pub(crate) given: Option<T>,              // kept while others read it
    pub(crate) result: Option<T>,             // if it is another tensor
}

impl<D: Device, T> Request<D, T> {
    /// Makes a request of a call that is already done.
    pub fn done(given: T) -> Self {
        Self { under_way: UnderWay(None), given: Some(given), result: None }
    }
    /// Waits until the call is done. Returns the tensor that was sent, received, or made of all ranks' data;
    /// or the list of reduced tensors.
    ///
    /// # Errors
    /// See [`Group`].
    ///
    /// # Panics
    /// Never: a request holds its tensor until the wait.
    pub fn wait(mut self) -> Result<T> {
        self.under_way.wait()?;
        Ok(self.result.take().or_else(|| self.given.take()).expect("not given before"))
    }
}

/// A posted call until it ends; none in a group of one.
pub(crate) struct UnderWay<P: Place>(Option<PostedCall<P>>);

struct PostedCall<P: Place> {
    standing: StandingPost<P>,
    record: Arc<RankRecord>,
    begun: Begun,
}

impl<P: Place> UnderWay<P> {
    /// Counts a call, posts it, and records it as under way.
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
        Ok(Self(Some(PostedCall { standing: StandingPost::new(&group.engine, post?, call), record, begun })))
    }
    pub(crate) fn wait(&mut self) -> Result<()> {
        let Some(PostedCall { mut standing, record, begun }) = self.0.take() else { return Ok(()) };
        let waited = Instant::now();
        let outcome = standing.finish();
        record.end(begun, Some(waited), &standing.call, &outcome);
        outcome
    }
}

impl<P: Place> Drop for UnderWay<P> {
    fn drop(&mut self) {
        if let Some(PostedCall { standing, record, begun }) = self.0.take() {
            record.forget(begun, &standing.call);
        }
    }
}
