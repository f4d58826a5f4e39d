//! Optimizer state as codes of 8 bits: a unit for each block of a row, and four codes in a number.
use tensor::{CodeKind, Coded, Scalar};

/// Blocks of a parameter's rows.
pub(super) struct CodedRows {
    pub(super) columns: usize,
    pub(super) block: usize,
}

impl CodedRows {
    /// Returns the indices of a value's code among the numbers that hold codes, of the code in that number,
    /// and of the unit.
    fn index(&self, of_value: usize) -> [usize; 3] {
        let column = of_value % self.columns;
        let index = |n: usize| (of_value / self.columns) * self.columns.div_ceil(n) + column / n;
        [index(4), column % 4, index(self.block)]
    }
    /// Returns the `n` values.
    pub(super) fn read<S: Scalar>(&self, (codes, units): (&[S], &[S]), n: usize, kind: CodeKind) -> Vec<S> {
        let value = |i| {
            let [at, number, unit] = self.index(i);
            S::narrow(units[unit].widen() * S::Wide::decoded(codes[at].widen().codes()[number], kind))
        };
        (0..n).map(value).collect()
    }
    /// Rounds values to the nearest multiples, of those that have a code, of the unit that makes the largest
    /// magnitude of its block the largest multiple.
    pub(super) fn write<S: Scalar>(
        &self,
        (codes, units): (&mut [S], &mut [S]),
        values: &[S],
        kind: CodeKind,
    ) {
        let mut largest = vec![S::Wide::ZERO; units.len()];
        for (i, value) in values.iter().enumerate() {
            let largest = &mut largest[self.index(i)[2]];
            *largest = largest.larger(value.widen());
        }
        for (unit, largest) in units.iter_mut().zip(largest) {
            *unit = S::narrow(largest.unit(kind));
        }
        for (i, value) in values.iter().enumerate() {
            let [at, number, unit] = self.index(i);
            let mut four = codes[at].widen().codes();
            four[number] = (value.widen() * units[unit].widen().reciprocal()).code(kind);
            codes[at] = S::narrow(S::Wide::from_codes(four));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of 5 in blocks of 4. Kills: blocks that cross rows, the unit of another block or of its first
    /// element, a code in another's place.
    #[test]
    fn values_are_rounded_in_units_of_their_block() {
        let (blocks, large) = (CodedRows { columns: 5, block: 4 }, 8f64.powi(7));
        let values = [8.0, 36.0, -large, 40.0, 5.0, 32.0, 0.5, -0.5 * large, 18.0, 0.0];
        let (mut codes, mut units) = ([0.0; 4], [0.0; 4]);
        blocks.write((&mut codes, &mut units), &values, CodeKind::Signed);
        assert_eq!(units, [1.0, 5.0 / large, 0.5, 0.0]);
        let seen = blocks.read((&codes, &units), 10, CodeKind::Signed);
        // of the second row's unit, 0.5 is 1, which is rounded to 0
        assert_eq!(seen, [8.0, 36.0, -large, 36.0, 5.0, 32.0, 0.0, -0.5 * large, 18.0, 0.0]);
    }
}
