//! Whole parameters on every rank, whatever stage has them: one after the other, in program order.
use crate::{Layout, Result, Stages};
use comm::{Axis, Mesh};
use kernels::Kernels;
use layers::Design;
use ops::{Param, RandomValues};
use std::collections::BTreeMap;
use tensor::{Category, Cpu, Device, Tensor};

/// A parameter of the model, on whatever stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The first stage that has it.
    pub stage: usize,
    /// Its index among the parameters of that stage.
    pub index: usize,
    /// Its canonical name.
    pub name: String,
    /// `[rows, columns]` of the whole.
    pub shape: [usize; 2],
    /// True if it has a gradient, and so moments.
    pub trained: bool,
}

/// Returns all parameters of the model, each once, in the program order of the unsplit model; the same on
/// every rank. A rank without peers returns those of its stage.
///
/// # Errors
/// If a collective fails.
pub fn named<D: Kernels>(
    design: &Design,
    params: &[&mut Param<D>],
    mesh: &Mesh<D::Place>,
) -> Result<Vec<Named>> {
    let stages = mesh.group(Axis::Pp);
    let line = |param: &&mut Param<D>| {
        let [rows, cols] = param.shape();
        format!("{rows} {cols} {} {}\n", u8::from(param.placement().trained), param.name())
    };
    let mine: String = params.iter().map(line).collect();
    let lists = stages.named("names of parameters").all_gather_values(mine.as_bytes())?;
    let mut reported: Vec<Named> = Vec::new();
    for (stage, lines) in lists.iter().enumerate() {
        for (index, line) in std::str::from_utf8(lines).expect("names are text").lines().enumerate() {
            let mut words = line.splitn(4, ' ');
            let mut size = || words.next().and_then(|n| n.parse().ok()).expect("a size");
            let (shape, trained) = ([size(), size()], size() == 1);
            let name = words.next().expect("a name").to_string();
            if reported.iter().all(|other| other.name != name) {
                reported.push(Named { stage, index, name, shape, trained });
            }
        }
    }
    if lists.len() > 1 {
        // A rank may have chunks from both ends of the model: stage order is not program order.
        let names = in_order(design)?;
        let places: BTreeMap<_, _> = names.iter().zip(0..).collect();
        reported.sort_by_key(|of| places.get(&of.name).copied().unwrap_or(names.len()));
    }
    Ok(reported)
}

/// The canonical names of a model's parameters, in the order of the unsplit program.
fn in_order(design: &Design) -> Result<Vec<String>> {
    let (device, mesh) = (kernels::meta_of::<Cpu<f32>>(), Layout::UNSPLIT.ghost(0)?);
    let context = Layout::UNSPLIT.place(&device, &mesh, &RandomValues { seed: 0 });
    Ok(Stages::new(&context, design)?.params().into_iter().map(|param| param.name().to_string()).collect())
}

/// Returns a parameter's values, whole, on every rank; `read` provides them on the ranks of the stage that
/// has the parameter. None on a device without values. Every rank calls it.
///
/// # Errors
/// If a collective fails, or the error of `read`.
pub fn whole<W: Device>(
    device: &W,
    of: &Named,
    mesh: &Mesh<W::Place>,
    read: impl FnOnce(usize) -> ops::Result<Option<Vec<W::Elem>>>,
) -> Result<Option<Vec<W::Elem>>> {
    let stages = mesh.group(Axis::Pp);
    let values = if stages.rank() == of.stage { read(of.index)? } else { None };
    if stages.size() == 1 {
        return Ok(values);
    }
    let [rows, cols] = of.shape;
    let mut tensor = match &values {
        Some(values) => Tensor::from_fn(device, Category::Buffers, rows, cols, |i| values[i]),
        None => Tensor::empty(device, Category::Buffers, rows, cols),
    };
    stages.named(&*of.name).broadcast(&mut tensor, of.stage)?;
    Ok(tensor.read())
}
