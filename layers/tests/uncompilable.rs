//! Exhibits of the museum that the handles make uncompilable, each with a twin that does what it should and compiles.
use comm::{Axis, Group, Mesh};
use kernels::Kernels;
use layers::Result;
use layers::ops::{Columns, Region, Rows, Split, Stream, add_bias, join, rms_norm};
use layers::weight::{ColumnWeight, RowWeight};
use layers::{Builder, Draw, Pieces, Random};
use tensor::{Category, Cpu, Tensor};

/// The compiler whose words stand in the `.stderr` files. Another one may word the same errors otherwise; there the
/// `compile_fail` examples of the handles' own documentation stand for these.
const WORDED_BY: &str = "rustc 1.95.";

/// Kills: handles that let an addend be used before its reduction, or a bias be added to it; an error that says
/// something else.
#[test]
fn exhibits_do_not_compile() {
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = std::process::Command::new(compiler).arg("--version").output().expect("a compiler").stdout;
    let version = String::from_utf8_lossy(&version).into_owned();
    if !version.starts_with(WORDED_BY) {
        println!("not tried: the messages are those of {WORDED_BY}x, and this is {version}");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/uncompilable/*.rs");
}

fn row<D: Kernels>(x: &Split<D>, w: &Rows<D>, bias: &Tensor<D>, group: &Group<D>) -> Result<Stream<D>> {
    let y = x.matmul(w)?;
    Ok(add_bias(y.reduce(group, Region::Whole)?, bias))
}

fn column_backward<D: Kernels>(dy: &Split<D>, w: Columns<D>, group: &Group<D>) -> Result<Stream<D>> {
    let dx = dy.matmul(&w.t())?;
    dx.reduce(group, Region::Whole)
}

fn residual<D: Kernels>(x: &Split<D>, w: &Rows<D>, skip: &Stream<D>, group: &Group<D>) -> Result<Stream<D>> {
    Ok(join(x.matmul(w)?.reduce(group, Region::Whole)?, skip))
}

fn normed<D: Kernels>(x: &Split<D>, w: &Rows<D>, gain: &Tensor<D>, group: &Group<D>) -> Result<Stream<D>> {
    Ok(rms_norm(&x.matmul(w)?.reduce(group, Region::Whole)?, gain, 0.0).0)
}

/// The twins do what the exhibits were to do, with numbers worked out by hand. Kills: an exhibit that does not compile
/// because nothing like it would.
#[test]
fn their_twins_compile_and_are_right() {
    let (device, mesh) = (Cpu::<f64>::default(), Mesh::alone());
    let (at, group) = (Builder::new(&device, &mesh, &Random { seed: 1 }), mesh.group(Axis::Tp));
    let two = Draw { mean: 2.0, std: 0.0 };
    let matrix = |values: [f64; 2]| Tensor::from_fn(&device, Category::Buffers, 1, 2, |i| values[i]);
    let rows = RowWeight::new(&at, Axis::Tp, "w", [2, 2], Pieces::Even, two).unwrap().rows().unwrap();
    let columns = ColumnWeight::new(&at, Axis::Tp, "v", 2, &[2.into()], two).unwrap().columns().unwrap();
    let (x, read) =
        (Split::cut(&matrix([1.0, 2.0]), group).unwrap(), |y: Stream<_>| y.gather(group).unwrap().read());
    assert_eq!(read(row(&x, &rows, &matrix([1.0, -1.0]), group).unwrap()), Some(vec![7.0, 5.0]));
    assert_eq!(read(column_backward(&x, columns, group).unwrap()), Some(vec![6.0, 6.0]));
    assert_eq!(read(residual(&x, &rows, &matrix([4.0, 0.5]).into(), group).unwrap()), Some(vec![10.0, 6.5]));
    assert_eq!(read(normed(&x, &rows, &matrix([3.0, -1.0]), group).unwrap()), Some(vec![3.0, -1.0]));
}
