//! Collectives that are started, and waited for later: meanwhile the rank computes.
//!
//! All ranks of a group start the same calls in the same order, and each waits for its own in any order. A
//! waiting rank does the rest of the work. Results equal those of the calls without `start_`, bit for bit.
use crate::collectives::NewTensorCall;
use crate::request::UnderWay;
use crate::{Call, Group, Op, Reduce, Request, Result, Windows};
use tensor::{Device, Place, Tensor, count};

impl<P: Place> Group<P> {
    /// Starts [`Group::all_reduce`]. The request keeps the tensor, and returns it reduced.
    ///
    /// ```
    /// # use comm::{Axis, CommError, Reduce, World};
    /// # use tensor::{Category, Cpu, Tensor};
    /// let sums = World::threads(&[(Axis::Dp, 2)])?.run(|device: Cpu<f32>, mesh| {
    ///     let mine = Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0 + mesh.rank() as f32);
    ///     let sum = mesh.group(Axis::Dp).start_all_reduce(mine, Reduce::Sum)?;
    ///     let meanwhile = 40.0; // is computed
    ///     Ok::<_, CommError>(meanwhile + sum.wait()?.read().expect("the host has values")[0])
    /// })?;
    /// assert_eq!(sums, [43.0, 43.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Group`].
    ///
    /// # Panics
    /// If the tensor has another owner.
    #[track_caller]
    pub fn start_all_reduce<D: Device<Place = P>>(
        &self,
        data: Tensor<D>,
        reduce: Reduce,
    ) -> Result<Request<D>> {
        if self.size() == 1 {
            return Ok(Request::done(data));
        }
        self.start(self.reducing::<D>(data.shape(), reduce), data, None)
    }
    /// Starts all-reduces of many tensors as one call: ranks meet once for all of them, and the ledger counts
    /// one call. The request returns the tensors reduced, in the same list.
    ///
    /// # Errors
    /// See [`Group`].
    ///
    /// # Panics
    /// If a tensor has another owner.
    #[track_caller]
    pub fn start_all_reduce_together<D: Device<Place = P>>(
        &self,
        tensors: Vec<Tensor<D>>,
        reduce: Reduce,
    ) -> Result<BucketRequest<D>> {
        self.start_together(InPlace::AllReduce(reduce), tensors)
    }
    /// Starts a collective of many tensors as one call, each in its own memory: ranks meet once for all of
    /// them, and the ledger counts one call. The request returns the tensors in the same list.
    ///
    /// # Errors
    /// [`CommError::BadArgument`](crate::CommError::BadArgument) if the number of ranks does not divide the
    /// rows of a tensor that is gathered or scattered, and those of every call.
    ///
    /// # Panics
    /// If a tensor has another owner.
    #[track_caller]
    pub fn start_together<D: Device<Place = P>>(
        &self,
        how: InPlace,
        mut tensors: Vec<Tensor<D>>,
    ) -> Result<BucketRequest<D>> {
        let elements = count::sum("the elements of a call", tensors.iter().map(Tensor::len));
        if self.size() == 1 || tensors.is_empty() {
            return Ok(Request::done(tensors));
        }
        let ranks = self.size();
        let call = match how {
            InPlace::AllReduce(reduce) => self.reducing::<D>([1, elements], reduce),
            InPlace::ReduceScatter => {
                Call { reduce: Some(Reduce::Sum), ..self.call_of::<D>(Op::ReduceScatter, [1, elements]) }
            }
            InPlace::AllGather => self.call_of::<D>(Op::AllGather, [1, elements / ranks]),
        };
        if !matches!(how, InPlace::AllReduce(_)) {
            tensors.iter().try_for_each(|data| self.divides(data.rows()).map(drop))?;
        }
        let one = |data: &mut Tensor<D>| {
            call.writes(data);
            let [rows, cols] = data.shape();
            let whole = data.view_mut().ptr();
            let block = rows / ranks;
            let local = data.view_mut().take_rows((self.rank * block).min(rows), block).ptr();
            let (rows, give, take) = match how {
                InPlace::AllReduce(_) => (rows, whole, whole),
                InPlace::ReduceScatter => (rows, whole, local),
                InPlace::AllGather => (block, local, whole),
            };
            (Windows { give: Some(give), take: Some(take) }, Call { rows, cols, ..call.clone() })
        };
        // SAFETY: each tensor has the elements of its call. The request owns the tensors, and ends the post
        // before it returns them. In a gather, others read only this rank's own block; in a reduce-scatter,
        // they never read the block that its sum is written to.
        let post = |_: &Call| unsafe { self.engine.start(self.rank, &mut tensors.iter_mut().map(one)) };
        let under_way = UnderWay::new(self, call.clone(), post)?;
        Ok(Request { under_way, given: Some(tensors), result: None })
    }
    /// Starts [`Group::all_gather`]. The request keeps `mine`, and returns the data of all ranks.
    ///
    /// # Errors
    /// See [`Group`].
    #[track_caller]
    pub fn start_all_gather<D: Device<Place = P>>(&self, mine: Tensor<D>) -> Result<Request<D>> {
        self.start_making(self.gathering(&mine, None)?, mine)
    }
    /// Starts [`Group::all_gather_v`].
    ///
    /// # Errors
    /// Same as [`Group::all_gather_v`].
    #[track_caller]
    pub fn start_all_gather_v<D: Device<Place = P>>(
        &self,
        mine: Tensor<D>,
        counts: &[usize],
    ) -> Result<Request<D>> {
        self.start_making(self.gathering(&mine, Some(counts))?, mine)
    }
    /// Starts [`Group::reduce_scatter`]. The request keeps `data`, and returns this rank's block of the sum.
    ///
    /// # Errors
    /// Same as [`Group::reduce_scatter`].
    #[track_caller]
    pub fn start_reduce_scatter<D: Device<Place = P>>(&self, data: Tensor<D>) -> Result<Request<D>> {
        self.start_making(self.scattering(&data, None)?, data)
    }
    /// Starts [`Group::reduce_scatter_v`].
    ///
    /// # Errors
    /// Same as [`Group::reduce_scatter_v`].
    #[track_caller]
    pub fn start_reduce_scatter_v<D: Device<Place = P>>(
        &self,
        data: Tensor<D>,
        counts: &[usize],
    ) -> Result<Request<D>> {
        self.start_making(self.scattering(&data, Some(counts))?, data)
    }
    /// Starts [`Group::all_to_all`]. The request keeps `data`, and returns the blocks for this rank.
    ///
    /// # Errors
    /// Same as [`Group::all_to_all`].
    #[track_caller]
    pub fn start_all_to_all<D: Device<Place = P>>(&self, data: Tensor<D>) -> Result<Request<D>> {
        self.start_making(self.exchanging(&data, None)?, data)
    }
    /// Starts [`Group::all_to_all_v`]; its result has room for `room` rows ([`Tensor::with_room`]).
    ///
    /// # Errors
    /// Same as [`Group::all_to_all_v`].
    #[track_caller]
    pub fn start_all_to_all_v<D: Device<Place = P>>(
        &self,
        data: Tensor<D>,
        [give, take]: [&[usize]; 2],
        room: usize,
    ) -> Result<Request<D>> {
        self.start_making(NewTensorCall { room, ..self.exchanging(&data, Some([give, take]))? }, data)
    }

