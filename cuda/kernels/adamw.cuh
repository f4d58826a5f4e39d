// Constants of a step of AdamW. `keep`, `first` and `second` are 1 − lr·decay, lr/(1 − β₁^step), 1/(1 −
// β₂^step). Source: Loshchilov, Hutter, Algorithm 2, arXiv:1711.05101.
#pragma once

struct AdamW {
    float keep, first, second, beta1, beta2, eps;
};
