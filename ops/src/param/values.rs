//! Sources of initial values: each rank asks for the values of its local part, many at a time.
use crate::{Error, Result};
use std::sync::{Arc, OnceLock};
use tensor::{Scalar, mix};

/// Distribution of a parameter's initial values: normal, `mean + std · draw`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// The mean.
    pub mean: f64,
    /// The standard deviation.
    pub std: f64,
}

/// A source of initial values. Each rank asks only for the elements of its local part.
pub trait ValueSource<E> {
    /// Returns the values of the parameter `name` of this whole shape.
    ///
    /// # Errors
    /// If the values are missing or have another shape.
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, E>>;
}

/// The values of a whole parameter, computed on demand.
pub struct ParamValues<'a, E> {
    fill: Box<FillRows<'a, E>>,
    check: Option<Box<SourceCheck<'a>>>,
}
type FillRows<'a, E> = dyn Fn([usize; 2], [usize; 2], &mut [E]) + Sync + 'a;
type SourceCheck<'a> = dyn Fn() -> Result<()> + Sync + 'a;

impl<'a, E: Scalar> ParamValues<'a, E> {
    /// Creates values from a function that sets consecutive ones of a row, from `[row, column]` on.
    pub fn together(set: impl Fn([usize; 2], &mut [E]) + Sync + 'a) -> Self {
        Self::rows(move |[row, column], [cols, stride], to| {
            to.chunks_mut(stride).zip(row..).for_each(|(to, row)| set([row, column], &mut to[..cols]));
        })
    }
    /// Creates values from a function that sets consecutive rows, from `[row, column]` on; of each row `cols`
    /// values, `stride` apart from those of the next: its arguments are `[row, column]`, `[cols, stride]`,
    /// and where they go.
    pub fn rows(fill: impl Fn([usize; 2], [usize; 2], &mut [E]) + Sync + 'a) -> Self {
        Self { fill: Box::new(fill), check: None }
    }
    /// Adds a check of the source, for [`check`](Self::check).
    #[must_use]
    pub fn checked(self, check: impl Fn() -> Result<()> + Sync + 'a) -> Self {
        Self { check: Some(Box::new(check)), ..self }
    }
    /// Checks that the values set so far were intact in their source, such as a file.
    ///
    /// # Errors
    /// The source's error.
    pub fn check(&self) -> Result<()> {
        self.check.as_ref().map_or(Ok(()), |check| check())
    }
    /// Creates values from a function of `[row, column]`.
    pub fn each(number: impl Fn([usize; 2]) -> E + Sync + 'a) -> Self {
        Self::together(move |[row, column], to| {
            to.iter_mut().zip(column..).for_each(|(to, column)| *to = number([row, column]));
        })
    }
    /// Maps each value with a function that also gets its `[row, column]`.
    #[must_use]
    pub fn map<F: Scalar>(self, f: impl Fn([usize; 2], E) -> F + Sync + 'a) -> ParamValues<'a, F> {
        const TILE: usize = 128; // rows and columns that are set at a time
        let Self { fill, check } = self;
        let mapped = ParamValues::rows(move |[row, column], [cols, stride], to: &mut [F]| {
            let mut room = vec![E::ZERO; TILE.min(to.len().div_ceil(stride)) * TILE.min(cols)];
            for (rows, row) in to.chunks_mut(TILE * stride).zip((row..).step_by(TILE)) {
                for from in (0..cols).step_by(TILE) {
                    let (width, height) = (TILE.min(cols - from), rows.len().div_ceil(stride));
                    let room = &mut room[..width * height];
                    fill([row, column + from], [width, width], room);
                    for ((to, room), row) in rows.chunks_mut(stride).zip(room.chunks(width)).zip(row..) {
                        let pairs = to[from..].iter_mut().zip(room).zip(column + from..);
                        pairs.for_each(|((to, &x), column)| *to = f([row, column], x));
                    }
                }
            }
        });
        ParamValues { check, ..mapped }
    }
    /// Converts the values of the parameter `name` to another dtype. [`check`](Self::check) then fails if a
    /// finite value has become infinite.
    #[must_use]
    pub fn converted<F: Scalar>(mut self, name: &str, to: impl Fn(E) -> F + Sync + 'a) -> ParamValues<'a, F> {
        let source = self.check.take();
        let too_large = Arc::new(OnceLock::new());
        let name = name.to_owned();
        let seen = too_large.clone();
        let converted = self.map(move |_, x| {
            let y = to(x);
            if !y.is_finite() && x.is_finite() {
                let _ = seen.set(x);
            }
            y
        });
        converted.checked(move || {
            source.as_ref().map_or(Ok(()), |check| check())?;
            too_large.get().map_or(Ok(()), |x| {
                let kind = F::NAME;
                Err(Error::Cannot(format!("{name} has the value {x:?}, which is too large for {kind}")))
            })
        })
    }
    /// Sets consecutive values of a row, from `[row, column]` on.
    pub fn set(&self, first: [usize; 2], to: &mut [E]) {
        self.set_rows(first, [to.len(), to.len().max(1)], to);
    }
    /// Sets consecutive rows from `[row, column]` on; of each row `cols` values, `stride` apart from those of
    /// the next.
    pub fn set_rows(&self, first: [usize; 2], [cols, stride]: [usize; 2], to: &mut [E]) {
        (self.fill)(first, [cols, stride], to);
    }
    /// Returns the value at `[row, column]`.
    pub fn at(&self, index: [usize; 2]) -> E {
        let mut one = [E::ZERO];
        self.set(index, &mut one);
        one[0]
    }
}

/// Values from a hash of (seed, name, global index), independent of the layout.
#[derive(Clone, Copy, Debug)]
pub struct RandomValues {
    /// The seed.
    pub seed: u64,
}

impl<E: Scalar> ValueSource<E> for RandomValues {
    fn of(&self, name: &str, shape: [usize; 2], draw: Draw) -> Result<ParamValues<'_, E>> {
        let seed = name.bytes().fold(mix(self.seed), |hash, byte| mix(hash ^ u64::from(byte)));
        let mean = E::from_f64(draw.mean);
        Ok(ParamValues::each(move |[row, column]| {
            let index = (row * shape[1] + column) as u64;
            mean + E::sample(mix(seed ^ index), draw.std)
        }))
    }
}

/// Values spread evenly about a draw's mean, with its standard deviation: for timings. A pass takes as long
/// as with normal values, and these are computed much faster.
#[derive(Clone, Copy, Debug)]
pub struct EvenValues;

impl<E: Scalar> ValueSource<E> for EvenValues {
    fn of(&self, _: &str, [_, columns]: [usize; 2], draw: Draw) -> Result<ParamValues<'_, E>> {
        let width = draw.std * 12_f64.sqrt();
        Ok(ParamValues::each(move |[row, column]| {
            let part = mix((row * columns + column) as u64) as f64 / 2_f64.powi(64);
            E::from_f64(draw.mean + width * (part - 0.5))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tensor::F16;

    /// Kills: what is mapped at a time begins where the last began, or ends too early; a number mapped by
    /// another's index.
    #[test]
    fn numbers_together_are_each_of_them() {
        let number = |[row, column]: [usize; 2]| (1000 * row + column) as f64;
        let twice = |[row, column]: [usize; 2], x: f64| x + (7 * row + 2 * column) as f64;
        let all = ParamValues::each(number).map(twice);
        for (first, len) in [(0, 700), (3, 0), (5, 1), (1, 256), (1, 257), (9, 512)] {
            let mut some = vec![0.0; len];
            all.set([3, first], &mut some);
            let wanted = (first..first + len).map(|column| twice([3, column], number([3, column])));
            assert!(some.into_iter().eq(wanted), "{first}, {len}");
        }
        assert_eq!(all.at([2, 600]), twice([2, 600], 2600.0));
    }

    /// Kills: an infinite value that passes, a source whose own check is lost.
    #[test]
    fn a_conversion_that_overflows_is_named() {
        let check = |value: f32, source: Result<()>| {
            let values = ParamValues::each(move |[_, column]| if column == 300 { value } else { 1.0 });
            let source = source.map_err(|why| why.to_string());
            let values = values.checked(move || source.clone().map_err(Error::Cannot));
            let values = values.converted("w", F16::narrow);
            values.set([0, 0], &mut [F16::ZERO; 400]);
            values.check().map_err(|why| why.to_string())
        };
        assert_eq!(check(65504.0, Ok(())), Ok(()));
        assert_eq!(check(f32::INFINITY, Ok(())), Ok(()), "it was infinite before");
        assert_eq!(check(1e5, Ok(())).unwrap_err(), "w has the value 100000.0, which is too large for f16");
        assert_eq!(check(1e5, Err(Error::Cannot("torn".into()))).unwrap_err(), "torn");
    }
}
