//! Number of a model's blocks in each chunk of a pipeline.
//!
//! A model is a row of parts: its blocks, or a classifier's layers, in pairs under tensor ranks. The first
//! part has the embedding, and the last one the head, which can cost as much as several blocks. Chunks are
//! runs of parts, each of at least one. [`balanced`] makes the most expensive run as cheap as possible; the
//! cost of a part is its number of [`parameters`], or the [`seconds`] that it takes on this machine.
use crate::{BuildContext, Error, Layout, Result, deal, session};
use kernels::Meta;
use layers::{Design, Half, Input, Output, StageRequest, Targets};
use ops::{Keeper, PassContext, RandomValues};
use std::str::FromStr;
use std::time::Instant;
use tensor::{Category, Cpu, Device, Tensor, TokenIds};

/// How blocks are split over chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BlockSplit {
    /// The same number in each chunk, or one more.
    Even,
    /// Makes the parameters of the largest chunk as few as possible.
    Parameters,
    /// Makes the slowest chunk as fast as possible, by measured time.
    Time,
    /// These numbers of blocks.
    Given(Vec<usize>),
}

impl FromStr for BlockSplit {
    type Err = Error;
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text {
            "even" => Self::Even,
            "parameters" => Self::Parameters,
            "time" => Self::Time,
            _ => {
                let given: std::result::Result<_, _> = text.split(',').map(|n| n.trim().parse()).collect();
                let wrong = |_| {
                    Error::new(format!(
                        "{text:?} is not a split; write even, parameters, time, or blocks of each stage, \
                         such as 3,5"
                    ))
                };
                Self::Given(given.map_err(wrong)?)
            }
        })
    }
}

impl BlockSplit {
    /// Returns the number of a model's parts in each chunk, for each of these numbers of chunks and tensor
    /// ranks. The costs of the blocks or layers are computed once.
    ///
    /// # Errors
    /// If there are more chunks than parts, or a part cannot be built or run.
    pub fn of(&self, design: &Design, layouts: &[[usize; 2]]) -> Result<Vec<Vec<usize>>> {
        let parts = |tp: usize| design.parts(tp);
        if let Some([chunks, tp]) = layouts.iter().find(|[chunks, tp]| *chunks > parts(*tp)) {
            let parts = parts(*tp);
            return Err(Error::new(format!("{chunks} chunks of {parts} blocks: each needs at least one")));
        }
        let costs = match self {
            Self::Parameters => parameters(design)?,
            Self::Time => seconds(design)?,
            Self::Even | Self::Given(_) => vec![],
        };
        let cost = |part, tp| costs[design.start(part, tp)..design.start(part + 1, tp)].iter().sum();
        let blocks = |&[chunks, tp]: &[usize; 2]| match self {
            Self::Given(blocks) => blocks.clone(),
            Self::Even => (0..chunks).map(|chunk| deal(parts(tp), chunk, chunks).len()).collect(),
            Self::Parameters | Self::Time => {
                balanced(&(0..parts(tp)).map(|part| cost(part, tp)).collect::<Vec<_>>(), chunks)
            }
        };
        Ok(layouts.iter().map(blocks).collect())
    }
}

/// Splits parts of these costs into `runs` non-empty runs, of which the most expensive costs as little as
/// possible. Returns the number of parts of each run.
#[must_use]
pub fn balanced(costs: &[f64], runs: usize) -> Vec<usize> {
    let sum = |from: usize, to: usize| costs[from..to].iter().sum::<f64>();
    // For each number of first parts: the cost of their most expensive run, and the start of their last run.
    let mut best: Vec<Vec<(f64, usize)>> = vec![(0..=costs.len()).map(|to| (sum(0, to), 0)).collect()];
    for run in 1..runs {
        let last = &best[run - 1];
        let of = |to: usize| {
            let from = |from: usize| (last[from].0.max(sum(from, to)), from);
            (run..to).map(from).min_by(|a, b| a.0.total_cmp(&b.0)).unwrap_or((f64::INFINITY, 0))
        };
        best.push((0..=costs.len()).map(of).collect());
    }
    let mut end = costs.len();
    let mut sizes = Vec::new();
    for of in best.iter().rev() {
        let from = of[end].1;
        sizes.insert(0, end - from);
        end = from;
    }
    sizes
}

/// Returns the number of parameters of each block or layer, with the ends.
///
/// # Errors
/// If a part cannot be built.
pub fn parameters(design: &Design) -> Result<Vec<f64>> {
    let count = |part: usize| {
        session::ghost::<Cpu<f32>, _>(&Layout::UNSPLIT, (0, None), |at: BuildContext<Meta<f32>>| {
            let run = part..part + 1;
            let mut stage = design.stage(&at, &[run], None)?;
            let sizes = stage.params().into_iter().map(|p| p.shape().into_iter().product::<usize>());
            Ok(sizes.sum::<usize>() as f64)
        })
    };
    (0..design.parts(1)).map(count).collect()
}

/// Number of tokens that a part is timed with.
const TOKENS: usize = 64;

/// Returns the seconds that each block or layer takes, forward and backward, with the ends, on one core of
/// this machine. Of blocks, the first, the second and the last are measured; each between takes as long as
/// the second.
///
/// # Errors
/// If a part cannot be built.
pub fn seconds(design: &Design) -> Result<Vec<f64>> {
    let n = design.parts(1);
    let seconds = |part| {
        session::alone(&RandomValues { seed: 0 }, |at: BuildContext<Cpu<f32>>| taken(&at, design, part))
    };
    let mut between = None;
    let time = |part| match between {
        Some(time) if part + 1 < n && design.shape().is_some() => Ok(time),
        _ => {
            let time = seconds(part)?;
            if part > 0 {
                between = Some(time);
            }
            Ok(time)
        }
    };
    (0..n).map(time).collect()
}

