//! Order of a column layer's products and collectives in a whole backward.
use crate::build::strategy::Column;
use crate::{Builder, ColumnLinear, Layer};
use comm::{Axis, CallClock, GhostCall, Mesh};
use kernels::timed_meta_of;
use ops::{PassContext, RandomValues, Region, Result, Stream};
use std::sync::{Arc, Mutex};
use tensor::{Category, Clock, Cpu, KernelKind, KernelWork, Tensor};

/// Products and calls, in the order in which they begin, and ends of calls.
#[derive(Default)]
struct CallOrder(Mutex<Vec<String>>);

impl Clock for CallOrder {
    fn kernel(&self, work: &KernelWork) {
        if work.kind == KernelKind::Product {
            self.0.lock().unwrap().push("product".into());
        }
    }
}

impl CallClock for CallOrder {
    fn call(&self, call: &GhostCall) {
        self.0.lock().unwrap().push(format!("whole {:?}", call.op));
    }
    fn start(&self, call: &GhostCall) -> usize {
        let mut all = self.0.lock().unwrap();
        all.push(format!("{:?}", call.op));
        all.len() - 1
    }
    fn finish(&self, number: usize) {
        let mut all = self.0.lock().unwrap();
        let started = all[number].clone();
        all.push(format!("end of {started}"));
    }
}

/// Kills: a sum of dX that ends before dW, or begins after it; X gathered before the product for dX, or after
/// it; a gather that the sum has to wait for.
#[test]
fn calls_of_a_column_backward_run_beside_its_products() -> Result<()> {
    let whole = ["product", "AllReduce", "product", "end of AllReduce"];
    let gathered = ["AllGather", "product", "end of AllGather"];
    let regions = [&gathered[..], &["ReduceScatter", "product", "end of ReduceScatter"]].concat();
    for (in_regions, wanted) in [(false, &whole[..]), (true, &regions[..])] {
        let order = Arc::new(CallOrder::default());
        let (device, mesh) =
            (timed_meta_of::<Cpu<f32>>(Some(order.clone())), Mesh::ghost(&[(Axis::Tp, 2)], 1)?);
        let mesh = mesh.timed(order.clone());
        let at = Builder::new(&device, &mesh, &RandomValues { seed: 1 });
        let column = Column { axis: Axis::Tp, name: "w", inputs: 5, sections: &[8.into()], bias: true };
        let mut layer = ColumnLinear::shard(&at, &column)?;
        let region = if in_regions { Region::tokens(mesh.group(Axis::Tp)) } else { Region::Whole };
        let x = Stream::cut(&Tensor::from_fn(&device, Category::Activations, 3, 5, |_| 1.0), region);
        let cx = PassContext::train(0, [3], 3);
        let (y, saved) = layer.forward(&cx, x)?;
        order.0.lock().unwrap().clear();
        layer.backward(&cx, saved, y)?;
        assert_eq!(*order.0.lock().unwrap(), wanted);
    }
    Ok(())
}
