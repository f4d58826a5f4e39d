//! `convert`: rewrites a model in the Hugging Face layout.
use crate::cli::args::{ModelName, named};
use crate::cli::model;
use crate::cli::run::Run;
use crate::views::Views;
use clap::Args;
use clap::builder::TypedValueParser;
use models::convert::{Converted, convert};
use models::upcycle::{Upcycling, upcycle};
use parallel::Result;
use run::records;
use serde::Serialize;
use std::path::PathBuf;
use tensor::dtype::Dtype;

/// Rewrite a model in the Hugging Face layout, in its dtype or in another
#[derive(Args, Debug)]
pub(crate) struct ConvertArgs {
    /// A folder with config.json and safetensors files, or embedded, or moe
    #[arg(long, value_name = "DIR|NAME", value_parser = ModelName::parser())]
    pub(crate) model: ModelName,
    /// The folder to write: one that does not exist yet, or is empty
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,
    /// Dtype to write: f32, bf16 or f16 [default: the model's]
    #[arg(long, value_parser = dtype())]
    pub(crate) dtype: Option<Dtype>,
    /// Replace each feed-forward by this number of experts, which start as copies of it: the model computes
    /// the same as before
    #[arg(long, value_name = "E", requires = "chosen")]
    pub(crate) experts: Option<usize>,
    /// With --experts: number of experts that each token is dispatched to
    #[arg(long, value_name = "K", requires = "experts")]
    pub(crate) chosen: Option<usize>,
    /// With --experts: number of experts that each copy is cut into; it divides --experts and --chosen
    /// [default: 1]
    #[arg(long, value_name = "G", requires = "experts")]
    pub(crate) slices: Option<usize>,
}

/// Parser of the names of dtypes in files.
fn dtype() -> impl TypedValueParser<Value = Dtype> {
    named([
        ("f32", "32 bits", Dtype::F32),
        ("bf16", "The upper 16 bits of f32", Dtype::BF16),
        ("f16", "IEEE half precision", Dtype::F16),
    ])
}

/// A model that was written.
#[derive(Serialize)]
struct ConvertedModel {
    along: Vec<String>,
    bytes: usize,
    dtype: String,
    out: PathBuf,
    tensors: usize,
}

records!(ConvertedModel: "model");

impl Run for ConvertArgs {
    fn run(self, views: &Views) -> Result<bool> {
        let a = &self;
        let model = model(Some(&a.model))?;
        let done = match (a.experts, a.chosen) {
            (Some(experts), Some(chosen)) => {
                let slices = a.slices.unwrap_or(1);
                upcycle(&model, Upcycling { experts, chosen, slices }, &a.out, a.dtype)?
            }
            _ => convert(&model, &a.out, a.dtype)?,
        };
        let Converted { dtype, tensors, bytes, along } = done;
        let words =
            format!("{tensors} tensors in {dtype} are in {}, with {}", a.out.display(), along.join(", "));
        views.record(&ConvertedModel {
            along,
            bytes,
            dtype: dtype.to_string(),
            out: a.out.clone(),
            tensors,
        })?;
        views.say(&words)?;
        Ok(true)
    }
}
