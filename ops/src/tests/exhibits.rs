//! Twins of the museum's exhibits that do not compile: each does what its exhibit should, and compiles.
use super::norm;
use crate::handles::weight::{ColumnWeight, RowWeight};
use crate::param::origin::ParamOrigin;
use crate::{Columns, Draw, Pieces, RandomValues, Region, Result, Rows, Split, Stream, add_bias, join};
use comm::{Axis, Group, Mesh};
use kernels::Kernels;
use tensor::{Category, Cpu, Tensor};

fn row<D: Kernels>(
    x: &Split<D>,
    w: &Rows<D>,
    bias: &Tensor<D>,
    group: &Group<D::Place>,
) -> Result<Stream<D>> {
    let y = x.matmul(w)?;
    Ok(add_bias(y.reduce(group, Region::Whole)?, bias))
}

fn column_backward<D: Kernels>(dy: &Split<D>, w: Columns<D>, group: &Group<D::Place>) -> Result<Stream<D>> {
    let dx = dy.matmul(&w.t())?;
    dx.reduce(group, Region::Whole)
}

fn residual<D: Kernels>(
    x: &Split<D>,
    w: &Rows<D>,
    skip: &Stream<D>,
    group: &Group<D::Place>,
) -> Result<Stream<D>> {
    Ok(join(x.matmul(w)?.reduce(group, Region::Whole)?, skip))
}

fn normed<D: Kernels>(
    x: &Split<D>,
    w: &Rows<D>,
    gain: &Tensor<D>,
    group: &Group<D::Place>,
) -> Result<Stream<D>> {
    Ok(norm(&x.matmul(w)?.reduce(group, Region::Whole)?, gain, None, 0.0).0)
}

/// The twins do what the exhibits were to do, with numbers worked out by hand. Kills: an exhibit that does
/// not compile because nothing like it would.
#[test]
fn twins_compile_and_are_right() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let (at, group) = (ParamOrigin::new(&device, &mesh, &RandomValues { seed: 1 }), mesh.group(Axis::Tp));
    let two = Draw { mean: 2.0, std: 0.0 };
    let matrix = |values: [f64; 2]| Tensor::from_fn(&device, Category::Buffers, 1, 2, |i| values[i]);
    let rows = RowWeight::new(&at, Axis::Tp, "w", [2, 2], Pieces::Even, two).unwrap().rows().unwrap();
    let columns =
        ColumnWeight::drawn(&at, Axis::Tp, "v".into(), 2, &[2.into()], two).unwrap().columns().unwrap();
    let (x, read) =
        (Split::cut(&matrix([1.0, 2.0]), group).unwrap(), |y: Stream<_>| y.gather(group).unwrap().read());
    assert_eq!(read(row(&x, &rows, &matrix([1.0, -1.0]), group).unwrap()), Some(vec![7.0, 5.0]));
    assert_eq!(read(column_backward(&x, columns, group).unwrap()), Some(vec![6.0, 6.0]));
    assert_eq!(read(residual(&x, &rows, &matrix([4.0, 0.5]).into(), group).unwrap()), Some(vec![10.0, 6.5]));
    assert_eq!(read(normed(&x, &rows, &matrix([3.0, -1.0]), group).unwrap()), Some(vec![3.0, -1.0]));
}
