//! A matrix on a device. Clones share memory; when the last one drops, the memory is no longer metered and
//! returns to the device's pool.
use crate::place::pool::Owner;
use crate::{Buffer, Category, Device, Place, Scalar, View, ViewMut, count};
use std::borrow::Cow;

/// A matrix `[rows, cols]`, row-major, that owns its memory together with its clones.
#[derive(Clone)]
pub struct Tensor<D: Device> {
    memory: Owner<D::Place>,
    rows: usize,
    cols: usize,
    room: usize, // rows that were reserved when it was created
}

impl<D: Device> Tensor<D> {
    /// Creates a matrix of unspecified but initialised values, for results that are written whole.
    ///
    /// # Panics
    /// With [`Overflow`](count::Overflow), if its size in bytes overflows 64 bits, and with
    /// [`OutOfMemory`](crate::OutOfMemory), if there is no memory for it.
    pub fn empty(device: &D, category: Category, rows: usize, cols: usize) -> Self {
        Self::with_room(device, category, [rows, rows], cols)
    }
    /// Creates a matrix in memory that has room for `room` rows, of which only `rows` count as held: matrices
    /// whose number of rows varies reuse pooled memory.
    ///
    /// # Panics
    /// As [`empty`](Self::empty).
    pub fn with_room(device: &D, category: Category, [rows, room]: [usize; 2], cols: usize) -> Self {
        let bytes = [rows, room].map(|rows| {
            let len = count::product("the elements of a matrix", &[rows, cols]);
            count::product("the bytes of a matrix", &[len, size_of::<D::Elem>()])
        });
        let mut t = Self { memory: Owner::new(device.place(), category, bytes), rows, cols, room };
        if cfg!(debug_assertions) {
            t.write_slices(&mut |_, to| to.fill(D::Elem::NEG_INF)); // exposes a read before the write
        }
        t
    }
    /// Creates an activation with the same rows and the same room, on the same device.
    #[must_use]
    pub fn along(&self, cols: usize) -> Self {
        Self::with_room(self.device(), Category::Activations, self.rooms(), cols)
    }
    /// Number of rows, and number of rows that there was room for when the matrix was created.
    pub fn rooms(&self) -> [usize; 2] {
        [self.rows, self.room]
    }
    /// Creates an activation on the same device.
    #[must_use]
    pub fn beside(&self, rows: usize, cols: usize) -> Self {
        Self::empty(self.device(), Category::Activations, rows, cols)
    }
    /// Creates a matrix whose element `i` (row-major) is `f(i)`.
    pub fn from_fn(
        device: &D,
        category: Category,
        rows: usize,
        cols: usize,
        mut f: impl FnMut(usize) -> D::Elem,
    ) -> Self {
        let mut t = Self::empty(device, category, rows, cols);
        t.write(&mut f);
        t
    }
    /// Sets element `i` (row-major) to `f(i)`.
    ///
    /// # Panics
    /// If the memory is shared.
    #[track_caller]
    pub fn write(&mut self, f: &mut dyn FnMut(usize) -> D::Elem) {
        self.write_slices(&mut |from, to| to.iter_mut().zip(from..).for_each(|(to, i)| *to = f(i)));
    }
    /// Lets `f` set all elements, many at a time: its first argument is the index (row-major) of the first
    /// one.
    ///
    /// # Panics
    /// If the memory is shared.
    #[track_caller]
    pub fn write_slices(&mut self, f: &mut dyn FnMut(usize, &mut [D::Elem])) {
        let len = self.len();
        D::Place::put(self.buffer_mut(), len, f);
    }
    /// Returns the first `rows` rows, in the same memory.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn first_rows(self, rows: usize) -> Self {
        assert!(rows <= self.rows, "cannot take the first {rows} rows; the matrix has {}", self.rows);
        Self { rows, room: rows, ..self }
    }
    /// Returns the first `rows · cols` elements as another matrix, in the same memory.
    ///
    /// # Panics
    /// If there are fewer.
    #[must_use]
    pub fn reshaped(self, rows: usize, cols: usize) -> Self {
        let fits = rows.checked_mul(cols).is_some_and(|len| len <= self.len());
        assert!(fits, "a {rows}x{cols} matrix does not fit into {} elements", self.len());
        Self { rows, cols, room: rows, ..self }
    }
    /// True if a clone shares the memory.
    pub fn is_shared(&self) -> bool {
        self.memory.is_shared()
    }
    /// Device of the matrix.
    pub fn device(&self) -> &D {
        D::on(self.memory.place())
    }
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }
    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }
    /// Shape `[rows, cols]`.
    pub fn shape(&self) -> [usize; 2] {
        [self.rows, self.cols]
    }
    /// Number of elements.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }
    /// True if there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// View of the whole matrix, to read.
    pub fn view(&self) -> View<'_, D> {
        View::whole(D::Place::ptr(self.memory.raw()), self.rows, self.cols)
    }
    /// View of the whole matrix, to write.
    ///
    /// # Panics
    /// If the memory is shared.
    #[track_caller]
    pub fn view_mut(&mut self) -> ViewMut<'_, D> {
        let &mut Self { rows, cols, .. } = self;
        ViewMut::whole(D::Place::ptr(self.buffer_mut()), rows, cols)
    }
    /// Its memory.
    pub(crate) fn buffer(&self) -> &Buffer<D> {
        self.memory.raw()
    }
    #[track_caller]
    pub(crate) fn buffer_mut(&mut self) -> &mut Buffer<D> {
        self.memory
            .raw_mut()
            .expect("cannot write a tensor with two owners; drop the other first, or write a copy")
    }
    /// Returns the values, row-major; `None` on the meta device.
    pub fn read(&self) -> Option<Vec<D::Elem>> {
        let mut values = Vec::new();
        self.read_into(&mut values).then_some(values)
    }
    /// Returns the values, row-major, without a copy where they are on the host; `None` on the meta device.
    pub fn values(&self) -> Option<Cow<'_, [D::Elem]>> {
        match D::Place::on_host(self.memory.raw(), self.len()) {
            Some(values) => {
                self.device().meter().came(size_of_val(values));
                Some(Cow::Borrowed(values))
            }
            None => self.read().map(Cow::Owned),
        }
    }
    /// Replaces the contents of `values` with the values, row-major; returns `false` on the meta device.
    #[must_use]
    pub fn read_into(&self, values: &mut Vec<D::Elem>) -> bool {
        values.clear();
        self.device().meter().came(self.len() * size_of::<D::Elem>());
        D::Place::get(self.memory.raw(), self.len(), values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cpu;

    #[test]
    fn memory_is_metered_until_the_last_owner_drops() {
        let cpu = Cpu::<f32>::default();
        let a = Tensor::from_fn(&cpu, Category::Weights, 2, 3, |i| i as f32);
        let b = a.clone();
        drop(a);
        assert_eq!(cpu.meter().now(Category::Weights), 24);
        assert_eq!(b.read().unwrap(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        drop(b);
        assert_eq!(cpu.meter().now(Category::Weights), 0);
    }

    #[test]
    #[should_panic(expected = "cannot write a tensor with two owners; drop the other first, or write a copy")]
    fn a_shared_tensor_is_not_written() {
        let mut a = Tensor::from_fn(&Cpu::<f32>::default(), Category::Weights, 1, 1, |_| 0.0);
        let _b = a.clone();
        let _ = a.view_mut();
    }

    type Outside = fn(View<Cpu<f64>>) -> usize;

    /// Kills: a window that reaches outside, a transpose that mixes its strides.
    #[test]
    fn windows_show_what_they_say() {
        let a = Tensor::from_fn(&Cpu::<f64>::default(), Category::Buffers, 3, 4, |i| i as f64);
        let w = a.view().take_rows(1, 2).take_cols(1, 3);
        assert_eq!((w.row(0), w.row(1)), (&[5.0, 6.0, 7.0][..], &[9.0, 10.0, 11.0][..]));
        let t = w.t();
        assert_eq!((t.rows(), t.cols(), t.at(2, 1)), (3, 2, 11.0));
        assert!(!w.is_contiguous() && a.view().is_contiguous());
        let columns = a.view().t().take_cols(1, 2).take_rows(2, 2); // rows 1 and 2, columns 2 and 3, turned
        assert_eq!([columns.at(0, 0), columns.at(0, 1), columns.at(1, 0)], [6.0, 10.0, 7.0]);
        assert_eq!(a.view().reshape(2, 6).at(1, 0), 6.0);
        let outside: [Outside; 6] = [
            |v| v.take_rows(2, 2).rows(),
            |v| v.take_cols(0, 5).cols(),
            |v| v.take_cols(usize::MAX, 2).cols(),
            |v| v.take_rows(usize::MAX, 2).rows(),
            |v| v.reshape(3, 3).rows(),
            |v| v.take_rows(0, 0).reshape(1 << 33, 1 << 31).rows(),
        ];
        for outside in outside {
            assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| outside(a.view()))).is_err());
        }
    }

    #[test]
    fn first_rows_are_the_first_and_no_more() {
        let a = Tensor::from_fn(&Cpu::<f32>::default(), Category::Buffers, 3, 2, |i| i as f32).first_rows(2);
        assert_eq!((a.shape(), a.read().unwrap(), a.view().rows()), ([2, 2], vec![0.0, 1.0, 2.0, 3.0], 2));
        assert!(std::panic::catch_unwind(|| a.clone().first_rows(3)).is_err());
        let turned = a.clone().reshaped(1, 3);
        assert_eq!((turned.shape(), turned.read().unwrap()), ([1, 3], vec![0.0, 1.0, 2.0]));
        for [rows, cols] in [[5, 1], [1 << 33, 1 << 31]] {
            assert!(std::panic::catch_unwind(|| a.clone().reshaped(rows, cols)).is_err());
        }
    }

    #[test]
    fn split_columns_are_disjoint_and_complete() {
        let mut a = Tensor::from_fn(&Cpu::<f32>::default(), Category::Buffers, 2, 3, |_| 0.0);
        let (mut left, mut right) = a.view_mut().split_cols(1);
        assert_eq!((left.cols(), right.cols(), left.rows(), right.rows()), (1, 2, 2, 2));
        left.row(1)[0] = 1.0;
        right.row(1).copy_from_slice(&[2.0, 3.0]);
        assert_eq!(a.read().unwrap(), [0.0, 0.0, 0.0, 1.0, 2.0, 3.0]);
    }
}
