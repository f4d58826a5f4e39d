//! Maps with named parameters: the parts of a model's program.
//!
//! One list of maps gives the names in program order, the forward, and the names of the gradients.
use crate::bias::{add_bias, bias_gradient};
use crate::layer_norm::{layer_norm, layer_norm_backward};
use crate::linear::{linear, linear_backward};
use crate::norm::{rms_norm, rms_norm_backward};
use std::collections::BTreeMap;
use tensor::Scalar;

/// Values by canonical parameter name, row-major in the model's shapes: weights, or their gradients.
pub type Weights<S> = BTreeMap<String, Vec<S>>;

/// Names and shapes `[rows, cols]`, in program order.
pub(crate) type Shapes = Vec<(String, [usize; 2])>;

/// Keeps the trained parameters: all but the biases of routers, which have no gradient.
pub(crate) fn trained(mut shapes: Shapes) -> Shapes {
    shapes.retain(|(name, _)| !name.ends_with(".router.bias"));
    shapes
}

/// A map of rows, with the parameter `name` of this shape, and `name.bias` if `bias` is true.
pub(crate) struct Map {
    pub(crate) name: String,
    pub(crate) shape: [usize; 2],
    pub(crate) bias: bool,
    pub(crate) does: MapKind,
}

/// The function of a map.
pub(crate) enum MapKind {
    /// `Y[B,O] = X[B,I]·W[I,O]`, plus the bias if there is one.
    Affine,
    /// `Y[B,D] = norm(X[B,D])` with this ε: layer norm with a bias, root-mean-square norm without.
    Norm(f64),
    /// `Y = X`; it has no parameters.
    Same,
}

impl Map {
    pub(crate) fn shapes(&self) -> Shapes {
        if matches!(self.does, MapKind::Same) {
            return vec![];
        }
        let mut shapes = vec![(self.name.clone(), self.shape)];
        if self.bias {
            shapes.push((self.bias(), [1, self.shape[1]]));
        }
        shapes
    }
    /// Canonical name of the bias.
    fn bias(&self) -> String {
        format!("{}.bias", self.name)
    }
    pub(crate) fn forward<S: Scalar>(&self, w: &Weights<S>, x: &[S]) -> Vec<S> {
        let weight = || &w[&self.name];
        let mut y = match self.does {
            MapKind::Affine => linear(x, weight(), self.shape),
            MapKind::Norm(eps) if self.bias => return layer_norm(x, weight(), &w[&self.bias()], eps),
            MapKind::Norm(eps) => rms_norm(x, weight(), eps),
            MapKind::Same => return x.to_vec(),
        };
        if self.bias {
            add_bias(&mut y, &w[&self.bias()]);
        }
        y
    }
    /// Computes `dX` from `X, dY`; puts the gradients of the parameters into `g`.
    pub(crate) fn backward<S: Scalar>(
        &self,
        w: &Weights<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let weight = || &w[&self.name];
        let (dx, d_own) = match self.does {
            MapKind::Affine => linear_backward(x, weight(), dy, self.shape),
            MapKind::Norm(eps) if self.bias => {
                let (dx, dgain, _) = layer_norm_backward(x, weight(), dy, eps);
                (dx, dgain)
            }
            MapKind::Norm(eps) => rms_norm_backward(x, weight(), dy, eps),
            MapKind::Same => return dy.to_vec(),
        };
        g.insert(self.name.clone(), d_own);
        if self.bias {
            g.insert(self.bias(), bias_gradient(dy, self.shape[1]));
        }
        dx
    }
}
