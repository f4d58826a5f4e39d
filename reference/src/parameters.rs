//! Maps that know their parameters by name: what a model's program is made of.
//!
//! The same list of them gives the names in program order, the forward, and where gradients go.
use crate::bias::{add_bias, bias_gradient};
use crate::layer_norm::{layer_norm, layer_norm_backward};
use crate::linear::{linear, linear_backward};
use crate::norm::{rms_norm, rms_norm_backward};
use std::collections::BTreeMap;
use tensor::Scalar;

/// Numbers by canonical parameter name, row-major in the shape that the model says: weights, or their gradients.
pub type Weights<S> = BTreeMap<String, Vec<S>>;

/// Names and shapes `[rows, cols]`, in program order.
pub(crate) type Shapes = Vec<(String, [usize; 2])>;

/// `Y[B,O] = X[B,I]·W[I,O]`, and a bias where there is one.
pub(crate) struct Affine {
    pub(crate) name: String,
    pub(crate) shape: [usize; 2], // [I, O]
    pub(crate) bias: bool,
}

impl Affine {
    pub(crate) fn shapes(&self) -> Shapes {
        let mut shapes = vec![(self.name.clone(), self.shape)];
        if self.bias {
            shapes.push((bias_of(&self.name), [1, self.shape[1]]));
        }
        shapes
    }
    pub(crate) fn forward<S: Scalar>(&self, w: &Weights<S>, x: &[S]) -> Vec<S> {
        let mut y = linear(x, &w[&self.name], self.shape);
        if self.bias {
            add_bias(&mut y, &w[&bias_of(&self.name)]);
        }
        y
    }
    /// `X[B,I], dY[B,O]` → `dX[B,I]`; the gradients of the parameters go into `g`.
    pub(crate) fn backward<S: Scalar>(
        &self,
        w: &Weights<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let (dx, dw) = linear_backward(x, &w[&self.name], dy, self.shape);
        g.insert(self.name.clone(), dw);
        if self.bias {
            g.insert(bias_of(&self.name), bias_gradient(dy, self.shape[1]));
        }
        dx
    }
}

/// Which norm a model has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Norm {
    /// The root-mean-square norm: a gain.
    Rms,
    /// The layer norm: a gain and a bias.
    Layer,
}

/// `Y[B,D] = norm(X[B,D])`.
pub(crate) struct Normed {
    pub(crate) name: String,
    pub(crate) kind: Norm,
    pub(crate) width: usize, // D
    pub(crate) eps: f64,
}

impl Normed {
    pub(crate) fn shapes(&self) -> Shapes {
        let mut shapes = vec![(self.name.clone(), [1, self.width])];
        if self.kind == Norm::Layer {
            shapes.push((bias_of(&self.name), [1, self.width]));
        }
        shapes
    }
    pub(crate) fn forward<S: Scalar>(&self, w: &Weights<S>, x: &[S]) -> Vec<S> {
        match self.kind {
            Norm::Rms => rms_norm(x, &w[&self.name], self.eps),
            Norm::Layer => layer_norm(x, &w[&self.name], &w[&bias_of(&self.name)], self.eps),
        }
    }
    /// `X[B,D], dY[B,D]` → `dX[B,D]`; the gradients of the parameters go into `g`.
    pub(crate) fn backward<S: Scalar>(
        &self,
        w: &Weights<S>,
        x: &[S],
        dy: &[S],
        g: &mut Weights<S>,
    ) -> Vec<S> {
        let (dx, dgain) = match self.kind {
            Norm::Rms => rms_norm_backward(x, &w[&self.name], dy, self.eps),
            Norm::Layer => {
                let (dx, dgain, dbias) = layer_norm_backward(x, &w[&self.name], dy, self.eps);
                g.insert(bias_of(&self.name), dbias);
                (dx, dgain)
            }
        };
        g.insert(self.name.clone(), dgain);
        dx
    }
}

/// The canonical name of the bias that belongs to a parameter.
fn bias_of(name: &str) -> String {
    format!("{name}.bias")
}
