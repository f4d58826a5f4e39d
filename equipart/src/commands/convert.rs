//! `convert`: writes a model anew, in the Hugging Face layout.
use crate::cli::args::ConvertArgs;
use crate::cli::{model, show};
use models::convert::{Converted, convert};
use models::upcycle::{Upcycling, upcycle};
use parallel::Result;

pub(crate) fn run(a: &ConvertArgs, json: bool) -> Result<bool> {
    let model = model(Some(&a.model))?;
    let done = match (a.experts, a.chosen) {
        (Some(experts), Some(chosen)) => {
            let slices = a.slices.unwrap_or(1);
            upcycle(&model, Upcycling { experts, chosen, slices }, &a.out, a.dtype)?
        }
        _ => convert(&model, &a.out, a.dtype)?,
    };
    let Converted { dtype, tensors, bytes, along } = done;
    let object = serde_json::json!({
        "out": a.out, "dtype": dtype.to_string(), "tensors": tensors, "bytes": bytes, "along": along,
    });
    show::one(json, &object, || {
        format!("{tensors} tensors in {dtype} are in {}, with {}", a.out.display(), along.join(", "))
    });
    Ok(true)
}
