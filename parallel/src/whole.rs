//! Whole parameters on every rank, whichever stage has them: one after the other, in program order.
use crate::Result;
use comm::{Axis, Mesh};
use kernels::Kernels;
use layers::Param;
use tensor::{Category, Device, Tensor};

/// Tells `each` of every parameter of the model, on every rank alike: its name and what `read` gives of it, whole, on the
/// ranks of the stage that has it. A parameter that several stages have is told once. `read` is also told which of this
/// rank's parameters it is. On a device without values only this rank's parameters are read.
///
/// # Errors
/// If ranks do not meet, and what `read` and `each` give.
pub fn whole<D: Kernels, W: Device<Place = D::Place>>(
    device: &W,
    params: &[&mut Param<D>],
    mesh: &Mesh<D::Place>,
    read: &mut dyn FnMut(usize, &Param<D>) -> Result<Option<Vec<W::Elem>>>,
    each: &mut dyn FnMut(&str, Vec<W::Elem>) -> Result<()>,
) -> Result<()> {
    let stages = mesh.group(Axis::STAGES);
    let line = |param: &&mut Param<D>| {
        let [rows, cols] = param.shape();
        format!("{rows} {cols} {}\n", param.name())
    };
    let mine: String = params.iter().map(line).collect();
    let all = stages.named("names of parameters").all_gather_values(mine.as_bytes())?;
    let mut told = Vec::new();
    for (stage, lines) in all.iter().enumerate() {
        let lines = std::str::from_utf8(lines).expect("names are text");
        for (i, line) in lines.lines().enumerate() {
            let mut words = line.splitn(3, ' ');
            let mut size = || words.next().and_then(|n| n.parse().ok()).expect("a size");
            let [rows, cols] = [size(), size()];
            let name = words.next().expect("a name");
            let values = if stage == stages.rank() { read(i, &*params[i])? } else { None };
            if told.contains(&name) {
                continue;
            }
            told.push(name);
            if stages.size() == 1 {
                values.map_or(Ok(()), |values| each(name, values))?;
                continue;
            }
            let mut tensor = match &values {
                Some(values) => Tensor::from_fn(device, Category::Buffers, rows, cols, |i| values[i]),
                None => Tensor::empty(device, Category::Buffers, rows, cols),
            };
            stages.named(name).broadcast(&mut tensor, stage)?;
            tensor.read().map_or(Ok(()), |values| each(name, values))?;
        }
    }
    Ok(())
}