    /// Starts a call whose result is a new tensor.
    fn start_making<D: Device<Place = P>>(
        &self,
        making: NewTensorCall,
        given: Tensor<D>,
    ) -> Result<Request<D>> {
        if self.size() == 1 {
            return Ok(Request::done(given));
        }
        let NewTensorCall { call, category, shape: [rows, cols], room } = making;
        let result = Tensor::with_room(given.device(), category, [rows, room], cols);
        self.start(call, given, Some(result))
    }
    /// Starts a call on these tensors.
    pub(crate) fn start<D: Device<Place = P>>(
        &self,
        call: Call,
        mut given: Tensor<D>,
        mut result: Option<Tensor<D>>,
    ) -> Result<Request<D>> {
        let windows = match &mut result {
            None if call.op != Op::Send => self.windows(&call, None, Some(&mut given)),
            result => self.windows(&call, Some(&given), result.as_mut()),
        };
        let rank = self.rank;
        // SAFETY: the request owns both tensors, and ends the post before it returns one. A tensor that is
        // only read may have other owners; a tensor that has some is not written.
        let post =
            |call: &Call| unsafe { self.engine.start(rank, &mut std::iter::once((windows, call.clone()))) };
        let under_way = UnderWay::new(self, call, post)?;
        Ok(Request { under_way, given: Some(given), result })
    }
}

/// A collective that takes and returns each tensor in its own memory. A tensor that is gathered or scattered
/// is cut into one block of rows per rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// The whole tensor becomes the reduction over all ranks.
    AllReduce(Reduce),
    /// This rank's block becomes its block of the sum; the other blocks stay as they are.
    ReduceScatter,
    /// Every rank's own block is copied to all ranks.
    AllGather,
}

/// Collectives of many tensors under way as one call. The rank must wait for it, as for every [`Request`].
///
/// A tensor of the list cannot be read before the wait, and the call cannot be waited for twice:
///
/// ```compile_fail,E0382
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradients = vec![Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0)];
/// let sums = mesh.group(Axis::Dp).start_all_reduce_together(gradients, Reduce::Sum)?;
/// gradients[0].read(); // before the wait
/// sums.wait()?;
/// # Ok::<(), comm::CommError>(())
/// ```
///
/// ```compile_fail,E0382
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradients = vec![Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0)];
/// let sums = mesh.group(Axis::Dp).start_all_reduce_together(gradients, Reduce::Sum)?;
/// let gradients = sums.wait()?;
/// sums.wait()?; // again
/// # Ok::<(), comm::CommError>(())
/// ```
///
/// This compiles:
///
/// ```
/// # use comm::{Axis, Mesh, Reduce};
/// # use tensor::{Category, Cpu, Tensor};
/// # let (device, mesh) = (Cpu::<f32>::default(), Mesh::alone());
/// let gradients = vec![Tensor::from_fn(&device, Category::Gradients, 1, 1, |_| 1.0)];
/// let sums = mesh.group(Axis::Dp).start_all_reduce_together(gradients, Reduce::Sum)?;
/// let gradients = sums.wait()?;
/// gradients[0].read();
/// # Ok::<(), comm::CommError>(())
/// ```
pub type BucketRequest<D> = Request<D, Vec<Tensor<D>>>;
