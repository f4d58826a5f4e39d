//! `convert`: writes a model anew, in the Hugging Face layout.
use crate::cli::args::ConvertArgs;
use crate::cli::{model, show};
use models::convert::{Converted, convert};
use parallel::Result;

pub(crate) fn run(a: &ConvertArgs, json: bool) -> Result<bool> {
    let model = model(Some(&a.model))?;
    let done = convert(&model, &a.out, a.dtype)?;
    let Converted { dtype, tensors, bytes, along } = done;
    let object = serde_json::json!({
        "out": a.out, "dtype": dtype.to_string(), "tensors": tensors, "bytes": bytes, "along": along,
    });
    show::one(json, &object, || {
        format!("{tensors} tensors in {dtype} are in {}, with {}", a.out.display(), along.join(", "))
    });
    Ok(true)
}
