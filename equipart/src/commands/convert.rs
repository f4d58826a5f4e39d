//! `convert`: writes a model anew, in the Hugging Face layout.
use crate::cli::args::ConvertArgs;
use crate::cli::{model, out, show};
use models::convert::convert;
use parallel::Result;

pub(crate) fn run(a: &ConvertArgs, json: bool) -> Result<bool> {
    let model = model(Some(&a.model))?;
    let done = convert(&model, &a.out, a.dtype.map(Into::into))?;
    if json {
        show::json(&serde_json::json!({
            "out": a.out, "dtype": done.dtype.to_string(), "tensors": done.tensors, "bytes": done.bytes,
            "along": done.along,
        }));
    } else {
        let (n, dtype, out) = (done.tensors, done.dtype, a.out.display());
        out::line(&format!("{n} tensors in {dtype} are in {out}, with {}", done.along.join(", ")));
    }
    Ok(true)
}
