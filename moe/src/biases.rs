//! Biases of a layer of experts: of the router's logits, and of both products of each expert.
use comm::Group;
use kernels::Kernels;
use layers::Builder;
use ops::{Draw, ExpertWeight, OutputBiases, Param, Pieces, Placement, Result, Section, WholeWeight};
use tensor::Tensor;

/// Biases, where experts have them.
pub(crate) struct ExpertBiases<D: Kernels> {
    width: usize,                      // D
    pub(crate) logits: WholeWeight<D>, // [1,E]
    pub(crate) up: ExpertWeight<D>,    // [E,2F_t]
    pub(crate) down: ExpertWeight<D>,  // [E,D_t]
}

impl<D: Kernels> ExpertBiases<D> {
    /// Builds parameters `name.router.logit_bias[1,E]`, `name.experts.{up}.bias[E,2F]` and
    /// `name.experts.down.bias[E,D]`. The last is cut over etp by columns, of which the last ranks may have
    /// fewer.
    ///
    /// # Errors
    /// If values are missing, or the ranks do not divide the hidden features.
    pub(crate) fn new(
        at: &Builder<D>,
        (name, placement): (&str, Placement),
        [experts, width]: [usize; 2],
        (up, sections): (&str, &[Section]),
    ) -> Result<Self> {
        let draw = Draw { mean: 0.0, std: 0.02 };
        let expert = |what: &str, sections: &[Section]| {
            let name = format!("{name}.experts.{what}.bias");
            ExpertWeight::new(at, name, [experts, 1], (sections, false), draw)
        };
        let logits =
            WholeWeight::new(at, format!("{name}.router.logit_bias"), [1, experts], placement, draw)?;
        let down = expert("down", &[Section::new(width, Pieces::Padded)])?;
        Ok(Self { width, logits, up: expert(up, sections)?, down })
    }
    /// Returns the three parameters.
    pub(crate) fn params(&mut self) -> [&mut Param<D>; 3] {
        [self.logits.param(), self.up.param(), self.down.param()]
    }
    /// Returns this rank's columns of the biases of outputs, for rows of its experts.
    ///
    /// # Errors
    /// If ranks do not meet.
    pub(crate) fn of_outputs(
        &self,
        (rows, counts): (&Tensor<D>, &[usize]),
        etp: &Group<D::Place>,
    ) -> Result<OutputBiases<D>> {
        Ok(OutputBiases::new(rows, counts, &self.down.matrices()?, (etp.rank(), self.width)))
    }
}