/// Returns the shortest of a few measured times of a part.
fn taken(at: &BuildContext<Cpu<f32>>, design: &Design, part: usize) -> Result<f64> {
    let run = part..part + 1;
    let mut stage = design.stage(&at.learning(), &[run], None)?;
    let place = at.device.place();
    let outputs = design.outputs();
    let rows = |width: usize| {
        let number = |i: usize| (i % 7) as f32 / 8.0 - 0.25;
        Tensor::from_fn(at.device, Category::Activations, TOKENS, width, number)
    };
    let mut least = f64::INFINITY;
    for microbatch in 0..4 {
        let cx = PassContext::train(microbatch, [1; TOKENS], TOKENS);
        let x = match design.features() {
            None if part == 0 => Input::Tokens(TokenIds::new(place, &[0; TOKENS], outputs)?),
            Some(width) if part == 0 => Input::Rows(rows(width)),
            _ => Input::Activation(rows(design.width(part)).into()),
        };
        let y = if design.gives_rows() {
            Targets::Rows(rows(outputs))
        } else {
            Targets::Ids(TokenIds::targets(place, &[0; TOKENS], outputs)?)
        };
        let wanted = (part + 1 == design.parts(1)).then_some(StageRequest::Loss(y));
        let start = Instant::now();
        let dy = match stage.forward(0, &cx, &mut Keeper::default(), x, wanted)? {
            Output::Activation(y) => Some(y),
            _ => None,
        };
        stage.backward(0, &cx, &mut Keeper::default(), dy, Half::Both, false)?;
        least = least.min(start.elapsed().as_secs_f64());
    }
    Ok(least)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kernels::Heads;
    use layers::Shape;

    /// By trying all. Kills: a run that is empty, a cost that is lost, a split that is not the best.
    #[test]
    fn the_largest_run_costs_as_little_as_it_can() {
        fn all(parts: usize, runs: usize) -> Vec<Vec<usize>> {
            if runs == 1 {
                return vec![vec![parts]];
            }
            let with = |first: usize| {
                all(parts - first, runs - 1).into_iter().map(move |rest| [vec![first], rest].concat())
            };
            (1..=parts + 1 - runs).flat_map(with).collect()
        }
        let costs = [3.0, 1.0, 1.0, 4.0, 1.0, 5.0, 9.0];
        let largest = |sizes: &[usize]| {
            let mut rest = &costs[..];
            let run = |n: &usize| rest.split_off(..*n).expect("so many are left").iter().sum::<f64>();
            sizes.iter().map(run).fold(0.0, f64::max)
        };
        for runs in 1..=7 {
            let sizes = balanced(&costs, runs);
            assert!(
                sizes.len() == runs && sizes.iter().sum::<usize>() == 7 && !sizes.contains(&0),
                "{sizes:?}"
            );
            let least = all(7, runs).iter().map(|sizes| largest(sizes)).fold(f64::INFINITY, f64::min);
            assert_eq!(largest(&sizes).to_bits(), least.to_bits(), "{sizes:?}");
        }
        assert_eq!(balanced(&[1.0; 8], 3).iter().max(), Some(&3));
    }

    /// A model whose tables are as large as its blocks, or larger. Kills: an embedding or a head that costs
    /// nothing.
    #[test]
    fn the_ends_of_a_model_count() {
        let heads = Heads::new(2, 2, 4);
        let shape = Shape { width: 8, blocks: 6, heads, hidden: 16, vocabulary: 400, ..Shape::LLAMA };
        let design = Design::from(shape);
        let costs = parameters(&design).unwrap();
        assert_eq!(costs.iter().sum::<f64>(), crate::price::parameters(&design).unwrap() as f64);
        assert_eq!(BlockSplit::Parameters.of(&design, &[[3, 1], [1, 2]]).unwrap(), [&[1, 4, 1][..], &[6]]);
        assert_eq!(BlockSplit::Even.of(&design, &[[3, 1], [2, 1]]).unwrap(), [&[2, 2, 2][..], &[3, 3]]);
        let nine = Design::from(Shape { blocks: 9, ..shape });
        assert_eq!(
            BlockSplit::Even.of(&nine, &[[4, 1]]).unwrap(),
            [[2, 2, 2, 3]],
            "as they are dealt without a split"
        );
        let times = BlockSplit::Time.of(&design, &[2, 3, 2, 1].map(|chunks| [chunks, 1])).unwrap();
        let whole = |times: &Vec<usize>| times.iter().sum::<usize>() == 6 && !times.contains(&0);
        assert!(times.iter().all(whole) && times[3] == [6], "{times:?}");
        assert_eq!((times[0].len(), times[1].len(), &times[2]), (2, 3, &times[0]), "by one measurement");
        let few = BlockSplit::Even.of(&design, &[[2, 1], [7, 1]]).unwrap_err().why;
        assert_eq!(few, "7 chunks of 6 blocks: each needs at least one");
        let none = "3,x".parse::<BlockSplit>().unwrap_err().why;
        assert!(none.starts_with("\"3,x\" is not a split; write even, parameters, time,"), "{none}");
    }
}
