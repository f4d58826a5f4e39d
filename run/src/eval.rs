//! Evaluations: mean loss and perplexity of a model on sequences; loss and accuracy of a classifier on
//! pictures.
use crate::records;
use comm::Axis;
use kernels::MetaOf;
use models::TrainableModel;
use ops::LayerCounts;
use parallel::dtype::RunDevice;
use parallel::{
    Batch, BuildContext, Layout, Network, Result, Sequence, Trainer, bail, budget, price, session,
};
use serde::Serialize;
use tensor::Real;

/// Evaluation of a model.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Mean loss of a token, in nats.
    pub loss: f64,
    /// e^loss: the number of equally likely tokens that the model chooses among.
    pub perplexity: f64,
    /// Number of predicted tokens, or of pictures.
    pub tokens: usize,
    /// Fraction of the pictures classified correctly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accuracy: Option<f64>,
    /// Tokens per expert.
    #[serde(skip_serializing_if = "LayerCounts::is_empty")]
    pub experts: LayerCounts,
}

/// Sequences, and pictures, evaluated at once on each data rank.
const TOGETHER: [usize; 2] = [8, 1000];

/// Evaluates sequences under a layout, over a network; `watch` receives the number of finished parts and of
/// all parts.
///
/// # Errors
/// If the layout does not fit the model, there are fewer sequences than data ranks and no experts for the
/// ranks without a sequence, memory is too small, or a rank fails.
pub fn evaluate<D: RunDevice>(
    model: &TrainableModel,
    (layout, network): (&Layout, &Network),
    sequences: Vec<Sequence>,
    watch: &(dyn Fn(usize, usize) + Sync),
) -> Result<Evaluation> {
    let design = &model.design.clone().reaching(Sequence::longest(&sequences));
    let pictures = model.text.is_none();
    layout.fits(design.clone().inferring())?;
    let data = layout.tokens().data_ranks();
    let together = TOGETHER[usize::from(pictures)];
    let microbatches = sequences.len().div_ceil(together * data).min(sequences.len() / data).max(1);
    let batch = Batch::new(sequences, microbatches)?.idling(layout.shares_experts());
    batch.deals(&layout.tokens())?;
    let largest = batch.largest(layout.size(Axis::Pp));
    let peak = price::peak_of_all::<D, _>(
        layout,
        |tokens| largest.dealt(&tokens),
        |at: BuildContext<MetaOf<D>>| Trainer::evaluator(&at, design)?.evaluate(&largest, &|_| ()).map(drop),
    )?;
    budget::fits::<D::Place>(
        format_args!("evaluating under {layout}"),
        [network.here(layout), layout.ranks()],
        peak.all,
    )?;
    let ranks = session::run(
        (layout, &network.world(layout, "evaluation")?),
        model.values(),
        |at: BuildContext<D>| {
            let done = |n| {
                if at.mesh.rank() == 0 {
                    watch(n, microbatches);
                }
            };
            let mut trainer = Trainer::evaluator(&at, design)?;
            network.agrees(at.mesh)?;
            let loss = trainer.evaluate(&batch, &done)?;
            let experts: LayerCounts = network.of_all(at.mesh, trainer.take_counts())?.into_iter().collect();
            let right = pictures.then(|| trainer.correct(&batch, &|_| ())).transpose()?;
            Ok((loss.read().expect("the host has values")[0].to_f64(), right, experts))
        },
    )?;
    let (loss, right, _) = ranks[0];
    let tokens = batch.counted();
    let experts = ranks.into_iter().map(|(.., experts)| experts).collect();
    if !loss.is_finite() {
        bail!("the loss is {loss}, which is not finite; check the weights");
    }
    let accuracy = right.map(|right| right as f64 / tokens.max(1) as f64);
    Ok(Evaluation { loss, perplexity: loss.exp(), tokens, accuracy, experts })
}

records!(Evaluation: "evaluation");
