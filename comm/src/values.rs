//! Plain values of any type, passed between ranks in host memory: counts, times, ids.
use crate::{Call, Elem, Group, Op, Result};
use bytemuck::Pod;
use std::any::{TypeId, type_name};
use std::hash::{DefaultHasher, Hash, Hasher};
use tensor::Place;

fn elem<T: Pod>() -> Elem {
    const { assert!(size_of::<T>() > 0, "values must have 1 byte or more") }
    let mut hasher = DefaultHasher::new(); // the same in every process
    TypeId::of::<T>().hash(&mut hasher);
    Elem { name: type_name::<T>(), size: size_of::<T>(), id: hasher.finish() as usize, join: None }
}

impl<P: Place> Group<P> {
    /// Returns the values of every rank, in rank order, the same on all ranks. Ranks may have different
    /// numbers of values, and need not know those of others. A group without peers returns this rank's values
    /// for every rank.
    ///
    /// ```
    /// # use comm::{Axis, CommError, World};
    /// # use tensor::Cpu;
    /// let all = World::threads(&[(Axis::Dp, 3)])?.run(|_: Cpu<f32>, mesh| {
    ///     let ids: Vec<u32> = (0..mesh.rank() as u32).collect();
    ///     mesh.group(Axis::Dp).all_gather_values(&ids)
    /// })?;
    /// assert_eq!(all[0], [vec![], vec![0], vec![0, 1]]);
    /// assert_eq!(all[1], all[0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`Group`].
    #[track_caller]
    pub fn all_gather_values<T: Pod>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        self.values(mine, &self.call(Op::AllGather, [mine.len(), 1], elem::<T>()))
    }
    /// Makes the call of [`all_gather_values`](Self::all_gather_values) with `len` values, on a rank without
    /// peers: it takes the time of the call, and nobody sees values. Returns as many empty lists as ranks.
    ///
    /// # Errors
    /// As above.
    #[track_caller]
    pub fn all_gather_unseen<T: Pod>(&self, len: usize) -> Result<Vec<Vec<T>>> {
        self.values(&[], &self.call(Op::AllGather, [len, 1], elem::<T>()))
    }
    /// Joins the values of all ranks one by one, in rank order, into every rank's `values`: sums, or maxima
    /// for reports.
    ///
    /// ```
    /// # use comm::{Axis, CommError, World};
    /// # use tensor::Cpu;
    /// let most = World::threads(&[(Axis::Dp, 3)])?.run(|_: Cpu<f32>, mesh| {
    ///     let mut bytes = [100 * mesh.rank()];
    ///     mesh.group(Axis::Dp).all_reduce_values(&mut bytes, usize::max)?;
    ///     Ok::<_, CommError>(bytes[0])
    /// })?;
    /// assert_eq!(most, [200; 3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CommError::Mismatch`](crate::CommError::Mismatch) if ranks have different numbers of values, and
    /// those of every call.
    #[track_caller]
    pub fn all_reduce_values<T: Pod>(&self, values: &mut [T], join: impl Fn(T, T) -> T) -> Result<()> {
        let call = self.call(Op::AllReduce, [values.len(), 1], elem::<T>());
        let gathered = if self.size() == 1 { return Ok(()) } else { self.values(values, &call)? };
        for (i, value) in values.iter_mut().enumerate() {
            *value = gathered[1..].iter().fold(gathered[0][i], |joined, values| join(joined, values[i]));
        }
        Ok(())
    }
    fn values<T: Pod>(&self, mine: &[T], call: &Call) -> Result<Vec<Vec<T>>> {
        if self.size() == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        let bytes = || self.engine.values(self.rank, bytemuck::cast_slice(mine), call);
        Ok(self
            .run(call, bytes)?
            .iter()
            .map(|bytes| bytemuck::allocation::pod_collect_to_vec(bytes))
            .collect())
    }
}
