//! Matrices of a parameter: optimizers that need whole matrices update each by itself.
//!
//! ```text
//! attention.qkv [D, Q+2K]        | Q | K | V |     three matrices side by side
//! experts.gate_up [E·D, 2F]      a pair for each expert, above each other
//! experts.down [E·D, F]          one for each expert, as [O, I]; all others are [I, O]
//! ```

/// Sections of a parameter that are matrices of their own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MatrixSections {
    /// Columns of each of those that are side by side; empty if there is one.
    pub columns: Vec<usize>,
    /// Rows of each of those that are above each other, if there are several.
    pub rows: Option<usize>,
    /// True if rows are output features and columns are input features.
    pub transposed: bool,
}

/// A matrix of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamMatrix {
    /// Its first row and column in the parameter.
    pub begin: [usize; 2],
    /// Rows and columns.
    pub shape: [usize; 2],
    /// True if rows are output features and columns are input features.
    pub transposed: bool,
}

impl MatrixSections {
    /// Returns the matrices of a parameter of this shape.
    pub fn matrices(&self, [height, width]: [usize; 2]) -> Vec<ParamMatrix> {
        let rows = self.rows.unwrap_or(height);
        let transposed = self.transposed;
        let columns = if self.columns.is_empty() { std::slice::from_ref(&width) } else { &self.columns };
        let mut matrices = Vec::new();
        for row in (0..height).step_by(rows) {
            let mut column = 0;
            for &width in columns {
                matrices.push(ParamMatrix { begin: [row, column], shape: [rows, width], transposed });
                column += width;
            }
        }
        matrices
    }
}

impl ParamMatrix {
    /// Numbers of its input and output features.
    pub fn features(&self) -> [usize; 2] {
        let [rows, cols] = self.shape;
        if self.transposed { [cols, rows] } else { [rows, cols] }
    }
    /// Work of its products with itself, to compare it with other matrices.
    pub(crate) fn work(&self) -> u128 {
        let [rows, cols] = self.shape.map(|n| n as u128);
        let small = rows.min(cols);
        small * small * (2 * rows.max(cols) + small)
    }
}
