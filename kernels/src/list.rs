//! List of kernels. Each is here once: its computation, its arguments, its name and kind in profiles, and its
//! body on the host. [`every_kernel!`](crate::every_kernel) generates from it the trait, the meta device, the
//! kernels of every dtype on the host, and the kernels of other devices.
//!
//! Lists of tokens and of spans are indices ([`Indexed`](crate::Indexed)). `Self` is the device that
//! computes, `Self::Wide` the device of the wide dtype on the same place, in which many elements are summed.
/// Passes every kernel of the list to a macro: `every_kernel!(then …)` is `then! { [ … ] list }`.
#[macro_export]
macro_rules! every_kernel {
    ($then:ident $($with:tt)*) => {
        $then! { [$($with)*]
            /// C\[M,N\] (+)= A\[M,K\]·B\[K,N\], any strides; C's column stride is 1.
            gemm(c: ViewMut<Self>, a: View<Self>, b: View<Self>, write: Write)
                = "product", Product => <Self::Elem as CpuScalar>::gemm(c, a, b, write);
            /// C\[M,N\] (+)= A\[M,K\]·B\[K,N\] with unrounded sums in the wide dtype.
            gemm_wide(c: ViewMut<Self::Wide>, a: View<Self>, b: View<Self>, write: Write)
                = "product", Product => <Self::Elem as CpuScalar>::gemm_wide(c, a, b, write);
            /// C\[M,N\] (+)= A\[M,K\]·B\[K,N\] for a packed factor; C's column stride is 1.
            gemm_packed(c: ViewMut<Self>, a: View<Self>, b: &Self::Packed, write: Write)
                = "product", Product => <Self::Elem as CpuScalar>::gemm_panels(c, a, &b.panels(), write);

            /// y = value.
            fill(y: ViewMut<Self>, value: Self::Elem) = "fill", ElementWise => elementwise::fill(y, value);
            /// y = x, which may be transposed.
            copy(y: ViewMut<Self>, x: View<Self>) = "copy", ElementWise => elementwise::copy(y, x);
            /// Copies the rows of each segment of x to rows of y: its first one to the row of its position.
            put_rows(y: ViewMut<Self>, x: View<Self>, segments: &Index<Self::Place>)
                = "put rows", ElementWise => elementwise::put_rows(y, x, segments.words());
            /// y = x, rounded to this dtype.
            narrow(y: ViewMut<Self>, x: View<Self::Wide>)
                = "narrow", ElementWise => elementwise::each(y, x, |y, x| *y = Scalar::narrow(x));
            /// y += a.
            add(y: ViewMut<Self>, a: View<Self>) = "add", ElementWise => elementwise::add(y, a);
            /// y = the stabiliser of y and a ([`tensor::Scalar::stab`]), element by element.
            stab(y: ViewMut<Self>, a: View<Self>) = "stab", ElementWise => elementwise::stab(y, a);
            /// y\[B, N\] += row\[1, N\], to every row.
            add_row(y: ViewMut<Self>, row: View<Self>) = "add row", ElementWise => elementwise::add_row(y, row);
            /// sum\[1, N\] += Σ over the rows of x\[B, N\].
            add_rows(sum: ViewMut<Self::Wide>, x: View<Self>)
                = "add rows", ElementWise => elementwise::add_rows(sum, x);
            /// Drops elements of x and scales the others; its own backward. `tokens` cover all rows of the
            /// whole matrix, of which x holds those from `first_row` on. Rows of x beyond the tokens are
            /// padding and stay unchanged.
            dropout(x: ViewMut<Self>, tokens: &Index<Self::Place>, first_row: usize, dropout: &Dropout)
                = "dropout", ElementWise => elementwise::dropout(x, tokens.words(), first_row, dropout);
            /// Turns feature pairs (i, i + n/2) of the n rotated features of every query or key head by the
            /// table's (cos | sin) of the row's position; others, and an odd last one, are unchanged.
            /// `tokens` cover all rows; `back` applies the transpose.
            rotate(x: ViewMut<Self>, table: View<Self::Wide>, tokens: &Index<Self::Place>, heads: Heads, back: bool)
                = "rotate", ElementWise => elementwise::rotate(x, table, tokens.words(), heads, back);

            /// y = x · r · gain, r = rsqrt(mean(x²) + eps), one per row.
            rms_norm(y: ViewMut<Self>, r: ViewMut<Self::Wide>, x: View<Self>, gain: View<Self>, eps: f64)
                = "norm", Norm => norm::forward(y, r, x, gain, eps);
            /// dx of `rms_norm`, plus `skip` (the residual path's gradient) in the same pass; adds dgain.
            rms_norm_backward(
                dx: ViewMut<Self>, dgain: ViewMut<Self::Wide>, x: View<Self>, r: View<Self::Wide>, gain: View<Self>,
                dy: View<Self>, skip: Option<View<Self>>
            ) = "norm backward", Norm => norm::backward(dx, dgain, x, r, gain, dy, skip);
            /// r\[B,1\], a sum of n squares of its row, becomes rsqrt(r/n + eps).
            inverse_rms(r: ViewMut<Self>, n: usize, eps: f64)
                = "root of the mean square", Norm => norm::inverse_rms(r, n, eps);
            /// y = x · r · gain, for rows that are part of longer ones, of n columns; less z · r² · s/n if z
            /// is given. `stats[B, 2]` are (r, s).
            norm_part(
                y: ViewMut<Self>, x: View<Self>, stats: View<Self::Wide>, gain: View<Self>, z: Option<View<Self>>, n: usize
            ) = "norm", Norm => norm::part(y, x, stats, gain, z, n);
            /// y = (x − mean) · r · gain + bias, r = rsqrt(variance + eps); `stats[B, 2]` become (mean, r).
            layer_norm(
                y: ViewMut<Self>, stats: ViewMut<Self::Wide>, x: View<Self>, gain: View<Self>, bias: View<Self>, eps: f64
            ) = "norm", Norm => layer_norm::forward(y, stats, x, gain, bias, eps);
            /// dx of `layer_norm`, plus `skip` (the residual path's gradient) in the same pass; adds dgain
            /// and dbias.
            layer_norm_backward(
                dx: ViewMut<Self>, dgain_dbias: [ViewMut<Self::Wide>; 2], x: View<Self>, stats: View<Self::Wide>,
                gain: View<Self>, dy: View<Self>, skip: Option<View<Self>>
            ) = "norm backward", Norm => layer_norm::backward(dx, dgain_dbias, x, stats, gain, dy, skip);

            /// h = f(x).
            activate(h: ViewMut<Self>, x: View<Self>, f: Activation)
                = "activate", ElementWise => activation::forward(h, x, f);
            /// dx = dh · f'(x).
            activate_backward(dx: ViewMut<Self>, x: View<Self>, dh: View<Self>, f: Activation)
                = "activate backward", ElementWise => activation::backward(dx, x, dh, f);
            /// h = f(gate, up); profiles and files of machines name all these functions by the first.
            gated(h: ViewMut<Self>, gate: View<Self>, up: View<Self>, f: Gate)
                = "swiglu", ElementWise => gated::forward(h, gate, up, f);
            /// dgate and dup of `gated`.
            gated_backward(
                dgate: ViewMut<Self>, dup: ViewMut<Self>, gate: View<Self>, up: View<Self>, dh: View<Self>, f: Gate
            ) = "swiglu backward", ElementWise => gated::backward(dgate, dup, [gate, up, dh], f);
            /// y = √n · x.
            stretch(y: ViewMut<Self>, x: View<Self>, n: usize)
                = "stretch", ElementWise => elementwise::stretch(y, x, n);
            /// y = c · tanh(y/c).
            cap(y: ViewMut<Self>, c: f64) = "cap", ElementWise => elementwise::cap(y, c);

            /// o = the softmax of scores times values, over all keys of every query; `lse[B, queries]`
            /// receives its log-sum-exp. All keys of a query are in one span.
            attention(
                attend: &Attend, spans: &Index<Self::Place>, qkv: Qkv<Self>, o: ViewMut<Self>, lse: ViewMut<Self::Wide>,
                scratch: ViewMut<Self::Wide>
            ) = "attention", Attention => attention::take(attend, spans.words(), &qkv, TileRows::Whole(o, lse), scratch);
            /// Adds tiles of keys to a running softmax, for queries whose keys come in several parts.
            attention_block(
                attend: &Attend, spans: &Index<Self::Place>, qkv: Qkv<Self>, run: RunningSoftmax<Self::Wide>, scratch: ViewMut<Self::Wide>
            ) = "attention", Attention => attention::take(attend, spans.words(), &qkv, TileRows::Carried(run), scratch);
            /// Merges a running softmax of other keys, (out, max, sum), into one of the same queries. One
            /// that has seen no key changes nothing.
            attention_merge(
                heads: Heads, run: RunningSoftmax<Self>, other: (View<Self>, View<Self>, View<Self>)
            ) = "attention merge", Attention => attention::merge(heads, run, other);
            /// o = the running softmax's out / sum; its log-sum-exp is written to `max`.
            attention_finish(heads: Heads, o: ViewMut<Self>, run: RunningSoftmax<Self::Wide>)
                = "attention finish", Attention => attention::finish(heads, o, run);
            /// delta\[B, queries\] = Σ o·do per head.
            attention_delta(heads: Heads, delta: ViewMut<Self::Wide>, o: View<Self>, d_o: View<Self>)
                = "attention delta", Attention => attention_backward::delta(heads, delta, o, d_o);
            /// dsinks\[1, queries\] −= Σ e^(sink − lse)·delta over all rows, of each head's sink.
            attention_sinks(
                dsinks: ViewMut<Self::Wide>, sinks: View<Self>, lse: View<Self::Wide>, delta: View<Self::Wide>
            ) = "attention sinks", Attention => attention_backward::sinks(dsinks, sinks, lse, delta);
            /// Adds the gradients of these spans to dq, dk, dv; `saved` is (log-sum-exp, delta); scores are
            /// recomputed.
            attention_backward(
                attend: &Attend, spans: &Index<Self::Place>, qkv: Qkv<Self>, saved: (View<Self::Wide>, View<Self::Wide>),
                d_o: View<Self>, dqkv: [ViewMut<Self>; 3], scratch: ViewMut<Self::Wide>
            ) = "attention backward", Attention =>
                attention_backward::spans(attend, spans.words(), &qkv, saved, d_o, dqkv, scratch);

            /// As `attention_backward`, for gradients that are summed over calls or ranks: in the wide dtype.
            attention_block_backward(
                attend: &Attend, spans: &Index<Self::Place>, qkv: Qkv<Self>, saved: (View<Self::Wide>, View<Self::Wide>),
                d_o: View<Self>, dqkv: [ViewMut<Self::Wide>; 3], scratch: ViewMut<Self::Wide>
            ) = "attention backward", Attention =>
                attention_backward::spans(attend, spans.words(), &qkv, saved, d_o, dqkv, scratch);

            /// y = the table's row of each id; zero for ids outside the vocabulary shard.
            embed(y: ViewMut<Self>, table: View<Self>, ids: &Index<Self::Place>, slice: RowShard)
                = "embed", EmbeddingAndLoss => loss::embed(y, table, ids.words(), slice);
            /// Adds each row of dy to its id's row, if that is in the vocabulary shard.
            embed_backward(dtable: ViewMut<Self::Wide>, dy: View<Self>, ids: &Index<Self::Place>, slice: RowShard)
                = "embed backward", EmbeddingAndLoss => loss::embed_backward(dtable, dy, ids.words(), slice);
            /// Per row: the stabiliser of this rank's logits.
            row_stab(m: ViewMut<Self::Wide>, logits: View<Self>)
                = "loss stab", EmbeddingAndLoss => loss::row_stab(m, logits);
            /// Per row: Σ exp(logit − m), the target's logit (0 if it is on another rank or ignored) and, if
            /// `sums` has a third column, Σ logit.
            row_sums(
                sums: ViewMut<Self::Wide>, logits: View<Self>, m: View<Self::Wide>, targets: &Index<Self::Place>,
                slice: RowShard
            ) = "loss sums", EmbeddingAndLoss => loss::row_sums(sums, logits, m, targets.words(), slice);
            /// loss = Σ(lse − (1 − ε)·target's logit − ε/V·Σ logit + λ·lse²) · share, over the rows
            /// whose target is not ignored; lse is written to `m`. `sums` has a third column if ε is not 0.
            cross_entropy(
                loss: ViewMut<Self>, m: ViewMut<Self>, sums: View<Self>, targets: &Index<Self::Place>, terms: &LossTerms
            ) = "loss", EmbeddingAndLoss => loss::cross_entropy(loss, m, sums, targets.words(), terms);
            /// logits become (softmax·(1 + 2λ·lse) − (1 − ε)·one-hot − ε/V) · share, times the slope of
            /// their cap c, 1 − (logit/c)², if there is one; 0 if the target is ignored.
            cross_entropy_backward(
                logits: ViewMut<Self>, lse: View<Self::Wide>, targets: &Index<Self::Place>, slice: RowShard, terms: &LossTerms
            ) = "loss backward", EmbeddingAndLoss =>
                loss::cross_entropy_backward(logits, lse, targets.words(), slice, terms);

            /// Chooses `router.chosen` experts for every row: those with the highest scores, ties by lower
            /// index. Bias and noise are added to the scores, in this order.
            choose(
                chosen: &mut Index<Self::Place>, logits: View<Self::Wide>, bias: Option<View<Self>>,
                noise: Option<RouterNoise<Self::Place>>, router: &RouterTerms
            ) = "choose experts", EmbeddingAndLoss => router::choose(chosen.words_mut(), logits, bias, noise, router);
            /// Gates of the chosen experts, `gates[B, k]`, and each row's log-sum-exp.
            gates(
                gates: ViewMut<Self>, lse: ViewMut<Self>, logits: View<Self>, chosen: &Index<Self::Place>,
                router: &RouterTerms
            ) = "gates", EmbeddingAndLoss => router::gates(gates, lse, logits, chosen.words(), router);
            /// loss\[1,1\] = Σ over rows of z·lse² + Σ over experts of P̂ times the weight of the row's
            /// sequence and expert.
            router_loss(
                loss: ViewMut<Self>, logits: View<Self>, lse: View<Self>, balance: RouterBalance<Self>, sigmoid: bool
            ) = "router loss", EmbeddingAndLoss => router::loss(loss, logits, lse, &balance, sigmoid);
            /// dlogits of `gates`, and of `router_loss` if there is a `balance`.
            router_backward(
                dlogits: ViewMut<Self>, logits: View<Self::Wide>, lse: View<Self::Wide>, dgates: View<Self::Wide>,
                chosen: &Index<Self::Place>, balance: Option<RouterBalance<Self::Wide>>, router: &RouterTerms
            ) = "router backward", EmbeddingAndLoss =>
                router::backward(dlogits, logits, lse, (dgates, chosen.words()), balance.as_ref(), router);
            /// Multiplies every row of y by its factor, `by[B, 1]`.
            scale_rows(y: ViewMut<Self>, by: View<Self::Wide>)
                = "scale rows", ElementWise => router::scale_rows(y, by);

            /// loss\[1,1\] = Σ (x − y)² · share; x becomes its gradient, 2·(x − y) · share. The share is that
            /// of a number in the mean.
            mean_square(loss: ViewMut<Self::Wide>, x: ViewMut<Self>, y: View<Self>, over: MeanOver)
                = "mean square", EmbeddingAndLoss => loss::mean_square(loss, x, y, over);

            /// out\[1,1\] += Σ x².
            add_norm2(out: ViewMut<Self>, x: View<Self>) = "norm2", Optimizer => optimizer::add_norm2(out, x);
            /// factor\[1,1\] = min(1, limit/√norm2).
            clip_factor(factor: ViewMut<Self>, norm2: View<Self>, limit: f64)
                = "clip factor", Optimizer => optimizer::clip_factor(factor, norm2, limit);
            /// w −= lr · (decay · w + factor · g); `constants` are the learning rate and the decay. With a
            /// master, the master is updated and the narrow w is its rounded value; without one, w itself is
            /// updated.
            sgd(
                w: ViewMut<Self>, master: Option<ViewMut<Self::Wide>>, g: View<Self::Wide>, factor: View<Self::Wide>,
                constants: [f64; 2]
            ) = "sgd", Optimizer => optimizer::sgd(w, master, g, factor, constants);
            /// One `AdamW` step on factor · g; `moments` are (m, v), `constants` the learning rate, β₁, β₂, ε
            /// and the decay, and the step's number; `master` as in `sgd`.
            adamw(
                w: ViewMut<Self>, master: Option<ViewMut<Self::Wide>>,
                moments: (ViewMut<Self::Wide>, ViewMut<Self::Wide>), g: View<Self::Wide>,
                factor: View<Self::Wide>, constants: ([f64; 5], usize)
            ) = "adamw", Optimizer => optimizer::adamw(w, master, moments, g, factor, constants);
            /// One `AdamW` step as `adamw` does it. `states` are the codes of m, four to an element, its
            /// units, one for each block of a row, and those of v; after the step's number, `constants` have
            /// the number of elements of a block.
            adamw_8bit(
                w: ViewMut<Self>, master: Option<ViewMut<Self::Wide>>, states: [ViewMut<Self::Wide>; 4],
                g: View<Self::Wide>, factor: View<Self::Wide>, constants: ([f64; 5], [usize; 2])
            ) = "adamw 8-bit", Optimizer => adamw_8bit::adamw_8bit(w, master, states, g, factor, constants);
            /// One step of Lion on factor · g; `constants` are the learning rate, β₁, β₂ and the decay,
            /// `master` as in `sgd`.
            lion(
                w: ViewMut<Self>, master: Option<ViewMut<Self::Wide>>, m: ViewMut<Self::Wide>,
                g: View<Self::Wide>, factor: View<Self::Wide>, constants: [f64; 4]
            ) = "lion", Optimizer => optimizer::lion(w, master, m, g, factor, constants);
            /// m = β·m + (1 − β)·x, to = β·m + (1 − β)·x for x = factor · g: Nesterov's momentum.
            momentum(to: ViewMut<Self>, m: ViewMut<Self>, g: View<Self>, factor: View<Self>, beta: f64)
                = "momentum", Optimizer => optimizer::momentum(to, m, g, factor, beta);
            /// y = by · factor · x.
            scale(y: ViewMut<Self>, x: View<Self>, factor: View<Self>, by: f64)
                = "scale", ElementWise => optimizer::scale(y, x, factor, by);
        }
    };
}
